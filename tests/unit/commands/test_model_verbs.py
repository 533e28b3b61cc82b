"""import, export, fill-mask, encode and describe as a user types them, in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest
from safetensors.numpy import load_file

import remask
from remask.__main__ import cli
from remask.errors import ConfigError, DataError, MissingInputError, UsageError
from remask.model.network import build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.model.store import open_model, save_model
from remask.tokenizer import load_tokenizer
from remask.visible import visible

SMALL: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 32, "num_heads": 4, "num_layers": 2, "ffn_size": 48, "max_length": 40,
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path, tiny_tokenizers: dict[str, Path]) -> Path:
    network = build_network(ModelSettings(**SMALL), HeadSettings(masked_lm=True), seed=1)
    save_model(tmp_path / "model", network, tiny_tokenizers["byte-bpe"])
    return tmp_path / "model"


def run(*words: Any, error: type[Exception] | None = None) -> str:
    result = click.testing.CliRunner().invoke(cli, [str(word) for word in words])
    if error is None:
        assert result.exit_code == 0, result.output
        return result.stdout
    assert isinstance(result.exception, error), result.exception
    return str(result.exception)


def test_fill_mask_prints_a_table_or_the_usual_keys(model: Path) -> None:
    lines = run("fill-mask", model, "The <mask> dog.", "--top", 3).splitlines()
    assert len(lines) == 3
    found = json.loads(run("fill-mask", model, "The <mask> dog.", "--top", 3, "--json"))["answers"]
    assert [set(fill) for fill in found] == [{"score", "token", "token_str", "sequence"}] * 3
    assert visible(found[0]["sequence"]) in lines[0]
    two = json.loads(run("fill-mask", model, "A <mask>", "The <mask>", "--json"))["answers"]
    assert [len(answers) for answers in two] == [5, 5]


def test_fill_mask_from_a_run_file(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "fill.yaml"
    file.write_text(f"model: {model}\ntexts: ['The <mask> dog.']\ntop: 2\n")
    assert len(run("fill-mask", file).splitlines()) == 2
    assert len(run("fill-mask", file, "--set", "top=4").splitlines()) == 4
    assert "top: 7" in run("fill-mask", file, "--top", 7, "--print-config")


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["MODEL", "no mask"], DataError, "has no <mask>"),
        (["MODEL"], ConfigError, "texts is needed"),
        (["MODEL", "a <mask>", "--top", "0"], ConfigError, "top"),
        (["MODEL/absent", "a <mask>"], MissingInputError, "no such model folder"),
    ],
)
def test_fill_mask_mistakes_are_one_line(model: Path, words: list[str], error: type[Exception], message: str) -> None:
    said = run("fill-mask", *(word.replace("MODEL", str(model)) for word in words), error=error)
    assert message in said
    assert len(said.splitlines()) == 1


def test_export_and_import_and_back(model: Path, tmp_path: Path) -> None:
    facts = json.loads(run("export", model, "--to", "hf", "--out", tmp_path / "hf", "--title", "Mine", "--json"))
    assert facts["class"] == "RobertaForMaskedLM"
    assert "# Mine" in (tmp_path / "hf" / "README.md").read_text()
    facts = json.loads(run("import", tmp_path / "hf", "--out", tmp_path / "back", "--json"))
    assert facts["family"] == "roberta"
    assert facts["heads"] == {"masked_lm": True}
    before, after = open_model(model), open_model(tmp_path / "back")
    assert before.settings == after.settings
    assert after.tokenizer_folder == tmp_path / "back" / "tokenizer"
    assert all((a == b).all() for a, b in zip(before.network.parameters(), after.network.parameters(), strict=True))
    assert run("fill-mask", model, "The <mask>") == run("fill-mask", tmp_path / "back", "The <mask>")


def test_a_folder_without_a_tokenizer_is_imported_but_not_used(model: Path, tmp_path: Path) -> None:
    run("export", model, "--out", tmp_path / "hf")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt"):
        (tmp_path / "hf" / name).unlink()
    run("import", tmp_path / "hf", "--out", tmp_path / "back")
    assert not (tmp_path / "back" / "tokenizer").exists()
    assert "has no tokenizer" in run("fill-mask", tmp_path / "back", "The <mask>", error=DataError)
    assert "has no tokenizer" in run("export", tmp_path / "back", "--out", tmp_path / "hf2", error=DataError)


def test_a_dry_run_writes_nothing(model: Path, tmp_path: Path) -> None:
    run("export", model, "--out", tmp_path / "hf", "--dry-run")
    assert not (tmp_path / "hf").exists()
    run("export", model, "--out", tmp_path / "hf")
    run("import", tmp_path / "hf", "--out", tmp_path / "back", "--dry-run")
    assert not (tmp_path / "back").exists()


def test_export_says_what_has_no_class(tmp_path: Path, tiny_tokenizers: dict[str, Path]) -> None:
    network = build_network(ModelSettings(**SMALL, attention_window=2), HeadSettings(masked_lm=True), seed=1)
    save_model(tmp_path / "model", network, tiny_tokenizers["byte-bpe"])
    result = click.testing.CliRunner().invoke(cli, ["export", str(tmp_path / "model"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0
    assert "transformers has no class for an attention window with learned positions" in result.stderr
    assert "remask layout" in result.stdout
    assert run("fill-mask", tmp_path / "model", "The <mask>") == run("fill-mask", tmp_path / "out", "The <mask>")


def test_encode_writes_ids_and_states(model: Path, tmp_path: Path) -> None:
    texts = ["The dog.", "", "A quick fox jumps"]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    run("encode", model, tmp_path / "texts.txt", "--out", tmp_path / "out.safetensors", "-q")
    arrays = load_file(tmp_path / "out.safetensors")
    expected = remask.load(model).encode(texts)
    for i, one in enumerate(expected):
        here = slice(arrays["offsets"][i], arrays["offsets"][i + 1])
        assert arrays["ids"][here].tolist() == one.ids.tolist()
        assert np.abs(arrays["states"][here] - one.states).max() < 1e-6
    rows = "".join(json.dumps({"body": text}) + "\n" for text in texts)
    (tmp_path / "texts.jsonl").write_text(rows)
    words = ["encode", model, tmp_path / "texts.jsonl", "--set", "column=body", "-q"]
    run(*words, "--out", tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["ids"] for line in lines] == [one.ids.tolist() for one in expected]
    run(*words, "--pooled", "--out", tmp_path / "pooled.safetensors")
    vectors = load_file(tmp_path / "pooled.safetensors")["vectors"]
    assert np.abs(vectors - remask.load(model).embed(texts)).max() < 1e-6
    run(*words, "--pooled", "--pooling", "mean", "--out", tmp_path / "mean.safetensors")
    means = load_file(tmp_path / "mean.safetensors")["vectors"]
    assert np.abs(means - remask.load(model).embed(texts, pooling="mean")).max() < 1e-6
    assert np.abs(means - vectors).max() > 1e-3


def test_an_exported_embedding_pools_as_told(model: Path, tmp_path: Path) -> None:
    run("export", model, "--embedding", "--pooling", "mean", "--out", tmp_path / "hf")
    expected = remask.load(model).embed(["The dog."], pooling="mean")
    assert np.abs(remask.load(tmp_path / "hf").embed(["The dog."]) - expected).max() < 1e-6
    message = run("export", model, "--pooling", "mean", "--out", tmp_path / "x", error=ConfigError)
    assert "pooling is for embedding" in message


def test_encode_mistakes_leave_no_file(model: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "texts.jsonl", tmp_path / "out.jsonl"
    file.write_text('{"text": "a"}\nnot json\n')
    assert "texts.jsonl:2" in run("encode", model, file, "--out", out, error=DataError)
    file.write_text('{"text": "a"}\n{"other": "b"}\n')
    assert "texts.jsonl:2: has no text in the column" in run("encode", model, file, "--out", out, error=DataError)
    file.write_text(json.dumps({"text": "fox jumps " * 60}))
    message = run("encode", model, file, "--out", out, error=DataError)
    assert "texts.jsonl:1: " in message
    assert "this model takes 38" in message
    run("encode", model, file, "--out", out, "--long", "cut", "-q")
    out.unlink()
    file.write_text("")
    assert "has no texts" in run("encode", model, file, "--out", out, error=DataError)
    assert "must end in" in run("encode", model, file, "--out", tmp_path / "out.txt", error=UsageError)
    assert "no such file" in run("encode", model, tmp_path / "absent", "--out", out, error=MissingInputError)
    assert not out.exists()
    assert not list(tmp_path.glob(".out*"))


def test_describe_a_model_a_base_and_a_run_file(model: Path, tmp_path: Path) -> None:
    facts = json.loads(run("describe", model, "--batch", 2, "--set", "probe_seconds=0.01", "--json"))
    assert facts["parameters"] == sum(p.numel() for p in open_model(model).network.parameters())
    assert facts["parameters"] == sum(facts["parts"].values())
    memory = facts["memory"]
    assert memory["total"] == sum(memory[part] for part in ("weights", "gradients", "optimizer", "activations"))
    assert memory["weights"] == 4 * facts["parameters"]
    assert facts["time"]["seconds"] == pytest.approx(1e9 / facts["time"]["tokens_per_second"])
    assert "attention projections" in run("describe", "roberta_tiny", "--probe-seconds", 0)
    file = tmp_path / "run.yaml"
    file.write_text("base: roberta_tiny\nmodel: {num_layers: 1, vocab_size: 100}\n")
    smaller = json.loads(run("describe", file, "--probe-seconds", 0, "--json"))
    assert smaller["parts"]["token embeddings"] == 100 * 128
    message = run("describe", "absent_base", error=MissingInputError)
    assert message.startswith("absent_base: no such model, run or run file; base: 'absent_base' is not one of ")
    assert "longest input" in run("describe", model, "--length", 41, error=ConfigError)


def test_import_reads_a_bert_folder_with_vocab_txt_alone(tmp_path: Path, tiny_tokenizers: dict[str, Path]) -> None:
    transformers = pytest.importorskip("transformers")
    words = (tiny_tokenizers["wordpiece"] / "vocab.txt").read_text()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=len(words.splitlines()), max_position_embeddings=16, **sizes)
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "hf")
    (tmp_path / "hf" / "vocab.txt").write_text(words)
    run("import", tmp_path / "hf", "--out", tmp_path / "own")
    imported = open_model(tmp_path / "own").tokenizer_folder
    assert imported is not None
    ids = load_tokenizer(imported).encode("The quick fox").tolist()
    assert ids == load_tokenizer(tiny_tokenizers["wordpiece"]).encode("The quick fox").tolist()
    (tmp_path / "hf" / "vocab.txt").write_text("[PAD]\n")
    assert "has no [UNK]" in run("import", tmp_path / "hf", "--out", tmp_path / "other", error=DataError)
    (tmp_path / "hf" / "vocab.txt").write_text(words + "one\ntwo\n")
    assert "its weights have room for" in run("import", tmp_path / "hf", "--out", tmp_path / "other", error=DataError)
    assert not (tmp_path / "other").exists()
