"""The reference pages, made from the code that they describe: `python -m tests.docs.reference --write` writes them anew."""

import argparse
import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import typer
import yaml
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ledger import cli
from ledger.api import problems, refusals
from ledger.cli import app
from ledger.config import Settings
from ledger.domain import errors
from ledger.domain.errors import LedgerError
from ledger.domain.findings import ADVICE, KINDS, MESSAGES
from ledger.metrics import catalogue
from ledger.metrics.catalogue import PROCESS_FAMILIES, RUN_FAMILIES, Family

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RULES = ROOT / "deploy" / "prometheus" / "rules"
MADE = "<!-- Made from the code by `python -m tests.docs.reference --write`; edit that, not this page. -->"
BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
CHOICES = typing.Literal


def cell(value: object) -> str:
    """Text that keeps a table's form."""
    return " ".join(str(value).split()).replace("|", "\\|")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(cell(value) for value in line) + " |" for line in lines]


def wrapped(text: str) -> list[str]:
    """A paragraph in lines of the usual width."""
    return textwrap.wrap(" ".join(text.split()), 132, break_long_words=False, break_on_hyphens=False)


def refusal_classes() -> list[type[LedgerError]]:
    """Every refusal, those of the ledger first, then those of the edge."""
    found = [item for module in (errors, refusals) for item in vars(module).values() if isinstance(item, type)]
    return list(dict.fromkeys(item for item in found if issubclass(item, LedgerError) and item is not LedgerError))


def problems_page() -> list[str]:
    """What is refused, and how."""
    rows: list[tuple[object, ...]] = []
    for item in refusal_classes():
        after = getattr(item, "retry_after_seconds", None)
        again = "no" if after is None else f"yes, after {after} s"
        rows.append((problems.STATUS[item.code], f"`{item.code}`", (item.__doc__ or "").strip(), again))
    for status, code in problems.BY_STATUS.items():
        again = "perhaps" if status == HTTPStatus.INTERNAL_SERVER_ERROR else "no"
        rows.append((status, f"`{code}`", problems.TITLES[code], again))
    return [
        "# Problems",
        "",
        "Every error is a problem document (RFC 9457, `application/problem+json`). Programs decide by `code`, which is stable; `title` and",
        "`detail` are for people and may be reworded. A problem names places (`pointer`, and `errors` for the first",
        f"{problems.MOST_ERRORS}), never what was sent there. `request_id` is the answer's `X-Request-ID`, under which the service's log",
        "has the request; a caller may choose it by sending that header.",
        "",
        *table(("status", "code", "meaning", "again?"), sorted(rows, key=lambda row: (row[0], row[1]))),
        "",
        "*Again?* says whether the same request will succeed later as it is. Where it will, the answer carries `Retry-After`. Sending a",
        "batch again is always safe: an event that the ledger has already is counted as a duplicate.",
        "",
        "A batch that is of the documented form is taken as a whole with status 200, and what could not be taken of it stands in its",
        "`rejected`: one bad event never blocks the others.",
    ]


def family_rows(families: Iterable[Family]) -> Iterator[tuple[object, ...]]:
    """A row a family, with its name as a query has it."""
    for family in families:
        name = family.full_name + ("_total" if family.type == "counter" else "")
        yield f"`{name}`", family.type, family.unit or "", ", ".join(f"`{label}`" for label in family.labels), family.meaning


