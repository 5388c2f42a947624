"""Up and down with rows in every table, a fault in the middle, several upgrades at once, and a service before its schema."""

import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Boolean, Double, Engine, LargeBinary, MetaData, Numeric, String, Text, func, inspect, select
from sqlalchemy.exc import SQLAlchemyError
from starlette.testclient import TestClient

from ledger.app import create_app
from ledger.cli.sources import UNREACHABLE
from ledger.config import Settings
from ledger.domain.errors import LedgerError
from ledger.storage import schema
from ledger.storage.engine import open_engine
from reflection import VERSIONS, facts, unlike
from worked_example import RUN, play

AT_ONCE = 3
COMMAND = [sys.executable, "-m", "ledger.cli"]


def versions() -> list[str]:
    """Every version, oldest first."""
    config = Config()
    config.set_main_option("script_location", str(schema.CHECKOUT))
    return [version.revision for version in reversed(list(ScriptDirectory.from_config(config).walk_revisions()))]


def a_value(kind: Any) -> Any:
    """Something that a column of that type takes."""
    if isinstance(kind, Boolean):
        return True
    if isinstance(kind, LargeBinary):
        return b"1"
    if isinstance(kind, Numeric) and not isinstance(kind, Double):
        return Decimal(1)
    return "1" if isinstance(kind, String | Text) else 1


def fill(engine: Engine) -> int:
    """Put one row into every table that has none; the number of tables that have rows."""
    reflected = MetaData()
    reflected.reflect(engine)
    tables = [table for table in reflected.sorted_tables if table.name != VERSIONS]
    with engine.begin() as connection:
        for table in tables:
            if not connection.scalar(select(func.count()).select_from(table)):
                connection.execute(table.insert().values({column.name: a_value(column.type) for column in table.columns}))
    return len(tables)


def settings(database_url: str) -> Settings:
    return Settings(database_url=database_url, metrics_cache_seconds=0, projection_interval_seconds=0.05)


def test_up_down_and_up_again_with_rows_in_every_table(engine: Engine, database_url: str) -> None:
    history = versions()
    for version in history:
        schema.upgrade(engine, version)
        assert fill(engine) > 0
    newest = facts(engine)
    for version in [*reversed(history[:-1]), "base"]:
        schema.downgrade(engine, version)
    assert schema.current(engine) is None
    assert facts(engine) == {}
    schema.upgrade(engine)
    assert unlike(newest, facts(engine)) == []
    # And it is a schema that a service can work with.
    with TestClient(create_app(settings(database_url))) as client:
        play(client)
        assert client.get(f"{RUN}/exposure").json()["balance"]["valid_targets"]["preserved"] == 252


def test_upgrading_what_is_current_changes_nothing(engine: Engine, database_url: str) -> None:
    schema.upgrade(engine)
    with TestClient(create_app(settings(database_url))) as client:
        play(client)
        before = client.get(f"{RUN}/exposure").json()
        schema.upgrade(engine)
        assert client.get(f"{RUN}/exposure").json()["balance"] == before["balance"]


def test_an_upgrade_that_fails_in_the_middle_leaves_nothing_behind(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE updates (id INTEGER)")
    before = facts(engine)
    with pytest.raises((SQLAlchemyError, LedgerError)):
        schema.upgrade(engine)
    assert schema.current(engine) is None
    assert unlike(before, facts(engine)) == []
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE updates")
    schema.upgrade(engine)
    assert schema.is_current(engine)


def test_upgrades_at_once_do_not_collide(database_url: str) -> None:
    environment = {**os.environ, "LEDGER_DATABASE_URL": database_url}
    started = [
        subprocess.Popen([*COMMAND, "db", "upgrade"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(AT_ONCE)
    ]
    said = [process.communicate(timeout=60)[0].strip() for process in started]
    assert [process.returncode for process in started] == [0] * AT_ONCE, said
    engine = open_engine(database_url)
    assert schema.is_current(engine)
    with engine.connect() as connection:
        assert connection.exec_driver_sql(f"SELECT count(*) FROM {VERSIONS}").scalar_one() == 1
    engine.dispose()


def test_an_upgrade_waits_for_the_one_before_it(postgresql_url: str) -> None:
    """While the lock is held nothing is made; once it is let go the upgrade goes through."""
    engine = open_engine(postgresql_url)
    environment = {**os.environ, "LEDGER_DATABASE_URL": postgresql_url}
    with engine.connect() as holder:
        holder.exec_driver_sql(f"SELECT pg_advisory_xact_lock({0x7EDBE2})")
        process = subprocess.Popen(
            [*COMMAND, "db", "upgrade"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        for _ in range(300):
            if holder.exec_driver_sql(waiting).scalar_one():
                break
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.1)
        assert holder.exec_driver_sql(waiting).scalar_one() == 1
        assert inspect(holder).get_table_names() == []
        holder.rollback()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert schema.is_current(engine)
    engine.dispose()


def test_a_service_does_not_start_on_a_server_database_without_its_schema(postgresql_url: str, tmp_path: Path) -> None:
    environment = {**os.environ, "LEDGER_DATABASE_URL": postgresql_url, "HOME": str(tmp_path)}

    def ended(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False)

    refused = ended("serve", "--port", "0")
    assert refused.returncode == UNREACHABLE
    assert "run `ledger db upgrade` first" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert ended("db", "check").returncode == 1
    assert ended("db", "current").stdout.strip() == "empty"
    # It was not upgraded behind the operator's back.
    engine = open_engine(postgresql_url)
    assert inspect(engine).get_table_names() == []
    engine.dispose()


def test_a_running_service_says_that_its_schema_went_away(database_url: str, engine: Engine) -> None:
    schema.upgrade(engine)
    with TestClient(create_app(settings(database_url)), raise_server_exceptions=False) as client:
        assert client.get("/readyz").status_code == 200
        schema.downgrade(engine, "base")
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        assert "ledger db upgrade" in answer.json()["detail"]
        assert client.get("/healthz").status_code == 200
        schema.upgrade(engine)
        assert client.get("/readyz").status_code == 200
