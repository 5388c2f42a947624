"""A training loop that the user writes, on a library that says what became of its updates and saves: what such recordings share.

| recorded | when |
|---|---|
| attempt | before the first update or save; what has been loaded until then is what it resumes from |
| microbatch | when the loop says so, or what it is recorded by |
| open | an update that is under way when the recording ends, or when another state is loaded |
| rollback | a state is loaded after the first update or save |
"""

from __future__ import annotations

import torch.distributed

import ledger_client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Any, Self

    from ledger_client.checkpoint import Checkpoint
    from ledger_client.run import Run
    from ledger_client.update import Update


class Loop:
    """The recording of one loop; as a block it ends with it. `place` and `options` go to `ledger_client.start`, the options first."""

    def __init__(self, run: str, place: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self.positions: Mapping[str, object] | None = None
        """Where each data stream stands, told with every checkpoint: `{stream: {"epoch": 0, "position": 4}}`."""
        self._name = run
        self._options = {**place, **options}
        self._started: Run | None = None
        self._source: Mapping[str, object] | None = None
        self._update: Update | None = None
        self._undo: list[Callable[[], None]] = []

    @property
    def run(self) -> Run:
        """The run, which is started when it is first asked for."""
        if self._started is None:
            self._started = ledger_client.start(self._name, resumed_from=self._source, **self._options)
        return self._started

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
        """Add one forward/backward pass of this rank to the update under way; as `Update.microbatch`."""
        if self._update is None:
            self._update = self._begun()
        self._update.microbatch(
            input_slots=input_slots, consumed_tokens=consumed_tokens, valid_targets=valid_targets, samples=samples, loss_sum=loss_sum,
            ranges=ranges,
        )  # fmt: skip

    def skipped(self, reason: str = "other") -> None:
        """The loop withholds the step of the update under way, for a reason of its own; as `Update.skipped`."""
        if self._update is not None:
            self._update.skipped(reason)
            self.leave()

    def close(self, *, ended: str | None = None) -> bool:
        """Leave the trainer as it was and close the run; as `Run.close`."""
        for undo in self._undo:
            undo()
        self._undo = []
        self.leave()
        return self._started is not None and self._started.close(ended=ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.leave()
        if self._started is not None:
            self._started.__exit__(kind, error, trace)
        self.close()

    def _begun(self) -> Update:
        """The next update, by the trainer's own number."""
        raise NotImplementedError

    def leave(self) -> None:
        """Nothing more belongs to the update under way; without an outcome it stays open."""
        if self._update is not None:
            self._update.leave()
            self._update = None

    def save_begins(self, name: str, update: int, uri: str | None) -> Checkpoint:
        return self.run.checkpoint(name, update=update, uri=uri, positions=self.positions)

    def has_loaded(self, source: Mapping[str, object]) -> None:
        """A state has been loaded: where the attempt begins, or goes back to."""
        self.leave()
        self._source = source
        if self._started is not None:
            self._started.rolled_back_to(source)


def gathered_layout(dp_rank: int, part: int = 0, parts: int = 1) -> ledger_client.Layout:
    """The layout of a job whose ranks know their own place only: all of them must ask.

    `dp_rank`: which samples this rank holds; `part`: which of the `parts` of them, where their sequences are split over ranks.
    """
    places: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(places, (dp_rank * parts + part, dp_rank))
    return ledger_client.Layout(shards=[shard for shard, _ in places], dp_ranks=[sample for _, sample in places])


def replaced(owner: Any, name: str, outer: Callable[..., Any]) -> Callable[[], None]:
    """Let a function of an object or a module be called through `outer`, which is given it first; gives what takes it away again."""
    inner, own = getattr(owner, name), name in vars(owner)
    setattr(owner, name, lambda *arguments, **options: outer(inner, *arguments, **options))
    return lambda: setattr(owner, name, inner) if own else delattr(owner, name)