def metrics_page() -> list[str]:
    """What Prometheus is told."""
    columns = ("family", "type", "unit", "labels", "meaning")
    rules = (catalogue.__doc__ or "").strip().splitlines()[2:]
    return [
        "# Metrics",
        "",
        "`/metrics` has the families of runs and those of the server process; `/metrics/runs` has the former alone, which are read from",
        "the database and so are the same whichever replica or worker is asked. Both come as Prometheus text or, by `Accept`, as",
        "OpenMetrics.",
        "",
        *wrapped(
            """A configuration for a Prometheus on the same machine is in `deploy/prometheus/prometheus.yml`, with rules whose alerts
            [alerts.md](alerts.md) explains. Dashboards for Grafana are in `deploy/grafana`, made by
            `python -m deploy.grafana.build --write`. Every expression in them is tested against a Prometheus that scrapes a run; no Grafana
            server was at hand, so how the panels look there has not been seen."""
        ),
        "",
        *rules,
        "",
        "## How old a scrape may be",
        "",
        *wrapped(
            """A scrape shows the ledger as it stands where at most eight runs have changed, and had before: it reads these again, and
            nothing else. Where more have changed it hands out the last reading, which is renewed in the background every
            `LEDGER_METRICS_CACHE_SECONDS`, or after three times what the last reading took where that is longer; so a value is at most
            as old as that pause and one reading together, and `training_ledger_snapshot_timestamp_seconds` says when it was read. A run
            has changed when it has new entries, or when a moment has come that its books named: a grace that ended, a silence that
            became long. Each run is of one offset. After five minutes without a scrape the reading in the background stops, and the next
            scrape waits for one, as it does where none has succeeded for a minute, and always where the setting is 0."""
        ),
        "",
        "## Families of runs",
        "",
        *table(columns, family_rows(RUN_FAMILIES)),
        "",
        "## Families of a server process",
        "",
        "They count what this process did since it started, and are no part of any balance. With several workers a scrape reaches one of",
        "them.",
        "",
        *table(columns, family_rows(PROCESS_FAMILIES.values())),
        "",
        "Beside them stand `process_…` and `python_…` of the client library.",
        "",
        "## Queries",
        "",
        "Replicas say the same about a run, so take one of them before adding anything up:",
        "",
        "```promql",
        "# Share of the attempted targets that an accepted checkpoint holds",
        'sum by (project, run) (max without (instance, pod) (training_ledger_valid_targets{bucket="preserved"}))',
        "  / sum by (project, run) (max without (instance, pod) (training_ledger_valid_targets))",
        "",
        "# Work that a restart threw away, in targets",
        'max without (instance, pod) (training_ledger_valid_targets{bucket="lost_to_restart"})',
        "",
        "# Updates since the last accepted checkpoint: what a crash now would cost",
        "max without (instance, pod) (training_ledger_latest_update) - max without (instance, pod) (training_ledger_accepted_update)",
        "",
        "# Seconds since the run was last heard of",
        "time() - max without (instance, pod) (training_ledger_last_event_timestamp_seconds)",
        "",
        "# Accounting that does not add up; anything here is a bug of the ledger",
        "max without (instance, pod) (training_ledger_imbalance_valid_targets) != 0",
        "```",
        "",
        "Never take `rate()` or `increase()` of a bucket: it can fall, and events that arrive late would look like speed. The REST call",
        "`…/rates` divides by the time that the ranks measured.",
    ]


def default_words(name: str, field: FieldInfo) -> str:
    """The default of a setting."""
    if field.default is PydanticUndefined:
        return "`ledger.db` in the user's data directory" if name == "database_url" else "computed"
    return f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"


def bounds_words(field: FieldInfo) -> str:
    """What values a setting takes."""
    if typing.get_origin(field.annotation) is CHOICES:
        return " or ".join(f"`{choice}`" for choice in typing.get_args(field.annotation))
    if field.annotation is bool:
        return "`true` or `false`"
    limits = [f"{words} {getattr(rule, name)}" for rule in field.metadata for name, words in BOUNDS.items() if hasattr(rule, name)]
    kind = {int: "integer", float: "number", str: "text"}[typing.cast("type", field.annotation)]
    return ", ".join([kind, *limits])


def settings_page() -> list[str]:
    """What may differ between installations."""
    prefix = Settings.model_config.get("env_prefix", "")
    rows = [
        (f"`{prefix}{name.upper()}`", default_words(name, field), bounds_words(field), field.description or "")
        for name, field in Settings.model_fields.items()
    ]
    return [
        "# Settings",
        "",
        "The service reads its settings once, when it starts: flags of [`ledger serve`](cli.md#ledger-serve) first, then the environment,",
        "then the default. A value that cannot be stops it with exit code 2 and a sentence. Times are in seconds, sizes in bytes.",
        "",
        *table(("variable", "default", "values", "meaning"), rows),
        "",
        "Whoever reaches the service may read and write everything: there is no access control. So it binds to this machine alone, and",
        f"refuses any other address unless `{prefix}UNPROTECTED_NETWORK=true` says that something else protects the network.",
    ]


