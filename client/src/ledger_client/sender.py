"""The one background thread of a process: fills in values that have arrived, makes segments ahead, and sends.

The training thread never waits for it and never wakes it; it looks at the spool at a fixed pace.
"""

import threading
import time
from dataclasses import dataclass

from .delivery import Delivery
from .notices import Notices
from .spool import Spool

REQUEST_SECONDS = 10.0
AWAITED_PACE_SECONDS = 0.05


@dataclass(eq=False, slots=True)
class Channel:
    """A spool and, unless offline, its way to the server."""

    spool: Spool
    delivery: Delivery | None
    sealed: bool = False

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do for it."""
        return not self.spool.awaited and (self.delivery is None or self.delivery.complete)


class Sender:
    """The thread, and what it serves."""

    def __init__(self, flush_seconds: float, notices: Notices) -> None:
        self.channels: list[Channel] = []
        self._flush_seconds = flush_seconds
        self._notices = notices
        self._changed = threading.Condition()
        self._hurried = False
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._serve, name="ledger-client", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def add(self, channel: Channel) -> None:
        """Serve another spool too."""
        with self._changed:
            self.channels.append(channel)

    def flush(self, timeout_seconds: float) -> bool:
        """Send now what is recorded; True once all of it is acknowledged, False where the time did not suffice."""
        deadline = time.monotonic() + timeout_seconds
        while not self._complete():
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not self._thread.is_alive():
                return False
            with self._changed:
                self._hurried = True
                self._changed.notify_all()
                self._changed.wait(min(remaining, 0.05))
        return True

    def finish(self, timeout_seconds: float) -> bool:
        """Send what is left, then end the thread; returns in time whatever the server does."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            self._deadline = deadline
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(max(0.0, timeout_seconds))
        return not self._thread.is_alive() and self._complete()

    def _complete(self) -> bool:
        return all(channel.complete for channel in list(self.channels))

    def _serve(self) -> None:
        while True:
            busy = False
            try:
                for channel in list(self.channels):
                    busy |= self._tend(channel)
            except Exception as error:  # a thread that died would silently keep everything from being sent
                self._notices.say("sender", "the ledger's sender failed and goes on: %r", error)
            if self._deadline is not None and (self._complete() or self._out_of_time(self._deadline)):
                break
            with self._changed:
                self._changed.notify_all()
                if not busy and not self._hurried:
                    self._changed.wait(self._pace())
                elif not busy:
                    self._changed.wait(0.01)
                self._hurried = False
        for channel in self.channels:
            if channel.delivery is not None:
                channel.delivery.disconnect()
        with self._changed:
            self._changed.notify_all()

    def _tend(self, channel: Channel) -> bool:
        spool, delivery = channel.spool, channel.delivery
        spool.fill()
        spool.prepare()
        return delivery is not None and delivery.step(self._request_seconds())

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
        if any(channel.spool.awaited for channel in self.channels):
            return AWAITED_PACE_SECONDS
        if self._deadline is not None:
            return 0.02
        return self._flush_seconds
