"""The shipped rules: valid, each alert tested firing and not firing, and alive in a real Prometheus that scrapes a real run."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from presence import missing
from prometheus import SHIPPED

RULES = sorted((SHIPPED.parent / "rules").glob("*.yml"))
TESTS = sorted((SHIPPED.parent / "tests").glob("*.yml"))


def assert_promtool_passes(*arguments: str) -> None:
    """Asserts that promtool has nothing to say against it."""
    program = shutil.which("promtool")
    if program is None:
        missing("promtool")
    ended = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def rules() -> Iterator[dict[str, Any]]:
    for path in RULES:
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            yield from group["rules"]


ALERTS = [rule for rule in rules() if "alert" in rule]


def test_the_rules_are_without_fault() -> None:
    assert_promtool_passes("check", "rules", "--lint=all", "--lint-fatal", *map(str, RULES))


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_the_alerts_fire_when_they_should_and_only_then(path: Path) -> None:
    assert_promtool_passes("test", "rules", str(path))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_every_alert_is_tested_both_ways_and_explained(alert: dict[str, Any]) -> None:
    expected = [
        bool(test["exp_samples"])
        for path in TESTS
        for case in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]
        for test in case["promql_expr_test"]
        if f'alertname="{alert["alert"]}"' in test["expr"]
    ]
    assert set(expected) == {True, False}
    assert alert["annotations"].keys() == {"summary", "description", "action", "runbook_url"}
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^## (\S+)$", (SHIPPED.parents[2] / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in {heading.lower() for heading in headings}
    assert anchor == alert["alert"].lower()


def test_replicas_are_one_before_anything_is_added_up() -> None:
    of_runs = yaml.safe_load((SHIPPED.parent / "rules" / "runs.yml").read_text(encoding="utf-8"))["groups"]
    raw = [rule["expr"] for group in of_runs for rule in group["rules"] if re.search(r"(?<!:)\btraining_ledger_", rule["expr"])]
    assert raw
    for expression in raw:
        bare = re.sub(r"max without \(instance, pod\) \((abs\(\{__name__=~\")?training_ledger_", "", expression)
        assert not re.search(r"(?<!:)\btraining_ledger_", bare), expression
        assert not re.search(r"\b(rate|irate|increase|delta)\(", expression)
