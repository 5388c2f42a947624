"""Ranks that share nothing but their process group agree on an attempt through its store."""

import os
import subprocess
import sys
from pathlib import Path

from killed_job import free_port

from ledger_client.agreement import AGREEMENTS

RANK = """
import sys
import torch.distributed
import ledger_client
rank, spool, *ports = int(sys.argv[1]), *sys.argv[2:]
names = []
for port in ports:
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for run in range(2):
        run = ledger_client.start("demo", rank=rank, world_size=2, spool=spool, mode="offline")
        names.append(run.attempt)
        run.close()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
print(*names)
"""


def test_ranks_agree_and_every_launch_and_group_is_another_attempt(tmp_path: Path) -> None:
    ports = [str(free_port()) for _ in range(2)]
    environment = {**os.environ, "LOCAL_WORLD_SIZE": "1", "SLURM_JOB_ID": "4711", "MASTER_ADDR": "node-0"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / f"node-{rank}"), *ports],
            stdout=subprocess.PIPE, text=True, env=environment,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=60)[0].split() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert said[0] == said[1] and len(set(said[0])) == 4 and all(name.startswith("4711-0-") for name in said[0])
    # They met in the store and nowhere else.
    assert not [path for rank in range(2) for path in (tmp_path / f"node-{rank}").glob(AGREEMENTS)]
