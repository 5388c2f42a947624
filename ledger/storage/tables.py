"""The tables. Every key is led by the run, so that the same schema distributes by run.

| table | is |
|---|---|
| runs, attempts, streams, journal | facts: what was declared and what ranks posted; never rewritten by a projection |
| all others | projections: a pure function of the facts, rebuilt by `ledger verify --rebuild` |

Moments are microseconds since 1970, UTC. Structured values are JSON text. Counts that may exceed 64 bits are `Exact`.
"""

from decimal import Decimal
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

LONGEST_NAME = 128
EXACT_DIGITS = 40


class Exact(TypeDecorator[int]):
    """An integer of any size: numeric on PostgreSQL, decimal digits on SQLite, whose own integers end at 2^63."""

    impl = Numeric(EXACT_DIGITS, 0)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        """The database's own type."""
        exact = String(EXACT_DIGITS) if dialect.name == "sqlite" else Numeric(EXACT_DIGITS, 0)
        return dialect.type_descriptor(exact)

    def process_bind_param(self, value: int | None, dialect: Dialect) -> Any:
        """The integer as the database takes it."""
        return None if value is None else str(value) if dialect.name == "sqlite" else Decimal(value)

    def process_result_value(self, value: Any, _dialect: Dialect) -> int | None:
        """The integer as it was kept."""
        return None if value is None else int(value)


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

RunKey = BigInteger().with_variant(Integer, "sqlite")
NAME = String(LONGEST_NAME)


def _of_run(name: str, *columns: Any, key: tuple[str, ...]) -> Table:
    """A table whose rows belong to a run and whose key is led by it."""
    owner = ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE")
    return Table(name, metadata, Column("run_id", BigInteger, nullable=False), *columns, PrimaryKeyConstraint("run_id", *key), owner)


runs = Table(
    "runs",
    metadata,
    Column("id", RunKey, primary_key=True, autoincrement=True),
    Column("project", NAME, nullable=False),
    Column("name", NAME, nullable=False),
    Column("declaration", Text, nullable=False),
    Column("fork_project", NAME),
    Column("fork_run", NAME),
    Column("opened_at", BigInteger, nullable=False),
    Column("entries", BigInteger, nullable=False),
    Column("last_entry_at", BigInteger, nullable=False),
    UniqueConstraint("project", "name"),
    Index("ix_runs_fork", "fork_project", "fork_run"),
)

attempts = _of_run(
    "attempts",
    Column("ordinal", Integer, nullable=False),
    Column("name", NAME, nullable=False),
    Column("declared", Text, nullable=False),
    Column("resolved", Text, nullable=False),
    Column("layout", Text, nullable=False),
    Column("conventions", Text, nullable=False),
    Column("world_size", Integer, nullable=False),
    Column("started_at", BigInteger),
    Column("opened_at", BigInteger, nullable=False),
    Column("ended", String(16)),
    Column("ended_at", BigInteger),
    Column("last_event_at", BigInteger),
    UniqueConstraint("run_id", "name"),
    key=("ordinal",),
)

