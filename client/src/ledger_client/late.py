"""Modules that a training process needs late or never, imported at their first use instead of by `import ledger_client`.

What talks to the server (HTTP, TLS, e-mail dates) costs 30 ms and 7 MB: it is imported by the sender's thread, not by the trainer's.

A process that forks while another thread imports a module leaves the child with a module that never gets ready: whoever imports it there
waits for ever, be it a data loader that wants `http.client` for itself. So a fork waits for what is imported here.
"""

from __future__ import annotations

import os
import threading
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST_WAIT_SECONDS = 5.0
"""A fork goes on without the end of an import: the thread that imports may be waiting for the one that forks."""


class Importing:
    """Imports, one at a time, and none while the process forks."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def module(self, name: str) -> Any:
        """The module of that name."""
        with self._lock:
            return import_module(name)

    def before_fork(self) -> None:
        """Wait for what is being imported."""
        self._lock.acquire(timeout=LONGEST_WAIT_SECONDS)

    def after_fork(self) -> None:
        """Import again, where the wait was not in vain."""
        try:
            self._lock.release()
        except RuntimeError:
            return

    def after_fork_in_child(self) -> None:
        """Import again: whoever held the lock is not here."""
        self._lock = threading.RLock()


IMPORTING = Importing()
os.register_at_fork(
    before=IMPORTING.before_fork, after_in_parent=IMPORTING.after_fork, after_in_child=IMPORTING.after_fork_in_child
)


def late(name: str) -> Any:
    """The module of that name in this package."""
    return IMPORTING.module(f"{__package__}.{name}")
