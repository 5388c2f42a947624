"""What one process records of one attempt: its spool, the numbering of tries, and the groups that are open."""

import itertools
import json
from collections.abc import Mapping
from typing import Protocol

from .deferred import AwaitedBody, Held, arrived_count
from .notices import Notices
from .records import PENDING, PLAIN_ROW, Row, pack_plain
from .scratch import Scratches
from .spool import Spool

TRIES_KEPT = 4096
OPEN_GROUPS = 16


class OpenGroup(Protocol):
    """A group of microbatches that has no outcome yet."""

    def leave(self) -> None:
        """Record it as open."""


class Recorder:
    """Takes rows and gives them to the spool; without a spool (disabled, closed, forked) it takes them and does nothing."""

    def __init__(self, attempt: str, spool: Spool | None, notices: Notices) -> None:
        self.attempt = attempt
        self.spool = spool
        self.notices = notices
        self.scratches = Scratches(spool.storage) if spool is not None else None
        self.latest_update = 0
        self._groups = itertools.count(1)
        self._open: dict[int, OpenGroup] = {}
        self._tries: dict[tuple[object, ...], int] = {}

    def retry(self, *key: object) -> int:
        """How often this has been begun before in the attempt. The count of what is long past is forgotten."""
        tries = self._tries
        seen = tries.pop(key, -1) + 1
        tries[key] = seen
        if len(tries) > TRIES_KEPT:
            del tries[next(iter(tries))]
        return seen

    def opened(self, group: OpenGroup) -> int:
        """A number for a group that has its first microbatch. Of too many open groups the oldest is recorded as left."""
        number = next(self._groups)
        self._open[number] = group
        if len(self._open) > OPEN_GROUPS:
            self._open[min(self._open)].leave()
        return number

    def closed(self, number: int) -> None:
        """The group has been recorded."""
        self._open.pop(number, None)

    def plain(self, kind: str, row: Mapping[str, object]) -> None:
        """Record a row of another kind than `updates`; what is still on a device is unknown until it arrives."""
        spool = self.spool
        if spool is None:
            return
        held = {name: value for name, value in row.items() if isinstance(value, Held)}
        if not held:
            spool.append(PLAIN_ROW, pack_plain(kind, {name: value for name, value in row.items() if value is not None}))
            return
        known: Row = {name: value for name, value in row.items() if value is not None and name not in held}
        seq = spool.append(PLAIN_ROW, pack_plain(kind, known), flags=PENDING)

        def packed() -> bytes:
            return pack_plain(kind, known | arrived(held))

        spool.await_values(seq, AwaitedBody(lambda: all(value.ready() for value in held.values()), packed), PLAIN_ROW)

    def seal(self, ending: Row | None = None) -> Spool | None:
        """Record what is open as open, and take nothing more; gives the spool if there was one."""
        spool = self.spool
        if spool is not None:
            for group in list(self._open.values()):
                group.leave()
            if ending is not None:
                spool.end(json.dumps(ending).encode())
            spool.tell_losses(0)
        self.spool = None
        return spool


def arrived(held: Mapping[str, Held]) -> Row:
    """The held counts that turned out to be counts."""
    return {name: number for name, value in held.items() if (number := arrived_count(value)) >= 0}
