"""Between a batch and the optimizer nobody reads a value back from the device.

The whole of forward and backward runs on torch's `meta` device, whose tensors have no values: whatever would make the
host wait for a GPU (a length, a count, the places of something) is an error there, at once and without a GPU.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch

from remask.model.network import build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.model.shapes import to_device
from remask.objectives import ObjectiveSettings, Pretraining
from remask.schema import IGNORE, Batch
from remask.task_objectives import TaskObjective
from remask.tasks.kinds import KINDS

SMALL: dict[str, Any] = {
    "vocab_size": 60, "num_layers": 2, "hidden_size": 32, "num_heads": 2, "ffn_size": 48, "max_length": 16,
}  # fmt: skip
META = torch.device("meta")


@pytest.fixture(autouse=True)
def no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which knows nothing of the meta device, and is switched off around the explicit products."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)


def batch(**more: Any) -> Batch:
    lengths = np.array([16, 5, 9])
    masked = {"masked_positions_M": np.array([1, 7, 16 + 2, 32 + 4]), "masked_labels_M": np.array([5, 6, 7, 8])}
    return Batch(np.full((3, 16), 9), lengths, example_ids_B=np.arange(3), **masked, **more)


def step(settings: ModelSettings, heads: HeadSettings, objective: Any, given: Batch) -> None:
    network = build_network(settings, heads, seed=0).to(META)
    counts = objective.counts(given)
    loss = objective(network, given.sent(lambda array: to_device(array, META)), 1)
    total = sum(part.sum / max(1.0, counts[name]) for name, part in loss.parts.items())
    total.backward()
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    assert len(gradients) > 10
    assert all(gradient.device == META for gradient in gradients)


PACKED = {
    "document_ids_BS": np.array([[0] * 9 + [1] * 7, [0] * 5 + [-1] * 11, [0] * 9 + [-1] * 7]),
    "position_ids_BS": np.array([[*range(9), *range(7)], [*range(16)], [*range(16)]]),
}
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any], ObjectiveSettings]] = {
    "roberta": ({}, {}, ObjectiveSettings()),
    "packed": ({}, PACKED, ObjectiveSettings()),
    "rotary, windows": (
        {"positions": "rotary", "norm": "pre", "ffn": "gated", "num_segments": 0, "attention_kernel": "sdpa"}, {},
        ObjectiveSettings(),
    ),
    "hidden tokens": ({"attention_mask_prob": 0.1}, {}, ObjectiveSettings()),
    "left to right": ({}, {}, ObjectiveSettings(causal_share=0.5)),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_pretraining_step_reads_nothing_back(form: str) -> None:
    changes, more, objective = FORMS[form]
    settings = ModelSettings(**(SMALL | changes))
    step(settings, HeadSettings(masked_lm=True), Pretraining(objective, seed=1, sentence=False), batch(**more))


def test_nor_does_the_sentence_loss() -> None:
    heads = HeadSettings(masked_lm=True, sentence=True)
    given = batch(sentence_labels_B=np.array([1, 0, IGNORE]))
    step(ModelSettings(**SMALL), heads, Pretraining(ObjectiveSettings(), seed=1, sentence=True), given)


def test_nor_does_fine_tuning_a_classifier() -> None:
    given = batch(labels=np.array([1, 0, 2]))
    step(ModelSettings(**SMALL), HeadSettings(num_classes=3), TaskObjective(KINDS["classify"], seed=1), given)


def test_a_read_back_would_show() -> None:
    given = batch()
    with pytest.raises((RuntimeError, NotImplementedError)):
        build_network(ModelSettings(**SMALL), HeadSettings(), seed=0).to(META).encode(
            given.map(lambda array: to_device(array, META))  # without the host's copy lengths must be read
        )
