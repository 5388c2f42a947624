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
JOB_VARIABLES = (("SLURM_JOB_ID", "SLURM_RESTART_COUNT"), ("TORCHELASTIC_RUN_ID", ""), ("POD_UID", ""))
ELASTIC_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
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


def job_label(environment: Mapping[str, str], one_node: bool = True) -> str:
    """The launcher's own ids, as far as there are any: of the job, of its requeue, of the workers' restart in place.

    >>> job_label({"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1", "TORCHELASTIC_RESTART_COUNT": "2"})
    '4711-1-2'

    On several nodes it is one that they have in common, so not the id of a pod.
    """
    for job, requeued in JOB_VARIABLES:
        value = environment.get(job, "")
        if value in ("", "none") or (job == "POD_UID" and not one_node):
            continue
        counted = [name for name in (requeued, ELASTIC_RESTARTS) if name and (name == requeued or name in environment)]
        label = "-".join([value[:LONGEST_LABEL], *(environment.get(name) or "0" for name in counted)])
        plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in label)
        return plain.strip("-._")
    return ""


def own_name(environment: Mapping[str, str]) -> str:
    """The name of an attempt of one process alone: the launcher's ids, then a nonce."""
    label = job_label(environment)
    return f"{label}-{nonce()}" if label else nonce()
