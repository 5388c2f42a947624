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


def resumed_state(checkpoint: object, project: str, run: str, forked_from: Row | None) -> Row | None:
    """What an attempt of this run declares to have resumed from; None from scratch, and where a fork begins at its own checkpoint.

    Raises: ValueError where it is the cursor of another run, and that run is not what this one is forked from.
    """
    state = saved_state(checkpoint)
    if state is None or not isinstance(checkpoint, Mapping):
        return state
    owner = (checkpoint.get("project", project), checkpoint.get("run", run))
    if owner == (project, run):
        return state
    if forked_from is not None and (owner, state["checkpoint"]) == (
        (forked_from["project"], forked_from["run"]), forked_from["checkpoint"]
    ):  # fmt: skip
        return None
    raise ValueError(
        f"checkpoint {state['checkpoint']!r} was saved by the run {owner[0]}/{owner[1]}, not by {project}/{run}: to go on from it under "
        "another name, give the same mapping as forked_from, on this and every later launch"
    )


def fork_source(forked_from: Mapping[str, object] | None) -> Row | None:
    """The checkpoint of another run that a run begins at, as the ledger takes it; a cursor will do.

    Raises: ValueError where the mapping leaves out which.
    """
    if not forked_from:
        return None
    if not all(isinstance(forked_from.get(name), str) for name in ("project", "run", "checkpoint")):
        raise ValueError(f"forked_from is a mapping with 'project', 'run' and 'checkpoint', not {dict(forked_from)!r}")
    return {name: forked_from[name] for name in ("project", "run", "checkpoint", "attempt") if forked_from.get(name) is not None}


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

    def __reduce__(self) -> tuple[Callable[..., Checkpoint], tuple[str, int | None, str, str, str]]:
        """In another process the handle still names the save, and records nothing."""
        recorder = self._recorder
        return named_only, (self.name, self._update, recorder.attempt, recorder.project, recorder.run)

    def cursor(self) -> Row:
        """What a trainer writes into the checkpoint itself, and gives to `start(resumed_from=)` when it has loaded it.

        A plain mapping of texts and one number: `project`, `run`, `attempt`, `checkpoint`, `update`. An attempt that is not recorded
        is not named.
        """
        recorder = self._recorder
        owner: Row = {"project": recorder.project, "run": recorder.run}
        if recorder.attempt:
            owner["attempt"] = recorder.attempt
        return owner | {name: value for name, value in self.named().items() if name != "attempt"}

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


def named_only(name: str, update: int | None, attempt: str, project: str, run: str) -> Checkpoint:
    """A handle that names a save of an attempt and records nothing."""
    return Checkpoint(Recorder(attempt, None, Notices(), project, run), name, update)
