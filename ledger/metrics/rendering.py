"""Families as bytes, a run at a time: what has not changed is not rendered again, only put between what has."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from ledger.metrics.catalogue import RUN_FAMILIES
from ledger.metrics.collector import Sample, families_of

OPENMETRICS = "application/openmetrics-text"
END = b"# EOF\n"
PLACES = {
    name.encode(): place
    for place, family in enumerate(RUN_FAMILIES)
    for name in (family.full_name, *([f"{family.full_name}_total"] if family.type == "counter" else []))
}
"""Where in the catalogue the family of a header is."""
HELP = b"# HELP "
Lines = dict[int, tuple[bytes, bytes]]
"""By place in the catalogue: the family's header, and the lines of its samples."""


@dataclass(frozen=True, slots=True)
class Format:
    """A form that a scrape may have; there are two, whatever a request asks for, so that what is kept of each is bounded."""

    media_type: str
    encoder: Callable[[CollectorRegistry], bytes]
    end: bytes


def _format(accept: str, end: bytes) -> Format:
    encoder, media_type = choose_encoder(accept)
    return Format(media_type, encoder, end)


PLAIN = _format("", b"")
OPEN = _format(f"{OPENMETRICS}; version=1.0.0", END)
FORMATS = (PLAIN, OPEN)


def format_of(accept: str) -> Format:
    """OpenMetrics where a request names it, the Prometheus text format otherwise.

    >>> format_of("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4").media_type
    'application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores'
    >>> format_of("text/html, */*").media_type
    'text/plain; version=0.0.4; charset=utf-8'
    """
    named = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return OPEN if OPENMETRICS in named else PLAIN


class Fixed:
    """Families that were read already, as the client library wants to be handed them."""

    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self.families

    def describe(self) -> Iterable[Metric]:
        """Nothing: the library would collect once more to learn names."""
        return []


def lines_of(samples: Sequence[Sample], form: Format) -> Lines:
    """Some samples as the library writes them, cut where a family begins."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Fixed(families_of(samples)))
    text = form.encoder(registry).removesuffix(form.end)
    return {PLACES[header[len(HELP) :].split(b" ", 1)[0]]: (header, body) for header, body in _cut(text)}


def _cut(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    # A label's line feeds are escaped, so a line that begins so is a header.
    for part in (b"\n" + text).split(b"\n" + HELP)[1:]:
        lines = (HELP + part.rstrip(b"\n") + b"\n").splitlines(keepends=True)
        headers = [line for line in lines if line.startswith(b"# ")]
        yield b"".join(headers), b"".join(lines[len(headers) :])


def page_of(parts: Iterable[Lines]) -> bytes:
    """All parts as one page: each family once, in the order of the catalogue, with the samples of all parts."""
    headers: dict[int, bytes] = {}
    bodies: dict[int, list[bytes]] = {}
    for part in parts:
        for place, (header, body) in part.items():
            headers[place] = header
            bodies.setdefault(place, []).append(body)
    return b"".join(headers[place] + b"".join(bodies[place]) for place in sorted(bodies))