def option_names(parameter: Any) -> str:
    """How a parameter is given."""
    if parameter.metavar:
        return f"`{parameter.metavar}`"
    return ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])


def option_default(parameter: Any) -> str:
    """What holds where a parameter is left out."""
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    if parameter.required:
        return "must be given"
    return "" if parameter.default in (None, False) else f"{getattr(parameter.default, 'value', parameter.default)}"


def command_lines(command: Any, name: str) -> Iterator[str]:
    """A command with its parameters, then the commands below it."""
    commands: dict[str, Any] = getattr(command, "commands", {})
    if not commands:
        yield from ("", f"## `{name}`", "", *(line.strip() for line in (command.help or "").splitlines()))
        rows = [(option_names(item), option_default(item), item.help or "") for item in command.params]
        if rows:
            yield from ("", *table(("parameter", "default", "meaning"), rows))
    for step, below in commands.items():
        yield from command_lines(below, f"{name} {step}")


def cli_page() -> list[str]:
    """The command line."""
    codes = (cli.__doc__ or "").strip().splitlines()[2:]
    return [
        "# Command line",
        "",
        "`ledger` reads the database itself, so its reports need no running service; where the service is elsewhere, `ledger report` asks",
        "it with `--url`. What was asked for goes to standard output, everything else to standard error.",
        "",
        *codes,
        *command_lines(typer.main.get_command(app), "ledger"),
    ]


def alerts() -> list[dict[str, Any]]:
    """Every alert that the project ships."""
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(RULES.glob("*.yml"))]
    return [rule for file in files for group in file["groups"] for rule in group["rules"] if "alert" in rule]


def alerts_page() -> list[str]:
    """What the alerts mean, and what to do."""
    rows = [(f"[{a['alert']}](#{a['alert'].lower()})", a["labels"]["severity"], a.get("for", "at once")) for a in alerts()]
    lines = [
        "# Alerts",
        "",
        *wrapped(
            """The rules are in `deploy/prometheus/rules`, their tests in `deploy/prometheus/tests` (`promtool test rules`). The thresholds
            are a place to start from: a job whose updates take an hour wants longer times than one whose updates take a second."""
        ),
        "",
        *table(("alert", "severity", "after"), rows),
    ]
    for rule in alerts():
        said = rule["annotations"]
        lines += ["", f"## {rule['alert']}", "", *wrapped(f"{_plain(said['summary'])}. {_plain(said['description'])}"), ""]
        lines += ["```promql", rule["expr"], "```", "", *wrapped(f"What to do: {said['action']}")]
    return lines


def _plain(text: str) -> str:
    """A sentence of an annotation, with what is filled in named in italics."""
    return re.sub(r"\{\{ \$(?:labels\.)?(\w+)[^}]*\}\}", r"*\1*", text)


def findings_page() -> list[str]:
    """What the ledger notices, and what to do."""
    return [
        "# Findings",
        "",
        *wrapped(
            """A finding says what does not fit together, with the numbers that disagree. The ledger re-labels nothing by itself: some
            findings go away when what is missing arrives, some need a resolution, some only need somebody to know. The list of kinds is
            closed; `GET …/findings?kind=` and the page of a run's findings ask for one of them."""
        ),
        "",
        *table(("kind", "says", "to do"), [(f"`{kind}`", MESSAGES[kind], ADVICE[kind]) for kind in KINDS]),
    ]


PAGES: dict[str, Callable[[], list[str]]] = {
    "problems.md": problems_page,
    "findings.md": findings_page,
    "metrics.md": metrics_page,
    "alerts.md": alerts_page,
    "settings.md": settings_page,
    "cli.md": cli_page,
}


def page(name: str) -> str:
    """A page as it should be."""
    title, *rest = PAGES[name]()
    return "\n".join([title, "", MADE, *rest]) + "\n"


def main() -> int:
    """Writes the pages, or names those that are stale; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the pages; without it, only say which are stale")
    writes = parser.parse_args().write
    stale = [name for name in PAGES if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != page(name)]
    for name in stale:
        print(f"{'written' if writes else 'stale'}: docs/{name}")
        if writes:
            (DOCS / name).write_text(page(name), encoding="utf-8")
    return 0 if writes or not stale else 1


if __name__ == "__main__":
    raise SystemExit(main())
