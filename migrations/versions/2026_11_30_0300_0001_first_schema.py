"""The first schema: runs, attempts, streams, the journal, and the projections.

Revision: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

EXACT = sa.Numeric(40, 0).with_variant(sa.String(40), "sqlite")


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("declaration", sa.Text(), nullable=False),
        sa.Column("fork_project", sa.String(length=128), nullable=True),
        sa.Column("fork_run", sa.String(length=128), nullable=True),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("last_entry_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("project", "name", name=op.f("uq_runs_project_name")),
    )
    op.create_index("ix_runs_fork", "runs", ["fork_project", "fork_run"], unique=False)

    op.create_table(
        "attempt_states",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("numbers", sa.Text(), nullable=False),
        sa.Column("recomputed", sa.Text(), nullable=False),
        sa.Column("cuts", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_attempt_states_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", name=op.f("pk_attempt_states")),
    )
    op.create_table(
        "attempts",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("declared", sa.Text(), nullable=False),
        sa.Column("resolved", sa.Text(), nullable=False),
        sa.Column("layout", sa.Text(), nullable=False),
        sa.Column("conventions", sa.Text(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.String(length=16), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("last_event_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_attempts_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "ordinal", name=op.f("pk_attempts")),
        sa.UniqueConstraint("run_id", "name", name=op.f("uq_attempts_run_id_name")),
    )
    op.create_table(
        "checkpoint_rows",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("writer", sa.String(length=128), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("update", sa.BigInteger(), nullable=True),
        sa.Column("uri", sa.Text(), nullable=True),
        sa.Column("positions", sa.Text(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_checkpoint_rows_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", "rank", "writer", "seq", name=op.f("pk_checkpoint_rows")),
    )
    op.create_index("ix_checkpoint_rows_owner", "checkpoint_rows", ["run_id", "owner"], unique=False)

    op.create_table(
        "counters",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("writer", sa.String(length=128), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_counters_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", "name", "rank", "writer", "seq", name=op.f("pk_counters")),
    )
    op.create_table(
        "drawn",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("page", sa.BigInteger(), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("effect", sa.String(length=16), nullable=False),
        sa.Column("last_stop", sa.BigInteger(), nullable=False),
        sa.Column("ranges", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_drawn_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", "page", "first", "stream", "epoch", "effect", name=op.f("pk_drawn")),
    )
    op.create_table(
        "early",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("part", sa.SmallInteger(), nullable=False),
        sa.Column("retry", sa.BigInteger(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("update", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_early_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", "checkpoint", "update", "number", "part", "retry", name=op.f("pk_early")),
    )
    op.create_table(
        "evaluations",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("retry", sa.BigInteger(), nullable=False),
        sa.Column("known_input_slots", EXACT, nullable=False),
        sa.Column("known_consumed_tokens", EXACT, nullable=False),
        sa.Column("known_valid_targets", EXACT, nullable=False),
        sa.Column("known_samples", EXACT, nullable=False),
        sa.Column("unknown_input_slots", sa.Integer(), nullable=False),
        sa.Column("unknown_consumed_tokens", sa.Integer(), nullable=False),
        sa.Column("unknown_valid_targets", sa.Integer(), nullable=False),
        sa.Column("unknown_samples", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_evaluations_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", "number", "name", "retry", name=op.f("pk_evaluations")),
    )
    op.create_table(
        "findings",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("part", sa.SmallInteger(), nullable=False),
        sa.Column("retry", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("quantity", sa.String(length=32), nullable=True),
        sa.Column("expected", sa.Text(), nullable=True),
        sa.Column("found", sa.Text(), nullable=True),
        sa.Column("open", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_findings_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", "number", "part", "retry", "kind", "place", name=op.f("pk_findings")),
    )
    op.create_index("ix_findings_kind", "findings", ["run_id", "kind", "attempt", "number"], unique=False)

    op.create_table(
        "gaps",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("writer", sa.String(length=128), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_gaps_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", "rank", "writer", "seq", name=op.f("pk_gaps")),
    )
    op.create_table(
        "idles",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("writer", sa.String(length=128), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_idles_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", "rank", "writer", "seq", name=op.f("pk_idles")),
    )
    op.create_table(
        "journal",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("first_entry", sa.BigInteger(), nullable=False),
        sa.Column("entries", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("first_rank", sa.Integer(), nullable=False),
        sa.Column("last_rank", sa.Integer(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("first_update", sa.BigInteger(), nullable=False),
        sa.Column("last_update", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_journal_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "first_entry", name=op.f("pk_journal")),
    )
    op.create_index("ix_journal_sequence", "journal", ["run_id", "attempt", "last_seq", "first_seq"], unique=False)
    op.create_index("ix_journal_updates", "journal", ["run_id", "attempt", "kind", "last_update", "first_update"], unique=False)

    op.create_table(
        "passes",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("writer", sa.String(length=128), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("stop", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_passes_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", "rank", "writer", "seq", name=op.f("pk_passes")),
    )
    op.create_table(
        "projected",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_projected_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_projected")),
    )
    op.create_table(
        "saves",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("update", sa.BigInteger(), nullable=False),
        sa.Column("accepted", sa.Boolean(), nullable=False),
        sa.Column("rejected", sa.Boolean(), nullable=False),
        sa.Column("starts", sa.Text(), nullable=False),
        sa.Column("positions", sa.Text(), nullable=True),
        sa.Column("uri", sa.Text(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_saves_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", "checkpoint", "update", name=op.f("pk_saves")),
    )
    op.create_index("ix_saves_checkpoint", "saves", ["run_id", "checkpoint"], unique=False)

    op.create_table(
        "streams",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("writer", sa.String(length=128), nullable=False),
        sa.Column("journalled", sa.Text(), nullable=False),
        sa.Column("last_event_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_streams_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", "rank", "writer", name=op.f("pk_streams")),
    )
    op.create_table(
        "totals",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("page", sa.BigInteger(), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=16), nullable=False),
        sa.Column("recomputed", sa.Boolean(), nullable=False),
        sa.Column("updates", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("known_input_slots", EXACT, nullable=False),
        sa.Column("known_consumed_tokens", EXACT, nullable=False),
        sa.Column("known_valid_targets", EXACT, nullable=False),
        sa.Column("known_samples", EXACT, nullable=False),
        sa.Column("unknown_input_slots", sa.Integer(), nullable=False),
        sa.Column("unknown_consumed_tokens", sa.Integer(), nullable=False),
        sa.Column("unknown_valid_targets", sa.Integer(), nullable=False),
        sa.Column("unknown_samples", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("extras", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_totals_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", "page", "first", "outcome", "reason", "recomputed", name=op.f("pk_totals")),
    )
    op.create_table(
        "updates",
        sa.Column("run_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("part", sa.SmallInteger(), nullable=False),
        sa.Column("retry", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=16), nullable=True),
        sa.Column("shards_expected", sa.Integer(), nullable=False),
        sa.Column("shards_reported", sa.Integer(), nullable=False),
        sa.Column("dp_count", sa.Integer(), nullable=False),
        sa.Column("known_input_slots", EXACT, nullable=False),
        sa.Column("known_consumed_tokens", EXACT, nullable=False),
        sa.Column("known_valid_targets", EXACT, nullable=False),
        sa.Column("known_samples", EXACT, nullable=False),
        sa.Column("unknown_input_slots", sa.Integer(), nullable=False),
        sa.Column("unknown_consumed_tokens", sa.Integer(), nullable=False),
        sa.Column("unknown_valid_targets", sa.Integer(), nullable=False),
        sa.Column("unknown_samples", sa.Integer(), nullable=False),
        sa.Column("ranges", sa.LargeBinary(), nullable=True),
        sa.Column("microbatches", sa.BigInteger(), nullable=True),
        sa.Column("loss_sum", sa.Double(), nullable=True),
        sa.Column("token_mean", sa.Double(), nullable=True),
        sa.Column("mean_of_rank_means", sa.Double(), nullable=True),
        sa.Column("mean_of_microbatch_means", sa.Double(), nullable=True),
        sa.Column("nonfinite_ranks", sa.Integer(), nullable=False),
        sa.Column("reported_loss", sa.String(length=32), nullable=True),
        sa.Column("loss_verdict", sa.String(length=32), nullable=True),
        sa.Column("loss_factor", sa.Double(), nullable=True),
        sa.Column("schedule_step", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_updates_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", "number", "part", "retry", name=op.f("pk_updates")),
    )
    op.create_index("ix_updates_outcome", "updates", ["run_id", "outcome", "attempt", "number"], unique=False)
    op.create_index("ix_updates_started_at", "updates", ["run_id", "started_at"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_updates_started_at", "updates")
    op.drop_index("ix_updates_outcome", "updates")

    op.drop_table("updates")
    op.drop_table("totals")
    op.drop_table("streams")
    op.drop_index("ix_saves_checkpoint", "saves")

    op.drop_table("saves")
    op.drop_table("projected")
    op.drop_table("passes")
    op.drop_index("ix_journal_updates", "journal")
    op.drop_index("ix_journal_sequence", "journal")

    op.drop_table("journal")
    op.drop_table("idles")
    op.drop_table("gaps")
    op.drop_index("ix_findings_kind", "findings")

    op.drop_table("findings")
    op.drop_table("evaluations")
    op.drop_table("early")
    op.drop_table("drawn")
    op.drop_table("counters")
    op.drop_index("ix_checkpoint_rows_owner", "checkpoint_rows")

    op.drop_table("checkpoint_rows")
    op.drop_table("attempts")
    op.drop_table("attempt_states")
    op.drop_index("ix_runs_fork", "runs")

    op.drop_table("runs")