streams = _of_run(
    "streams",
    Column("attempt", Integer, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("writer", NAME, nullable=False),
    Column("journalled", Text, nullable=False),
    Column("last_event_at", BigInteger, nullable=False),
    key=("attempt", "rank", "writer"),
)

journal = _of_run(
    "journal",
    Column("first_entry", BigInteger, nullable=False),
    Column("entries", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("first_rank", Integer, nullable=False),
    Column("last_rank", Integer, nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("first_update", BigInteger, nullable=False),
    Column("last_update", BigInteger, nullable=False),
    Column("received_at", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    key=("first_entry",),
)
Index("ix_journal_updates", journal.c.run_id, journal.c.attempt, journal.c.kind, journal.c.last_update, journal.c.first_update)
Index("ix_journal_sequence", journal.c.run_id, journal.c.attempt, journal.c.last_seq, journal.c.first_seq)

QUANTITY_COLUMNS = ("input_slots", "consumed_tokens", "valid_targets", "samples")


def _quantities() -> list[Column[Any]]:
    known = [Column(f"known_{name}", Exact, nullable=False) for name in QUANTITY_COLUMNS]
    return known + [Column(f"unknown_{name}", Integer, nullable=False) for name in QUANTITY_COLUMNS]


projected = _of_run(
    "projected",
    Column("entries", BigInteger, nullable=False),
    key=(),
)

updates = _of_run(
    "updates",
    Column("attempt", Integer, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("part", SmallInteger, nullable=False),
    Column("retry", BigInteger, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("reason", String(16)),
    Column("shards_expected", Integer, nullable=False),
    Column("shards_reported", Integer, nullable=False),
    Column("dp_count", Integer, nullable=False),
    *_quantities(),
    Column("ranges", LargeBinary),
    Column("microbatches", BigInteger),
    Column("loss_sum", Double),
    Column("token_mean", Double),
    Column("mean_of_rank_means", Double),
    Column("mean_of_microbatch_means", Double),
    Column("nonfinite_ranks", Integer, nullable=False),
    Column("reported_loss", String(32)),
    Column("loss_verdict", String(32)),
    Column("loss_factor", Double),
    Column("schedule_step", BigInteger),
    Column("started_at", BigInteger),
    Column("seconds", Double),
    Column("received_at", BigInteger, nullable=False),
    key=("attempt", "number", "part", "retry"),
)
Index("ix_updates_outcome", updates.c.run_id, updates.c.outcome, updates.c.attempt, updates.c.number)
Index("ix_updates_started_at", updates.c.run_id, updates.c.started_at)

totals = _of_run(
    "totals",
    Column("attempt", Integer, nullable=False),
    Column("page", BigInteger, nullable=False),
    Column("first", BigInteger, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("reason", String(16), nullable=False),
    Column("recomputed", Boolean, nullable=False),
    Column("updates", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    *_quantities(),
    Column("seconds", Double, nullable=False),
    Column("extras", Text, nullable=False),
    key=("attempt", "page", "first", "outcome", "reason", "recomputed"),
)

drawn = _of_run(
    "drawn",
    Column("attempt", Integer, nullable=False),
    Column("page", BigInteger, nullable=False),
    Column("first", BigInteger, nullable=False),
    Column("stream", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("effect", String(16), nullable=False),
    Column("last_stop", BigInteger, nullable=False),
    Column("ranges", LargeBinary, nullable=False),
    key=("attempt", "page", "first", "stream", "epoch", "effect"),
)

attempt_states = _of_run(
    "attempt_states",
    Column("attempt", Integer, nullable=False),
    Column("numbers", Text, nullable=False),
    Column("recomputed", Text, nullable=False),
    Column("cuts", Text, nullable=False),
    key=("attempt",),
)

checkpoint_rows = _of_run(
    "checkpoint_rows",
    Column("attempt", Integer, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("writer", NAME, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("owner", NAME, nullable=False),
    Column("checkpoint", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("update", BigInteger),
    Column("uri", Text),
    Column("positions", Text),
    Column("seconds", Double),
    key=("attempt", "rank", "writer", "seq"),
)
Index("ix_checkpoint_rows_owner", checkpoint_rows.c.run_id, checkpoint_rows.c.owner)

saves = _of_run(
    "saves",
    Column("attempt", Integer, nullable=False),
    Column("checkpoint", Text, nullable=False),
    Column("update", BigInteger, nullable=False),
    Column("accepted", Boolean, nullable=False),
    Column("rejected", Boolean, nullable=False),
    Column("starts", Text, nullable=False),
    Column("positions", Text),
    Column("uri", Text),
    Column("seconds", Double),
    key=("attempt", "checkpoint", "update"),
)
Index("ix_saves_checkpoint", saves.c.run_id, saves.c.checkpoint)

early = _of_run(
    "early",
    Column("attempt", Integer, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("part", SmallInteger, nullable=False),
    Column("retry", BigInteger, nullable=False),
    Column("checkpoint", Text, nullable=False),
    Column("update", BigInteger, nullable=False),
    key=("attempt", "checkpoint", "update", "number", "part", "retry"),
)

passes = _of_run(
    "passes",
    Column("attempt", Integer, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("writer", NAME, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("stream", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("start", BigInteger, nullable=False),
    Column("stop", BigInteger, nullable=False),
    key=("attempt", "rank", "writer", "seq"),
)

evaluations = _of_run(
    "evaluations",
    Column("attempt", Integer, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("name", Text, nullable=False),
    Column("retry", BigInteger, nullable=False),
    *_quantities(),
    Column("seconds", Double),
    key=("attempt", "number", "name", "retry"),
)

idles = _of_run(
    "idles",
    Column("attempt", Integer, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("writer", NAME, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("label", Text, nullable=False),
    Column("seconds", Double),
    key=("attempt", "rank", "writer", "seq"),
)

counters = _of_run(
    "counters",
    Column("attempt", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("writer", NAME, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("value", BigInteger, nullable=False),
    key=("attempt", "name", "rank", "writer", "seq"),
)

gaps = _of_run(
    "gaps",
    Column("attempt", Integer, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("writer", NAME, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("first", BigInteger, nullable=False),
    Column("last", BigInteger, nullable=False),
    Column("reason", Text),
    key=("attempt", "rank", "writer", "seq"),
)

findings = _of_run(
    "findings",
    Column("attempt", Integer, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("part", SmallInteger, nullable=False),
    Column("retry", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("place", Integer, nullable=False),
    Column("rank", Integer),
    Column("quantity", String(32)),
    Column("expected", Text),
    Column("found", Text),
    Column("open", Boolean, nullable=False),
    key=("attempt", "number", "part", "retry", "kind", "place"),
)
Index("ix_findings_kind", findings.c.run_id, findings.c.kind, findings.c.attempt, findings.c.number)

PROJECTIONS = (
    updates,
    totals,
    drawn,
    attempt_states,
    checkpoint_rows,
    saves,
    early,
    passes,
    evaluations,
    idles,
    counters,
    gaps,
    findings,
)
"""Every table that is a pure function of the facts."""
