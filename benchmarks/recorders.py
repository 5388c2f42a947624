"""Ways to write six numbers a step down: the client, floors below which nothing can be, plain files, and the trackers of others.

Each is opened in a folder of its own and gives a call that takes the number of the step; `left` counts the calls whose numbers can be read
back from that folder by another process.
"""

import http.client
import importlib
import json
import mmap
import os
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, Self

import ledger_client
from ledger_client.backlog import Backlog
from ledger_client.storage import Directory

MICROBATCHES = 8
NUMBERS = {"input_slots": 4096, "consumed_tokens": 4000, "valid_targets": 3998, "samples": 2, "loss_sum": 9001.5}
Record = Callable[[int], object]
PORT = "COLLECTOR_PORT"
"""The variable that names the port of the server which takes posts."""


class Collector(ThreadingHTTPServer):
    """Takes what is posted and counts it."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Acknowledgement)
        self.taken = 0
        os.environ[PORT] = str(self.server_address[1])

    def __enter__(self) -> Self:
        Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Acknowledgement(BaseHTTPRequestHandler):
    """Answers as soon as the body is read."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Take one record."""
        self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Collector)
        self.server.taken += 1
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def ledger(folder: Path, fsync: str = "never") -> Iterator[Record]:
    """The client: one microbatch a call, and an outcome after every eighth, which is part of that call."""
    run = ledger_client.start("bench", spool=folder, mode="offline", attempt="bench", spool_bytes=1 << 30, fsync=fsync)
    update = run.update(0)

    def record(number: int) -> None:
        nonlocal update
        update.microbatch(input_slots=4096, consumed_tokens=4000, valid_targets=3998, samples=2, loss_sum=9001.5)
        if number % MICROBATCHES == MICROBATCHES - 1:
            update.applied()
            update = run.update(number)

    yield record
    run.close()


@contextmanager
def grouped(folder: Path) -> Iterator[Record]:
    """The same, and what is older than half a second survives a crash of the machine."""
    with ledger(folder, "grouped") as record:
        yield record


def microbatches_left(folder: Path) -> int:
    """How many microbatches a dead process left, in closed groups and in the open one."""
    (spool,) = (path for path in folder.iterdir() if path.is_dir())
    backlog = Backlog(Directory(spool))
    count = 0
    while (parcel := backlog.take(1000)).events:
        backlog.acknowledge(parcel)
        count += sum(said for _, row in parcel.events if isinstance(said := row.get("microbatches"), int))
    return count


@contextmanager
def nothing(_folder: Path) -> Iterator[Record]:
    """A call that does nothing: what a pause alone does to the caches and the clock."""
    yield lambda number: number


@contextmanager
def mapped_ring(folder: Path) -> Iterator[Record]:
    """The same bytes packed into a mapped file, without names, checks or a clock: no record call can be cheaper and survive a kill."""
    with (folder / "ring").open("w+b") as file:
        file.truncate(1 << 16)
        area = mmap.mmap(file.fileno(), 1 << 16)
    pack = struct.Struct("<QQQQddQ").pack_into
    yield lambda number: pack(area, number % 1024 * 56, 4096, 4000, 3998, 2, 9001.5, 0.0, number)
    area.close()


@contextmanager
def json_lines(folder: Path, *, synced: bool = False) -> Iterator[Record]:
    """A line appended to a file and flushed."""
    with (folder / "lines.ndjson").open("a") as file:

        def record(number: int) -> None:
            file.write(json.dumps({"step": number, **NUMBERS}) + "\n")
            file.flush()
            if synced:
                os.fsync(file.fileno())

        yield record


@contextmanager
def synced_lines(folder: Path) -> Iterator[Record]:
    """The same, and on the disk when the call returns."""
    with json_lines(folder, synced=True) as record:
        yield record


def lines_left(folder: Path) -> int:
    """Lines of the file."""
    return len((folder / "lines.ndjson").read_text().splitlines())


def rows_left(database: Path, query: str) -> int:
    """A count of rows."""
    connection = sqlite3.connect(database)
    (count,) = connection.execute(query).fetchone()
    connection.close()
    return int(count)


@contextmanager
def sqlite_rows(folder: Path) -> Iterator[Record]:
    """A row inserted and committed, with write-ahead log."""
    connection = sqlite3.connect(folder / "rows.db")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE IF NOT EXISTS rows (step, a, b, c, d, e)")
    connection.commit()

    def record(number: int) -> None:
        connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)", (number, *NUMBERS.values()))
        connection.commit()

    yield record
    connection.close()


