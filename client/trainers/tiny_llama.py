"""A language model small enough to be trained in a test, and rows of known lengths for it."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SLOTS, VOCABULARY = 8, 11


def model() -> LlamaForCausalLM:
    """One layer, the same weights every time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=SLOTS, pad_token_id=0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def rows(*lengths: int) -> list[dict[str, torch.Tensor]]:
    """Rows of that many tokens, padded to eight slots, each with its labels at its own tokens."""
    found = []
    for number, length in enumerate(lengths):
        mask = (torch.arange(SLOTS) < length).long()
        tokens = (1 + (torch.arange(SLOTS) + number) % (VOCABULARY - 1)) * mask
        found.append({"input_ids": tokens, "attention_mask": mask, "labels": torch.where(mask == 1, tokens, -100)})
    return found
