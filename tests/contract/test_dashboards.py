"""The dashboards: the files are what the code makes, and ask for nothing that there is not."""

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest

from deploy.grafana.boards import BOARDS
from deploy.grafana.build import FOLDER, path_of, text_of
from deploy.grafana.panels import SOURCE_UID
from expressions import board_expressions, names_of, rules, samples_of_families, with_values
from ledger.metrics.catalogue import COUNTED

DASHBOARDS: dict[str, dict[str, Any]] = {name: json.loads(text_of(name)) for name in BOARDS}
LABELS = samples_of_families()
RECORDED = {rule["record"] for rule in rules() if "record" in rule}
OF_PROMETHEUS = {
    "up": set(),
    "ALERTS": {"alertname", "alertstate"},
    "process_resident_memory_bytes": set(),
    "process_cpu_seconds_total": set(),
}
ADDED = {"job", "instance", "pod", "__name__"}


def panels(name: str) -> Iterator[dict[str, Any]]:
    return (panel for panel in DASHBOARDS[name]["panels"] if panel["type"] != "row")


@pytest.mark.parametrize("name", BOARDS)
def test_the_file_is_what_the_code_makes(name: str) -> None:
    assert path_of(name).read_text(encoding="utf-8") == text_of(name), "run `python -m deploy.grafana.build --write`"


def test_there_is_no_other_file() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {*BOARDS}
    assert len({board["uid"] for board in DASHBOARDS.values()}) == len(BOARDS)


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_says_what_it_is_and_takes_its_source_from_the_variable(name: str) -> None:
    board = DASHBOARDS[name]
    (source,) = (variable for variable in board["templating"]["list"] if variable["type"] == "datasource")
    assert (source["name"], source["query"], source["current"]["value"]) == ("datasource", "prometheus", SOURCE_UID)
    assert board["editable"] is False
    for panel in panels(name):
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert {target["datasource"]["uid"] for target in panel["targets"]} | {panel["datasource"]["uid"]} == {"${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    numbers = [panel["id"] for panel in board["panels"]]
    assert len({*numbers}) == len(numbers)


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARDS[name]["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("name", BOARDS)
def test_variables_are_those_that_are_used(name: str) -> None:
    board = DASHBOARDS[name]
    asked = json.dumps([[panel["targets"] for panel in panels(name)], [entry.get("query") for entry in board["templating"]["list"]]])
    used = {*re.findall(r"\$\{?(\w+)", asked)} - {"__rate_interval"}
    assert used == {entry["name"] for entry in board["templating"]["list"]}


EXPRESSIONS = [*((name, expression) for name in BOARDS for expression in board_expressions(DASHBOARDS[name]))]
ASKED = [*EXPRESSIONS, *(("rules", rule["expr"]) for rule in rules())]


@pytest.mark.parametrize(("place", "expression"), ASKED)
def test_only_families_and_labels_that_there_are(place: str, expression: str) -> None:
    for quantity in COUNTED:
        parsed = promql_parser.parse(with_values(expression, quantity=quantity))
        found = names_of(parsed)
        assert found, (place, expression)
        for name, labels in found:
            if name in RECORDED:
                continue
            known = LABELS.get(name, OF_PROMETHEUS.get(name))
            assert known is not None, name
            assert labels <= known | ADDED, name


def test_speeds_are_of_what_only_grows() -> None:
    asked = [found for _, expression in ASKED for found in re.findall(r"\b(?:rate|irate|increase)\((\w+)", expression)]
    assert asked
    assert [name for name in asked if not name.endswith(("_total", "_bucket", "_count", "_sum"))] == []
    assert [name for name in asked if name in LABELS and "run" in LABELS[name]] == []


@pytest.mark.parametrize("name", BOARDS)
def test_legends_name_labels_that_the_answer_has(name: str) -> None:
    for panel in panels(name):
        for target in panel["targets"]:
            (family, _), *_ = names_of(promql_parser.parse(with_values(target["expr"], quantity="samples")))
            kept = LABELS.get(family, {"instance", "handler", "kind", "unit"}) | ADDED
            assert {*re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])} <= kept, target["expr"]
