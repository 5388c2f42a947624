"""The schema's versions: one linear history, the same on both databases."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from ledger.storage.store import faults_named

CHECKOUT = Path(__file__).resolve().parents[2] / "migrations"
SHIPPED = Path(__file__).resolve().parents[1] / "_migrations"


def _config(engine: Engine) -> Config:
    config = Config()
    config.set_main_option("script_location", str(SHIPPED if SHIPPED.is_dir() else CHECKOUT))
    config.attributes["engine"] = engine
    return config


def head() -> str:
    """The newest version that this service knows."""
    location = Config()
    location.set_main_option("script_location", str(SHIPPED if SHIPPED.is_dir() else CHECKOUT))
    return str(ScriptDirectory.from_config(location).get_current_head())


def current(engine: Engine) -> str | None:
    """The version that the database has; None where it has none."""
    with faults_named(), engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def is_current(engine: Engine) -> bool:
    """Whether the database has the version that this service needs."""
    return current(engine) == head()


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Brings the database to that version."""
    with faults_named():
        command.upgrade(_config(engine), revision)


def downgrade(engine: Engine, revision: str) -> None:
    """Brings the database back to that version."""
    with faults_named():
        command.downgrade(_config(engine), revision)
