"""What learns beside resting weights: merged equals added, and peft over transformers' model says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from remask.config import build_run, find_base
from remask.errors import ConfigError
from remask.exports.hf import export_hf
from remask.model.adapters import LoraLinear, add_updates, merged_network
from remask.model.network import Network, build_network, with_heads
from remask.model.noise import Noise
from remask.model.peft_files import adapter_files, no_peft
from remask.model.settings import AdaLoraSettings, HeadSettings, Ia3Settings, LoraSettings, ModelSettings, Updates
from remask.model.store import model_files, open_model, save_model, write_weights
from remask.schema import Batch
from remask.tokenizer import load_tokenizer

ALL = ("query", "key", "value", "output", "up", "down")
BATCH = Batch(
    torch.tensor([[0, 7, 8, 9, 2], [0, 9, 2, 1, 1]]), torch.tensor([5, 3]), example_ids_B=torch.tensor([5, 6])
)


def model_settings(base: str, vocab_size: int) -> ModelSettings:
    from remask.pretraining.settings import PretrainRun

    changes = {"hidden_size": 32, "num_heads": 2, "ffn_size": 48, "num_layers": 2, "max_length": 16, "init_std": 0.2}
    options = {f"model.{key}": value for key, value in {**changes, "vocab_size": vocab_size}.items()}
    if base == "albert_tiny":
        options["model.embedding_size"] = 16
    return build_run(PretrainRun, find_base(base), options=options).run.model


def with_updates(network: Network, settings: Updates) -> Network:
    """The network with changes that do something."""
    add_updates(network.encoder, settings, seed=3)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith((".B", ".E")) or ".ia3." in name:
                parameter.normal_(1.0 if ".ia3." in name else 0.0, 0.4, generator=generator)
    return network


def a_way(name: str, modules: Any = None) -> Updates:
    if name == "adalora":
        return AdaLoraSettings(start_rank=4, rank=2, alpha=60.0, modules=modules)
    return Ia3Settings(modules=modules) if name == "ia3" else LoraSettings(rank=4, alpha=6.0, modules=modules)


def network_of(base: str, heads: HeadSettings, vocab_size: int = 40) -> Network:
    return build_network(model_settings(base, vocab_size), heads, 1)


@pytest.mark.parametrize("base", ["roberta_tiny", "albert_tiny", "modern_tiny"])
@pytest.mark.parametrize("modules", [None, ALL])
@pytest.mark.parametrize("way", ["lora", "adalora", "ia3"])
def test_merged_weights_say_what_the_updates_said(way: str, base: str, modules: Any, tmp_path: Path) -> None:
    heads = HeadSettings(num_classes=3)
    plain = network_of(base, heads)
    before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    lora = a_way(way, modules)
    network = with_updates(with_heads(plain, heads, 0), lora)
    said = network.classify(network.encode(BATCH))
    assert not torch.allclose(said, plain.classify(plain.encode(BATCH)), atol=1e-3)
    merged = merged_network(network)
    torch.testing.assert_close(merged.classify(merged.encode(BATCH)), said, rtol=1e-4, atol=1e-5)
    assert merged.state_dict().keys() == before.keys()
    # What learns: updates and heads; all of the encoder's own weights are as they were.
    assert all(
        ".lora." in n or ".ia3." in n or n.startswith("heads.")
        for n, p in network.named_parameters()
        if p.requires_grad
    )
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
    add_updates(one.encoder, LoraSettings(), seed=1)
    add_updates(two.encoder, LoraSettings(), seed=1)
    add_updates(other.encoder, LoraSettings(), seed=2)
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
        add_updates(network.encoder, LoraSettings(modules=("query", "up")), 0)


KINDS = [
    ("roberta_tiny", HeadSettings(num_classes=3)),
    ("bert_tiny", HeadSettings(num_classes=3)),
    ("bert_tiny", HeadSettings(num_tags=4)),
    ("roberta_tiny", HeadSettings(span=True)),
    ("albert_tiny", HeadSettings(num_classes=3)),
    ("modern_tiny", HeadSettings(num_classes=3)),
]


def kind_name(value: Any) -> str:
    return value if isinstance(value, str) else next(k for k, v in value.model_dump().items() if v)


def start_of(base: str, heads: HeadSettings, tokenizer: Path, folder: Path) -> tuple[Network, str]:
    """A model to start from, also under `folder`/hf for transformers, and the class it has there."""
    settings = model_settings(base, load_tokenizer(tokenizer).vocab_size)
    start = build_network(settings, heads, 1)
    save_model(folder / "start", start, tokenizer)
    return start, export_hf(folder / "start", folder / "hf").counts["class"]


def assert_peft_says_the_same(
    trained: Network, settings: Updates | None, class_name: str, tokenizer: Path, folder: Path
) -> dict[str, Any]:
    """Over transformers' model in `folder`/hf; gives peft's config."""
    peft = pytest.importorskip("peft")
    import transformers

    (folder / "adapter").mkdir()
    for name, contents in adapter_files(trained, settings, str(folder / "hf")).items():
        (folder / "adapter" / name).write_bytes(contents)
    theirs: Any = getattr(transformers, class_name).from_pretrained(folder / "hf", attn_implementation="eager")
    theirs = peft.PeftModel.from_pretrained(theirs, folder / "adapter").eval()
    mask = torch.arange(5)[None] < BATCH.lengths_B[:, None]
    ids = BATCH.input_ids_BS.clone()
    ids[~mask] = load_tokenizer(tokenizer).pad_id
    heads = trained.head_settings
    with torch.inference_mode():
        answer = theirs(input_ids=ids, attention_mask=mask.long(), return_dict=True)
        hidden = trained.encode(Batch(ids, BATCH.lengths_B))
        if heads.num_classes:
            said, expected = trained.classify(hidden), answer.logits
        elif heads.num_tags:
            said, expected = trained.tag(hidden)[mask], answer.logits[mask]
        else:
            said, expected = trained.span(hidden)[mask][:, 0], answer.start_logits[mask]
    torch.testing.assert_close(said, expected, rtol=1e-4, atol=2e-5)
    return json.loads((folder / "adapter/adapter_config.json").read_bytes())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("base, heads", KINDS, ids=kind_name)
@pytest.mark.parametrize("modules", [None, ALL], ids=["default", "all"])
@pytest.mark.parametrize("way", ["lora", "adalora", "ia3"])
def test_peft_over_transformers_says_the_same(
    way: str, base: str, heads: HeadSettings, modules: Any, tiny_tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    tokenizer = tiny_tokenizers["byte-bpe"]
    start, class_name = start_of(base, heads, tokenizer, tmp_path)
    trained = with_heads(start, HeadSettings(), 0)  # the head is another one than the base's: it must come along
    trained = with_updates(with_heads(trained, heads, 7), settings := a_way(way, modules))
    config = assert_peft_says_the_same(trained, settings, class_name, tokenizer, tmp_path)
    assert config["peft_type"] == way.upper()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("base, heads", KINDS[:4], ids=kind_name)
def test_peft_over_transformers_has_the_same_prefix(
    base: str, heads: HeadSettings, tiny_tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    tokenizer = tiny_tokenizers["byte-bpe"]
    start, class_name = start_of(base, heads, tokenizer, tmp_path)
    trained = with_heads(with_heads(start, HeadSettings(), 0), heads, 7, with_prefix(start.settings))
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if name.endswith("prefix_2PD"):
                parameter.mul_(5)
    plain = with_heads(trained, heads, 7, start.settings)
    changed = trained.encode(BATCH) - plain.encode(BATCH)
    assert changed.abs().max() > 0.05
    config = assert_peft_says_the_same(trained, None, class_name, tokenizer, tmp_path)
    assert (config["peft_type"], config["num_virtual_tokens"]) == ("PREFIX_TUNING", 4)


def with_prefix(settings: ModelSettings) -> ModelSettings:
    from remask.tune.part import _prefix_settings

    return settings.model_copy(update=_prefix_settings(4, settings))


def test_what_peft_has_no_form_for_says_why() -> None:
    albert = with_prefix(model_settings("albert_tiny", 40))
    assert no_peft(albert, HeadSettings(num_classes=3)) == ["transformers' classes for albert take no prefix"]
    bottleneck = model_settings("roberta_tiny", 40).model_copy(update={"bottleneck_size": 4})
    assert no_peft(bottleneck, HeadSettings(num_classes=3)) == ["peft has no bottleneck adapters"]
    network = build_network(bottleneck, HeadSettings(num_classes=3), 1)
    assert adapter_files(network, None, "base") == {}
