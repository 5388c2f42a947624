"""`ledger demo`: train a small language model with real processes, kill it, resume it, and account for all of it."""

import importlib.util
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ledger.cli.rendering import document_of, print_text
from ledger.cli.sources import DEFAULT_PROJECT, DIFFERENT, UNREACHABLE, USAGE, fail
from ledger.demo.launcher import Result, TrainingFailed, run_demo
from ledger.demo.plan import Plan
from ledger.demo.service import USUAL_PORT, DemoLedger, ServiceFailed, start_service, usual_port_or_any
from ledger.demo.tally import Line

RUN = "demo"
LOG_WIDTH = 132


class Screen:
    """Tells on the terminal what happens: a sentence for each event, and a bar where the terminal can redraw it."""

    def __init__(self, console: Console, updates: int) -> None:
        self._console, self._updates = console, updates
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._bars: dict[int, TaskID] = {}

    def __enter__(self) -> Self:
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
    port: Annotated[
        int | None,
        typer.Option(
            help="Port of the demo's own server.", show_default=f"{USUAL_PORT}, or a free one where that is taken", min=1, max=65535
        ),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Use the ledger that already runs at this address instead.")] = None,
    keep: Annotated[
        bool | None,
        typer.Option(
            "--keep/--exit",
            help="Keep the server up until Ctrl-C when training is over, or end with it.",
            show_default="keep on a terminal, exit elsewhere",
        ),
    ] = None,
    updates: Annotated[int, typer.Option(help="Updates to train.", min=8, max=10_000)] = 60,
    ranks: Annotated[int, typer.Option(help="Trainer processes.", min=1, max=8)] = 2,
    folder: Annotated[
        Path | None,
        typer.Option(help="Keep database, checkpoints and tallies in this folder.", show_default="a temporary one, removed at the end"),
    ] = None,
) -> None:
    """Train a small language model, kill it, resume it, and see what the ledger makes of it.

    Exit codes: 0 the trainer's own tally equals the report and the loss went down, 1 not so, 2 wrong usage, 3 something did not run.
    """
    if importlib.util.find_spec("ledger_client") is None:
        fail(USAGE, "the demo trains with the client, which is not installed: `pip install training-ledger[demo]`")
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
            service = DemoLedger(url) if url else start_service(place, port or usual_port_or_any())
            stack.callback(service.stop)
            console.print(f"ledger at {service.url}", highlight=False)
            with Screen(console, updates) as screen:
                result = run_demo(service, Plan(DEFAULT_PROJECT, RUN, service.url, ranks=ranks, updates=updates), place, screen)
        except (ServiceFailed, TrainingFailed) as failure:
            fail(UNREACHABLE, str(failure))
        as_promised = _conclude(console, result)
        _point_to_pages(console, service, result.plan)
        if keep and service.process is not None:
            _wait_for_interrupt(console, service)
        if not as_promised:
            raise typer.Exit(DIFFERENT)


def _conclude(console: Console, result: Result) -> bool:
    """Print the report, the comparison of both accounts and the loss; whether the accounts are equal and the model has learnt."""
    console.print()
    print_text(document_of(result.report, result.findings), console)
    console.print()
    curve = result.account.curve()
    has_learnt = curve[-1] < curve[0]
    sentences = [
        *_comparison(result),
        f"The loss {'fell' if has_learnt else 'did NOT fall'} over {len(curve)} updates: {curve[0]:.3f} -> {curve[-1]:.3f} nats a target.",
        result.objective["statement"],
    ]
    for sentence in sentences:
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    return has_learnt and not result.differences


def _comparison(result: Result) -> list[str]:
    """Whether the trainer's own tally equals the report, and the equation that both hold, or each figure that differs."""
    if result.differences:
        return ["The trainer's own tally DIFFERS from the report:", *(f"  {difference}" for difference in result.differences)]
    buckets = dict(result.account.balance()["valid_targets"])
    attempted = buckets.pop("attempted")
    parts = " + ".join(f"{count:,} {name}" for name, count in buckets.items())
    return [
        f"The trainer's own tally equals the report exactly, in all {result.figures_compared} figures.",
        f"  valid_targets {attempted:,} = {parts}",
    ]


def _point_to_pages(console: Console, service: DemoLedger, plan: Plan) -> None:
    """Where to look further."""
    console.print()
    run = f"{plan.project}/runs/{plan.run}"
    paths = {"page": f"/runs/{plan.project}/{plan.run}", "report": f"/v1/projects/{run}/exposure", "metrics": "/metrics", "API": "/docs"}
    for name, path in paths.items():
        console.print(f"  {name:8}{service.url}{path}", highlight=False, soft_wrap=True)


def _wait_for_interrupt(console: Console, service: DemoLedger) -> None:
    """Leave the server up until the user has seen enough."""
    try:
        console.print("\nThe server stays up; Ctrl-C ends it.", highlight=False)
        if service.process is not None:
            service.process.wait()
    except KeyboardInterrupt:
        console.print()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
