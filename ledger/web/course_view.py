"""What the page of the updates shows: each series along the trajectory, the mean of each stretch inside its lowest and highest."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ledger.web.addresses import rest_path, run_path
from ledger.web.drawing import HEIGHT_UNITS, Axis, axis_of, band, evenly, steps, tick_words
from ledger.web.wording import between, counted, figure

Json = Mapping[str, Any]
STRETCHES = 400
SMALLEST_ZOOM = 20
"""A stretch that holds less is shown with its neighbours."""
MANY_EDGES = 60
"""With more changes of attempt than this in view they are not marked."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: its series, the first with a line and a band, the others with a line."""

    name: str
    title: str
    words: str
    series: tuple[str, ...]
    percent: bool = False


PANELS = (
    Panel("batch", "Valid-token batch", "eligible prediction targets of an applied update, over all ranks", ("valid_targets",)),
    Panel("occupancy", "Occupancy", "valid targets in an input slot", ("occupancy",), percent=True),
    Panel("loss", "Token mean", "sum of the negative log likelihood over sum of the valid targets, in nats", ("token_mean",)),
    Panel(
        "gap",
        "Other means against the token mean",
        "how far the mean of rank means (line, band) and of microbatch means (dashed) lie above it, in nats; 0 is no difference",
        ("rank_gap", "microbatch_gap"),
    ),
)
COLUMNS = (
    ("updates", "updates", "figure"),
    ("attempt", "attempt", ""),
    ("fate", "fate", ""),
    ("applied", "applied", "figure"),
    ("skipped", "skipped", "figure"),
    ("valid_targets", "valid targets", "figure"),
    ("occupancy", "occupancy", "figure"),
    ("token_mean", "token mean", "figure"),
    ("rank_gap", "rank means above it", "figure"),
    ("microbatch_gap", "microbatch means above it", "figure"),
)


def _targets(entry: Json) -> str:
    mean = f"{entry['mean']:,.0f}"
    extremes = between(f"{entry['lowest']:,.0f}", f"{entry['highest']:,.0f}")
    return mean if entry["lowest"] == entry["highest"] else f"{mean} ({extremes})"


FORMS: dict[str, Callable[[Json], str]] = {
    "valid_targets": _targets,
    "occupancy": lambda entry: f"{100 * entry['mean']:.1f} %",
    "token_mean": lambda entry: f"{entry['mean']:.4f}",
    "rank_gap": lambda entry: f"{entry['mean']:+.5f}",
    "microbatch_gap": lambda entry: f"{entry['mean']:+.5f}",
}


def course_view(course: Json, objective: Json, project: str, run: str) -> dict[str, Any]:
    """The page of the updates."""
    stretches, whole = course["stretches"], course["trajectory"]
    first = stretches[0]["first"] if stretches else course["first"]
    last = stretches[-1]["last"] if stretches else course["last"]
    x = Axis(first - 0.5, last + 0.5, evenly(first, last).ticks)
    skipped = sum(stretch["updates"]["skipped"] for stretch in stretches)
    path = run_path(project, run, "updates")
    return {
        "range": {"first": course["first"], "last": course["last"], "whole": whole},
        "lead": _lead(stretches, skipped),
        "panels": [panel for panel in (_panel(panel, stretches, x) for panel in PANELS) if panel is not None],
        "skips": _skips(stretches, x) if skipped else None,
        "edges": _edges(stretches, x),
        "xs": [figure(int(value)) for value in x.ticks],
        "columns": COLUMNS,
        "rows": [_row(stretch, x, path) for stretch in stretches],
        "zooms": list(_zooms(course, path)),
        "objective": objective["statement"],
        "objective_figures": list(_objective_figures(objective)),
        "objective_rest": rest_path(project, run, "objective"),
        "single_rest": rest_path(project, run, "updates", points=200),
    }


def _lead(stretches: Sequence[Json], skipped: int) -> str:
    if not stretches:
        return "No update of this range lies on the trajectory."
    applied = sum(stretch["updates"]["applied"] for stretch in stretches)
    held = sum(stretch["updates"]["held"] for stretch in stretches)
    words = f"{counted(applied, 'applied update', 'applied updates')} and {skipped:,} skipped on the trajectory"
    words += f", {held:,} held" if held else ""
    longest = max(stretch["last"] - stretch["first"] + 1 for stretch in stretches)
    how = "each drawn" if longest == 1 else f"drawn in stretches of up to {longest:,}, the mean inside the lowest and the highest"
    return f"{words}, {how}. Work that restarts left behind is not among them."


