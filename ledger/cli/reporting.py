"""`ledger report`: where the work of a run ended up."""

from enum import StrEnum
from typing import Annotated

import typer
from pydantic_core import to_json
from rich.console import Console

from ledger.cli.rendering import MOST_FINDINGS, as_markdown, document_of, print_text
from ledger.cli.sources import RUN_HELP, DatabaseUrl, ServiceUrl, open_reports, split_run

FILE_WIDTH = 140
"""Width of what is not written to a terminal."""


class Form(StrEnum):
    """How the report is written."""

    text = "text"
    json = "json"
    markdown = "markdown"


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)],
    form: Annotated[Form, typer.Option("--format", help="How the report is written.")] = Form.text,
    head: Annotated[str | None, typer.Option(help="Report as if this attempt were the head.")] = None,
    url: ServiceUrl = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Show where the work of a run ended up: its balance, trajectory and findings.

    Exit codes: 0 fine, 2 wrong usage, 3 the run is unknown or the ledger cannot be reached.
    """
    project, name = split_run(run)
    with open_reports(url, database_url) as source:
        exposure = source.exposure(project, name, head)
        findings = [] if form is Form.json else source.findings(project, name, MOST_FINDINGS)
    match form:
        case Form.json:
            typer.echo(to_json(exposure, indent=2, inf_nan_mode="strings").decode())
        case Form.markdown:
            typer.echo(as_markdown(document_of(exposure, findings)), nl=False)
        case Form.text:
            console = Console()
            if not console.is_terminal:
                console.width = FILE_WIDTH
            print_text(document_of(exposure, findings), console)
