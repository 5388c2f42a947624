"""From a run's books to samples: what they say about it at their offset, exact to the report."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ledger.domain.exposure import BUCKETS
from ledger.domain.findings import KINDS
from ledger.domain.quantities import UNITS
from ledger.metrics.catalogue import COUNTED, RATES, RUN_FAMILIES, Family
from ledger.services import reports, standing
from ledger.services.reports import Books
from ledger.services.standing import status

INFO_LABELS = ("objective", "gradient_reducer", "remainder_policy", "schedule_clock")
STATUSES = ("running", "stalled", "ended")
LONGEST_KEPT_MICROSECONDS = 3_600_000_000
MICROSECONDS = 1_000_000
Sample = tuple[str, tuple[str, ...], float | int]
"""Family, values of its labels, value."""
Place = tuple[str, str]
"""Project and run."""


def run_samples(books: Books) -> Iterator[Sample]:
    """All samples of one run."""
    exposure = reports.exposure(books)
    place = (books.run.project, books.run.name)
    for quantity in COUNTED:
        yield from _quantity_samples(place, quantity, exposure)
        for work, time in RATES:
            yield from _rate_sample(place, reports.rate(books, quantity, work, [time]))
    yield from _ratio_samples(place, exposure)
    yield "run_info", (*place, *(str(books.run.conventions.get(name) or "") for name in INFO_LABELS)), 1
    if exposure["trajectory"] and exposure["trajectory"][-1]["through"] is not None:
        yield "latest_update", place, exposure["trajectory"][-1]["through"]
    if exposure["accepted_checkpoint"] is not None:
        yield "accepted_update", place, exposure["accepted_checkpoint"]["update"]
    for kind in KINDS:
        yield "findings", (*place, kind), exposure["findings"].get(kind, 0)
    yield "restarts", place, max(0, len(books.launches) - 1)
    yield "checkpoints_accepted", place, sum(save.accepted for save in books.tree.saves if save.attempt in books.launches)
    state = status(books)
    for each in STATUSES:
        yield "run_status", (*place, each), int(each == state)
    yield "last_event_timestamp_seconds", place, books.run.last_entry_at / MICROSECONDS
    yield from _rank_samples(place, books)


def changes_at(books: Books) -> int:
    """When these samples may be others though nothing more is posted: a grace that ends, a silence that lasts, or simply late."""
    latest = books.now + LONGEST_KEPT_MICROSECONDS
    moment = standing.changes_at(books)
    return latest if moment is None else min(latest, moment)


def _rank_samples(place: Place, books: Books) -> Iterator[Sample]:
    if books.head is None:
        return
    ranks, slowest = reports.ranks_heard(books)
    yield "ranks_expected", place, books.launches[books.head].world_size
    yield "ranks_reporting", place, ranks
    if slowest is not None:
        yield "slowest_rank_event_timestamp_seconds", place, slowest / MICROSECONDS


def _rate_sample(place: Place, rate: Mapping[str, Any]) -> Iterator[Sample]:
    """A rate; one that is not known has no sample."""
    if rate["value"] is not None:
        included = [str(rate[name]).lower() for name in ("includes_skipped", "includes_recomputed")]
        unit = f"{UNITS[rate['quantity']]}_per_second"
        labels = (*place, unit, rate["work"], "run", *included, "+".join(rate["time"]))
        yield f"rate_{rate['quantity']}_per_second", labels, rate["value"]


def _quantity_samples(place: Place, quantity: str, exposure: Mapping[str, Any]) -> Iterator[Sample]:
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


def _ratio_samples(place: Place, exposure: Mapping[str, Any]) -> Iterator[Sample]:
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
