"""`remask adapt` as a user calls it: what it measures and leaves behind, new tokens, what learns, stops, mistakes."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

import remask
from remask.__main__ import cli
from remask.config import runs_folder
from remask.errors import ConfigError, DataError, RemaskError
from remask.model.store import find_model, open_model
from remask.tokenizer import Tokenizer, load_tokenizer

from ..faults.zygote import Zygote

SMOKE = runs_folder() / "smoke" / "adapt.yaml"
COLOURS = ("red", "green", "blue", "dark", "light")
FAST_TASK = ("--set", "task.train.epochs=1", "--set", "task.train.precision=fp32")
MADE_UP = ("florbination", "quindlewark", "zephyrolite")  # words that no vocabulary has


def call(verb: str, *words: str | Path) -> Any:
    return CliRunner().invoke(cli, [verb, *map(str, words)])


def result_of(*words: str | Path) -> dict[str, Any]:
    done = call("adapt", SMOKE, *words, "--json", "-q")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def sentences(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return [
        f"The {draw.choice(COLOURS)} {draw.choice(MADE_UP)} of number {number} was {draw.choice(COLOURS)} and old."
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a general text, a validation text, a labelled table and pairs."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "corpus.txt").write_text("\n\n".join(sentences(1, 160)))
    (folder / "general.txt").write_text(
        "\n\n".join(f"A cold wind {i} came by the house, fast and new." for i in range(80))
    )
    (folder / "valid.txt").write_text("\n\n".join(sentences(2, 40)))
    rows = [f"{text},{text.split()[1]}" for text in sentences(3, 60)]
    (folder / "labelled.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    pairs = [f"a {one} thing,a {two} thing,{int(one == two)}" for one in COLOURS for two in COLOURS]
    (folder / "pairs.csv").write_text("\n".join(["text,text2,label", *pairs]) + "\n")
    return folder


@pytest.fixture(scope="module")
def adapted(task_model: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything at once: general text, pairs, a task."""
    out = tmp_path_factory.mktemp("adapted") / "out"
    words: list[str | Path] = ["--general", texts / "general.txt", "--pairs", texts / "pairs.csv"]
    words += ["--task", "classify", "--train", texts / "labelled.csv", "--seeds", "2"]
    result_of(task_model, texts / "corpus.txt", "--out", out, *words, *FAST_TASK)
    return out


def test_it_measures_before_and_after_and_leaves_a_model(adapted: Path, task_model: Path) -> None:
    values = json.loads((adapted / "adapt.json").read_text())
    for part in ("heldout", "general"):
        assert values["after"][part]["loss"] < values["before"][part]["loss"]
        assert values["after"][part]["word_bits_per_byte"] < values["before"][part]["word_bits_per_byte"]
    assert -1 <= values["before"]["closeness"] <= 1
    assert values["before"]["samples"][0]["text"] == values["after"]["samples"][0]["text"]
    assert len(values["task"]["before"]["seeds"]) == len(values["task"]["after"]["seeds"]) == 2
    logged = [json.loads(line) for line in (adapted / "pretrain/metrics.jsonl").read_text().splitlines()]
    last = [row["eval/loss"] for row in logged if "eval/loss" in row][-1]
    assert values["after"]["heldout"]["loss"] == pytest.approx(last, abs=1e-4)  # of the same rows of the same source
    assert find_model(adapted) == adapted / "model"
    assert remask.load(adapted).fill_mask("The <mask> house.", top=1)
    before, after = (open_model(folder).settings for folder in (task_model, adapted))
    assert before == after
    assert load_tokenizer(adapted / "model/tokenizer").tokens == load_tokenizer(task_model / "tokenizer").tokens


def test_the_report_shows_both_numbers(adapted: Path) -> None:
    values, html = json.loads((adapted / "adapt.json").read_text()), (adapted / "report.html").read_text()
    before, after = (values[side]["heldout"]["loss"] for side in ("before", "after"))
    assert f"{before:.3f} → {after:.3f}" in html
    assert values["task"]["verdict"] in html
    assert values["before"]["samples"][0]["hidden"] in html
    assert "<script" not in html


def test_the_same_command_again_trains_nothing(adapted: Path, task_model: Path, texts: Path) -> None:
    before = {name: (adapted / name).read_bytes() for name in ("adapt.json", "report.html", "pretrain/metrics.jsonl")}
    words: list[str | Path] = ["--general", texts / "general.txt", "--pairs", texts / "pairs.csv"]
    words += ["--task", "classify", "--train", texts / "labelled.csv", "--seeds", "2", *FAST_TASK]
    result_of(task_model, texts / "corpus.txt", "--out", adapted, *words)
    assert before == {name: (adapted / name).read_bytes() for name in before}
    other = call("adapt", SMOKE, task_model, texts / "corpus.txt", "--out", adapted)
    assert isinstance(other.exception, ConfigError)
    assert "holds another adaptation" in str(other.exception)


# ------------------------------------------------------------------------------------------------- vocabulary


