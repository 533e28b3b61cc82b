"""What an exported folder holds besides the weights: config, tokenizer, card, sentence-transformers, labels."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors import safe_open

import remask
from remask.errors import DataError, OutputError
from remask.exports.hf import export_hf, open_source
from remask.model.network import build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.model.store import open_model, save_model
from remask.tasks.kinds import KINDS, StoredTask
from remask.tasks.settings import RowSettings, TableSettings

SMALL: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 32, "num_heads": 4, "num_layers": 2, "ffn_size": 48, "max_length": 40,
}  # fmt: skip


def make(folder: Path, tokenizer: Path | None, heads: HeadSettings, labels: Any = None, **changes: Any) -> Path:
    save_model(folder, build_network(ModelSettings(**(SMALL | changes)), heads, seed=1), tokenizer, labels)
    return folder


@pytest.fixture
def bpe(tiny_tokenizers: dict[str, Path]) -> Path:
    return tiny_tokenizers["byte-bpe"]


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def test_the_config_leaves_nothing_to_defaults(tmp_path: Path, bpe: Path) -> None:
    export_hf(make(tmp_path / "own", bpe, HeadSettings(masked_lm=True)), tmp_path / "hf")
    config = config_of(tmp_path / "hf")
    expected = {
        "architectures": ["RobertaForMaskedLM"], "model_type": "roberta", "layer_norm_eps": 1e-5, "type_vocab_size": 1,
        "max_position_embeddings": 42, "vocab_size": 300, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
        "tie_word_embeddings": True, "dtype": "float32", "torch_dtype": "float32",
    }  # fmt: skip
    assert {key: config.get(key) for key in expected} == expected
    assert "id2label" not in config
    with safe_open(tmp_path / "hf" / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    for name in ("own", "hf"):  # readable by whoever may read the other files
        modes = {path.stat().st_mode for path in (tmp_path / name).iterdir() if path.is_file()}
        assert len(modes) == 1


def test_the_tokenizer_comes_along_with_the_models_length(tmp_path: Path, bpe: Path) -> None:
    export_hf(make(tmp_path / "own", bpe, HeadSettings(masked_lm=True)), tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "RobertaTokenizer"
    assert config["model_max_length"] == 40
    assert (tmp_path / "hf" / "tokenizer.json").read_bytes() == (bpe / "tokenizer.json").read_bytes()
    assert {"vocab.json", "merges.txt", "special_tokens_map.json"} <= {p.name for p in (tmp_path / "hf").iterdir()}


@pytest.mark.parametrize("change", [{"tokenizer_class": "TokenizersBackend"}, {"tokenizer_class": None}, None])
def test_a_tokenizer_config_that_not_every_version_loads_is_replaced(tmp_path: Path, bpe: Path, change: Any) -> None:
    odd = tmp_path / "tokenizer"
    shutil.copytree(bpe, odd)
    config = json.loads((odd / "tokenizer_config.json").read_text())
    (odd / "tokenizer_config.json").unlink()
    if change is not None:
        kept = {key: value for key, value in {**config, **change}.items() if value is not None}
        (odd / "tokenizer_config.json").write_text(json.dumps(kept))
    export_hf(make(tmp_path / "own", odd, HeadSettings(masked_lm=True)), tmp_path / "hf")
    written = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "RobertaTokenizer"


@pytest.mark.parametrize(
    ("heads", "problem"),
    [
        (HeadSettings(num_classes=3), "single_label_classification"),
        (HeadSettings(num_classes=3, multilabel=True), "multi_label_classification"),
        (HeadSettings(num_classes=1), "regression"),
    ],
)
def test_labels_and_kind_of_classification_come_back(
    tmp_path: Path, bpe: Path, heads: HeadSettings, problem: str
) -> None:
    names = ("good", "bad", "ugly")[: heads.num_classes]
    export_hf(make(tmp_path / "own", bpe, heads, names), tmp_path / "hf")
    config = config_of(tmp_path / "hf")
    assert config["problem_type"] == problem
    assert list(config["id2label"].values()) == list(names)
    assert config["label2id"] == {name: i for i, name in enumerate(names)}
    back = open_model(tmp_path / "hf")
    assert back.labels == names
    assert back.heads == heads


def test_how_a_fine_tuned_model_is_asked_goes_along(tmp_path: Path, bpe: Path) -> None:
    network = build_network(ModelSettings(**SMALL), HeadSettings(num_classes=2), seed=1)
    stored = StoredTask("classify", KINDS["classify"], ("a", "b"), "accuracy", TableSettings(), RowSettings())
    save_model(tmp_path / "own", network, bpe, extra={"task.json": stored.to_json()})
    export_hf(tmp_path / "own", tmp_path / "hf")
    assert (tmp_path / "hf" / "task.json").read_bytes() == stored.to_json()
    export_hf(tmp_path / "own", tmp_path / "bare", embedding=True)
    assert not (tmp_path / "bare" / "task.json").exists()


def test_a_wrong_number_of_label_names_is_refused(tmp_path: Path, bpe: Path) -> None:
    make(tmp_path / "own", bpe, HeadSettings(num_tags=3), ("one", "two"))
    with pytest.raises(DataError, match="3 labels but 2 names"):
        export_hf(tmp_path / "own", tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_an_embedding_model_has_the_files_of_sentence_transformers(tmp_path: Path, bpe: Path, pooling: str) -> None:
    heads = HeadSettings.model_validate({"masked_lm": True, "pooling": pooling})
    own = make(tmp_path / "own", bpe, heads, init_std=0.2)
    artifact = export_hf(own, tmp_path / "hf", embedding=True)
    assert artifact.counts["class"] == "RobertaModel"
    modules = json.loads((tmp_path / "hf" / "modules.json").read_text())
    assert [module["type"].split(".")[-1] for module in modules] == ["Transformer", "Pooling", "Normalize"]
    assert all((tmp_path / "hf" / module["path"]).is_dir() for module in modules)
    config = json.loads((tmp_path / "hf" / "1_Pooling" / "config.json").read_text())
    assert config["word_embedding_dimension"] == 32
    assert config["pooling_mode_cls_token"] == (pooling == "first")
    assert config["pooling_mode_mean_tokens"] == (pooling == "mean")
    card = (tmp_path / "hf" / "README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["library_name"] == "sentence-transformers"
    assert "from sentence_transformers import SentenceTransformer" in card
    before, after = (remask.load(path).embed(["The dog.", "A fox jumps"]) for path in (own, tmp_path / "hf"))
    assert abs(before - after).max() < 1e-6


def test_the_way_of_pooling_survives_beside_another_head(tmp_path: Path, bpe: Path) -> None:
    heads = HeadSettings(masked_lm=True, pooling="mean")
    export_hf(make(tmp_path / "own", bpe, heads), tmp_path / "hf")
    assert open_model(tmp_path / "hf").heads == heads


def test_the_card_says_what_it_was_told_and_how_to_use_it(tmp_path: Path, bpe: Path) -> None:
    card = {"title": "Mine", "description": "About it.", "language": "en", "license": "mit",
            "metrics": {"eval/loss": 2.3456789}, "training": {"steps": 10}, "base_model": "small",
            "datasets": ["a/b"], "results": {"dataset": {"name": "a: b", "type": "csv"}, "metrics": {"f1": 0.123456}},
            }  # fmt: skip
    export_hf(make(tmp_path / "own", bpe, HeadSettings(masked_lm=True)), tmp_path / "hf", card=card)
    text = (tmp_path / "hf" / "README.md").read_text()
    front = yaml.safe_load(text.split("---")[1])
    assert front["pipeline_tag"] == "fill-mask"
    assert front["library_name"] == "transformers"
    assert (front["language"], front["license"]) == ("en", "mit")
    assert (front["base_model"], front["datasets"], front["metrics"]) == ("small", ["a/b"], ["f1"])
    result = {"task": {"type": "fill-mask"}, "dataset": {"name": "a: b", "type": "csv"}}
    figures = [{"type": "f1", "name": "f1", "value": 0.1235}]
    assert front["model-index"] == [{"name": "Mine", "results": [result | {"metrics": figures}]}]
    for part in ("# Mine", "About it.", "| eval/loss | 2.346 |", "| steps | 10 |", "RobertaForMaskedLM", "<mask>"):
        assert part in text


def test_an_existing_folder_is_not_overwritten_unless_asked(tmp_path: Path, bpe: Path) -> None:
    own = make(tmp_path / "own", bpe, HeadSettings(masked_lm=True))
    export_hf(own, tmp_path / "hf", card={"title": "One"})
    with pytest.raises(OutputError, match="exists already"):
        export_hf(own, tmp_path / "hf", card={"title": "Two"})
    export_hf(own, tmp_path / "hf", card={"title": "Two"}, replace=True)
    assert "# Two" in (tmp_path / "hf" / "README.md").read_text()


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "own", None, HeadSettings(masked_lm=True))
    with pytest.raises(DataError, match="has no tokenizer"):
        export_hf(tmp_path / "own", tmp_path / "hf")


def test_an_opened_model_can_be_exported_too(tmp_path: Path, bpe: Path) -> None:
    loaded = open_model(make(tmp_path / "own", bpe, HeadSettings(masked_lm=True)))
    with torch.no_grad():
        loaded.network.encoder.embeddings.tokens.weight[5] = 7.0
    export_hf(loaded, tmp_path / "hf")
    state = open_source(tmp_path / "hf").state
    assert state["encoder.embeddings.tokens.weight"][5].tolist() == [7.0] * 32


def test_a_model_made_from_a_foreign_folder_takes_only_the_tokenizer_along(tmp_path: Path, bpe: Path) -> None:
    export_hf(make(tmp_path / "own", bpe, HeadSettings(masked_lm=True)), tmp_path / "hf")
    loaded = open_model(tmp_path / "hf")
    save_model(tmp_path / "again", loaded.network, loaded.tokenizer_folder)
    names = {path.name for path in (tmp_path / "again" / "tokenizer").iterdir()}
    assert names == {path.name for path in bpe.iterdir()}
    assert remask.load(tmp_path / "again").tokenize(["The dog"]) == remask.load(tmp_path / "own").tokenize(["The dog"])


def test_a_pad_id_other_than_robertas_moves_the_positions(tmp_path: Path, tiny_tokenizers: dict[str, Path]) -> None:
    """RoBERTa's class counts positions from pad_token_id + 1, so with BERT's vocabulary the table has one row less."""
    make(tmp_path / "own", tiny_tokenizers["wordpiece"], HeadSettings(masked_lm=True), vocab_size=80)
    export_hf(tmp_path / "own", tmp_path / "hf")
    assert config_of(tmp_path / "hf")["max_position_embeddings"] == 41
    before, after = (remask.load(tmp_path / name).fill_mask("the [MASK] dog", top=3) for name in ("own", "hf"))
    assert [fill.token for fill in before] == [fill.token for fill in after]
    assert [fill.score for fill in before] == pytest.approx([fill.score for fill in after], abs=1e-7)
