"""What recording costs a training thread, beside other ways of writing the same six numbers of a step down.

    python benchmarks/client.py [--peers] [--rounds 9] [--calls 2000] [--paced 100] [--kills 100]

Every way has a process of its own, and all take turns within one run, so that their ratios hold although the machine's speed drifts:
the client, two floors (a call that does nothing, a bare pack into a mapped page), plain files, an SQLite insert, a POST to this machine,
and the trackers of others as far as they are installed. `--peers` makes an environment for these under .venv-peers, from peers.txt, and
runs there. Then: a whole update of eight microbatches, imports, what is left after a kill -9 right behind the last call, and kills of the
client at random moments.
"""

import argparse
import importlib.util
import multiprocessing
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from mmap import PAGESIZE, mmap
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from recorders import MICROBATCHES, OURS, RECORDERS, Collector, Record, Recorder, ledger, microbatches_left

import ledger_client

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".venv-peers"
PEERS_PINS = Path(__file__).with_name("peers.txt")
GAP_SECONDS = 0.002
TURN_SECONDS = 0.15
SETTLING_SECONDS = 0.1
KILLED_AFTER = 2000
READ_SECONDS = 60
IMPORT_TRIALS = 3
TICKS = os.sysconf("SC_CLK_TCK")
PROGRESS = struct.Struct("<Q")


class Turn(NamedTuple):
    """Single calls in nanoseconds, back to back and paced; processor time of all processes of the recorder behind the former."""

    burst: list[int]
    paced: list[int]
    cpu_seconds: float
    resident_bytes: int


def family(root: int) -> list[int]:
    """A process and all that descend from it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def spent(processes: list[int]) -> tuple[float, int]:
    """Their processor time and resident memory. Units: seconds, bytes."""
    seconds, resident = 0.0, 0
    for process in processes:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if process != os.getpid():
            seconds += (int(fields[11]) + int(fields[12])) / TICKS
        resident += int(fields[21]) * PAGESIZE
    return seconds + time.process_time(), resident


def turn(record: Record, first: int, calls: int, paced: int) -> Turn:
    """Calls back to back, as many as fit into a turn; a moment for what goes on behind them; then calls with pauses."""
    clock = time.perf_counter_ns
    burst: list[int] = []
    slow: list[int] = []
    processes = family(os.getpid())
    before, _ = spent(processes)
    stop = clock() + int(TURN_SECONDS * 1e9)
    for number in range(first, first + calls):
        began = clock()
        record(number)
        ended = clock()
        burst.append(ended - began)
        if ended > stop:
            break
    time.sleep(SETTLING_SECONDS)
    after, resident = spent(processes)
    for number in range(first + calls, first + calls + paced):
        time.sleep(GAP_SECONDS)
        began = clock()
        record(number)
        slow.append(clock() - began)
    return Turn(burst, slow, after - before, resident)


def quiet() -> None:
    """Say nothing more: what a tracker prints is no part of the result."""
    warnings.filterwarnings("ignore")
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)


def serve(recorder: int, folder: str, turns: Connection) -> None:
    """In a process of its own: take turns until there are no more. How the recorder ends is of no interest here."""
    quiet()
    with RECORDERS[recorder].opened(Path(folder)) as record:
        for number in range(16):
            record(number)
        turns.send("ready")
        first = 16
        while (asked := turns.recv()) is not None:
            turns.send(turn(record, first, *asked))
            first += sum(asked)
        os.kill(os.getpid(), signal.SIGKILL)


def micros(values: list[int], share: float) -> float:
    """A quantile. Units: microseconds."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1000


def usable(recorder: Recorder) -> bool:
    """Whether the recorder can run here; says so if it cannot."""
    if recorder.module is None or importlib.util.find_spec(recorder.module) is not None:
        return True
    print(f"{recorder.name} is left out: {recorder.module} is not installed here.")
    return False


