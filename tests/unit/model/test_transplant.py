"""Starting a network from another: other vocabularies, longer tables, and forms that do not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from remask.errors import ConfigError
from remask.model.network import Network, build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.model.transplant import transplant

MLM = HeadSettings(masked_lm=True)


def made(seed: int, heads: HeadSettings = MLM, **changes: Any) -> Network:
    form = {"vocab_size": 20, "num_layers": 2, "hidden_size": 8, "num_heads": 2, "ffn_size": 16, "max_length": 6}
    return build_network(ModelSettings(**{**form, **changes}), heads, seed)


def weights(network: Network) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in network.named_parameters()}


def test_the_same_form_is_copied_whole() -> None:
    old, new = made(1), made(2, dropout=0.3)
    assert transplant(new, old, range(20)) == []
    before, after = weights(old), weights(new)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("tied", [True, False])
def test_kept_tokens_keep_their_vectors_and_new_ones_are_fresh(tied: bool) -> None:
    old, new = made(1, tied_embeddings=tied), made(2, tied_embeddings=tied, vocab_size=5)
    with torch.no_grad():
        old.heads.masked_lm.bias.copy_(torch.arange(20.0))  # type: ignore[union-attr]
    fresh = weights(new)
    transplant(new, old, [3, -1, 19, 0, -1])
    before, after = weights(old), weights(new)
    names = ["encoder.embeddings.tokens.weight"] + ([] if tied else ["heads.masked_lm.decoder.weight"])
    for name in names:
        assert torch.equal(after[name][[0, 2, 3]], before[name][[3, 19, 0]])
        assert torch.equal(after[name][[1, 4]], fresh[name][[1, 4]])
    assert after["heads.masked_lm.bias"].tolist() == [3.0, 0.0, 19.0, 0.0, 0.0]


def test_a_longer_table_repeats_the_old_positions_after_the_offset() -> None:
    old, new = made(1), made(2, max_length=14)
    transplant(new, old, range(20))
    name = "encoder.embeddings.positions.weight"
    before, after = weights(old)[name], weights(new)[name]
    assert (len(before), len(after)) == (8, 16)
    assert torch.equal(after[:8], before)
    assert torch.equal(after[8:14], before[2:])
    assert torch.equal(after[14:], before[2:4])
    shorter = made(3, max_length=4)
    transplant(shorter, old, range(20))
    assert torch.equal(weights(shorter)[name], before[:6])


def test_what_the_old_one_lacks_is_named() -> None:
    old, new = made(1, HeadSettings()), made(2)
    assert all(name.startswith("heads.masked_lm.") for name in transplant(new, old, range(20)))
    assert torch.equal(weights(new)["encoder.ffns.1.down.weight"], weights(old)["encoder.ffns.1.down.weight"])


def test_another_form_is_refused_with_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"--set model.num_layers=2 --set model.norm=post"):
        transplant(made(1, num_layers=3, norm="pre"), made(2), range(20))