@contextmanager
def posts(_folder: Path) -> Iterator[Record]:
    """A request to a server on this machine, over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", int(os.environ[PORT]))
    connection.connect()
    headers = {"Content-Type": "application/json"}

    def record(number: int) -> None:
        connection.request("POST", "/", json.dumps({"step": number, **NUMBERS}), headers)
        connection.getresponse().read()

    yield record
    connection.close()


@contextmanager
def wandb_offline(folder: Path) -> Iterator[Record]:
    """One `log` call, offline."""
    wandb: Any = importlib.import_module("wandb")
    run = wandb.init(mode="offline", dir=str(folder), settings=wandb.Settings(silent=True, console="off"))
    yield lambda number: run.log({"step": number, **NUMBERS})
    run.finish()


def wandb_left(folder: Path) -> int:
    """History records in the file of the run: a header, then blocks of 32 KiB with records that may be cut into several chunks."""
    records: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    (path,) = folder.rglob("*.wandb")
    content, offset, data, count = path.read_bytes(), 7, b"", 0
    while offset + 7 <= len(content):
        if (rest := -offset % 32768) and rest < 7:
            offset += rest
            continue
        _, length, part = struct.unpack_from("<IHB", content, offset)
        data += content[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if part in (1, 4) and offset <= len(content):
            record = records.Record()
            record.ParseFromString(data)
            count += record.WhichOneof("record_type") == "history"
            data = b""
    return count


@contextmanager
def trackio_local(folder: Path) -> Iterator[Record]:
    """One `log` call into the local database."""
    os.environ |= {"TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1"}
    trackio: Any = importlib.import_module("trackio")
    run = trackio.init(project="bench", embed=False, auto_log_gpu=False, auto_log_cpu=False)
    yield lambda number: run.log({"step": number, **NUMBERS})
    trackio.finish()


def trackio_left(folder: Path) -> int:
    """Rows of metrics in the database; none where it was not made yet."""
    return sum(rows_left(path, "SELECT count(*) FROM metrics") for path in folder.rglob("*.db"))


@contextmanager
def tensorboard(folder: Path) -> Iterator[Record]:
    """Five scalars of the step."""
    writer: Any = importlib.import_module("tensorboardX").SummaryWriter(str(folder))
    yield lambda number: [writer.add_scalar(name, value, number) for name, value in NUMBERS.items()]
    writer.close()


def tensorboard_left(folder: Path) -> int:
    """Whole scalars in the event files, five a call; the first record of a file is its header."""
    scalars = 0
    for path in folder.rglob("events.out.tfevents.*"):
        content, offset, records = path.read_bytes(), 0, 0
        while offset + 12 <= len(content) and offset + 16 + struct.unpack_from("<Q", content, offset)[0] <= len(content):
            offset += 16 + struct.unpack_from("<Q", content, offset)[0]
            records += 1
        scalars += max(0, records - 1)
    return scalars // len(NUMBERS)


@contextmanager
def aim_repository(folder: Path) -> Iterator[Record]:
    """One `track` call for all five."""
    run: Any = importlib.import_module("aim").Run(repo=str(folder), system_tracking_interval=None, log_system_params=False)
    yield lambda number: run.track(NUMBERS, step=number)
    run.close()


def aim_left(folder: Path) -> int:
    """Values of one of the metrics."""
    repository: Any = importlib.import_module("aim").Repo(str(folder))
    return max((len(metric.values) for run in repository.iter_runs() for metric in run.metrics()), default=0)


@contextmanager
def mlflow_store(folder: Path, *, synchronous: bool = True) -> Iterator[Record]:
    """One `log_metrics` call into a local database."""
    mlflow: Any = importlib.import_module("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    with mlflow.start_run():
        yield lambda number: mlflow.log_metrics(NUMBERS, step=number, synchronous=synchronous)


@contextmanager
def mlflow_queue(folder: Path) -> Iterator[Record]:
    """The same, written by a thread of its own."""
    with mlflow_store(folder, synchronous=False) as record:
        yield record


def mlflow_left(folder: Path) -> int:
    """Rows of one of the metrics."""
    return rows_left(folder / "mlflow.db", "SELECT count(*) FROM metrics WHERE key = 'samples'")


@contextmanager
def goodput(_folder: Path) -> Iterator[Record]:
    """The start of a step, which is all that it takes, sent to this machine instead of the cloud."""
    os.environ["NO_GCE_CHECK"] = "true"
    cloud: Any = importlib.import_module("google.cloud.logging")
    credentials: Any = importlib.import_module("google.auth.credentials")
    client, address = cloud.Client, {"api_endpoint": f"http://127.0.0.1:{os.environ[PORT]}"}
    cloud.Client = lambda: client(
        project="bench", credentials=credentials.AnonymousCredentials(), _use_grpc=False, client_options=address
    )
    module: Any = importlib.import_module("ml_goodput_measurement.src.goodput")
    yield module.GoodputRecorder("bench", "bench", logging_enabled=True).record_step_start_time


class Recorder(NamedTuple):
    """A way of recording, the module that must be there for it, and how its calls are counted afterwards."""

    name: str
    opened: Callable[[Path], AbstractContextManager[Record]]
    left: Callable[[Path], int] | None = None
    module: str | None = None


OURS = "ledger_client"
RECORDERS = [
    Recorder(OURS, ledger, microbatches_left),
    Recorder("ledger_client, fsync grouped", grouped, microbatches_left),
    Recorder("(an empty Python call)", nothing),
    Recorder("(bare bytes into a map)", mapped_ring),
    Recorder("JSON line + flush", json_lines, lines_left),
    Recorder("JSON line + fsync", synced_lines, lines_left),
    Recorder("sqlite3 insert + commit", sqlite_rows, lambda folder: rows_left(folder / "rows.db", "SELECT count(*) FROM rows")),
    Recorder("HTTP POST to loopback", posts),
    Recorder("wandb (offline)", wandb_offline, wandb_left, "wandb"),
    Recorder("trackio", trackio_local, trackio_left, "trackio"),
    Recorder("tensorboardX", tensorboard, tensorboard_left, "tensorboardX"),
    Recorder("aim", aim_repository, aim_left, "aim"),
    Recorder("mlflow (sync, sqlite)", mlflow_store, mlflow_left, "mlflow"),
    Recorder("mlflow (async, sqlite)", mlflow_queue, mlflow_left, "mlflow"),
    Recorder("goodput (to loopback)", goodput, None, "ml_goodput_measurement"),
]
