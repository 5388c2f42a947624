"""One use case, one transaction: the only place that begins and commits."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, Row
from sqlalchemy.exc import DatabaseError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from ledger.domain.errors import DatabaseUnavailable
from ledger.storage.engine import connections, is_embedded, tell_durations

__all__ = ["Connection", "Engine", "Overtaken", "Row", "Store"]


class Overtaken(Exception):
    """Another writer made the same row first."""


@contextmanager
def faults_named() -> Iterator[None]:
    """What the driver raises, in the words of the ledger: the layers above know no driver."""
    try:
        yield
    except IntegrityError as error:
        raise Overtaken from error
    except (OperationalError, InterfaceError, PoolExhausted, DatabaseError) as error:
        # Of the faults that are of no narrower kind, one is that the file is no database; the narrower kinds are faults of ours.
        if isinstance(error, DatabaseError) and type(error) not in (DatabaseError, OperationalError, InterfaceError):
            raise
        raise DatabaseUnavailable(str(getattr(error, "orig", None) or error).strip().splitlines()[0]) from error


class Store:
    """The database, as readers and writers see it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._turns: defaultdict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)
        self._tell: Callable[[str, float], None] = lambda _operation, _seconds: None

    def tell_durations(self, tell: Callable[[str, float], None]) -> None:
        """From now on tells of each statement and commit what it was and its seconds."""
        tell_durations(self.engine, tell)
        self._tell = tell

    def connections(self) -> dict[str, int]:
        """Connections to the database that are in use, that wait for use, and the most that there may be."""
        return connections(self.engine)

    def turn(self, project: str, run: str) -> threading.Lock:
        """The lock by which threads of this process take turns at work that only one of them need do for a run."""
        return self._turns[project, run]

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one moment of the database and changes nothing.

        Raises: DatabaseUnavailable.
        """
        with faults_named(), self.engine.connect() as connection:
            if not is_embedded(self.engine):
                connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is committed when the block ends, and rolled back when it raises.

        Raises: Overtaken, DatabaseUnavailable.
        """
        with faults_named(), self.engine.connect() as connection:
            connection = connection.execution_options(ledger_writes=True)
            with connection.begin() as transaction:
                yield connection
                began = time.perf_counter()
                transaction.commit()
                self._tell("commit", time.perf_counter() - began)
