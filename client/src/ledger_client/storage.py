"""Where a spool keeps its bytes: in a directory that outlives the process, or in memory that does not.

Everything is a named, fixed-size, shared mapping. The kernel owns a mapped page of a file: what was stored into it is written out
even if the process is killed in the next instruction. Space is taken when a file is made, never when it is written to, because
a store into a page that the disk has no room for would kill the training with SIGBUS.
"""

import fcntl
import mmap
import os
from pathlib import Path
from typing import Protocol

PAGE_BYTES = mmap.PAGESIZE


def touched(area: mmap.mmap) -> mmap.mmap:
    """The same mapping with every page present, so that no record call pays for a page fault."""
    for offset in range(0, len(area), PAGE_BYTES):
        area[offset] = area[offset]
    return area


class Storage(Protocol):
    """Named mappings and small texts of one spool."""

    durable: bool

    def create(self, name: str, size_bytes: int) -> mmap.mmap:
        """A new zeroed mapping. Raises: OSError where there is no room."""

    def open(self, name: str, writable: bool = False) -> mmap.mmap | None:
        """An existing mapping; None if there is none."""

    def grow(self, name: str, size_bytes: int) -> mmap.mmap:
        """A larger mapping with the same beginning, put in the place of the old one in one step."""

    def rename(self, name: str, new: str) -> None:
        """Give a mapping another name."""

    def delete(self, name: str) -> None:
        """Forget a mapping."""

    def names(self) -> list[str]:
        """Names of all mappings and texts, sorted."""

    def append_line(self, name: str, line: str) -> None:
        """Add a line to a text."""

    def release(self, empty: bool) -> None:
        """Give the spool up; with `empty`, remove it with all that no one needs any more."""


class Directory:
    """A spool in a directory: outlives the process."""

    durable = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def claim(self) -> bool:
        """Take the spool for this process; False where another living process has it.

        A record lock, not `flock`: it is not inherited by forked data loaders, and the kernel drops it with the process.
        """
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def create(self, name: str, size_bytes: int) -> mmap.mmap:
        """A new zeroed file of that size, mapped."""
        path = self.path / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            remaining = size_bytes
            while remaining:
                remaining -= os.write(descriptor, bytes(min(remaining, 1 << 20)))
            return touched(mmap.mmap(descriptor, size_bytes))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def open(self, name: str, writable: bool = False) -> mmap.mmap | None:
        """The file, mapped to read, or to write too."""
        try:
            descriptor = os.open(self.path / name, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            size_bytes = os.fstat(descriptor).st_size
            return mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ) if size_bytes else None
        finally:
            os.close(descriptor)

    def grow(self, name: str, size_bytes: int) -> mmap.mmap:
        """A larger file, renamed over the old one when its content is complete."""
        area = self.create(f"{name}.grown", size_bytes)
        old = self.open(name)
        if old is not None:
            area[: len(old)] = old[:]
        os.replace(self.path / f"{name}.grown", self.path / name)
        return area

    def rename(self, name: str, new: str) -> None:
        """Rename the file, over another one if need be."""
        os.replace(self.path / name, self.path / new)

    def delete(self, name: str) -> None:
        """Remove the file."""
        (self.path / name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Names of the files."""
        try:
            return sorted(entry.name for entry in self.path.iterdir())
        except FileNotFoundError:
            return []

    def append_line(self, name: str, line: str) -> None:
        """Add a line to a file."""
        with (self.path / name).open("a", encoding="utf-8") as text:
            text.write(line + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a small file in one step: whoever reads it sees all or nothing."""
        temporary = self.path / f"{name}.new"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self.path / name)

    def read_text(self, name: str) -> str | None:
        """The content of a small file; None if there is none."""
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def release(self, empty: bool) -> None:
        """Drop the lock; remove an empty spool, but for dead letters and what is needed to read them."""
        if empty:
            letters = (self.path / "dead-letter.ndjson").exists()
            for name in self.names():
                if not (letters and name in ("dead-letter.ndjson", "declaration.json")):
                    self.delete(name)
            if not letters:
                self.path.rmdir()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


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

    def rename(self, name: str, new: str) -> None:
        """Give the mapping another name."""
        self._areas[new] = self._areas.pop(name)

    def delete(self, name: str) -> None:
        """Forget the mapping."""
        self._areas.pop(name, None)

    def names(self) -> list[str]:
        """Names of the mappings."""
        return sorted(self._areas)

    def append_line(self, name: str, line: str) -> None:
        """Keep a line."""
        self.lines.setdefault(name, []).append(line)

    def release(self, empty: bool) -> None:
        """Forget everything."""
        self._areas.clear()
