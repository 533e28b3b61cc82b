"""8-bit products answer nearly as fp32 does, whatever the form of the network, and alone as in a batch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from remask.model.int8 import ByColumn, ByLargest, products, quantise, watch
from remask.model.network import Network, build_network
from remask.model.packed import for_answers
from remask.model.settings import HeadSettings, ModelSettings
from remask.precision import probe
from remask.schema import Batch

SMALL: dict[str, Any] = {
    "vocab_size": 60, "num_layers": 2, "hidden_size": 64, "num_heads": 2, "ffn_size": 96, "max_length": 24,
}  # fmt: skip
HEADS = HeadSettings(masked_lm=True, num_classes=3)
FORMS: list[dict[str, Any]] = [
    {},
    {"activation": "gelu_tanh", "bias": False},
    {"ffn": "gated", "positions": "rotary", "norm": "pre", "num_segments": 0, "head_form": "modern"},
    {"sharing": "all"},
    {"pooler_tied": True},
]

pytestmark = pytest.mark.skipif(not (tried := probe("int8"))[0], reason=f"int8: {tried[1]}")


def made(form: dict[str, Any]) -> Network:
    network = build_network(ModelSettings(**(SMALL | form)), HEADS, seed=0).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        parameter.mul_(4.0)
        if parameter.ndim == 1:
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return network


def batch(seed: int = 2, rows: int = 6, size: int = 20) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    lengths_B = torch.randint(3, size + 1, (rows,), generator=generator)
    lengths_B[0] = size
    return Batch(torch.randint(3, 60, (rows, size), generator=generator), lengths_B)


@torch.inference_mode()
def quantised(network: Network, keep: tuple[str, ...] = ()) -> Network:
    with watch(network) as ranges:
        for seed in range(4):
            network.encode(batch(seed))
    return quantise(network, ranges, torch.float32, keep)


def apart(expected: torch.Tensor, found: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("form", FORMS)
def test_states_stay_close_to_fp32(form: dict[str, Any]) -> None:
    plain = made(form)
    other = for_answers(quantised(copy.deepcopy(plain)), "fp32")
    with torch.inference_mode():
        assert 0 < apart(plain.encode(batch()), other.encode(batch())) < 0.05
        expected, found = (net.classify(net.encode(batch()), batch().lengths_B) for net in (plain, other))
    assert apart(expected, found) < 0.05


def test_a_few_huge_columns_behind_gelu_cost_nothing() -> None:
    """One unit of the FFN gives 200 where the others give 2: rounding all of them alike would lose those."""
    plain = made({})
    for ffn in plain.encoder.ffns:
        ffn.up.weight[5] *= 60.0
        ffn.down.weight[:, 5] /= 60.0
    other = quantised(copy.deepcopy(plain))
    assert all(isinstance(ffn.down, ByLargest) and 5 in ffn.down.largest_C for ffn in other.encoder.ffns)
    with torch.inference_mode():
        assert apart(plain.encode(batch()), other.encode(batch())) < 0.05


def test_an_answer_does_not_depend_on_its_batch() -> None:
    network = quantised(made({}))
    rows = batch()
    with torch.inference_mode():
        together = network.encode(rows)
        for row, length in enumerate(rows.lengths_B.tolist()):
            alone = network.encode(Batch(rows.input_ids_BS[row : row + 1, :length], rows.lengths_B[row : row + 1]))
            torch.testing.assert_close(alone[0], together[row, :length], rtol=0, atol=1e-4)


def test_kept_parts_and_borrowed_matrices_are_not_rounded() -> None:
    network = quantised(made({"pooler_tied": True}), keep=("down",))
    assert all(isinstance(ffn.up, ByColumn) and isinstance(ffn.down, torch.nn.Linear) for ffn in network.encoder.ffns)
    first, last = network.encoder.attentions
    assert isinstance(first.output, ByColumn)
    assert isinstance(last.output, torch.nn.Linear), "the pooler asks this one other questions"
    assert not any(name == "up" for _, name, _ in products(network))
