"""What is declared once: the run, the attempt with its layout of ranks, and the conventions behind the numbers."""

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Literal

from .records import Row

SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def slug(what: str, name: object) -> str:
    """The name itself, if it can stand in an address. Raises: ValueError."""
    if not isinstance(name, str) or not SLUG.fullmatch(name):
        raise ValueError(f"{what} is named by up to 128 letters, digits, '.', '_' and '-', beginning with a letter or digit, not {name!r}")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which ranks hold the same part of an update's examples.

    Either the sizes of the parallel axes, of which the first in `order` varies fastest over the ranks, or both lists outright:
    the shard and the data-parallel rank of every rank.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    order: str = "tp-cp-dp-pp"
    cp_counts: Literal["shard", "whole"] = "shard"
    shards: tuple[int, ...] | list[int] | None = None
    dp_ranks: tuple[int, ...] | list[int] | None = None

    def __post_init__(self) -> None:
        if (self.shards is None) != (self.dp_ranks is None) or len(self.shards or ()) != len(self.dp_ranks or ()):
            raise ValueError("shards and dp_ranks are given together, one entry a rank")

    @property
    def world_size(self) -> int:
        """How many ranks the layout has."""
        return len(self.shards) if self.shards is not None else self.dp * self.tp * self.pp * self.cp

    def declared(self) -> Row:
        """The layout as the ledger takes it."""
        if self.shards is not None and self.dp_ranks is not None:
            return {"shards": list(self.shards), "dp_ranks": list(self.dp_ranks)}
        return {"dp": self.dp, "tp": self.tp, "pp": self.pp, "cp": self.cp, "order": self.order, "cp_counts": self.cp_counts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """What the numbers of this attempt mean; what is left out is not declared."""

    objective: str | None = None
    gradient_reducer: str | None = None
    accumulation_divides: str | bool | None = None
    remainder_policy: Literal["renormalize", "carry", "drop"] | None = None
    schedule_clock: Literal["applied_updates", "attempted_updates", "valid_targets", "consumed_samples"] | None = None
    optimizer: object = None
    precision: str | None = None
    sequence_length: int | None = None
    target_rule: str | None = None
    sample_meaning: str | None = None
    accelerators: int | None = None
    data: dict[str, object] | None = None
    extra: dict[str, object] = field(default_factory=dict)

    def declared(self) -> Row:
        """The conventions as the ledger takes them."""
        return {name: value for name, value in asdict(self).items() if value is not None and value != {}}


@dataclass(frozen=True, slots=True)
class Declaration:
    """All that the sender must know before the first event of a spool, kept in the spool beside the events."""

    project: str
    run: str
    attempt: str
    rank: int
    writer: str
    run_body: Row
    attempt_body: Row
    url: str | None = None

    @property
    def run_path(self) -> str:
        """The run's address."""
        return f"/v1/projects/{self.project}/runs/{self.run}"

    @property
    def attempt_path(self) -> str:
        """The attempt's address."""
        return f"{self.run_path}/attempts/{self.attempt}"

    def to_json(self) -> str:
        """The declaration as a text. Raises: TypeError where a convention cannot be written as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Declaration":
        """The declaration that a text holds. Raises: ValueError where it holds none."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise ValueError(f"not a declaration: {error}") from error
