"""Figures and sentences of a report as people read them; pages and the command line say the same."""

from collections.abc import Mapping, Sequence
from typing import Any

from ledger.domain.exposure import BUCKETS

Json = Mapping[str, Any]
UNKNOWN = "unknown"
NOTHING = "\N{EN DASH}"
"""In place of a figure that there is none of."""
MOST_STRETCHES = 6
"""A sentence names no more stretches of a trajectory; a list has them all."""
LEAST_SHOWN_SECONDS = 0.001
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


def moment(text: str | None) -> str:
    """A moment to the second, in UTC as reports give it.

    >>> moment("2026-11-29T12:00:01.123456Z"), moment(None)
    ('2026-11-29 12:00:01 UTC', '')
    """
    return "" if text is None else f"{text[:19].replace('T', ' ')} UTC"


def between(low: str, high: str) -> str:
    """Two figures as what lies between them.

    >>> len(between("1", "2"))
    3
    """
    return f"{low}\N{EN DASH}{high}"


def span_words(start: int, stop: int) -> str:
    """A half-open range.

    >>> span_words(7, 8)
    '7'
    """
    return f"{start:,}" if stop == start + 1 else f"{start:,} \N{EN DASH} {stop:,}"


def lasting(seconds: float | None) -> str:
    """How many seconds something took, to three digits.

    >>> lasting(0.0123456), lasting(1.66), lasting(1234.5), lasting(0.0004), lasting(None)
    ('0.0123', '1.66', '1,234', '<0.001', '')
    """
    if seconds is None:
        return ""
    return "<0.001" if 0 < seconds < LEAST_SHOWN_SECONDS else f"{seconds:.3g}" if seconds < 100 else f"{seconds:,.0f}"


def age(seconds: float) -> str:
    """How long ago something was, in its largest whole unit.

    >>> age(0.4), age(61), age(7300), age(200_000)
    ('just now', '1 min ago', '2 h ago', '2 days ago')
    """
    for size, words in ((172_800, "days"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{int(seconds // (86_400 if words == 'days' else size)):,} {words} ago"
    return "just now"


def counted(count: int, singular: str, plural: str) -> str:
    """A number with its noun.

    >>> counted(1, "update was", "updates were"), counted(2000, "update was", "updates were")
    ('1 update was', '2,000 updates were')
    """
    return f"{count:,} {singular if count == 1 else plural}"


def trajectory_sentence(exposure: Json) -> str:
    """The trajectory."""
    if not exposure["trajectory"]:
        return "Nothing lies on the trajectory yet."
    nothing = exposure["updates"]["attempted"] == 0
    parts = [stretch_words(segment, nothing) for segment in exposure["trajectory"]]
    parts = [f"{segment['attempt']} ({words})" for segment, words in zip(exposure["trajectory"], parts, strict=True)]
    head = exposure["as_of"].get("head")
    if len(parts) > MOST_STRETCHES:
        parts = [*parts[: MOST_STRETCHES // 2], f"{len(parts) - MOST_STRETCHES // 2 - 1:,} more attempts", parts[-1]]
    return f"The trajectory is {', then '.join(parts)}" + (f"; the head is {head}." if head else ".")


def stretch_words(segment: Json, nothing: bool = False) -> str:
    """A stretch of the trajectory in update numbers; trainers count from 0 or from 1, so the first stretch has no first number.

    >>> stretch_words({"after": 0, "through": 4}), stretch_words({"after": 4, "through": 7}), stretch_words({"after": 4, "through": 4})
    ('up to update 4', 'updates 5 to 7', 'no update yet')
    """
    after, through = segment["after"], segment["through"]
    if through is None or nothing or (after and through <= after):
        return "no update yet"
    if not after:
        return f"up to update {through:,}"
    return f"update {through:,}" if through == after + 1 else f"updates {after + 1:,} to {through:,}"


def checkpoint_sentence(exposure: Json) -> str:
    """How far progress is safe."""
    accepted = exposure["accepted_checkpoint"]
    if accepted is None:
        return "No checkpoint on it has been accepted, so nothing is preserved yet."
    place = f"checkpoint {accepted['checkpoint']} of {accepted['attempt']}"
    return f"What was applied on it up to update {accepted['update']:,} is preserved, by {place}."


def updates_sentence(exposure: Json) -> str:
    """What the optimizer did."""
    updates = exposure["updates"]
    parts = [f"{updates['applied']:,} applied", f"{updates['skipped']:,} skipped"]
    parts += [f"{updates[name]:,} {name}" for name in ("abandoned", "held") if updates[name]]
    if not updates["attempted"]:
        return "No update has been attempted yet."
    redone = f" {updates['recomputed']:,} of them redid a number that had been attempted before." if updates["recomputed"] else ""
    return f"{counted(updates['attempted'], 'update was', 'updates were')} attempted: {', '.join(parts)}.{redone}"


def completeness_sentence(exposure: Json) -> str:
    """The moment that the report reflects."""
    as_of = exposure["as_of"]
    through = as_of.get("complete_through_update")
    complete = "" if through is None else f"; every shard has reported up to update {through:,}"
    return f"As of entry {as_of['events']:,} of the journal, {moment(as_of['at'])}{complete}."


def sentences(exposure: Json) -> tuple[str, ...]:
    """The report in four sentences."""
    return (
        trajectory_sentence(exposure),
        checkpoint_sentence(exposure),
        updates_sentence(exposure),
        completeness_sentence(exposure),
    )


def balance_sentence(balance: Json) -> str:
    """The balance as one equation.

    >>> terms = {"preserved": 7, "pending": 0, "lost_to_restart": 2, "skipped": 0, "dropped": 0}
    >>> balance_sentence({"unit": "targets", "attempted": 9, **terms})
    '9 targets attempted = 7 preserved + 0 pending + 2 lost to restart + 0 skipped + 0 dropped'
    """
    if balance["attempted"] is None:
        at_least = figure((balance.get("known") or {}).get("attempted"))
        return f"How many {balance['unit']} were attempted is unknown; what is known adds up to {at_least}, a lower bound."
    terms = " + ".join(f"{figure(balance[term], (balance.get('known') or {}).get(term))} {term.replace('_', ' ')}" for term in BUCKETS)
    return f"{balance['attempted']:,} {balance['unit']} attempted = {terms}"


def width(spans: Sequence[Sequence[int]]) -> int:
    """How much half-open ranges hold."""
    return sum(stop - start for start, stop in spans)


def finding_place(finding: Json) -> str:
    """Where a finding lies."""
    parts = [str(finding["attempt"])] if finding.get("attempt") else []
    parts += [f"{name} {finding[name]:,}" for name in ("update", "rank") if finding.get(name) is not None]
    return ", ".join(parts)
