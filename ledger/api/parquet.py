"""The raw log as a Parquet file: one row an entry, one column a name; needs pyarrow."""

import itertools
from collections.abc import Iterator
from datetime import datetime
from tempfile import TemporaryFile
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic_core import to_json

from ledger.domain.events import KINDS

ROWS_A_GROUP = 20_000
CHUNK_BYTES = 2**18
RANGE = pa.struct([("stream", pa.string()), ("epoch", pa.int64()), ("start", pa.int64()), ("stop", pa.int64())])
ARROW_TYPES = {
    "count": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "moment": pa.timestamp("us", tz="UTC"),
    "ranges": pa.list_(RANGE),
    "positions": pa.string(),
    "shards": pa.list_(pa.int64()),
}
LEADING = {"offset": pa.int64(), "attempt": pa.string(), "rank": pa.int64(), "writer": pa.string(), "kind": pa.string()}
REST = "declared"
"""Column that holds, as JSON, what is neither leading nor a column of an event: registrations, endings, resolutions."""


def _schema() -> Any:
    columns = {column.name: ARROW_TYPES[column.type] for kind in KINDS.values() for column in kind.columns}
    return pa.schema([*(LEADING | {name: type_ for name, type_ in columns.items() if name not in LEADING}).items(), (REST, pa.string())])


SCHEMA = _schema()
MOMENTS = [field.name for field in SCHEMA if pa.types.is_timestamp(field.type)]
RANGES = [field.name for field in SCHEMA if field.type == ARROW_TYPES["ranges"]]


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    if entry.get("kind") not in KINDS:
        kept = {name: entry[name] for name in LEADING if name in entry}
        return kept | {REST: to_json({name: value for name, value in entry.items() if name not in LEADING}).decode()}
    row = dict(entry)
    if row.get("positions") is not None:
        row["positions"] = to_json(row["positions"]).decode()
    for name in RANGES:
        if row.get(name) is not None:
            row[name] = [dict(zip(("stream", "epoch", "start", "stop"), item, strict=True)) for item in row[name]]
    for name in MOMENTS:
        if row.get(name) is not None:
            row[name] = datetime.fromisoformat(row[name])
    return row


def parquet_chunks(entries: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    """A Parquet file of one row an entry, made on disk a row group at a time, then sent."""
    with TemporaryFile() as file:
        with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
            while rows := [_row(entry) for entry in itertools.islice(entries, ROWS_A_GROUP)]:
                writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
        file.seek(0)
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
