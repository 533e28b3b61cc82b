"""Attention by gathered rows says what padded rows say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from remask.model.encoder import Encoder
from remask.model.gathered import ByHead
from remask.model.network import build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.schema import Batch

SMALL: dict[str, Any] = {
    "vocab_size": 40, "num_layers": 2, "hidden_size": 32, "num_heads": 2, "ffn_size": 48, "max_length": 80,
}  # fmt: skip


def batch_of(lengths: list[int]) -> Batch:
    ids = torch.randint(3, 40, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))
    return Batch(ids, torch.tensor(lengths))


@pytest.mark.parametrize("lengths, computed", [([5, 3, 1], [5, 4, 1]), ([33, 33], [33, 33]), ([64], [64])])
def test_by_head_is_attention_row_by_row(lengths: list[int], computed: list[int]) -> None:
    qkv_TM = torch.randn(sum(computed), 3 * 2 * 4, generator=torch.Generator().manual_seed(1))
    attended_TD = ByHead.of(lengths, computed, 2, torch.float32).attend(qkv_TM)
    starts = [sum(computed[:row]) for row in range(len(computed))]
    for start, length in zip(starts, lengths, strict=True):
        q, k, v = qkv_TM[start : start + length].view(length, 3, 2, 4).permute(1, 2, 0, 3)
        expected = torch.softmax(q @ k.mT / 2.0, dim=-1) @ v
        found = attended_TD[start : start + length].view(length, 2, 4).transpose(0, 1)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("lengths", [[61, 20, 7], [70, 70], [12, 9, 30, 31]])
def test_a_network_answers_as_with_padded_rows(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    network = build_network(ModelSettings(**SMALL), HeadSettings(), seed=0).requires_grad_(False)
    for parameter in network.parameters():
        parameter.mul_(3.0)  # scores that differ
    attended = []
    attend = ByHead.attend
    monkeypatch.setattr(ByHead, "attend", lambda self, x: attended.append(len(x)) or attend(self, x))
    states = {}
    for kernel in ("auto", "products"):
        settings = network.settings.model_copy(update={"attention_kernel": kernel})
        for module in network.modules():
            if isinstance(module, Encoder) or hasattr(module, "bottleneck"):
                module.settings = settings  # type: ignore[assignment]
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            states[kernel] = network.encode(batch_of(lengths))
        assert bool(attended) == (kernel == "auto")
        attended.clear()
    torch.testing.assert_close(states["auto"], states["products"], atol=0.05, rtol=0)


def test_a_row_that_is_no_number_does_not_touch_the_others() -> None:
    qkv_TM = torch.randn(12, 3 * 2 * 4, generator=torch.Generator().manual_seed(2))
    places = ByHead.of([6, 4, 2], [6, 4, 2], 2, torch.float32)
    clean_TD = places.attend(qkv_TM)
    qkv_TM[:6] = torch.nan
    found_TD = places.attend(qkv_TM)
    assert found_TD[:6].isnan().all()
    torch.testing.assert_close(found_TD[6:], clean_TD[6:])


def test_rows_that_hide_more_than_padding_stay_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByHead, "attend", lambda self, x: pytest.fail("gathered"))
    network = build_network(ModelSettings(**SMALL), HeadSettings(), seed=0).requires_grad_(False)
    batch = batch_of([70, 70])
    documents = torch.zeros(2, 70, dtype=torch.int64)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        network.encode(batch, causal=True)
        network.encode(replace(batch, document_ids_BS=documents))
    with torch.autocast("cpu", torch.bfloat16):
        network.encode(batch)  # gradients may be wanted
