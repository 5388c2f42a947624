"""Every family as data: name, type, labels, unit and meaning.

| kind | rule |
|---|---|
| quantities | one family a quantity; the unit is in the name, in `# UNIT` and as the label `unit` |
| totals that are not known | no sample: `training_ledger_…_unknown_updates` counts the updates that lack the quantity |
| what can fall | a gauge; only restarts, accepted checkpoints and what this process took in are counters |
| rates | by the time of events, with what they include as labels; no sample while there is no time, or a total is not known |
| labels | never a rank, an update, a checkpoint or an attempt |

Samples are doubles: exact to 2^53, the nearest double beyond.
"""

from dataclasses import dataclass
from typing import Literal

from ledger.domain.quantities import QUANTITIES, UNITS

PREFIX = "training_ledger_"
COUNTED = (*QUANTITIES, "updates")
RATES = (("applied", "update"), ("preserved", "wall"))
"""Work and time of the rates in a scrape: how fast a run trains, and how fast it comes to something that is kept."""
RUN_LABELS = ("project", "run")


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family; `name` is without its prefix and, for a counter, without `_total`."""

    name: str
    type: Literal["gauge", "counter", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    prefix: str = PREFIX

    @property
    def full_name(self) -> str:
        """The name as a scrape shows it, but for the suffixes of its type."""
        return self.prefix + self.name


def _quantity_families(quantity: str) -> tuple[Family, ...]:
    unit, labels = UNITS[quantity], (*RUN_LABELS, "unit")
    words = quantity.replace("_", " ")

    def gauge(stem: str, meaning: str, *more: str) -> Family:
        return Family(f"{stem}{quantity}", "gauge", meaning, (*labels, *more), unit)

    families = (
        gauge("", f"Where the {words} of attempted work ended up; the buckets are disjoint and add up to attempted.", "bucket"),
        gauge("attempted_", f"All {words} of attempted work."),
        gauge("applied_", f"The {words} of updates that the optimizer applied."),
        gauge("skipped_", f"The {words} of updates that the optimizer skipped.", "reason"),
        gauge("imbalance_", f"Attempted {words} minus the sum of the buckets, in exact integers; anything but 0 is a bug."),
        Family(
            f"rate_{quantity}_per_second",
            "gauge",
            f"The {words} of some work over the run, divided by the time that the ranks measured; never by the time between scrapes.",
            (*labels, "work", "window", "includes_skipped", "includes_recomputed", "clock"),
            f"{unit}_per_second",
        ),
        gauge("recomputed_", f"The {words} of work whose update number had been attempted before."),
    )
    if quantity == "updates":
        return families
    unknown = f"Updates whose {words} are not known for every shard; while there are any, a total has no sample."
    return (
        *families,
        gauge("evaluation_", f"The {words} of evaluations, outside the balance."),
        Family(f"{quantity}_unknown_updates", "gauge", unknown, labels, UNITS["updates"]),
    )


RUN_FAMILIES: tuple[Family, ...] = (
    *(family for quantity in COUNTED for family in _quantity_families(quantity)),
    Family("occupancy_ratio", "gauge", "Valid targets per input slot of attempted work.", RUN_LABELS),
    Family("preserved_ratio", "gauge", "Preserved share of the attempted valid targets.", RUN_LABELS),
    Family(
        "run_info",
        "gauge",
        "Conventions of the run, to join on; always 1.",
        (*RUN_LABELS, "objective", "gradient_reducer", "remainder_policy", "schedule_clock"),
    ),
    Family("run_status", "gauge", "1 for the state that the run is in, 0 for the others.", (*RUN_LABELS, "status")),
    Family("latest_update", "gauge", "Highest update number on the trajectory.", RUN_LABELS),
    Family("accepted_update", "gauge", "Last update that the newest accepted checkpoint on the trajectory contains.", RUN_LABELS),
    Family("restarts", "counter", "Attempts after the first.", RUN_LABELS),
    Family("checkpoints_accepted", "counter", "Checkpoints of all attempts that were accepted, also those rejected later.", RUN_LABELS),
    Family("findings", "gauge", "Open findings; each kind has a sample though it be 0.", (*RUN_LABELS, "kind")),
    Family("ranks_expected", "gauge", "Ranks of the head attempt.", RUN_LABELS),
    Family("ranks_reporting", "gauge", "Ranks of the head attempt that have posted an event in it.", RUN_LABELS),
    Family("last_event_timestamp_seconds", "gauge", "When the last entry of the run arrived here.", RUN_LABELS, "seconds"),
    Family(
        "slowest_rank_event_timestamp_seconds",
        "gauge",
        "When that rank of the head attempt was last heard of which has been silent longest, of those that have posted.",
        RUN_LABELS,
        "seconds",
    ),
    Family("exported_runs", "gauge", "Runs in this scrape."),
    Family("omitted_runs", "gauge", "Runs that the cap keeps out of this scrape."),
    Family("unread_runs", "gauge", "Runs whose report could not be read for this scrape."),
    Family("projection_lag_events", "gauge", "Entries of all runs that no report reflected yet when the ledger was read."),
    Family("projection_lag_seconds", "gauge", "How long the oldest of those entries had waited; 0 where there were none.", unit="seconds"),
)

PROCESS_FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("build_info", "gauge", "Version of the service; always 1.", ("version",)),
        Family("readable", "gauge", "Whether the ledger could be read for this scrape, 1 or 0; if not, the families of runs are left out."),
        Family("ingest_events", "counter", "Events posted to this process in batches that it took.", ("kind",)),
        Family("ingest_duplicates", "counter", "Events that the ledger already had."),
        Family("ingest_rejected", "counter", "Events that were refused while the rest of their batch was taken.", ("code",)),
        Family("ingest_batch_events", "histogram", "Events of a batch."),
        Family("queue_batches", "gauge", "Batches that this process is reading, checking or committing."),
        Family("queue_limit_batches", "gauge", "Batches that this process takes at a time; past it the answer is 503."),
        Family(
            "database_operation_duration_seconds",
            "histogram",
            "Time of a statement, by its first word, or of a commit.",
            ("operation",),
            "seconds",
        ),
        Family("database_connections", "gauge", "Connections to the database: used, idle, and the most that there may be.", ("state",)),
        Family("snapshot_timestamp_seconds", "gauge", "When the ledger was read for the families of runs in this scrape.", unit="seconds"),
        Family(
            "http_request_duration_seconds",
            "histogram",
            "Time from a request to the end of its answer.",
            ("handler", "method", "status"),
            "seconds",
            prefix="",
        ),
    )
}
