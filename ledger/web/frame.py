"""What surrounds every page of a run: its name, how it stands, its pages, and the moment that it speaks of."""

from typing import Any

from ledger.services.books import Books, Reports
from ledger.services.standing import status
from ledger.web.addresses import rest_path, run_path
from ledger.web.rendering import read_at

REFRESH_SECONDS = 15
PARTS = (
    ("", "Balance"),
    ("trajectory", "Trajectory"),
    ("updates", "Updates"),
    ("coverage", "Coverage"),
    ("rates", "Rates"),
    ("checkpoints", "Checkpoints"),
    ("conventions", "Conventions"),
    ("findings", "Findings"),
)
"""The pages of a run: (last part of the address, word)."""


def frame(books: Books, source: Reports, part: str, rest_part: str, **query: object) -> dict[str, Any]:
    """The values that the frame of a page needs; a run that has ended is not read again by itself.

    `rest_part` and `query` are the REST call that gives what the page shows.
    """
    project, run = books.run.project, books.run.name
    head = None if books.head is None else books.launches[books.head].attempt
    state = status(books)
    return {
        "project": project,
        "run": run,
        "title": f"{project}/{run}",
        "state": "waiting" if head is None else state,
        "state_words": "no attempt yet" if head is None else f"{head.name} {head.ended or f'is {state}'}",
        "tabs": [{"words": words, "href": run_path(project, run, name), "current": name == part} for name, words in PARTS],
        "part_words": dict(PARTS)[part],
        "as_of": books.as_of(),
        "read_at": read_at(source),
        "refresh_seconds": None if state == "ended" else REFRESH_SECONDS,
        "rest": rest_path(project, run, rest_part, **query),
    }
