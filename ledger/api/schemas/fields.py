"""The values that bodies are made of, each with its bounds."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, JsonValue
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from ledger.domain.columns import EPOCH, NONFINITE_NAMES
from ledger.domain.quantities import LARGEST_COUNT

SLUG_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
NUL_FREE_PATTERN = r"^[^\x00]*$"
PRINTABLE_PATTERN = r"^[^\x00-\x1f\x7f]*$"
LAST_DAY = datetime(9999, 12, 31, tzinfo=UTC)
"""From here on a moment with an offset may have no UTC."""
MOMENT_PATTERN = r"^\d{4}-\d\d-\d\d[Tt ]\d\d:"
DEEPEST_FREE_VALUE = 16
LONGEST_SECONDS = 1e9
"""Some thirty years: what is longer is no duration, and sums of durations stay finite."""

Count = Annotated[int, Field(strict=True, ge=0, le=LARGEST_COUNT)]
"""An exact count; no floats, booleans or strings."""
Size = Annotated[int, Field(strict=True, ge=1, le=2**20)]
"""The length of one axis of a layout."""
Rank = Annotated[int, Field(strict=True, ge=0, lt=2**20)]
"""The place of a training process in its attempt."""
Slug = Annotated[str, Field(pattern=SLUG_PATTERN, description="a name that can stand in a path")]
"""The name of a project, run or attempt."""
Name = Annotated[str, Field(min_length=1, max_length=256, pattern=PRINTABLE_PATTERN)]
"""A name that the trainer chose: a stream, a checkpoint, an evaluation."""
Writer = Annotated[str, Field(min_length=1, max_length=128, pattern=PRINTABLE_PATTERN)]
"""The name that a process gives itself, new each time it starts."""
Text = Annotated[str, Field(max_length=4096, pattern=PRINTABLE_PATTERN)]
"""Words for people."""
Words = Annotated[str, Field(max_length=4096, pattern=NUL_FREE_PATTERN)]
"""A text in an event; the ledger refuses what it cannot keep event by event."""
Label = Annotated[str, Field(min_length=1, max_length=4096, pattern=NUL_FREE_PATTERN)]
"""A text in an event that names something."""


@dataclass(frozen=True, slots=True)
class _Named:
    """NaN and the infinities by name beside numbers, because JSON has no literal for them.

    One error for the whole union keeps the pointer at the value; a plain union would add the name of each alternative.
    """

    nullable: bool = True
    least: float | None = None
    most: float | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        names = core_schema.literal_schema([*NONFINITE_NAMES])
        choices: list[CoreSchema] = [core_schema.float_schema(strict=True, allow_inf_nan=False, ge=self.least, le=self.most)]
        if self.nullable:
            choices.append(core_schema.none_schema())
        choices.append(core_schema.no_info_after_validator_function(NONFINITE_NAMES.__getitem__, names))
        bound = "" if self.least is None else f" of at least {self.least:g}"
        bound += "" if self.most is None else f" and at most {self.most:g}"
        return core_schema.union_schema(
            [*choices],
            mode="left_to_right",
            custom_error_type="float_or_name",
            custom_error_message=f"Input should be a finite number{bound}{', null' * self.nullable} or one of "
            + ", ".join(f'"{name}"' for name in NONFINITE_NAMES),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        bounds = {"minimum": self.least, "maximum": self.most}
        number = {"type": "number", **{name: bound for name, bound in bounds.items() if bound is not None}}
        named = {"type": "string", "enum": [*NONFINITE_NAMES]}
        return {"anyOf": [number, named, *([{"type": "null"}] if self.nullable else [])]}


Float = Annotated[float | None, _Named()]
"""A measured value, possibly null or not finite."""
Seconds = Annotated[float | None, _Named(least=0, most=LONGEST_SECONDS)]
"""A duration, possibly null."""
KnownSeconds = Annotated[float, _Named(nullable=False, least=0, most=LONGEST_SECONDS)]
"""A duration that is there."""


class _Moment:
    """Only text in the form of RFC 3339 with an offset, and nothing before 1970; a plain datetime takes numbers in strings too."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.str_schema(strict=True, max_length=64, pattern=MOMENT_PATTERN)
        moment = core_schema.datetime_schema(strict=False, tz_constraint="aware", ge=EPOCH, lt=LAST_DAY)
        return core_schema.chain_schema([text, moment])

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "format": "date-time"}


Moment = Annotated[datetime, _Moment]
"""A moment as RFC 3339 has it, with its offset from UTC."""


def _check_free(value: Any, depth: int = 0) -> Any:
    if depth > DEEPEST_FREE_VALUE:
        raise PydanticCustomError("too_deep", "Input should be nested less deeply")
    match value:
        case float() if not math.isfinite(value):
            raise PydanticCustomError("finite_number", "Numbers should be finite")
        case int() if abs(value) > LARGEST_COUNT:
            raise PydanticCustomError("too_large", "Integers should be at most 2^53")
        case str() if "\x00" in value:
            raise PydanticCustomError("null_character", "Text should hold no NUL character")
        case list():
            for item in value:
                _check_free(item, depth + 1)
        case dict():
            for key, item in value.items():
                _check_free(key, depth + 1)
                _check_free(item, depth + 1)
    return value


Free = Annotated[JsonValue, AfterValidator(_check_free)]
"""Any JSON value that both databases can keep exactly."""
