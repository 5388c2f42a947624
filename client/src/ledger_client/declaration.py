"""What is declared once: the run, the attempt with its layout of ranks, and the conventions behind the numbers."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal

    from .shapes import Row

SLUG_LENGTH = 128
SLUG_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
SPOOL_FORMAT = 2


def slug(what: str, name: object) -> str:
    """The name itself, if it can stand in an address. Raises: ValueError.

    >>> slug("a run", "llama-8b")
    'llama-8b'
    """
    if not isinstance(name, str) or not 0 < len(name) <= SLUG_LENGTH or not SLUG_LETTERS.issuperset(name) or name[0] in "._-":
        raise ValueError(f"{what} is named by up to 128 letters, digits, '.', '_' and '-', beginning with a letter or digit, not {name!r}")
    return name


class Described:
    """A value that is equal to another one of its kind with the same content, and says what is in it."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items() if value is not None)})"

    __hash__ = None  # type: ignore[assignment]


class Layout(Described):
    """Which ranks hold the same part of an update's examples.

    Either the sizes of the parallel axes, of which the first in `order` varies fastest over the ranks, or both lists outright:
    the shard and the data-parallel rank of every rank.
    """

    def __init__(
        self,
        *,
        dp: int = 1,
        tp: int = 1,
        pp: int = 1,
        cp: int = 1,
        order: str = "tp-cp-dp-pp",
        cp_counts: Literal["shard", "whole"] = "shard",
        shards: Sequence[int] | None = None,
        dp_ranks: Sequence[int] | None = None,
    ) -> None:
        if (shards is None) != (dp_ranks is None) or len(shards or ()) != len(dp_ranks or ()):
            raise ValueError("shards and dp_ranks are given together, one entry a rank")
        self.dp = dp
        self.tp = tp
        self.pp = pp
        self.cp = cp
        self.order = order
        self.cp_counts = cp_counts
        self.shards = shards
        self.dp_ranks = dp_ranks

    @property
    def world_size(self) -> int:
        """How many ranks the layout has."""
        return len(self.shards) if self.shards is not None else self.dp * self.tp * self.pp * self.cp

    def declared(self) -> Row:
        """The layout as the ledger takes it."""
        if self.shards is not None and self.dp_ranks is not None:
            return {"shards": list(self.shards), "dp_ranks": list(self.dp_ranks)}
        return {"dp": self.dp, "tp": self.tp, "pp": self.pp, "cp": self.cp, "order": self.order, "cp_counts": self.cp_counts}


class Conventions(Described):
    """What the numbers of this attempt mean; what is left out is not declared."""

    def __init__(
        self,
        *,
        objective: str | None = None,
        gradient_reducer: str | None = None,
        accumulation_divides: str | bool | None = None,
        remainder_policy: Literal["renormalize", "carry", "drop"] | None = None,
        schedule_clock: Literal["applied_updates", "attempted_updates", "valid_targets", "consumed_samples"] | None = None,
        optimizer: object = None,
        precision: str | None = None,
        sequence_length: int | None = None,
        target_rule: str | None = None,
        sample_meaning: str | None = None,
        accelerators: int | None = None,
        data: Mapping[str, object] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        self.objective = objective
        self.gradient_reducer = gradient_reducer
        self.accumulation_divides = accumulation_divides
        self.remainder_policy = remainder_policy
        self.schedule_clock = schedule_clock
        self.optimizer = optimizer
        self.precision = precision
        self.sequence_length = sequence_length
        self.target_rule = target_rule
        self.sample_meaning = sample_meaning
        self.accelerators = accelerators
        self.data = data
        self.extra = extra

    def declared(self) -> Row:
        """The conventions as the ledger takes them."""
        return {name: value for name, value in vars(self).items() if value is not None and value != {}}


class Declaration(Described):
    """All that the sender must know before the first event of a spool, kept in the spool beside the events."""

    def __init__(
        self,
        *,
        project: str,
        run: str,
        attempt: str,
        rank: int,
        writer: str,
        run_body: Row,
        attempt_body: Row,
        url: str | None = None,
        format: int = 1,
    ) -> None:
        self.project = project
        self.run = run
        self.attempt = attempt
        self.rank = rank
        self.writer = writer
        self.run_body = run_body
        self.attempt_body = attempt_body
        self.url = url
        self.format = format

    @property
    def run_path(self) -> str:
        """The run's address."""
        return f"/v1/projects/{self.project}/runs/{self.run}"

    @property
    def attempt_path(self) -> str:
        """The attempt's address."""
        return f"{self.run_path}/attempts/{self.attempt}"

    def to_json(self) -> str:
        """The declaration as a text. Raises: TypeError, ValueError where a convention cannot be written as JSON."""
        return json.dumps(vars(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Declaration:
        """The declaration that a text holds. Raises: ValueError where it holds none, or one for another version of the spool."""
        try:
            said: dict[str, Any] = json.loads(text)
            declaration = cls(**said)
        except (TypeError, ValueError) as error:
            raise ValueError(f"not a declaration: {error}") from error
        if declaration.format != SPOOL_FORMAT:
            raise ValueError(
                f"the spool is written in version {declaration.format} of the format, and this client reads version {SPOOL_FORMAT}"
            )
        return declaration
