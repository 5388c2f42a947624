"""How a process begins to record: settings from the arguments and the environment, a spool, and the thread that sends.

| variable | meaning | default |
|---|---|---|
| LEDGER_URL | the ledger's address | none: record only |
| LEDGER_TOKEN | sent as a bearer token | none |
| LEDGER_SPOOL | directory of the spools | `~/.local/state/training-ledger/spool`, or under XDG_STATE_HOME |
| LEDGER_MODE | `online`, `offline` (record, send later), `memory` (no disk: a kill loses what was not sent), `disabled` | `online` |
| LEDGER_ATTEMPT | the attempt's name, the same on all ranks and another one for every launch | agreed by the ranks |
| LEDGER_SPOOL_BYTES | bound of one process's spool | 256 MiB; 32 MiB in memory |

What the code says wrongly raises ValueError here, at the launch. What the surroundings withhold (no disk, no address) is said once,
and the training goes on.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .backlog import Backlog
from .checkpoint import saved_state
from .declaration import Conventions, Declaration, Layout, slug
from .delivery import Delivery
from .identity import RANK_VARIABLES, WORLD_VARIABLES, attempt_name, nonce, whole_number, writer_name
from .notices import Notices
from .recorder import Recorder
from .records import Row, moment
from .run import Run
from .sender import Channel, Sender
from .spool import SEGMENT_BYTES, TOTAL_BYTES, Spool
from .storage import Directory, Memory
from .transport import HttpTransport, Transport

MODES = ("online", "offline", "memory", "disabled")
MEMORY_BYTES = 32 << 20
FLUSH_SECONDS = 0.5
DECLARATION = "declaration.json"


@dataclass(frozen=True, slots=True)
class Settings:
    """Where and how this process records."""

    mode: str
    url: str | None
    token: str | None
    root: Path
    total_bytes: int
    transport: Transport | None


def settings(
    environment: Mapping[str, str],
    notices: Notices,
    *,
    mode: str | None,
    url: str | None,
    token: str | None,
    spool: str | os.PathLike[str] | None,
    spool_bytes: int | None,
    transport: Transport | None,
) -> Settings:
    """Arguments first, then the environment. Raises: ValueError where an argument is wrong."""
    if mode is not None and mode not in MODES:
        raise ValueError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
    if url is not None:
        HttpTransport(url)
    chosen = mode or environment.get("LEDGER_MODE") or "online"
    if chosen not in MODES:
        notices.say("mode", "LEDGER_MODE is one of %s, not %r; recording goes on as 'online'", ", ".join(MODES), chosen)
        chosen = "online"
    address = url or environment.get("LEDGER_URL") or None
    credential = token or environment.get("LEDGER_TOKEN") or None
    if transport is None and chosen in ("online", "memory"):
        try:
            transport = HttpTransport(address, credential) if address else None
        except ValueError as error:
            notices.say("url", "%s; events wait in the spool", error)
        if address is None:
            notices.say("url", "no address of a ledger is given (url= or LEDGER_URL); events wait in the spool")
    state = environment.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    root = Path(spool or environment.get("LEDGER_SPOOL") or Path(state, "training-ledger", "spool"))
    bound = spool_bytes or whole_number(environment, ("LEDGER_SPOOL_BYTES",)) or (MEMORY_BYTES if chosen == "memory" else TOTAL_BYTES)
    return Settings(chosen, address, credential, root, bound, transport if chosen in ("online", "memory") else None)


def storage_for(chosen: Settings, name: str, notices: Notices) -> Directory | Memory:
    """A new place for one spool: a directory of its own, or memory where that was asked for or nothing else is left."""
    if chosen.mode != "memory":
        path = chosen.root / name
        try:
            path.mkdir(mode=0o700, parents=True)
            directory = Directory(path)
            directory.claim()
            return directory
        except OSError as error:
            notices.say("disk", "no spool on disk (%s): what is not sent when the process dies is lost", error)
    return Memory()


def opened_spool(chosen: Settings, declaration: Declaration, notices: Notices) -> Spool:
    """A spool with the declaration in it, before the first event."""
    name = f"{declaration.attempt}.rank{declaration.rank}.{declaration.writer}"
    storage = storage_for(chosen, name, notices)
    size = min(SEGMENT_BYTES, max(1 << 16, chosen.total_bytes // 4))
    try:
        if isinstance(storage, Directory):
            storage.write_text(DECLARATION, declaration.to_json())
        return Spool(storage, declaration.writer, size, chosen.total_bytes)
    except OSError as error:
        notices.say("disk", "no spool on disk (%s): what is not sent when the process dies is lost", error)
        return Spool(Memory(), declaration.writer, size, min(chosen.total_bytes, MEMORY_BYTES))


def channel_for(chosen: Settings, declaration: Declaration, notices: Notices) -> tuple[Recorder, Channel]:
    """A recorder for one attempt and the sender's side of its spool."""
    spool = opened_spool(chosen, declaration, notices)
    delivery = None
    if chosen.transport is not None:
        delivery = Delivery(declaration, Backlog(spool.storage, spool), spool.storage, chosen.transport, notices)
    return Recorder(declaration.attempt, spool, notices), Channel(spool, delivery)


