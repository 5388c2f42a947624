"""The migrations make the very schema that the code describes; judged by what each database tells of itself."""

import re
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from ledger.storage import schema
from ledger.storage.engine import open_engine
from ledger.storage.tables import metadata
from reflection import facts, unlike

CHANGES_ON_BOTH = (
    "ALTER TABLE runs ADD COLUMN more INTEGER",
    "CREATE INDEX ix_more ON runs (opened_at)",
    "CREATE INDEX ix_runs_fork_too ON runs (fork_run) WHERE fork_run IS NOT NULL",
    "DROP INDEX ix_runs_fork",
    "ALTER TABLE runs RENAME COLUMN entries TO entry_count",
    "DROP TABLE counters",
    "CREATE TABLE more (id INTEGER)",
    "CREATE VIEW seen AS SELECT id FROM runs",
)
CHANGES_ON_POSTGRESQL = (
    "ALTER TABLE runs ADD CONSTRAINT ck_entries CHECK (entries >= 0)",
    "ALTER TABLE runs ALTER COLUMN fork_run SET NOT NULL",
    "ALTER TABLE runs ALTER COLUMN entries TYPE integer",
    "ALTER TABLE runs ALTER COLUMN entries SET DEFAULT 0",
    "ALTER TABLE runs DROP CONSTRAINT uq_runs_project_name",
    "ALTER TABLE streams DROP CONSTRAINT pk_streams",
    "ALTER TABLE streams DROP CONSTRAINT fk_streams_runs",
    "ALTER TABLE streams DROP CONSTRAINT fk_streams_runs, ADD CONSTRAINT fk_streams_runs FOREIGN KEY (run_id) REFERENCES runs (id)",
    "ALTER TABLE journal ALTER COLUMN payload SET STORAGE PLAIN",
)


def scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(schema.CHECKOUT))
    return ScriptDirectory.from_config(config)


def test_there_is_one_line_of_versions() -> None:
    history = list(scripts().walk_revisions())
    assert len(scripts().get_heads()) == len(scripts().get_bases()) == 1
    assert all(isinstance(version.down_revision, str | None) and not version.dependencies for version in history)
    assert [version.revision for version in reversed(history)] == [f"{number:04}" for number in range(1, len(history) + 1)]


def test_files_of_versions_are_named_by_their_moment_and_number() -> None:
    for version in scripts().walk_revisions():
        assert re.fullmatch(rf"\d{{4}}_\d\d_\d\d_\d{{4}}_{version.revision}_[a-z0-9_]+\.py", Path(version.path).name)


def test_migrations_make_what_the_code_describes(engine: Engine, other_engine: Engine) -> None:
    schema.upgrade(engine)
    with other_engine.begin() as connection:
        metadata.create_all(connection)
    migrated, described = facts(engine), facts(other_engine)
    assert {place[1] for place in described if place[0] == "table"} == set(metadata.tables)
    assert unlike(migrated, described) == []


def test_no_change_escapes_the_comparison(engine: Engine) -> None:
    schema.upgrade(engine)
    before = facts(engine)
    changes = CHANGES_ON_BOTH + (CHANGES_ON_POSTGRESQL if engine.dialect.name == "postgresql" else ())
    for change in changes:
        with engine.connect() as connection:
            connection.exec_driver_sql(change)
            assert unlike(before, facts(connection)) != [], change
            connection.rollback()
    assert unlike(before, facts(engine)) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("n INTEGER", "n INTEGER NOT NULL"),
        ("n INTEGER", "n BIGINT"),
        ("n INTEGER", "n INTEGER CHECK (n > 0)"),
        ("n INTEGER", "n INTEGER UNIQUE"),
        ("n INTEGER", "n INTEGER DEFAULT 0"),
        ("n INTEGER NOT NULL", "n INTEGER NOT NULL PRIMARY KEY"),
        ("n INTEGER PRIMARY KEY", "n INTEGER PRIMARY KEY) WITHOUT ROWID --"),
        ("n INTEGER REFERENCES target (id)", "n INTEGER REFERENCES target (id) ON DELETE CASCADE"),
    ],
)
def test_no_difference_of_a_table_of_sqlite_escapes_the_comparison(tmp_path: Path, one: str, other: str) -> None:
    """A table of SQLite can hardly be altered, so the two are made unlike from the start."""
    found = []
    for name, columns in (("one", one), ("other", other)):
        engine = open_engine(f"sqlite:///{tmp_path / name}.db")
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE target (id INTEGER PRIMARY KEY)")
            connection.exec_driver_sql(f"CREATE TABLE made ({columns})")
        found.append(facts(engine))
        engine.dispose()
    assert unlike(*found) != []