@pytest.fixture(scope="module")
def extended(task_model: Path, texts: Path, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("extended") / "out"
    done = zygote.run("adapt", SMOKE, task_model, texts / "corpus.txt", "--out", out, "--vocabulary", "extend", "30")
    assert done.returncode == 0, done.stderr
    return out


def test_extend_keeps_old_ids_and_shortens_the_text(extended: Path, task_model: Path) -> None:
    values = json.loads((extended / "adapt.json").read_text())
    assert values["after"]["bytes_per_token"] > 1.3 * values["before"]["bytes_per_token"]
    old, new = load_tokenizer(task_model / "tokenizer"), load_tokenizer(extended / "model/tokenizer")
    assert new.tokens[: old.vocab_size] == old.tokens
    assert new.vocab_size == old.vocab_size + 30 == open_model(extended).settings.vocab_size
    assert new.special_names == old.special_names
    assert new.mask_id == old.mask_id
    for text in ("red green blue", "The florbination was old."):
        assert new.decode(new.encode(text)) == text
    assert new.encode("warm bad fine").tolist() == old.encode("warm bad fine").tolist()  # nothing in it was joined
    assert values["start"] is not None


def test_transformers_reads_the_extended_vocabulary_alike(extended: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    done = call("export", extended, "--to", "hf", "--out", tmp_path / "hf")
    assert done.exit_code == 0, done.output
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path / "hf"), load_tokenizer(extended / "model/tokenizer")
    for text in ("The dark quindlewark of number 3 was light.", "zephyrolite florbination", "naïve <mask> 中文"):
        words = text.replace("<mask>", "mask")
        assert theirs.encode(words, add_special_tokens=False) == ours.encode(words).tolist()
    assert theirs.mask_token_id == ours.mask_id


def test_extend_a_wordpiece_vocabulary_by_whole_words(tiny_tokenizers: dict[str, Path]) -> None:
    from remask.tokenizer.extend import extended as extend

    old = load_tokenizer(tiny_tokenizers["wordpiece"])
    new = extend(old, [(b"foxhole", 5), (b"lazydog", 9), (b"once", 1), (b"fox", 50)], 2)
    assert new.tokens == [*old.tokens, "fox", "foxhole"]  # lazydog is unknown to it, not long
    assert len(new.encode("foxhole")) == 1 < len(old.encode("foxhole"))


def test_extend_refuses_what_it_cannot_keep(tiny_tokenizers: dict[str, Path]) -> None:
    from remask.tokenizer.extend import extended as extend

    description = load_tokenizer(tiny_tokenizers["byte-bpe"]).description
    description["pre_tokenizer"] = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    }
    with pytest.raises(DataError, match="can only be kept"):
        extend(Tokenizer(description), [(b"abab", 9)], 1)


def test_replace_and_its_limit(task_model: Path, texts: Path, tmp_path: Path) -> None:
    many = call(
        "adapt", SMOKE, task_model, texts / "corpus.txt", "--out", tmp_path / "out", "--vocabulary", "replace", "9999"
    )
    assert isinstance(many.exception, DataError)
    assert "ask for fewer" in str(many.exception)
    # The corrected command simply works in the same folder.
    values = result_of(task_model, texts / "corpus.txt", "--out", tmp_path / "out", "--vocabulary", "replace", "320")
    assert values["after"]["vocabulary"] == 320
    assert open_model(tmp_path / "out").settings.vocab_size == 320
    assert values["before"]["heldout"]["word_bits_per_byte"] > values["after"]["heldout"]["word_bits_per_byte"]
    more = call(
        "adapt", SMOKE, task_model, texts / "corpus.txt", "--out", tmp_path / "x", "--vocabulary", "extend", "9999"
    )
    assert isinstance(more.exception, DataError)
    assert "ask for fewer" in str(more.exception)


# ------------------------------------------------------------------------------------------------ what learns


def moved(before: Path, after: Path, *, shared: bool = False) -> set[str]:
    """Weights that differ; `shared`: of those that both have."""
    old, new = (load_file(find_model(folder) / "model.safetensors") for folder in (before, after))
    assert shared or old.keys() == new.keys()
    return {name for name in old.keys() & new.keys() if not np.array_equal(old[name], new[name])}


def test_lora_and_top_layers_leave_the_rest_alone(task_model: Path, texts: Path, tmp_path: Path) -> None:
    lora = result_of(task_model, texts / "corpus.txt", "--out", tmp_path / "lora", "--learn", "lora")
    assert lora["recipe"]["learn"] == "lora"
    changed = {name for name in moved(task_model, tmp_path / "lora") if name.startswith("encoder.")}
    assert changed == {f"encoder.attentions.{layer}.qkv.weight" for layer in (0, 1)}
    assert lora["after"]["heldout"]["loss"] < lora["before"]["heldout"]["loss"]
    result_of(task_model, texts / "corpus.txt", "--out", tmp_path / "top", "--learn", "top", "1")
    changed = {name for name in moved(task_model, tmp_path / "top") if name.startswith("encoder.")}
    assert changed
    assert all(".1." in name or name.startswith("encoder.norm") for name in changed)


