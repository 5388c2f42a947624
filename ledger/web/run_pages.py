"""The pages of a run: each opens the books once, so all that it shows is of one offset."""

from typing import Annotated, Any, Literal

from fastapi import Path, Query, Request
from fastapi.responses import Response

from ledger.domain.errors import LedgerError
from ledger.domain.findings import KINDS
from ledger.services import reports
from ledger.services.books import Books
from ledger.services.reports import open_books
from ledger.web.addresses import checkpoint_rest_path, run_path
from ledger.web.balance_view import balance_view
from ledger.web.course_view import STRETCHES, course_view
from ledger.web.coverage_view import coverage_view
from ledger.web.frame import frame
from ledger.web.rendering import Name, page, pages_router, reports_of
from ledger.web.run_views import checkpoint_view, checkpoints_view, conventions_view, findings_view, rates_view
from ledger.web.trajectory_view import attempt_rows, trajectory_view

RATES_SHOWN = (("applied", "update"), ("preserved", "wall"))
"""Work and time of the rates on the page of a run: how fast it trains, and how fast it comes to something that is kept."""
USUAL_RATES = (("attempted", "update"), ("applied", "update"), ("trajectory", "update"), ("preserved", "update"), ("preserved", "wall"))
FINDINGS_A_PAGE = 50
STREAMS_A_PAGE = 20
CHECKPOINTS_A_PAGE = 100
CHECKPOINTS_DRAWN = 2_000
HIGHEST_NUMBER = 2**53
HIGHEST_PAGE = 1_000_000
PLACE_PATTERN = r'^\[([0-2], \d{1,9}|3, \["[a-z_]{1,32}"(, \d{1,16}){5}\])\]$'
STREAM_PATTERN = r'^\["([^"\\\x00-\x1f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*", \d{1,16}\]$'
"""Places in lists as the reports give them out: nothing else is read as one."""
Quantity = Literal["valid_targets", "consumed_tokens", "input_slots", "samples", "updates"]
Work = Literal["attempted", "applied", "trajectory", "preserved"]
Kind = Literal[KINDS]  # type: ignore[valid-type]
Number = Annotated[int | None, Query(ge=0, le=HIGHEST_NUMBER)]
router = pages_router()


def _show(template: str, values: dict[str, Any], status: int = 200) -> Response:
    return page(template, values, status, section="runs")


@router.get("/runs/{project}/{run}")
def balance_page(request: Request, project: Name, run: Name, quantity: Quantity = "valid_targets") -> Response:
    """One run: its balance as a picture and in exact figures."""
    source = reports_of(request)
    with open_books(source, project, run) as books:
        rates = [reports.rate(books, quantity, work, [time]) for work, time in RATES_SHOWN]
        silence_seconds = max(0, books.now - books.run.last_entry_at) / 1e6
        values = frame(books, source, "", "exposure")
        values |= balance_view(
            reports.described(books), reports.exposure(books), reports.objective(books), rates, quantity, silence_seconds
        )
    return _show("run.html", values)


@router.get("/runs/{project}/{run}/trajectory")
def trajectory_page(
    request: Request, project: Name, run: Name, newest: Annotated[int | None, Query(ge=1, le=HIGHEST_PAGE)] = None
) -> Response:
    """Attempts, checkpoints and rollbacks as a tree in time: all attempts, or only the newest ones."""
    source = reports_of(request)
    with open_books(source, project, run) as books:
        values = frame(books, source, "trajectory", "trajectory")
        drawn = reports.checkpoints(books, None, CHECKPOINTS_DRAWN)
        tree = reports.lineage(books)
        values |= trajectory_view(tree, drawn, _kept_place(books), newest)
        values |= {"path": run_path(project, run, "trajectory"), "rows": attempt_rows(tree, newest, project, run)}
    return _show("trajectory.html", values)


def _kept_place(books: Books) -> dict[str, Any]:
    """What the picture needs of the exposure, without its findings."""
    accepted = books.accepted
    return {"accepted_checkpoint": None if accepted is None else {"attempt": books.name(accepted.attempt), "update": accepted.update}}


@router.get("/runs/{project}/{run}/updates")
def updates_page(request: Request, project: Name, run: Name, first: Number = None, last: Number = None) -> Response:
    """Valid-token batch, occupancy and losses along the trajectory."""
    source = reports_of(request)
    with open_books(source, project, run) as books:
        values = frame(books, source, "updates", "course", first=first, last=last, points=STRETCHES)
        values |= course_view(reports.course(books, first, last, STRETCHES), reports.objective(books), project, run)
    return _show("updates.html", values)


@router.get("/runs/{project}/{run}/coverage")
def coverage_page(
    request: Request, project: Name, run: Name, cursor: Annotated[str | None, Query(max_length=8192, pattern=STREAM_PATTERN)] = None
) -> Response:
    """Which data the model has seen, and how often."""
    source = reports_of(request)
    with open_books(source, project, run) as books:
        values = frame(books, source, "coverage", "coverage")
        found = reports.coverage(books, cursor, STREAMS_A_PAGE)
        values |= coverage_view(found, reports.covered(books), project, run)
    return _show("coverage.html", values)


