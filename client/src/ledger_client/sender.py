"""The one background thread of a run: fills in values that have arrived, makes segments ahead, and sends.

The training thread never waits for it and never wakes it; it looks at the spool at a fixed pace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue

from .recorder import wall_offset
from .syncing import Syncer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .delivery import Delivery
    from .notices import Notices
    from .recorder import Recorder
    from .spool import Spool

REQUEST_SECONDS = 10.0
LEFTOVER_SECONDS = 3.0
AWAITED_PACE_SECONDS = 0.05
HURRIED_PACE_SECONDS = 0.01
POLL_SECONDS = 0.002


class Channel:
    """A spool and, unless offline, its way to the server, which the sender's thread builds: the modules for it load slowly."""

    def __init__(self, recorder: Recorder, spool: Spool, connect: Callable[[], Delivery] | None) -> None:
        self.spool = spool
        self.recorder = recorder
        self.online = connect is not None
        self.delivery: Delivery | None = None
        self._connect = connect

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do for it."""
        return not self.spool.awaited and (not self.online or (self.delivery is not None and self.delivery.complete))

    def tend(self, timeout_seconds: float, closing: bool) -> bool:
        """Do the next thing; True where something was settled and the next step may follow at once."""
        self.recorder.wall_offset = wall_offset()
        self.spool.fill()
        self.spool.prepare()
        self.recorder.warm()
        if self.delivery is None and self._connect is not None:
            self.delivery = self._connect()
        if self.delivery is None:
            return False
        if closing:
            self.delivery.hurry()
        return self.delivery.step(timeout_seconds)


class Sender:
    """The thread, and what it serves."""

    def __init__(
        self, flush_seconds: float, notices: Notices, leftovers: Callable[[], Iterable[Delivery]] | None = None, grouped: bool = False
    ) -> None:
        self.channels: list[Channel] = []
        self._flush_seconds = flush_seconds
        self._notices = notices
        self._find_leftovers = leftovers
        self._leftovers: list[Delivery] = []
        # Not a condition or an event: a signal handler may close the run while the same thread is inside a call of it.
        self._calls: SimpleQueue[None] = SimpleQueue()
        self._hurried_until = 0.0
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._serve, name="ledger-client", daemon=True)
        self._syncer = Syncer(flush_seconds, self._spools, notices) if grouped else None

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()
        if self._syncer is not None:
            self._syncer.start()

    def add(self, channel: Channel) -> None:
        """Serve another spool too."""
        self.channels = [*self.channels, channel]

    def flush(self, timeout_seconds: float) -> bool:
        """Send now what is recorded; True once all of it is acknowledged, False where the time did not suffice."""
        deadline = time.monotonic() + timeout_seconds
        self._hurried_until = deadline
        self._calls.put(None)
        while not self._complete():
            if time.monotonic() >= deadline or not self._thread.is_alive():
                return False
            time.sleep(POLL_SECONDS)
        self._hurried_until = 0.0
        return True

    def finish(self, timeout_seconds: float) -> bool:
        """Send what is left, then end the thread; returns in time whatever the server does."""
        self._deadline = time.monotonic() + timeout_seconds
        self._calls.put(None)
        if self._syncer is not None:
            self._syncer.end()
        if self._thread.is_alive():
            self._thread.join(max(0.0, timeout_seconds))
        if self._syncer is not None:
            self._syncer.join(self._deadline)
        return not self._thread.is_alive() and self._complete()

    def _spools(self) -> list[tuple[Recorder, Spool]]:
        return [(channel.recorder, channel.spool) for channel in list(self.channels)]

    def _complete(self) -> bool:
        return all(channel.complete for channel in list(self.channels))

    def _serve(self) -> None:
        while True:
            busy = False
            deadline = self._deadline
            try:
                for channel in list(self.channels):
                    busy |= channel.tend(self._request_seconds(), deadline is not None)
                if deadline is None:
                    busy |= self._tend_leftovers()
            except Exception as error:  # a thread that died would silently keep everything from being sent
                self._notices.say("sender", "the ledger's sender failed and goes on: %r", error)
            if deadline is not None and (self._complete() or self._out_of_time(deadline)):
                break
            if not busy:
                self._wait()
        for channel in self.channels:
            if channel.delivery is not None:
                channel.delivery.disconnect()
        for delivery in self._leftovers:
            delivery.give_up()

    def _wait(self) -> None:
        try:
            self._calls.get(timeout=self._pace())
        except Empty:
            return

    def _tend_leftovers(self) -> bool:
        """Send what an earlier process of this rank left behind, after this process's own events."""
        if self._find_leftovers is not None:
            find, self._find_leftovers = self._find_leftovers, None
            self._leftovers = list(find())
        busy = False
        for delivery in list(self._leftovers):
            busy |= delivery.step(LEFTOVER_SECONDS)
            if delivery.complete:
                self._leftovers.remove(delivery)
                delivery.give_up()
        return busy

    def _request_seconds(self) -> float:
        if self._deadline is None:
            return REQUEST_SECONDS
        return min(REQUEST_SECONDS, max(0.1, self._deadline - time.monotonic()))

    def _out_of_time(self, deadline: float) -> bool:
        """Whether nothing more can be done before the deadline: it is over, or every pause ends after it."""
        if time.monotonic() >= deadline:
            return True
        waiting = [channel for channel in self.channels if not channel.complete]
        return all(
            channel.delivery is not None and channel.delivery.not_before > deadline and not channel.spool.awaited for channel in waiting
        )

    def _pace(self) -> float:
        if self._deadline is not None or self._hurried_until > time.monotonic():
            return HURRIED_PACE_SECONDS
        if any(channel.spool.awaited for channel in self.channels):
            return AWAITED_PACE_SECONDS
        return self._flush_seconds
