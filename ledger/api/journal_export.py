"""The raw log of a run in the form that the reader accepts."""

import importlib
import importlib.util
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from pydantic_core import to_json

from ledger.api.refusals import NotAcceptable

NDJSON = "application/x-ndjson"
PARQUET = "application/vnd.apache.parquet"
LINES_A_CHUNK = 500
ALIASES = {
    "*/*": NDJSON,
    "application/*": NDJSON,
    "application/json": NDJSON,
    "application/ndjson": NDJSON,
    NDJSON: NDJSON,
    PARQUET: PARQUET,
}


def ndjson_chunks(entries: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    """One JSON object a line, many lines a chunk."""
    while lines := [to_json(entry, inf_nan_mode="strings") for entry in itertools.islice(entries, LINES_A_CHUNK)]:
        yield b"\n".join(lines) + b"\n"


Form = Callable[[Iterator[dict[str, Any]]], Iterator[bytes]]
FORMS: dict[str, Form] = {NDJSON: ndjson_chunks}
# pyarrow comes with the extra `parquet` and may not be there.
if importlib.util.find_spec("pyarrow"):
    FORMS[PARQUET] = importlib.import_module("ledger.api.parquet").parquet_chunks


def wanted_form(accept: str) -> str:
    """The first of the accepted media types that can be produced.

    Raises: NotAcceptable.
    """
    for item in accept.split(","):
        form = ALIASES.get(item.partition(";")[0].strip().lower(), "")
        if form in FORMS:
            return form
    missing = "" if PARQUET in FORMS else f"; {PARQUET} needs `training-ledger[parquet]` where the service runs"
    raise NotAcceptable(f"the log comes as {' or '.join(FORMS)}{missing}")


def primed(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same chunks with the first one made at once, so that an unknown run is refused before the answer has begun."""
    return itertools.chain([next(chunks, b"")], chunks)
