"""Where a group of microbatches lies while it is open: one cell a microbatch, see `cells`.

A scratch is used again and again, so its pages stay warm, and a record call that adds a microbatch neither consumes the spool nor
takes a number. The event that closes the group empties it; if the process dies before, it is read back as an open group.
"""

from __future__ import annotations

import mmap

from .storage import Memory, touched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .shapes import Storage

SCRATCH_BYTES = 64 << 10
LARGEST_BYTES = 16 << 20
WARM_BYTES = 8 << 10
"""So much of each is kept ready to be written without a page fault: over a hundred microbatches."""
PREFIX = "group-"


class Scratch:
    """Room for one open group."""

    __slots__ = ("area", "home", "name", "size", "spilled", "storage")

    def __init__(self, storage: Storage, name: str, home: list[Scratch]) -> None:
        self.home = home
        """Where it waits for the next group."""
        self.storage = storage
        self.name = name
        self.area = storage.create(name, SCRATCH_BYTES)
        self.size = SCRATCH_BYTES
        self.spilled: mmap.mmap | None = None
        """The beginning of the group, where the disk had no room for the rest of it."""

    def grow(self, needed_bytes: int) -> bool:
        """Make room for a long group, in memory where the disk has none; False where it would be too long."""
        size = self.size
        while size < needed_bytes:
            size *= 2
        if size > LARGEST_BYTES:
            return False
        if self.spilled is None:
            try:
                self.area = self.storage.grow(self.name, size)
                self.size = size
                return True
            except OSError:
                self.spilled = self.area
        larger = mmap.mmap(-1, size)
        larger[: self.size] = self.area[: self.size]
        self.area, self.size = larger, size
        return True

    def unspill(self) -> None:
        """Go back to the place on the disk, emptied: the group is closed."""
        if self.spilled is not None:
            self.spilled[:8] = bytes(8)
            self.area, self.size, self.spilled = self.spilled, len(self.spilled), None


class Scratches:
    """The scratches of one spool, each free or in the hands of one group."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._count = 0
        self.free: list[Scratch] = []
        self._made: list[Scratch] = []
        self.free += [self._make(), self._make()]

    def make(self) -> Scratch:
        """A scratch more; in memory where the disk has no room for one, and then it is used once."""
        try:
            return self._make()
        except OSError:
            return Scratch(Memory(), f"{PREFIX}0", [])

    def warm(self) -> None:
        """Touch the beginnings, which the kernel may have written to the disk and watch again."""
        for scratch in self._made:
            touched(scratch.area, 0, WARM_BYTES)

    def _make(self) -> Scratch:
        self._count += 1
        scratch = Scratch(self._storage, f"{PREFIX}{self._count}", self.free)
        self._made = [*self._made, scratch]
        return scratch


def is_scratch(name: str) -> bool:
    """Whether a mapping of that name is a scratch."""
    return name.startswith(PREFIX) and name[len(PREFIX) :].isdecimal()
