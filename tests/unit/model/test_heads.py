"""The masked-LM output against autocast's own linear layer, value and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from remask.model import heads
from remask.model.settings import ModelSettings


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("rows_at_once", [4096, 7])
def test_the_output_is_autocasts_linear_layer(rows_at_once: int, learns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "_SLICE", rows_at_once)
    torch.manual_seed(0)
    head = heads.MaskedLm(ModelSettings(vocab_size=50, hidden_size=16, num_heads=2))
    with torch.no_grad():
        head.bias.normal_()
    hidden = torch.randn(9, 16, requires_grad=True)
    matrix = torch.randn(50, 16).requires_grad_(learns)
    leaves = [hidden, head.bias, head.dense.weight, *([matrix] if learns else [])]
    weights = torch.randn(9, 50)

    def ours() -> torch.Tensor:
        return head(hidden, matrix)

    def plain() -> torch.Tensor:
        return F.linear(head.features(hidden), matrix, head.bias)

    found = []
    for way in (ours, plain):
        with torch.autocast("cpu", torch.bfloat16):
            logits = way()
        assert logits.dtype == torch.bfloat16
        found.append((logits.detach(), torch.autograd.grad((logits.float() * weights).sum(), leaves)))
    assert torch.equal(found[0][0], found[1][0])
    for mine, theirs in zip(found[0][1], found[1][1], strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2)
