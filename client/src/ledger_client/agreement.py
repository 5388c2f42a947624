"""How the ranks of one launch agree on the name of their attempt, without waiting for each other.

| the ranks | meet in | name |
|---|---|---|
| have a process group of torch | its store, which is as old as the launch | launcher's ids, nonce |
| are on one node | a folder of the spool directory named by their common parent process | launcher's ids, nonce |
| are on several nodes of a job that its scheduler numbers | nothing: all of them know the ids | the ids, their digest, count of launches |
| are on several nodes otherwise | a folder of the spool directory; that all must see it is said | launcher's ids, nonce |

Wherever they meet, every rank moves to the first launch number that it has not claimed yet. So a launch that cannot be told from
the one before by its environment (a requeue under the same id, workers that are started again in place, a second run of the same name)
still gets a name of its own. A rank that died before it claimed a number would take it up later, so numbers that are over are passed by.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from .identity import job_label, nonce, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from .notices import Notices

    class Meeting(Protocol):
        """Where the ranks of a launch find each other's words."""

        def first(self, name: str, text: str) -> str:
            """The text that was the first under that name: the given one, if there was none."""

        def over(self, launch: int) -> bool:
            """Whether no process can belong to that launch any more, as far as one can see."""


LOCAL_WORLD_VARIABLES = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE")
LAUNCH_VARIABLES = (
    "SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_JOB_START_TIME", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "PMIX_NAMESPACE",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
"""Alike on all ranks of a launch. A pod's id is not: a launch has many pods."""
NUMBERED = ("SLURM_JOB_ID", "PMIX_NAMESPACE")
"""Given by a scheduler, and not to two jobs. The id of an elastic run is the user's own word."""
HERE = ("", "localhost", "127.0.0.1", "::1")
AGREEMENTS = "agreements"
KEPT_SECONDS = 30 * 86400
SPREAD_SECONDS = 30.0
"""Ranks of one node call within that time of each other, or while others of them live."""
LONG_SPREAD_SECONDS = 3600.0
"""The same of ranks whose processes cannot be seen from here."""


def process_start(pid: int) -> str:
    """When a process began, as the kernel counts it; empty where there is none, or the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The second field is the program's name in parentheses and may hold anything; the 20th behind it is the start time.
    return stat.rpartition(")")[2].split()[19]


def machine() -> str:
    """Where process numbers mean what they mean here: the running kernel and its namespace; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def on_one_node(environment: Mapping[str, str], world_size: int) -> bool:
    """Whether all ranks of the launch are on this node, as far as the launcher says."""
    local = whole_number(environment, LOCAL_WORLD_VARIABLES)
    if local is not None:
        return local >= world_size
    nodes = whole_number(environment, ("SLURM_NNODES",))
    return nodes == 1 if nodes is not None else environment.get("MASTER_ADDR", "") in HERE


def launch_key(environment: Mapping[str, str], project: str, run: str, world_size: int) -> str:
    """What all ranks of a launch have in common, as a short text."""
    facts = [project, run, str(world_size), *(environment.get(name, "") for name in LAUNCH_VARIABLES)]
    if on_one_node(environment, world_size):
        launcher = os.getppid()
        facts += [str(launcher), process_start(launcher), machine()]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:24]


def create_once(path: Path, text: str) -> bool:
    """Make a file with that content, which appears in one step; False where it exists already."""
    draft = path.with_name(f"{path.name}.{os.urandom(4).hex()}")
    draft.write_text(text, encoding="ascii")
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


