"""Hashed attention: full attention in one bucket, only one's bucket otherwise, rotations without state."""

from __future__ import annotations

import pytest
import torch

from remask.model.attention import Sight, attend
from remask.model.hashed import attend_hashed, rotation, token_buckets
from remask.model.noise import Noise

CPU = torch.device("cpu")
HEADS, WIDTH = 2, 8


def an_input(rows: int, size: int) -> torch.Tensor:
    return torch.randn(3, rows, HEADS, size, WIDTH, generator=torch.Generator().manual_seed(3)).requires_grad_()


def hashed(qkv: torch.Tensor, sight: Sight, bucket_size: int, rounds: int = 2, **more: int) -> torch.Tensor:
    settings = {"rounds": rounds, "bucket_size": bucket_size, "seed": 0, "layer": 1} | more
    return attend_hashed(qkv[:2], qkv[2], sight, **settings)


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("case", ["plain", "padding", "documents", "causal", "hidden"])
def test_one_bucket_is_full_attention(rounds: int, case: str) -> None:
    size = 12
    sight = Sight([12, 7] if case == "padding" else [12, 12], size, CPU, causal=case == "causal")
    if case == "documents":
        sight.document_ids_BS = torch.tensor([[0] * 5 + [1] * 7, [0] * 12])
    if case == "hidden":
        sight.hidden_tokens_BS = torch.arange(12).expand(2, 12) % 5 == 3
    ours, full = an_input(2, size), an_input(2, size)
    attended = hashed(ours, sight, bucket_size=16, rounds=rounds)
    wanted = attend(full, sight, None, "products", None, 0.0, 1)
    real = [(row, slice(0, length)) for row, length in enumerate(sight.lengths)]
    for row, part in real:
        torch.testing.assert_close(attended[row, :, part], wanted[row, :, part], atol=1e-5, rtol=1e-4)
    sum(attended[row, :, part].square().sum() for row, part in real).backward()  # type: ignore[union-attr]
    sum(wanted[row, :, part].square().sum() for row, part in real).backward()  # type: ignore[union-attr]
    torch.testing.assert_close(ours.grad, full.grad, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_token_sees_its_buckets_and_nothing_else(rounds: int) -> None:
    """Against attention written out: keys of the same bucket within reach, those of several rounds once."""
    size, bucket = 26, 8
    sight = Sight([26, 20], size, CPU)
    qkv = an_input(2, size).detach()
    buckets_RBNS = token_buckets(qkv[:2], sight, rounds, bucket, 0, 1)
    attended = hashed(qkv, sight, bucket, rounds)
    orders_RBNS = buckets_RBNS.argsort(dim=-1, stable=True)
    for row, length in enumerate(sight.lengths):
        for head in range(HEADS):
            for query in range(length):
                weights, common = torch.zeros(size), torch.zeros(size)
                same_RS = buckets_RBNS[:, row, head] == buckets_RBNS[:, row, head, query, None]
                common = same_RS.sum(0)
                for number in range(rounds):
                    places = orders_RBNS[number, row, head].argsort()
                    near = (places // bucket - places[query] // bucket).abs() <= 1
                    seen = same_RS[number] & near
                    scores = (qkv[1, row, head] @ qkv[0, row, head, query]) / WIDTH**0.5
                    weights += torch.where(seen, scores.exp() / common.clamp(min=1), torch.zeros(size))
                wanted = (weights / weights.sum()) @ qkv[2, row, head]
                torch.testing.assert_close(attended[row, head, query], wanted, atol=1e-5, rtol=1e-4)
    assert len(buckets_RBNS[0, 0].unique()) > 1, "the case has several buckets"


@pytest.mark.parametrize("length", [10, 20])
def test_padding_changes_nothing(length: int) -> None:
    """Neither the number of buckets nor dropout looks at it."""
    qkv = an_input(1, length).detach()
    longer = torch.cat([qkv, 9 * torch.ones(3, 1, HEADS, 25, WIDTH)], dim=3)
    noise = Noise(0, 0, torch.arange(1))
    attended = []
    for x in (qkv, longer):
        sight = Sight([length], x.shape[3], CPU)
        both = attend_hashed(x[:2], x[2], sight, rounds=2, bucket_size=16, seed=0, layer=1, noise=noise, dropout=0.2)
        attended.append(both[:, :, :length])
    torch.testing.assert_close(attended[0], attended[1], atol=1e-5, rtol=1e-4)


def test_rotations_follow_from_seed_layer_and_round_alone() -> None:
    torch.manual_seed(1)
    first = rotation(0, 2, 1, 8, 4).clone()
    rotation.cache_clear()
    torch.manual_seed(99)
    assert torch.equal(first, rotation(0, 2, 1, 8, 4))
    others = [rotation(1, 2, 1, 8, 4), rotation(0, 3, 1, 8, 4), rotation(0, 2, 0, 8, 4)]
    assert not any(torch.equal(first, other) for other in others)
    assert torch.equal(first[:, :2], rotation(0, 2, 1, 8, 2)), "fewer buckets are the first of more"


def test_dropout_drops_and_keeps_the_mean() -> None:
    sight = Sight([24] * 64, 24, CPU)
    qkv = torch.zeros(3, 64, HEADS, 24, WIDTH)
    qkv[2] = 1.0
    noise = Noise(0, 0, torch.arange(64))
    settings = {"rounds": 2, "bucket_size": 32, "seed": 0, "layer": 0}
    attended = attend_hashed(qkv[:2], qkv[2], sight, noise=noise, dropout=0.3, **settings)  # type: ignore[arg-type]
    assert attended.std() > 0.01
    assert abs(float(attended.mean()) - 1.0) < 0.01
