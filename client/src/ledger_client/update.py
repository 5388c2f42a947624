"""One attempted optimizer update on this rank: its microbatches lie in a scratch, and its outcome makes them one event.

A microbatch is one small cell, stored where a kill of the process does not reach it: a process that is killed leaves an open group.
Nothing is added up here; whoever reads the record does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count as counting
from time import monotonic

from .cells import CELL, CELL_BYTES, HEAD, IS_RANGE, KEY_MASK, KEY_STEP, LOSS_FIELD, LOSS_UNKNOWN, UNKNOWN, patched
from .deferred import AwaitedPayload, Held, arrived_count, arrived_real, count, real
from .records import (
    CLOSING,
    FILL,
    NO_PARTICIPANTS,
    OUTCOMES,
    PENDING,
    REASONS,
    REPORTED_KNOWN,
    SHARD,
    UNCOUNTED,
    UPDATE_ROW,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from types import TracebackType
    from typing import Any

    from .recorder import Recorder
    from .scratch import Scratch

OPEN, APPLIED, SKIPPED, ABANDONED, NOT_KNOWN = (OUTCOMES.index(outcome) for outcome in ("open", "applied", "skipped", "abandoned", None))
REASON_OTHER = REASONS.index("other")
CLOSED = CLOSING.pack
QUANTITIES = ("input_slots", "consumed_tokens", "valid_targets", "samples")
PACK: Any = CELL.pack_into
"""Takes what it is given: what it cannot take, a group without a place among it, is told apart by the exception."""


class Update:
    """The handle of one update; see `Run.update`.

    `number` is the trainer's number of it, `retry` which try at this number it is within the attempt, from 0.
    """

    _area: mmap.mmap | None
    _closed = False
    _uncounted = False
    _cells_kept = b""
    _held: list[tuple[int, int, Held]] | None = None
    _open_seq: int | None = None
    _seconds: float | None = None

    def __init__(self, recorder: Recorder, number: int, retry: int) -> None:
        assert recorder.scratches is not None
        self._recorder = recorder
        self.number = number
        self.retry = retry
        try:
            self._scratch: Scratch = recorder.scratches.free.pop()
        except IndexError:
            self._scratch = recorder.scratches.make()
        self._group = group = next(recorder.groups)
        key = group * KEY_STEP & KEY_MASK
        self._key = key
        self._plain_key = key ^ UNKNOWN
        self._cells = counting(CELL_BYTES, CELL_BYTES)
        self._area = area = self._scratch.area
        self._began = began = monotonic()
        self._started_at = started_at = began + recorder.wall_offset
        HEAD.pack_into(area, 0, key, group, retry, number, started_at, began, key ^ group ^ retry ^ number)
        recorder.open[group] = self
        if len(recorder.open) > 1:
            recorder.leave_oldest()

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
        # The one call that must cost nothing. Whatever is unusual about it fails here, or is not of the exact types.
        try:
            if ranges is None:
                drawn, key = UNKNOWN, self._plain_key
            else:
                drawn = self._range_cells_if_any(ranges)
                key = self._key ^ drawn
            if type(input_slots) is type(consumed_tokens) is type(valid_targets) is type(samples) is int and type(loss_sum) is float:
                PACK(
                    self._area, next(self._cells), input_slots, consumed_tokens, valid_targets, samples, drawn, loss_sum, monotonic(),
                    key ^ (input_slots ^ consumed_tokens ^ valid_targets ^ samples),
                )  # fmt: skip
                return
        except Exception:  # a negative count, no room, too late: told apart below; `suppress` costs more than the call
            pass
        self._unusual((input_slots, consumed_tokens, valid_targets, samples), loss_sum, drawn)

    def applied(self, *, reported_loss: object = None, schedule_step: object = None, participants: Iterable[int] | None = None) -> None:
        """The optimizer changed the weights. `participants`: the shards that took part, where only some did."""
        self._close(APPLIED, 0, reported_loss, schedule_step, participants)

    def skipped(
        self,
        reason: str = "other",
        *,
        reported_loss: object = None,
        schedule_step: object = None,
        participants: Iterable[int] | None = None,
    ) -> None:
        """The optimizer did not step: `overflow`, `nonfinite`, `spike_guard`, `no_targets` or `other`."""
        try:
            number = REASONS.index(reason)
        except ValueError:
            self._recorder.notices.say(f"reason {reason}", "%r is no reason that the ledger knows; recorded as 'other'", reason)
            number = REASON_OTHER
        self._close(SKIPPED, number, reported_loss, schedule_step, participants)

    def abandoned(self, *, participants: Iterable[int] | None = None) -> None:
        """The update was computed and never committed (a fault-tolerant step)."""
        self._close(ABANDONED, 0, None, None, participants)

    def outcome_unknown(self, *, reported_loss: object = None, schedule_step: object = None) -> None:
        """The update is over, and this rank cannot know what the optimizer did; other ranks will say."""
        self._close(NOT_KNOWN, 0, reported_loss, schedule_step, None)

    def leave(self) -> None:
        """Record the group as open: it has microbatches and no outcome so far. An outcome may still be given later."""
        area = self._area
        if area is None or self._closed:
            return
        try:
            self._seconds = monotonic() - self._began
            self._cells_kept = area[CELL_BYTES : next(self._cells)]
            spool = self._recorder.spool
            if self._cells_kept and spool is not None:
                payload = self._payload(OPEN, 0, None, UNKNOWN, None)
                self._open_seq = self._write(payload, area)
        except Exception as error:  # an error of ours must not hide the trainer's own
            self._recorder.notices.say("leave", "an open group could not be recorded: %r", error)
        self._give_back()

    def forget(self) -> None:
        """Record nothing of it any more, here: in a forked child the group is the parent's."""
        self._area = None
        self._closed = True

    def __enter__(self) -> Update:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._area is not None:
            self.leave()

    def _close(
        self, outcome: int, reason: int, reported_loss: object, schedule_step: object, participants: Iterable[int] | None
    ) -> None:
        recorder = self._recorder
        try:
            area, spool = self._area, recorder.spool
            if area is None or spool is None:
                self._close_late(outcome, reason, reported_loss, schedule_step, participants)
                return
            self._seconds = monotonic() - self._began
            cells = area[CELL_BYTES : next(self._cells)]
            if (
                participants is None
                and schedule_step is None
                and self._held is None
                and not self._uncounted
                and (reported_loss is None or type(reported_loss) is float)
            ):
                flags, loss = (0, 0.0) if reported_loss is None else (REPORTED_KNOWN, reported_loss)
                payload = CLOSED(
                    UPDATE_ROW, flags, outcome, reason, self._group, self.number, self.retry, NO_PARTICIPANTS, UNKNOWN, loss,
                    self._started_at, self._seconds,
                )  # fmt: skip
                spool.append(payload + cells, area)
            else:
                self._cells_kept = cells
                self._write(self._said(outcome, reason, reported_loss, schedule_step, participants), area)
            self._closed = True
            self._give_back()
        except Exception as error:  # a record call never raises into the training loop
            recorder.notices.say("outcome", "the outcome of update %s could not be recorded: %r", self.number, error)

    def _close_late(
        self, outcome: int, reason: int, reported_loss: object, schedule_step: object, participants: Iterable[int] | None
    ) -> None:
        """An outcome for a group that had been left, or that has one."""
        recorder = self._recorder
        if recorder.spool is None:
            return
        if self._closed:
            recorder.notices.say("second outcome", "update %s was given a second outcome; the first stands", self.number)
            return
        self._write(self._said(outcome, reason, reported_loss, schedule_step, participants), None)
        self._closed = True

    def _said(
        self, outcome: int, reason: int, reported_loss: object, schedule_step: object, participants: Iterable[int] | None
    ) -> bytes | AwaitedPayload:
        shards = None if participants is None else [int(shard) for shard in participants]
        loss = None if reported_loss is None else self._real("reported_loss", reported_loss)
        step = UNKNOWN if schedule_step is None else self._count("schedule_step", schedule_step)
        return self._payload(outcome, reason, loss, step, shards)

    def _give_back(self) -> None:
        """Let the scratch go: the group is in the spool, or had nothing in it."""
        self._area = None
        self._recorder.open.pop(self._group, None)
        scratch = self._scratch
        if scratch.spilled is not None:
            scratch.unspill()
        scratch.home.append(scratch)

    def _write(self, payload: bytes | AwaitedPayload, area: mmap.mmap | None) -> int:
        """Give the group to the spool, as one event; what is still on a device is unknown until it arrives."""
        spool = self._recorder.spool
        assert spool is not None
        awaited = None
        if isinstance(payload, AwaitedPayload):
            awaited, payload = payload, payload.unfilled
        seq = self._open_seq
        if seq is None or not spool.replace(seq, payload):
            seq = spool.append(payload, area)
        if awaited is not None:
            spool.await_values(seq, awaited)
        return seq

    def _payload(
        self, outcome: int, reason: int, loss: float | Held | None, step: int | Held, shards: list[int] | None
    ) -> bytes | AwaitedPayload:
        cells = self._cells_kept
        flags = UNCOUNTED if self._uncounted else 0
        if self._held is None and not isinstance(loss, Held) and not isinstance(step, Held):
            return self._packed(flags, outcome, reason, loss, step, cells, shards)
        held, notices = self._held or [], self._recorder.notices
        values = [value for _, _, value in held] + [value for value in (loss, step) if isinstance(value, Held)]

        def filled() -> bytes:
            arrived = bytearray(cells)
            for offset, field, value in held:
                number = (arrived_real if field == LOSS_FIELD else arrived_count)(value, notices)
                if number is not None:
                    patched(arrived, offset - CELL_BYTES, field, number)
            said = arrived_real(loss, notices) if isinstance(loss, Held) else loss
            at = arrived_count(step, notices) if isinstance(step, Held) else step
            return self._packed(flags | FILL, outcome, reason, said, UNKNOWN if at is None else at, bytes(arrived), shards)

        said, at = None if isinstance(loss, Held) else loss, UNKNOWN if isinstance(step, Held) else step
        return AwaitedPayload(values, filled, self._packed(flags | PENDING, outcome, reason, said, at, cells, shards))

    def _packed(
        self, flags: int, outcome: int, reason: int, loss: float | None, step: int, cells: bytes, shards: list[int] | None
    ) -> bytes:
        if loss is None:
            loss = 0.0
        else:
            flags |= REPORTED_KNOWN
        closing = CLOSING.pack(
            UPDATE_ROW, flags, outcome, reason, self._group, self.number, self.retry, NO_PARTICIPANTS if shards is None else len(shards),
            step, loss, self._started_at, self._seconds or 0.0,
        )  # fmt: skip
        return closing + cells + b"".join(SHARD.pack(shard) for shard in shards or ())

    def _range_cells(self, ranges: Iterable[Sequence[object]]) -> int:
        """Store the ranges of a microbatch before its own cell; gives their number. Raises: any error where one is no range."""
        spool = self._recorder.spool
        if spool is None:
            return UNKNOWN
        numbers = spool.stream_numbers
        key = self._key | IS_RANGE
        size = self._scratch.size - CELL_BYTES
        found = 0
        for stream, epoch, start, stop in ranges:
            number = numbers.get(stream)  # type: ignore[call-overload]
            if number is None:
                number = spool.stream_number(stream)  # type: ignore[arg-type]
            if start > stop:  # type: ignore[operator]
                raise ValueError(f"a range starts at or before it stops: {(stream, epoch, start, stop)!r}")
            offset = next(self._cells)
            if offset > size and not self._has_room(offset):
                raise ValueError("the group has no room for more ranges")
            PACK(self._area, offset, number, epoch, start, stop, 0, 0.0, 0.0, key ^ (number ^ epoch ^ start ^ stop))
            found += 1
        return found

    def _has_room(self, offset: int) -> bool:
        """Whether a cell fits in the scratch, which grows for a long group."""
        scratch = self._scratch
        if offset + CELL_BYTES > scratch.size:
            if not scratch.grow(offset + CELL_BYTES):
                if not self._uncounted:
                    self._recorder.notices.say("scratch", "a group has outgrown its room: its counts are recorded as unknown")
                self._uncounted = True
                return False
            self._area = scratch.area
        return True

    def _unusual(self, given: tuple[object, ...], loss_sum: object, drawn: int) -> None:
        """A microbatch of which something is unknown, on a device, or no plain number; or one that has no room yet."""
        recorder = self._recorder
        try:
            if self._area is None:
                if recorder.spool is not None:
                    recorder.notices.say("late microbatch", "a microbatch of update %s came after its outcome", self.number)
                return
            counts = [UNKNOWN if value is None else self._count(name, value) for name, value in zip(QUANTITIES, given, strict=True)]
            loss = None if loss_sum is None else self._real("loss_sum", loss_sum)
            packed = [UNKNOWN if isinstance(value, Held) else value for value in counts]
            known = loss if isinstance(loss, float) else None
            offset = next(self._cells)
            if not self._has_room(offset):
                return
            held = [(offset, field, value) for field, value in enumerate([*counts, drawn, loss]) if isinstance(value, Held)]
            if held:
                self._held = [*(self._held or ()), *held]
            PACK(
                self._area, offset, *packed, drawn, known or 0.0, monotonic(),
                (self._key | LOSS_UNKNOWN if known is None else self._key) ^ packed[0] ^ packed[1] ^ packed[2] ^ packed[3] ^ drawn,
            )  # fmt: skip
        except Exception as error:  # a record call never raises into the training loop
            recorder.notices.say("microbatch", "a microbatch could not be recorded: %r", error)

    def _range_cells_if_any(self, ranges: Iterable[Sequence[object]]) -> int:
        if self._area is None:
            return UNKNOWN
        try:
            return self._range_cells(ranges)
        except Exception as error:  # struct.error and whatever an iterable of the trainer raises
            self._recorder.notices.say("ranges", "the ranges of update %s are recorded as unknown: %r", self.number, error)
            return UNKNOWN

    def _count(self, name: str, value: object) -> int | Held:
        try:
            number = count(value, name)
        except Exception as error:  # TypeError, ValueError, and whatever the value's own library raises
            self._recorder.notices.say(f"count {name}", "%s is recorded as unknown: %s", name, error)
            return UNKNOWN
        return UNKNOWN if number is None else number

    def _real(self, name: str, value: object) -> float | Held | None:
        try:
            return real(value, name)
        except Exception as error:  # TypeError, ValueError, and whatever the value's own library raises
            self._recorder.notices.say(name, "%s is recorded as unknown: %s", name, error)
            return None


class Unrecorded(Update):
    """An update of a run that records nothing: disabled, closed, or in a forked child."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.retry = 0
        self._area = None

    def microbatch(self, **given: object) -> None:
        """Nothing."""

    def leave(self) -> None:
        """Nothing."""

    def skipped(self, reason: str = "other", **said: object) -> None:
        """Nothing."""

    def _close(
        self, outcome: int, reason: int, reported_loss: object, schedule_step: object, participants: Iterable[int] | None
    ) -> None:
        """Nothing."""
