"""Both distributions as their users get them: built, installed into empty environments, and at work without the checkout."""

import email
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path

import httpx2
import pytest

from worked_example import RUN, play

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 90
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
LOADED = """
import json, sys
before = set(sys.modules)
import ledger_client, ledger_client.cli, ledger_client.testing
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
foreign = sorted(name for name in loaded if name != "ledger_client" and name not in sys.stdlib_module_names)
json.dump({"foreign": foreign, "from": ledger_client.__file__}, sys.stdout)
"""
RECORDED = """
import sys, ledger_client
run = ledger_client.start("alone", url="http://127.0.0.1:9", spool=sys.argv[1], layout=ledger_client.Layout(dp=1), mode="offline")
with run.update(1) as update:
    update.microbatch(input_slots=8, consumed_tokens=7, valid_targets=6, samples=1, loss_sum=1.5)
    update.applied()
run.close(timeout=1)
"""


class Place:
    """An environment that holds nothing but what is installed into it, and a folder that is no checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "environment" / "bin"
        # Nothing of the tests' own environment may shine through.
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith(("LEDGER_", "PYTHON", "VIRTUAL_ENV"))}
        self.variables |= {"HOME": str(folder), "XDG_DATA_HOME": str(folder / "data")}
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "environment"], check=True)

    def install(self, wheel: Path, *options: str) -> None:
        """Install a wheel, with what it needs from wherever this machine installs from."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.programs / "python"), "install", "-qq", "--no-compile", *options]
        subprocess.run([*pip, str(wheel)], check=True, timeout=2 * LIMIT_SECONDS)

    def run(self, program: str, *arguments: str) -> str:
        """What a program of the environment says; it must end well."""
        ended = subprocess.run(
            [self.programs / program, *arguments],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    @contextmanager
    def serving(self) -> Iterator[str]:
        """The address of the service while it runs."""
        with subprocess.Popen(
            [self.programs / "ledger", "serve", "--port", "0"], cwd=self.folder, env=self.variables, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stderr is not None
                line = process.stderr.readline()
                found = ADDRESS.search(line)
                assert found, line
                yield found[0]
            finally:
                process.terminate()
                process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode in (0, -15)


def built(source: Path, folder: Path) -> Path:
    """The wheel, made from the source archive, so that what the archive lacks shows here."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def service_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("service"))


@pytest.fixture(scope="module")
def client_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT / "client", tmp_path_factory.mktemp("client"))


def files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def sources(folder: Path, beside: Path) -> set[str]:
    return {
        str(path.relative_to(beside)) for path in folder.rglob("*") if path.is_file() and not {"__pycache__", ".mypy_cache"} & {*path.parts}
    }


def test_the_services_wheel_holds_the_package_and_its_migrations_and_nothing_else(service_wheel: Path) -> None:
    held = {name for name in files(service_wheel) if ".dist-info/" not in name}
    migrations = {f"ledger/_{name}" for name in sources(ROOT / "migrations", ROOT)}
    assert held == sources(ROOT / "ledger", ROOT) | migrations
    assert {name.rpartition("/")[2] for name in files(service_wheel)} >= {"LICENSE", "NOTICE"}


def test_the_clients_wheel_holds_its_package_and_needs_nothing(client_wheel: Path) -> None:
    held = {name for name in files(client_wheel) if ".dist-info/" not in name}
    assert held == sources(ROOT / "client" / "src", ROOT / "client" / "src")
    assert "ledger_client/py.typed" in held
    needed = metadata(client_wheel).get_all("Requires-Dist") or []
    assert [need for need in needed if "extra ==" not in need] == []


def test_the_client_works_alone(client_wheel: Path, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.install(client_wheel, "--no-deps", "--no-index")
    found = json.loads(place.run("python", "-c", LOADED))
    assert found["foreign"] == []
    assert found["from"].startswith(str(tmp_path))
    place.run("python", "-c", RECORDED, str(tmp_path / "spool"))
    assert "alone" in place.run("ledger-client", "inspect", str(tmp_path / "spool"))


def test_the_service_works_from_its_wheel_and_the_demo_from_both(service_wheel: Path, client_wheel: Path, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.install(service_wheel, "--constraint", str(ROOT / "constraints.txt"))
    assert place.run("python", "-c", "import ledger; print(ledger.__file__)").startswith(str(tmp_path))
    assert place.run("ledger", "db", "upgrade").startswith("empty -> ")
    assert place.run("ledger", "db", "check").endswith("current\n")
    with place.serving() as address, httpx2.Client(base_url=address, timeout=30) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/readyz").status_code == 200
        play(client)
        balance = client.get(f"{RUN}/exposure").json()["balance"]["valid_targets"]
        buckets = {name: balance[name] for name in ("attempted", "preserved", "pending", "lost_to_restart", "skipped", "dropped")}
        assert list(buckets.values()) == [360, 252, 0, 72, 36, 0]
        # Whatever is no Python must have come along too.
        page = client.get("/").text
        linked = {*re.findall(r'(?:href|src)="(/[^"#?]*)', page), *re.findall(r'(?:href|src)="(/[^"#?]*)', client.get("/docs").text)}
        assert len(linked) >= 3
        for path in linked:
            assert client.get(path).status_code == 200, path
        assert 'run="demo"' in client.get("/metrics").text
    report = json.loads(place.run("ledger", "report", "demo", "--format", "json"))
    assert report["balance"]["valid_targets"]["preserved"] == 252
    place.run("ledger", "verify", "demo")

    # Without the client there is no demo, and it says what is missing; with it the demo runs.
    refused = subprocess.run(
        [place.programs / "ledger", "demo"], cwd=tmp_path, env=place.variables, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "training-ledger[demo]" in refused.stderr
    place.install(client_wheel, "--no-deps", "--no-index")
    assert "equals the report exactly" in place.run("ledger", "demo", "--exit", "--updates", "8", "--ranks", "1")
