"""Pairs of texts: reading, rows, measures, and batches of about as many tokens each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remask.errors import ConfigError, DataError
from remask.tasks import write_scores
from remask.tasks.batches import TaskBatches
from remask.tasks.kind import TaskSource
from remask.tasks.kinds import kind_of, kinds_for
from remask.tasks.rows import Rows, frame_for
from remask.tasks.settings import RowSettings, TableSettings, TaskBatchSettings
from remask.tasks.write import Draft, Origin
from remask.tokenizer import load_tokenizer


def opened(task: str, rows: list[dict[str, Any]], folder: Path, **table: Any) -> Any:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return kind_of(task).open(TaskSource(task, TableSettings(**table), path, path))


def test_sources_and_references(tmp_path: Path) -> None:
    rows = [{"source": ["One sentence.", "Another."], "target": ["A.", "B."]}, {"source": "One. Two.", "target": "C."}]
    problem = opened("summarise", rows, tmp_path)
    first, second = problem.train
    assert (first.source, first.references, first.simple) == ("One sentence. Another.", ("A.", "B."), "One sentence.")
    assert (second.source, second.simple) == ("One. Two.", "One.")
    assert problem.metric == "rouge_l"
    assert "1 source with several targets: the first is learned" in problem.notes


def test_dialogues(tmp_path: Path) -> None:
    turns = ["Hello.", "Hi!", "How are you?", "Fine."]
    problem = opened("reply", [{"source": turns}], tmp_path, turns=2)
    assert [(p.source, p.references[0]) for p in problem.train] == [
        ("Hello.", "Hi!"), ("Hello.\nHi!", "How are you?"), ("Hi!\nHow are you?", "Fine."),
    ]  # fmt: skip
    assert problem.train[2].simple == "How are you?"
    with pytest.raises(DataError, match="one turn: nothing is said next"):
        opened("reply", [{"source": ["Hello."]}], tmp_path)
    with pytest.raises(ConfigError, match="no column 'target'"):
        opened("translate", [{"source": turns}], tmp_path)


def test_bad_rows(tmp_path: Path) -> None:
    good, empty = {"source": "a", "target": "b"}, {"source": "a", "target": []}
    with pytest.raises(
        DataError, match=r"rows.jsonl:2: column 'target' must hold a text or a list of texts, not '\[\]'"
    ):
        opened("write", [good, empty], tmp_path)
    assert opened("write", [good, empty], tmp_path, bad_rows="drop").facts == {"dropped": {"empty text": 2}}
    blank = {"source": ["a", "  ", "c"], "target": ["", "b"]}  # as splitters of sentences leave them
    (passage, _) = opened("write", [blank, good], tmp_path).train
    assert (passage.source, passage.references) == ("a c", ("b",))
    for nothing in ([" "], ["a", 1]):
        with pytest.raises(DataError, match=r"rows.jsonl:1: column 'source' must hold"):
            opened("write", [{"source": nothing, "target": "b"}], tmp_path)


def test_rows_and_targets(tmp_path: Path, tiny_tokenizers: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(tiny_tokenizers["byte-bpe"])
    settings = RowSettings(max_length=12, target_length=5)
    frame = frame_for(tokenizer, settings, model_length=64, num_segments=1)
    rows = [{"source": "fox " * 20, "target": "The quick brown fox jumps"}, {"source": "fox", "target": "dog"}]
    problem = opened("translate", rows, tmp_path)
    encoded = problem.kind.encode(problem.train, (), tokenizer, frame, settings)
    assert encoded.num_cut == 2
    assert len(encoded.ids[0]) == 12
    assert [label[-1] for label in encoded.labels] == [tokenizer.eos_id] * 2
    assert len(encoded.labels[0]) == 5
    assert encoded.sizes.tolist() == [len(a) + len(b) for a, b in zip(encoded.ids, encoded.labels, strict=True)]
    told = problem.kind.encode(problem.train, (), tokenizer, frame, settings, labelled=False)
    assert told.labels is None
    drafts = [Draft(label[:-1], -0.5, True, 2.0) for label in encoded.labels]
    _, second = problem.kind.answers(drafts, encoded, problem.train, (), refuses=False)
    assert (second.text, second.score, second.finished, second.how) == ("dog", -0.5, True, "decoder")
    scored = problem.kind.score(drafts, encoded, problem.train, ())
    tokens = sum(len(label) for label in encoded.labels)
    assert scored["metrics"]["likelihood"] == pytest.approx(-4.0 / tokens)
    assert scored["metrics"]["perplexity"] == pytest.approx(np.exp(4.0 / tokens))
    assert scored["worst"][0]["label"] == "The quick brown fox jumps"
    origin = Origin(tokenizer, ("The fox is here. It is brown! E. g. why? It jumps over the lazy dog.",))
    told = ["The fox is here.", "It is brown!", "E. g. why?"]  # too short for sentences, such pieces stay together
    room = sum(len(tokenizer.encode(text)) for text in told)
    sentences = origin.sentences(room, 99)  # the last one is not among the tokens that are read
    assert [tokenizer.decode(ids[:-1]) for ids, _ in sentences] == told
    listed = Origin(tokenizer, ("One. Two.", " Three"))  # a source that came as a list says what its sentences are
    assert [tokenizer.decode(ids[:-1]) for ids, _ in listed.sentences(99, 99)] == ["One. Two.", "Three"]
    assert {(int(ids[-1]), whole) for ids, whole in sentences} == {(tokenizer.eos_id, True)}
    (cut, whole), *others = origin.sentences(1, 2)  # never none; too long for the limit
    assert (len(cut), whole, others) == (2, False, [])
    with pytest.raises(DataError, match="no numbers"):
        problem.kind.score([Draft(drafts[0].ids, 0.0, True, float("nan")), drafts[1]], encoded, problem.train, ())


def test_measures_are_the_libraries_own() -> None:
    texts = ["the cat sat on the mat", "a dog barks loudly in the yard"]
    references = [("the cat sat on a mat", "a cat was on the mat"), ("the dog barks in the yard",)]
    scores, signatures = write_scores.bleu_chrf(texts, references)
    import sacrebleu

    streams = [["the cat sat on a mat", "the dog barks in the yard"], ["a cat was on the mat", None]]
    assert scores["bleu"] == sacrebleu.BLEU().corpus_score(texts, streams).score
    assert signatures["bleu"].startswith("nrefs:var|case:mixed|eff:no|tok:13a")
    rouge = write_scores.rouge(texts, references)
    assert rouge["rouge_1"] > rouge["rouge_2"] > 0
    assert write_scores.rouge(["a b c"], [("x y", "a b c")])["rouge_l"] == 100
    assert write_scores.distinct(["a a", "a b"]) == {"distinct_1": 0.5, "distinct_2": 1.0}
    known = [(f"this is sentence number {i} of them all",) for i in range(40)]
    good = [reference[0] for reference in known]
    p = write_scores.paired_bootstrap(good, ["nothing at all like it here now"] * 40, known)
    assert p["bleu"] < 0.01
    assert p["chrf"] < 0.01


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from remask.errors import UnavailableError

    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(UnavailableError, match=r"BLEU and chrF need sacrebleu: .*write"):
        write_scores.check_libraries(rouge=False)


def test_one_kind_answers_for_a_decoder() -> None:
    from remask.model.settings import HeadSettings, WriterSettings

    assert [kind.name for kind in kinds_for(HeadSettings(writer=WriterSettings()))] == ["write"]
    assert {kind_of(task).method for task in ("write", "translate", "summarise", "reply")} == {"write"}


def test_batches_of_tokens_are_alike_and_complete() -> None:
    rng = np.random.default_rng(0)
    ids = [np.ones(n, np.int64) for n in rng.integers(3, 40, 300)]
    labels = [np.ones(n, np.int64) for n in rng.integers(2, 30, 300)]
    rows = Rows(ids, None, labels, np.arange(300), label_per_target=True)
    batches = TaskBatches(rows, 1, TaskBatchSettings(num_tokens=500, bucket_batches=4), seed=3)
    assert batches.steps_per_epoch == round(rows.sizes.sum() / 500)
    for epoch in range(3):
        plan = batches.epoch(epoch)
        assert len(plan) == batches.steps_per_epoch
        assert sorted(np.concatenate(plan).tolist()) == list(range(300))
        sizes = [rows.sizes[part].sum() for part in plan]
        assert max(sizes) < 500 + 2 * rows.sizes.max()
        assert min(sizes) > 500 - 2 * rows.sizes.max()
    (piece, *_), _ = batches.take({"epoch": 1, "step": 0})
    assert piece.labels.shape == (piece.num_rows, piece.target_lengths_B.max())
    assert piece.num_tokens == piece.lengths_B.sum() + piece.target_lengths_B.sum()
    few = TaskBatches(rows, 1, TaskBatchSettings(num_tokens=1), seed=3)
    assert all(len(part) == 1 for part in few.epoch(0))
