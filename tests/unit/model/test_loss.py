"""The fused cross-entropy against torch's in double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from remask.model import loss as module
from remask.model.loss import cross_entropy


@pytest.mark.parametrize("values_at_a_time", [1 << 20, 50])
@pytest.mark.parametrize("rows", [0, 1, 17])
def test_value_gradient_and_count(rows: int, values_at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_VALUES", values_at_a_time)
    generator = torch.Generator().manual_seed(rows)
    logits = (torch.randn(rows, 23, generator=generator) * 5).requires_grad_()
    labels = torch.randint(23, (rows,), generator=generator)
    exact = logits.detach().double().requires_grad_()
    expected = F.cross_entropy(exact, labels, reduction="sum")
    (expected * 0.37).backward()
    total, correct = cross_entropy(logits, labels)
    (total * 0.37).backward()  # the incoming gradient is not 1
    torch.testing.assert_close(total.double(), expected)
    torch.testing.assert_close(logits.grad.double(), exact.grad, atol=1e-6, rtol=1e-5)
    assert int(correct) == int((logits.argmax(1) == labels).sum())


def test_sums_are_fp32_when_logits_are_bf16() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 5000, generator=generator).bfloat16().requires_grad_()
    labels = torch.randint(5000, (64,), generator=generator)
    total, _ = cross_entropy(logits, labels)
    total.backward()
    expected = F.cross_entropy(logits.detach().double(), labels, reduction="sum")
    assert total.dtype == torch.float32
    assert abs(total.item() - expected.item()) < 1e-5 * expected.item()
    assert logits.grad.dtype == torch.bfloat16


def test_huge_logits_do_not_overflow() -> None:
    logits = torch.tensor([[1e30, -1e30, 0.0]], requires_grad=True)
    total, _ = cross_entropy(logits, torch.tensor([0]))
    total.backward()
    assert total.item() == 0.0
    assert torch.isfinite(logits.grad).all()
