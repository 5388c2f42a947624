"""What a trainer installs and imports: one wheel without dependencies, and at launch nothing that is needed later or never."""

import ast
import email
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import ledger_client

CLIENT = Path(__file__).resolve().parents[1]
SOURCES = sorted((CLIENT / "src" / "ledger_client").rglob("*.py"))
LATE = {"typing", "dataclasses", "pathlib", "logging", "http", "ssl", "socket", "email", "hashlib", "datetime", "argparse", "numpy"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution, built as an installer builds it."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    program = f"import os; os.chdir({str(CLIENT)!r}); from hatchling.build import build_wheel; build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_asks_for_nothing(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
        assert metadata["Name"] == "training-ledger-client" and metadata["Version"] == ledger_client.__version__
        assert [needed for needed in metadata.get_all("Requires-Dist", []) if "extra ==" not in needed] == []
        assert {name.split("/")[0].partition("-")[0] for name in archive.namelist()} == {"ledger_client", "training_ledger_client"}
        assert "ledger_client/py.typed" in archive.namelist()


def test_the_wheel_works_in_an_interpreter_that_has_nothing_else(wheel: Path, tmp_path: Path) -> None:
    program = f"""
import sys
sys.path = [path for path in sys.path if "site-packages" not in path] + [{str(wheel)!r}]
import ledger_client
from ledger_client.testing import CapturingTransport
capture = CapturingTransport()
run = ledger_client.start("demo", spool={str(tmp_path / "spool")!r}, transport=capture)
with run.update(1) as update:
    update.microbatch(input_slots=1)
    update.applied()
assert run.close()
assert [row["outcome"] for row in capture.ledger.rows("updates")] == ["applied"]
from ledger_client import cli
assert cli.main(["inspect", {str(tmp_path)!r}]) == 0
print("done")
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], check=False, capture_output=True, text=True)
    assert done.stdout.endswith("done\n"), done.stderr


def test_only_the_standard_library_is_imported() -> None:
    foreign = set()
    for source in SOURCES:
        if "integrations" in source.parts:
            continue
        for node in ast.walk(ast.parse(source.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            foreign |= {name for name in names if name.partition(".")[0] not in sys.stdlib_module_names}
    assert foreign == set()


def test_an_import_loads_only_what_a_record_call_needs() -> None:
    program = "import sys; before = set(sys.modules); import ledger_client; print(*set(sys.modules) - before)"
    out = subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(CLIENT / 'src')!r}); {program}"],
                         check=True, capture_output=True, text=True).stdout  # fmt: skip
    loaded = set(out.split())
    assert "ledger_client.update" in loaded
    assert not LATE & loaded and not {"ledger_client.delivery", "ledger_client.reading", "ledger_client.agreement"} & loaded


def test_an_interpreter_without_its_global_lock_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    run = ledger_client.start("demo", spool=tmp_path / "spool", mode="offline", attempt="a1")
    with run.update(1) as update:
        update.microbatch(input_slots=1)
        update.applied()
    assert not run.recording and not (tmp_path / "spool").exists()
    assert any("PYTHON_GIL=1" in record.message for record in caplog.records)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    run = ledger_client.start("demo", spool=tmp_path / "spool", mode="offline", attempt="a1")
    assert run.recording
    run.close()


def test_the_source_distribution_has_its_tests_and_licence(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    program = f"import os; os.chdir({str(CLIENT)!r}); from hatchling.build import build_sdist; build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "src/ledger_client/update.py", "tests/test_package.py"} <= names