class Folder:
    """A folder of the spool directory that belongs to launches of one key. Raises: OSError where it cannot be had."""

    def __init__(self, root: Path, key: str) -> None:
        self._folder = root / AGREEMENTS / key
        self._folder.mkdir(parents=True, exist_ok=True)
        sweep(root / AGREEMENTS)

    def first(self, name: str, text: str) -> str:
        """The text that was the first under that name."""
        path = self._folder / name
        return text if create_once(path, text) else path.read_text(encoding="ascii")

    def over(self, launch: int) -> bool:
        """Whether all who claimed that number are dead, or called long ago if they cannot be seen, and no others can be on their way."""
        mark = f"{launch}.rank"
        claims = [path for path in self._folder.iterdir() if path.name.startswith(mark) and path.name.removeprefix(mark).isdecimal()]
        here, now = machine(), time.time()
        for claim in claims:
            _, _, said = claim.read_text(encoding="ascii").partition(" ")
            pid, _, said = said.partition(" ")
            began, _, place = said.partition(" ")
            # Also what a crash of the machine has left empty cannot be seen.
            seen = place == here != "" and pid.isdecimal()
            spread = SPREAD_SECONDS if seen else LONG_SPREAD_SECONDS
            if now - claim.stat().st_mtime < spread or (seen and process_start(int(pid)) == began):
                return False
        return bool(claims)


class GroupStore:
    """The store of a process group of torch. It is gone when the launch is, unless the launcher keeps it over restarts in place."""

    def __init__(self, store: Any, key: str) -> None:
        self._store = store
        self._key = key

    def first(self, name: str, text: str) -> str:
        """The text that was the first under that name."""
        held: bytes = self._store.compare_set(f"ledger-client/{self._key}/{name}", "", text)
        return held.decode("ascii")

    def over(self, launch: int) -> bool:
        """Never, as far as one can see."""
        return False


def group_store(project: str, run: str, world_size: int) -> GroupStore | None:
    """The store of this process's group, if it has one of that size."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_world_size() != world_size:
        return None
    return GroupStore(distributed.distributed_c10d._get_default_store(), f"{project}/{run}")


def launch_number(meeting: Meeting, rank: int) -> int:
    """The number of this launch: the first that this rank has not claimed and that is not over."""
    own = f"{os.urandom(8).hex()} {os.getpid()} {process_start(os.getpid())} {machine()}"
    launch = 1
    while meeting.over(launch) or meeting.first(f"{launch}.rank{rank}", own) != own:
        launch += 1
    return launch


def agreed_nonce(meeting: Meeting, rank: int) -> str:
    """The nonce of this launch, the same on every rank. Raises: OSError where a crash of the machine has left none."""
    agreed = meeting.first(f"{launch_number(meeting, rank)}.nonce", nonce())
    if not agreed:
        raise OSError("the name that the ranks agreed on is empty")
    return agreed


def sweep(folder: Path) -> None:
    """Remove agreements that no launch can need any more."""
    for entry in folder.iterdir():
        try:
            if entry.stat().st_mtime < time.time() - KEPT_SECONDS:
                shutil.rmtree(entry, ignore_errors=True)
        except OSError:
            continue


def agreed_name(
    environment: Mapping[str, str], root: str, project: str, run: str, rank: int, world_size: int, notices: Notices
) -> str:
    """The attempt's name, the same on all ranks of the launch. Raises: OSError where they cannot agree."""
    together = on_one_node(environment, world_size)
    label = job_label(environment, one_node=together)
    try:
        store = group_store(project, run, world_size)
        if store is not None:
            return "-".join(filter(None, (label, agreed_nonce(store, rank))))
    except Exception as error:  # whatever the library of the store raises
        notices.say("attempt store", "the ranks could not agree through their process group: %r", error)
    key = launch_key(environment, project, run, world_size)
    folder = Folder(Path(root), key)
    if not together and any(environment.get(name) for name in NUMBERED):
        return "-".join(filter(None, (label, key[:8], str(launch_number(folder, rank)))))
    if not together:
        notices.say(
            "several nodes",
            "ranks on several nodes agree on an attempt by the spool directory: all of them must see the same %s. "
            "Where they do not, set LEDGER_ATTEMPT, or start recording when the process group is up",
            root,
        )
    return "-".join(filter(None, (label, agreed_nonce(folder, rank))))
