"""Megatron without a GPU: it puts its tensors on CUDA by name, and within a block they lie on the processor instead.

Nothing of Megatron is changed: torch hands its calls to a mode that leaves the device out.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode


class OnProcessor(TorchFunctionMode):
    """What is asked for on CUDA is made on the processor, and says that it lies on CUDA where its type is asked for."""

    def __torch_function__(
        self, function: Callable[..., Any], types: object, arguments: tuple[Any, ...] = (), options: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(options or {})
        if str(given.get("device", "")).startswith("cuda"):
            given["device"] = "cpu"
        if function is torch.Tensor.cuda:
            return arguments[0]
        returned = function(*arguments, **given)
        if function is torch.Tensor.type and isinstance(returned, str):
            return returned.replace("torch.", "torch.cuda.")
        return returned


@contextmanager
def on_processor() -> Iterator[None]:
    """The block in which the processor stands in for the GPU."""
    with patch("torch.cuda.current_device", return_value="cpu"), patch("torch.cuda.synchronize"), OnProcessor():
        yield
