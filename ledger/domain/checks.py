"""What a single event may not say; such an event is refused by name and everything else in its batch is kept."""

import numpy as np

from ledger.domain.columns import Events, Texts
from ledger.domain.events import CHECKPOINT_STATES
from ledger.domain.layout import Layout

LONGEST_TEXT = 512
STARTED = CHECKPOINT_STATES.index("started")

Refusal = tuple[int, str, str]
"""(row, code, detail)"""


def _texts(events: Events) -> list[Refusal]:
    found = []
    for column in events.kind.columns:
        value = events.columns[column.name]
        if not isinstance(value, Texts):
            continue
        bad = {code for code, text in enumerate(value.values) if len(text) > LONGEST_TEXT or not text.isprintable()}
        if bad:
            detail = f"{column.name} must be printable and at most {LONGEST_TEXT} characters"
            found += [(row, "invalid_text", detail) for row in np.flatnonzero(np.isin(value.codes, sorted(bad))).tolist()]
    return found


def _ranges(events: Events) -> list[Refusal]:
    ranges = events.ranges()
    bad = np.unique(ranges.row[ranges.stop < ranges.start]).tolist()
    found = [(row, "invalid_range", "a range ends before it starts") for row in bad]
    texts = [place for place, text in enumerate(ranges.stream.values) if len(text) > LONGEST_TEXT or not text.isprintable()]
    if texts:
        rows = np.unique(ranges.row[np.isin(ranges.stream.codes, texts)]).tolist()
        found += [(row, "invalid_text", f"a stream's name must be printable and at most {LONGEST_TEXT} characters") for row in rows]
    return found


def _shards(events: Events, layout: Layout) -> list[Refusal]:
    found = []
    for row, shards in enumerate(events.objects("participants")):
        unknown = [] if shards is None else [shard for shard in shards if shard not in layout.dp_of_shard]
        if unknown or shards == []:
            found.append((row, "unknown_shard", f"participants names {unknown or 'no shard'}; the attempt's layout has other shards"))
    return found


def refusals(events: Events, layout: Layout) -> list[Refusal]:
    """The events that contradict the attempt's layout or themselves, at most one refusal an event."""
    outside = np.flatnonzero(events.rank >= layout.world_size).tolist()
    found = [(row, "rank_out_of_layout", f"the attempt has {layout.world_size} ranks") for row in outside]
    found += _texts(events)
    match events.kind.name:
        case "updates":
            found += _ranges(events) + _shards(events, layout)
        case "discards":
            found += _ranges(events)
        case "checkpoints":
            missing = (events.counts("state") == STARTED) & (events.counts("update") < 0)
            detail = "a started checkpoint names the last update that it contains"
            found += [(row, "update_missing", detail) for row in np.flatnonzero(missing).tolist()]
        case "passes":
            bad = np.flatnonzero(events.counts("stop") < events.counts("start")).tolist()
            found += [(row, "invalid_range", "a pass stops before it starts") for row in bad]
        case "gaps":
            bad = np.flatnonzero(events.counts("last") < events.counts("first")).tolist()
            found += [(row, "invalid_range", "a gap's last is before its first") for row in bad]
        case _:
            pass
    first: dict[int, Refusal] = {}
    for refusal in found:
        first.setdefault(refusal[0], refusal)
    return [first[row] for row in sorted(first)]
