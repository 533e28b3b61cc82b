"""Task retrieve from pairs or plain text to vectors that everyone reads alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

import remask
from remask.__main__ import cli
from remask.config import build_run
from remask.errors import ConfigError, DataError
from remask.progress import Progress
from remask.tasks.retrieve import Retrieve, TextPair, pair_table
from remask.tasks.settings import RetrieveSettings, RowSettings
from remask.tune import mining
from remask.tune.finetune import finetune
from remask.tune.settings import FinetuneRun
from remask.tune.single import SingleTask, prepare

NAMES = ("fox", "dog", "king", "river", "tree", "bird", "child", "hill", "book", "boat")
PLACES = ("town", "sea", "wood", "field")
QUIET = Progress(quiet=True)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Who is where: the words of question and answer are the same two, among others."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [
        {
            "ask": f"Where is the {name} of the {place}?",
            "text": f"In the {place} there was a {name}.",
            "no": f"A {name}.",
        }
        for name in NAMES
        for place in PLACES
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run_of(model: Path, train: Path | None, **options: Any) -> FinetuneRun:
    values = {
        "task": "retrieve", "init": str(model), "train_file": train and str(train), "table.query": "ask",
        "table.positive": "text", "train.precision": "fp32", "train.device": "cpu", "batch.num_rows": 16,
        "train.learning_rate": 3e-3, "train.epochs": 1.0, **options,
    }  # fmt: skip
    return build_run(FinetuneRun, options=values).run


def opened(run: FinetuneRun) -> Any:
    task = prepare(run, QUIET)
    assert isinstance(task, SingleTask)
    return task.part


def test_a_model_learns_and_everyone_reads_its_vectors(task_model: Path, pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["finetune", "--task", "retrieve", "--init", task_model, "--train", pairs, "--dev", pairs, "--query", "ask"]
    words += ["--positive", "text", "--epochs", 6, "--batch-size", 20, "--lr", "3e-3", "--out", out, "--json", "-q"]
    changes = ["train.precision=fp32", "retrieve.query_prompt='ask: '", "retrieve.document_prompt='text: '"]
    changes += ["retrieve.learned_temperature=true", "retrieve.symmetric=true", "retrieve.widths=[8]"]
    words += [word for change in changes for word in ("--set", change)]
    done = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    values = json.loads(done.stdout)
    assert values["metrics"]["ndcg@10"] > values["runs"][0]["history"][0]["ndcg@10"] + 0.02
    assert values["metrics"]["ndcg@10_8"] > 0.2
    assert values["runs"][0]["intervals"]["ndcg@10"]["low"] < values["metrics"]["ndcg@10"]

    model = remask.load(out / "model")
    assert model.prompts == {"query": "ask: ", "document": "text: "}
    assert model.methods == ("embed", "rank", "encode", "tokenize")
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    asked = model.embed([row["ask"] for row in rows], prompt="query")
    texts = model.embed([row["text"] for row in rows], prompt="document")
    scores = asked @ texts.T
    ahead = np.diag(scores) - np.where(np.eye(len(rows), dtype=bool), -np.inf, scores).max(1)
    sure, possible = ((ahead > gap).mean() for gap in (1e-6, -1e-6))  # two texts may be equally near but for rounding
    assert sure <= values["metrics"]["recall@1"] + 1e-6
    assert values["metrics"]["recall@1"] <= possible + 1e-6
    assert possible - sure <= 0.1, (sure, possible)

    (tmp_path / "asked.txt").write_text("\n".join(row["ask"] for row in rows))
    words = ["encode", out / "model", tmp_path / "asked.txt", "--pooled", "--prompt", "query"]
    CliRunner().invoke(
        cli, [str(word) for word in (*words, "--out", tmp_path / "v.safetensors", "-q")], catch_exceptions=False
    )
    np.testing.assert_allclose(load_file(tmp_path / "v.safetensors")["vectors"], asked, atol=1e-6)

    scored = remask.evaluate(model=out / "model", test=pairs, out=tmp_path / "scores", progress=QUIET)
    assert scored["metrics"]["ndcg@10"] == pytest.approx(values["metrics"]["ndcg@10"], abs=0.03)  # bf16
    predicted = CliRunner().invoke(cli, ["predict", str(out / "model"), str(pairs), "--out", str(tmp_path / "p.jsonl")])
    assert isinstance(predicted.exception, ConfigError)
    assert "gives vectors: remask encode" in str(predicted.exception)

    remask.export(model=out / "model", out=tmp_path / "hf", to="hf")
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "An embedding model that finds texts" in card
    assert 'model.encode(["A text.", "Another."], prompt_name="query")' in card
    again = remask.load(tmp_path / "hf")
    np.testing.assert_allclose(again.embed([r["ask"] for r in rows], prompt="query"), asked, atol=1e-5)
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(tmp_path / "hf"), device="cpu")
    np.testing.assert_allclose(theirs.encode([r["ask"] for r in rows], prompt_name="query"), asked, atol=1e-5)
    np.testing.assert_allclose(theirs.encode([r["text"] for r in rows], prompt_name="document"), texts, atol=1e-5)
    narrow = library.SentenceTransformer(str(tmp_path / "hf"), device="cpu", truncate_dim=8)
    cut = texts[:, :8] / np.linalg.norm(texts[:, :8], axis=1, keepdims=True)
    ours = narrow.encode([r["text"] for r in rows], prompt_name="document", normalize_embeddings=True)
    np.testing.assert_allclose(ours, cut, atol=1e-5)


# ------------------------------------------------------------------------------------------------------ negatives


def test_words_find_near_texts_that_are_no_answers() -> None:
    texts = ["red fox jumps", "red fox sleeps", "blue whale swims", "red fox jumps high"]
    table = pair_table(
        [TextPair("red fox", text, "") for text in texts[:1]] + [TextPair("whale", texts[2], "", tuple(texts))]
    )
    near = mining.near_by_words(table, pool=2)
    found = [{table.documents[i] for i in numbers} for numbers in near]
    assert found == [{"red fox sleeps", "red fox jumps high"}, set()]
    known_too = pair_table([TextPair("red fox", texts[0], ""), TextPair("red  fox", texts[1], "", (texts[3],))])
    assert [n.tolist() for n in mining.near_by_words(known_too, pool=2)] == [[2], [2]]


def test_vectors_find_what_lies_below_the_answer(task_model: Path) -> None:
    table = pair_table([TextPair(f"the {name} sleeps", f"a {name} was there", "") for name in NAMES])
    loose, strict = (
        mining.near_by_vectors(table, Retrieve(RetrieveSettings(pool=4, below=below)), str(task_model), RowSettings())
        for below in (100.0, 0.99)
    )
    model = remask.load(task_model)
    asked, texts = model.embed(table.queries), model.embed(table.documents)
    for pair, scores in enumerate(asked @ texts.T):
        order = [int(i) for i in np.argsort(-scores, kind="stable") if i != pair]
        np.testing.assert_allclose(scores[loose[pair]], scores[order[:4]], atol=1e-5)  # near ties may change places
        below = [i for i in order if scores[i] < 0.99 * scores[pair]]
        np.testing.assert_allclose(scores[strict[pair]], scores[below[:4]], atol=1e-5)
        assert pair not in loose[pair]


@pytest.mark.parametrize("how", ["words", "model"])
def test_mined_negatives_come_into_the_steps(task_model: Path, pairs: Path, how: str) -> None:
    part = opened(run_of(task_model, pairs, **{"retrieve.negatives": how, "retrieve.below": 1.0}))
    assert any(len(n) for n in part.table.negatives_of_pair)
    for pair, negatives in enumerate(part.table.negatives_of_pair):
        assert not set(negatives) & set(part.table.known(pair))
    plain = opened(run_of(task_model, pairs))
    assert part.fingerprint != plain.fingerprint
    given = opened(run_of(task_model, pairs, **{"table.negative": "no"}))
    assert all(len(n) == 1 for n in given.table.negatives_of_pair)


def test_a_cross_encoder_teaches_margins(task_model: Path, pairs: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    labelled = [{"a": r["ask"], "b": r[name], "like": float(name == "text")} for r in rows for name in ("text", "no")]
    (tmp_path / "likeness.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labelled))
    settings = {"train.precision": "fp32", "train.learning_rate": 5e-3}
    teacher = remask.finetune(
        task="regress", init=task_model, train=tmp_path / "likeness.jsonl", text="a", text2="b", label="like",
        epochs=1, out=tmp_path / "teacher", settings=settings, progress=QUIET,
    )["model"]  # fmt: skip
    run = run_of(task_model, pairs, **{"table.negative": "no", "retrieve.distil": teacher})
    part = opened(run)
    scores = remask.load(teacher).classify([(r["ask"], r[name]) for r in rows[:1] for name in ("text", "no")])
    first = next(p for p, item in enumerate(part.problem.train) if item.query == rows[0]["ask"])
    assert part.table.margins_of_pair[first] == pytest.approx([scores[0].score - scores[1].score], abs=1e-5)
    values = finetune(run, tmp_path / "out", progress=QUIET)
    log = [json.loads(line) for line in (tmp_path / "out/seed-0/metrics.jsonl").read_text().splitlines()]
    assert log[0]["train/loss_margin"] > 0
    assert values["metric"] == "ndcg@10"
    with pytest.raises(ConfigError, match=r"retrieve.distil compares answers with negatives: name their column"):
        opened(run_of(task_model, pairs, **{"retrieve.distil": teacher}))
    with pytest.raises(ConfigError, match="is a model of task retrieve; it must be pair or regress"):
        opened(run_of(task_model, pairs, **{"table.negative": "no", "retrieve.distil": str(tmp_path / "out/model")}))


# --------------------------------------------------------------------------------------------------- without labels


def paragraph(number: int) -> str:
    name, place = NAMES[number % 10], PLACES[number % 4]
    return (
        f"The {name} number {number} lived in a small {place} for many years. It was seen there by {number + 3} people "
        f"on every day of the week. Nobody of the {place} knew where the {name} slept."
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "stories.txt"
    stories = ["\n".join([f"Story {i}", *(paragraph(10 * i + j) for j in range(4))]) for i in range(40)]
    path.write_text("\n\n".join(stories) + "\n")
    return path


def test_pairs_come_out_of_plain_text(task_model: Path, text: Path) -> None:
    parts = {
        how: opened(run_of(task_model, None, **{"retrieve.unsupervised": str(text), "retrieve.pairs": how}))
        for how in ("title", "neighbours", "context", "dropout")
    }
    first = {how: part.problem.train[0] for how, part in parts.items()}
    number = int(first["title"].query.removeprefix("Story "))
    one, two = paragraph(10 * number), paragraph(10 * number + 1)
    assert first["title"].positive == one
    assert (first["neighbours"].query, first["neighbours"].positive) == (one, two)
    assert first["context"].query in one
    assert first["context"].query not in first["context"].positive
    assert sorted((first["context"].query + " " + first["context"].positive).split()) == sorted(one.split())
    assert first["dropout"].query == first["dropout"].positive
    assert first["dropout"].query in one
    dev = [part.problem.dev for part in parts.values()]
    assert dev[0] == dev[1] == dev[2] == dev[3]  # so that scores compare
    train = {pair.place for part in parts.values() for pair in part.problem.train}
    assert not train & {pair.place for pair in dev[0]}


def test_training_without_labels_ends_in_a_model(task_model: Path, text: Path, tmp_path: Path) -> None:
    values = remask.finetune(
        task="retrieve", init=task_model, unsupervised=text, out=tmp_path / "out", epochs=1, progress=QUIET,
        settings={"train.precision": "fp32", "max_train": 32, "max_dev": 8},
    )  # fmt: skip
    assert remask.load(values["model"]).embed(["a text"]).shape[0] == 1
    assert any("pairs of other documents of the text are scored" in note for note in values["notes"])


def test_too_little_text_is_refused(task_model: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("A line.\n")
    with pytest.raises(DataError, match=r"short.txt: has too little text for pairs of the kind context"):
        opened(run_of(task_model, None, **{"retrieve.unsupervised": str(tmp_path / "short.txt")}))


def test_settings_that_do_not_go_together_are_refused(task_model: Path, pairs: Path) -> None:
    for options, words in (
        ({"learn": "heads"}, "learn: heads is not for task retrieve"),
        ({"learn": "adalora"}, "learn: adalora is not for task retrieve"),
        ({"loss.consistency": 1.0}, "loss.adversarial are not for task retrieve"),
        ({"unlabelled.file": "x"}, "curve and unlabelled.file are for tasks with labels"),
        ({"task": "classify", "retrieve.distil": "x"}, "are for task retrieve"),
        ({"retrieve.miner": "x"}, "retrieve.miner mines where retrieve.negatives is model"),
        ({"retrieve.unsupervised": "x"}, "takes the place of train_file"),
    ):
        with pytest.raises(ConfigError, match=words):
            run_of(task_model, pairs, **options)
    for options, words in (
        ({"retrieve.widths": [4096]}, r"retrieve.widths = \[4096\]: must lie between 1 and"),
        ({"rows.long_texts": "windows"}, "has one vector a text"),
    ):
        run = run_of(task_model, pairs, **options)
        with pytest.raises(ConfigError, match=words):
            opened(run)
    weighted = run_of(task_model, pairs, **{"loss.class_weights": "balanced"})
    task = prepare(weighted, QUIET)
    with pytest.raises(ConfigError, match="is for classes, not for retrieve"):
        task.objective(0, task.build(0))
