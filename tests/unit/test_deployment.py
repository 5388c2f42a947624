"""What `docker compose up` would do, read from its files; no container engine is needed, and none runs here."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ledger.cli.serving import STOP_SECONDS
from ledger.config import Settings, is_loopback
from ledger.metrics.catalogue import PROCESS_FAMILIES, RUN_FAMILIES
from ledger.storage.engine import normalised
from presence import missing

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/training-ledger.json").read_text(encoding="utf-8"))
OURS = [name for name, service in SERVICES.items() if "build" in service]
ONCE = [
    name
    for service in SERVICES.values()
    for name, how in service.get("depends_on", {}).items()
    if how["condition"].endswith("successfully")
]
PINNED = re.compile(r"[a-z0-9/-]+:v?\d+\.\d+(\.\d+)?(-[a-z0-9.-]+)?")


def interpolated(text: str) -> str:
    """A value as compose reads it where no variable is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def mounts() -> Iterator[tuple[str, str, str]]:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source, target, *_ = volume.split(":")
            yield name, source, target


def inside(service: str, path: str) -> Path:
    """The file of the checkout that a container finds at a path."""
    for name, source, target in mounts():
        if name == service and source.startswith("./") and (path == target or path.startswith(target + "/")):
            return ROOT / source / path.removeprefix(target).lstrip("/")
    raise AssertionError(f"nothing of the checkout is mounted at {path} in {service}")


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_is_pinned(name: str) -> None:
    assert PINNED.fullmatch(SERVICES[name]["image"]), SERVICES[name]["image"]


def test_images_of_the_dockerfile_are_pinned_and_it_ends_as_an_ordinary_user() -> None:
    images = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert images
    assert all(PINNED.fullmatch(image) for image in images), images
    users = re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE)
    assert users
    assert users[-1].isdigit()
    assert users[-1] != "0"