def _panel(panel: Panel, stretches: Sequence[Json], x: Axis) -> dict[str, Any] | None:
    main = panel.series[0]
    values = [stretch["series"][name][end] for stretch in stretches for name in panel.series if name in stretch["series"]
              for end in (("lowest", "highest") if name == main else ("mean",))]  # fmt: skip
    if not values:
        return None
    y = axis_of(min(values), max(values))
    found = [stretch["series"] for stretch in stretches]
    spans = [(x.x(stretch["first"] - 0.5), x.x(stretch["last"] + 0.5)) for stretch in stretches]
    lines = [
        steps((*span, y.y(series[name]["mean"]) if name in series else None) for span, series in zip(spans, found, strict=True))
        for name in panel.series
    ]
    low, high = min(values), max(values)
    return {
        "name": panel.name,
        "title": panel.title,
        "words": panel.words,
        "ys": [tick_words(value, panel.percent) for value in reversed(y.ticks)],
        "grid": [y.y(value) for value in y.ticks],
        "band": band(
            (*span, y.y(series[main]["lowest"]), y.y(series[main]["highest"]))
            for span, series in zip(spans, found, strict=True)
            if main in series and series[main]["lowest"] < series[main]["highest"]
        ),
        "lines": lines,
        "description": f"Between {tick_words(low, panel.percent)} and {tick_words(high, panel.percent)}. "
        "The table below has every stretch.",
    }


def _skips(stretches: Sequence[Json], x: Axis) -> dict[str, Any]:
    most = max(stretch["updates"]["skipped"] for stretch in stretches)
    y = axis_of(0, most, 3)
    bars = []
    for stretch in stretches:
        count = stretch["updates"]["skipped"]
        if count:
            middle = x.x((stretch["first"] + stretch["last"]) / 2)
            bars.append(f"M{middle} {HEIGHT_UNITS}V{y.y(count)}")
    return {"path": "".join(bars), "ys": [tick_words(y.ticks[-1]), "0"], "description": f"At most {most:,} in one stretch."}


def _edges(stretches: Sequence[Json], x: Axis) -> str:
    changes = [after["first"] for before, after in pairwise(stretches) if before["attempt"] != after["attempt"]]
    return "" if len(changes) > MANY_EDGES else "".join(f"M{x.x(number - 0.5)} 0V{HEIGHT_UNITS}" for number in changes)


def _row(stretch: Json, x: Axis, path: str) -> dict[str, Any]:
    first, last = stretch["first"], stretch["last"]
    words = f"{first:,}" if first == last else between(f"{first:,}", f"{last:,}")
    margin = max(0, SMALLEST_ZOOM - (last - first + 1)) // 2
    address = f"{path}?first={max(0, first - margin)}&last={last + margin}"
    return {
        "updates": {"words": words, "href": address, "zoom": True} if first < last else words,
        "attempt": stretch["attempt"],
        "fate": stretch["fate"],
        "applied": figure(stretch["updates"]["applied"]),
        "skipped": figure(stretch["updates"]["skipped"]) if stretch["updates"]["skipped"] else "",
        **{name: form(stretch["series"][name]) if name in stretch["series"] else "unknown" for name, form in FORMS.items()},
        "begin": round(x.x(first - 0.5)),
        "end": round(x.x(last + 0.5)),
    }


def _zooms(course: Json, path: str) -> Iterable[dict[str, Any]]:
    whole = course["trajectory"]
    if whole is None:
        return
    shown = (course["first"], course["last"])
    yield {"words": "whole trajectory", "href": path, "chosen": shown == (whole["first"], whole["last"])}
    for size in (10_000, 1_000, 100):
        first = whole["last"] - size + 1
        if first > whole["first"]:
            place = (first, whole["last"])
            yield {"words": f"last {size:,}", "href": f"{path}?first={first}&last={whole['last']}", "chosen": shown == place}
    size = shown[1] - shown[0] + 1
    if shown != (whole["first"], whole["last"]):
        wider = (max(whole["first"], shown[0] - size), min(whole["last"], shown[1] + size))
        yield {"words": "zoom out", "href": f"{path}?first={wider[0]}&last={wider[1]}", "chosen": False}


def _objective_figures(objective: Json) -> Iterable[dict[str, str]]:
    gap = objective["largest_gap"]
    if objective["token_mean_of_last"] is not None:
        yield {"words": "token mean of the newest update", "figure": f"{objective['token_mean_of_last']:.4f} nats"}
    if gap is not None and gap["token_mean"] != gap["mean_of_rank_means"]:
        between = f"{gap['token_mean']:.4f} and {gap['mean_of_rank_means']:.4f} nats"
        yield {"words": f"token mean and mean of rank means, where they differ most (update {gap['update']:,})", "figure": between}
    elif gap is not None:
        yield {"words": "token mean and mean of rank means", "figure": "the same wherever both are known"}
    if objective["loss_scale_rule"]:
        yield {"words": "loss scale that gives the gradient of the token mean", "figure": str(objective["loss_scale_rule"])}
