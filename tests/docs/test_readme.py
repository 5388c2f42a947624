"""The README's commands run, its code runs, and the output that it shows is the output.

`LEDGER_WRITE_README=1 ./dev test tests/docs/test_readme.py` puts the present output into the README.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from server import LedgerServer

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
SHOWN = re.compile(r"(<!-- (\w+) output -->\n```text\n)(.*?)(```)", re.DOTALL)
VARIES = (
    (re.compile(r"pid \d+"), "pid ..."),
    (re.compile(r"writer [0-9a-f]+: \d+ events"), "writer ...: ... events"),
    (re.compile(r"As of entry \d+"), "As of entry ..."),
    (re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+(Z| UTC)"), "(time)"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:8400"),
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
)
LOSS = re.compile(r"\d+\.\d+ -> \d+\.\d+")
SHOWN_FAMILIES = ("training_ledger_valid_targets{", "training_ledger_updates{", "training_ledger_recomputed_valid_targets{")


def settled(text: str) -> str:
    """Output without what differs from run to run."""
    for pattern, word in VARIES:
        text = pattern.sub(word, text)
    return text.strip() + "\n"


def comparable(text: str) -> str:
    """The losses may differ in their last digits with the linear algebra library."""
    return LOSS.sub("... -> ...", settled(text))


def commands() -> list[str]:
    """The README's commands."""
    blocks = re.findall(r"```console\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@dataclass
class Shown:
    """What a reader of the README sees after its first command."""

    url: str
    output: str


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """The first command, run as the README has it, with its server still up."""
    folder = tmp_path_factory.mktemp("readme")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEDGER_")}
    environment |= {"XDG_DATA_HOME": str(folder), "COLUMNS": "140", "LEDGER_DEV_VENV": sys.prefix}
    command = [sys.executable, "-m", "ledger.cli", *shlex.split(commands()[0])[1:], "--keep"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "Ctrl-C" in line:
            break
    try:
        output = "".join(lines)
        address = re.search(r"http://127\.0\.0\.1:\d+", output)
        assert address is not None, output
        assert process.poll() is None, output
        yield Shown(address[0], output)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
        process.stdout.close()


def test_the_output_shown_is_the_output(demo: Shown) -> None:
    with urllib.request.urlopen(demo.url + "/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    scrape = "\n".join(line for line in lines if line.startswith(SHOWN_FAMILIES))
    found = {"demo": demo.output.partition("The server stays up")[0], "scrape": scrape}
    text = README.read_text(encoding="utf-8")
    if os.environ.get("LEDGER_WRITE_README"):
        text = SHOWN.sub(lambda match: match[1] + settled(found[match[2]]) + match[4], text)
        README.write_text(text, encoding="utf-8")
    shown = {match[2]: match[3] for match in SHOWN.finditer(text)}
    assert {name: comparable(output) for name, output in shown.items()} == {name: comparable(output) for name, output in found.items()}


def test_its_questions_are_answered(demo: Shown) -> None:
    asked = 0
    for command in commands():
        words = shlex.split(command)
        if words[0] == "curl":
            with urllib.request.urlopen(words[-1].replace("http://127.0.0.1:8400", demo.url), timeout=30) as answer:
                assert answer.status == 200
                assert answer.read()
            asked += 1
        if words[:2] == ["./dev", "ledger"] and "--url" in words:
            ask = [sys.executable, "-m", "ledger.cli", *words[2:-1], demo.url]
            assert "preserved" in subprocess.run(ask, capture_output=True, text=True, check=True).stdout
            asked += 1
    assert asked >= 4


def test_every_command_is_known() -> None:
    known = {"./dev demo", "./dev test", "./dev ledger report", "./dev ledger verify", "./dev ledger db", "./dev ledger serve"}
    known |= {"docker compose up", "curl", "export"}
    assert [command for command in commands() if not any(command.startswith(start) for start in known)] == []
    helped = {words[2] for command in commands() if (words := shlex.split(command))[:2] == ["./dev", "ledger"]}
    assert helped
    for name in helped:
        answer = subprocess.run([sys.executable, "-m", "ledger.cli", name, "--help"], capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr


def test_its_training_loop_runs(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert code
    with LedgerServer(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "log") as server:
        script = code[1].replace("http://127.0.0.1:8400", server.url)
        environment = {**os.environ, "LEDGER_SPOOL": str(tmp_path / "spool")}
        subprocess.run([sys.executable, "-c", script], env=environment, cwd=tmp_path, check=True, timeout=60)
        report = server.call("GET", "/v1/projects/pretraining/runs/llama-8b/exposure")
    assert report["balance"]["valid_targets"]["preserved"] == 3998
    assert report["accepted_checkpoint"]["checkpoint"] == "step-1"


def test_links_lead_somewhere() -> None:
    for page in [README, *(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "client" / "README.md"]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page}: {target}"
