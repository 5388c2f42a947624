"""One attempted optimizer update on this rank: its microbatches are added up, and its outcome makes them one event.

Until then the sums lie in a scratch file, one small record a microbatch: a process that is killed leaves them as an open group.
"""

import time
from collections.abc import Iterable, Sequence
from time import monotonic
from types import TracebackType
from zlib import crc32

from .deferred import AwaitedBody, Held, Replay, add, arrived_count, arrived_real, count, real
from .recorder import Recorder
from .records import (
    BODY,
    FRAME,
    NO_PARTICIPANTS,
    NO_SUMS,
    OUTCOMES,
    PENDING,
    RANGES_KNOWN,
    REASONS,
    REPORTED_KNOWN,
    SHARD,
    SILENT,
    UNKNOWN,
    UPDATE,
    UPDATE_ROW,
    Sums,
    pack_range,
)
from .scratch import Scratch

BEGUN, LEFT, CLOSED = 0, 1, 2
NO_RANGES = (b"", 0, False)
STREAM_NAMES: dict[str, bytes] = {}
OPEN = OUTCOMES.index("open")


class Update:
    """The handle of one update; see `Run.update`."""

    __slots__ = (
        "_began", "_group", "_number", "_open_seq", "_range_count", "_ranges", "_recorder", "_replay", "_retry", "_scratch",
        "_seconds", "_started_at", "_state", "_sums", "_tail",
    )  # fmt: skip

    def __init__(self, recorder: Recorder, number: int, retry: int) -> None:
        self._recorder = recorder
        self._number = number
        self._retry = retry
        self._state = BEGUN
        self._sums = NO_SUMS
        self._ranges: list[bytes] = []
        self._range_count = 0
        self._replay: Replay | None = None
        self._scratch: Scratch | None = None
        self._group = 0
        self._tail = 0
        self._open_seq: int | None = None
        self._seconds: float | None = None
        self._started_at = time.time()
        self._began = monotonic()

    @property
    def number(self) -> int:
        """The trainer's number of the update."""
        return self._number

    @property
    def retry(self) -> int:
        """Which try at this number it is within the attempt, from 0."""
        return self._retry

    def microbatch(
        self,
        *,
        input_slots: object = None,
        consumed_tokens: object = None,
        valid_targets: object = None,
        samples: object = None,
        loss_sum: object = None,
        ranges: Iterable[Sequence[object]] | None = None,
    ) -> None:
        """Add one forward/backward pass of this rank. What is left out is unknown, and then unknown for the update.

        Units: slots, tokens, targets, samples; `loss_sum` in nats over the valid targets; `ranges` are
        `(stream, epoch, start, stop)`, half-open. A count is an integer, or an array of one element on a device.
        """
        try:
            if self._state or self._recorder.spool is None:
                self._too_late()
                return
            if (
                type(input_slots) is type(consumed_tokens) is type(valid_targets) is type(samples) is int
                and type(loss_sum) is float
                and input_slots | consumed_tokens | valid_targets | samples >= 0
                and self._replay is None
            ):
                # What `add` does, for counts that are all known: this is the call that must cost nothing.
                slots, tokens, targets, drawn, microbatches, scored, loss, means, known = self._sums
                if valid_targets:
                    means += loss_sum / valid_targets
                    scored += 1
                slots += input_slots
                tokens += consumed_tokens
                targets += valid_targets
                drawn += samples
                microbatches += 1
                loss += loss_sum
                packed, range_count, ranges_known = self._pack_ranges(ranges) if ranges is not None else NO_RANGES
                if not ranges_known:
                    known &= ~RANGES_KNOWN
            else:
                sums, packed, range_count = self._unusual(input_slots, consumed_tokens, valid_targets, samples, loss_sum, ranges)
                slots, tokens, targets, drawn, microbatches, scored, loss, means, known = sums
            scratch = self._scratch
            if scratch is None:
                scratch = self._begin_group()
            payload = UPDATE.pack(
                UPDATE_ROW, 0, OPEN, 0, self._group, 0, self._number, self._retry, known, slots, tokens, targets, drawn,
                microbatches, scored, UNKNOWN, loss, means, 0.0, self._started_at, monotonic() - self._began, range_count, NO_PARTICIPANTS,
            )  # fmt: skip
            if range_count:
                self._ranges.append(packed)
                self._range_count += range_count
                payload += packed
            self._sums = (slots, tokens, targets, drawn, microbatches, scored, loss, means, known)
            record = FRAME.pack(len(payload), crc32(payload)) + payload
            tail = self._tail
            stop = tail + len(record)
            if stop <= scratch.size or scratch.grow(stop):
                scratch.area[tail:stop] = record
                self._tail = stop
            else:
                self._recorder.notices.say("scratch", "an open group has outgrown its room: a kill would lose part of it")
        except Exception as error:  # a record call never raises into the training loop
            self._recorder.notices.say("microbatch", "a microbatch could not be recorded: %r", error)

    def applied(self, *, reported_loss: object = None, schedule_step: object = None, participants: Iterable[int] | None = None) -> None:
        """The optimizer changed the weights. `participants`: the shards that took part, where only some did."""
        self._close("applied", None, reported_loss, schedule_step, participants)

    def skipped(
        self,
        reason: str = "other",
        *,
        reported_loss: object = None,
        schedule_step: object = None,
        participants: Iterable[int] | None = None,
    ) -> None:
        """The optimizer did not step: `overflow`, `nonfinite`, `spike_guard`, `no_targets` or `other`."""
        self._close("skipped", reason, reported_loss, schedule_step, participants)

    def abandoned(self, *, participants: Iterable[int] | None = None) -> None:
        """The update was computed and never committed (a fault-tolerant step)."""
        self._close("abandoned", None, None, None, participants)

    def outcome_unknown(self, *, reported_loss: object = None, schedule_step: object = None) -> None:
        """The update is over, and this rank cannot know what the optimizer did; other ranks will say."""
        self._close(None, None, reported_loss, schedule_step, None)

    def leave(self) -> None:
        """Record the group as open: it has microbatches and no outcome so far. An outcome may still be given later."""
        if self._state != BEGUN:
            return
        self._state = LEFT
        self._seconds = monotonic() - self._began
        if self._sums[4] and self._recorder.spool is not None:
            self._open_seq = self._write(OPEN, 0, None, UNKNOWN, None)

    def __enter__(self) -> "Update":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.leave()
        except Exception as problem:  # an error of ours must not hide the trainer's own
            self._recorder.notices.say("leave", "an open group could not be recorded: %r", problem)

    def _count(self, name: str, value: object) -> int:
        if value is None:
            return UNKNOWN
        try:
            number = count(value)
        except (TypeError, ValueError) as error:
            self._recorder.notices.say(f"count {name}", "%s is recorded as unknown: %s", name, error)
            return UNKNOWN
        if isinstance(number, Held):
            if self._replay is None:
                self._replay = Replay(self._sums)
            self._replay.fresh[name] = number
            return UNKNOWN
        return UNKNOWN if number is None else number

    def _real(self, value: object) -> float | None:
        if value is None:
            return None
        try:
            number = real(value)
        except (TypeError, ValueError) as error:
            self._recorder.notices.say("loss", "a loss is recorded as unknown: %s", error)
            return None
        if isinstance(number, Held):
            if self._replay is None:
                self._replay = Replay(self._sums)
            self._replay.fresh["loss_sum"] = number
            return None
        return number

    def _pack_ranges(self, ranges: Iterable[Sequence[object]]) -> tuple[bytes, int, bool]:
        try:
            packed = [pack_range(item, STREAM_NAMES) for item in ranges]
        except Exception as error:  # struct.error and whatever an iterable of the trainer raises
            self._recorder.notices.say("ranges", "the ranges of update %s are recorded as unknown: %r", self._number, error)
            return b"", 0, False
        return b"".join(packed), len(packed), True

    def _unusual(
        self, input_slots: object, consumed_tokens: object, valid_targets: object, samples: object, loss_sum: object,
        ranges: Iterable[Sequence[object]] | None,
    ) -> tuple[Sums, bytes, int]:  # fmt: skip
        """The sums with a microbatch of which something is unknown, on a device, or no plain number."""
        slots, tokens = self._count("input_slots", input_slots), self._count("consumed_tokens", consumed_tokens)
        targets, drawn = self._count("valid_targets", valid_targets), self._count("samples", samples)
        loss = self._real(loss_sum)
        packed, range_count, ranges_known = NO_RANGES if ranges is None else self._pack_ranges(ranges)
        if self._replay is not None:
            self._replay.keep(slots, tokens, targets, drawn, loss, ranges_known)
        return add(self._sums, slots, tokens, targets, drawn, loss, ranges_known), packed, range_count

    def _begin_group(self) -> Scratch:
        """Room for the sums of the group where a kill does not reach them."""
        recorder = self._recorder
        assert recorder.scratches is not None
        self._group = recorder.opened(self)
        self._scratch = recorder.scratches.take()
        return self._scratch

    def _too_late(self) -> None:
        if self._state and self._recorder.spool is not None:
            self._recorder.notices.say("late microbatch", "a microbatch of update %s came after its outcome", self._number)

    def _close(
        self, outcome: str | None, reason: str | None, reported_loss: object, schedule_step: object, participants: Iterable[int] | None
    ) -> None:
        try:
            if self._recorder.spool is None:
                return
            if self._state == CLOSED:
                self._recorder.notices.say("second outcome", "update %s was given a second outcome; the first stands", self._number)
                return
            if reason is not None and reason not in REASONS:
                self._recorder.notices.say(f"reason {reason}", "%r is no reason that the ledger knows; recorded as 'other'", reason)
                reason = "other"
            if self._seconds is None:
                self._seconds = monotonic() - self._began
            shards = None if participants is None else [int(shard) for shard in participants]
            step = self._step(schedule_step)
            loss = self._reported(reported_loss)
            self._write(OUTCOMES.index(outcome), REASONS.index(reason), loss, step, shards)
            self._state = CLOSED
        except Exception as error:  # a record call never raises into the training loop
            self._recorder.notices.say("outcome", "the outcome of update %s could not be recorded: %r", self._number, error)

    def _step(self, value: object) -> int | Held:
        if value is None:
            return UNKNOWN
        try:
            number = count(value)
        except (TypeError, ValueError) as error:
            self._recorder.notices.say("schedule_step", "schedule_step is recorded as unknown: %s", error)
            return UNKNOWN
        return UNKNOWN if number is None else number

    def _reported(self, value: object) -> float | Held | None:
        if value is None or type(value) is float:
            return value
        try:
            return real(value)
        except (TypeError, ValueError) as error:
            self._recorder.notices.say("reported_loss", "reported_loss is recorded as unknown: %s", error)
            return None

    def _write(self, outcome: int, reason: int, reported: float | Held | None, step: int | Held, shards: list[int] | None) -> int:
        """Give the group to the spool, as one event; what is still on a device is unknown until it arrives."""
        spool = self._recorder.spool
        assert spool is not None
        replay = self._replay
        awaited = [value for value in (reported, step) if isinstance(value, Held)]
        waits = replay is not None or bool(awaited)
        body = self._pack(
            self._sums, None if isinstance(reported, Held) else reported, UNKNOWN if isinstance(step, Held) else step, shards
        )
        flags = PENDING if waits else 0
        scratch, self._scratch = self._scratch, None
        clear = scratch.area if scratch is not None else None
        seq = self._open_seq
        if seq is None or not spool.replace(seq, UPDATE_ROW, body, flags=flags, outcome=outcome, reason=reason, group=self._group):
            seq = spool.append(UPDATE_ROW, body, flags=flags, outcome=outcome, reason=reason, group=self._group, clear=clear)
        if waits:

            def packed() -> bytes:
                sums = self._sums if replay is None else replay.sums()
                return self._pack(sums, arrived_real(reported), arrived_count(step), shards)

            def ready() -> bool:
                return (replay is None or replay.ready()) and all(value.ready() for value in awaited)

            spool.await_values(seq, AwaitedBody(ready, packed), UPDATE_ROW, outcome, reason, self._group)
        if self._group:
            self._recorder.closed(self._group)
        if scratch is not None and self._recorder.scratches is not None:
            self._recorder.scratches.give_back(scratch)
        return seq

    def _pack(self, sums: Sums, reported: float | None, step: int, shards: list[int] | None) -> bytes:
        if not sums[4]:
            sums = SILENT
        slots, tokens, targets, samples, microbatches, scored, loss, means, known = sums
        if reported is not None:
            known |= REPORTED_KNOWN
        numbers = BODY.pack(
            self._number, self._retry, known, slots, tokens, targets, samples, microbatches, scored, step,
            loss, means, reported or 0.0, self._started_at, self._seconds or 0.0, self._range_count,
            NO_PARTICIPANTS if shards is None else len(shards),
        )  # fmt: skip
        return numbers + b"".join(self._ranges) + b"".join(SHARD.pack(shard) for shard in shards or ())
