"""A batch of events: one model a kind, made from the one description of the columns in `ledger.domain.events`.

A body is checked in one pass over the JSON text (no intermediate objects), and handed on as the plain lists it consists of.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model
from typing_extensions import TypedDict

from ledger.api.problems import pointer_of
from ledger.api.schemas.fields import Count, Float, KnownSeconds, Label, Moment, Name, Rank, Seconds, Slug, Words, Writer
from ledger.domain.errors import InvalidRequest
from ledger.domain.events import KINDS, Column, Kind, RankEvents

MOST_RANGES = 65536
MOST_STREAMS = 1024
MOST_SHARDS = 2**20
MOST_WRITERS = 2**17


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Position(TypedDict):
    """Where a stream stands."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    epoch: Count
    position: Count


Range = Annotated[tuple[Name, Count, Count, Count], Field(description="[stream, epoch, start, stop), half-open")]

TYPES: dict[str, Any] = {
    "count": Count,
    "float": Float,
    "text": Words,
    "moment": Moment,
    "ranges": Annotated[list[Range], Field(max_length=MOST_RANGES, fail_fast=True)],
    "positions": Annotated[dict[Name, Position], Field(max_length=MOST_STREAMS)],
    "shards": Annotated[list[Count], Field(max_length=MOST_SHARDS, fail_fast=True)],
}
NAMES = {"checkpoint", "stream", "name", "label"}
"""Free texts by which rows are found again: never empty. What else a text may not be costs its own event only, not the batch."""


def _value(column: Column) -> Any:
    if column.name == "seconds":
        return KnownSeconds if column.required else Seconds
    if column.choices:
        plain: Any = Literal[column.choices]
    elif column.name == "attempt":
        plain = Slug
    else:
        plain = Label if column.name in NAMES else TYPES[column.type]
    return plain if column.required or column.type == "float" else plain | None


def _field(column: Column) -> Any:
    meaning = column.meaning + (f", in {column.unit}" if column.unit else "")
    item = _value(column)
    values: Any = Annotated[list[item], Field(fail_fast=True)]  # type: ignore[valid-type]
    if column.required:
        return (values, Field(description=meaning))
    return (values | None, Field(default=None, description=meaning))


def _block(kind: Kind) -> type[BaseModel]:
    title = kind.name.capitalize()
    fields: dict[str, Any] = {column.name: _field(column) for column in kind.columns}
    return create_model(title, __base__=_Strict, __doc__=f"Columns of `{kind.name}`, all of one length; a row is one event.", **fields)


BLOCKS: dict[str, type[BaseModel]] = {name: _block(kind) for name, kind in KINDS.items()}

_RANK_FIELDS: dict[str, Any] = {
    "rank": (Rank, Field(description="the training process")),
    "writer": (Writer, Field(description="random for each process; `seq` grows by one within it")),
    **{name: (block | None, Field(default=None, description=f"events of the kind `{name}`")) for name, block in BLOCKS.items()},
}
RankBatch = create_model("RankBatch", __base__=_Strict, __doc__="What one writer of one rank posts.", **_RANK_FIELDS)

EXAMPLE = {
    "ranks": [
        {
            "rank": 0,
            "writer": "0",
            "updates": {
                "seq": [1, 2],
                "update": [1, 2],
                "outcome": ["applied", "skipped"],
                "reason": [None, "overflow"],
                "input_slots": [4096, 4096],
                "consumed_tokens": [4000, 3990],
                "valid_targets": [3998, 3988],
                "samples": [2, 2],
                "loss_sum": [9001.5, "NaN"],
                "ranges": [[["train", 0, 0, 2]], [["train", 0, 2, 4]]],
                "seconds": [0.9, 0.9],
            },
            "checkpoints": {"seq": [3, 4], "checkpoint": ["c1", "c1"], "state": ["started", "accepted"], "update": [1, None]},
        }
    ]
}


class EventBatch(_Strict):
    """Events of one or more ranks of an attempt, columnar."""

    model_config = ConfigDict(json_schema_extra=lambda schema: schema.update(examples=[EXAMPLE]))

    ranks: Annotated[list[RankBatch], Field(min_length=1, max_length=MOST_WRITERS, fail_fast=True)] = Field(  # type: ignore[valid-type]
        description="one entry a rank and writer"
    )


def rank_events(batch: EventBatch) -> list[RankEvents]:
    """The events of a checked batch as plain lists.

    Raises: InvalidRequest where columns of a block differ in length.
    """
    return [_events_of(entry, place) for place, entry in enumerate(batch.ranks)]


def _events_of(entry: BaseModel, place: int) -> RankEvents:
    blocks = {}
    for kind in KINDS:
        block = entry.__dict__[kind]
        if block is not None:
            columns = {name: values for name, values in block.__dict__.items() if values is not None}
            _check_lengths(columns, ("ranks", place, kind))
            if columns["seq"]:
                blocks[kind] = columns
    return RankEvents(entry.__dict__["rank"], entry.__dict__["writer"], blocks)


def _check_lengths(columns: dict[str, list[Any]], path: tuple[object, ...]) -> None:
    rows = len(columns["seq"])
    for name, values in columns.items():
        if len(values) != rows:
            raise InvalidRequest(
                f"columns of a block have equal length: seq has {rows}, {name} has {len(values)}", pointer=pointer_of((*path, name))
            )
