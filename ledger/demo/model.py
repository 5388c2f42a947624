"""A language model over a window of characters: embedding, one hidden layer, softmax; its gradient is written out by hand.

The logits of position t+1 are `tanh([E x_t, E x_(t-1), ... E x_(t-w+1)] W + b) V + c`. All weights lie in one flat vector, so
that the sum over the ranks, the optimizer and the checkpoint each handle one array.

Source: Bengio, Ducharme, Vincent, Jauvin, A Neural Probabilistic Language Model, JMLR 3, 2003.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ledger.demo.text import PADDING, Tokens

Floats = npt.NDArray[np.floating[Any]]


class LanguageModel:
    """The shapes of the model and the two directions through it."""

    def __init__(self, vocabulary: int, window: int, embedding: int, hidden: int) -> None:
        self.window = window
        self.shapes = {
            "embedding": (vocabulary, embedding),
            "hidden_weight": (window * embedding, hidden),
            "hidden_bias": (hidden,),
            "output_weight": (hidden, vocabulary),
            "output_bias": (vocabulary,),
        }
        self.size = sum(math.prod(shape) for shape in self.shapes.values())

    def initial(self, seed: int) -> Floats:
        """Fresh weights, the same on every rank: matrices spread by their fan-in, biases zero."""
        weights = np.zeros(self.size, dtype=np.float32)
        random = np.random.default_rng(seed)
        for name, view in self.views(weights).items():
            if view.ndim == 2:
                spread = 1.0 if name == "embedding" else 1.0 / math.sqrt(view.shape[0])
                view[...] = random.normal(0.0, spread, view.shape)
        return weights

    def views(self, flat: Floats) -> dict[str, Floats]:
        """The named parts of a flat vector; writing to a part writes to the vector."""
        parts, start = {}, 0
        for name, shape in self.shapes.items():
            stop = start + math.prod(shape)
            parts[name] = flat[start:stop].reshape(shape)
            start = stop
        return parts

    def loss(self, weights: Floats, tokens: Tokens) -> float:
        """The negative log likelihood, summed over the valid targets.

        Units: nats
        """
        _, _, _, log_probabilities, valid, targets = self._forward(weights, tokens)
        return -float(log_probabilities[np.arange(targets.size), targets][valid].sum(dtype=np.float64))

    def loss_and_gradient(self, weights: Floats, tokens: Tokens, scale: float = 1.0) -> tuple[float, Floats]:
        """The summed negative log likelihood, and `scale` times its gradient.

        Shape: the gradient is flat, like the weights
        """
        part = self.views(weights)
        context, inputs, hidden, log_probabilities, valid, targets = self._forward(weights, tokens)
        rows = np.arange(targets.size)
        loss_sum = -float(log_probabilities[rows, targets][valid].sum(dtype=np.float64))

        slope = np.exp(log_probabilities)
        slope[rows, targets] -= 1.0
        slope[~valid] = 0.0
        slope *= scale
        gradient = np.zeros(self.size, dtype=weights.dtype)
        into = self.views(gradient)
        into["output_weight"][...] = hidden.T @ slope
        into["output_bias"][...] = slope.sum(axis=0)
        hidden_slope = (slope @ part["output_weight"].T) * (1.0 - hidden * hidden)
        into["hidden_weight"][...] = inputs.T @ hidden_slope
        into["hidden_bias"][...] = hidden_slope.sum(axis=0)
        input_slope = hidden_slope @ part["hidden_weight"].T
        np.add.at(into["embedding"], context.reshape(-1), input_slope.reshape(-1, part["embedding"].shape[1]))
        return loss_sum, gradient

    def _forward(self, weights: Floats, tokens: Tokens) -> tuple[Tokens, Floats, Floats, Floats, npt.NDArray[np.bool_], Tokens]:
        """Contexts, inputs, hidden values and log probabilities of every position that has a next one, padding included."""
        part = self.views(weights)
        before = np.full((tokens.shape[0], self.window - 1), PADDING, dtype=np.int64)
        windows = np.lib.stride_tricks.sliding_window_view(np.hstack((before, tokens[:, :-1])), self.window, axis=1)
        context = windows.reshape(-1, self.window)
        inputs = part["embedding"][context].reshape(context.shape[0], -1)
        hidden = np.tanh(inputs @ part["hidden_weight"] + part["hidden_bias"])
        logits = hidden @ part["output_weight"] + part["output_bias"]
        logits -= logits.max(axis=1, keepdims=True)
        log_probabilities = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        targets = tokens[:, 1:].reshape(-1)
        return context, inputs, hidden, log_probabilities, targets != PADDING, targets


class Adam:
    """The optimizer: it knows how many updates it has applied, and nothing of those that were withheld.

    Source: Kingma, Ba, Adam: A Method for Stochastic Optimization, ICLR 2015.
    """

    def __init__(self, size: int, first_decay: float = 0.9, second_decay: float = 0.99) -> None:
        self.applied_count = 0
        self.mean = np.zeros(size, dtype=np.float32)
        self.square = np.zeros(size, dtype=np.float32)
        self._first_decay, self._second_decay = first_decay, second_decay

    def apply(self, weights: Floats, gradient: Floats, learning_rate: float) -> None:
        """Move the weights in place by one update."""
        self.applied_count += 1
        self.mean += (1 - self._first_decay) * (gradient - self.mean)
        self.square += (1 - self._second_decay) * (gradient * gradient - self.square)
        mean = self.mean / (1 - self._first_decay**self.applied_count)
        square = self.square / (1 - self._second_decay**self.applied_count)
        weights -= learning_rate * mean / (np.sqrt(square) + 1e-8)


def learning_rate(peak: float, step: int, warmup: int, total: int) -> float:
    """Linear warm-up, then half a cosine down to a tenth of the peak.

    >>> learning_rate(0.5, 0, 5, 45), learning_rate(0.5, 5, 5, 45), round(learning_rate(0.5, 45, 5, 45), 12)
    (0.1, 0.5, 0.05)
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))
