"""From reports to samples: what one reading of the ledger says about each run, exact to the report."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ledger.domain.exposure import BUCKETS
from ledger.domain.findings import KINDS
from ledger.domain.quantities import UNITS
from ledger.metrics.catalogue import COUNTED, RUN_FAMILIES, Family

INFO_LABELS = ("objective", "gradient_reducer", "remainder_policy", "schedule_clock")
STATUSES = ("running", "stalled", "ended")
STALLED_SECONDS = 900.0
"""A run that has posted nothing for so long, though its newest attempt has not ended, is stalled."""
Sample = tuple[str, tuple[str, ...], float | int]
"""Family, values of its labels, value."""


def run_samples(run: Mapping[str, Any], exposure: Mapping[str, Any], now: datetime) -> Iterator[Sample]:
    """All samples of one run."""
    place = (str(run["project"]), str(run["run"]))
    for quantity in COUNTED:
        yield from _quantity_samples(place, quantity, exposure)
    yield from _ratio_samples(place, exposure)
    conventions = run.get("conventions") or {}
    yield "run_info", (*place, *(str(conventions.get(name) or "") for name in INFO_LABELS)), 1
    if exposure["trajectory"] and exposure["trajectory"][-1]["through"] is not None:
        yield "latest_update", place, exposure["trajectory"][-1]["through"]
    if exposure["accepted_checkpoint"] is not None:
        yield "accepted_update", place, exposure["accepted_checkpoint"]["update"]
    for kind in KINDS:
        yield "findings", (*place, kind), exposure["findings"].get(kind, 0)
    launches = run.get("attempts") or []
    yield "restarts", place, max(0, len(launches) - 1)
    head = next((launch for launch in launches if launch["attempt"] == exposure["as_of"]["head"]), None)
    if head is not None:
        yield "ranks_expected", place, head["world_size"]
    last_event_at = datetime.fromisoformat(run["last_event_at"])
    state = _status(head, now - last_event_at)
    for status in STATUSES:
        yield "run_status", (*place, status), int(status == state)
    yield "last_event_timestamp_seconds", place, last_event_at.timestamp()


def rate_samples(run: Mapping[str, Any], rates: Sequence[Mapping[str, Any]]) -> Iterator[Sample]:
    """The samples of a run's rates; those that are not known have none."""
    for rate in rates:
        if rate["value"] is not None:
            included = [str(rate[name]).lower() for name in ("includes_skipped", "includes_recomputed")]
            unit = f"{UNITS[rate['quantity']]}_per_second"
            labels = (str(run["project"]), str(run["run"]), unit, rate["work"], "run", *included, "+".join(rate["time"]))
            yield f"rate_{rate['quantity']}_per_second", labels, rate["value"]


def _status(head: Mapping[str, Any] | None, silent: timedelta) -> str:
    if head is not None and head["ended"] is not None:
        return "ended"
    return "stalled" if silent.total_seconds() > STALLED_SECONDS else "running"


def _quantity_samples(place: tuple[str, str], quantity: str, exposure: Mapping[str, Any]) -> Iterator[Sample]:
    balance = exposure["balance"][quantity]
    labels = (*place, UNITS[quantity])
    known = balance.get("known") or balance
    yield f"imbalance_{quantity}", labels, known["attempted"] - sum(known[bucket] for bucket in BUCKETS)
    for bucket in BUCKETS:
        if balance[bucket] is not None:
            yield quantity, (*labels, bucket), balance[bucket]
    if quantity == "updates":
        totals = {name: exposure["updates"][name] for name in ("attempted", "applied", "recomputed")}
    else:
        totals = {"attempted": balance["attempted"], "applied": _applied(exposure["matrix"][quantity])}
        totals |= {"recomputed": exposure["recomputed"][quantity], "evaluation": exposure["evaluation"].get(quantity)}
        yield f"{quantity}_unknown_updates", (*place, UNITS["updates"]), balance["updates_unknown"]
    for name, total in totals.items():
        if total is not None:
            yield f"{name}_{quantity}", labels, total
    reasons = balance.get("skipped_by_reason")
    for reason, total in ({"": balance["skipped"]} if reasons is None else reasons).items():
        if total is not None:
            yield f"skipped_{quantity}", (*labels, reason), total


def _applied(matrix: Mapping[str, Mapping[str, int | None]]) -> int | None:
    cells = list((matrix.get("applied") or {}).values())
    return None if any(cell is None for cell in cells) else sum(cell for cell in cells if cell is not None)


def _ratio_samples(place: tuple[str, str], exposure: Mapping[str, Any]) -> Iterator[Sample]:
    occupancy = exposure["occupancy"].get("valid_targets_per_input_slot")
    if occupancy is not None:
        yield "occupancy_ratio", place, occupancy
    targets = exposure["balance"]["valid_targets"]
    if targets["attempted"] and targets["preserved"] is not None:
        yield "preserved_ratio", place, targets["preserved"] / targets["attempted"]


def families_of(samples: Sequence[Sample]) -> list[Metric]:
    """The samples under their families, in the order of the catalogue; families without a sample are left out."""
    grouped: dict[str, list[tuple[tuple[str, ...], float | int]]] = {}
    for name, labels, value in samples:
        grouped.setdefault(name, []).append((labels, value))
    return [_metric(family, grouped[family.name]) for family in RUN_FAMILIES if family.name in grouped]


def _metric(family: Family, rows: list[tuple[tuple[str, ...], float | int]]) -> Metric:
    make = CounterMetricFamily if family.type == "counter" else GaugeMetricFamily
    metric = make(family.full_name, family.meaning, labels=family.labels, unit=family.unit)
    for labels, value in rows:
        metric.add_metric(labels, float(value))
    return metric
