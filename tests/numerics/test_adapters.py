"""LoRA over separate and fused matrices: merged equals added, and peft over transformers' model says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from remask.config import build_run, find_base
from remask.errors import ConfigError
from remask.exports.hf import export_hf
from remask.model.adapters import LoraLinear, adapter_files, add_lora, merged_network
from remask.model.network import Network, build_network, with_heads
from remask.model.noise import Noise
from remask.model.settings import HeadSettings, LoraSettings, ModelSettings
from remask.model.store import model_files, open_model, save_model, write_weights
from remask.schema import Batch
from remask.tokenizer import load_tokenizer

ALL = ("query", "key", "value", "output", "up", "down")
BATCH = Batch(
    torch.tensor([[0, 7, 8, 9, 2], [0, 9, 2, 1, 1]]), torch.tensor([5, 3]), example_ids_B=torch.tensor([5, 6])
)


def model_settings(base: str, vocab_size: int) -> ModelSettings:
    from remask.pretraining.settings import PretrainRun

    changes = {"hidden_size": 32, "num_heads": 2, "ffn_size": 48, "num_layers": 2, "max_length": 16}
    options = {f"model.{key}": value for key, value in {**changes, "vocab_size": vocab_size}.items()}
    if base == "albert_tiny":
        options["model.embedding_size"] = 16
    return build_run(PretrainRun, find_base(base), options=options).run.model


def with_updates(network: Network, lora: LoraSettings) -> Network:
    """The network with updates that do something."""
    add_lora(network.encoder, lora, seed=3)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith(".B"):
                parameter.normal_(0.0, 0.3, generator=generator)
    return network


def network_of(base: str, heads: HeadSettings, vocab_size: int = 40) -> Network:
    return build_network(model_settings(base, vocab_size), heads, 1)


@pytest.mark.parametrize("base", ["roberta_tiny", "albert_tiny", "modern_tiny"])
@pytest.mark.parametrize("modules", [None, ALL])
def test_merged_weights_say_what_the_updates_said(base: str, modules: Any, tmp_path: Path) -> None:
    heads = HeadSettings(num_classes=3)
    plain = network_of(base, heads)
    before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    lora = LoraSettings(rank=2, modules=modules)
    network = with_updates(with_heads(plain, heads, 0), lora)
    said = network.classify(network.encode(BATCH))
    assert not torch.allclose(said, plain.classify(plain.encode(BATCH)), atol=1e-3)
    merged = merged_network(network)
    torch.testing.assert_close(merged.classify(merged.encode(BATCH)), said, rtol=1e-4, atol=1e-5)
    assert merged.state_dict().keys() == before.keys()
    # What learns: updates and heads; all of the encoder's own weights are as they were.
    assert all(".lora." in n or n.startswith("heads.") for n, p in network.named_parameters() if p.requires_grad)
    assert all(torch.equal(network.state_dict()[name], before[name]) for name in before)

    # A checkpoint, whose updates are still beside the weights, opens merged.
    tmp_path.joinpath("c").mkdir()
    for name, contents in model_files(network.settings, heads, None, None, lora).items():
        assert isinstance(contents, bytes)
        (tmp_path / "c" / name).write_bytes(contents)
    write_weights(tmp_path / "c" / "model.safetensors", network.state_dict())
    from remask.artifacts import publish_filled

    publish_filled(tmp_path / "c", tmp_path / "checkpoint", "checkpoint", counts={})
    opened = open_model(tmp_path / "checkpoint").network
    torch.testing.assert_close(opened.classify(opened.encode(BATCH)), said, rtol=1e-4, atol=1e-5)


def test_updates_start_at_nothing_and_follow_the_seed() -> None:
    plain = network_of("roberta_tiny", HeadSettings(num_classes=3))
    one, two, other = (with_heads(plain, plain.head_settings, 0) for _ in range(3))
    add_lora(one.encoder, LoraSettings(), seed=1)
    add_lora(two.encoder, LoraSettings(), seed=1)
    add_lora(other.encoder, LoraSettings(), seed=2)
    assert torch.equal(one.encode(BATCH), plain.encode(BATCH))
    states = [network.state_dict()["encoder.attentions.0.qkv.lora.value.A"] for network in (one, two, other)]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_dropout_is_the_same_whatever_stands_beside_a_row() -> None:
    """In padded and unpadded batches, alone and together, and again when a layer is computed twice."""
    settings = model_settings("roberta_tiny", 40)
    settings = settings.model_copy(update={"dropout": 0.0, "attention_dropout": 0.0, "head_dropout": 0.0})
    network = build_network(settings, HeadSettings(num_classes=2), 1)
    with_updates(network, LoraSettings(dropout=0.5, modules=ALL))
    together = network.encode(BATCH, Noise(0, 1, BATCH.example_ids_B))
    assert not torch.allclose(together, network.encode(BATCH), atol=1e-3)
    alone = Batch(BATCH.input_ids_BS[1:, :3], BATCH.lengths_B[1:], example_ids_B=torch.tensor([6]))
    torch.testing.assert_close(network.encode(alone, Noise(0, 1, [6]))[0], together[1, :3], rtol=1e-4, atol=1e-5)
    network.checkpoint_layers()
    gradients = []
    for recompute in (False, True):
        network.encoder.recompute = recompute
        network.zero_grad()
        network.classify(network.encode(BATCH, Noise(0, 1, BATCH.example_ids_B))).sum().backward()
        gradients.append([p.grad.clone() for p in network.parameters() if p.grad is not None])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*gradients, strict=True))
    assert all(m.now is None for m in network.modules() if isinstance(m, LoraLinear))


def test_parts_of_the_fused_matrix_are_refused_in_the_modern_form() -> None:
    network = network_of("modern_tiny", HeadSettings())
    with pytest.raises(ConfigError, match=r"lora\.modules = query, up: .*name all three or none"):
        add_lora(network.encoder, LoraSettings(modules=("query", "up")), 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "base, heads",
    [
        ("roberta_tiny", HeadSettings(num_classes=3)),
        ("bert_tiny", HeadSettings(num_classes=3)),
        ("bert_tiny", HeadSettings(num_tags=4)),
        ("roberta_tiny", HeadSettings(span=True)),
        ("albert_tiny", HeadSettings(num_classes=3)),
        ("modern_tiny", HeadSettings(num_classes=3)),
    ],
    ids=lambda value: value if isinstance(value, str) else next(k for k, v in value.model_dump().items() if v),
)
@pytest.mark.parametrize("modules", [None, ALL], ids=["default", "all"])
def test_peft_over_transformers_says_the_same(
    base: str, heads: HeadSettings, modules: Any, tiny_tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    import transformers

    tokenizer = tiny_tokenizers["byte-bpe"]
    settings = model_settings(base, load_tokenizer(tokenizer).vocab_size)
    start = build_network(settings, heads, 1)
    save_model(tmp_path / "start", start, tokenizer)
    hf = export_hf(tmp_path / "start", tmp_path / "hf")
    trained = with_heads(start, HeadSettings(), 0)  # the head is another one than the base's: it must come along
    trained = with_updates(with_heads(trained, heads, 7), lora := LoraSettings(rank=4, alpha=6.0, modules=modules))
    (tmp_path / "adapter").mkdir()
    for name, contents in adapter_files(trained, lora, str(tmp_path / "hf")).items():
        (tmp_path / "adapter" / name).write_bytes(contents)
    theirs: Any = getattr(transformers, hf.counts["class"]).from_pretrained(
        tmp_path / "hf", attn_implementation="eager"
    )
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    mask = torch.arange(5)[None] < BATCH.lengths_B[:, None]
    ids = BATCH.input_ids_BS.clone()
    ids[~mask] = load_tokenizer(tokenizer).pad_id
    with torch.inference_mode():
        answer = theirs(input_ids=ids, attention_mask=mask.long())
        hidden = trained.encode(Batch(ids, BATCH.lengths_B))
        if heads.num_classes:
            said, expected = trained.classify(hidden), answer.logits
        elif heads.num_tags:
            said, expected = trained.tag(hidden)[mask], answer.logits[mask]
        else:
            said, expected = trained.span(hidden)[mask][:, 0], answer.start_logits[mask]
    torch.testing.assert_close(said, expected, rtol=1e-4, atol=2e-5)
    assert json.loads((tmp_path / "adapter/adapter_config.json").read_bytes())["r"] == 4
