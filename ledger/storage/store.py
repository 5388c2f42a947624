"""One use case, one transaction: the only place that begins and commits."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine

from ledger.storage.engine import is_embedded


class Store:
    """The database, as readers and writers see it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._turns: defaultdict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)

    def turn(self, project: str, run: str) -> threading.Lock:
        """The lock by which threads of this process take turns at work that only one of them need do for a run."""
        return self._turns[project, run]

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one moment of the database and changes nothing."""
        with self.engine.connect() as connection:
            if not is_embedded(self.engine):
                connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is committed when the block ends, and rolled back when it raises."""
        with self.engine.connect() as connection:
            connection = connection.execution_options(ledger_writes=True)
            with connection.begin():
                yield connection
