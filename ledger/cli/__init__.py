"""The command line `ledger`: one module a command group.

| exit code | meaning |
|---|---|
| 0 | fine |
| 1 | a difference was found |
| 2 | wrong usage, or a setting that cannot be |
| 3 | something is unknown, or cannot be reached |
"""

import sys

import typer

from ledger.cli import database, demo, exporting, reporting, serving, verifying

EXIT_CODES = "Exit codes: 0 fine, 1 a difference was found, 2 wrong usage, 3 something is unknown or cannot be reached."

app = typer.Typer(
    name="ledger",
    help="Training Ledger: what a model was really trained on, and what the rest of the compute went to.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("serve")(serving.serve)
app.add_typer(database.app, name="db")
app.command("report")(reporting.report)
app.command("verify")(verifying.verify)
app.command("export")(exporting.export_run)
app.command("demo")(demo.demo)


def main() -> None:
    """Runs the command line."""
    sys.exit(app())
