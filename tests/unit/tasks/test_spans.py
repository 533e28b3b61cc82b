"""Questions about passages: windows, the decoding of spans, refusals, and the mistakes that tell most."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from remask.errors import DataError
from remask.tasks.rows import Frame, Rows
from remask.tasks.settings import RowSettings
from remask.tasks.spans import MAX_ANSWER_TOKENS, Spans, best_span, best_spans
from remask.tasks.squad import Question

SPANS = Spans()


class Letters:
    """A token a letter; spaces have none."""

    kind, bos_id, eos_id, pad_id = "byte-bpe", 0, 2, 1

    def encode_batch(self, texts):
        return [self.encode_with_offsets(text)[0] for text in texts]

    def encode_with_offsets(self, text):
        places = [i for i, c in enumerate(text) if not c.isspace()]
        return np.array([ord(text[i]) for i in places], np.int32), np.array([[i, i + 1] for i in places]).reshape(-1, 2)


def question(context: str, *answers: tuple[str, int], asked: str = "q?") -> Question:
    return Question("1", asked, context, answers, "title", "f")


def encode(questions: list[Question], frame: Frame, stride: int) -> Rows:
    return SPANS.encode(questions, (), Letters(), frame, RowSettings(stride=stride))


def test_windows_overlap_cover_and_label() -> None:
    frame = Frame(0, 2, True, False, 12)  # 12 - 4 - 2 = 6 letters of the passage
    rows = encode([question("abcdefghijk", ("fg", 5))], frame, stride=3)
    shown = ["".join(chr(i) for i in ids[5:-1]) for ids in rows.ids]
    assert shown == ["abcdef", "defghi", "ghijk"]
    assert [label.tolist() for label in rows.labels] == [[0, 0], [7, 8], [0, 0]]
    assert rows.ids[1][7:9].tolist() == [ord("f"), ord("g")]
    wide = encode([question("abcdefghijk")], frame, stride=100)
    assert ["".join(chr(i) for i in ids[5:-1]) for ids in wide.ids] == shown  # narrow windows overlap by half
    assert all(label.tolist() == [0, 0] for label in wide.labels)


def test_every_answer_is_whole_in_a_window_however_short_the_models_inputs() -> None:
    text = "".join(chr(ord("a") + i % 26) for i in range(200))
    asked = [question(text, (text[i : i + 30], i)) for i in range(170)]
    rows = encode(asked, Frame(0, 2, True, False, 70), stride=128)
    whole = {number for number, label in zip(rows.example_of_row, rows.labels, strict=True) if label.any()}
    assert whole == set(range(170))


def test_white_space_around_an_answer_does_not_lose_it() -> None:
    rows = encode([question("ab cd ", ("cd ", 3))], Frame(0, 2, True, False, 64), stride=128)
    assert rows.labels[0].tolist() == [5 + 2, 5 + 3]


def test_long_questions_are_cut_and_counted() -> None:
    rows = encode([question("abc", asked="x" * 200)], Frame(0, 2, True, False, 512), stride=128)
    assert rows.num_cut == 1
    assert len(rows.ids[0]) == 64 + 3 + 4
    with pytest.raises(DataError, match="without a single token"):
        encode([question(" ")], Frame(0, 2, True, False, 64), stride=8)


def brute_force(logits: np.ndarray) -> float:
    count = len(logits)
    pairs = [(i, j) for i in range(count) for j in range(i, min(count, i + MAX_ANSWER_TOKENS))]
    return max(float(logits[i, 0] + logits[j, 1]) for i, j in pairs)


def test_best_span_is_the_best_where_twenty_cover_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        logits = rng.normal(size=(rng.integers(1, 20), 2)).astype(np.float32)
        score, first, last = best_span(logits)
        assert 0 <= last - first < MAX_ANSWER_TOKENS
        assert score == pytest.approx(brute_force(logits), abs=1e-6)


def test_best_span_keeps_the_limits() -> None:
    logits = np.zeros((100, 2))
    logits[0, 0] = logits[99, 1] = 50.0
    _, first, last = best_span(logits)
    assert last - first < MAX_ANSWER_TOKENS
    backwards = np.zeros((60, 2))
    backwards[40:, 0] = np.arange(20) + 1.0
    backwards[:20, 1] = 5.0
    score, first, last = best_span(backwards)
    assert first == last
    assert score == pytest.approx(20.0)


def test_the_best_window_wins_and_no_answer_is_weighed() -> None:
    frame = Frame(0, 2, True, False, 12)
    questions = [question("abcdefghi")]
    rows = encode(questions, frame, stride=3)
    logits = [np.zeros((len(ids), 2), np.float32) for ids in rows.ids]
    logits[0][0] = [3.0, 3.0]
    logits[1][0] = [1.0, 1.0]
    logits[0][5] = [2.0, 2.0]
    logits[1][9, 0] = logits[1][10, 1] = 4.0
    said = best_spans(logits, rows, questions)[0]
    assert (said.text, said.start, said.score) == ("hi", 7, 8.0)
    assert said.null_odds == pytest.approx(2.0 - 8.0)
    with_logit = [np.concatenate([x, np.full((len(x), 1), v)], 1) for x, v in zip(logits, (-1.0, 0.5), strict=True)]
    assert best_spans(with_logit, rows, questions)[0].null_odds == pytest.approx(-0.5)


def test_an_answer_is_refused_only_by_a_model_that_may() -> None:
    questions = [question("abcdefghi")]
    rows = encode(questions, Frame(0, 2, True, False, 64), stride=128)
    logits = [np.zeros((len(ids), 2), np.float32) for ids in rows.ids]
    logits[0][0] = [5.0, 5.0]
    logits[0][6, 0] = logits[0][7, 1] = 4.0
    (refused,) = SPANS.answers(logits, rows, questions, (), refuses=True)
    assert (refused.text, refused.start, refused.end) == ("", 0, 0)
    (answer,) = SPANS.answers(logits, rows, questions, (), refuses=False)
    assert (answer.text, answer.start, answer.end) == ("bc", 1, 3)
    assert answer.null_odds == refused.null_odds == pytest.approx(2.0)
    # How likely: the softmax of the starts times that of the ends, over the whole row.
    start, end = (np.exp(column) / np.exp(column).sum() for column in logits[0].astype(float).T)
    assert answer.score == pytest.approx(start[6] * end[7])
    assert SPANS.named(answer, questions[0]) == {
        "prediction": "bc", "start": 1, "end": 3, "score": round(answer.score, 6), "null_odds": 2.0,
    }  # fmt: skip


def worst(questions: list[Question], spans: list[tuple[str, float, float]]) -> list[tuple[str, str, str, float]]:
    """Mistakes about the passage `red green`, from (what is said, its score, the odds of no answer)."""
    rows = encode(questions, Frame(0, 2, True, False, 64), stride=128)
    outputs = []
    for window, ids, (text, score, odds) in zip(rows.origins, rows.ids, spans, strict=True):
        logits = np.full((len(ids), 3), -50.0)
        logits[:, 2] = -odds
        begin = "red green".index(text)
        inside = [i for i, (a, b) in enumerate(window.spans) if a >= begin and b <= begin + len(text)]
        logits[window.first + inside[0], 0] = logits[window.first + inside[-1], 1] = score / 2
        outputs.append(logits)
    scored = SPANS.score(outputs, rows, questions, ())
    assert scored["worst_by"] == "score"
    for metric in ("f1", "exact"):
        values = SPANS.example_values(outputs, rows, questions, (), metric)
        assert values.mean() == pytest.approx(scored["metrics"][metric])
    return [(m["text"], m["label"], m["prediction"], m["confidence"]) for m in scored["worst"]]


def test_mistakes_share_no_word_with_an_answer() -> None:
    def asked(name: str, *answers: tuple[str, int]) -> Question:
        return Question(name, f"{name}?", "red green", answers, "t", f"f:{name}")

    items = [asked("a", ("red", 0)), asked("b"), asked("c", ("green", 4)), asked("d", ("red", 0))]
    said: list[Any] = [("green", 5.0, -1.0), ("red", 7.0, -1.0), ("red green", 9.0, -1.0), ("red", 1.0, 2.0)]
    assert worst(items, said) == [
        ("b? / red green", "(no answer)", "red", 7.0), ("a? / red green", "red", "green", 5.0),
        ("d? / red green", "red", "(no answer)", 1.0),
    ]  # fmt: skip
    # Where every question has an answer, odds are not looked at.
    assert worst(items[3:], said[3:]) == []
