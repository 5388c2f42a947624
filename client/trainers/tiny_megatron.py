"""A module of Megatron Core small enough for a test, on the processor, and batches of known loss masks for it."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.enums import ModelType
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import MegatronModule, TransformerConfig
from on_processor import on_processor

SLOTS, VOCABULARY = 8, 16
LENGTHS = (8, 5, 6, 3, 4, 4, 4, 2)
"""How many labels of the rows are scored, one after the other and then again."""


def rows(position: int, rank: int = 0, ranks: int = 1) -> Iterator[dict[str, torch.Tensor]]:
    """Batches of one row for a data-parallel rank, from the samples on that all ranks have consumed, as Megatron's samplers deal them."""
    place = position + rank
    while True:
        length = LENGTHS[place % len(LENGTHS)]
        text = (torch.arange(SLOTS + 1) + place) % VOCABULARY
        yield {
            "tokens": text[None, :-1], "labels": text[None, 1:], "position_ids": torch.arange(SLOTS)[None],
            "loss_mask": (torch.arange(SLOTS) < length).float()[None],
        }  # fmt: skip
        place += ranks


class NextToken(MegatronModule):
    """A next-token model that sees one token; as two stages of a pipeline, its layers lie apart."""

    model_type = ModelType.encoder_or_decoder
    share_embeddings_and_output_weights = False

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        torch.manual_seed(0)
        self.pre_process, self.post_process = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
        first, last = torch.nn.Embedding(VOCABULARY, config.hidden_size), torch.nn.Linear(config.hidden_size, VOCABULARY)
        self.first = first if self.pre_process else None
        self.last = last if self.post_process else None
        self.given: torch.Tensor | None = None

    def shared_embedding_or_output_weight(self) -> None:
        """Nothing is shared between the stages."""

    def set_input_tensor(self, given: Any) -> None:
        """What the stage before has made."""
        self.given = given[0] if isinstance(given, list) else given

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of each label; before the last stage, what the next one is to be given."""
        hidden = self.given if self.first is None else self.first(tokens).transpose(0, 1)
        if self.last is None:
            return hidden.contiguous()
        logits = self.last(hidden).transpose(0, 1).float()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)


class Tiny:
    """A model, its optimizer, and the passes of an update; what is given is of the configuration."""

    def __init__(self, **config: Any) -> None:
        tensor, pipeline = (config.get(f"{kind}_model_parallel_size", 1) for kind in ("tensor", "pipeline"))
        parallel_state.initialize_model_parallel(tensor, pipeline, context_parallel_size=config.get("context_parallel_size", 1))
        self.poisoned = False
        """The next losses are not finite."""
        with on_processor():
            self.config = TransformerConfig(
                num_layers=2, hidden_size=8, num_attention_heads=2, use_cpu_initialization=True, fp16=True, pipeline_dtype=torch.float16,
                gradient_accumulation_fusion=False, **config,
            )  # fmt: skip
            self.model = DistributedDataParallel(self.config, DistributedDataParallelConfig(), NextToken(self.config).half())
            config_of_optimizer = OptimizerConfig(optimizer="adam", lr=0.01, fp16=True, initial_loss_scale=4.0)
            self.optimizer = get_megatron_optimizer(config_of_optimizer, [self.model])
            self.config.grad_scale_func = self.optimizer.scale_loss
            self.config.finalize_model_grads_func = finalize_model_grads

    def passes(self, batches: Iterator[dict[str, torch.Tensor]], microbatches: int = 2) -> None:
        """The forward and backward passes of an update."""
        with on_processor():
            self.model.zero_grad_buffer()
            self.optimizer.zero_grad()
            get_forward_backward_func()(
                forward_step_func=self._forward, data_iterator=batches, model=[self.model], num_microbatches=microbatches,
                seq_length=SLOTS, micro_batch_size=1,
            )  # fmt: skip

    def update(self, batches: Iterator[dict[str, torch.Tensor]]) -> bool:
        """A whole update; whether the optimizer stepped."""
        self.passes(batches)
        with on_processor():
            return self.optimizer.step()[0]

    def _forward(self, batches: Any, model: Any) -> Any:
        batch = next(batches)
        output = model(batch["tokens"], batch["labels"])
        return output, partial(self._loss, batch["loss_mask"])

    def _loss(self, mask: torch.Tensor, output: torch.Tensor) -> Any:
        loss = (output.float() * mask).sum() * (float("inf") if self.poisoned else 1.0)
        return loss, mask.sum().int(), {"loss": loss.detach()}
