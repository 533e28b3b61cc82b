"""Encoder and heads against transformers with copied weights: outputs within 1e-5, gradients within 1e-4, in fp32.

The copying below is written out by hand, apart from the tables of interop, so that each checks the other.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from remask.model.network import Network, build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.schema import Batch

VOCAB, SIZE, HEADS, FFN, LAYERS = 99, 32, 4, 48, 4
PAD = 1
SHARED: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": SIZE, "num_heads": HEADS, "num_layers": LAYERS}
THEIRS: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": SIZE, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS,
    "intermediate_size": FFN, "initializer_range": 0.2, "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2,
    "attn_implementation": "eager",
}  # fmt: skip
FIRST_ODD = (13, 7, 1, 10)


def roberta() -> tuple[Any, ModelSettings]:
    config = transformers.RobertaConfig(
        **THEIRS, max_position_embeddings=42, type_vocab_size=1, layer_norm_eps=1e-5, num_labels=3
    )
    return config, ModelSettings(**SHARED, ffn_size=FFN, max_length=40)


def bert() -> tuple[Any, ModelSettings]:
    config = transformers.BertConfig(**THEIRS, max_position_embeddings=40, layer_norm_eps=1e-12, num_labels=3)
    ours = ModelSettings(
        **SHARED, ffn_size=FFN, max_length=40, position_offset=0, num_segments=2, norm_eps=1e-12, head_form="bert"
    )
    return config, ours


def albert() -> tuple[Any, ModelSettings]:
    config = transformers.AlbertConfig(
        **THEIRS, embedding_size=16, num_hidden_groups=2, max_position_embeddings=40, num_labels=3
    )
    ours = ModelSettings(
        **SHARED, ffn_size=FFN, max_length=40, position_offset=0, num_segments=2, norm_eps=1e-12, head_form="bert",
        embedding_size=16, sharing="all", num_groups=2, activation="gelu_tanh",
    )  # fmt: skip
    return config, ours


def modern(window: int = 3, length: int = 40) -> tuple[Any, ModelSettings]:
    config = transformers.ModernBertConfig(
        **THEIRS, local_attention=2 * window, max_position_embeddings=length, cls_token_id=0, sep_token_id=2,
        num_labels=3,
    )  # fmt: skip
    ours = ModelSettings(
        **SHARED, ffn_size=FFN, max_length=length, position_offset=0, num_segments=0, positions="rotary", norm="pre",
        first_norm=False, norm_bias=False, bias=False, ffn="gated", attention_window=window, global_every=3,
        head_form="modern", dropout=0.0, attention_dropout=0.0, head_dropout=0.0,
    )  # fmt: skip
    return config, ours


def prelayernorm() -> tuple[Any, ModelSettings]:
    config = transformers.RobertaPreLayerNormConfig(
        **THEIRS, max_position_embeddings=42, type_vocab_size=1, layer_norm_eps=1e-5, num_labels=3
    )
    return config, ModelSettings(**SHARED, ffn_size=FFN, max_length=40, norm="pre")


FAMILIES = {"roberta": roberta, "bert": bert, "albert": albert, "modern": modern, "prelayernorm": prelayernorm}


def fused(theirs: dict[str, torch.Tensor], prefix: str, ours: str) -> dict[str, torch.Tensor]:
    return {
        f"{ours}.qkv.{part}": torch.cat([theirs[f"{prefix}.{name}.{part}"] for name in ("query", "key", "value")])
        for part in ("weight", "bias")
    }


def moved(theirs: dict[str, torch.Tensor], names: dict[str, str]) -> dict[str, torch.Tensor]:
    """Modules renamed, with whichever of weight and bias they have."""
    return {
        f"{ours}.{part}": theirs[f"{name}.{part}"]
        for ours, name in names.items()
        for part in ("weight", "bias")
        if f"{name}.{part}" in theirs
    }


def encoder_weights(theirs: dict[str, torch.Tensor], family: str, prefix: str = "") -> dict[str, torch.Tensor]:
    """Their encoder's tensors (weights or gradients) under our names."""
    theirs = {name.removeprefix(prefix): tensor for name, tensor in theirs.items() if name.startswith(prefix)}
    if family == "modern":
        names = {
            "encoder.embeddings.tokens": "embeddings.tok_embeddings",
            "encoder.embeddings.norm": "embeddings.norm",
            "encoder.norm": "final_norm",
        }
        for i in range(LAYERS):
            names |= {
                f"encoder.attentions.{i}.qkv": f"layers.{i}.attn.Wqkv",
                f"encoder.attentions.{i}.output": f"layers.{i}.attn.Wo",
                f"encoder.attentions.{i}.norm": f"layers.{i}.attn_norm",
                f"encoder.ffns.{i}.up": f"layers.{i}.mlp.Wi",
                f"encoder.ffns.{i}.down": f"layers.{i}.mlp.Wo",
                f"encoder.ffns.{i}.norm": f"layers.{i}.mlp_norm",
            }
        return moved(theirs, names)
    ours = moved(
        theirs,
        {
            "encoder.embeddings.tokens": "embeddings.word_embeddings",
            "encoder.embeddings.positions": "embeddings.position_embeddings",
            "encoder.embeddings.segments": "embeddings.token_type_embeddings",
            "encoder.embeddings.norm": "embeddings.LayerNorm",
            "encoder.embeddings.project": "encoder.embedding_hidden_mapping_in",
            "encoder.norm": "LayerNorm",
        },
    )
    for i in range(2 if family == "albert" else LAYERS):
        if family == "albert":
            layer = f"encoder.albert_layer_groups.{i}.albert_layers.0"
            ours |= fused(theirs, f"{layer}.attention", f"encoder.attentions.{i}")
            names = ("attention.dense", "attention.LayerNorm", "ffn", "ffn_output", "full_layer_layer_norm")
        else:
            layer = f"encoder.layer.{i}"
            ours |= fused(theirs, f"{layer}.attention.self", f"encoder.attentions.{i}")
            names = ("attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense")
            names = (*names, "output.LayerNorm")
            if family == "prelayernorm":
                names = (names[0], "attention.LayerNorm", names[2], names[3], "intermediate.LayerNorm")
        parts = (f"attentions.{i}.output", f"attentions.{i}.norm", f"ffns.{i}.up", f"ffns.{i}.down", f"ffns.{i}.norm")
        ours |= moved(theirs, {f"encoder.{part}": f"{layer}.{name}" for part, name in zip(parts, names, strict=True)})
    return ours