@router.get("/runs/{project}/{run}/rates")
def rates_page(
    request: Request,
    project: Name,
    run: Name,
    quantity: Quantity = "valid_targets",
    work: Work = "applied",
    time: Annotated[list[str] | None, Query(max_length=6)] = None,
    window: Literal["run", "attempt", "last", "updates"] = "run",
    attempt: Annotated[str, Query(max_length=128)] = "",
    seconds: Annotated[str, Query(max_length=20)] = "300",
    span: Annotated[str, Query(max_length=40)] = "",
    per: Literal["job", "accelerator"] = "job",
) -> Response:
    """Rates, each with the sentence that says what it is."""
    source = reports_of(request)
    times = list(dict.fromkeys(time or ["update"]))
    whole = {"run": "run", "attempt": f"attempt:{attempt}", "last": f"last:{seconds}s", "updates": f"updates:{span}"}[window]
    asked: dict[str, Any] = {"quantity": quantity, "work": work, "time": times, "window": window, "per": per}
    asked |= {"attempt": attempt, "seconds": seconds, "span": span}
    with open_books(source, project, run) as books:
        query = {"quantity": quantity, "work": work, "time": ",".join(times), "window": whole, "per": per}
        answer, error = None, None
        try:
            answer = reports.rate(books, quantity, work, times, whole, per)
        except LedgerError as refused:
            error = refused.detail
        usual = [reports.rate(books, quantity, work_, [time_]) for work_, time_ in USUAL_RATES]
        names = [name for ordinal in reversed(books.tree.order) if (name := books.name(ordinal)) is not None]
        values = frame(books, source, "rates", "rates", **query)
    values |= rates_view(asked, answer, error, usual, names, values["rest"])
    return _show("rates.html", values, 200 if error is None else 422)


@router.get("/runs/{project}/{run}/conventions")
def conventions_page(request: Request, project: Name, run: Name) -> Response:
    """What the numbers of a run mean, and where that changed."""
    source = reports_of(request)
    with open_books(source, project, run) as books:
        described = {item["attempt"]: item for item in reports.described(books)["attempts"]}
        declared = [(described[str(books.name(ordinal))], books.conventions(ordinal)) for ordinal in books.tree.order]
        values = frame(books, source, "conventions", "") | conventions_view(declared, books.conventions(None))
    return _show("conventions.html", values)


@router.get("/runs/{project}/{run}/findings")
def findings_page(
    request: Request,
    project: Name,
    run: Name,
    kind: Kind | None = None,
    cursor: Annotated[str | None, Query(max_length=256, pattern=PLACE_PATTERN)] = None,
) -> Response:
    """What does not fit together, with the numbers that disagree and what to do."""
    source = reports_of(request)
    with open_books(source, project, run) as books:
        values = frame(books, source, "findings", "findings", kind=kind)
        found = reports.findings(books, cursor, FINDINGS_A_PAGE, kind)
        values |= findings_view(found, reports.exposure(books)["findings"], kind, project, run)
    return _show("findings.html", values)


@router.get("/runs/{project}/{run}/checkpoints")
def checkpoints_page(
    request: Request, project: Name, run: Name, number: Annotated[int, Query(alias="page", ge=1, le=HIGHEST_PAGE)] = 1
) -> Response:
    """The checkpoints of a run, newest first."""
    source = reports_of(request)
    with open_books(source, project, run) as books:
        values = frame(books, source, "checkpoints", "checkpoints")
        found = reports.checkpoints(books, None, len(books.tree.saves) or 1)["checkpoints"][::-1]
        pages = max(1, -(-len(found) // CHECKPOINTS_A_PAGE))
        shown = found[(number - 1) * CHECKPOINTS_A_PAGE : number * CHECKPOINTS_A_PAGE]
        values |= checkpoints_view(shown, min(number, pages), pages, project, run) | {"in_all": len(found)}
    return _show("checkpoints.html", values)


@router.get("/runs/{project}/{run}/checkpoints/{checkpoint:path}")
def checkpoint_page(
    request: Request,
    project: Name,
    run: Name,
    checkpoint: Annotated[str, Path(min_length=1, max_length=256)],
    attempt: Annotated[str | None, Query(max_length=128)] = None,
    update: Number = None,
) -> Response:
    """A checkpoint: all that led to it, across forks."""
    source = reports_of(request)
    with open_books(source, project, run) as books:
        values = frame(books, source, "checkpoints", "checkpoints")
        values |= checkpoint_view(reports.checkpoint_exposure(books, checkpoint, attempt, update), project, run)
    return _show("checkpoint.html", values | {"rest": checkpoint_rest_path(project, run, checkpoint, attempt, update)})
