"""The kinds of events that ranks post, and the columns of each kind.

A batch holds, for each (rank, writer), one block of equally long columns a kind. A row of such a block is one event; its identity
is (attempt, rank, writer, seq). This module is the one description of those columns: the API's schema, the journal's encoding
and the reference documentation are all made from it.
"""

from dataclasses import dataclass
from typing import Literal

ColumnType = Literal["count", "float", "text", "moment", "ranges", "positions", "shards"]

OUTCOMES = ("applied", "skipped", "abandoned", "open")
SKIP_REASONS = ("overflow", "nonfinite", "spike_guard", "no_targets", "other")
DISCARD_REASONS = ("remainder", "filtered", "other")
CHECKPOINT_STATES = ("started", "accepted", "rejected")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a kind of events.

    `required` columns hold a value in every row; the others may be left out or hold null. `choices` closes a text column,
    `unit` names what a count or a float is measured in.
    """

    name: str
    type: ColumnType
    required: bool = False
    choices: tuple[str, ...] = ()
    unit: str | None = None
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of events: its block's name in a batch and its columns, `seq` first."""

    name: str
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column:
        """The column of that name; KeyError if the kind has none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


SEQ = Column("seq", "count", required=True, meaning="place in the writer's own sequence, shared by all kinds")
UPDATE = Column("update", "count", required=True, meaning="the trainer's number of the update")
RETRY = Column("retry", "count", meaning="tells apart tries at the same number within one attempt; 0 if left out")
COUNTS = (
    Column("input_slots", "count", unit="slots", meaning="tensor positions processed, padding included"),
    Column("consumed_tokens", "count", unit="tokens", meaning="tokens drawn from the data, padding excluded"),
    Column("valid_targets", "count", unit="targets", meaning="eligible prediction targets"),
)
SAMPLES = Column("samples", "count", unit="samples", meaning="samples drawn; may be left out where ranges give it")
RANGES = Column("ranges", "ranges", meaning="[stream, epoch, start, stop) ranges drawn from the data")
SECONDS = Column("seconds", "float", unit="seconds", meaning="duration by the rank's monotonic clock")
STARTED_AT = Column("started_at", "moment", meaning="when it began, by the rank's wall clock (RFC 3339)")

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "updates",
            (
                SEQ,
                UPDATE,
                RETRY,
                Column("outcome", "text", choices=OUTCOMES, meaning="what the optimizer did; null where this rank does not know"),
                Column("reason", "text", choices=SKIP_REASONS, meaning="why the update was skipped"),
                *COUNTS,
                SAMPLES,
                Column("microbatches", "count", unit="microbatches", meaning="forward/backward passes of this rank"),
                Column("loss_sum", "float", unit="nats", meaning="sum of the negative log likelihood over this rank's valid targets"),
                Column("microbatch_mean_sum", "float", unit="nats", meaning="sum of the means of the microbatches that had targets"),
                Column("microbatches_scored", "count", unit="microbatches", meaning="microbatches that had targets"),
                Column("reported_loss", "float", unit="nats", meaning="the loss that the trainer itself reports for the update"),
                Column("schedule_step", "count", unit="steps", meaning="the trainer's learning-rate schedule counter"),
                RANGES,
                STARTED_AT,
                SECONDS,
                Column("participants", "shards", meaning="the shards that took part, where only some did"),
            ),
        ),
        Kind(
            "checkpoints",
            (
                SEQ,
                Column("checkpoint", "text", required=True, meaning="the checkpoint's name"),
                Column("state", "text", required=True, choices=CHECKPOINT_STATES, meaning="what became of it"),
                Column("update", "count", meaning="the last update that the saved state contains"),
                Column("uri", "text", meaning="where it was saved"),
                Column("positions", "positions", meaning="declared data position by stream: {stream: {epoch, position}}"),
                Column("attempt", "text", meaning="the owner, where another attempt's checkpoint is meant"),
                SECONDS,
            ),
        ),
        Kind(
            "discards",
            (
                SEQ,
                UPDATE,
                RETRY,
                Column("reason", "text", choices=DISCARD_REASONS, meaning="why the microbatches entered no update"),
                *COUNTS,
                SAMPLES,
                RANGES,
                SECONDS,
            ),
        ),
        Kind(
            "passes",
            (
                SEQ,
                UPDATE,
                Column("stream", "text", required=True, meaning="the stream whose cursor was moved"),
                Column("epoch", "count", required=True, meaning="the epoch of the stream"),
                Column("start", "count", required=True, meaning="first position passed over"),
                Column("stop", "count", required=True, meaning="first position not passed over"),
            ),
        ),
        Kind(
            "evaluations",
            (
                SEQ,
                UPDATE,
                Column("name", "text", meaning="the evaluation's name"),
                RETRY,
                *COUNTS,
                SAMPLES,
                SECONDS,
            ),
        ),
        Kind(
            "idles",
            (
                SEQ,
                Column("label", "text", required=True, meaning="what the time was spent on"),
                Column("seconds", "float", required=True, unit="seconds", meaning="how long"),
            ),
        ),
        Kind(
            "counters",
            (
                SEQ,
                UPDATE,
                Column("name", "text", required=True, meaning="the trainer's own name of the counter"),
                Column("value", "count", required=True, meaning="its value after that update"),
            ),
        ),
        Kind(
            "gaps",
            (
                SEQ,
                Column("first", "count", required=True, meaning="first sequence number that was lost"),
                Column("last", "count", required=True, meaning="last sequence number that was lost"),
                Column("reason", "text", meaning="why it was lost"),
            ),
        ),
    )
}


@dataclass(slots=True)
class RankEvents:
    """What one writer of one rank posts in a batch: columns by kind, as plain lists of equal length a kind."""

    rank: int
    writer: str
    blocks: dict[str, dict[str, list[object]]]
