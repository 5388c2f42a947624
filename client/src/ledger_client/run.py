"""The handle of a run in this process: what a training loop calls.

A record call writes to the spool and returns. It never raises, never waits for the network, and does nothing in a forked child.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from .checkpoint import Checkpoint, declared_positions, saved_state
from .deferred import LARGEST_COUNT, Held, checked_count, count, on_device
from .notices import Notices
from .recorder import Recorder
from .records import PLAIN_PREFIX
from .update import Unrecorded, Update

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from .sender import Sender
    from .shapes import Reopen, Row

CLOSE_SECONDS = 10.0
EXIT_SECONDS = 2.0
EXIT_BY_SIGNAL = 128
"""What shells, and handlers that exit by themselves, add to the number of a signal to make an exit code."""
OPEN_RUNS: set[Run] = set()
"""Not weak references: an update may be in use, and its run dropped, when the process forks or ends."""


class Run:
    """One process's part in a run. Made by `ledger_client.start`."""

    def __init__(self, recorder: Recorder, sender: Sender | None, reopen: Reopen, notices: Notices, rank: int) -> None:
        self.rank = rank
        self._recorder = recorder
        self._sender = sender
        self._reopen = reopen
        self._notices = notices
        self._first_attempt = recorder.attempt
        self._rollbacks = 0
        OPEN_RUNS.add(self)

    @property
    def attempt(self) -> str:
        """The name of the attempt that is being recorded; empty where recording is disabled."""
        return self._recorder.attempt

    @property
    def recording(self) -> bool:
        """Whether record calls have an effect: not where disabled, closed, or in a forked child."""
        return self._recorder.spool is not None

    def health(self) -> dict[str, int]:
        """What was recorded and what became of it, in events; `invalid` counts values that were no counts."""
        channels = list(self._sender.channels) if self._sender is not None else []
        deliveries = [channel.delivery for channel in channels if channel.delivery is not None]
        return {
            "recorded": sum(channel.spool.newest_seq for channel in channels),
            "accepted": sum(delivery.accepted_count for delivery in deliveries),
            "dead_letters": sum(delivery.dead_letter_count for delivery in deliveries),
            "dropped": sum(channel.spool.dropped_count for channel in channels),
            "invalid": sum(seen for matter, seen in self._notices.counts.items() if matter.startswith("count ")),
        }

    def update(self, number: int) -> Update:
        """One attempted optimizer update, by the trainer's own number. Beginning the same number again is a further try."""
        recorder = self._recorder
        try:
            if type(number) is not int or not 0 <= number <= LARGEST_COUNT:
                if on_device(number):
                    self._notices.say("number", "the number of an update lies on a device: each update waits for it to be read")
                number = checked_count(number)
            if recorder.spool is None:
                return Unrecorded(number)
            recorder.latest_update = number
            return Update(recorder, number, recorder.retry(number))
        except Exception as error:  # a record call never raises into the training loop
            self._notices.say("update", "an update is not recorded: %r", error)
            return Unrecorded(0)

    def checkpoint(
        self, name: str, *, update: int | None = None, uri: str | None = None, positions: Mapping[str, object] | None = None
    ) -> Checkpoint:
        """A save begins. `update`: the last one that the saved state contains (default: the newest). Tell its end by the handle.

        `positions`: where each data stream stands, `{stream: {"epoch": 0, "position": 4}}`.
        """
        recorder = self._recorder
        contained = self._contained(update)
        handle = Checkpoint(recorder, str(name), contained)

        def row() -> Row:
            places = declared_positions(positions)
            return {"checkpoint": handle.name, "state": "started", "update": contained, "uri": uri, "positions": places}

        self._record("checkpoints", row)
        return handle

    def reject(self, checkpoint: object) -> None:
        """A checkpoint of an earlier attempt was found unusable on resume: its handle, its name, or a mapping that names its owner."""
        self._record("checkpoints", lambda: {**(saved_state(checkpoint) or {}), "state": "rejected"})

    def evaluation(
        self,
        *,
        name: str = "validation",
        update: int | None = None,
        input_slots: object = None,
        consumed_tokens: object = None,
        valid_targets: object = None,
        samples: object = None,
        seconds: float | None = None,
    ) -> None:
        """Data went through the model without training it; counted beside the balance."""

        def row() -> Row:
            number = self._number(update, self._recorder.latest_update)
            return {
                "update": number,
                "name": name,
                "retry": self._recorder.retry(("evaluation", number, name)),
                **self._counts(input_slots, consumed_tokens, valid_targets, samples),
                "seconds": None if seconds is None else float(seconds),
            }

        self._record("evaluations", row)

    def discard(
        self,
        reason: str = "other",
        *,
        update: int | None = None,
        input_slots: object = None,
        consumed_tokens: object = None,
        valid_targets: object = None,
        samples: object = None,
        ranges: Iterable[Sequence[object]] | None = None,
        seconds: float | None = None,
    ) -> None:
        """Microbatches that entered no update, because of `remainder`, `filtered` or `other`.

        `update`: the one being assembled (default: the next).
        """

        def row() -> Row:
            number = self._number(update, self._recorder.latest_update + 1)
            return {
                "update": number,
                "retry": self._recorder.retry(("discard", number)),
                "reason": reason if reason in ("remainder", "filtered", "other") else "other",
                **self._counts(input_slots, consumed_tokens, valid_targets, samples),
                "ranges": None if ranges is None else [list(item) for item in ranges],
                "seconds": None if seconds is None else float(seconds),
            }

        self._record("discards", row)

    def pass_over(self, stream: str, start: int, stop: int, *, epoch: int = 0, update: int | None = None) -> None:
        """The data cursor is moved over `[start, stop)` on purpose: nothing is processed. `update`: the one being assembled."""
        self._record(
            "passes",
            lambda: {
                "update": self._number(update, self._recorder.latest_update + 1),
                "stream": stream,
                "epoch": checked_count(epoch),
                "start": checked_count(start),
                "stop": checked_count(stop),
            },
        )

    def counter(self, name: str, value: object, *, update: int | None = None) -> None:
        """One of the trainer's own counters as it stands after an update (default: the newest); compared, never trusted."""
        try:
            recorder = self._recorder
            spool = recorder.spool
            if spool is None:
                return
            number = recorder.latest_update if update is None else checked_count(update)
            if type(value) is not int or not 0 <= value <= LARGEST_COUNT:
                value = count(value, f"counter {name}")
                if isinstance(value, Held):
                    recorder.plain("counters", {"update": number, "name": name, "value": value})
                    return
                if value is None:
                    raise TypeError("a counter has a value")
            spool.append(PLAIN_PREFIX + b'["counters",{"update":%d,"name":%b,"value":%d}]' % (number, recorder.quoted(name), value))
        except Exception as error:  # a record call never raises into the training loop
            self._notices.say("counters", "a counter could not be recorded: %r", error)

    def idle(self, label: str, seconds: float | None = None) -> Idle:
        """Time in which nothing was trained: give its length, or use it as a block that is timed."""
        if seconds is not None:
            self._record("idles", lambda: {"label": label, "seconds": float(seconds)})
        return Idle(self, label)

    def rolled_back_to(self, checkpoint: object) -> None:
        """The trainer has loaded an older checkpoint in place: what follows is a new attempt that resumes from it."""
        try:
            resumed_from = saved_state(checkpoint)
            self._rollbacks += 1
            if self._recorder.spool is None or self._sender is None:
                return
            opened = self._reopen(f"{self._first_attempt}.{self._rollbacks}", resumed_from)
            if opened is None:
                return
            previous, (self._recorder, channel) = self._recorder, opened
            previous.successor = self._recorder
            self._sender.add(channel)
            previous.seal()
        except Exception as error:  # a record call never raises into the training loop
            self._notices.say("rollback", "a rollback could not be recorded: %r", error)

    def flush(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Wait until the ledger has acknowledged what is recorded; False where the time did not suffice."""
        return self._sender is not None and self.recording and self._sender.flush(timeout)

    def close(self, timeout: float = CLOSE_SECONDS, *, ended: str | None = None) -> bool:
        """Send what is left and stop recording; True if all of it arrived. What did not is kept in the spool.

        `ended`: `completed`, `crashed`, `preempted` or `stopped`, where this process knows how the attempt ended.
        """
        try:
            OPEN_RUNS.discard(self)
            ending: Row | None = {"ended": ended} if ended is not None else None
            if self._recorder.seal(ending) is None or self._sender is None:
                return False
            finished = self._sender.finish(timeout)
            online = all(channel.online for channel in self._sender.channels)
            if online and not finished:
                self._notices.say("left", "not everything was delivered in time; `ledger-client drain` sends what the spool keeps")
            for channel in self._sender.channels:
                channel.spool.storage.release(empty=finished and online)
            return finished and online
        except Exception as error:  # the training is over; nothing of ours may change how it ends
            self._notices.say("close", "the run could not be closed: %r", error)
            return False

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        code = error.code if isinstance(error, SystemExit) else None
        if kind is None or (issubclass(kind, SystemExit) and not code):
            # The first rank to say how it ended decides, and one that is through early does not know of the others.
            self.close(ended="completed" if self.rank == 0 else None)
        elif code == EXIT_BY_SIGNAL + signal.SIGTERM:
            self.close(ended="preempted")
        elif issubclass(kind, KeyboardInterrupt) or code == EXIT_BY_SIGNAL + signal.SIGINT:
            self.close(ended="stopped")
        else:
            self.close(ended="crashed")

    def __reduce__(self) -> tuple[Callable[..., Run], tuple[str, int, str, str]]:
        """What a spawned process gets (a data loader that is handed the trainer's objects) is a handle that records nothing."""
        recorder = self._recorder
        return silent, (recorder.attempt, self.rank, recorder.project, recorder.run)

    def __deepcopy__(self, memo: object) -> Run:
        return self

    def _forked(self) -> None:
        """In a forked child: record nothing, and hold nothing that belongs to the parent's thread."""
        self._recorder.forget()
        self._sender = None

    def _record(self, kind: str, row: Callable[[], Row]) -> None:
        try:
            if self._recorder.spool is not None:
                self._recorder.plain(kind, row())
        except Exception as error:  # a record call never raises into the training loop
            self._notices.say(kind, "an event of %s could not be recorded: %r", kind, error)

    def _number(self, update: int | None, default: int) -> int:
        return default if update is None else checked_count(update)

    def _contained(self, update: int | None) -> int | None:
        try:
            return self._number(update, self._recorder.latest_update)
        except (TypeError, ValueError) as error:
            self._notices.say("checkpoint update", "the update that a checkpoint contains is recorded as unknown: %s", error)
            return None

    def _counts(self, input_slots: object, consumed_tokens: object, valid_targets: object, samples: object) -> Row:
        given = {"input_slots": input_slots, "consumed_tokens": consumed_tokens, "valid_targets": valid_targets, "samples": samples}
        return {name: self._checked(name, value) for name, value in given.items()}

    def _checked(self, name: str, value: object) -> int | Held | None:
        try:
            return count(value, name)
        except Exception as error:  # TypeError, ValueError, and whatever the value's own library raises
            self._notices.say(f"count {name}", "%s is recorded as unknown: %s", name, error)
            return None


class Idle:
    """A stretch of idle time; as a block it is timed."""

    def __init__(self, run: Run, label: str) -> None:
        self._run = run
        self._label = label
        self._began = 0.0

    def __enter__(self) -> Idle:
        self._began = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run.idle(self._label, seconds=time.monotonic() - self._began)


def silent(attempt: str, rank: int, project: str, run: str) -> Run:
    """A run that records nothing."""
    notices = Notices()
    handle = Run(Recorder(attempt, None, notices, project, run), None, lambda name, source: None, notices, rank)
    OPEN_RUNS.discard(handle)
    return handle


def close_all() -> None:
    """At the end of the interpreter: a bounded attempt to send what is left. What does not go out stays in the spool."""
    deadline = time.monotonic() + EXIT_SECONDS
    for run in list(OPEN_RUNS):
        run.close(timeout=max(0.0, deadline - time.monotonic()))


def forget_all() -> None:
    """In a forked child: no run records there."""
    for run in list(OPEN_RUNS):
        run._forked()
    OPEN_RUNS.clear()


atexit.register(close_all)
os.register_at_fork(after_in_child=forget_all)
