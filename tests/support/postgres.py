"""A real PostgreSQL of the tests' own: found, started once on a free port of loopback, and a new database for each test."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

SYSTEM = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True) if Path("/usr/lib/postgresql").is_dir() else []


def binaries() -> Path | None:
    """The folder of `initdb` and `postgres`, where there is one."""
    on_path = shutil.which("initdb")
    candidates = [*SYSTEM, *([Path(on_path).resolve().parent] if on_path else [])]
    return next((folder for folder in candidates if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _owner() -> str | None:
    """The user that runs the server: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    raise RuntimeError("PostgreSQL does not run as root, and there is no user to run it as")


class Cluster:
    """A server with its data in a temporary folder."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self.programs, self.port, self.owner = folder, programs, free_port(), _owner()
        if self.owner:
            shutil.chown(folder, self.owner)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Makes the cluster and waits until it answers."""
        data = self.folder / "data"
        subprocess.run(
            [self.programs / "initdb", "-D", data, "-U", "ledger", "-A", "trust", "-N", "--locale=C", "-E", "UTF8"],
            check=True, stdout=subprocess.DEVNULL, user=self.owner, cwd=self.folder,
        )  # fmt: skip
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder} -c fsync=off"
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", data, *options.split()], stdout=log, stderr=log, user=self.owner, cwd=self.folder
            )
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.address("postgres"), connect_timeout=2).close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.05)
            else:
                return

    def address(self, database: str) -> str:
        """The address of a database, for psycopg."""
        return f"postgresql://ledger@127.0.0.1:{self.port}/{database}"

    def stop(self) -> None:
        """Ends the server at once: nothing of it is kept."""
        if self.process:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    @contextmanager
    def database(self) -> Iterator[str]:
        """The address of a new empty database, which is dropped after use."""
        name = f"t{uuid.uuid4().hex}"
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[call-overload]
        try:
            yield self.address(name)
        finally:
            with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
                connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')  # type: ignore[call-overload]


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A running server. Raises: FileNotFoundError where PostgreSQL is not installed."""
    programs = binaries()
    if programs is None:
        raise FileNotFoundError("PostgreSQL (initdb, postgres) is not installed")
    with tempfile.TemporaryDirectory(prefix="ledger-pg-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        server = Cluster(Path(folder), programs)
        try:
            server.start()
            yield server
        finally:
            server.stop()
