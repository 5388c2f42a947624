"""`ledger report`: where the work of a run ended up."""

from enum import StrEnum
from typing import Annotated

import typer
from pydantic_core import to_json
from rich.console import Console

from ledger.cli.document import COURSE_POINTS, Parts, as_html, document
from ledger.cli.rendering import MOST_FINDINGS, as_markdown, document_of, print_text
from ledger.cli.sources import RUN_HELP, USAGE, DatabaseUrl, ServiceUrl, fail, open_reports, split_run

FILE_WIDTH = 140
"""Width of what is not written to a terminal."""


class Form(StrEnum):
    """How the report is written."""

    text = "text"
    json = "json"
    markdown = "markdown"
    html = "html"


WHOLE = (Form.markdown, Form.html)
"""Forms that stand alone: one file with everything, its charts in it."""


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)],
    form: Annotated[Form, typer.Option("--format", help="How the report is written.")] = Form.text,
    head: Annotated[str | None, typer.Option(help="Report as if this attempt were the head.")] = None,
    url: ServiceUrl = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Show where the work of a run ended up: its balance, trajectory and findings.

    The formats markdown and html make one file that can be attached to a paper or a model card: balance, valid-token batch, data mixture,
    coverage, rates, conventions and findings with their units, charts in the file itself, and the digest of the run's record.

    Exit codes: 0 fine, 2 wrong usage, 3 the run is unknown or the ledger cannot be reached.
    """
    project, name = split_run(run)
    if form in WHOLE and head is not None:
        fail(USAGE, "--head goes with the formats text and json: a document is of the run's own head")
    with open_reports(url, database_url) as source:
        if form in WHOLE:
            made = document(Parts(**source.parts(project, name, MOST_FINDINGS, COURSE_POINTS)))
            typer.echo(as_html(made) if form is Form.html else as_markdown(made), nl=False)
            return
        exposure = source.exposure(project, name, head)
        findings = [] if form is Form.json else source.findings(project, name, MOST_FINDINGS)
    if form is Form.json:
        typer.echo(to_json(exposure, indent=2, inf_nan_mode="strings").decode())
        return
    console = Console()
    if not console.is_terminal:
        console.width = FILE_WIDTH
    print_text(document_of(exposure, findings), console)
