"""Data loaders of torch beside a run: their workers neither record nor disturb, however they are started."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import ledger_client
from ledger_client.testing import RecordingServer


class Rows(Dataset[Any]):
    """Rows of a batch; the dataset holds the trainer's run, as datasets hold whatever they were given."""

    def __init__(self, run: ledger_client.Run) -> None:
        self.run = run

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[int, bool]:
        """A row, and whether the worker could record."""
        with self.run.update(1000 + index) as update:
            update.microbatch(input_slots=1)
            update.applied()
        return index, self.run.recording


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_workers_record_nothing(tmp_path: Path, way: str) -> None:
    with RecordingServer() as server:
        run = ledger_client.start("demo", url=server.url, spool=tmp_path / "spool", attempt="a1", flush_seconds=0.02)
        loader = DataLoader(Rows(run), batch_size=4, num_workers=2, multiprocessing_context=way, persistent_workers=True)
        number = 0
        for _ in range(2):
            for rows, recording in loader:
                assert not recording.any()
                number += 1
                with run.update(number) as update:
                    update.microbatch(input_slots=4, valid_targets=torch.count_nonzero(rows + 1), samples=len(rows))
                    update.applied()
        del loader
        assert run.close()
        rows = server.ledger.rows("updates")
    assert [(row["update"], row["valid_targets"]) for row in rows] == [(number, 4) for number in range(1, 13)]
    assert not server.ledger.conflicts and not server.ledger.duplicates