class Worker:
    """The process of one recorder."""

    def __init__(self, recorder: Recorder, folder: Path) -> None:
        self.recorder = recorder
        self.turns: list[Turn] = []
        self._connection, theirs = multiprocessing.Pipe()
        folder.mkdir()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=serve, args=(RECORDERS.index(recorder), str(folder), theirs))
        self._process.start()
        theirs.close()

    def begun(self) -> bool:
        """Whether the recorder works here; says so if it does not."""
        try:
            return bool(self._connection.recv())
        except EOFError:
            print(f"{self.recorder.name} is left out: it did not start here.")
            return False

    def take(self, calls: int, paced: int) -> None:
        """One turn."""
        self._connection.send((calls, paced))
        self.turns.append(self._connection.recv())

    def end(self) -> None:
        """No more turns."""
        self._connection.send(None)
        self._process.join()


def compare_calls(recorders: list[Recorder], rounds: int, calls: int, paced: int) -> None:
    """Single record calls, all recorders in turns."""
    with Collector(), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        workers = [Worker(recorder, Path(root, str(place))) for place, recorder in enumerate(recorders)]
        workers = [worker for worker in workers if worker.begun()]
        for _ in range(rounds):
            for worker in workers:
                worker.take(calls, paced)
        for worker in workers:
            worker.end()
    bare = min(worker.turns[-1].resident_bytes for worker in workers)
    print(f"\n{'a step of six numbers':29}{'median us':>10}{'p99':>10}{'paced us':>10}{'p99':>10}{'CPU us':>9}{'MB':>7}", end="")
    print(f"{'x ours':>9}{'x paced':>9}")
    ours = [turn for worker in workers if worker.recorder.name == OURS for turn in worker.turns]
    for worker in workers:
        turns = worker.turns
        burst, slow = ([time for turn in turns for time in times] for times in ((), ()))
        for seen in turns:
            burst += seen.burst
            slow += seen.paced
        cpu = sum(seen.cpu_seconds for seen in turns) / len(burst) * 1e6
        dearer = [
            statistics.median(micros(kind(seen), 0.5) / micros(kind(own), 0.5) for seen, own in zip(turns, ours, strict=True))
            for kind in (lambda times: times.burst, lambda times: times.paced)
        ]
        print(
            f"{worker.recorder.name:29}{micros(burst, 0.5):10.2f}{micros(burst, 0.99):10.2f}{micros(slow, 0.5):10.2f}"
            f"{micros(slow, 0.99):10.2f}{cpu:9.2f}{(turns[-1].resident_bytes - bare) / 1e6:7.0f}{dearer[0]:9.1f}{dearer[1]:9.1f}"
        )
    print(f"(an empty timing costs {micros(empty_timings(), 0.5):.2f} us of each; every eighth call of ours also closes an update;")
    print("MB over the leanest process; ratios: median of the rounds, each against ours in the same round)")


def empty_timings() -> list[int]:
    """What the clock itself takes."""
    clock = time.perf_counter_ns
    return [-(clock() - clock()) for _ in range(10_000)]


def whole_updates(rounds: int, updates: int) -> None:
    """An update with all its microbatches and its outcome, beside as many bare packs into a map."""
    values: list[int] = []
    floors: list[int] = []
    ratios = []
    with tempfile.TemporaryDirectory() as root:
        area, pack = mmap(-1, 1 << 16), struct.Struct("<QQQQddQ").pack_into
        for turn_number in range(rounds):
            run = ledger_client.start("bench", spool=Path(root, str(turn_number)), mode="offline", attempt="bench", spool_bytes=1 << 30)
            for number in range(updates):
                began = time.perf_counter_ns()
                with run.update(number) as update:
                    for _ in range(MICROBATCHES):
                        update.microbatch(input_slots=4096, consumed_tokens=4000, valid_targets=3998, samples=2, loss_sum=9001.5)
                    update.applied(reported_loss=2.25)
                values.append(time.perf_counter_ns() - began)
            run.close()
            for _ in range(updates):
                began = time.perf_counter_ns()
                for place in range(MICROBATCHES):
                    pack(area, place * 56, 4096, 4000, 3998, 2, 9001.5, 0.0, place)
                floors.append(time.perf_counter_ns() - began)
            ratios.append(micros(values[-updates:], 0.5) / micros(floors[-updates:], 0.5))
    print(
        f"\nan update of {MICROBATCHES} microbatches with its outcome: median {micros(values, 0.5):.2f} us, "
        f"p99 {micros(values, 0.99):.2f} us, {statistics.median(ratios):.1f} x that many bare packs"
    )