def a_batch(lengths: tuple[int, ...] = FIRST_ODD, seed: int = 0, segments: bool = False) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, VOCAB, (len(lengths), max(lengths)), generator=generator)
    ends = torch.tensor(lengths)
    ids[torch.arange(max(lengths)) >= ends[:, None]] = PAD
    halves = (torch.arange(max(lengths)) >= ends[:, None] // 2).long() if segments else None
    return Batch(ids, ends, segment_ids_BS=halves)


def their_inputs(batch: Batch) -> dict[str, torch.Tensor]:
    columns = torch.arange(batch.input_ids_BS.shape[1])
    inputs = {"input_ids": batch.input_ids_BS, "attention_mask": (columns < batch.lengths_B[:, None]).long()}
    return inputs if batch.segment_ids_BS is None else inputs | {"token_type_ids": batch.segment_ids_BS}


def real(batch: Batch) -> torch.Tensor:
    return torch.arange(batch.input_ids_BS.shape[1]) < batch.lengths_B[:, None]


def gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad if p.grad is not None else torch.zeros_like(p) for n, p in module.named_parameters()}


def compare(ours: torch.Tensor, theirs: torch.Tensor, network: Network, wanted: dict[str, torch.Tensor]) -> None:
    """Outputs, then the gradients of a fixed random projection of them; `wanted` is filled by their backward pass."""
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    found = gradients(network)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def projected(outputs: list[torch.Tensor]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(9)
    return sum((torch.randn(x.shape, generator=generator) * x).sum() for x in outputs)  # type: ignore[return-value]


@pytest.mark.parametrize("unpad", [True, False])
@pytest.mark.parametrize("kernel", ["products", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_and_gradients(family: str, kernel: str, unpad: bool) -> None:
    config, settings = FAMILIES[family]()
    settings = settings.model_copy(update={"attention_kernel": kernel, "unpad": unpad})
    check_encoder(config, settings, family, a_batch(segments=settings.num_segments == 2))


@pytest.mark.parametrize("kernel", ["products", "sdpa"])
def test_local_attention_in_blocks(kernel: str) -> None:
    """Long enough for blocks of 64: first, middle and last ones, and rows that end inside a block."""
    config, settings = modern(window=20, length=300)
    settings = settings.model_copy(update={"attention_kernel": kernel})
    check_encoder(config, settings, "modern", a_batch((261, 128, 70)))


def check_encoder(config: Any, settings: ModelSettings, family: str, batch: Batch) -> None:
    torch.manual_seed(1)
    theirs = transformers.AutoModel.from_config(config).eval()
    if hasattr(theirs, "pooler"):
        theirs.pooler = None
    network = build_network(settings, HeadSettings(), seed=0)
    network.load_state_dict(encoder_weights(dict(theirs.state_dict()), family))
    shown = real(batch)
    expected = theirs(**their_inputs(batch)).last_hidden_state[shown]
    projected([expected]).backward()
    hidden_BSD = network.encode(batch)
    assert hidden_BSD[~shown].abs().sum() == 0
    projected([hidden_BSD[shown]]).backward()
    wanted = encoder_weights(gradients(theirs), family)
    compare(hidden_BSD[shown], expected, network, wanted)


PREFIXES = {"roberta": "roberta.", "bert": "bert.", "albert": "albert.", "modern": "model."}
PREFIXES["prelayernorm"] = "roberta_prelayernorm."
LM_HEADS = {
    "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    "prelayernorm": ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    "bert": ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
    "albert": ("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
    "modern": ("head.dense", "head.norm", "decoder.bias"),
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_masked_lm(family: str, tied: bool) -> None:
    config, settings = FAMILIES[family]()
    config.tie_word_embeddings = tied
    settings = settings.model_copy(update={"tied_embeddings": tied})
    torch.manual_seed(1)
    theirs = transformers.AutoModelForMaskedLM.from_config(config).eval()
    network = build_network(settings, HeadSettings(masked_lm=True), seed=0)
    dense, norm, bias = LM_HEADS[family]
    decoder = "decoder" if family == "modern" else bias.replace("bias", "decoder")
    bias = bias if tied else f"{decoder}.bias"  # untied, their decoder has a bias of its own

    def renamed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        ours = encoder_weights(tensors, family, PREFIXES[family])
        ours |= moved(tensors, {"heads.masked_lm.dense": dense, "heads.masked_lm.norm": norm})
        if not tied:
            ours["heads.masked_lm.decoder.weight"] = tensors[f"{decoder}.weight"]
        ours["heads.masked_lm.bias"] = tensors[bias]
        return ours

    with torch.no_grad():
        theirs.get_parameter(bias).normal_()  # their output bias starts at zero, which would hide a missing one
    network.load_state_dict(renamed(dict(theirs.state_dict())))
    batch = a_batch(segments=settings.num_segments == 2)
    positions = torch.tensor([0, 5, 12, 13, 19, 48])  # first and last tokens of rows too
    expected = theirs(**their_inputs(batch)).logits.flatten(0, 1)[positions]
    projected([expected]).backward()
    logits = network.masked_lm(network.encode(batch), positions)
    projected([logits]).backward()
    compare(logits, expected, network, renamed(gradients(theirs)))


CLASSIFIERS = {
    "roberta": {"heads.pooler.dense": "classifier.dense", "heads.classifier": "classifier.out_proj"},
    "prelayernorm": {"heads.pooler.dense": "classifier.dense", "heads.classifier": "classifier.out_proj"},
    "bert": {"heads.pooler.dense": "bert.pooler.dense", "heads.classifier": "classifier"},
    "albert": {"heads.pooler.dense": "albert.pooler", "heads.classifier": "classifier"},
    "modern": {"heads.pooler.dense": "head.dense", "heads.pooler.norm": "head.norm", "heads.classifier": "classifier"},
}
MODERN_HEAD = {"heads.pooler.dense": "head.dense", "heads.pooler.norm": "head.norm"}
POOLERS = {
    "roberta": {"heads.pooler.dense": "roberta.pooler.dense"},
    "prelayernorm": {"heads.pooler.dense": "roberta_prelayernorm.pooler.dense"},
    "bert": {"heads.pooler.dense": "bert.pooler.dense"},
    "albert": {"heads.pooler.dense": "albert.pooler"},
    "modern": MODERN_HEAD,
}


def check_head(
    family: str, auto: Any, heads: HeadSettings, names: dict[str, str], settings: ModelSettings, config: Any
) -> tuple[Any, Network, Batch, Any]:
    torch.manual_seed(1)
    theirs = auto.from_config(config).eval()
    network = build_network(settings, heads, seed=0)

    def renamed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return encoder_weights(tensors, family, PREFIXES[family]) | moved(tensors, names)

    network.load_state_dict(renamed(dict(theirs.state_dict())))
    return theirs, network, a_batch(segments=settings.num_segments == 2), renamed


@pytest.mark.parametrize("family, pooling", [*((family, "first") for family in FAMILIES), ("modern", "mean")])
def test_classification(family: str, pooling: str) -> None:
    config, settings = FAMILIES[family]()
    if pooling == "mean":  # only ModernBERT has a classifier on it
        config.classifier_pooling = "mean"
    heads = HeadSettings(num_classes=3, pooling=pooling)  # type: ignore[arg-type]
    auto = transformers.AutoModelForSequenceClassification
    theirs, network, batch, renamed = check_head(family, auto, heads, CLASSIFIERS[family], settings, config)
    expected = theirs(**their_inputs(batch)).logits
    projected([expected]).backward()
    logits = network.classify(network.encode(batch), batch.lengths_B)
    projected([logits]).backward()
    compare(logits, expected, network, renamed(gradients(theirs)))


@pytest.mark.parametrize("family", FAMILIES)
def test_token_classification(family: str) -> None:
    config, settings = FAMILIES[family]()
    names = {"heads.tagger": "classifier"} | (MODERN_HEAD if family == "modern" else {})
    auto = transformers.AutoModelForTokenClassification
    theirs, network, batch, renamed = check_head(family, auto, HeadSettings(num_tags=3), names, settings, config)
    shown = real(batch)
    expected = theirs(**their_inputs(batch)).logits[shown]
    projected([expected]).backward()
    logits = network.tag(network.encode(batch))[shown]
    projected([logits]).backward()
    compare(logits, expected, network, renamed(gradients(theirs)))


@pytest.mark.parametrize("family", FAMILIES)
def test_spans(family: str) -> None:
    config, settings = FAMILIES[family]()
    config.num_labels = 2
    names = {"heads.span": "classifier"} | MODERN_HEAD if family == "modern" else {"heads.span": "qa_outputs"}
    auto = transformers.AutoModelForQuestionAnswering
    theirs, network, batch, renamed = check_head(family, auto, HeadSettings(span=True), names, settings, config)
    shown = real(batch)
    answer = theirs(**their_inputs(batch))
    expected = torch.stack([answer.start_logits, answer.end_logits], dim=-1)[shown]
    projected([expected]).backward()
    logits = network.span(network.encode(batch))[shown]
    projected([logits]).backward()
    compare(logits, expected, network, renamed(gradients(theirs)))


@pytest.mark.parametrize("family", FAMILIES)
def test_multiple_choice(family: str) -> None:
    config, settings = FAMILIES[family]()
    names = {"heads.chooser": "classifier"} | POOLERS[family]
    auto = transformers.AutoModelForMultipleChoice
    theirs, network, batch, renamed = check_head(family, auto, HeadSettings(choice=True), names, settings, config)
    inputs = {name: tensor.view(2, 2, -1) for name, tensor in their_inputs(batch).items()}
    expected = theirs(**inputs).logits
    projected([expected]).backward()
    scores = network.choose(network.encode(batch)).view(2, 2)
    projected([scores]).backward()
    compare(scores, expected, network, renamed(gradients(theirs)))


def test_next_sentence() -> None:
    """BERT's class counts the other way round: its 0 is `follows`, ours is 1."""
    config, settings = bert()
    names = {"heads.sentence": "cls.seq_relationship"} | POOLERS["bert"]
    auto = transformers.AutoModelForNextSentencePrediction
    theirs, network, batch, renamed = check_head("bert", auto, HeadSettings(sentence=True), names, settings, config)
    expected = theirs(**their_inputs(batch)).logits
    projected([expected]).backward()
    logits = network.sentence(network.encode(batch))
    projected([logits]).backward()
    compare(logits, expected, network, renamed(gradients(theirs)))


def test_all_512_positions_of_roberta_work() -> None:
    config, settings = roberta()
    config.max_position_embeddings = 514
    settings = settings.model_copy(update={"max_length": 512})
    check_encoder(config, settings, "roberta", a_batch((512, 511)))
