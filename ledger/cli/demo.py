"""`ledger demo`: train a small language model with real processes, kill it, resume it, and account for all of it."""

import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ledger.cli.rendering import document_of, print_text
from ledger.cli.sources import DEFAULT_PROJECT, DIFFERENT, UNREACHABLE, USAGE, fail
from ledger.demo.launcher import Result, TrainingFailed, run_demo
from ledger.demo.plan import Plan
from ledger.demo.service import Service, ServiceFailed, start_service
from ledger.demo.tally import Line

RUN = "demo"
LOG_WIDTH = 110


class Screen:
    """Tells on the terminal what happens: a sentence for each event, and a bar where the terminal can redraw it."""

    def __init__(self, console: Console, updates: int) -> None:
        self._console, self._updates = console, updates
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._bars: dict[int, TaskID] = {}

    def __enter__(self) -> "Screen":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, sentence: str) -> None:
        """Something that happened once."""
        self._console.print(f"  {sentence}", highlight=False, soft_wrap=True, markup=False)

    def update(self, attempt: int, line: Line) -> None:
        """Rank 0 has come to the end of an update."""
        if attempt not in self._bars:
            self._bars[attempt] = self._progress.add_task("", total=self._updates)
        description = f"  attempt {attempt}, loss {line['token_mean']:.3f}"
        self._progress.update(self._bars[attempt], completed=line["update"], description=description)


def demo(
    port: Annotated[int | None, typer.Option(help="Port of the demo's own server; a free one if left out.", min=1, max=65535)] = None,
    url: Annotated[str | None, typer.Option(help="Use the ledger that already runs at this address instead.")] = None,
    keep: Annotated[bool | None, typer.Option(help="Keep the server up until Ctrl-C; the default on a terminal.")] = None,
    updates: Annotated[int, typer.Option(help="Updates to train.", min=8, max=10_000)] = 60,
    ranks: Annotated[int, typer.Option(help="Trainer processes.", min=1, max=8)] = 2,
    folder: Annotated[Path | None, typer.Option(help="Keep database, checkpoints and tallies in this folder.")] = None,
) -> None:
    """Train a small language model, kill it, resume it, and see what the ledger makes of it.

    Exit codes: 0 the trainer's own tally agrees with the ledger, 1 it does not, 2 wrong usage, 3 something did not run.
    """
    if url is not None and not url.startswith(("http://", "https://")):
        fail(USAGE, "--url begins with http:// or https://")
    console = Console()
    if not console.is_terminal:
        console.width = LOG_WIDTH
    if keep is None:
        keep = sys.stdin.isatty() and console.is_terminal
    # A plain `kill` must take the server and the trainers along, as Ctrl-C does.
    signal.signal(signal.SIGTERM, _interrupt)
    with ExitStack() as stack:
        place = (folder or Path(tempfile.mkdtemp(prefix="ledger-demo-"))).absolute()
        if folder is None:
            stack.callback(shutil.rmtree, place, ignore_errors=True)
        place.mkdir(parents=True, exist_ok=True)
        try:
            service = Service(url) if url else start_service(place, port or 0)
            stack.callback(service.stop)
            console.print(f"ledger at {service.url}", highlight=False)
            with Screen(console, updates) as screen:
                result = run_demo(service, Plan(DEFAULT_PROJECT, RUN, service.url, ranks=ranks, updates=updates), place, screen)
        except (ServiceFailed, TrainingFailed) as failure:
            fail(UNREACHABLE, str(failure))
        agree = _conclude(console, result)
        _point_to_pages(console, service, result.plan)
        if keep and service.process is not None:
            _wait_for_interrupt(console, service)
        if not agree:
            raise typer.Exit(DIFFERENT)


def _conclude(console: Console, result: Result) -> bool:
    """Print the report, the comparison of both accounts and the loss; whether the accounts agree."""
    console.print()
    print_text(document_of(result.report, result.findings), console)
    console.print()
    if result.differences:
        console.print("The trainer's own tally DIFFERS from the ledger:", highlight=False)
        for difference in result.differences:
            console.print(f"  {difference}", highlight=False, markup=False)
    else:
        buckets = dict(result.account.balance()["valid_targets"])
        attempted = buckets.pop("attempted")
        parts = " + ".join(f"{count:,} {name}" for name, count in buckets.items())
        console.print(
            f"The trainer's own tally agrees with the ledger: valid_targets {attempted:,} = {parts}", highlight=False, soft_wrap=True
        )
    curve = result.account.curve()
    console.print(f"Loss (nats per target): {curve[0]:.3f} at update 1, {curve[-1]:.3f} at update {len(curve)}", highlight=False)
    console.print(result.objective["statement"], highlight=False, markup=False, soft_wrap=True)
    return not result.differences


def _point_to_pages(console: Console, service: Service, plan: Plan) -> None:
    """Where to look further."""
    console.print()
    run = f"{plan.project}/runs/{plan.run}"
    paths = {"page": f"/projects/{run}", "report": f"/v1/projects/{run}/exposure", "metrics": "/metrics", "API": "/docs"}
    for name, path in paths.items():
        console.print(f"  {name:8}{service.url}{path}", highlight=False, soft_wrap=True)


def _wait_for_interrupt(console: Console, service: Service) -> None:
    """Leave the server up until the user has seen enough."""
    console.print("\nThe server stays up; Ctrl-C ends it.", highlight=False)
    try:
        if service.process is not None:
            service.process.wait()
    except KeyboardInterrupt:
        console.print()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
