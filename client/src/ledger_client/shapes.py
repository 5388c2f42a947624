"""Types that several modules agree on. Only type checkers read this module: importing `typing` would cost a trainer 10 ms."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Protocol

from .recorder import Recorder
from .sender import Channel

Row = dict[str, object]
Event = tuple[str, Row]
"""The kind of an event and its row."""
Range = tuple[str, int, int, int]
Area = bytes | mmap.mmap
Mark = tuple[int, mmap.mmap, int, int, int]
"""How far a spool is written: segment, its mapping, tail, where its room ends, newest seq. All of it is replaced at once."""

Reopen = Callable[[str, Row | None], tuple[Recorder, Channel] | None]
"""Opens a further attempt in this process: its name and what it resumes from."""


class Storage(Protocol):
    """Named mappings and small texts of one spool."""

    durable: bool

    def create(self, name: str, size_bytes: int) -> mmap.mmap:
        """A new zeroed mapping. Raises: OSError where there is no room."""

    def open(self, name: str, writable: bool = False) -> mmap.mmap | None:
        """An existing mapping; None if there is none."""

    def grow(self, name: str, size_bytes: int) -> mmap.mmap:
        """The same mapping with more room at its end. Raises: OSError where there is none."""

    def delete(self, name: str) -> None:
        """Forget a mapping."""

    def names(self) -> list[str]:
        """Names of all mappings and texts, sorted."""

    def size_bytes(self, name: str) -> int:
        """How long a text is; 0 if there is none."""

    def append_line(self, name: str, line: str) -> None:
        """Add a line to a text. Raises: OSError where there is no room."""

    def sync(self, name: str) -> None:
        """Wait until the disk has a mapping or a text. Raises: OSError."""

    def sync_names(self) -> None:
        """Wait until the disk has their names. Raises: OSError."""

    def release(self, empty: bool) -> None:
        """Give the spool up; with `empty`, remove it with all that no one needs any more."""


class Awaited(Protocol):
    """A record that waits for values which are still on a device."""

    def ready(self) -> bool:
        """Whether the values can be read without waiting."""

    def payload(self) -> bytes:
        """The record's payload with the values in it."""


class OpenGroup(Protocol):
    """A group of microbatches that has no outcome yet."""

    def leave(self) -> None:
        """Record it as open."""

    def forget(self) -> None:
        """Record nothing of it any more."""


class Arrival(Protocol):
    """A value on its way from a device to the host."""

    def ready(self) -> bool:
        """Whether it can be read without waiting."""

    def number(self) -> object:
        """The value, read once. Raises: whatever the device's library raises."""
