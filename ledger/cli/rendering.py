"""A report in words and tables: pure, from the values of the exposure report to text or Markdown."""

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from ledger.domain.exposure import BUCKETS
from ledger.web.report_drawing import Picture
from ledger.web.wording import Json, counted, figure, finding_place, sentences, share

TERMS = ("attempted", *BUCKETS)
MOST_FINDINGS = 20
MARKUP = re.compile(r"([\\`*<>|]|\](?=[(\[:])|(?<!\w)_|_(?!\w))")
"""What Markdown would take for a mark: an underscore within a word is none, and brackets only before an address."""
NO_BREAK_SPACE = "\xa0"


@dataclass(frozen=True, slots=True)
class Grid:
    """A titled table; the first column holds words, the others figures unless `words` is set."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: bool = False
    notes: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """A report as people read it."""

    title: str
    sentences: tuple[str, ...]
    grids: tuple[Grid, ...]
    cautions: tuple[str, ...] = ()


def bounded(entry: Json, term: str) -> str:
    r"""One term of a balance in a table; what is only known in part is a lower bound and says so.

    >>> bounded({"skipped": None, "known": {"skipped": 40}}, "skipped"), bounded({"skipped": 7}, "skipped")
    ('≥\xa040', '7')
    """
    known = (entry.get("known") or {}).get(term)
    return f"≥{NO_BREAK_SPACE}{known:,}" if entry[term] is None and known is not None else figure(entry[term])


def _bound_sentences(exposure: Json) -> Iterator[str]:
    for quantity, entry in exposure["balance"].items():
        if entry["updates_unknown"]:
            groups = counted(entry["updates_unknown"], "group of work does", "groups of work do")
            yield f"{groups} not tell their {quantity.replace('_', ' ')}: a figure after ≥ is a lower bound, its true value is unknown."


def _term_rows(balance: Json, quantities: Sequence[str], main: str) -> Iterator[tuple[str, ...]]:
    for term in TERMS:
        cells = [bounded(balance[quantity], term) for quantity in quantities]
        yield (term.replace("_", " "), share(balance[main][term], balance[main]["attempted"]), *cells)
        if term == "skipped":
            yield from _reason_rows(balance, quantities, main)


def _reason_rows(balance: Json, quantities: Sequence[str], main: str) -> Iterator[tuple[str, ...]]:
    reasons = sorted({reason for quantity in quantities for reason in balance[quantity].get("skipped_by_reason") or {}})
    for reason in reasons:
        by_quantity = [(balance[quantity].get("skipped_by_reason") or {}) for quantity in quantities]
        cells = [figure(entry[reason]) if reason in entry else "" for entry in by_quantity]
        main_count = (balance[main].get("skipped_by_reason") or {}).get(reason)
        yield (f"  of it {reason}", share(main_count, balance[main]["attempted"]), *cells)


def _balance_grid(exposure: Json) -> Grid:
    balance = exposure["balance"]
    quantities = tuple(balance)
    main = "valid_targets" if "valid_targets" in balance else quantities[0]
    columns = ("", f"% of {main.replace('_', ' ')}", *(_headed(exposure, name) for name in quantities))
    return Grid("Balance", columns, tuple(_term_rows(balance, quantities, main)), notes=tuple(_bound_sentences(exposure)))


def _headed(exposure: Json, quantity: str) -> str:
    return f"{quantity.replace('_', ' ')} [{exposure['balance'][quantity]['unit']}]" if quantity in exposure["balance"] else quantity


def _beside_grid(exposure: Json) -> Grid:
    named = (("recomputed", exposure["recomputed"]), ("evaluation", exposure["evaluation"]), ("passed over", exposure["passed_over"]))
    quantities = tuple(dict.fromkeys(quantity for _, values in named for quantity in values))
    rows = tuple((name, *(figure(values[q]) if q in values else "" for q in quantities)) for name, values in named)
    return Grid("Beside the balance", ("", *(_headed(exposure, name) for name in quantities)), rows)


def _findings_grid(exposure: Json, findings: Sequence[Json]) -> Grid:
    counts = ", ".join(f"{kind} {count:,}" for kind, count in exposure["findings"].items() if count) or "none"
    rows = tuple((str(item["kind"]), finding_place(item), str(item["message"])) for item in findings[:MOST_FINDINGS])
    return Grid(f"Findings: {counts}", ("kind", "place", "what"), rows, words=True)


def document_of(exposure: Json, findings: Sequence[Json]) -> Document:
    """The exposure report with its first findings, as people read it."""
    return Document(
        f"Run {exposure['project']}/{exposure['run']}",
        sentences(exposure),
        (_balance_grid(exposure), _beside_grid(exposure), _findings_grid(exposure, findings)),
    )


def as_markdown(document: Document) -> str:
    """The document as Markdown, its charts as images that lie in the text itself."""
    lines = [f"# {_plain(document.title)}", "", *_paragraphs(document.sentences)]
    for grid in document.grids:
        lines += ["", f"## {_plain(grid.title)}"]
        for picture in grid.pictures:
            lines += ["", _image(picture)]
        if grid.rows:
            rule = ["---"] + ["---" if grid.words else "---:"] * (len(grid.columns) - 1)
            lines += ["", _row(grid.columns), _row(rule), *(_row(row) for row in grid.rows)]
        if grid.notes:
            lines += ["", *_paragraphs(grid.notes)]
    if document.cautions:
        lines += ["", "---", "", *_paragraphs(document.cautions)]
    return "\n".join(lines) + "\n"


def _paragraphs(sentences: Sequence[str]) -> Iterator[str]:
    for place, sentence in enumerate(sentences):
        yield from ("", _plain(sentence)) if place else (_plain(sentence),)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is: what a trainer named itself is no markup and no HTML."""
    return MARKUP.sub(r"\\\1", text.replace("\n", " "))


def _image(picture: Picture) -> str:
    return f"![{_plain(picture.words)}](data:image/svg+xml;base64,{base64.b64encode(picture.svg.encode()).decode()})"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(cell.strip()) for cell in cells) + " |"


def print_text(document: Document, console: Console) -> None:
    """The document on a terminal."""
    console.print(document.title, style="bold", highlight=False, markup=False)
    for sentence in document.sentences:
        console.print(sentence, highlight=False, markup=False, soft_wrap=not console.is_terminal)
    for grid in document.grids:
        console.print()
        console.print(grid.title, style="bold", highlight=False, markup=False)
        if grid.rows:
            console.print(_table(grid), highlight=False, markup=False)
        for note in grid.notes:
            console.print(note, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def _table(grid: Grid) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, column in enumerate(grid.columns):
        # A figure that is cut off would be another figure: what does not fit goes on in the next line.
        table.add_column(column, justify="left" if grid.words or place == 0 else "right", overflow="fold", no_wrap=place == 0)
    for row in grid.rows:
        table.add_row(*row)
    return table
