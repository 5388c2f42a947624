"""What dashboards and rules ask of Prometheus, and what of it exists."""

import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import yaml

from ledger.metrics.catalogue import PROCESS_FAMILIES, RUN_FAMILIES, Family
from prometheus import SHIPPED

SUFFIXES = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}


def samples_of_families() -> dict[str, set[str]]:
    """The name of every sample that a scrape may have, with its labels."""
    families: tuple[Family, ...] = (*RUN_FAMILIES, *PROCESS_FAMILIES.values())
    return {
        family.full_name + suffix: {*family.labels, *({"le"} if suffix == "_bucket" else ())}
        for family in families
        for suffix in SUFFIXES[family.type]
    }


def rules() -> Iterator[dict[str, Any]]:
    """Every rule that the project ships."""
    for path in sorted((SHIPPED.parent / "rules").glob("*.yml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            yield from group["rules"]


def board_expressions(board: dict[str, Any]) -> list[str]:
    """Every expression of a dashboard."""
    return [target["expr"] for panel in board["panels"] if panel["type"] != "row" for target in panel["targets"]]


def with_values(expression: str, **values: str) -> str:
    """An expression with its variables filled in, as Grafana does it."""
    values = {"project": "default", "run": "demo", "__rate_interval": "10s", **values}
    return re.sub(r"\$\{?(\w+)\}?", lambda found: values[found[1]], expression)


def names_of(parsed: promql_parser.Expr) -> list[tuple[str, set[str]]]:
    """Every name that an expression selects, with the labels that it asks for."""
    found: list[tuple[str, set[str]]] = []

    def look(node: Any) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            matchers = {matcher.name: matcher.value for matcher in node.matchers.matchers}
            pattern = node.name or matchers.pop("__name__", "")
            names = [name for name in samples_of_families() if re.fullmatch(pattern, name)] or [pattern]
            found.extend((name, set(matchers)) for name in names)
        return True

    promql_parser.walk(parsed, look)
    return found
