"""Every switch of the model is live, and pairs of them train together."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from remask.config import Switch, switches
from remask.model.loss import cross_entropy
from remask.model.network import build_network
from remask.model.noise import Noise
from remask.model.settings import HeadSettings, ModelSettings
from remask.schema import Batch

START: dict[str, Any] = {
    "vocab_size": 60, "num_layers": 4, "hidden_size": 48, "num_heads": 3, "ffn_size": 40, "max_length": 20,
    "init_std": 0.3,
}  # fmt: skip
# What a switch needs beside it to mean anything.
WITH: dict[str, dict[str, Any]] = {
    "hidden_size": {"num_heads": 4},
    "num_groups": {"sharing": "all"},
    "rotary_base": {"positions": "rotary"},
    "rotary_base_local": {"positions": "rotary", "attention_window": 2},
    "first_norm": {"norm": "pre"},
    "global_every": {"attention_window": 2},
    **{name: {"attention_kind": "hashed", "bucket_size": 5} for name in ("bucket_size", "hash_rounds", "hash_seed")},
}
# What a value needs beside it.
TOGETHER: dict[tuple[str, str], dict[str, Any]] = {
    ("attention_kind", "window"): {"attention_window": 2},
    ("attention_kind", "hashed"): {"bucket_size": 5},
}
ALL = list(switches(ModelSettings))
CASES = [(switch, value) for switch in ALL for value in switch.values if value != START.get(switch.key, switch.default)]


def a_batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 60, (4, 17), generator=generator)
    lengths = torch.tensor([17, 9, 13, 17])
    segments = (torch.arange(17) >= 5).long().expand(4, 17)
    masked = torch.tensor([1, 4, 18, 20, 40, 52, 60])
    return Batch(
        ids, lengths, segment_ids_BS=segments, masked_positions_M=masked,
        masked_labels_M=torch.randint(4, 60, (7,), generator=generator), example_ids_B=torch.arange(4),
    )  # fmt: skip


def outputs(values: dict[str, Any]) -> torch.Tensor:
    """Everything a training step computes: states, masked-LM logits and a classifier's."""
    network = build_network(ModelSettings(**values), HeadSettings(masked_lm=True, num_classes=2), seed=7)
    with torch.no_grad():  # biases start at zero, where their absence would not show
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.linspace(-0.5, 0.5, len(parameter)))
    batch = a_batch()
    noise = Noise(1, 1, batch.example_ids_B)
    hidden = network.encode(batch, noise)
    logits = network.masked_lm(hidden, batch.masked_positions_M)
    return torch.cat([x.flatten() for x in (hidden, logits, network.classify(hidden, batch.lengths_B, noise))])


@pytest.mark.parametrize("switch, value", CASES, ids=[f"{switch.key}={value}" for switch, value in CASES])
def test_every_value_is_live(switch: Switch, value: Any) -> None:
    start = START | WITH.get(switch.key, {})
    before = outputs(start)
    after = outputs(start | {switch.key: value} | TOGETHER.get((switch.key, str(value)), {}))
    same = before.shape == after.shape and torch.allclose(before, after, atol=1e-5, rtol=1e-4)
    assert same == (switch.effect == "speed")


def test_pooling_is_live() -> None:
    batch = a_batch()
    pooled = []
    for pooling in ("first", "mean"):
        heads = HeadSettings(num_classes=2, pooling=pooling)  # type: ignore[arg-type]
        network = build_network(ModelSettings(**START), heads, seed=7)
        pooled.append(network.classify(network.encode(batch), batch.lengths_B))
    assert not torch.allclose(pooled[0], pooled[1])


def sampled_pairs(number: int) -> list[dict[str, Any]]:
    """Seeded pairs of values, with what they need beside them; combinations that settings refuse are not drawn."""
    draw = random.Random(20191115)
    pairs: list[dict[str, Any]] = []
    while len(pairs) < number:
        (one, first), (two, second) = draw.sample(CASES, 2)
        if one.key == two.key:
            continue
        needs = WITH.get(one.key, {}) | WITH.get(two.key, {})
        for key, value in ((one.key, first), (two.key, second)):
            needs |= TOGETHER.get((key, str(value)), {})
        pair = needs | {one.key: first, two.key: second}
        try:
            ModelSettings(**(START | pair))
        except ValidationError:
            continue
        pairs.append(pair)
    return pairs


@pytest.mark.parametrize("pair", sampled_pairs(40), ids=lambda pair: " ".join(f"{k}={v}" for k, v in pair.items()))
def test_pairs_train_together(pair: dict[str, Any]) -> None:
    network = build_network(ModelSettings(**(START | {"init_std": 0.02} | pair)), HeadSettings(masked_lm=True), seed=7)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    batch = a_batch()

    def loss(noise: Noise | None) -> torch.Tensor:
        hidden = network.encode(batch, noise)
        return cross_entropy(network.masked_lm(hidden, batch.masked_positions_M), batch.masked_labels_M)[0]

    with torch.no_grad():
        before = loss(None)
    for step in range(3):
        optimizer.zero_grad()
        loss(Noise(1, step, batch.example_ids_B)).backward()
        optimizer.step()
    with torch.no_grad():
        after = loss(None)
    assert torch.isfinite(after)
    assert after < before
