"""A packed network answers as it did before."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from remask.model.network import build_network
from remask.model.packed import PackedLinear, can_pack, pack
from remask.model.settings import HeadSettings, ModelSettings
from remask.precision import probe
from remask.schema import Batch

SMALL: dict[str, Any] = {
    "vocab_size": 40, "num_layers": 2, "hidden_size": 32, "num_heads": 2, "ffn_size": 48, "max_length": 12,
}  # fmt: skip
HEADS = HeadSettings(masked_lm=True, num_classes=3, num_tags=4)
BATCH = Batch(torch.tensor([[0, 7, 8, 2], [0, 9, 2, 1]]), torch.tensor([4, 3]))
FORMS: list[dict[str, Any]] = [
    {},
    {"activation": "gelu_tanh", "bias": False},
    {"ffn": "gated", "positions": "rotary", "norm": "pre", "num_segments": 0, "head_form": "modern"},
    {"sharing": "all", "tied_embeddings": False},
    {"pooler_tied": True},
]

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


def answers(network: Any) -> list[torch.Tensor]:
    with torch.inference_mode():
        hidden_BSD = network.encode(BATCH)
        positions_M = torch.tensor([1, 2])
        return [network.masked_lm(hidden_BSD, positions_M), network.classify(hidden_BSD), network.tag(hidden_BSD)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype, apart", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_a_packed_network_answers_as_before(form: dict[str, Any], dtype: torch.dtype, apart: float) -> None:
    if dtype == torch.bfloat16 and not (tried := probe("bf16", "cpu"))[0]:
        pytest.skip(f"bf16: {tried[1]}")
    plain = build_network(ModelSettings(**(SMALL | form)), HEADS, seed=0).eval().requires_grad_(False)
    for parameter in plain.parameters():
        parameter.mul_(4.0)  # activations away from 0, where all forms of GELU are alike
    packed = pack(copy.deepcopy(plain).to(dtype))
    assert any(isinstance(module, PackedLinear) for module in packed.modules())
    for expected, found in zip(answers(plain.to(dtype)), answers(packed), strict=True):
        bound = apart * float(expected.abs().max())
        torch.testing.assert_close(found.float(), expected.float(), atol=bound, rtol=0)


def test_formats_without_packed_products_stay_as_they_are() -> None:
    network = build_network(ModelSettings(**SMALL), HEADS, seed=0)
    assert can_pack(network)
    assert not can_pack(network.to(torch.float16))
