"""Building, counting and changing a network."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from remask.config import Config, build_run, find_base
from remask.errors import ConfigError
from remask.model.network import Network, build_network, with_heads
from remask.model.noise import Noise
from remask.model.settings import HeadSettings, ModelSettings
from remask.schema import Batch

SMALL: dict[str, Any] = {
    "vocab_size": 40, "num_layers": 3, "hidden_size": 16, "num_heads": 2, "ffn_size": 24, "max_length": 12,
}  # fmt: skip
EVERY_HEAD = HeadSettings(
    masked_lm=True, sentence=True, num_classes=3, num_tags=4, span=True, answerable=True, choice=True
)
BATCH = Batch(torch.tensor([[0, 7, 8, 2], [0, 9, 2, 1]]), torch.tensor([4, 3]), example_ids_B=torch.tensor([5, 6]))


def parameters(heads: HeadSettings, **settings: Any) -> float:
    """Millions, counted without memory."""
    with torch.device("meta"):
        network = Network(ModelSettings(**settings), heads)
    return sum(p.numel() for p in network.parameters()) / 1e6


class _Base(Config):
    model: ModelSettings = ModelSettings()
    data: Any = None
    train: Any = None


def base(name: str) -> dict[str, Any]:
    return build_run(_Base, find_base(name)).run.model.model_dump()


@pytest.mark.parametrize(
    "name, vocab_size, millions",
    [
        ("roberta_base", 50_265, 125),  # arXiv 1907.11692: 125M and 355M
        ("roberta_large", 50_265, 355),
        ("modern_base", 50_368, 149),  # arXiv 2412.13663: 149M and 395M
        ("modern_large", 50_368, 395),
    ],
)
def test_parameter_counts_with_the_masked_lm_head(name: str, vocab_size: int, millions: int) -> None:
    settings = base(name) | {"vocab_size": vocab_size}
    assert parameters(HeadSettings(masked_lm=True), **settings) == pytest.approx(millions, abs=1)


@pytest.mark.parametrize("name, millions", [("bert_base", 110), ("bert_large", 335)])
def test_parameter_counts_of_bert(name: str, millions: int) -> None:
    """arXiv 1810.04805 says 110M and, rounding generously, 340M for large: with the pooler it is 335M."""
    counted = parameters(HeadSettings(sentence=True), **(base(name) | {"vocab_size": 30_522}))
    assert counted == pytest.approx(millions, abs=1)


@pytest.mark.parametrize(
    "sharing, wide, narrow", [("all", 31, 12), ("attention", 83, 64), ("ffn", 57, 38), ("none", 108, 89)]
)
def test_parameter_counts_of_alberts_table_4(sharing: str, wide: int, narrow: int) -> None:
    settings = base("albert_base") | {"vocab_size": 30_000, "sharing": sharing}
    assert parameters(HeadSettings(), **(settings | {"embedding_size": None})) == pytest.approx(wide, abs=1)
    assert parameters(HeadSettings(), **(settings | {"embedding_size": 128})) == pytest.approx(narrow, abs=1)


def test_building_is_a_function_of_the_seed_alone() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    one = build_network(ModelSettings(**SMALL), EVERY_HEAD, seed=1).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    two = build_network(ModelSettings(**SMALL), EVERY_HEAD, seed=1).state_dict()
    other = build_network(ModelSettings(**SMALL), EVERY_HEAD, seed=2).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one if one[name].ndim > 1)


def test_heads_do_not_change_the_encoders_weights() -> None:
    bare = build_network(ModelSettings(**SMALL), HeadSettings(), seed=1).state_dict()
    full = build_network(ModelSettings(**SMALL), EVERY_HEAD, seed=1).state_dict()
    assert bare.keys() < full.keys()
    assert all(torch.equal(bare[name], full[name]) for name in bare)


@pytest.mark.parametrize("init", ["normal", "scaled"])
def test_weights_start_as_the_settings_say(init: str) -> None:
    changes = {"hidden_size": 128, "ffn_size": 256, "vocab_size": 1000, "init_std": 0.05, "init": init}
    weights = build_network(ModelSettings(**(SMALL | changes)), EVERY_HEAD, seed=1).state_dict()
    outer = 0.05 / 6**0.5 if init == "scaled" else 0.05
    cut = 0.88 if init == "scaled" else 1.0  # what is left of the deviation when cut at two of them
    assert weights["encoder.attentions.1.qkv.weight"].std().item() == pytest.approx(0.05 * cut, rel=0.03)
    assert weights["encoder.ffns.2.down.weight"].std().item() == pytest.approx(outer * cut, rel=0.03)
    assert weights["encoder.attentions.0.output.weight"].std().item() == pytest.approx(outer * cut, rel=0.03)
    assert (weights["encoder.attentions.1.qkv.weight"].abs().max() <= 0.1) == (init == "scaled")
    assert weights["encoder.ffns.0.up.bias"].abs().sum() == 0
    assert (weights["encoder.ffns.0.norm.weight"] == 1).all()


def test_a_network_needs_a_vocabulary() -> None:
    with pytest.raises(ConfigError, match="vocab_size is 0"):
        build_network(ModelSettings(), HeadSettings(), seed=0)


@pytest.mark.parametrize("form", ["roberta", "bert", "modern"])
def test_every_head_answers_in_its_shape_and_drops_in_training(form: str) -> None:
    settings = ModelSettings(**SMALL, head_form=form, head_dropout=0.5)  # type: ignore[arg-type]
    network = build_network(settings, EVERY_HEAD, seed=1)
    hidden, lengths = network.encode(BATCH), BATCH.lengths_B
    noise = Noise(1, 2, BATCH.example_ids_B)
    answers = {
        "sentence": (network.sentence(hidden), network.sentence(hidden, lengths, noise), (2, 2)),
        "classify": (network.classify(hidden), network.classify(hidden, lengths, noise), (2, 3)),
        "choose": (network.choose(hidden), network.choose(hidden, lengths, noise), (2,)),
        "answerable": (network.answerable(hidden), network.answerable(hidden, lengths, noise), (2,)),
        "tag": (network.tag(hidden), network.tag(hidden, noise), (2, 4, 4)),
        "span": (network.span(hidden), network.span(hidden, noise), (2, 4, 2)),
    }
    for name, (plain, trained, shape) in answers.items():
        assert plain.shape == shape, name
        # The reference heads have no dropout before the span logits, but for the modern one.
        assert torch.equal(plain, trained) == (name == "span" and form != "modern"), name
    assert network.masked_lm(hidden, torch.tensor([1, 5, 6])).shape == (3, 40)


def test_embeddings_are_the_first_state_or_the_mean_of_real_ones() -> None:
    first = build_network(ModelSettings(**SMALL), HeadSettings(pooling="first"), seed=1)
    mean = build_network(ModelSettings(**SMALL), HeadSettings(pooling="mean"), seed=1)
    hidden = first.encode(BATCH)
    assert torch.equal(first.embed(hidden), hidden[:, 0])
    torch.testing.assert_close(mean.embed(hidden, BATCH.lengths_B)[1], hidden[1, :3].mean(0))


def test_a_tied_pooler_is_the_last_layers_projection() -> None:
    heads = HeadSettings(num_classes=3)
    tied = build_network(ModelSettings(**SMALL, pooler_tied=True), heads, seed=1)
    assert "heads.pooler.dense.weight" not in tied.state_dict()
    free = with_heads(tied, heads, seed=1, settings=ModelSettings(**SMALL))
    hidden = tied.encode(BATCH)
    assert not torch.allclose(tied.classify(hidden), free.classify(hidden))
    assert free.heads.pooler is not None
    output = tied.encoder.attentions[2].output
    free.heads.pooler.dense.load_state_dict(output.state_dict())  # type: ignore[union-attr]
    torch.testing.assert_close(tied.classify(hidden), free.classify(hidden))


def test_other_heads_on_the_same_encoder() -> None:
    pretrained = build_network(ModelSettings(**SMALL), HeadSettings(masked_lm=True, sentence=True), seed=1)
    tuned = with_heads(pretrained, HeadSettings(num_classes=5), seed=2)
    assert torch.equal(tuned.encode(BATCH), pretrained.encode(BATCH))
    assert tuned.classify(tuned.encode(BATCH)).shape == (2, 5)
    assert "heads.masked_lm.bias" not in tuned.state_dict()
    pooler = "heads.pooler.dense.weight"  # trained with the sentence loss: worth keeping
    assert torch.equal(tuned.state_dict()[pooler], pretrained.state_dict()[pooler])


@pytest.mark.parametrize("sharing, frozen_attention", [("none", 2), ("all", 0)])
def test_only_top_layers_learn(sharing: str, frozen_attention: int) -> None:
    settings = ModelSettings(**SMALL, sharing=sharing, norm="pre")  # type: ignore[arg-type]
    network = build_network(settings, HeadSettings(masked_lm=True), seed=1)
    network.train_top_layers(1)
    learning = {name for name, p in network.named_parameters() if p.requires_grad}
    assert not any("embeddings" in name for name in learning)
    assert {"encoder.norm.weight", "heads.masked_lm.bias"} <= learning
    frozen = [a for a in range(len(network.encoder.attentions)) if f"encoder.attentions.{a}.qkv.weight" not in learning]
    assert len(frozen) == frozen_attention


def test_more_top_layers_than_there_are_is_refused() -> None:
    network = build_network(ModelSettings(**SMALL), HeadSettings(masked_lm=True), seed=1)
    layers = network.settings.num_layers
    with pytest.raises(ConfigError, match=rf"train.trainable_top_layers = 99: the network has {layers} layers"):
        network.train_top_layers(99)
    before = [p.requires_grad for p in network.parameters()]
    assert len(network.learning_parameters(layers)) < len(network.learning_parameters(None)) == len(before)
    assert all(before), "asking what would learn sets nothing to rest"


def test_none_of_the_layers_learn() -> None:
    network = build_network(ModelSettings(**SMALL), HeadSettings(masked_lm=True), seed=1)
    network.train_top_layers(0)
    assert all(name.startswith("heads.") for name, p in network.named_parameters() if p.requires_grad)


@pytest.mark.parametrize("sharing, expected", [("none", {0: 3, 1: 2, 2: 1}), ("all", {0: 1})])
def test_layers_above_count_from_the_heads_down(sharing: str, expected: dict[int, int]) -> None:
    network = build_network(ModelSettings(**SMALL, sharing=sharing, norm="pre"), EVERY_HEAD, 0)  # type: ignore[arg-type]
    found = {name: network.layers_above(name) for name, _ in network.named_parameters()}
    assert {found[f"encoder.attentions.{i}.qkv.weight"] for i in expected} == set(expected.values())
    for module, above in expected.items():
        assert found[f"encoder.ffns.{module}.up.bias"] == above
    assert found["encoder.embeddings.tokens.weight"] == 4
    assert found["encoder.norm.weight"] == found["heads.classifier.weight"] == found["heads.pooler.dense.bias"] == 0
