"""What a crash of the machine may take: when a spool is written to the disk.

A kill of the process takes nothing under either policy, because a mapped page belongs to the kernel. A crash of the machine may take

| `LEDGER_FSYNC` | |
|---|---|
| `never` | what the kernel had not written back of itself: usually half a minute at most |
| `grouped` | the last half second (`flush_seconds`), and what was recorded while the disk took the group before |

A record call waits for the disk under neither. `grouped` is a thread of its own, so that a server that hangs does not hold it up. It
makes the kernel watch the pages that it writes, so they are touched at once: a record call that comes before pays for a page fault, and
for longer while that very page is being written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue

from .segment import index_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .notices import Notices
    from .recorder import Recorder
    from .spool import Spool

NEVER, GROUPED = POLICIES = ("never", "grouped")
UNCHANGING = ("declaration.json",)


class Written:
    """One spool, and what of it the disk has."""

    def __init__(self, recorder: Recorder, spool: Spool) -> None:
        self.spool = spool
        self._recorder = recorder
        self._settled: set[str] = set()
        self._known: list[str] = []
        self._seen: object = None

    def group(self) -> None:
        """Write what has been recorded since the last time, and come back when the disk has it. Raises: OSError."""
        spool, storage = self.spool, self.spool.storage
        newest = spool.mark[0]
        seen = spool.mark, spool.lost
        if seen == self._seen and not self._recorder.open:
            return
        names = storage.names()
        for name in names:
            index = index_of(name)
            # A segment that was made ahead has nothing in it yet.
            if name in self._settled or (index is not None and index > newest):
                continue
            storage.sync(name)
            self._recorder.warm()
            if name in UNCHANGING or (index is not None and index < newest):
                self._settled.add(name)
        if names != self._known:
            storage.sync_names()
        self._known, self._seen = names, seen


class Syncer:
    """The thread that writes the spools of one sender to the disk, group by group."""

    def __init__(self, pace_seconds: float, spools: Callable[[], Iterable[tuple[Recorder, Spool]]], notices: Notices) -> None:
        self._pace_seconds = pace_seconds
        self._spools = spools
        self._notices = notices
        self._written: list[Written] = []
        self._ends: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="ledger-client-sync", daemon=True)

    def start(self) -> None:
        """Begin to write. Raises: RuntimeError where no thread can be started."""
        self._thread.start()

    def end(self) -> None:
        """Write once more, then end."""
        self._ends.put(None)

    def join(self, deadline: float) -> None:
        """Wait for the end, but not beyond that moment of the monotonic clock."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self) -> None:
        ended = False
        while not ended:
            try:
                self._ends.get(timeout=self._pace_seconds)
                ended = True
            except Empty:
                pass
            self._group()

    def _group(self) -> None:
        known = {id(written.spool) for written in self._written}
        self._written += [Written(recorder, spool) for recorder, spool in self._spools() if id(spool) not in known]
        for written in self._written:
            try:
                written.group()
            except Exception as error:  # a thread that died would silently leave everything to the kernel
                self._notices.say("fsync", "the disk did not take the spool (%r): a crash of the machine may lose it", error)
