"""Real file systems that are full or cannot be written: mounted for one process, where the machine lets it."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ledger_client.testing import RecordingServer

MOUNT = ["unshare", "--mount", "--map-root-user"]


@pytest.fixture(scope="module", autouse=True)
def mountable() -> None:
    """A namespace of one's own, in which file systems can be mounted."""
    try:
        subprocess.run([*MOUNT, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")


def mounted(options: str, program: str, spool: Path, url: str) -> "subprocess.CompletedProcess[str]":
    """Run a program with a small file system of its own at the spool directory."""
    spool.mkdir()
    script = f'mount -t tmpfs -o {options} tmpfs "$1" && exec "$0" -c "$3" "$1" "$2"'
    command = [*MOUNT, "sh", "-c", script, sys.executable, str(spool), url, textwrap.dedent(program)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_a_disk_that_fills_up_costs_what_it_has_no_room_for_and_no_signal(server: RecordingServer, tmp_path: Path) -> None:
    program = """
    import os, sys, ledger_client
    from ledger_client import cli
    run = ledger_client.start("demo", spool=sys.argv[1], attempt="a1", mode="offline")
    for number in range(100_000):
        run.counter("steps", number)
        if number % 100 == 0:
            with run.update(number) as update:
                for _ in range(3000 if number == 50_000 else 3):
                    update.microbatch(input_slots=1)
                update.applied()
    try:
        with open(os.path.join(sys.argv[1], "more"), "wb") as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        os.unlink(os.path.join(sys.argv[1], "more"))
    print(run.health()["dropped"], run.health()["recorded"])
    run.close()
    sys.exit(cli.main(["drain", sys.argv[1], "--url", sys.argv[2]]))
    """
    done = mounted("size=4m", program, tmp_path / "spool", server.url)
    assert done.returncode == 0, done.stderr
    dropped, recorded = map(int, done.stdout.split()[:2])
    assert 0 < dropped < recorded == 101_000
    gaps = server.ledger.rows("gaps")
    assert sum(gap["last"] - gap["first"] + 1 for gap in gaps) == dropped
    updates = server.ledger.rows("updates")
    # What lay in a scratch is told although its outcome found no room: as a group that is open, behind all else.
    scratch = [row["seq"] for row in updates if row["outcome"] == "open"]
    assert len(scratch) <= 2 and all(seq > recorded for seq in scratch)
    kept = [row["seq"] for row in (*server.ledger.rows("counters"), *updates)]
    missing = [seq for gap in gaps for seq in range(gap["first"], gap["last"] + 1)]
    assert sorted([*kept, *missing, *(gap["seq"] for gap in gaps)]) == list(range(1, recorded + len(gaps) + len(scratch) + 1))


@pytest.mark.parametrize("options", ["ro", "size=256k"])
def test_a_disk_that_takes_no_spool_at_all_leaves_the_memory(server: RecordingServer, tmp_path: Path, options: str) -> None:
    program = """
    import os, sys, ledger_client
    run = ledger_client.start("demo", spool=sys.argv[1], url=sys.argv[2], rank=0, world_size=1)
    for number in range(20):
        with run.update(number) as update:
            update.microbatch(input_slots=1)
            update.applied()
    assert run.close()
    assert not os.listdir(sys.argv[1]), os.listdir(sys.argv[1])
    """
    done = mounted(options, program, tmp_path / "spool", server.url)
    assert done.returncode == 0, done.stderr
    assert "no spool on disk" in done.stderr
    assert [row["update"] for row in server.ledger.rows("updates")] == list(range(20))