def parts_of_updates(updates: int) -> None:
    """The calls of an update one by one, with a pause before each, which empties the caches."""
    begun: list[int] = []
    added: list[int] = []
    ended: list[int] = []
    with tempfile.TemporaryDirectory() as root:
        run = ledger_client.start("bench", spool=Path(root), mode="offline", attempt="bench")
        for number in range(updates):
            time.sleep(GAP_SECONDS)
            began = time.perf_counter_ns()
            update = run.update(number)
            begun.append(time.perf_counter_ns() - began)
            for _ in range(MICROBATCHES):
                time.sleep(GAP_SECONDS)
                began = time.perf_counter_ns()
                update.microbatch(input_slots=4096, consumed_tokens=4000, valid_targets=3998, samples=2, loss_sum=9001.5)
                added.append(time.perf_counter_ns() - began)
            time.sleep(GAP_SECONDS)
            began = time.perf_counter_ns()
            update.applied(reported_loss=2.25)
            ended.append(time.perf_counter_ns() - began)
        run.close()
    calls = (("beginning", begun), ("a microbatch", added), ("end", ended))
    shown = ", ".join(f"{name} {micros(values, 0.5):.1f} us (p99 {micros(values, 0.99):.1f})" for name, values in calls)
    print(f"its calls, each after a pause: {shown}")


def imported(module: str, bytecode: str) -> tuple[float, float]:
    """Time and memory of an import, in a process of its own. Units: milliseconds, resident megabytes of the whole process.

    `bytecode` is the folder where it finds modules compiled, as an installed package is, once it has been there.
    """
    program = (
        "import time; began = time.perf_counter_ns()\n"
        f"import {module}\n"
        "took = time.perf_counter_ns() - began\n"
        "print(took / 1e6, int(open('/proc/self/statm').read().split()[1]) * 4096 / 1e6)"
    )
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": bytecode}
    out = subprocess.run([sys.executable, "-c", program], env=compiled, capture_output=True, text=True, check=True).stdout
    milliseconds, megabytes = out.split()[-2:]
    return float(milliseconds), float(megabytes)


def compare_imports(recorders: list[Recorder]) -> None:
    """Imports over a bare interpreter, in turns."""
    modules = list(dict.fromkeys(["time", "json", "http.client", OURS, *(recorder.module for recorder in recorders if recorder.module)]))
    seen: dict[str, list[tuple[float, float]]] = {module: [] for module in modules}
    with tempfile.TemporaryDirectory() as bytecode:
        for module in modules:
            imported(module, bytecode)
        for _ in range(IMPORT_TRIALS):
            for module in modules:
                seen[module].append(imported(module, bytecode))
    bare = statistics.median(megabytes for _, megabytes in seen["time"])
    print(f"\n{'import':29}{'ms':>10}{'MB over a bare interpreter':>30}")
    for module in modules[1:]:
        took = statistics.median(milliseconds for milliseconds, _ in seen[module])
        held = statistics.median(megabytes for _, megabytes in seen[module])
        print(f"{module:29}{took:10.1f}{held - bare:30.1f}")


def dies(recorder: int, folder: str) -> None:
    """In a process of its own: record, then be killed before anything else happens."""
    quiet()
    with RECORDERS[recorder].opened(Path(folder)) as record:
        for number in range(KILLED_AFTER):
            record(number)
        os.kill(os.getpid(), signal.SIGKILL)


def reads(recorder: int, folder: str, told: Connection) -> None:
    """In a process of its own: count what is left."""
    quiet()
    left = RECORDERS[recorder].left
    assert left is not None
    told.send(left(Path(folder)))