@pytest.mark.parametrize("name", SERVICES)
def test_every_port_is_published_on_loopback_only(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        host, _published, _inside = port.rsplit(":", 2)
        assert is_loopback(host), port
    assert "network_mode" not in SERVICES[name]


@pytest.mark.parametrize("name", [name for name in SERVICES if name not in ONCE])
def test_every_lasting_service_has_a_health_check_and_comes_back(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["restart"] == "unless-stopped"


def test_whoever_is_waited_for_exists_and_can_be_waited_for() -> None:
    for service in SERVICES.values():
        for name, how in service.get("depends_on", {}).items():
            assert how["condition"] in ("service_healthy", "service_completed_successfully")
            assert (how["condition"] == "service_healthy") == ("healthcheck" in SERVICES[name])


def test_everything_mounted_exists() -> None:
    for _, source, _ in mounts():
        assert (ROOT / source).is_dir() if source.startswith("./") else source in COMPOSE["volumes"], source


def test_the_schema_is_made_by_command_before_the_service_starts() -> None:
    assert SERVICES["migrate"]["command"] == ["db", "upgrade"]
    assert SERVICES["ledger"]["command"] == ["serve"]
    assert SERVICES["ledger"]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert SERVICES["migrate"]["environment"] == SERVICES["ledger"]["environment"]


@pytest.mark.parametrize("name", OURS)
def test_the_environment_names_real_settings_with_values_that_can_be(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = SERVICES[name]["environment"]
    known = {f"LEDGER_{setting.upper()}" for setting in Settings.model_fields}
    assert environment.keys() <= known
    for variable, value in environment.items():
        monkeypatch.setenv(variable, interpolated(value))
    settings = Settings()
    # To be reached by its neighbours it has to be told in words that something else protects the network.
    assert settings.unprotected_network
    assert not is_loopback(settings.host)
    url, postgres = normalised(settings.database_url), SERVICES["postgres"]["environment"]
    assert (url.drivername, url.host) == ("postgresql+psycopg", "postgres")
    assert url.username == postgres["POSTGRES_USER"]
    assert url.database == postgres["POSTGRES_DB"]
    assert url.password == interpolated(postgres["POSTGRES_PASSWORD"])
    monkeypatch.delenv("LEDGER_UNPROTECTED_NETWORK")
    with pytest.raises(ValueError, match="no access control"):
        Settings()


def test_ports_and_times_are_those_of_the_service() -> None:
    port = Settings.model_fields["port"].default
    assert SERVICES["ledger"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"127.0.0.1:{port}/readyz" in " ".join(SERVICES["ledger"]["healthcheck"]["test"])
    assert f"EXPOSE {port}" in DOCKERFILE
    assert int(SERVICES["ledger"]["stop_grace_period"].removesuffix("s")) > STOP_SECONDS


def test_prometheus_scrapes_the_neighbour_and_otherwise_as_the_plain_file_says() -> None:
    (option,) = (option for option in SERVICES["prometheus"]["command"] if option.startswith("--config.file="))
    mounted = inside("prometheus", option.partition("=")[2])
    composed, plain = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in (mounted, mounted.with_name("prometheus.yml")))
    targets = [config.pop("static_configs") for config in composed["scrape_configs"]]
    local = [config.pop("static_configs") for config in plain["scrape_configs"]]
    assert composed == plain
    port = Settings.model_fields["port"].default
    assert targets == [[{"targets": [f"ledger:{port}"]}]]
    assert local == [[{"targets": [f"127.0.0.1:{port}"]}]]


def test_grafana_finds_its_source_and_its_dashboards() -> None:
    sources = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text(encoding="utf-8"))["datasources"]
    (source,) = sources
    host, port = source["url"].removeprefix("http://").split(":")
    assert f"127.0.0.1:{port}:{port}" in SERVICES[host]["ports"]
    (variable,) = (entry for entry in DASHBOARD["templating"]["list"] if entry["type"] == "datasource")
    assert variable["query"] == source["type"]
    assert variable["current"] == {"text": source["name"], "value": source["uid"]}
    provisioning = inside("grafana", "/etc/grafana/provisioning")
    assert {folder.name for folder in provisioning.iterdir()} == {"datasources", "dashboards"}
    providers = yaml.safe_load((provisioning / "dashboards" / "training-ledger.yml").read_text(encoding="utf-8"))["providers"]
    (folder,) = {inside("grafana", provider["options"]["path"]) for provider in providers}
    home = inside("grafana", SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.parent == folder
    assert json.loads(home.read_text(encoding="utf-8")) == DASHBOARD
    assert all(provider["allowUiUpdates"] is False for provider in providers)


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_the_dashboard_asks_only_for_families_and_labels_that_there_are() -> None:
    families = {
        family.full_name + ("_total" if family.type == "counter" else ""): family for family in (*RUN_FAMILIES, *PROCESS_FAMILIES.values())
    }
    queries = [entry["definition"] for entry in DASHBOARD["templating"]["list"] if entry["type"] == "query"]
    asked = [re.findall(r"(training_ledger_\w+)(?:\{([^}]*)\})?", text) for text in (*expressions(), *queries)]
    assert all(asked)
    for name, matchers in (found for each in asked for found in each):
        assert name in families, name
        assert {*re.findall(r"(\w+)=", matchers)} <= {*families[name].labels}, name
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            (name, _), *_ = re.findall(r"(training_ledger_\w+)(\{)", target["expr"])
            assert {*re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])} <= {*families[name].labels}


def test_panels_do_not_overlap_and_take_their_source_from_the_variable() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert {target["datasource"]["uid"] for target in panel["targets"]} | {panel["datasource"]["uid"]} == {"${datasource}"}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_prometheus_reads_the_expressions_and_the_configurations(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        missing("promtool")
    asked = [expression.replace("$project", "p").replace("$run", "r") for expression in expressions()]
    rules = {"groups": [{"name": "all", "rules": [{"record": f"asked:{number}", "expr": each} for number, each in enumerate(asked)]}]}
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump(rules), encoding="utf-8")
    configurations = [ROOT / "deploy/prometheus" / name for name in ("prometheus.yml", "compose.yml")]
    for command in (
        ["check", "rules", str(path)],
        *(["check", "config", str(each)] for each in configurations),
    ):
        ended = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def copied() -> list[str]:
    """What the image's first stage takes from the checkout."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    return [source for line in lines for source in line.split()]


def test_the_image_gets_what_it_copies_and_nothing_else() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert "*" in ignored
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == set(copied())
    assert all((ROOT / name).exists() for name in copied())


def test_what_the_image_copies_is_enough_to_build_the_package(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert list(tmp_path.glob("training_ledger-*.whl"))
