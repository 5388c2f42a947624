"""The charts of a report that leaves the service: each a drawing that carries its own style, with its figures in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.web import curve_drawing
from ledger.web.drawing import BAR_WIDTH_UNITS, stacked_bar
from ledger.web.rendering import templates
from ledger.web.wording import balance_sentence

BAR_HEIGHT_UNITS = 88
MARK_UNITS = 200


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing and what it shows in words, for whoever does not see it."""

    svg: str
    words: str


def _drawn(words: str, width: int, height: int, **parts: Any) -> Picture:
    svg = templates.get_template("report_chart.svg").render(words=words, width=width, height=height, **parts)
    # A blank line would end a drawing that lies in Markdown.
    return Picture("\n".join(line for line in svg.splitlines() if line.strip()), words)


def balance_picture(balance: Mapping[str, Any]) -> Picture | None:
    """The balance of one quantity as a stacked bar; nothing where nothing was attempted."""
    pieces = stacked_bar(balance)
    if not pieces:
        return None
    marks = [
        {"term": piece.term, "place": place * MARK_UNITS, "words": piece.term.replace("_", " ")} for place, piece in enumerate(pieces)
    ]
    return _drawn(balance_sentence(balance), BAR_WIDTH_UNITS, BAR_HEIGHT_UNITS, pieces=pieces, marks=marks)


def course_picture(stretches: Sequence[Mapping[str, Any]], series: str, words: str) -> Picture | None:
    """The mean of one series along the trajectory, a point a stretch; nothing where no update has a value."""
    points = {item["last"]: item["series"][series]["mean"] if series in item["series"] else None for item in stretches}
    places = sorted(points)
    drawing = curve_drawing.draw(places, [[points[place] for place in places]]) if places and places[-1] else None
    if drawing is None:
        return None
    known = [value for place in places if (value := points[place]) is not None]
    said = f"{words} over updates {min(item['first'] for item in stretches):,} to {places[-1]:,}: from {known[0]:,.6g} to {known[-1]:,.6g}"
    return _drawn(said, curve_drawing.WIDTH_UNITS, curve_drawing.HEIGHT_UNITS, drawing=drawing)
