"""Which attempt grew out of which save: the order of attempts, the head, the trajectory and what a save covers."""

from dataclasses import dataclass, field

from tests.simulation.facts import Columns, Facts, Row
from tests.simulation.groups import Group

SaveKey = tuple[str, str, int]


@dataclass
class Save:
    """One saved state: (attempt, name, update), with what was said of it."""

    key: SaveKey
    started: list[Row] = field(default_factory=list)
    stand_ins: list[Row] = field(default_factory=list)
    accepted: bool = False
    rejected: bool = False
    resumed: bool = False
    declared_on_resume: bool = False

    @property
    def update(self) -> int:
        """The last update that the saved state contains."""
        return self.key[2]

    @property
    def stands(self) -> bool:
        """Whether it counts as accepted: a rejection wins over every acceptance."""
        return (self.accepted or self.resumed) and not self.rejected

    @property
    def starts(self) -> list[Row]:
        """The rows that mark where the save started."""
        return self.started or self.stand_ins

    @property
    def positions(self) -> Columns | None:
        """The declared data position by stream."""
        rows = [row for row in self.started + self.stand_ins if row.columns.get("positions") is not None]
        return rows[0].columns["positions"] if rows else None


@dataclass
class Step:
    """One attempt of the trajectory: from where it starts, and the save at which its child left it (None for the head)."""

    attempt: str
    after: int
    source: Save | None
    limit: Save | None = None


@dataclass
class Lineage:
    """All that follows from who resumed from what."""

    order: list[str]
    saves: dict[SaveKey, Save]
    conflicted: set[str]
    settled: set[str]
    source: dict[str, Save | None]
    path: list[Step]
    accepted: Save | None = None
    accepted_index: int = -1

    @property
    def head(self) -> str | None:
        """The newest attempt whose origin is settled."""
        return self.path[-1].attempt if self.path else None


def collect_saves(facts: Facts) -> dict[SaveKey, Save]:
    """Every save that some event tells of."""
    saves: dict[SaveKey, Save] = {}
    rows = [row for row in facts.rows.values() if row.kind == "checkpoints"]

    def save_at(key: SaveKey) -> Save:
        return saves.setdefault(key, Save(key))

    for row in rows:
        owner = row.columns.get("attempt") or row.attempt
        if row.columns.get("update") is None:
            continue
        save = save_at((owner, row.columns["checkpoint"], row.columns["update"]))
        if row.columns["state"] == "started":
            save.started.append(row)
        elif row.columns["state"] == "accepted":
            save.accepted = True
            if owner == row.attempt:
                save.stand_ins.append(row)
        else:
            save.rejected = True
    for row in rows:
        if row.columns.get("update") is None:
            save_or_none = save_meant(row, saves)
            if save_or_none is not None and row.columns["state"] == "accepted":
                save_or_none.accepted = True
            if save_or_none is not None and row.columns["state"] == "rejected":
                save_or_none.rejected = True
    return saves


def save_meant(row: Row, saves: dict[SaveKey, Save]) -> Save | None:
    """The save that a state row without a number belongs to."""
    owner = row.columns.get("attempt") or row.attempt
    named = [save for save in saves.values() if save.key[:2] == (owner, row.columns["checkpoint"])]
    if owner != row.attempt:
        return named[0] if len(named) == 1 else None
    earlier = [
        (start.seq, save)
        for save in named
        for start in save.starts
        if (start.attempt, start.rank, start.writer) == (row.attempt, row.rank, row.writer) and start.seq < row.seq
    ]
    return max(earlier, key=lambda pair: pair[0])[1] if earlier else None


def declared_resumes(facts: Facts) -> tuple[dict[str, Columns | None], set[str]]:
    """What each attempt says it resumed from, and the attempts whose ranks say different things."""
    declared: dict[str, Columns | None] = {}
    conflicted = set()
    for attempt in facts.attempts():
        said = [declaration.resumed_from for declaration in facts.declarations if declaration.attempt == attempt]
        declared[attempt] = said[0]
        if any(other != said[0] for other in said):
            conflicted.add(attempt)
        for decision in facts.decisions:
            if decision.attempt == attempt:
                declared[attempt] = decision.resumed_from
                conflicted.discard(attempt)
    return declared, conflicted


def ordered(facts: Facts, declared: dict[str, Columns | None], conflicted: set[str]) -> list[str]:
    """Oldest first: dated attempts in date order within the places they were opened at, and no child before its parent."""
    opened = facts.attempts()
    dates = {}
    for attempt in opened:
        said = [d.started_at for d in facts.declarations if d.attempt == attempt and d.started_at is not None]
        if said:
            dates[attempt] = min(said)
    dated = iter(sorted((attempt for attempt in opened if attempt in dates), key=lambda attempt: (dates[attempt], opened.index(attempt))))
    base = [next(dated) if attempt in dates else attempt for attempt in opened]
    return behind(base, named_owners(opened, declared, conflicted))


def named_owners(opened: list[str], declared: dict[str, Columns | None], conflicted: set[str]) -> dict[str, str]:
    """Whom attempts name as the owner of the save that they resumed from."""
    named = {attempt: point["attempt"] for attempt, point in declared.items() if point is not None and point.get("attempt") in opened}
    return {attempt: owner for attempt, owner in named.items() if attempt not in conflicted}


def behind(base: list[str], parents: dict[str, str]) -> list[str]:
    """The attempts in their order, but no child before its parent."""
    order: list[str] = []
    while len(order) < len(base):
        order.append(next(a for a in base if a not in order and (a not in parents or parents[a] in order)))
    return order


def descends(attempt: str, ancestor: str, parents: dict[str, str]) -> bool:
    """Whether an attempt is another one or grew out of it."""
    return attempt == ancestor or (attempt in parents and descends(parents[attempt], ancestor, parents))


