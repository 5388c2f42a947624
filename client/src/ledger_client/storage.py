"""Where a spool keeps its bytes: in a directory that outlives the process, or in memory that does not.

Everything is a named, fixed-size, shared mapping. The kernel owns a mapped page of a file: what was stored into it is written out
even if the process is killed in the next instruction. Space is taken when a file is made, never when it is written to, because
a store into a page that the disk has no room for would kill the training with SIGBUS.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from collections.abc import Callable

PAGE_BYTES = mmap.PAGESIZE
WRITE_BYTES = 1 << 20
LOCK = "lock"
HELD: set[str] = vars(sys).setdefault("_ledger_client_held", set())
"""The spools that this process has claimed: the kernel would drop a record lock as soon as any descriptor of its file is closed.

Kept where it outlives this module: a package that is imported once more must not take the spools of the first import for those of a
dead process. A forked child holds none.
"""
os.register_at_fork(after_in_child=HELD.clear)


def touched(area: mmap.mmap, start: int = 0, stop: int | None = None) -> mmap.mmap:
    """The same mapping with its pages present and writable, so that no record call pays for a page fault.

    The kernel watches a page again once it has written it to the disk. Another thread may store here meanwhile: a byte is read and stored
    with nothing between at which the interpreter could switch.
    """
    for offset in range(start, min(len(area), len(area) if stop is None else stop), PAGE_BYTES):
        area[offset] = area[offset]
    return area


def fill_with_zeros(descriptor: int, size_bytes: int) -> None:
    """Take room at the end of a file. Raises: OSError where there is none."""
    while size_bytes:
        size_bytes -= os.write(descriptor, bytes(min(size_bytes, WRITE_BYTES)))


def synced(path: str, write: Callable[[int], None]) -> None:
    """Write a file or a directory to the disk, if it is still there. Raises: OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        write(descriptor)
    finally:
        os.close(descriptor)


class Directory:
    """A spool in a directory: outlives the process."""

    durable = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(path)
        self._lock: int | None = None

    def claim(self) -> bool:
        """Take the spool for this process; False where another living process, or another part of this one, has it.

        A record lock, not `flock`: it is not inherited by forked data loaders, and the kernel drops it with the process.
        Raises: OSError where the directory cannot be written.
        """
        if self.path in HELD:
            return False
        descriptor = os.open(self._place(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        HELD.add(self.path)
        self._lock = descriptor
        return True

    def create(self, name: str, size_bytes: int) -> mmap.mmap:
        """A new zeroed file of that size, mapped."""
        path = self._place(name)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fill_with_zeros(descriptor, size_bytes)
            return touched(mmap.mmap(descriptor, size_bytes))
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)

    def open(self, name: str, writable: bool = False) -> mmap.mmap | None:
        """The file, mapped to read, or to write too."""
        try:
            descriptor = os.open(self._place(name), (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            size_bytes = os.fstat(descriptor).st_size
            return mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ) if size_bytes else None
        finally:
            os.close(descriptor)

    def grow(self, name: str, size_bytes: int) -> mmap.mmap:
        """The same file with more room at its end, mapped anew; older mappings stay valid and show the same bytes."""
        descriptor = os.open(self._place(name), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        held_bytes = os.fstat(descriptor).st_size
        try:
            fill_with_zeros(descriptor, max(0, size_bytes - held_bytes))
            return touched(mmap.mmap(descriptor, size_bytes))
        except BaseException:
            os.ftruncate(descriptor, held_bytes)
            raise
        finally:
            os.close(descriptor)

    def delete(self, name: str) -> None:
        """Remove the file."""
        try:
            os.unlink(self._place(name))
        except FileNotFoundError:
            return

    def names(self) -> list[str]:
        """Names of the files."""
        try:
            return sorted(os.listdir(self.path))
        except FileNotFoundError:
            return []

    def size_bytes(self, name: str) -> int:
        """How long the file is."""
        try:
            return os.stat(self._place(name)).st_size
        except FileNotFoundError:
            return 0

    def append_line(self, name: str, line: str) -> None:
        """Add a line to a file."""
        with open(self._place(name), "a", encoding="utf-8") as text:
            text.write(line + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a small file in one step: whoever reads it sees all or nothing."""
        temporary = self._place(f"{name}.new")
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, self._place(name))

    def read_text(self, name: str) -> str | None:
        """The content of a small file; None if there is none."""
        try:
            with open(self._place(name), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def sync(self, name: str) -> None:
        """Wait until the disk has what the file holds. Raises: OSError where it cannot take it."""
        # Closing any descriptor of the lock would drop it.
        if name != LOCK:
            synced(self._place(name), os.fdatasync)

    def sync_names(self) -> None:
        """Wait until the disk has the names of the files, and that of the directory. Raises: OSError."""
        synced(self.path, os.fsync)
        synced(os.path.dirname(self.path), os.fsync)

    def release(self, empty: bool) -> None:
        """Drop the lock; remove an empty spool, but for dead letters and what is needed to read them."""
        if empty:
            letters = os.path.exists(self._place("dead-letter.ndjson"))
            for name in self.names():
                if not (letters and name in ("dead-letter.ndjson", "declaration.json")):
                    self.delete(name)
            if not letters and os.path.isdir(self.path):
                os.rmdir(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            HELD.discard(self.path)

    def _place(self, name: str) -> str:
        return os.path.join(self.path, name)


class Memory:
    """A spool in memory: lost with the process."""

    durable = False

    def __init__(self) -> None:
        self._areas: dict[str, mmap.mmap] = {}
        self.lines: dict[str, list[str]] = {}

    def create(self, name: str, size_bytes: int) -> mmap.mmap:
        """A new zeroed mapping that no file backs."""
        area = self._areas[name] = touched(mmap.mmap(-1, size_bytes))
        return area

    def open(self, name: str, writable: bool = False) -> mmap.mmap | None:
        """The mapping itself."""
        return self._areas.get(name)

    def grow(self, name: str, size_bytes: int) -> mmap.mmap:
        """A larger mapping with the same beginning."""
        old = self._areas[name]
        area = mmap.mmap(-1, size_bytes)
        area[: len(old)] = old[:]
        self._areas[name] = area
        return area

    def delete(self, name: str) -> None:
        """Forget the mapping."""
        self._areas.pop(name, None)

    def names(self) -> list[str]:
        """Names of the mappings."""
        return sorted(self._areas)

    def size_bytes(self, name: str) -> int:
        """How long the text is."""
        return sum(len(line) + 1 for line in self.lines.get(name, ()))

    def append_line(self, name: str, line: str) -> None:
        """Keep a line."""
        self.lines.setdefault(name, []).append(line)

    def sync(self, name: str) -> None:
        """Nothing: no disk has it."""

    def sync_names(self) -> None:
        """Nothing."""

    def release(self, empty: bool) -> None:
        """Forget everything."""
        self._areas.clear()