def compare_kills(recorders: list[Recorder]) -> None:
    """What is left of the calls that had returned before a SIGKILL of the process that records."""
    context = multiprocessing.get_context("spawn")
    print(f"\nfound after kill -9 right behind {KILLED_AFTER} calls")
    for recorder in recorders:
        if recorder.left is None:
            continue
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
            place = RECORDERS.index(recorder)
            child = context.Process(target=dies, args=(place, root))
            child.start()
            child.join()
            ours, theirs = multiprocessing.Pipe()
            reader = context.Process(target=reads, args=(place, root, theirs))
            reader.start()
            theirs.close()
            try:
                found = str(ours.recv()) if ours.poll(READ_SECONDS) else "not read in time"
            except EOFError:
                found = "cannot be read back"
            reader.kill()
            reader.join()
            print(f"{recorder.name:29}{found:>10}")


def records_until_killed(folder: str) -> None:
    """In a process of its own: record without end, and tell through a mapped page how many calls have returned."""
    page = Path(folder, "told")
    page.write_bytes(bytes(PAGESIZE))
    with page.open("r+b") as file:
        told = mmap(file.fileno(), PAGESIZE)
    with ledger(Path(folder, "spool")) as record:
        number = 0
        while True:
            record(number)
            number += 1
            # Two places in turn: packing empties a place first, and the kill may come just then.
            PROGRESS.pack_into(told, number % 2 * PROGRESS.size, number)


def returned_calls(told: Path) -> int:
    """How many calls had returned, as the child told."""
    content = told.read_bytes() if told.exists() else b""
    return max((number for (number,) in PROGRESS.iter_unpack(content[: 2 * PROGRESS.size])), default=0)


def random_kills(kills: int) -> None:
    """Kill a recording process at a random moment, again and again, and count calls that had returned and are not found."""
    lost = returned = 0
    for _ in range(kills):
        with tempfile.TemporaryDirectory() as root:
            child = subprocess.Popen([sys.executable, __file__, "--until-killed", root])
            told = Path(root, "told")
            while not returned_calls(told):
                time.sleep(0.002)
            time.sleep(random.uniform(0.0, 0.05))
            child.kill()
            child.wait()
            calls = returned_calls(told)
            kept = microbatches_left(Path(root, "spool"))
            returned += calls
            lost += max(0, calls - kept)
            assert kept <= calls + 1, "a call that never began was found"
    print(f"\n{kills} kills of ledger_client at random moments: {returned} calls had returned, {lost} of them lost")


def run_among_peers(arguments: list[str]) -> int:
    """Make the environment of the peers where there is none, and run this program there."""
    python = PEERS / "bin" / "python"
    stamp, wanted = PEERS / "made-from", PEERS_PINS.read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"Making the environment {PEERS.name} (once, a minute or two) ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*install, "-r", PEERS_PINS], check=False, capture_output=True).returncode:
            for pin in wanted.split():
                if subprocess.run([*install, pin], check=False, capture_output=True).returncode:
                    print(f"{pin} does not install here.")
        subprocess.run([*install, "-e", str(ROOT / "client")], check=True, capture_output=True)
        stamp.write_text(wanted)
    return subprocess.run([python, __file__, *arguments], check=False).returncode


def main() -> int:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", action="store_true", help="beside the trackers of others, in an environment with these")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=2000, help="calls a round; of the slow ones, as many as fit into 0.15 s")
    parser.add_argument("--paced", type=int, default=100, help="calls a round with pauses of 2 ms")
    parser.add_argument("--kills", type=int, default=100, help="kills at random moments")
    parser.add_argument("--until-killed", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.until_killed:
        records_until_killed(chosen.until_killed)
    if chosen.peers:
        return run_among_peers([argument for argument in sys.argv[1:] if argument != "--peers"])
    # What a killed tracker leaves in the system is told by nobody.
    os.environ["PYTHONWARNINGS"] = "ignore"
    recorders = [recorder for recorder in RECORDERS if usable(recorder)]
    compare_calls(recorders, chosen.rounds, chosen.calls, chosen.paced)
    whole_updates(chosen.rounds, 500)
    parts_of_updates(250)
    compare_imports(recorders)
    compare_kills(recorders)
    random_kills(chosen.kills)
    return 0


if __name__ == "__main__":
    sys.exit(main())
