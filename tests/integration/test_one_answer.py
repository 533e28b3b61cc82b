"""One model, one text, one answer: whichever way it is asked.

A fine-tuned model of every kind answers the same texts through `evaluate --test`, `predict`, `remask.load`, HTTP and
its ONNX graph. The settings are those that have told them apart before: rows much shorter than the model reads, odd
rooms for pairs, long texts in windows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import remask
from remask.__main__ import cli
from remask.model.network import build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.model.store import save_model

from ..serving import Served, serving

TASKS = ("classify", "regress", "multilabel", "pair", "ner", "qa", "choice")
WORDS = ["quick", "brown", "fox", "jumps", "over", "one", "lazy", "dog", "by", "river", "who", "wrote", "it"]
LONGEST = {"byte-bpe": 37, "wordpiece": 36}  # a pair's room is odd in RoBERTa's frame of 37, in BERT's of 36
COLUMNS = ("--text", "body", "--label", "topic")
EXACT, GRAPH, NARROW = 1e-6, 1e-4, 2e-2  # fp32, ONNX, bf16: how far numbers may be apart


def invoke(*words: Any) -> dict[str, Any]:
    result = CliRunner().invoke(cli, [str(word) for word in (*words, "--json", "-q")], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def make_rows(task: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Labelled rows, from one word to far beyond a row of the model."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        first, second = (
            [str(word) for word in rng.choice(WORDS, int(rng.choice([2, 9, 17, 30, 70])))] for _ in range(2)
        )
        text, other = " ".join(first), " ".join(second)
        if task == "ner":
            tags = ["B-BEAST" if word in ("fox", "dog") else "O" for word in first]
            rows.append({"body": first, "topic": tags, "text": text})
        elif task == "qa":
            start = len(" ".join(second[:1])) + 1 if len(second) > 1 else 0
            rows.append({"id": f"{seed}-{number}", "question": text, "context": other, "answer": (second[-1], start)})
        elif task == "choice":
            rows.append({"article": text, "question": other, "options": ["fox", "dog", "river"], "answer": number % 3})
        else:
            labels = {"regress": float(len(first)), "multilabel": sorted({"fox", "dog"} & set(first))}
            label = labels.get(task, "beast" if {"fox", "dog"} & set(first) else "other")
            rows.append({"body": text, "other": other, "topic": label})
    return rows


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_labelled(folder: Path, name: str, task: str, rows: Sequence[dict[str, Any]]) -> Path:
    """The file that finetune and evaluate read."""
    if task != "qa":
        return write(folder / f"{name}.jsonl", rows)
    paragraphs = []
    for row in rows:
        context = row["context"]
        last = context.split()[-1]
        answer = {"text": last, "answer_start": len(context) - len(last)}
        asked = {"id": row["id"], "question": row["question"], "answers": [answer]}
        paragraphs.append({"context": context, "qas": [asked]})
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"data": [{"title": name, "paragraphs": paragraphs}]}))
    return path


@pytest.fixture(scope="module", params=sorted(LONGEST))
def models(request: Any, tmp_path_factory: Any, tiny_tokenizers: dict[str, Path]) -> dict[str, Path]:
    """A fine-tuned model for each task, its rows shorter than what its network reads."""
    vocabulary = request.param
    folder = tmp_path_factory.mktemp(vocabulary)
    settings = ModelSettings(
        vocab_size=300 if vocabulary == "byte-bpe" else 80, num_layers=2, hidden_size=32, num_heads=2, ffn_size=48,
        max_length=64, num_segments=1 if vocabulary == "byte-bpe" else 2, init_std=0.3, dropout=0.0,
        attention_dropout=0.0, head_dropout=0.0,
    )  # fmt: skip
    start = folder / "start"
    save_model(start, build_network(settings, HeadSettings(), seed=3), tiny_tokenizers[vocabulary])
    made = {}
    for task in TASKS:
        here = folder / task
        here.mkdir()
        train = write_labelled(here, "train", task, make_rows(task, 24, seed=1))
        dev = write_labelled(here, "dev", task, make_rows(task, 8, seed=2))
        columns = {"qa": (), "choice": (), "pair": (*COLUMNS, "--text2", "other")}.get(task, COLUMNS)
        windows = task in ("classify", "multilabel", "regress")
        changes = [f"rows.max_length={LONGEST[vocabulary]}", "rows.stride=5", "train.steps=4", "train.precision=fp32"]
        changes += ["train.learning_rate=1e-3", f"rows.long_texts={'windows' if windows else 'cut'}"]
        invoke(
            "finetune", "--task", task, "--init", start, "--train", train, "--dev", dev, *columns,
            *(word for change in changes for word in ("--set", change)), "--out", here / "out",
        )  # fmt: skip
        made[task] = here / "out/model"
    return made


@pytest.fixture(scope="module")
def asked() -> dict[str, list[dict[str, Any]]]:
    return {task: make_rows(task, 40, seed=5) for task in TASKS}


@pytest.fixture(scope="module")
def served(models: dict[str, Path]) -> Iterator[dict[str, Served]]:
    """All models behind one server, each by the name of its task."""
    with serving(*(f"{task}={folder}" for task, folder in models.items())) as server:
        yield dict.fromkeys(models, server)


@pytest.fixture(scope="module")
def served_in_bf16(models: dict[str, Path]) -> Iterator[Served]:
    from remask.precision import choose_precision

    try:
        choose_precision("bf16", "cpu")
    except remask.errors.UnavailableError as error:
        pytest.skip(str(error))
    with serving(*(f"{task}={folder}" for task, folder in models.items()), "--precision", "bf16") as server:
        yield server


# What each way says about the rows of a task, in one form: (what is chosen, numbers) for every row.

Said = list[tuple[Any, list[float]]]


def by_predict(model: Path, task: str, rows: Sequence[dict[str, Any]], folder: Path, precision: str) -> Said:
    plain = [{key: row[key] for key in row if key not in ("answer", "topic", "id")} for row in rows]
    file = write(folder / "rows.jsonl", plain)
    scores = ("--scores",) if task in ("classify", "pair", "multilabel") else ()
    text = ("--text", "text") if task == "ner" else ()
    out = folder / "answers.jsonl"
    result = invoke("predict", model, file, "--out", out, "--precision", precision, "--device", "cpu", *scores, *text)
    assert result["rows"] == len(rows)
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    out.unlink()
    return in_columns(task, answers)


def in_columns(task: str, answers: Sequence[dict[str, Any]]) -> Said:
    """Answers as the columns of a file."""
    if task == "regress":
        return [("", [one["prediction"]]) for one in answers]
    if task == "ner":
        return [_entities(one["entities"]) for one in answers]
    if task == "qa":
        return [((one["prediction"], one["start"], one["end"]), [one["score"]]) for one in answers]
    if task == "choice":
        return [(one["choice"], [one["score"]]) for one in answers]
    return [(one["prediction"], list(one["scores"].values())) for one in answers]


def _entities(found: Sequence[dict[str, Any]]) -> tuple[Any, list[float]]:
    return [(one["label"], one["text"], one["start"], one["end"]) for one in found], [one["score"] for one in found]


def in_one_form(task: str, answers: Sequence[dict[str, Any]]) -> Said:
    """What `load` (as dicts) and HTTP say."""
    if task == "regress":
        return [("", [one["score"]]) for one in answers]
    if task == "multilabel":
        return [(list(one["labels"]), list(one["scores"].values())) for one in answers]
    if task == "ner":
        return [_entities(found) for found in answers]
    if task == "qa":
        return [((one["text"], one["start"], one["end"]), [one["score"]]) for one in answers]
    if task == "choice":
        return [(one["index"], [max(one["scores"])]) for one in answers]
    return [(one["label"], list(one["scores"].values())) for one in answers]


def inputs(task: str, rows: Sequence[dict[str, Any]]) -> tuple[str, list[Any]]:
    """The path's name and what is sent to it."""
    if task == "ner":
        return "tag", [row["text"] for row in rows]
    if task == "qa":
        return "answer", [{"question": row["question"], "context": row["context"]} for row in rows]
    if task == "choice":
        keys = {"text": "article", "options": "options", "question": "question"}
        return "choose", [{name: row[key] for name, key in keys.items()} for row in rows]
    if task == "pair":
        return "pairs", [[row["body"], row["other"]] for row in rows]
    return "classify", [row["body"] for row in rows]