def named_attempt(
    given: str | None,
    environment: Mapping[str, str],
    root: Path,
    notices: Notices,
    *,
    project: str,
    run: str,
    rank: int,
    world_size: int,
) -> str:
    """The attempt's name as given, else as the ranks agree."""
    if given is not None:
        return slug("an attempt", given)
    from_environment = environment.get("LEDGER_ATTEMPT")
    if from_environment:
        try:
            return slug("an attempt", from_environment)
        except ValueError as error:
            notices.say("attempt", "LEDGER_ATTEMPT is not used: %s", error)
    try:
        return attempt_name(environment, root, project, run, rank, world_size)
    except OSError as error:
        notices.say("attempt", "the ranks could not agree on an attempt (%s): set LEDGER_ATTEMPT", error)
        return nonce()


def start(
    run: str,
    *,
    project: str = "default",
    url: str | None = None,
    token: str | None = None,
    resumed_from: object = None,
    layout: Layout | None = None,
    conventions: Conventions | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    attempt: str | None = None,
    forked_from: Mapping[str, object] | None = None,
    spool: str | os.PathLike[str] | None = None,
    mode: str | None = None,
    spool_bytes: int | None = None,
    flush_seconds: float = FLUSH_SECONDS,
    transport: Transport | None = None,
) -> Run:
    """Begin to record this process's part in an attempt of a run. Waits for no one.

    `resumed_from`: the checkpoint that the state was loaded from (its name, a handle, or a mapping with `checkpoint`, `attempt`,
    `update`); None from scratch. `rank`, `world_size` and `attempt` default to what the launcher's environment says.
    `forked_from` is the same on every launch of a forked run.

    Raises: ValueError, TypeError where an argument is wrong.
    """
    notices = Notices()
    environment = os.environ
    slug("a run", run), slug("a project", project)
    chosen = settings(
        environment, notices, mode=mode, url=url, token=token, spool=spool, spool_bytes=spool_bytes, transport=transport
    )
    place = rank if rank is not None else whole_number(environment, RANK_VARIABLES) or 0
    size = world_size or (layout.world_size if layout else None) or whole_number(environment, WORLD_VARIABLES) or 1
    shape = layout or Layout(dp=size)
    declared: Row = {
        "resumed_from": saved_state(resumed_from),
        "layout": shape.declared(),
        "conventions": (conventions or Conventions()).declared(),
        "started_at": moment(time.time()),
        "rank": place,
    }
    if chosen.mode == "disabled":
        return Run(Recorder(attempt or "disabled", None, notices), None, lambda name, source: None, notices, place)
    name = named_attempt(attempt, environment, chosen.root, notices, project=project, run=run, rank=place, world_size=size)
    run_body: Row = {"conventions": {}} | ({"forked_from": dict(forked_from)} if forked_from else {})

    def opened(attempt_called: str, resumed: Row | None) -> tuple[Recorder, Channel]:
        body = {**declared, "resumed_from": resumed, "started_at": moment(time.time())}
        declaration = Declaration(project, run, attempt_called, place, writer_name(), run_body, body, chosen.url)
        declaration.to_json()
        return channel_for(chosen, declaration, notices)

    recorder, channel = opened(name, saved_state(resumed_from))
    sender = Sender(flush_seconds, notices)
    sender.add(channel)
    sender.start()
    return Run(recorder, sender, opened, notices, place)
