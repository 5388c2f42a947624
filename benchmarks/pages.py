"""What each page costs on a long run: bytes over the wire, the service's time, and the time to the first paint in a browser.

    python benchmarks/pages.py [--updates 1000000] [--attempts 100] [--repeats 5] [--folder FOLDER]

Makes the run, and another to compare it with, in an embedded database through the service's own ingestion (dp 2, so twice as many
rank-updates), starts the real service on it, and opens each page in Chromium, an empty cache each time. Prints the median of the repeats.
"""

import argparse
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from benchmarks.long_run import make  # noqa: E402
from browser import Browser, browser  # noqa: E402
from ledger.storage import schema  # noqa: E402
from ledger.storage.engine import open_engine  # noqa: E402
from ledger.storage.store import Store  # noqa: E402
from server import LedgerServer  # noqa: E402

PROJECT, RUN, OTHER = "pretraining", "llama-8b", "llama-8b-restarted"
PARTS = ("", "trajectory", "updates", "coverage", "rates", "checkpoints", "conventions", "findings")
PAINT = "const [paint] = performance.getEntriesByName('first-contentful-paint'); return paint ? paint.startTime : 0"
WIRE = (
    "return [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
    ".reduce((sum, entry) => sum + entry.transferSize, 0)"
)


def fetched(address: str) -> tuple[float, int, int]:
    """How long the service takes for a page in milliseconds, its bytes as sent, and its bytes as they are."""
    begun = time.perf_counter()
    with urllib.request.urlopen(urllib.request.Request(address, headers={"Accept-Encoding": "gzip"})) as answer:
        sent = len(answer.read())
    taken = 1000 * (time.perf_counter() - begun)
    with urllib.request.urlopen(address) as answer:
        return taken, sent, len(answer.read())


def painted(window: Browser, address: str) -> tuple[float, int]:
    """The time to the first paint in milliseconds, and all bytes that came over the wire, with an empty cache."""
    window.driver.execute_cdp_cmd("Network.clearBrowserCache", {})
    window.open(address)
    deadline = time.monotonic() + 10
    while not window.run(PAINT) and time.monotonic() < deadline:
        time.sleep(0.02)
    return float(window.run(PAINT)), int(window.run(WIRE))


def measure(server: LedgerServer, repeats: int) -> None:
    """Prints a line a page."""
    checkpoint = server.call("GET", f"/v1/projects/{PROJECT}/runs/{RUN}/exposure")["accepted_checkpoint"]["checkpoint"]
    run = f"/runs/{PROJECT}/{RUN}"
    pages = {"runs": "/"} | {part or "balance": f"{run}/{part}".rstrip("/") for part in PARTS}
    pages["checkpoint"] = f"{run}/checkpoints/{checkpoint}"
    middle = server.call("GET", f"/v1/projects/{PROJECT}/runs/{RUN}/course?points=1")["trajectory"]["last"] // 2
    pages["updates, zoomed"] = f"{run}/updates?first={middle - 9_999}&last={middle}"
    compared = f"run={PROJECT}/{RUN}&run={PROJECT}/{OTHER}"
    pages["compare, at equal valid targets"] = f"/compare?{compared}&at=valid_targets"
    print("| page | page, bytes sent | uncompressed | all with an empty cache | service, ms | first paint, ms |\n|---|---|---|---|---|---|")
    with browser() as window:
        window.size(1280)
        painted(window, server.url + "/")
        for name, path in pages.items():
            served = [fetched(server.url + path) for _ in range(repeats)]
            seen = [painted(window, server.url + path) for _ in range(repeats)]
            milliseconds = statistics.median(item[0] for item in served)
            paint, wire = statistics.median(item[0] for item in seen), max(item[1] for item in seen)
            print(f"| {name} | {served[0][1]:,} | {served[0][2]:,} | {wire:,} | {milliseconds:.0f} | {paint:.0f} |", flush=True)


def main() -> None:
    """Makes the runs and measures the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--attempts", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", help="keeps the runs there, and takes those that are there already")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        address = f"sqlite:///{folder / 'ledger.db'}"
        if not (folder / "ledger.db").exists():
            fill(address, options.updates, options.attempts)
            print(f", {(folder / 'ledger.db').stat().st_size / 1e6:,.0f} MB\n")
        with LedgerServer(address, Path(temporary, "log")) as server:
            measure(server, options.repeats)


def fill(address: str, updates: int, attempts: int) -> None:
    """Makes the runs and prints how long that took."""
    engine = open_engine(address)
    schema.upgrade(engine)
    seconds = make(Store(engine), PROJECT, RUN, updates, attempts) + make(Store(engine), PROJECT, OTHER, updates, attempts, seed=8)
    engine.dispose()
    rate = 4 * updates / seconds
    made = f"2 runs of {updates:,} updates of 2 ranks in {attempts} attempts: made in {seconds:.0f} s"
    print(f"{made}, {rate:,.0f} rank-updates/s committed and folded", end="")


if __name__ == "__main__":
    main()
