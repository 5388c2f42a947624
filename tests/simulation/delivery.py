"""How a history reaches the ledger: in any order, any batching, and anything twice."""

import random
from dataclasses import dataclass

from tests.simulation.facts import Columns, Declaration, Ending, Facts, Resolution, ResumeDecision, Row
from tests.simulation.workload import History, Item


@dataclass(frozen=True)
class Post:
    """A batch of rows of one attempt."""

    attempt: str
    rows: tuple[Row, ...]


Step = Post | Declaration | Ending | ResumeDecision | Resolution


def shuffled_timeline(history: History, rng: random.Random, disorder: str) -> list[Item]:
    """The items of a history in an order in which a network might deliver them."""
    if disorder == "none":
        return list(history.timeline)
    width = 12.0 if disorder == "some" else float(10 * len(history.timeline))
    place: dict[int, float] = {}
    opened: dict[str, float] = {}
    last = 0.0
    firsts: set[str] = set()
    for index, item in enumerate(history.timeline):
        place[index] = index + rng.uniform(0, width)
        if isinstance(item, Declaration) and item.attempt not in firsts:
            firsts.add(item.attempt)
            if history.dates != "all":
                place[index] = max(place[index], last + 1e-6)
                last = place[index]
            opened[item.attempt] = place[index]
    for index, item in enumerate(history.timeline):
        if isinstance(item, Row | Ending) or (isinstance(item, Declaration) and place[index] != opened[item.attempt]):
            place[index] = max(place[index], opened[item.attempt] + rng.uniform(1e-7, width / 3))
    for index, item in enumerate(history.timeline):
        if isinstance(item, ResumeDecision):
            said = [i for i, other in enumerate(history.timeline) if isinstance(other, Declaration) and other.attempt == item.attempt]
            place[index] = max(place[i] for i in said) + rng.uniform(1e-7, width / 3)
        if isinstance(item, Resolution):
            rows = [i for i, other in enumerate(history.timeline) if isinstance(other, Row) and belongs(other, item)]
            place[index] = max(place[i] for i in rows) + rng.uniform(1e-7, width / 3)
    return [history.timeline[index] for index in sorted(place, key=lambda index: place[index])]


def belongs(row: Row, resolution: Resolution) -> bool:
    """Whether a row is of the update that a resolution settles."""
    own = (row.attempt, row.columns.get("update"), row.columns.get("retry") or 0)
    return row.kind == "updates" and own == (resolution.attempt, resolution.update, resolution.retry)


def plan(history: History, delivery_seed: int, disorder: str, repeats: float = 0.2, batch_size: int = 9) -> list[Step]:
    """The steps that deliver a history."""
    rng = random.Random(delivery_seed)
    steps: list[Step] = []
    waiting: dict[str, list[Row]] = {}
    sent: dict[str, list[Row]] = {}

    def flush(attempt: str) -> None:
        rows = waiting.pop(attempt, [])
        if rows:
            again = rng.sample(sent.get(attempt, []), min(len(sent.get(attempt, [])), 3)) if rng.random() < repeats else []
            mixed = rows + again
            rng.shuffle(mixed)
            steps.append(Post(attempt, tuple(mixed if disorder != "none" else rows)))
            sent.setdefault(attempt, []).extend(rows)
            if rng.random() < repeats:
                steps.append(Post(attempt, tuple(rows)))

    for item in shuffled_timeline(history, rng, disorder):
        if isinstance(item, Row):
            waiting.setdefault(item.attempt, []).append(item)
            if len(waiting[item.attempt]) >= rng.randint(1, batch_size):
                flush(item.attempt)
        else:
            for attempt in list(waiting) if isinstance(item, Resolution) or rng.random() < 0.3 else []:
                flush(attempt)
            steps.append(item)
            if isinstance(item, Declaration | Ending) and rng.random() < repeats / 2:
                steps.append(item)
    for attempt in list(waiting):
        flush(attempt)
    return steps


def apply(facts: Facts, step: Step) -> None:
    """Add what a step delivers to the facts."""
    if isinstance(step, Post):
        facts.add_rows(list(step.rows))
    elif isinstance(step, Declaration):
        facts.declarations.append(step)
    elif isinstance(step, Ending):
        facts.endings.append(step)
    elif isinstance(step, ResumeDecision):
        facts.decisions.append(step)
    else:
        facts.resolutions.append(step)


def empty_facts(history: History) -> Facts:
    """The facts of a run that has only been opened; the run it was forked from is known in full."""
    facts = Facts(history.conventions)
    if history.parent is not None and history.forked_from is not None:
        facts.fork_name = history.forked_from["checkpoint"]
        facts.parent = empty_facts(history.parent)
        for step in plan(history.parent, 0, "none"):
            apply(facts.parent, step)
    return facts


def columnar(rows: tuple[Row, ...]) -> Columns:
    """The body of a batch: one block of columns a kind, for each rank and writer."""
    entries: dict[tuple[int, str], dict[str, list[Row]]] = {}
    for row in {row.identity: row for row in rows}.values():
        entries.setdefault((row.rank, row.writer), {}).setdefault(row.kind, []).append(row)
    ranks = []
    for (rank, writer), kinds in sorted(entries.items()):
        entry: Columns = {"rank": rank, "writer": writer}
        for kind, own in kinds.items():
            names = sorted({name for row in own for name in row.columns})
            entry[kind] = {"seq": [row.seq for row in own], **{name: [row.columns.get(name) for row in own] for name in names}}
        ranks.append(entry)
    return {"ranks": ranks}
