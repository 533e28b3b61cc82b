"""What is said beside a paper and an expectation; leaks; example values whose mean is the metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remask.artifacts import publish
from remask.config import build_values
from remask.data.tokens import ShardWriter
from remask.studies.data import leaked_share
from remask.studies.results import _beside_expected, _beside_paper
from remask.studies.settings import StudyRun
from remask.tasks import metrics


def a_study(higher: bool = True) -> StudyRun:
    values = {"rows": {"a": {}, "b": {}}, "paper": {"by": "score", "higher_is_better": higher}}
    return build_values(StudyRun, values, place="mine.yaml")


def a_row(word: str, paper: float, expected: str | None = None) -> dict[str, Any]:
    verdicts = {"bits_per_byte": {"word": word}}
    known = {"label": "b", "against": "a", "decide": "bits_per_byte", "paper": {"score": paper}}
    return {**known, "verdicts": verdicts, "expected": expected}


@pytest.mark.parametrize(
    "word, paper, higher, said",
    [
        ("worse", 78.0, True, "worse in the paper (score 78 against 80), and here"),
        ("better", 78.0, True, "disagrees: worse in the paper (score 78 against 80), better here"),
        ("no difference seen", 82.0, True, "better in the paper (score 82 against 80); no difference seen here"),
        ("better", 78.0, False, "better in the paper (score 78 against 80), and here"),
    ],
)
def test_disagreements_with_the_paper_are_said_plainly(word: str, paper: float, higher: bool, said: str) -> None:
    reference = {"label": "a", "paper": {"score": 80.0}}
    row = a_row(word, paper)
    assert _beside_paper(a_study(higher), row, [reference, row]) == said


def test_expectations_stand_beside_what_came_out() -> None:
    assert _beside_expected(a_row("worse", 1.0, "worse")) == "expected worse, as it came out"
    assert _beside_expected(a_row("no difference seen", 1.0, "same")) == "expected same, as it came out"
    assert _beside_expected(a_row("better", 1.0, "same")) == "expected same, came out: better"
    assert _beside_expected(a_row("better", 1.0)) == ""


@pytest.mark.parametrize("copied", [0.0, 0.5])
def test_held_out_text_that_was_trained_on_is_found(copied: float, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    train = draw.integers(5, 4000, 20_000)
    own = draw.integers(5, 4000, 2_000)
    heldout = np.concatenate([train[7_000 : 7_000 + int(4_000 * copied)], own])

    def fill(folder: Path) -> dict[str, Any]:
        shards = []
        for split, ids in (("train", train), ("heldout", heldout)):
            writer = ShardWriter(folder, f"t.{split}.00000", 4096)
            writer.add(ids, [0], np.ones(len(ids), bool))
            shards.append(writer.close())
        return {"shards": shards}

    publish(tmp_path / "prepared", "prepared", fill)
    share = leaked_share(tmp_path / "prepared", tmp_path / "out")
    assert share == pytest.approx(0.5 if copied else 0.0, abs=0.03)


def test_linearised_values_have_the_score_as_their_mean() -> None:
    draw = np.random.default_rng(1)
    columns = draw.integers(0, 5, (400, 2)).astype(float) + 1

    def ratio(means: np.ndarray) -> float:
        return float(means[0] / means[1])

    values = metrics.linearised(columns, ratio)
    assert values.mean() == pytest.approx(columns[:, 0].sum() / columns[:, 1].sum())
    # Their spread is that of the ratio: against drawing examples again and again.
    draws = [columns[draw.integers(0, 400, 400)] for _ in range(3000)]
    spread = np.std([x[:, 0].sum() / x[:, 1].sum() for x in draws])
    assert values.std() / 20 == pytest.approx(spread, rel=0.06)
    assert (metrics.linearised(np.zeros((5, 2)), lambda means: 0.0) == 0).all()
