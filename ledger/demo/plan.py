"""What the demo trains, for how long, and where it is interrupted; every process of the demo reads the same plan."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Plan:
    """One demo run: its name, its data, its model, and the update after which its first attempt is killed.

    Law: group_documents = ranks * microbatches * microbatch_documents
    """

    project: str
    run: str
    url: str
    ranks: int = 2
    updates: int = 60
    microbatches: int = 4
    microbatch_documents: int = 16
    documents: int = 2_500
    held_out_documents: int = 256
    window: int = 8
    embedding: int = 16
    hidden: int = 192
    learning_rate: float = 0.006
    warmup_updates: int = 5
    initial_loss_scale: float = 2048.0
    growth_interval: int = 15
    seed: int = 5

    @property
    def group_documents(self) -> int:
        """Documents of one full update over all ranks."""
        return self.ranks * self.microbatches * self.microbatch_documents

    @property
    def checkpoint_interval(self) -> int:
        """Updates from one checkpoint to the next."""
        return max(2, self.updates // 4)

    @property
    def killed_after_update(self) -> int:
        """The last update that the first attempt finishes: half an interval after its second checkpoint."""
        return 2 * self.checkpoint_interval + max(1, self.checkpoint_interval // 2)

    def write(self, path: Path) -> None:
        """Leave the plan where the ranks will read it."""
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def read_plan(path: Path) -> Plan:
    """The plan that the launcher left."""
    return Plan(**json.loads(path.read_text(encoding="utf-8")))
