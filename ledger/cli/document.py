"""A report that stands alone, to be attached to a paper or a model card: everything of one offset, with units, conventions and a digest."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ledger.cli.rendering import Document, Grid, document_of
from ledger.services.juxtaposition import NO_LEARNING_RATE_RULE, NOT_EQUAL_GRADIENTS
from ledger.web.compare_view import value_words
from ledger.web.rendering import templates
from ledger.web.report_drawing import Picture, balance_picture, course_picture
from ledger.web.wording import Json, counted, figure, share, stretch_words, width

MOST_STREAMS = 100
COURSE_POINTS = 120


@dataclass(frozen=True, slots=True)
class Parts:
    """The reports that a document is made from, all of one offset."""

    exposure: Json
    findings: list[dict[str, Any]]
    record: Json
    coverage: Json
    course: Json


def document(parts: Parts) -> Document:
    """The whole document."""
    short = document_of(parts.exposure, parts.findings)
    balance, beside, findings = short.grids
    main = parts.exposure["balance"]["valid_targets"]
    record = parts.record
    return Document(
        short.title,
        (*short.sentences, f"The record of this offset has the digest {record['digest']}."),
        (
            replace(balance, pictures=_pictures([balance_picture(main)])),
            beside,
            _batch_grid(record["valid_token_batch"], parts.course),
            _losses_grid(record, parts.course),
            _mixture_grid(record),
            _coverage_grid(parts.coverage),
            Grid("Rates", (), (), notes=tuple(rate["statement"] for rate in record["rates"])),
            _attempts_grid(record),
            _conventions_grid(record),
            findings,
        ),
        (NOT_EQUAL_GRADIENTS, NO_LEARNING_RATE_RULE),
    )


def _pictures(found: Iterable[Picture | None]) -> tuple[Picture, ...]:
    return tuple(picture for picture in found if picture is not None)


def _batch_grid(batch: Json, course: Json) -> Grid:
    """How the valid-token batch is distributed."""
    shares = {f"{float(key):.0%}".replace("%", " %"): value for key, value in batch["quantiles"].items()}
    mean = "unknown" if batch["mean"] is None else f"{batch['mean']:,.6g}"
    cells = (figure(batch["lowest"]), *(figure(value) for value in shares.values()), figure(batch["highest"]), mean)
    notes = [f"In targets, over {counted(batch['updates'], 'applied update', 'applied updates')} on the trajectory."]
    if batch["updates_unknown"]:
        notes.append(f"{counted(batch['updates_unknown'], 'update', 'updates')} of them with an unknown batch are in no figure.")
    if not batch["quantiles_exact"]:
        notes.append(f"The shares are read from {batch['quantiles_from']:,} updates, spread evenly over the trajectory.")
    picture = course_picture(course["stretches"], "valid_targets", "Valid-token batch [targets]")
    columns = ("", "lowest", *shares, "highest", "mean")
    return Grid("Valid-token batch", columns, (("targets", *cells),), notes=tuple(notes), pictures=_pictures([picture]))


def _losses_grid(record: Json, course: Json) -> Grid:
    """What the reported loss is, and the course of the token mean."""
    picture = course_picture(course["stretches"], "token_mean", "Token mean [nats a target]")
    return Grid("Objective", (), (), notes=(record["objective"]["statement"],), pictures=_pictures([picture]))


def _mixture_grid(record: Json) -> Grid:
    rows = tuple(
        (item["stream"], share(item["effective_total"], sum(other["effective_total"] for other in record["streams"])),
         figure(item["effective_total"]), figure(item["effective_unique"]), figure(item["epochs"]), item["unit"])
        for item in record["streams"]
    )  # fmt: skip
    notes = () if rows else ("No data ranges have been posted, so what was drawn is unknown.",)
    return Grid("Data mixture", ("stream", "share", "drawn", "drawn at least once", "epochs", "unit"), rows, notes=notes)


def _coverage_grid(coverage: Json) -> Grid:
    """How often the data was seen."""
    rows = tuple(_coverage_row(item) for item in coverage["streams"][:MOST_STREAMS])
    notes = ["Of applied updates on the trajectory, in the unit of the stream; gaps lie below the highest position drawn."] if rows else []
    if len(coverage["streams"]) > MOST_STREAMS or coverage["next_cursor"]:
        notes.append(f"The first {MOST_STREAMS} streams and epochs are listed.")
    if any(item["truncated"] for item in coverage["streams"]):
        notes.append("A figure after ≥ is of the first ranges only.")
    columns = ("stream, epoch", "seen once", "seen more often", "repeated", "in gaps", "without effect", "passed over")
    return Grid("Coverage", columns, rows, notes=tuple(notes))


def _coverage_row(item: Json) -> tuple[str, ...]:
    once = item["times_seen"].get("1", 0)
    bound = "≥\xa0" if item["truncated"] else ""
    spans = (f"{bound}{width(item[name]):,}" for name in ("repeated", "gaps", "without_effect", "passed_over"))
    return (f"{item['stream']}, {item['epoch']:,}", figure(once), figure(item["effective_unique"] - once), *spans)


def _attempts_grid(record: Json) -> Grid:
    """Each attempt with its part of the trajectory and its topology."""
    rows = []
    for item in record["attempts"]:
        topology = item["topology"]
        place = stretch_words(item) if item["on_trajectory"] else "off it"
        length = "not declared" if item["sequence_length"] is None else value_words(item["sequence_length"])
        counts = (figure(topology[name]) for name in ("data_parallel_ranks", "shards", "ranks"))
        rows.append((item["attempt"], place, *counts, length, item["loss_scale_rule"]))
    columns = ("attempt", "on the trajectory", "data-parallel ranks R", "shards", "ranks", "sequence length [tokens]", "loss scale")
    return Grid("Attempts and topology", columns, tuple(rows))


def _conventions_grid(record: Json) -> Grid:
    """What was declared, an attempt's value where it differs from the others'."""
    rows = tuple(_convention_rows(record["attempts"]))
    changed = [name.replace("_", " ") for name in record["conventions_changed"]]
    notes = [f"Changed between attempts of the trajectory: {', '.join(changed)}."] if changed else []
    return Grid("Conventions", ("convention", "declared"), rows, words=True, notes=(*notes, *(() if rows else ("None were declared.",))))


def _convention_rows(attempts: Iterable[Json]) -> Iterator[tuple[str, str]]:
    declared: list[tuple[str, Mapping[str, Any]]] = [(item["attempt"], item["conventions"]) for item in attempts]
    for key in sorted({key for _, item in declared for key in item}):
        words = [(name, value_words(item.get(key))) for name, item in declared]
        alike = len({value for _, value in words}) == 1
        yield key.replace("_", " "), words[0][1] if alike else "; ".join(f"{name}: {value}" for name, value in words)


def as_html(made: Document) -> str:
    """The document as one HTML file that loads nothing and runs nothing."""
    return templates.get_template("report.html").render(document=made)