def by_load(model: Path, task: str, rows: Sequence[dict[str, Any]], precision: Any) -> Said:
    from dataclasses import asdict

    loaded = remask.load(model, precision=precision)
    if task == "ner":
        return in_one_form(task, [[asdict(e) for e in found] for found in loaded.tag([r["text"] for r in rows])])
    if task == "qa":
        answers = loaded.answers([(row["question"], row["context"]) for row in rows])
    elif task == "choice":
        answers = [loaded.choose(row["article"], row["options"], row["question"]) for row in rows]
    elif task == "pair":
        answers = loaded.classify([(row["body"], row["other"]) for row in rows])
    else:
        answers = loaded.classify([row["body"] for row in rows])
    return in_one_form(task, [asdict(answer) for answer in answers])


def assert_same(first: Said, second: Said, tolerance: float) -> None:
    assert [choice for choice, _ in first] == [choice for choice, _ in second]
    for (_, numbers), (_, others) in zip(first, second, strict=True):
        assert numbers == pytest.approx(others, abs=tolerance, rel=tolerance)


def chosen_alike(first: Said, second: Said, share: float) -> None:
    """Numbers that are near each other may fall on two sides of a border."""
    same = [one == two for (one, _), (two, _) in zip(first, second, strict=True)]
    assert np.mean(same) >= share


