"""Counts against the papers and against torch's own counter; memory against a real step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from remask.config import build_run
from remask.model import cost
from remask.model.network import build_network
from remask.model.settings import HeadSettings, ModelSettings

SMALL: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 32, "num_heads": 4, "num_layers": 3, "ffn_size": 48, "max_length": 64,
}  # fmt: skip
MODERN: dict[str, Any] = {
    "positions": "rotary", "norm": "pre", "first_norm": False, "ffn": "gated", "num_segments": 0, "position_offset": 0,
}  # fmt: skip
FORMS: dict[str, dict[str, Any]] = {
    "roberta": {},
    "shared": {"sharing": "all", "embedding_size": 16},
    "modern": MODERN,
}


@pytest.mark.parametrize(("base", "millions"), [("roberta_base", 125), ("roberta_large", 355)])
def test_parameters_are_those_of_the_paper(base: str, millions: int) -> None:
    from remask.pretraining.settings import PretrainRun

    settings = build_run(PretrainRun, base=base).run.model.model_copy(update={"vocab_size": 50265})
    parts = cost.parameters_by_part(settings, HeadSettings(masked_lm=True))
    assert round(sum(parts.values()) / 1e6) == pytest.approx(millions, abs=1)


@pytest.mark.parametrize("form", FORMS)
def test_parts_add_up(form: str) -> None:
    settings, heads = ModelSettings(**(SMALL | FORMS[form])), HeadSettings(masked_lm=True, num_classes=3)
    network = build_network(settings, heads, seed=0)
    parts = cost.parameters_by_part(settings, heads)
    assert sum(parts.values()) == sum(parameter.numel() for parameter in network.parameters())
    assert all(parts.values())


@pytest.mark.parametrize("form", FORMS)
def test_flops_are_what_torch_counts(form: str) -> None:
    settings = ModelSettings(**(SMALL | FORMS[form] | {"attention_kernel": "products"}))
    heads = HeadSettings(masked_lm=True)
    network = build_network(settings, heads, seed=0)
    batch = cost.probe_batch(settings, 4, 50, torch.device("cpu"))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        cost.training_loss(network, batch)
    ours = sum(cost.flops_per_token(settings, heads, 50).values()) * 4 * 50
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_a_window_costs_what_it_sees() -> None:
    assert cost._seen(None, 10) == 10
    assert cost._seen(20, 10) == 10
    assert cost._seen(1, 3) == pytest.approx((2 + 3 + 2) / 3)


def test_activations_grow_by_the_row() -> None:
    network = build_network(ModelSettings(**SMALL), HeadSettings(masked_lm=True), seed=0)
    measured = [cost._kept_bytes(network, rows, 40) for rows in (1, 2, 3, 6)]
    predicted = [cost.activation_bytes(network, rows, 40) for rows in (1, 2, 3, 6)]
    assert predicted == pytest.approx(measured, rel=0.05)
    assert measured[0] > 3 * 40 * 32 * 4 * 4  # at least a few states of every layer
