"""Only rows in use learn; nobody else notices."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from remask.model.network import Network, build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.model.used_rows import UsedRows, learn_used_rows
from remask.schema import Batch

SMALL: dict[str, Any] = {
    "vocab_size": 40, "num_layers": 2, "hidden_size": 16, "num_heads": 2, "ffn_size": 24, "max_length": 12,
}  # fmt: skip
TRAINING = Batch(torch.tensor([[0, 7, 8, 2], [0, 9, 2, 1]]), torch.tensor([4, 3]))
OTHER = Batch(torch.tensor([[0, 30, 8, 2]]), torch.tensor([4]))
USED = TRAINING.input_ids_BS.flatten()


def make() -> Network:
    return build_network(ModelSettings(**SMALL), HeadSettings(num_classes=2), seed=0)


def step(network: Network) -> None:
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
    network.classify(network.encode(TRAINING)).square().sum().backward()
    optimizer.step()


def test_learns_as_the_whole_table_does_and_says_the_same_of_other_tokens() -> None:
    whole, part = make(), make()
    learn_used_rows(part.encoder.embeddings, USED)
    assert isinstance(part.encoder.embeddings.tokens, UsedRows)
    assert part.encoder.embeddings.tokens.weight.shape == (6, 16)
    for network in (whole, part):
        step(network)
        step(network)
    with torch.no_grad():
        for batch in (TRAINING, OTHER):
            said = [network.classify(network.encode(batch)) for network in (whole, part)]
            torch.testing.assert_close(said[0], said[1], atol=1e-6, rtol=0)
    states = whole.state_dict(), part.state_dict()
    assert list(states[0]) == list(states[1])
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, atol=1e-6, rtol=0)


def test_a_whole_table_can_be_loaded() -> None:
    trained, other = make(), make()
    step(trained)
    learn_used_rows(other.encoder.embeddings, USED)
    with torch.no_grad():
        other.encoder.embeddings.tokens.weight.zero_()
    other.load_state_dict(trained.state_dict())
    for name, tensor in trained.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)


def test_a_token_that_should_not_occur_is_refused_in_training() -> None:
    network = make()
    learn_used_rows(network.encoder.embeddings, USED)
    with pytest.raises(IndexError):
        network.encode(OTHER)


def test_a_table_that_is_used_almost_whole_stays() -> None:
    network = make()
    learn_used_rows(network.encoder.embeddings, torch.arange(30))
    assert isinstance(network.encoder.embeddings.tokens, torch.nn.Embedding)
