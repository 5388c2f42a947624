"""How the ranks of one launch agree on the name of their attempt, without waiting for each other.

They meet in small files of the spool directory. The ranks of one node share the launcher process; ranks of several nodes share the
scheduler's ids, and need a spool directory that all of them see, or `LEDGER_ATTEMPT`.

Every rank moves to the first launch number that it has not claimed yet under the launch's key. So a launch that cannot be told
from the one before by its environment still gets a name of its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from .identity import job_label, nonce, whole_number

LOCAL_WORLD_VARIABLES = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE")
LAUNCH_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR",
    "MASTER_PORT", "POD_UID",
)  # fmt: skip
AGREEMENTS = "agreements"
KEPT_SECONDS = 30 * 86400


def process_start(pid: int) -> str:
    """When a process began, as the kernel counts it; empty where the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The second field is the program's name in parentheses and may hold anything; the 20th behind it is the start time.
    return stat.rpartition(")")[2].split()[19]


def boot_id() -> str:
    """The running kernel's own id; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def launch_key(environment: Mapping[str, str], project: str, run: str, world_size: int) -> str:
    """What all ranks of a launch have in common, as a short text."""
    facts = [project, run, str(world_size), *(environment.get(name, "") for name in LAUNCH_VARIABLES)]
    local = whole_number(environment, LOCAL_WORLD_VARIABLES)
    nodes = whole_number(environment, ("SLURM_NNODES",))
    one_node = local >= world_size if local is not None else nodes in (None, 1)
    if one_node:
        launcher = os.getppid()
        facts += [str(launcher), process_start(launcher), boot_id()]
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


def agreed_nonce(root: Path, key: str, rank: int) -> str:
    """The nonce of this launch, the same on every rank. Never waits for another rank. Raises: OSError."""
    folder = root / AGREEMENTS / key
    folder.mkdir(parents=True, exist_ok=True)
    launch = 1
    while not create_once(folder / f"{launch}.rank{rank}", str(os.getpid())):
        launch += 1
    agreed = folder / f"{launch}.nonce"
    if create_once(agreed, nonce()):
        sweep(root / AGREEMENTS)
    return agreed.read_text(encoding="ascii")


def sweep(folder: Path) -> None:
    """Remove agreements that no launch can need any more."""
    for entry in folder.iterdir():
        try:
            if entry.stat().st_mtime < time.time() - KEPT_SECONDS:
                shutil.rmtree(entry, ignore_errors=True)
        except OSError:
            continue


def agreed_name(environment: Mapping[str, str], root: str, project: str, run: str, rank: int, world_size: int) -> str:
    """The attempt's name: the launcher's ids, then a nonce that all ranks share. Raises: OSError where they cannot agree."""
    shared = agreed_nonce(Path(root), launch_key(environment, project, run, world_size), rank)
    label = job_label(environment)
    return f"{label}-{shared}" if label else shared
