"""What a crash of the machine leaves: what the disk was made to take, and nothing that contradicts it."""

import errno
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import train

import ledger_client
from ledger_client import cli, syncing
from ledger_client.testing import RecordingServer

Start = Callable[..., ledger_client.Run]
GROUP_SECONDS = 0.05


class Disk:
    """What would be left if the machine crashed now: contents as of their last fdatasync, names as of the last fsync of their directory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.contents: dict[Path, bytes] = {}
        self.names: dict[Path, set[str]] = {}
        self.writes = self.groups = 0
        self.failure: OSError | None = None
        self._write, self._write_directory = os.fdatasync, os.fsync
        monkeypatch.setattr(os, "fdatasync", self.write)
        monkeypatch.setattr(os, "fsync", self.write_directory)
        group = syncing.Written.group

        def counted(written: syncing.Written) -> None:
            group(written)
            self.groups += 1

        monkeypatch.setattr(syncing.Written, "group", counted)

    def write(self, descriptor: int) -> None:
        """The real call, after which the content counts as written."""
        if self.failure is not None:
            raise self.failure
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        content = path.read_bytes()
        self._write(descriptor)
        self.contents[path] = content
        self.writes += 1

    def write_directory(self, descriptor: int) -> None:
        """The real call, after which the names count as written."""
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        names = set(os.listdir(path))
        self._write_directory(descriptor)
        self.names[path] = names

    def left(self, root: Path, place: Path) -> Path:
        """A copy of the spool directory as the disk has it."""
        for spool in self.names.get(root, ()):
            (place / spool).mkdir(parents=True)
            for name in self.names.get(root / spool, ()):
                if (content := self.contents.get(root / spool / name)) is not None:
                    (place / spool / name).write_bytes(content)
        return place


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk under the spools of a test."""
    return Disk(monkeypatch)


def a_group_later(disk: Disk) -> None:
    """Wait until a group that began after now is on the disk: the second of two always did."""
    seen, deadline = disk.groups, time.monotonic() + 60
    while disk.groups < seen + 2:
        assert time.monotonic() < deadline, "nothing is written"
        time.sleep(0.005)


def drained(spool: Path, server: RecordingServer) -> list[tuple[int, str]]:
    """The updates that arrive from what is left."""
    assert cli.main(["drain", str(spool), "--url", server.url]) == 0
    return [(row["update"], row["outcome"]) for row in server.ledger.rows("updates")]


def test_grouped_leaves_all_that_is_older_than_a_group(start: Start, server: RecordingServer, disk: Disk, tmp_path: Path) -> None:
    run = start(mode="offline", fsync="grouped", flush_seconds=GROUP_SECONDS, spool_bytes=1 << 18)
    # Three segments, of which the first two are full.
    train(run, *range(1, 900))
    update = run.update(900)
    update.microbatch(input_slots=8, ranges=[("train", 0, 0, 2)])
    a_group_later(disk)
    left = disk.left(tmp_path / "spool", tmp_path / "left")
    assert drained(left, server) == [*((number, "applied") for number in range(1, 900)), (900, "open")]
    assert server.ledger.rows("updates")[-1]["ranges"] == [["train", 0, 0, 2]]
    assert not server.ledger.rows("gaps")


def test_a_server_that_hangs_does_not_hold_the_disk_up(start: Start, server: RecordingServer, disk: Disk, tmp_path: Path) -> None:
    server.hanging.set()
    run = start(url=server.url, fsync="grouped", flush_seconds=GROUP_SECONDS)
    time.sleep(0.2)
    train(run, 1, 2)
    run.update(3).microbatch(input_slots=1)
    a_group_later(disk)
    left = disk.left(tmp_path / "spool", tmp_path / "left")
    server.hanging.clear()
    assert run.close()
    server.ledger.events.clear()
    assert drained(left, server) == [(1, "applied"), (2, "applied"), (3, "open")]


def test_what_a_closed_run_keeps_is_on_the_disk(start: Start, server: RecordingServer, disk: Disk, tmp_path: Path) -> None:
    run = start(mode="offline", fsync="grouped", flush_seconds=60)
    train(run, *range(1, 5))
    began = time.monotonic()
    run.close()
    assert time.monotonic() - began < 5
    assert drained(disk.left(tmp_path / "spool", tmp_path / "left"), server) == [(number, "applied") for number in range(1, 5)]


def test_a_run_that_records_nothing_leaves_the_disk_alone(start: Start, disk: Disk) -> None:
    run = start(mode="offline", fsync="grouped", flush_seconds=0.01)
    train(run, 1)
    time.sleep(0.3)
    seen = disk.writes
    time.sleep(0.2)
    assert seen and disk.writes == seen


def test_full_segments_are_written_once(start: Start, disk: Disk) -> None:
    run = start(mode="offline", fsync="grouped", flush_seconds=GROUP_SECONDS, spool_bytes=1 << 18)
    train(run, *range(1, 900))
    run.update(900).microbatch(input_slots=8)
    a_group_later(disk)
    disk.contents.clear()
    a_group_later(disk)
    assert sorted(path.name for path in disk.contents) == ["control", "group-1", "group-2", "segment-00000003", "streams"]


def test_never_leaves_it_to_the_kernel(start: Start, server: RecordingServer, disk: Disk) -> None:
    run = start(url=server.url, flush_seconds=GROUP_SECONDS)
    train(run, 1, 2, 3)
    assert run.flush() and run.close()
    assert disk.writes == 0 and not disk.names


def test_a_disk_that_fails_is_said_and_disturbs_nothing(
    start: Start, server: RecordingServer, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.failure = OSError(errno.EIO, "input/output error")
    run = start(url=server.url, fsync="grouped", flush_seconds=GROUP_SECONDS)
    train(run, 1)
    time.sleep(4 * GROUP_SECONDS)
    train(run, 2)
    assert run.close() and [row["update"] for row in server.ledger.rows("updates")] == [1, 2]
    assert sum("did not take the spool" in record.message for record in caplog.records) == 1


def test_the_policy_is_an_argument_or_a_variable(
    start: Start, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="fsync is one of never, grouped"):
        start(fsync="sometimes")
    monkeypatch.setenv("LEDGER_FSYNC", "sometimes")
    train(start(mode="offline"), 1)
    assert any("LEDGER_FSYNC is one of never, grouped" in record.message for record in caplog.records)
    monkeypatch.setenv("LEDGER_FSYNC", "grouped")
    run = start(mode="offline", attempt="a2", flush_seconds=GROUP_SECONDS)
    train(run, 1)
    run.close()
    assert disk.writes


def test_a_page_that_was_written_is_touched_before_the_next_record_needs_it(start: Start, disk: Disk) -> None:
    run = start(mode="offline", fsync="grouped", flush_seconds=GROUP_SECONDS)
    faults = []
    for first in range(0, 3000, 300):
        run.counter("steps", first)
        a_group_later(disk)
        time.sleep(2 * GROUP_SECONDS)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        # Some fifty pages; where nobody had touched them, the kernel lets this thread fault a dozen times.
        train(run, *range(first, first + 300))
        faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
    assert sorted(faults)[len(faults) // 2] < 8, faults