def test_an_embedding_model_gets_a_head_and_keeps_what_it_had(task_model: Path, texts: Path, tmp_path: Path) -> None:
    from remask.model.network import with_heads
    from remask.model.settings import HeadSettings
    from remask.model.store import save_model

    loaded = open_model(task_model)
    bare = with_heads(loaded.network, HeadSettings(pooling="first"), seed=0)
    save_model(tmp_path / "bare", bare, loaded.tokenizer_folder)
    words: list[str | Path] = ["--validation", texts / "valid.txt", "--pairs", texts / "pairs.csv"]
    values = result_of(tmp_path / "bare", texts / "corpus.txt", "--out", tmp_path / "out", *words)
    assert values["before"]["had_head"] is False
    assert values["corpus"]["heldout_tokens"] == 0  # all of it is learned from
    heads = open_model(tmp_path / "out").heads
    assert heads.masked_lm
    assert heads.pooling == "first"
    assert values["recipe"]["head"]["step"] == 3  # of 10 in all, in which the encoder rests
    assert values["recipe"]["steps"] == 7
    assert not moved(tmp_path / "bare", tmp_path / "out/head", shared=True)
    assert values["after"]["heldout"]["loss"] < values["recipe"]["head"]["loss"] < values["before"]["heldout"]["loss"]
    manifest = json.loads((tmp_path / "out/prepared/manifest.json").read_text())
    entropy = values["before"]["heldout"]["loss"]  # of word frequencies, which need no model
    assert entropy < np.log(manifest["counts"]["vocab_size"])


# ------------------------------------------------------------------------------------------------------ stops


@pytest.mark.parametrize("how, code", [("SIGKILL", -9), ("SIGINT", 75)])
def test_stopped_and_repeated_it_ends_with_the_same_bits(
    how: str, code: int, extended: Path, task_model: Path, texts: Path, tmp_path: Path, zygote: Zygote
) -> None:
    words: list[str | Path] = ["adapt", SMOKE, task_model, texts / "corpus.txt", "--out", tmp_path / "out"]
    words += ["--vocabulary", "extend", "30"]
    stopped = zygote.run(*words, signals=[(0.0, how)], line="pretrain")
    assert stopped.returncode == code, stopped.stderr
    assert not (tmp_path / "out/model").exists()
    done = zygote.run(*words)
    assert done.returncode == 0, done.stderr
    assert not moved(extended, tmp_path / "out")
    one, two = (json.loads((folder / "adapt.json").read_text()) for folder in (extended, tmp_path / "out"))
    assert one["after"] == two["after"]
    assert one["before"] == two["before"]


# ---------------------------------------------------------------------------------------------------- mistakes


def test_mistakes_are_said_in_one_line(task_model: Path, texts: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    no_tokenizer = tmp_path / "no-tokenizer"
    shutil.copytree(task_model, no_tokenizer)
    from remask.model.store import save_model

    save_model(no_tokenizer, open_model(task_model).network, None, replace=True)
    corpus, out = texts / "corpus.txt", tmp_path / "out"
    for code, message, words in (
        (65, "no document is left", [task_model, tmp_path / "empty.txt"]),
        (65, "has no tokenizer", [no_tokenizer, corpus]),
        (66, "no such model folder", [tmp_path / "nothing", corpus]),
        (66, "no such file or folder", [task_model, tmp_path / "nothing.txt"]),
        (66, "no such file", [task_model, corpus, "--validation", tmp_path / "nothing.txt"]),
        (2, "which text?", [task_model]),
        (2, "write one of keep, extend N, replace N", [task_model, corpus, "--vocabulary", "extend"]),
        (78, "new tokens' vectors must learn", [task_model, corpus, "--vocabulary", "extend", "9", "--learn", "lora"]),
    ):
        done = call("adapt", SMOKE, *words, "--out", out)
        assert isinstance(done.exception, RemaskError), (message, done.output)
        assert done.exception.exit_code == code
        assert message in " ".join(done.exception.args)
        assert not (out / "model").exists()
    done = call("adapt", task_model, corpus, "--train", texts / "labelled.csv", "--out", out)
    assert "--train: for which --task?" in str(done.exception)


# ---------------------------------------------------------------------------------------------------- pretrain


def test_pretrain_takes_the_form_of_the_model_it_starts_from(
    task_model: Path, adapted: Path, texts: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run.yaml"
    run.write_text(
        "base: roberta_tiny\ndata: {length: 32, batch: {num_rows: 8}, evaluation: {num_rows: 8}}\n"
        "train: {steps: 3, precision: fp32}\n"
    )
    words: list[str | Path] = [run, "--data", adapted / "prepared", "--init-from", task_model]
    done = call("pretrain", *words, "--out", tmp_path / "out", "--validation", texts / "valid.txt", "--json")
    assert done.exit_code == 0, done.output
    assert open_model(tmp_path / "out").settings == open_model(task_model).settings
    own = call("pretrain", *words, "--out", tmp_path / "own", "--json")
    assert json.loads(own.stdout)["loss"] != json.loads(done.stdout)["loss"]  # measured on other text
    refused = call(
        "pretrain", *words, "--set", "model.hidden_size=48", "--set", "model.num_heads=2", "--out", tmp_path / "x"
    )
    assert refused.exit_code != 0
    assert "another form" in str(refused.exception)
