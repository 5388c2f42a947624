"""Spools that are damaged, old, unwritable or shared: what can be read is sent, and what cannot is told exactly."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import train

import ledger_client
from ledger_client import cli
from ledger_client.delivery import DEAD_LETTERS
from ledger_client.records import FRAME
from ledger_client.segment import HEADER_BYTES
from ledger_client.storage import Directory
from ledger_client.testing import RecordingServer, answer_lost, passed, refused, too_large

Start = Callable[..., ledger_client.Run]


def drain(spool: Path, server: RecordingServer) -> int:
    """Send what is left."""
    return cli.main(["drain", str(spool), "--url", server.url])


def places(segment: Path) -> list[tuple[int, int]]:
    """Where the records of a segment begin and end."""
    content = segment.read_bytes()
    found, offset = [], HEADER_BYTES
    while offset + FRAME.size <= len(content) and (length := FRAME.unpack_from(content, offset)[0]) != 0:
        found.append((offset, offset + FRAME.size + length))
        offset += FRAME.size + length
    return found


def spoil(path: Path, offset: int) -> None:
    """Change one byte."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


def test_a_damaged_record_is_one_loss_and_is_told(start: Start, server: RecordingServer, tmp_path: Path) -> None:
    run = start(mode="offline")
    train(run, 1, 2, 3, 4)
    run.close()
    (segment,) = (tmp_path / "spool").glob("*/segment-00000001")
    spoil(segment, places(segment)[1][1] - 5)
    assert drain(tmp_path / "spool", server) == 0
    assert [row["update"] for row in server.ledger.rows("updates")] == [1, 3, 4]
    assert server.ledger.rows("gaps") == [{"seq": 5, "first": 2, "last": 2, "reason": "spool_damaged"}]


def test_a_segment_that_cannot_be_read_from_the_middle_on_loses_what_was_in_it(
    start: Start, server: RecordingServer, tmp_path: Path
) -> None:
    run = start(mode="offline", spool_bytes=1 << 20)
    for number in range(8000):
        run.counter("steps", number)
    assert run.health()["dropped"] == 0
    run.close()
    first = min((tmp_path / "spool").glob("*/segment-*"))
    records = places(first)
    # The length itself is destroyed, so nothing behind it can be found.
    with first.open("r+b") as file:
        file.seek(records[10][0])
        file.write(b"\xff\xff\xff\x7f")
    assert drain(tmp_path / "spool", server) == 0
    (gap,) = server.ledger.rows("gaps")
    assert (gap["first"], gap["last"], gap["reason"]) == (11, len(records), "spool_damaged")
    assert [row["seq"] for row in server.ledger.rows("counters")] == [*range(1, 11), *range(len(records) + 1, 8001)]


def test_a_cell_of_an_open_group_that_is_damaged_is_left_out(start: Start, server: RecordingServer, tmp_path: Path) -> None:
    run = start(mode="offline")
    update = run.update(1)
    for _ in range(3):
        update.microbatch(input_slots=4, valid_targets=2)
    (tmp_path / "copied").mkdir()
    storage = run._recorder.spool.storage  # type: ignore[union-attr]
    for name in storage.names():
        (tmp_path / "copied" / name).write_bytes(Path(storage.path, name).read_bytes())  # type: ignore[attr-defined]
    scratch = tmp_path / "copied" / "group-2"
    spoil(scratch, 64 * 2 + 1)  # the second microbatch: the head lies before the first
    assert drain(tmp_path / "copied", server) == 0
    (row,) = server.ledger.rows("updates")
    assert (row["outcome"], row["microbatches"], row["input_slots"]) == ("open", 2, 8)


@pytest.mark.parametrize("told", ["by its declaration", "by its header"])
def test_a_spool_of_another_version_is_said_and_left_alone(
    start: Start, server: RecordingServer, tmp_path: Path, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(mode="offline")
    train(run, 1)
    run.close()
    (spool,) = (tmp_path / "spool").iterdir()
    if told == "by its declaration":
        declaration = json.loads((spool / "declaration.json").read_text())
        del declaration["format"]
        (spool / "declaration.json").write_text(json.dumps(declaration))
    else:
        with (spool / "segment-00000001").open("r+b") as file:
            file.seek(7)
            file.write(b"\x01")
    before = {path.name: path.read_bytes() for path in spool.iterdir()}
    assert cli.main(["inspect", str(tmp_path / "spool")]) == 1
    assert drain(tmp_path / "spool", server) == 1
    assert capsys.readouterr().err.count("version 1 of the format") == 2
    assert {path.name: path.read_bytes() for path in spool.iterdir()} == before and not server.ledger.events
    # A process that finds it says so too, and records.
    later = start(url=server.url, attempt="a2")
    train(later, 1)
    assert later.close() and spool.exists()


def test_a_directory_that_cannot_be_written_is_said(
    start: Start, server: RecordingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read_only(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(os, "makedirs", read_only)
        run = start(url=server.url)
    train(run, 1)
    assert run.close() and [row["update"] for row in server.ledger.rows("updates")] == [1]
    assert [record.message for record in caplog.records if "no spool on disk" in record.message]


def test_a_missing_directory_is_made(start: Start, tmp_path: Path) -> None:
    run = start(mode="offline", spool=tmp_path / "not" / "there" / "yet")
    train(run, 1)
    assert len(list((tmp_path / "not" / "there" / "yet").iterdir())) == 1


def test_two_living_processes_share_a_directory(start: Start, server: RecordingServer, tmp_path: Path) -> None:
    runs = [start(url=server.url, rank=rank, world_size=2) for rank in (0, 1)]
    for number in range(1, 30):
        for run in runs:
            train(run, number)
    assert len(list((tmp_path / "spool").iterdir())) == 2
    assert all(run.close() for run in runs)
    for rank in (0, 1):
        assert [row["update"] for row in server.ledger.rows("updates", rank=rank)] == list(range(1, 30))
    assert not list((tmp_path / "spool").iterdir())


def test_a_dead_letter_that_finds_no_room_is_counted_and_blocks_nothing(
    start: Start, server: RecordingServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Directory, name: str, line: str) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(Directory, "append_line", full)
    server.ledger.refused = lambda kind, row: row.get("update") == 2
    run = start(url=server.url)
    train(run, 1, 2, 3)
    assert run.flush()
    assert run.health()["dead_letters"] == 1 and [row["update"] for row in server.ledger.rows("updates")] == [1, 3]
    assert any("no room to keep it" in record.message for record in caplog.records)


def test_dead_letters_are_bounded(start: Start, server: RecordingServer, tmp_path: Path) -> None:
    server.ledger.refused = lambda kind, row: True
    run = start(url=server.url, spool_bytes=1 << 16)
    for number in range(2000):
        run.counter("steps", number)
        if not number % 100:
            assert run.flush()
    assert run.flush()
    (letters,) = (tmp_path / "spool").glob(f"*/{DEAD_LETTERS}")
    assert run.health()["dead_letters"] + run.health()["dropped"] >= 2000
    assert letters.stat().st_size < (1 << 16) + 1024


def test_the_faults_of_the_testing_server(start: Start, server: RecordingServer) -> None:
    server.ledger.faults = [passed, refused(500), passed, passed, refused(429, 0), answer_lost, refused(503, 0), too_large]
    run = start(url=server.url)
    train(run, *range(1, 20))
    assert run.close()
    assert [row["update"] for row in server.ledger.rows("updates")] == list(range(1, 20))
    assert server.ledger.duplicates and not server.ledger.conflicts