def find_source(
    resumed_from: Columns, older: list[str], later: list[str], saves: dict[SaveKey, Save], numbers: dict[str, set[int]], fork: Save | None
) -> Save | None:
    """The save that an attempt resumed from, made up where the attempt itself declares its number; None while unknown."""
    name, owner, update = resumed_from["checkpoint"], resumed_from.get("attempt"), resumed_from.get("update")

    def known(candidates: list[str]) -> Save | None:
        for candidate in candidates:
            named = [save for save in saves.values() if save.key[:2] == (candidate, name) and update in (None, save.update)]
            if named:
                return max(named, key=lambda save: save.update)
        return None

    found = known(older)
    if found is None and fork is not None and fork.key[1] == name and update in (None, fork.update):
        return fork
    for candidate in older if found is None and update is not None else []:
        if owner is not None or update in numbers.get(candidate, set()):
            key = (candidate, name, update)
            saves[key] = Save(key, declared_on_resume=True)
            return saves[key]
    return found or known(later)


def trace(facts: Facts, groups: list[Group], fork: Save | None = None, head: str | None = None) -> Lineage:
    """Work out the lineage; `fork` is the save of the parent run, `head` asks as if that attempt were the newest."""
    saves = collect_saves(facts)
    declared, conflicted = declared_resumes(facts)
    order = ordered(facts, declared, conflicted)
    dated = {declaration.attempt for declaration in facts.declarations if declaration.started_at is not None}
    numbers: dict[str, set[int]] = {}
    for group in groups:
        if group.attempted:
            numbers.setdefault(group.attempt, set()).add(group.update)
    parents = named_owners(facts.attempts(), declared, conflicted)
    source: dict[str, Save | None] = dict.fromkeys(order)
    scratch: set[str] = set()
    for place, attempt in enumerate(order):
        resumed_from = declared[attempt]
        if attempt in conflicted:
            continue
        if resumed_from is None:
            if facts.parent is None or fork is not None:
                scratch.add(attempt)
            continue
        older, later = order[:place][::-1], [other for other in order[place + 1 :] if not {attempt, other} <= dated]
        if resumed_from.get("attempt") is not None:
            older, later = [other for other in order if other == resumed_from["attempt"]], []
        older, later = ([other for other in some if not descends(other, attempt, parents)] for some in (older, later))
        meant = fork if resumed_from.get("attempt") not in order else None
        found = find_source(resumed_from, older, later, saves, numbers, meant)
        if found is not None and found is fork:
            scratch.add(attempt)
        elif found is not None:
            found.resumed = True
            source[attempt], parents[attempt] = found, found.key[0]
    order = behind(order, parents)
    settled: set[str] = set()
    for attempt in order:
        origin = source[attempt]
        if attempt in scratch or (origin is not None and origin.key[0] in settled):
            settled.add(attempt)
    lineage = Lineage(order, saves, conflicted, settled, source, [])
    newest = [attempt for attempt in order if attempt in settled]
    if newest:
        lineage.path = path_to(head or newest[-1], source, 0 if fork is None else fork.update)
        choose_accepted(lineage)
    return lineage


def newest_named(lineage: Lineage, name: str | None) -> Save | None:
    """The newest save of that name in the newest attempt that has one."""
    for attempt in reversed(lineage.order):
        named = [save for save in lineage.saves.values() if save.key[:2] == (attempt, name)]
        if named:
            return max(named, key=lambda save: save.update)
    return None


def path_to(head: str, source: dict[str, Save | None], start: int) -> list[Step]:
    """The head and each ancestor up to the save that its child resumed from, root first."""
    path: list[Step] = []
    attempt, limit = head, None
    while True:
        origin = source[attempt]
        path.insert(0, Step(attempt, start if origin is None else origin.update, origin, limit))
        if origin is None:
            return path
        attempt, limit = origin.key[0], origin


def newness(save: Save) -> tuple[int, int, str]:
    """Which of two saves of an attempt is the newer: by update, then by where it started; names only break a tie."""
    return save.update, max((start.seq for start in save.starts), default=0), save.key[1]


def choose_accepted(lineage: Lineage) -> None:
    """Find the newest accepted save on the trajectory."""
    for index, step in enumerate(lineage.path):
        own = [save for save in lineage.saves.values() if save.key[0] == step.attempt and save.stands]
        own = [save for save in own if step.limit is None or save.update <= step.limit.update]
        if own:
            lineage.accepted, lineage.accepted_index = max(own, key=newness), index


def covers(save: Save, group: Group) -> bool:
    """Whether a save contains a group of its own attempt: by number, else by the sequence of the writer that started it."""
    if group.update <= save.update:
        return True
    if group.kind == "updates" and (group.told or group.outcome) in ("applied", "held"):
        return False
    return any(row.rank == start.rank and row.writer == start.writer and row.seq < start.seq for row in group.rows for start in save.starts)


def on_trajectory(lineage: Lineage, group: Group) -> int | None:
    """The index of the trajectory's step that a group lies on; None where it lies off the trajectory."""
    for index, step in enumerate(lineage.path):
        if step.attempt == group.attempt:
            return index if step.limit is None or covers(step.limit, group) else None
    return None


def fate_of(lineage: Lineage, group: Group) -> str:
    """Where a group lies against preserved progress."""
    index = on_trajectory(lineage, group)
    if index is None:
        return "lost"
    is_head = index == len(lineage.path) - 1
    if group.outcome == "open":
        return "pending" if is_head else "lost"
    if group.outcome == "held" or lineage.accepted is None:
        return "pending"
    if index < lineage.accepted_index or (index == lineage.accepted_index and covers(lineage.accepted, group)):
        return "preserved"
    return "pending"
