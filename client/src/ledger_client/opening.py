"""How a process begins to record: settings from the arguments and the environment, a spool, and the thread that sends.

| variable | meaning | default |
|---|---|---|
| LEDGER_URL | the ledger's address | none: record only |
| LEDGER_TOKEN | sent as a bearer token | none |
| LEDGER_SPOOL | directory of the spools | `~/.local/state/training-ledger/spool`, or under XDG_STATE_HOME |
| LEDGER_MODE | `durable`, `offline` (record, send later), `memory` (no disk: a kill loses what was not sent), `disabled` | `durable` |
| LEDGER_ATTEMPT | the attempt's name, the same on all ranks and another one for every launch | agreed by the ranks |
| LEDGER_FSYNC | `never` or `grouped`: what a crash of the machine may take, see `syncing` | `never` |
| LEDGER_SPOOL_BYTES | bound of one process's spool | 256 MiB; 32 MiB in memory |

What the code says wrongly raises ValueError here, at the launch. What the surroundings withhold (no disk, no address) is said once,
and the training goes on.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

from .checkpoint import fork_source, resumed_state
from .declaration import SPOOL_FORMAT, Conventions, Declaration, Layout, slug
from .identity import RANK_VARIABLES, WORLD_VARIABLES, nonce, own_name, whole_number, writer_name
from .late import late
from .notices import Notices
from .recorder import Recorder
from .records import moment
from .run import Run, silent
from .sender import Channel, Sender
from .spool import SEGMENT_BYTES, TOTAL_BYTES, Spool
from .storage import Directory, Memory
from .syncing import GROUPED, POLICIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .delivery import Delivery
    from .shapes import Row
    from .transport import Transport

MODES = ("durable", "offline", "memory", "disabled")
SENDING = ("durable", "memory")
MEMORY_BYTES = 32 << 20
FLUSH_SECONDS = 0.5
DECLARATION = "declaration.json"


class Settings:
    """Where and how this process records."""

    def __init__(
        self, mode: str, url: str | None, token: str | None, root: str, total_bytes: int, fsync: str, transport: Transport | None
    ) -> None:
        self.mode = mode
        self.url = url
        self.token = token
        self.root = root
        self.total_bytes = total_bytes
        self.fsync = fsync
        self.transport = transport

    @property
    def sends(self) -> bool:
        """Whether this process has a way to the ledger."""
        return self.mode in SENDING and (self.url is not None or self.transport is not None)


def checked_url(url: str) -> str:
    """The address itself. Raises: ValueError where it is none."""
    scheme, found, rest = url.partition("://")
    if scheme.lower() not in ("http", "https") or not found or not rest.partition("/")[0]:
        raise ValueError(f"the ledger's address is http://… or https://…, not {url!r}")
    return url


def one_of(name: str, given: str | None, environment: Mapping[str, str], choices: tuple[str, ...], notices: Notices) -> str:
    """The choice that was given, else that of the environment, else the first. Raises: ValueError where the argument is none of them."""
    if given is not None and given not in choices:
        raise ValueError(f"{name} is one of {', '.join(choices)}, not {given!r}")
    variable = f"LEDGER_{name.upper()}"
    chosen = given or environment.get(variable) or choices[0]
    if chosen not in choices:
        notices.say(name, "%s is one of %s, not %r; recording goes on as %r", variable, ", ".join(choices), chosen, choices[0])
        return choices[0]
    return chosen


def settings(
    environment: Mapping[str, str],
    notices: Notices,
    *,
    mode: str | None,
    url: str | None,
    token: str | None,
    spool: str | os.PathLike[str] | None,
    spool_bytes: int | None,
    fsync: str | None,
    transport: Transport | None,
) -> Settings:
    """Arguments first, then the environment. Raises: ValueError where an argument is wrong."""
    chosen = one_of("mode", mode, environment, MODES, notices)
    policy = one_of("fsync", fsync, environment, POLICIES, notices)
    address = checked_url(url) if url is not None else None
    if address is None and environment.get("LEDGER_URL"):
        try:
            address = checked_url(environment["LEDGER_URL"])
        except ValueError as error:
            notices.say("url", "%s; events wait in the spool", error)
    if address is None and transport is None and chosen in SENDING:
        notices.say("url", "no address of a ledger is given (url= or LEDGER_URL); events wait in the spool")
    credential = token or environment.get("LEDGER_TOKEN") or None
    state = environment.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    root = os.path.abspath(spool or environment.get("LEDGER_SPOOL") or os.path.join(state, "training-ledger", "spool"))
    bound = spool_bytes or whole_number(environment, ("LEDGER_SPOOL_BYTES",)) or (MEMORY_BYTES if chosen == "memory" else TOTAL_BYTES)
    return Settings(chosen, address, credential, root, bound, policy, transport)


def storage_for(chosen: Settings, name: str, notices: Notices) -> Directory | Memory:
    """A new place for one spool: a directory of its own, or memory where that was asked for or nothing else is left."""
    if chosen.mode != "memory":
        path = os.path.join(chosen.root, name)
        try:
            os.makedirs(path, mode=0o700)
            directory = Directory(path)
            directory.claim()
            return directory
        except OSError as error:
            notices.say("disk", "no spool on disk (%s): what is not sent when the process dies is lost", error)
    return Memory()


def opened_recorder(chosen: Settings, declaration: Declaration, notices: Notices) -> tuple[Recorder, Spool]:
    """A spool with the declaration in it before the first event, and what records into it."""
    name = f"{declaration.attempt}.rank{declaration.rank}.{declaration.writer}"
    storage = storage_for(chosen, name, notices)
    size = min(SEGMENT_BYTES, max(1 << 16, chosen.total_bytes // 4))
    try:
        if isinstance(storage, Directory):
            storage.write_text(DECLARATION, declaration.to_json())
        spool = Spool(storage, declaration.writer, size, chosen.total_bytes, chosen.sends)
        return recorder_of(declaration, spool, notices), spool
    except OSError as error:
        notices.say("disk", "no spool on disk (%s): what is not sent when the process dies is lost", error)
        if isinstance(storage, Directory):
            discarded(storage)
        spool = Spool(Memory(), declaration.writer, size, min(chosen.total_bytes, MEMORY_BYTES), chosen.sends)
        return recorder_of(declaration, spool, notices), spool


def recorder_of(declaration: Declaration, spool: Spool, notices: Notices) -> Recorder:
    """What records an attempt of a run into a spool."""
    return Recorder(declaration.attempt, spool, notices, declaration.project, declaration.run)


def discarded(storage: Directory) -> None:
    """Remove a spool that was never begun, as far as the disk lets it be removed."""
    try:
        storage.release(empty=True)
    except OSError:
        storage.release(empty=False)


def channel_for(chosen: Settings, declaration: Declaration, notices: Notices) -> tuple[Recorder, Channel]:
    """A recorder for one attempt and the sender's side of its spool."""
    recorder, spool = opened_recorder(chosen, declaration, notices)

    def connect() -> Delivery:
        transport = chosen.transport or late("transport").HttpTransport(chosen.url, chosen.token)
        backlog = late("backlog").Backlog(spool.storage, spool)
        delivery: Delivery = late("delivery").Delivery(declaration, backlog, spool.storage, transport, notices, chosen.total_bytes)
        return delivery

    return recorder, Channel(recorder, spool, connect if chosen.sends else None)


