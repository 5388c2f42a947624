"""Where a group of microbatches lies while it is open: its running sums, one record a microbatch.

A scratch is used again and again, so its pages stay warm, and a record call that adds a microbatch neither consumes the spool nor
takes a number. The event that closes the group empties it; if the process dies before, it is read back as an open group.
"""

import mmap
import re

from .storage import Memory, Storage

SCRATCH_BYTES = 64 << 10
LARGEST_BYTES = 16 << 20
NAME = re.compile(r"group-\d+")


class Scratch:
    """Room for one open group."""

    __slots__ = ("area", "name", "size", "storage")

    def __init__(self, storage: Storage, name: str) -> None:
        self.storage = storage
        self.name = name
        self.area = storage.create(name, SCRATCH_BYTES)
        self.size = SCRATCH_BYTES

    def grow(self, needed_bytes: int) -> bool:
        """Make room for a long group; False where it would be too long."""
        size = self.size
        while size < needed_bytes:
            size *= 2
        if size > LARGEST_BYTES:
            return False
        self.area = self.storage.grow(self.name, size)
        self.size = size
        return True


class Scratches:
    """The scratches of one spool, each free or in the hands of one group."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._count = 0
        self._free = [self._make(), self._make()]

    def take(self) -> Scratch:
        """A scratch for a new group; in memory where the disk has no room for one."""
        try:
            return self._free.pop() if self._free else self._make()
        except OSError:
            return Scratch(Memory(), "group-0")

    def give_back(self, scratch: Scratch) -> None:
        """The group is closed and its scratch emptied."""
        self._free.append(scratch)

    def _make(self) -> Scratch:
        self._count += 1
        return Scratch(self._storage, f"group-{self._count}")


def opened(storage: Storage, name: str) -> mmap.mmap | None:
    """The mapping of that name if it is a scratch."""
    return storage.open(name) if NAME.fullmatch(name) else None
