"""Prompts from end to end on a tiny network: zero-shot, trained, words found, unlabelled texts, the curve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import remask
from remask import api
from remask.__main__ import cli
from remask.answer.reader import open_reader
from remask.errors import ConfigError, DataError
from remask.exports.graph import Graph
from remask.model.network import with_heads
from remask.model.settings import HeadSettings
from remask.model.store import open_model, save_model
from remask.progress import Progress

PATTERN = "{text} so it is <mask>."
WORDS = {"hot": ["warm"], "icy": ["cold", "old new"]}
TUNE = {"train.epochs": 8.0, "train.learning_rate": 0.01, "batch.num_rows": 8, "train.precision": "fp32"}


def rows(count: int, *, labelled: bool = True) -> list[dict[str, str]]:
    """`red` and `big` make it hot, `blue` and `small` make it icy."""
    made = []
    for i in range(count):
        sign = (("red", "big"), ("blue", "small"))[i % 2][i // 2 % 2]
        first = ("dark", "light", "fine") if labelled else ("good", "bad", "old")
        text = f" {first[i % 3]} {sign} {('fast', 'slow')[i // 3 % 2]} {sign}"
        made.append({"text": text * (1 + i % 2), **({"label": ("hot", "icy")[i % 2]} if labelled else {})})
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("prompt")
    made = {"train": rows(24), "dev": rows(30)[6:], "texts": rows(40, labelled=False)}
    for name, lines in made.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {name: folder / f"{name}.jsonl" for name in made}


def tuned(task_model: Path, files: dict[str, Path], out: Path, **settings: Any) -> dict[str, Any]:
    return api.finetune(
        task="prompt", init=task_model, train=files["train"], dev=files["dev"], out=out,
        settings={**TUNE, "prompt.patterns": [PATTERN], "prompt.words": WORDS, **settings},
        progress=Progress(quiet=True),
    )  # fmt: skip


def test_zero_shot_says_the_same_everywhere(task_model: Path, files: dict[str, Path], tmp_path: Path) -> None:
    texts = [row["text"] for row in rows(5)]
    model = remask.load(task_model)
    said = model.prompt(texts, PATTERN, WORDS)
    assert [label.label for label in said] == [max(label.scores, key=label.scores.__getitem__) for label in said]
    alone = [model.prompt([text], [PATTERN], WORDS)[0].score for text in texts]
    assert alone == pytest.approx([label.score for label in said], abs=1e-6)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = "hot=warm icy=cold,old new"
    asked = ["predict", str(task_model), str(tmp_path / "in.jsonl"), "--pattern", PATTERN, "--words", words]
    result = CliRunner().invoke(cli, [*asked, "--scores", "--precision", "fp32", "--out", str(tmp_path / "out.jsonl")])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["prediction"] for line in lines] == [label.label for label in said]
    api.predict(
        model=task_model, file=tmp_path / "in.jsonl", pattern=PATTERN, words=WORDS, out=tmp_path / "api.jsonl",
        settings={"precision": "fp32"}, progress=Progress(quiet=True),
    )  # fmt: skip
    by_function = [json.loads(line) for line in (tmp_path / "api.jsonl").read_text().splitlines()]
    assert [line["score"] for line in by_function] == [line["score"] for line in lines]
    assert [line["scores"]["hot"] for line in lines] == pytest.approx([label.scores["hot"] for label in said], abs=1e-5)


def test_calibration_takes_away_what_the_pattern_alone_says(task_model: Path) -> None:
    model = remask.load(task_model)
    plain = model.prompt(["red"], PATTERN, WORDS, calibrate=False)[0].scores
    calibrated = model.prompt(["red"], PATTERN, WORDS)[0].scores
    assert plain["hot"] != pytest.approx(calibrated["hot"], abs=1e-4)
    both = model.prompt([("red", "blue")], "{text} or {text2}: <mask>", WORDS)[0]
    assert sum(both.scores.values()) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("pattern", "words", "said"),
    [
        ("{text} so", WORDS, "has no <mask>"),
        (PATTERN, {"hot": ["warm"]}, "only one label"),
        ("{text} {text2} <mask>", WORDS, "pairs"),
        ([], WORDS, "needs a pattern and words"),
        ("dark " * 70 + PATTERN, WORDS, "leaves no room"),
    ],
)
def test_what_cannot_be_asked_is_said(task_model: Path, pattern: Any, words: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        remask.load(task_model).prompt(["red"], pattern, words)


def test_a_prompt_learns_and_its_model_answers_like_a_classifier(
    task_model: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    two = [PATTERN, "<mask>: {text}"]
    values = tuned(task_model, files, tmp_path / "run", **{"prompt.patterns": two, "seeds": 2})
    assert values["metrics"]["accuracy"] == 1.0
    assert values["ensemble"]["metrics"]["accuracy"] == 1.0
    model = remask.load(tmp_path / "run" / "model")
    assert model.labels == ("hot", "icy")
    said = model.classify([row["text"] for row in rows(12)[6:]])
    assert [label.label for label in said] == ["hot", "icy"] * 3
    assert "fill_mask" in model.methods
    evaluated = CliRunner().invoke(
        cli, ["evaluate", str(tmp_path / "run"), "--test", str(files["dev"]), "--out", str(tmp_path / "e"), "--json"]
    )
    assert evaluated.exit_code == 0, evaluated.output
    assert json.loads(evaluated.output.splitlines()[-1])["metrics"]["accuracy"] == 1.0
    again = tuned(task_model, files, tmp_path / "run", **{"prompt.patterns": two, "seeds": 2})
    assert again == values
    exported = api.export(model=tmp_path / "run", to="hf", out=tmp_path / "hf")
    assert exported["class"].endswith("ForMaskedLM")
    elsewhere = remask.load(tmp_path / "hf").classify([row["text"] for row in rows(12)[6:]])
    assert [one.label for one in elsewhere] == [one.label for one in said]
    onnx = api.export(model=tmp_path / "run", to="onnx", out=tmp_path / "onnx")
    reader, graph = open_reader(tmp_path / "run"), Graph(tmp_path / "onnx" / onnx["file"])
    items = [reader.item(row) for row in rows(12)[6:]]
    by_graph = reader.answers(items, reader.forward_of(graph))
    assert [one.score for one in by_graph] == pytest.approx([one.score for one in said], abs=1e-4)


def test_a_model_without_a_masked_lm_head_is_refused(task_model: Path, files: dict[str, Path], tmp_path: Path) -> None:
    loaded = open_model(task_model)
    save_model(tmp_path / "bare", with_heads(loaded.network, HeadSettings(num_classes=2), 0), task_model / "tokenizer")
    with pytest.raises(DataError, match="has no masked-LM head"):
        tuned(tmp_path / "bare", files, tmp_path / "run")
    with pytest.raises(DataError, match="cannot prompt"):
        remask.load(tmp_path / "bare").prompt(["red"], PATTERN, WORDS)


def test_words_are_found_in_the_training_data(task_model: Path, files: dict[str, Path], tmp_path: Path) -> None:
    settings = {"prompt.words": {}, "prompt.search_words": 2}
    values = tuned(task_model, files, tmp_path / "run", **settings)
    assert any(note.startswith("words: hot: ") for note in values["notes"])
    stored = json.loads((tmp_path / "run" / "model" / "task.json").read_text())["own"]["words"]
    assert [len(words) for words in stored.values()] == [2, 2]
    assert len({word for words in stored.values() for word in words}) == 4
    assert values["metrics"]["accuracy"] == 1.0
    with pytest.raises(ConfigError, match="needs words for the labels hot, icy"):
        tuned(task_model, files, tmp_path / "none", **{"prompt.words": {}})
    with pytest.raises(DataError, match=r"that have no words \(--words has hot, warm\): 'icy'"):
        tuned(task_model, files, tmp_path / "other", **{"prompt.words": {"hot": ["red"], "warm": ["blue"]}})


def test_unlabelled_texts_teach_a_second_model(task_model: Path, files: dict[str, Path], tmp_path: Path) -> None:
    settings = {"unlabelled.file": str(files["texts"]), "unlabelled.min_score": 0.6, "max_train": 12}
    values = tuned(task_model, files, tmp_path / "run", **settings)
    assert values["unlabelled"]["taught"] > 0
    assert values["data"]["train"] == 12 + values["unlabelled"]["taught"]
    assert remask.load(tmp_path / "run" / "model").labels == ("hot", "icy")
    assert tuned(task_model, files, tmp_path / "run", **settings) == values
    with pytest.raises(DataError, match="sure of none"):
        tuned(task_model, files, tmp_path / "sure", **{**settings, "unlabelled.min_score": 1.0})


def test_the_curve_compares_ways_over_labels_and_goes_on(
    task_model: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "curve"
    common = ["--init", str(task_model), "--train", str(files["train"]), "--dev", str(files["dev"]), "--out", str(out)]
    asked = ["finetune", "--task", "prompt", "--pattern", PATTERN, "--words", "hot=warm icy=cold", *common, "--json"]
    asked += ["--curve", "0,4,all", "--lr", "0.01", "--epochs", "4", "--set", "curve.min_steps=8", "-q"]
    result = CliRunner().invoke(cli, asked)
    assert result.exit_code == 0, result.output
    values = json.loads(result.output.splitlines()[-1])
    found = [(row["labels"], row["method"]) for row in values["curve"]]
    ways = ["prompt", "finetune", "neighbours"]
    assert found == [(0, "prompt"), *((size, way) for size in (4, 24) for way in ways)]
    page = (out / "report.html").read_text()
    assert "nearest neighbours" in page
    assert "Which way with how many labels" in page
    drawn = [json.loads(line) for line in (out / "labels-4" / "seed-0" / "train.jsonl").read_text().splitlines()]
    assert sorted(row["label"] for row in drawn) == ["hot", "hot", "icy", "icy"]
    (out / "results.json").unlink()  # as after a kill: what is trained is taken as it is
    stamp = (out / "prompt-4" / "seed-0" / "results.json").stat().st_mtime_ns
    again = CliRunner().invoke(cli, asked)
    assert json.loads(again.output.splitlines()[-1]) == values
    assert (out / "prompt-4" / "seed-0" / "results.json").stat().st_mtime_ns == stamp
    finished = CliRunner().invoke(cli, asked)
    assert json.loads(finished.output.splitlines()[-1]) == values
    few = CliRunner().invoke(cli, [*asked[:-1], "--curve", "1", "--out", str(tmp_path / "few")])
    assert isinstance(few.exception, ConfigError)
    assert "1 labels are fewer than the 2 classes" in str(few.exception)