def named_attempt(
    given: str | None,
    environment: Mapping[str, str],
    root: str,
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
    if world_size == 1:
        return own_name(environment)
    try:
        return str(late("agreement").agreed_name(environment, root, project, run, rank, world_size, notices))
    except OSError as error:
        notices.say("attempt", "the ranks could not agree on an attempt (%s): set LEDGER_ATTEMPT", error)
        return nonce()


def free_threaded(notices: Notices) -> bool:
    """Whether the interpreter runs without its global lock, on which the spool relies: then nothing is recorded, and that is said."""
    is_locked = getattr(sys, "_is_gil_enabled", None)
    if is_locked is None or is_locked():
        return False
    notices.say(
        "free threading",
        "nothing is recorded: this interpreter runs without its global lock, on which the spool relies; PYTHON_GIL=1 switches it on",
    )
    return True


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
    fsync: str | None = None,
    flush_seconds: float = FLUSH_SECONDS,
    transport: Transport | None = None,
) -> Run:
    """Begin to record this process's part in an attempt of a run. Waits for no one.

    `resumed_from`: the checkpoint that the state was loaded from: the cursor in it (`Checkpoint.cursor`), its name, or a mapping with
    `checkpoint`, `attempt`, `update`; None from scratch. `rank`, `world_size` and `attempt` default to what the launcher's environment
    says. `forked_from`, a cursor of another run, is the same on every launch of a forked run. Raises: ValueError, TypeError where an
    argument is wrong.
    """
    notices = Notices()
    environment = os.environ
    slug("a run", run), slug("a project", project)
    chosen = settings(
        environment, notices, mode=mode, url=url, token=token, spool=spool, spool_bytes=spool_bytes, fsync=fsync, transport=transport
    )
    place = rank if rank is not None else whole_number(environment, RANK_VARIABLES) or 0
    size = world_size or (layout.world_size if layout else None) or whole_number(environment, WORLD_VARIABLES) or 1
    declared: Row = {
        "layout": (layout or Layout(dp=size)).declared(), "conventions": (conventions or Conventions()).declared(), "rank": place
    }  # fmt: skip
    fork = fork_source(forked_from)
    first_state = resumed_state(resumed_from, project, run, fork)
    if chosen.mode == "disabled" or free_threaded(notices):
        return silent("", place, project, run)
    name = named_attempt(attempt, environment, chosen.root, notices, project=project, run=run, rank=place, world_size=size)
    run_body: Row = {"conventions": {}} | ({"forked_from": fork} if fork else {})

    def opened(called: str, resumed: Row | None) -> tuple[Recorder, Channel]:
        body = {**declared, "resumed_from": resumed, "started_at": moment(time.time())}
        declaration = Declaration(
            project=project, run=run, attempt=called, rank=place, writer=writer_name(), run_body=run_body, attempt_body=body,
            url=chosen.url, format=SPOOL_FORMAT,
        )  # fmt: skip
        declaration.to_json()
        return channel_for(chosen, declaration, notices)

    def leftovers() -> Iterator[Delivery]:
        found: Iterator[Delivery] = late("leftovers").left_behind(chosen, project, run, place, notices)
        return found

    recorder, channel = opened(name, first_state)
    sender = Sender(
        flush_seconds, notices, leftovers if chosen.mode == "durable" and chosen.sends else None, grouped=chosen.fsync == GROUPED
    )
    sender.add(channel)
    try:
        sender.start()
    except RuntimeError as error:
        notices.say("thread", "no thread can be started (%s); events wait in the spool", error)
    return Run(recorder, sender, opened, notices, place)
