"""Row 19, whole folders: configs that lie or cannot be, side files, links, wrong weights. One clear error each, through
the API and the command line; nothing outside the folder is opened and nothing is left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import remask
from remask import artifacts
from remask.errors import DataError, MissingInputError, RemaskError
from remask.exports.hf import export_hf
from remask.model.interop import read_hf_folder
from remask.model.interop_config import SpecialIds, read_config, write_config
from remask.model.network import build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.model.store import open_model, save_model

from .zygote import Zygote

SMALL: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 32, "num_heads": 4, "num_layers": 2, "ffn_size": 48, "max_length": 40,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, tiny_tokenizers: dict[str, Path]) -> Path:
    """A good exported folder with a head that goes beside the model."""
    network = build_network(ModelSettings(**SMALL), HeadSettings(masked_lm=True, sentence=True), seed=1)
    save_model(tmp_path / "own", network, tiny_tokenizers["byte-bpe"])
    export_hf(tmp_path / "own", tmp_path / "hf")
    return tmp_path / "hf"


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


CONFIGS: dict[str, dict[str, Any]] = {
    "another model": {"model_type": "gpt2"},
    "no model type": {"model_type": None},
    "a model type that is a list": {"model_type": ["roberta"]},
    "a class of another kind": {"architectures": ["RobertaForCausalLM"]},
    "a huge number of layers": {"num_hidden_layers": 10**9},
    "layers beyond belief": {"num_hidden_layers": 10**30},
    "layers as text": {"num_hidden_layers": "12"},
    "layers true": {"num_hidden_layers": True},
    "negative layers": {"num_hidden_layers": -1},
    "no layers": {"num_hidden_layers": 0},
    "a huge width": {"hidden_size": 10**12},
    "a width that heads do not divide": {"num_attention_heads": 5},
    "no heads": {"num_attention_heads": 0},
    "a huge vocabulary": {"vocab_size": 10**15},
    "a vocabulary that the weights do not have": {"vocab_size": 301},
    "fewer positions than the offset": {"max_position_embeddings": 1},
    "a negative pad": {"pad_token_id": -5},
    "a pad beyond the positions": {"pad_token_id": 16_000_000},
    "dropout above 1": {"hidden_dropout_prob": 1.5},
    "dropout that is no number": {"hidden_dropout_prob": "nan"},
    "an epsilon of -1": {"layer_norm_eps": -1.0},
    "another activation": {"hidden_act": "relu"},
    "a program as activation": {"hidden_act": "__import__('os').system('true')"},
    "relative positions": {"position_embedding_type": "relative_key"},
    "a decoder": {"is_decoder": True},
    "labels that are a list": {"id2label": ["a", "b"]},
    "labels with a gap": {"id2label": {"0": "a", "2": "b"}},
    "tied as text": {"tie_word_embeddings": "yes"},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_that_cannot_be_is_refused(folder: Path, name: str) -> None:
    change(folder / "config.json", **CONFIGS[name])
    with pytest.raises(DataError) as caught:
        read_hf_folder(folder)
    assert str(folder) in str(caught.value)


FORMS: dict[str, dict[str, Any]] = {
    "roberta": {},
    "bert": {"head_form": "bert"},
    "albert": {"sharing": "all", "embedding_size": 16},
    "roberta-prelayernorm": {"norm": "pre"},
    "modernbert": {
        "positions": "rotary", "norm": "pre", "first_norm": False, "ffn": "gated", "head_form": "modern",
        "num_segments": 0, "attention_window": 3, "global_every": 2,
    },
}  # fmt: skip
NASTY: tuple[Any, ...] = (
    None,
    -1,
    0,
    1,
    1.5,
    True,
    "x",
    [],
    {},
    [1],
    {"a": 1},
    10**20,
    1e300,
    float("nan"),
    float("inf"),
)


@pytest.mark.parametrize("family", FORMS)
def test_no_value_of_any_key_breaks_the_reading_of_a_config(family: str) -> None:
    settings, heads = ModelSettings(**(SMALL | FORMS[family])), HeadSettings(num_classes=3)
    good = write_config(settings, heads, "ForSequenceClassification", SpecialIds(1, 0, 2), "float32", None)
    assert good["model_type"] == family
    more = {"layer_types": None, "rope_parameters": None, "is_decoder": False}
    refused = 0
    for key in {**good, **more}:
        for value in NASTY:
            try:
                found = read_config({**good, key: value}, "config.json")
            except DataError:
                refused += 1
            else:
                assert found.settings.num_layers <= 1000
    assert refused > 5 * len(good)


def test_code_that_a_config_points_at_is_never_looked_at(folder: Path) -> None:
    change(folder / "config.json", auto_map={"AutoModel": "evil.Model"}, trust_remote_code=True)
    (folder / "evil.py").write_text("raise SystemExit('it ran')")
    assert read_hf_folder(folder).heads.masked_lm


SIDES: dict[str, Any] = {
    "a list": [],
    "heads that are text": {"heads": "all"},
    "an unknown head": {"heads": {"evil": True}},
    "a huge head": {"heads": {"num_classes": 10**12}},
    "a head of another type": {"heads": {"num_classes": "3"}},
    "a head that is not in the file": {"heads": {"sentence": True, "num_tags": 3}},
}


@pytest.mark.parametrize("name", SIDES)
def test_a_side_file_that_lies_is_refused(folder: Path, name: str) -> None:
    (folder / "remask.json").write_text(json.dumps(SIDES[name]))
    with pytest.raises(DataError):
        open_model(folder)


@pytest.mark.parametrize(
    "name",
    ["config.json", "model.safetensors", "tokenizer.json", "vocab.json", "remask_heads.safetensors", "task.json"],
)
def test_a_link_out_of_the_folder_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / "task.json").write_text("{}")
    shutil.move(folder / name, tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="outside the folder"):
        remask.load(folder)
    with pytest.raises(DataError, match="outside the folder"):
        export_hf(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_every_wrong_weight_is_listed(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["roberta.encoder.layer.0.output.dense.bias"]
    tensors["roberta.encoder.layer.1.output.dense.bias"] = torch.zeros(33)
    tensors["lm_head.dense.bias"] = torch.zeros(32, dtype=torch.int32)
    tensors["surprise"] = torch.zeros(1)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(DataError) as caught:
        open_model(folder)
    lines = str(caught.value).splitlines()
    assert "4 problems" in lines[0]
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["type", "missing", "shape", "unexpected"]


@pytest.mark.parametrize("name", ["lm_head.bias", "roberta.encoder.layer.1.attention.self.key.weight"])
def test_a_weight_that_is_not_finite_is_named(folder: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[3] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(DataError, match=f"not finite: {name}"):
        open_model(folder)


def test_damaged_weights_of_our_own_layout_are_refused(tmp_path: Path, folder: Path) -> None:
    own = tmp_path / "own"
    data = bytearray((own / "model.safetensors").read_bytes())
    (own / "model.safetensors").write_bytes(data[:-1])
    with pytest.raises(DataError, match="damaged"):
        open_model(own)
    (own / "model.json").write_text("{}")
    with pytest.raises(RemaskError):
        open_model(own)


def edit(path: Path, **values: Any) -> None:
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "model": {**found["model"], **values}}))


def not_finite(path: Path) -> None:
    tensors = load_file(path)
    tensors["heads.masked_lm.bias"][7] = float("nan")
    save_file(tensors, path)


def integers(path: Path) -> None:
    tensors = load_file(path)
    save_file({name: tensor.to(torch.int32) for name, tensor in tensors.items()}, path)


def moved_out(path: Path) -> None:
    path.rename(path.parent.parent / f"outside-{path.name}")
    path.symlink_to(path.parent.parent / f"outside-{path.name}")


OWN: dict[str, Any] = {
    "layers without end": lambda own: edit(own / "model.json", num_layers=10**9),
    "a width beyond any address": lambda own: edit(own / "model.json", hidden_size=4 * 10**18),
    "a number that is not finite": lambda own: not_finite(own / "model.safetensors"),
    "weights that are integers": lambda own: integers(own / "model.safetensors"),
    "weights by a link": lambda own: moved_out(own / "model.safetensors"),
    "a vocabulary by a link": lambda own: moved_out(own / "tokenizer" / "tokenizer.json"),
    "a header without end": lambda own: (own / "model.safetensors").write_bytes(b"\xff" * 7 + b"\x3f{}"),
}


@pytest.mark.parametrize("name", OWN)
def test_a_stranger_who_writes_our_own_layout_and_its_manifest_gets_no_further(
    tmp_path: Path, folder: Path, name: str
) -> None:
    own = tmp_path / "own"
    OWN[name](own)
    manifest = json.loads((own / "manifest.json").read_text())
    manifest["files"] = {  # a link is simply not listed
        file: {**facts, "size": (own / file).stat().st_size}
        for file, facts in manifest["files"].items()
        if not (own / file).is_symlink()
    }
    manifest["fingerprint"] = artifacts._fingerprint(manifest)
    (own / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError):
        remask.load(own)


def test_the_command_line_says_one_thing_and_leaves_nothing(folder: Path, tmp_path: Path, zygote: Zygote) -> None:
    change(folder / "config.json", num_hidden_layers=3)
    done = zygote.run("import", folder, "--out", tmp_path / "out")
    assert done.returncode == 65
    assert "Traceback" not in done.stderr
    assert done.stderr.count("missing: roberta.encoder.layer.2.") == 16
    assert not list(tmp_path.glob("*out*"))
    done = zygote.run("import", tmp_path / "absent", "--out", tmp_path / "out")
    assert (done.returncode, done.stderr.count("\n")) == (MissingInputError.exit_code, 1)
