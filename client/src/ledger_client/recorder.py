"""What one process records of one attempt: its spool, the numbering of tries, and the groups that are open."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping

from .deferred import AwaitedPayload, Held, arrived_count
from .records import FILL, PENDING, encoded, plain_payload
from .scratch import Scratches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .notices import Notices
    from .shapes import OpenGroup, Row
    from .spool import Spool

TRIES_KEPT = 4096
NAMES_KEPT = 1024
OPEN_GROUPS = 16


class Recorder:
    """Takes rows and gives them to the spool; without a spool (disabled, closed, forked) it takes them and does nothing."""

    def __init__(self, attempt: str, spool: Spool | None, notices: Notices, project: str, run: str) -> None:
        self.attempt = attempt
        """Its name; empty where nothing was recorded from the start."""
        self.project = project
        self.run = run
        self.spool = spool
        self.notices = notices
        self.scratches = Scratches(spool.storage) if spool is not None else None
        self.latest_update = 0
        self.wall_offset = wall_offset()
        """What the wall clock shows beyond the monotonic one; the sender's thread keeps it up with an adjusted wall clock."""
        self.successor: Recorder | None = None
        """Of the attempt that followed in this process, after a rollback."""
        self.groups = itertools.count(1)
        self.open: dict[int, OpenGroup] = {}
        self._tries: dict[object, int] = {}
        self._older_tries: dict[object, int] = {}
        self._quoted: dict[str, bytes] = {}

    def retry(self, key: object) -> int:
        """How often this has been begun before in the attempt. The count of what is long past is forgotten."""
        tries = self._tries
        seen = tries.get(key)
        if seen is None:
            seen = self._older_tries.get(key)
            if len(tries) >= TRIES_KEPT:
                self._older_tries, self._tries = tries, {}
                tries = self._tries
        tries[key] = seen = 0 if seen is None else seen + 1
        return seen

    def warm(self) -> None:
        """Keep the pages that are written next ready. Not for the training thread."""
        if self.scratches is not None and self.spool is not None:
            self.scratches.warm()
            self.spool.warm()

    def leave_oldest(self) -> None:
        """Of too many open groups the oldest is recorded as left."""
        while len(self.open) > OPEN_GROUPS:
            self.open[min(self.open)].leave()

    def quoted(self, name: str) -> bytes:
        """A name as JSON says it; the names in use are remembered."""
        known = self._quoted.get(name)
        if known is None:
            known = encoded(name).encode()
            if len(self._quoted) < NAMES_KEPT:
                self._quoted[name] = known
        return known

    def plain(self, kind: str, row: Mapping[str, object]) -> None:
        """Record a row of another kind than `updates`; what is still on a device is unknown until it arrives."""
        spool = self.spool
        if spool is None:
            return
        held = {name: value for name, value in row.items() if isinstance(value, Held)}
        known: Row = {name: value for name, value in row.items() if value is not None and name not in held}
        payload = plain_payload(kind, known, PENDING if held else 0)

        def filled() -> bytes:
            return plain_payload(kind, known | arrived(held, self.notices), FILL)

        seq = spool.append(payload)
        if held:
            spool.await_values(seq, AwaitedPayload(list(held.values()), filled, payload))

    def seal(self, ending: Row | None = None) -> Spool | None:
        """Record what is open as open, and take nothing more; gives the spool if there was one."""
        spool = self.spool
        if spool is not None:
            for group in list(self.open.values()):
                group.leave()
            if ending is not None:
                spool.end(ending)
            spool.tell_losses(0)
            spool.seal()
        self.spool = None
        return spool

    def forget(self) -> None:
        """In a forked child: the spool and the scratches are the parent's."""
        self.spool = None
        for group in list(self.open.values()):
            group.forget()
        self.open.clear()


def wall_offset() -> float:
    """How far the wall clock is ahead of the monotonic one. Units: seconds."""
    return time.time() - time.monotonic()


def arrived(held: Mapping[str, Held], notices: Notices) -> Row:
    """The held counts that turned out to be counts."""
    return {name: number for name, value in held.items() if (number := arrived_count(value, notices)) is not None}
