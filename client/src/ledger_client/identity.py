"""Who this process is: its rank, the size of the world, and what its launcher calls the job.

A job id alone repeats when a job is requeued, and a restart count does not grow with every launch. So the name of an attempt is made
of the launcher's ids and a nonce that all ranks of one launch share: given outright (`attempt=` or `LEDGER_ATTEMPT`), or agreed upon,
see `agreement`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
WORLD_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
JOB_VARIABLES = (
    ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    ("POD_UID", None),
)
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
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"


def job_label(environment: Mapping[str, str]) -> str:
    """The launcher's own ids, as far as there are any.

    >>> job_label({"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"})
    '4711-1'
    """
    for job, restart in JOB_VARIABLES:
        value = environment.get(job, "")
        if value and value != "none":
            label = f"{value}-{environment.get(restart, '0') or '0'}" if restart else value
            plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in label)
            return plain.strip("-._")[:LONGEST_LABEL]
    return ""


def own_name(environment: Mapping[str, str]) -> str:
    """The name of an attempt of one process alone: the launcher's ids, then a nonce."""
    label = job_label(environment)
    return f"{label}-{nonce()}" if label else nonce()
