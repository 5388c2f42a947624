"""Who this process is: its rank, the size of the world, and the name of the attempt on which all ranks must agree.

A job id alone repeats when a job is requeued, and a restart count does not grow with every launch. So the name is made of the
launcher's ids and a nonce that all ranks of one launch share: given outright (`attempt=` or `LEDGER_ATTEMPT`), or agreed upon
through small files in the spool directory. The ranks of one node share the launcher process; ranks of several nodes share the
scheduler's ids, and need a spool directory that all of them see, or `LEDGER_ATTEMPT`.

Every rank moves to the first launch number that it has not claimed yet under the launch's key. So a launch that cannot be told
from the one before by its environment still gets a name of its own.
"""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
WORLD_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_WORLD_VARIABLES = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE")
LAUNCH_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR",
    "MASTER_PORT", "POD_UID",
)  # fmt: skip
JOB_VARIABLES = (
    ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    ("POD_UID", None),
)
AGREEMENTS = "agreements"
KEPT_SECONDS = 30 * 86400
LONGEST_LABEL = 80


def whole_number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """The first of these variables that holds a whole number.

    >>> whole_number({"SLURM_PROCID": "3"}, RANK_VARIABLES)
    3
    """
    for name in names:
        value = environment.get(name, "")
        if value.isdecimal():
            return int(value)
    return None


def writer_name() -> str:
    """A random name for one process: 16 hexadecimal digits, from the system's randomness."""
    return os.urandom(8).hex()


def nonce() -> str:
    """A name that no other launch has, readable as the time of its making."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.urandom(3).hex()}"


def job_label(environment: Mapping[str, str]) -> str:
    """The launcher's own ids, as far as there are any.

    >>> job_label({"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"})
    '4711-1'
    """
    for job, restart in JOB_VARIABLES:
        value = environment.get(job, "")
        if value and value != "none":
            label = f"{value}-{environment.get(restart, '0') or '0'}" if restart else value
            return re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-._")[:LONGEST_LABEL]
    return ""


def process_start(pid: int) -> str:
    """When a process began, as the kernel counts it; empty where the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The second field is the program's name in parentheses and may hold anything; the 20th behind it is the start time.
    return stat.rpartition(")")[2].split()[19]


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


def boot_id() -> str:
    """The running kernel's own id; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


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


def attempt_name(environment: Mapping[str, str], root: Path | None, project: str, run: str, rank: int, world_size: int) -> str:
    """The attempt's name: the launcher's ids, then a nonce. Raises: OSError where the ranks cannot agree."""
    if world_size > 1:
        if root is None:
            raise OSError("ranks cannot agree on an attempt without a spool directory")
        shared = agreed_nonce(root, launch_key(environment, project, run, world_size), rank)
    else:
        shared = nonce()
    label = job_label(environment)
    return f"{label}-{shared}" if label else shared
