"""One save of the training state, from its start to its acceptance or rejection."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from .notices import Notices
from .recorder import Recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .shapes import Row


def saved_state(checkpoint: object) -> Row | None:
    """What names a checkpoint elsewhere: a handle, a name, or an object with `checkpoint` and perhaps `attempt` and `update`.

    >>> saved_state("step-1000")
    {'checkpoint': 'step-1000'}

    Raises: TypeError where it names none.
    """
    if checkpoint is None:
        return None
    if isinstance(checkpoint, Checkpoint):
        return checkpoint.named()
    if isinstance(checkpoint, str):
        return {"checkpoint": checkpoint}
    if isinstance(checkpoint, Mapping) and isinstance(checkpoint.get("checkpoint"), str):
        return {name: checkpoint[name] for name in ("checkpoint", "attempt", "update") if checkpoint.get(name) is not None}
    raise TypeError(f"a checkpoint is a handle, a name, or a mapping with the key 'checkpoint', not {checkpoint!r}")


def declared_positions(positions: Mapping[str, object] | None) -> Row | None:
    """Data positions by stream, each `{"epoch", "position"}` or a pair of both."""
    if positions is None:
        return None
    return {
        stream: dict(place) if isinstance(place, Mapping) else dict(zip(("epoch", "position"), place, strict=True))  # type: ignore[call-overload]
        for stream, place in positions.items()
    }


class Checkpoint:
    """The handle of one save; see `Run.checkpoint`."""

    __slots__ = ("_began", "_recorder", "_update", "name")

    def __init__(self, recorder: Recorder, name: str, update: int | None) -> None:
        self.name = name
        self._recorder = recorder
        self._update = update
        self._began = time.monotonic()

    def accepted(self, *, uri: str | None = None) -> None:
        """The save is durable and has been validated."""
        self._state("accepted", uri)

    def rejected(self) -> None:
        """The save failed, or was found unusable; also after it had been accepted."""
        self._state("rejected", None)

    def __reduce__(self) -> tuple[Callable[[str, int | None, str], Checkpoint], tuple[str, int | None, str]]:
        """In another process the handle still names the save, and records nothing."""
        return named_only, (self.name, self._update, self._recorder.attempt)

    def named(self) -> Row:
        """What names it elsewhere: in `resumed_from`, in a later attempt's rejection."""
        row: Row = {"checkpoint": self.name, "attempt": self._recorder.attempt}
        if self._update is not None:
            row["update"] = self._update
        return row

    def _state(self, state: str, uri: str | None) -> None:
        try:
            seconds = time.monotonic() - self._began
            row: Row = {"checkpoint": self.name, "state": state, "update": self._update, "uri": uri, "seconds": seconds}
            recorder = self._recorder
            while recorder.spool is None and recorder.successor is not None:
                # The run was rolled back while the save went on: its end is told in the new attempt, and names the owner.
                recorder = recorder.successor
                row["attempt"] = self._recorder.attempt
            recorder.plain("checkpoints", row)
        except Exception as error:  # a record call never raises into the training loop
            self._recorder.notices.say("checkpoint", "the state of a checkpoint could not be recorded: %r", error)


def named_only(name: str, update: int | None, attempt: str) -> Checkpoint:
    """A handle that names a save of an attempt and records nothing."""
    return Checkpoint(Recorder(attempt, None, Notices()), name, update)
