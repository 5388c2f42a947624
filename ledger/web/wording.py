"""Figures and sentences of a report as people read them; pages and the command line say the same."""

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]
UNKNOWN = "unknown"
LEAST_SHOWN_PERCENT = 0.05
"""What lies below would be shown as 0.0 %."""


def figure(value: int | None, known: int | None = None) -> str:
    """A count; what is unknown is never shown as 0.

    >>> figure(1234567), figure(None, 30), figure(None)
    ('1,234,567', 'unknown (at least 30)', 'unknown')
    """
    if value is not None:
        return f"{value:,}"
    return UNKNOWN if known is None else f"{UNKNOWN} (at least {known:,})"


def term_figure(entry: Json, term: str) -> str:
    """One term of a balance."""
    return figure(entry[term], (entry.get("known") or {}).get(term))


def share(value: int | None, whole: int | None) -> str:
    """A share in percent; nothing where it cannot be said.

    >>> share(252, 360), share(1, 1_000_000), share(None, 3), share(0, 0)
    ('70.0 %', '<0.1 %', '', '')
    """
    if value is None or not whole:
        return ""
    percent = 100 * value / whole
    return "<0.1 %" if 0 < percent < LEAST_SHOWN_PERCENT else f"{percent:.1f} %"


def trajectory_sentence(exposure: Json) -> str:
    """The trajectory."""
    parts = [_stretch(segment) for segment in exposure["trajectory"]]
    if not parts:
        return "Nothing lies on the trajectory yet."
    head = exposure["as_of"].get("head")
    return f"The trajectory is {', then '.join(parts)}" + (f"; the head is {head}." if head else ".")


def _stretch(segment: Json) -> str:
    first, last = segment["after"], segment["through"]
    if last is None or (first is not None and last <= first):
        return f"{segment['attempt']} (no update yet)"
    return f"{segment['attempt']} (updates {(first or 0) + 1:,} to {last:,})"


def checkpoint_sentence(exposure: Json) -> str:
    """How far progress is safe."""
    accepted = exposure["accepted_checkpoint"]
    if accepted is None:
        return "No checkpoint on it has been accepted, so nothing is preserved yet."
    return f"Preserved up to update {accepted['update']:,} by checkpoint {accepted['checkpoint']} of {accepted['attempt']}."


def updates_sentence(exposure: Json) -> str:
    """What the optimizer did."""
    updates = exposure["updates"]
    parts = [f"{updates['applied']:,} applied", f"{updates['skipped']:,} skipped"]
    parts += [f"{updates[name]:,} {name}" for name in ("abandoned", "held") if updates[name]]
    redone = f" {updates['recomputed']:,} redid a number that had been attempted before." if updates["recomputed"] else ""
    return f"{updates['attempted']:,} updates were attempted: {', '.join(parts)}.{redone}"


def completeness_sentence(exposure: Json) -> str:
    """The moment that the report reflects."""
    as_of = exposure["as_of"]
    through = as_of.get("complete_through_update")
    complete = "" if through is None else f"; every shard has reported up to update {through:,}"
    return f"As of entry {as_of['events']:,} of the journal, {as_of['at']}{complete}."


def sentences(exposure: Json) -> tuple[str, ...]:
    """The report in four sentences."""
    return (
        trajectory_sentence(exposure),
        checkpoint_sentence(exposure),
        updates_sentence(exposure),
        completeness_sentence(exposure),
    )


def finding_place(finding: Json) -> str:
    """Where a finding lies."""
    parts = [str(finding["attempt"])] if finding.get("attempt") else []
    parts += [f"{name} {finding[name]}" for name in ("update", "rank") if finding.get(name) is not None]
    return ", ".join(parts)
