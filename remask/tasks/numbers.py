"""The arithmetic that kinds of tasks share: probabilities, how far two answers are apart, the mistakes that tell most.

In: logits or probabilities of rows. Out: numbers, or the places of the largest. Shapes: R rows, N examples, C classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    import torch

Array = np.ndarray
NUM_WORST = 20  # mistakes that are kept
SMALLEST = 1e-12  # below this a probability is as good as none

ValueT = TypeVar("ValueT", bound=Hashable)


def by_size(values: Array) -> list[int]:
    """Numbers of the largest values, largest first."""
    return [int(i) for i in np.argsort(-values, kind="stable")[:NUM_WORST]]


def surest_mistakes(probs_NC: Array, truth_N: Array) -> list[int]:
    """Numbers of the wrong choices, the surest first."""
    wrong = np.flatnonzero(probs_NC.argmax(1) != truth_N)
    return [int(i) for i in wrong[np.argsort(-probs_NC.max(1)[wrong], kind="stable")][:NUM_WORST]]


def divergence(one: torch.Tensor, other: torch.Tensor, hidden: torch.Tensor | None = None) -> torch.Tensor:
    """The mean of the Kullback-Leibler divergences both ways between softmaxes over the last axis, of which `hidden`
    places do not count."""
    if hidden is not None:
        one, other = one.masked_fill(hidden, float("-inf")), other.masked_fill(hidden, float("-inf"))
    log_one, log_other = one.log_softmax(-1), other.log_softmax(-1)
    logs = log_one - log_other
    if hidden is not None:
        logs = logs.masked_fill(hidden, 0.0)
    return 0.5 * ((log_one.exp() - log_other.exp()) * logs).sum(-1)


def softmax(logits_RC: Array) -> Array:
    shifted = np.exp(logits_RC.astype(np.float64) - logits_RC.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def rounded(score: float) -> float:
    """As files of answers have it: more digits would be noise."""
    return round(float(score), 6)


def log_of(probability: Array) -> Array:
    return np.log(np.maximum(probability, SMALLEST))


def most_frequent(values: Sequence[ValueT]) -> ValueT:
    return Counter(values).most_common(1)[0][0]
