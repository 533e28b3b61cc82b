"""SQuAD files and their faults, windows, and the decoding of spans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remask.errors import DataError, MissingInputError
from remask.tasks import squad
from remask.tasks.rows import Frame


class Letters:
    """A token a letter; spaces have none."""

    kind, bos_id, eos_id, pad_id = "byte-bpe", 0, 2, 1

    def encode_batch(self, texts):
        return [self.encode_with_offsets(text)[0] for text in texts]

    def encode_with_offsets(self, text):
        places = [i for i, c in enumerate(text) if not c.isspace()]
        return np.array([ord(text[i]) for i in places], np.int32), np.array([[i, i + 1] for i in places]).reshape(-1, 2)


def question(context: str, *answers: tuple[str, int], asked: str = "q?") -> squad.Question:
    return squad.Question("1", asked, context, answers, "title", "f")


def write(path: Path, qas: list[dict[str, Any]], context: str = "Rome is old.") -> Path:
    data = [{"title": "T", "paragraphs": [{"context": context, "qas": qas}]}]
    path.write_text(json.dumps({"version": "1.1", "data": data}))
    return path


GOOD = {"id": "1", "question": "What?", "answers": [{"text": "Rome", "answer_start": 0}]}


def test_files(tmp_path: Path) -> None:
    impossible = {"id": "2", "question": "Why?", "answers": [], "is_impossible": True}
    plausible = {**GOOD, "id": "3", "is_impossible": True}
    found = squad.read_squad(write(tmp_path / "f.json", [GOOD, impossible, plausible]))
    assert [q.answers for q in found] == [(("Rome", 0),), (), ()]
    assert found[0].article == "T"


@pytest.mark.parametrize(
    "qas, message",
    [
        ([GOOD, GOOD], "the id '1' is there 2 times"),
        ([{**GOOD, "answers": [{"text": "x", "answer_start": "0"}]}], "question 1: answer_start = '0' is no place"),
        ([{**GOOD, "answers": [{"answer_start": 0}]}], "question 1: has no text 'text'"),
        ([{"id": "1", "answers": []}], "question 1: has no text 'question'"),
        ([{"question": "x"}], "paragraph 1: has no text 'id'"),
        ([], "no questions"),
    ],
)
def test_faults_are_named_by_place(tmp_path: Path, qas: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        squad.read_squad(write(tmp_path / "f.json", qas))


def test_what_is_no_squad_file(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    with pytest.raises(MissingInputError):
        squad.read_squad(path)
    for text, message in (
        ("{", "not a SQuAD file"),
        ("[]", "no list under `data`"),
        ('{"data": [5]}', "no list 'paragraphs'"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            squad.read_squad(path)


def test_answers_out_of_place_are_counted() -> None:
    kept, dropped = squad.with_answers_in_place([question("abc", ("b", 1)), question("abc", ("b", 0)), question("abc")])
    assert (len(kept), len(dropped)) == (2, 1)


def test_windows_overlap_cover_and_label() -> None:
    frame = Frame(0, 2, True, False, 12)  # 12 - 4 - 2 = 6 letters of the passage
    rows = squad.encode_questions([question("abcdefghijk", ("fg", 5))], Letters(), frame, stride=3)
    shown = ["".join(chr(i) for i in ids[5:-1]) for ids in rows.ids]
    assert shown == ["abcdef", "defghi", "ghijk"]
    assert [label.tolist() for label in rows.labels] == [[0, 0], [7, 8], [0, 0]]
    assert rows.ids[1][7:9].tolist() == [ord("f"), ord("g")]
    wide = squad.encode_questions([question("abcdefghijk")], Letters(), frame, stride=100)
    assert ["".join(chr(i) for i in ids[5:-1]) for ids in wide.ids] == shown  # narrow windows overlap by half
    assert all(label.tolist() == [0, 0] for label in wide.labels)


def test_every_answer_is_whole_in_a_window_however_short_the_models_inputs() -> None:
    text = "".join(chr(ord("a") + i % 26) for i in range(200))
    asked = [question(text, (text[i : i + 30], i)) for i in range(170)]
    rows = squad.encode_questions(asked, Letters(), Frame(0, 2, True, False, 70), stride=128)
    whole = {number for number, label in zip(rows.example_of_row, rows.labels, strict=True) if label.any()}
    assert whole == set(range(170))


def test_white_space_around_an_answer_does_not_lose_it() -> None:
    rows = squad.encode_questions([question("ab cd ", ("cd ", 3))], Letters(), Frame(0, 2, True, False, 64), stride=128)
    assert rows.labels[0].tolist() == [5 + 2, 5 + 3]


def test_long_questions_are_cut_and_counted() -> None:
    rows = squad.encode_questions(
        [question("abc", asked="x" * 200)], Letters(), Frame(0, 2, True, False, 512), stride=128
    )
    assert rows.num_cut == 1
    assert len(rows.ids[0]) == 64 + 3 + 4
    with pytest.raises(DataError, match="without a single token"):
        squad.encode_questions([question(" ")], Letters(), Frame(0, 2, True, False, 64), stride=8)


def brute_force(logits: np.ndarray) -> float:
    count = len(logits)
    pairs = [(i, j) for i in range(count) for j in range(i, min(count, i + squad.MAX_ANSWER_TOKENS))]
    return max(float(logits[i, 0] + logits[j, 1]) for i, j in pairs)


def test_best_span_is_the_best_where_twenty_cover_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        logits = rng.normal(size=(rng.integers(1, 20), 2)).astype(np.float32)
        score, first, last = squad.best_span(logits)
        assert 0 <= last - first < squad.MAX_ANSWER_TOKENS
        assert score == pytest.approx(brute_force(logits), abs=1e-6)


def test_best_span_keeps_the_limits() -> None:
    logits = np.zeros((100, 2))
    logits[0, 0] = logits[99, 1] = 50.0
    _, first, last = squad.best_span(logits)
    assert last - first < squad.MAX_ANSWER_TOKENS
    backwards = np.zeros((60, 2))
    backwards[40:, 0] = np.arange(20) + 1.0
    backwards[:20, 1] = 5.0
    score, first, last = squad.best_span(backwards)
    assert first == last
    assert score == pytest.approx(20.0)


def test_the_best_window_wins_and_no_answer_is_weighed() -> None:
    frame = Frame(0, 2, True, False, 12)
    questions = [question("abcdefghi")]
    rows = squad.encode_questions(questions, Letters(), frame, stride=3)
    logits = [np.zeros((len(ids), 2), np.float32) for ids in rows.ids]
    logits[0][0] = [3.0, 3.0]
    logits[1][0] = [1.0, 1.0]
    logits[0][5] = [2.0, 2.0]
    logits[1][9, 0] = logits[1][10, 1] = 4.0
    said = squad.answers_from_rows(logits, rows, questions)[0]
    assert (said.text, said.start, said.score) == ("hi", 7, 8.0)
    assert said.null_odds == pytest.approx(2.0 - 8.0)
    with_logit = [np.concatenate([x, np.full((len(x), 1), v)], 1) for x, v in zip(logits, (-1.0, 0.5), strict=True)]
    assert squad.answers_from_rows(with_logit, rows, questions)[0].null_odds == pytest.approx(-0.5)
