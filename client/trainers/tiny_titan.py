"""A training small enough for a test, for torchtitan's Trainer on a processor: `--module tiny_titan --config tiny`.

Imported before the trainer: torchtitan takes its device from a module that it looks up once, and finds none for a processor.
"""

import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torchtitan.tools import utils

# What is asked of a device besides, here of one without memory statistics.
utils.device_type, utils.device_module = "cpu", SimpleNamespace(
    set_device=lambda device: None, current_device=lambda: 0, device_count=lambda: 1, synchronize=lambda: None, empty_cache=lambda: None,
    get_device_name=lambda device: "processor", get_device_properties=lambda device: SimpleNamespace(total_memory=1),
    memory_stats=lambda device: {}, reset_peak_memory_stats=lambda: None,
)  # fmt: skip
if not hasattr(torch.distributed, "set_timeout"):
    torch.distributed.set_timeout = torch.distributed.distributed_c10d._set_pg_timeout  # what it was called before torch 2.14

from torchtitan.components.checkpointer import CheckpointManager  # noqa: E402
from torchtitan.components.dataloader import ParallelAwareDataloader  # noqa: E402
from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.components.optimizer.optimizer import default_adamw  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.config.configs import TrainingConfig  # noqa: E402
from torchtitan.models import llama3  # noqa: E402
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config  # noqa: E402
from torchtitan.protocols.model_spec import ModelSpec  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

SLOTS, VOCABULARY, WIDTH = 8, 12, 16
LENGTHS = (8, 5, 6, 3, 4, 4, 4, 2)
"""How many labels of the rows are scored, one after the other and then again."""


class Rows(torch.utils.data.IterableDataset):
    """Rows dealt to the data-parallel ranks, each of eight slots; they end where a number of them is given."""

    def __init__(self, rank: int, ranks: int, rows: int) -> None:
        self.next = rank
        self.ranks = ranks
        self.rows = rows

    def __iter__(self) -> Any:
        while not self.rows or self.next < self.rows:
            length = LENGTHS[self.next % len(LENGTHS)]
            tokens = torch.arange(SLOTS + 1) % VOCABULARY
            self.next += self.ranks
            yield {"input": tokens[:-1], "positions": torch.arange(SLOTS)}, torch.where(torch.arange(SLOTS) < length, tokens[1:], -100)

    def state_dict(self) -> dict[str, int]:
        """Where it stands."""
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there."""
        self.next = state["next"]


class Loader(ParallelAwareDataloader):
    """Batches of these rows."""

    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        """How many rows there are, if not without an end."""

        rows: int = 0
        infinite: bool = True

    def __init__(self, config: Config, *, dp_rank: int, dp_world_size: int, local_batch_size: int, **others: Any) -> None:
        steps = others.get("snapshot_every_n_steps", 1)
        rows = Rows(dp_rank, dp_world_size, config.rows)
        super().__init__(rows, dp_rank, dp_world_size, batch_size=local_batch_size, snapshot_every_n_steps=steps)


class NoTokenizer(BaseTokenizer):
    """The rows are tokens already."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """Nothing to be told."""

    def __init__(self, config: Config, tokenizer_path: str) -> None:
        super().__init__()

    def encode(self, text: str) -> list[int]:
        """Nothing has to be encoded."""
        return []

    def decode(self, tokens: list[int]) -> str:
        """Nothing has to be decoded."""
        return ""

    def get_vocab_size(self) -> int:
        """How many tokens there are."""
        return VOCABULARY


def spec(layers: int) -> ModelSpec:
    """A tiny Llama, with an attention that a processor has."""
    linear, norm = llama3._LINEAR_INIT, RMSNorm.Config(normalized_shape=WIDTH, param_init=llama3._NORM_INIT)
    rope = ComplexRoPE.Config(dim=WIDTH // 2, max_seq_len=SLOTS)
    blocks = [
        llama3.Llama3TransformerBlock.Config(
            attention_norm=norm, ffn_norm=norm,
            attention=make_gqa_config(
                dim=WIDTH, n_heads=2, wqkv_param_init=linear, wo_param_init=linear, inner_attention=ScaledDotProductAttention.Config(),
                rope=rope, fuse_qkv=True,
            ),
            feed_forward=make_ffn_config(dim=WIDTH, hidden_dim=WIDTH, w1_param_init=linear, w2w3_param_init=linear),
        )
        for _ in range(layers)
    ]  # fmt: skip
    model = llama3.Llama3Model.Config(
        dim=WIDTH, vocab_size=VOCABULARY, norm=norm, layers=blocks,
        tok_embeddings=Embedding.Config(num_embeddings=VOCABULARY, embedding_dim=WIDTH, param_init=llama3._EMBEDDING_INIT),
        lm_head=Linear.Config(in_features=WIDTH, out_features=VOCABULARY, param_init=linear),
    )  # fmt: skip
    return ModelSpec("llama3", "tiny", model, llama3.parallelize_llama, llama3.pipeline_llm, None, None)


def tiny(*, layers: int = 1, steps: int = 4, rows: int = 0, parallel: int = 1, **more: Any) -> Trainer.Config:
    """Updates of two microbatches of two rows on each data-parallel rank, and a checkpoint after every other one.

    `parallel`: how many ranks work on the same rows.
    """
    launcher = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ.update({name: value for name, value in launcher.items() if name not in os.environ})
    given: dict[str, Any] = {
        "model_spec": spec(layers), "tokenizer": NoTokenizer.Config(), "dataloader": Loader.Config(rows=rows),
        "training": TrainingConfig(
            local_batch_size=2, global_batch_size=4 * int(os.environ["WORLD_SIZE"]) // parallel, seq_len=SLOTS, steps=steps,
            disable_cuda_graphs=True, mixed_precision_param="float32",
        ),
        "checkpoint": CheckpointManager.Config(enable=True, interval=2, last_save_model_only=False),
        "metrics": MetricsProcessor.Config(log_freq=1), "loss": CrossEntropyLoss.Config(global_vocab_size=VOCABULARY),
        "optimizer": default_adamw(0.01), "activation_checkpoint": None,
    }  # fmt: skip
    return Trainer.Config(**given | more)


def crashes_in(trainer: Any, step: int | None) -> None:
    """The node is gone in the second microbatch of an update."""
    inner, calls = trainer.forward_backward_step, []

    def forward_backward_step(**given: Any) -> Any:
        calls.append(trainer.step)
        if calls.count(step) == 2:
            raise RuntimeError("the node is gone")
        return inner(**given)

    trainer.forward_backward_step = forward_backward_step