# ----------------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("task", TASKS)
def test_every_way_gives_the_same_answer(
    task: str, models: dict[str, Path], asked: Any, served: dict[str, Served], tmp_path: Path
) -> None:
    rows, exact = asked[task], EXACT
    if task == "regress":
        exact *= np.std([row["topic"] for row in rows])  # in the units of the file, not in those of the network
    predicted = by_predict(models[task], task, rows, tmp_path, "fp32")
    assert len({json.dumps(choice) for choice, _ in predicted}) > 1 or task == "regress"
    assert_same(predicted, by_load(models[task], task, rows, "fp32"), exact)
    path, sent = inputs(task, rows)
    assert_same(predicted, in_one_form(task, served[task].outputs(path, sent, model=task)), exact)


@pytest.mark.parametrize("task", TASKS)
def test_evaluate_scores_what_predict_says(task: str, models: dict[str, Path], asked: Any, tmp_path: Path) -> None:
    rows = asked[task]
    predicted = by_predict(models[task], task, rows, tmp_path, "fp32")
    file = write_labelled(tmp_path, "test", task, rows)
    scored = invoke("evaluate", models[task], "--test", file, "--precision", "fp32", "--device", "cpu")["metrics"]
    choices = [choice for choice, _ in predicted]
    if task == "regress":
        distances = [numbers[0] - row["topic"] for (_, numbers), row in zip(predicted, rows, strict=True)]
        assert scored["mean_squared_error"] == pytest.approx(np.mean(np.square(distances)), rel=1e-5)
    elif task == "multilabel":
        right = [sorted(choice) == row["topic"] for choice, row in zip(choices, rows, strict=True)]
        assert scored["accuracy"] == pytest.approx(np.mean(right))
    elif task == "ner":
        assert scored["f1"] == pytest.approx(_entity_f1(choices, rows))
    elif task == "qa":
        right = [choice[0].split() == row["context"].split()[-1:] for choice, row in zip(choices, rows, strict=True)]
        assert scored["exact"] == pytest.approx(np.mean(right))
    else:
        key = "answer" if task == "choice" else "topic"
        assert scored["accuracy"] == pytest.approx(np.mean([c == r[key] for c, r in zip(choices, rows, strict=True)]))


def _entity_f1(choices: Sequence[Any], rows: Sequence[dict[str, Any]]) -> float:
    """Over (sentence, first word, last word): there is one type, and no true entity is longer than a word."""
    found, true = set(), set()
    for number, (entities, row) in enumerate(zip(choices, rows, strict=True)):
        begins = [0, *np.cumsum([len(word) + 1 for word in row["body"]])]
        found |= {(number, begins.index(start), row["text"][:end].count(" ")) for _, _, start, end in entities}
        true |= {(number, i, i) for i, tag in enumerate(row["topic"]) if tag != "O"}
    return 2 * len(found & true) / (len(found) + len(true))


@pytest.mark.parametrize("task", TASKS)
def test_bf16_means_the_same_everywhere(
    task: str, models: dict[str, Path], asked: Any, served_in_bf16: Served, tmp_path: Path
) -> None:
    rows = asked[task]
    predicted = by_predict(models[task], task, rows, tmp_path, "bf16")
    path, sent = inputs(task, rows)
    ways = [
        by_load(models[task], task, rows, "bf16"),
        in_one_form(task, served_in_bf16.outputs(path, sent, model=task)),
    ]
    for answers in ways:
        chosen_alike(predicted, answers, 0.95)
        if task not in ("qa", "ner"):  # whose numbers belong to what was chosen
            for (_, numbers), (_, others) in zip(predicted, answers, strict=True):
                assert numbers == pytest.approx(others, abs=NARROW, rel=NARROW)
    if task in ("classify", "pair", "choice"):
        file = write_labelled(tmp_path, "test", task, rows)
        scored = invoke("evaluate", models[task], "--test", file, "--precision", "bf16", "--device", "cpu")["metrics"]
        key = "answer" if task == "choice" else "topic"
        right = np.mean([choice == row[key] for (choice, _), row in zip(predicted, rows, strict=True)])
        assert scored["accuracy"] == pytest.approx(right, abs=0.05)
    exact = by_predict(models[task], task, rows, tmp_path, "fp32")
    assert [n for _, n in exact] != [n for _, n in predicted]


@pytest.mark.parametrize("task", TASKS)
def test_the_onnx_graph_gives_the_same_answer(task: str, models: dict[str, Path], asked: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from remask.answer import open_reader
    from remask.exports.graph import Graph
    from remask.exports.onnx import export_onnx

    if "wordpiece" not in models[task].parts[-4]:
        pytest.skip("one frame is enough for the graph")
    export_onnx(models[task], tmp_path / "graph")
    reader = open_reader(models[task])
    rows = asked[task]
    cells = [{key: row[key] for key in row if key != "topic"} for row in rows]
    text = "text" if task == "ner" else None
    items = [reader.item(values, text=text) for values in cells]
    answers = reader.answers(items, reader.forward_of(Graph(tmp_path / "graph/onnx/model.onnx")))
    columns = [dict(reader.named(answer, item)) for answer, item in zip(answers, items, strict=True)]
    assert_same(by_predict(models[task], task, rows, tmp_path, "fp32"), in_columns(task, columns), GRAPH)
