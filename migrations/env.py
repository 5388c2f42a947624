"""How a migration reaches the database: the engine that the service opened, one transaction for all versions."""

from alembic import context
from sqlalchemy import text

from ledger.storage.tables import metadata

MIGRATION_LOCK = 0x7EDBE2


def run() -> None:
    """Runs the migrations that were asked for; on PostgreSQL one process at a time, and never waiting long behind a reader."""
    engine = context.config.attributes["engine"]
    with engine.connect() as connection:
        connection = connection.execution_options(ledger_writes=True)
        context.configure(connection=connection, target_metadata=metadata, render_as_batch=connection.dialect.name == "sqlite")
        with context.begin_transaction():
            if connection.dialect.name == "postgresql":
                connection.execute(text("SET LOCAL lock_timeout = '10s'"))
                connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
            context.run_migrations()


run()
