"""Folders of transformers read and written: the same outputs both ways, the same bytes after a round trip, no missing
and no unexpected weights in the class that the config names. For every family and kind of class."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import remask
from remask.artifacts import publish
from remask.exports.hf import export_hf, open_foreign, write_own
from remask.model.interop import read_hf_folder
from remask.model.interop_config import CLASS_PREFIX, family_for, no_class
from remask.model.interop_weights import kinds
from remask.model.network import Network, build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.model.store import open_model, save_model
from remask.schema import Batch

FAMILIES = tuple(CLASS_PREFIX)
CASES = [(family, kind) for family in FAMILIES for kind in kinds(family)]
SIZES: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 4, "intermediate_size": 48,
    "initializer_range": 0.2,
}  # fmt: skip
LENGTHS = (13, 7, 2, 10)


@pytest.fixture(autouse=True)
def _no_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers.utils.logging.disable_progress_bar()


def their_config(family: str, **more: Any) -> Any:
    name = f"{CLASS_PREFIX[family]}Config"
    special = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    own: dict[str, Any] = {"max_position_embeddings": 42, "layer_norm_eps": 1e-5, "type_vocab_size": 1}
    if family in ("bert", "albert"):
        own = {"max_position_embeddings": 40, "type_vocab_size": 2}
    if family == "albert":
        own |= {"embedding_size": 16, "num_hidden_groups": 2}
    if family == "modernbert":
        own = {"max_position_embeddings": 40, "local_attention": 6, "cls_token_id": 0, "sep_token_id": 2}
    return getattr(transformers, name)(**(SIZES | special | own | more), attn_implementation="eager")


def their_model(family: str, kind: str, **more: Any) -> Any:
    labels = {"num_labels": 3} if kind in ("ForSequenceClassification", "ForTokenClassification") else {}
    torch.manual_seed(5)
    model = getattr(transformers, CLASS_PREFIX[family] + kind)(their_config(family, **(labels | more)))
    with torch.no_grad():  # biases and norms are 0 and 1 after initialisation, which would hide a mix-up
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def batch(family: str) -> Batch:
    generator = torch.Generator().manual_seed(3)
    ids_BS = torch.randint(4, 300, (4, 13), generator=generator)
    lengths_B = torch.tensor(LENGTHS)
    ids_BS[torch.arange(13) >= lengths_B[:, None]] = 1
    segments = (torch.arange(13) >= 5).long().expand(4, 13) if family in ("bert", "albert") else None
    return Batch(ids_BS, lengths_B, segments)


def their_inputs(family: str, one: Batch) -> dict[str, torch.Tensor]:
    inputs = {"input_ids": one.input_ids_BS, "attention_mask": (torch.arange(13) < one.lengths_B[:, None]).long()}
    return inputs if one.segment_ids_BS is None else inputs | {"token_type_ids": one.segment_ids_BS}


@torch.no_grad()
def their_outputs(model: Any, family: str, kind: str) -> dict[str, torch.Tensor]:
    inputs = their_inputs(family, batch(family))
    if kind == "ForMultipleChoice":
        inputs = {name: value[None] for name, value in inputs.items()}
    out = model(**inputs)
    real = inputs["attention_mask"].view(4, 13).flatten().nonzero().squeeze(1)
    return {
        "Model": lambda: {"hidden": out.last_hidden_state.flatten(0, 1)[real]},
        "ForMaskedLM": lambda: {"masked_lm": out.logits.flatten(0, 1)[real]},
        "ForPreTraining": lambda: {
            "masked_lm": out.prediction_logits.flatten(0, 1)[real],
            # theirs: 0 = follows; ours: 1 = follows
            "sentence": (out.seq_relationship_logits if family == "bert" else out.sop_logits).flip(1),
        },
        "ForNextSentencePrediction": lambda: {"sentence": out.logits.flip(1)},
        "ForSequenceClassification": lambda: {"classes": out.logits},
        "ForTokenClassification": lambda: {"tags": out.logits.flatten(0, 1)[real]},
        "ForQuestionAnswering": lambda: {
            "span": torch.stack([out.start_logits, out.end_logits], -1).flatten(0, 1)[real]
        },
        "ForMultipleChoice": lambda: {"choice": out.logits[0]},
    }[kind]()


@torch.no_grad()
def our_outputs(network: Network, family: str) -> dict[str, torch.Tensor]:
    one = batch(family)
    hidden = network.encode(one)
    real = (torch.arange(13) < one.lengths_B[:, None]).flatten().nonzero().squeeze(1)
    heads = network.head_settings
    found = {"hidden": hidden.flatten(0, 1)[real]}
    if heads.masked_lm:
        found["masked_lm"] = network.masked_lm(hidden, real)
    if heads.sentence:
        found["sentence"] = network.sentence(hidden, one.lengths_B)
    if heads.num_classes:
        found["classes"] = network.classify(hidden, one.lengths_B)
    if heads.num_tags:
        found["tags"] = network.tag(hidden).flatten(0, 1)[real]
    if heads.span:
        found["span"] = network.span(hidden).flatten(0, 1)[real]
    if heads.choice:
        found["choice"] = network.choose(hidden, one.lengths_B)
    return found


def assert_alike(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    for name, expected in theirs.items():
        assert (ours[name] - expected).abs().max() < 1e-5 * max(1.0, float(expected.abs().max())), name


def with_tokenizer(folder: Path, tokenizer: Path) -> Path:
    shutil.copytree(tokenizer, folder, dirs_exist_ok=True)
    return folder


def load_theirs(folder: Path) -> Any:
    """In the class that config.json names; the loading must have nothing to say."""
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model, info = getattr(transformers, name).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", dtype=torch.float32
    )
    assert not any(info.values()), info
    return model.eval()


def import_to(folder: Path, out: Path) -> Path:
    source = open_foreign(folder)
    publish(out, "model", lambda aside: write_own(aside, source))
    return out


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_theirs_to_ours_and_back(family: str, kind: str, tmp_path: Path, tiny_tokenizers: dict[str, Path]) -> None:
    theirs = their_model(family, kind)
    theirs.save_pretrained(tmp_path / "theirs")
    with_tokenizer(tmp_path / "theirs", tiny_tokenizers["byte-bpe"])
    expected = their_outputs(theirs, family, kind)
    assert_alike(our_outputs(open_model(tmp_path / "theirs").network, family), expected)
    own = import_to(tmp_path / "theirs", tmp_path / "own")
    assert_alike(our_outputs(open_model(own).network, family), expected)
    artifact = export_hf(own, tmp_path / "back")
    assert artifact.counts["class"] == CLASS_PREFIX[family] + kind
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
    assert_alike(their_outputs(load_theirs(tmp_path / "back"), family, kind), expected)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_round_trip_keeps_the_bytes_of_half_precision(
    family: str, dtype: torch.dtype, tmp_path: Path, tiny_tokenizers: dict[str, Path]
) -> None:
    their_model(family, "ForMaskedLM").to(dtype).save_pretrained(tmp_path / "theirs")
    with_tokenizer(tmp_path / "theirs", tiny_tokenizers["byte-bpe"])
    export_hf(import_to(tmp_path / "theirs", tmp_path / "own"), tmp_path / "back")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == dtype == after[name].dtype
        assert torch.equal(tensor.view(torch.int16), after[name].view(torch.int16)), name
    name = str(dtype).removeprefix("torch.")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["dtype"] == name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_free_output_matrix_survives(family: str, tmp_path: Path, tiny_tokenizers: dict[str, Path]) -> None:
    theirs = their_model(family, "ForMaskedLM", tie_word_embeddings=False)
    theirs.save_pretrained(tmp_path / "theirs")
    with_tokenizer(tmp_path / "theirs", tiny_tokenizers["byte-bpe"])
    expected = their_outputs(theirs, family, "ForMaskedLM")
    loaded = open_model(tmp_path / "theirs")
    assert not loaded.settings.tied_embeddings
    assert_alike(our_outputs(loaded.network, family), expected)
    export_hf(tmp_path / "theirs", tmp_path / "back")
    assert_alike(their_outputs(load_theirs(tmp_path / "back"), family, "ForMaskedLM"), expected)


# ----------------------------------------------------------------------------------- ours, of every kind, to theirs

SMALL: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 32, "num_heads": 4, "num_layers": 4, "ffn_size": 48, "max_length": 40,
    "init_std": 0.2,
}  # fmt: skip
MODERN: dict[str, Any] = {
    "positions": "rotary", "norm": "pre", "first_norm": False, "ffn": "gated", "head_form": "modern",
    "num_segments": 0, "position_offset": 0,
}  # fmt: skip
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("roberta", {}),
    "without segments": ("roberta", {"num_segments": 0}),
    "without biases": ("roberta", {"bias": False, "norm_bias": False}),
    "positions from 0": ("roberta", {"position_offset": 0}),
    "pooler tied": ("roberta", {"pooler_tied": True}),
    "BERT": ("bert", {"head_form": "bert", "position_offset": 0, "num_segments": 2}),
    "BERT with RoBERTa's position offset": ("bert", {"head_form": "bert"}),
    "tanh GELU": ("bert", {"activation": "gelu_tanh"}),
    "pre-norm": ("roberta-prelayernorm", {"norm": "pre"}),
    "ALBERT": ("albert", {"embedding_size": 16, "sharing": "all", "head_form": "bert"}),
    "ALBERT, RoBERTa's heads": ("albert", {"embedding_size": 16, "sharing": "all", "num_groups": 2}),
    "shared without factors": ("albert", {"sharing": "all", "num_groups": 3}),
    "factors without sharing": ("albert", {"embedding_size": 16}),
    "modern": ("modernbert", {**MODERN, "bias": False, "norm_bias": False, "attention_window": 3, "global_every": 2}),
    "modern with biases, all global": ("modernbert", MODERN),
}
HEADS: dict[str, HeadSettings] = {
    "masked": HeadSettings(masked_lm=True),
    "classes": HeadSettings(num_classes=3),
    "tags": HeadSettings(num_tags=4),
    "span": HeadSettings(span=True),
    "choice": HeadSettings(choice=True),
    "none": HeadSettings(),
}
KIND = {"masked": "ForMaskedLM", "classes": "ForSequenceClassification", "tags": "ForTokenClassification",
        "span": "ForQuestionAnswering", "choice": "ForMultipleChoice", "none": "Model"}  # fmt: skip


def ours(settings: ModelSettings, heads: HeadSettings) -> Network:
    network = build_network(settings, heads, seed=3)
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return network


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", OURS)
def test_ours_to_theirs(name: str, head: str, tmp_path: Path, tiny_tokenizers: dict[str, Path]) -> None:
    family, changes = OURS[name]
    settings = ModelSettings(**(SMALL | changes))
    assert family_for(settings) == family
    network = ours(settings, HEADS[head])
    save_model(tmp_path / "own", network, tiny_tokenizers["byte-bpe"])
    artifact = export_hf(tmp_path / "own", tmp_path / "hf")
    assert artifact.counts["class"] == CLASS_PREFIX[family] + KIND[head]
    assert not artifact.counts["side"]
    # Only a model with two segments is asked with them.
    kind_of_input = "bert" if settings.num_segments == 2 else "roberta"
    expected = our_outputs(network, kind_of_input)
    found = their_outputs(load_theirs(tmp_path / "hf"), kind_of_input, KIND[head])
    assert_alike(expected, found)
    assert_alike(our_outputs(open_model(tmp_path / "hf").network, kind_of_input), expected)


@pytest.mark.parametrize("family", ["roberta", "bert", "albert"])
def test_heads_without_a_class_go_beside_the_model_and_come_back(
    family: str, tmp_path: Path, tiny_tokenizers: dict[str, Path]
) -> None:
    changes = {"roberta": {}, "bert": {"head_form": "bert"}, "albert": {"head_form": "bert", "sharing": "all"}}[family]
    settings = ModelSettings(**(SMALL | changes))
    for number, heads in enumerate(
        (
            HeadSettings(span=True, answerable=True),
            HeadSettings(masked_lm=True, sentence=True),
            HeadSettings(sentence=True),
            HeadSettings(masked_lm=True, num_classes=3, num_tags=2, choice=True),
        )
    ):
        network = ours(settings, heads)
        save_model(tmp_path / f"own{number}", network, tiny_tokenizers["byte-bpe"])
        export_hf(tmp_path / f"own{number}", tmp_path / f"hf{number}")
        load_theirs(tmp_path / f"hf{number}")
        back = open_model(tmp_path / f"hf{number}")
        assert back.heads == heads
        state = back.network.state_dict()
        for name, tensor in network.state_dict().items():
            if "positions" not in name:  # BERT and ALBERT have no unused rows
                assert torch.equal(tensor, state[name]), name


NO_CLASS: dict[str, dict[str, Any]] = {
    "attention shared": {"sharing": "attention"},
    "FFN shared": {"sharing": "ffn"},
    "window": {"attention_window": 3},
    "gated": {"ffn": "gated"},
    "pre-norm shared": {"norm": "pre", "sharing": "all"},
    "pre-norm without the first": {"norm": "pre", "first_norm": False},
    "rotary post-norm": {**MODERN, "norm": "post"},
    "rotary plain": {**MODERN, "ffn": "plain"},
    "rotary shared": {**MODERN, "sharing": "all"},
    "rotary first norm": {**MODERN, "first_norm": True},
    "rotary factors": {**MODERN, "embedding_size": 16},
    "rotary window everywhere": {**MODERN, "attention_window": 3},
    "rotary tanh": {**MODERN, "activation": "gelu_tanh"},
    "rotary, one segment": {**MODERN, "num_segments": 1},
    "rotary, other heads": {**MODERN, "head_form": "roberta"},
}


@pytest.mark.parametrize("name", NO_CLASS)
def test_what_has_no_class_says_so_and_goes_out_in_our_layout(
    name: str, tmp_path: Path, tiny_tokenizers: dict[str, Path]
) -> None:
    settings, heads = ModelSettings(**(SMALL | NO_CLASS[name])), HeadSettings(num_classes=3)
    network = ours(settings, heads)
    save_model(tmp_path / "own", network, tiny_tokenizers["byte-bpe"], labels=("a", "b", "c"))
    artifact = export_hf(tmp_path / "own", tmp_path / "out")
    assert len(artifact.counts["no_class"]) == 1
    assert artifact.counts["no_class"][0] in (tmp_path / "out" / "README.md").read_text()
    back = open_model(tmp_path / "out")
    assert back.settings == settings
    assert back.labels == ("a", "b", "c")
    assert_alike(our_outputs(back.network, "roberta"), our_outputs(network, "roberta"))


@pytest.mark.parametrize("head", [{"sentence": True, "masked_lm": True}, {"choice": True}, {"num_classes": 2}])
def test_heads_on_the_mean_have_no_class_in_bert(head: dict[str, Any]) -> None:
    settings = ModelSettings(**SMALL, head_form="bert")
    assert not no_class(settings, HeadSettings(**head))
    assert len(no_class(settings, HeadSettings(**head, pooling="mean"))) == 1
    assert not no_class(settings, HeadSettings(masked_lm=True, pooling="mean"))


# ------------------------------------------------------------------------------------------------ other spellings


def renamed(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({change(name): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")


def test_shards_and_bin_files_and_old_names_give_the_same_model(tmp_path: Path) -> None:
    theirs = their_model("bert", "ForMaskedLM")
    theirs.save_pretrained(tmp_path / "whole")
    expected = their_outputs(theirs, "bert", "ForMaskedLM")
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    for name in ("bin", "old"):
        shutil.copytree(tmp_path / "whole", tmp_path / name)
    (tmp_path / "bin" / "model.safetensors").unlink()
    torch.save(theirs.state_dict(), tmp_path / "bin" / "pytorch_model.bin")
    renamed(
        tmp_path / "old", lambda n: n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta")
    )
    for name in ("whole", "shards", "bin", "old"):
        assert_alike(our_outputs(open_model(tmp_path / name).network, "bert"), expected)


def test_relatives_of_roberta_and_saved_prefixes_are_read(tmp_path: Path) -> None:
    theirs = their_model("roberta", "Model")
    theirs.save_pretrained(tmp_path / "plain")
    expected = their_outputs(theirs, "roberta", "Model")
    for model_type, name in (("xlm-roberta", "XLMRobertaModel"), ("camembert", "CamembertModel")):
        folder = tmp_path / model_type
        shutil.copytree(tmp_path / "plain", folder)
        renamed(folder, lambda n: f"roberta.{n}")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"model_type": model_type, "architectures": [name]}))
        assert_alike(our_outputs(open_model(folder).network, "roberta"), expected)


@pytest.mark.parametrize("family", ["roberta", "bert", "albert", "modernbert"])
def test_without_a_class_in_the_config_the_names_tell(family: str, tmp_path: Path) -> None:
    for kind in {"Model", "ForMaskedLM", "ForPreTraining"} & set(kinds(family)):
        theirs = their_model(family, kind)
        theirs.save_pretrained(tmp_path / kind)
        config = json.loads((tmp_path / kind / "config.json").read_text())
        (tmp_path / kind / "config.json").write_text(json.dumps({**config, "architectures": None}))
        assert_alike(our_outputs(open_model(tmp_path / kind).network, family), their_outputs(theirs, family, kind))


def test_a_pooler_beside_a_masked_lm_head_is_kept_but_not_handed_to_the_class(
    tmp_path: Path, tiny_tokenizers: dict[str, Path]
) -> None:
    their_model("roberta", "ForMaskedLM").save_pretrained(tmp_path / "theirs")
    with_tokenizer(tmp_path / "theirs", tiny_tokenizers["byte-bpe"])
    tensors = load_file(tmp_path / "theirs" / "model.safetensors")
    pooler = {f"roberta.pooler.dense.{part}": torch.randn(32, 32)[: 32 if part == "weight" else 1].squeeze(0)
              for part in ("weight", "bias")}  # fmt: skip
    save_file({**tensors, **pooler}, tmp_path / "theirs" / "model.safetensors")
    export_hf(import_to(tmp_path / "theirs", tmp_path / "own"), tmp_path / "back")
    load_theirs(tmp_path / "back")
    side = load_file(tmp_path / "back" / "remask_heads.safetensors")
    assert all(torch.equal(side[name], tensor) for name, tensor in pooler.items())
    assert read_hf_folder(tmp_path / "back").heads == HeadSettings(masked_lm=True, pooling="mean")


@pytest.mark.parametrize("kind", ["byte-bpe", "wordpiece"])
def test_fill_mask_answers_as_the_pipeline_of_transformers(
    kind: str, tmp_path: Path, tiny_tokenizers: dict[str, Path]
) -> None:
    form = {"head_form": "bert", "position_offset": 0, "num_segments": 2, "vocab_size": 80}
    settings = ModelSettings(**(SMALL | (form if kind == "wordpiece" else {})))
    save_model(tmp_path / "own", ours(settings, HeadSettings(masked_lm=True)), tiny_tokenizers[kind])
    export_hf(tmp_path / "own", tmp_path / "hf")
    pipeline = transformers.pipeline("fill-mask", model=str(tmp_path / "hf"))
    text = f"The quick {pipeline.tokenizer.mask_token} over the dog"
    found = [dataclasses.asdict(fill) for fill in remask.load(tmp_path / "own").fill_mask(text, top=300)]
    # Where two scores are alike the order is nobody's.
    theirs = {answer["token"]: answer for answer in pipeline(text, top_k=len(found))}
    for fill in found:
        expected = theirs[fill["token"]]
        assert fill["score"] == pytest.approx(expected["score"], abs=1e-6)
        if kind == "byte-bpe":
            assert fill["sequence"] == expected["sequence"]
            assert fill["token_str"] == expected["token_str"]


# ----------------------------------------------------------------------------------------------- the real checkpoint


def test_the_real_checkpoint_gives_the_hidden_states_of_transformers(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "roberta-30m"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.RobertaModel.from_pretrained(folder, add_pooling_layer=False, dtype=torch.float32).eval()
    network = open_model(folder).network
    for case in json.loads((folder / "reference.json").read_text())["cases"]:
        ids_BS = torch.tensor([case["input_ids"]])
        with torch.no_grad():
            hidden = network.encode(Batch(ids_BS, torch.tensor([ids_BS.shape[1]])))
        assert (hidden[0, 0, :16] - torch.tensor(case["cls_last_hidden_first16"])).abs().max() < 1e-4
    lines = (shared_data / "wiki" / "wiki.valid.txt").read_text(encoding="utf-8").splitlines()
    sentences = [part + "." for line in lines for part in line.split(". ") if 20 < len(part) < 300][:200]
    assert len(sentences) == 200
    worst = 0.0
    for start in range(0, 200, 25):
        inputs = tokenizer(sentences[start : start + 25], padding=True, return_tensors="pt")
        mask = inputs["attention_mask"].bool()
        with torch.no_grad():
            expected = theirs(**inputs).last_hidden_state
            found = network.encode(Batch(inputs["input_ids"], mask.sum(1)))
        worst = max(worst, float((expected - found)[mask].abs().max()))
    assert worst < 1e-4
    export_hf(import_to(folder, tmp_path / "own"), tmp_path / "back")
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors")
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert {name for name in after if name not in before} == {"pooler.dense.weight", "pooler.dense.bias"}
    load_theirs(tmp_path / "back")


def test_the_same_settings_come_back(tmp_path: Path, tiny_tokenizers: dict[str, Path]) -> None:
    for number, name in enumerate(("default", "BERT", "pre-norm", "factors without sharing", "modern")):
        changes = OURS[name][1] | ({"head_form": "bert", "position_offset": 0, "num_segments": 2}
                                   if name.startswith("factors") else {})  # fmt: skip
        settings = ModelSettings(
            **(SMALL | changes | {"dropout": 0.05, "attention_dropout": 0.06, "head_dropout": 0.07})
        )
        assert not no_class(settings, HeadSettings())
        save_model(tmp_path / f"own{number}", ours(settings, HeadSettings(masked_lm=True)), tiny_tokenizers["byte-bpe"])
        export_hf(tmp_path / f"own{number}", tmp_path / f"hf{number}")
        back = read_hf_folder(tmp_path / f"hf{number}").settings
        same = settings.model_copy(update={"init": back.init})
        assert back == same, name
