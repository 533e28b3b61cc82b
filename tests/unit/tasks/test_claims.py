"""Claims against what competes with them: both layouts, scores by hand, faults with their line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remask.errors import DataError
from remask.tasks.claims import Claim, read_claims, score_claims
from remask.tasks.rows import Frame


class Letters:
    mask_id = 4

    def encode_batch(self, texts):
        return [np.array([10 + ord(c) - ord("a") for c in text]) for text in texts]


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_both_layouts(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.jsonl",
        {"claim": "It is dynamic.", "counter": "It is static.", "group": "masking"},
        {"claim": "a", "counter": ["b", "c"]},
        {"text": "It sees _ tokens.", "options": ["all", "twelve"], "answer": "twelve"},
        {"text": "It sees _ tokens.", "options": ["all", "twelve"], "answer": 0},
    )
    found = read_claims(path)
    assert [claim.texts for claim in found] == [
        ("It is dynamic.", "It is static."), ("a", "b", "c"),
        ("It sees twelve tokens.", "It sees all tokens."), ("It sees all tokens.", "It sees twelve tokens."),
    ]  # fmt: skip
    assert found[0].group == "masking"


@pytest.mark.parametrize(
    "line, message",
    [
        ({"claim": "a"}, "must be a text"),
        ({"claim": "a", "counter": ""}, "must be a text"),
        ({"claim": "a", "counter": "a"}, "the same text is there twice"),
        ({"sentence": "a"}, "has `claim` and `counter`, or `text`"),
        ({"text": "no blank", "options": ["a", "b"], "answer": 0}, "must have one blank _, it has 0"),
        ({"text": "x _", "options": ["a", "b"], "answer": "c"}, "answer = 'c' is none of the 2 options"),
        ({"text": "x _", "options": ["a", 3], "answer": 0}, "must be a list of texts"),
        ({"claim": "a", "counter": "b", "group": 3}, "group = 3 is no text"),
    ],
)
def test_faults_have_a_line(tmp_path: Path, line: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "c.jsonl", {"claim": "a", "counter": "b"}, line)
    with pytest.raises(DataError, match=rf"c\.jsonl:2: .*{message}"):
        read_claims(path)


def test_sums_and_means_by_hand() -> None:
    def log_probs(batch):
        return -(batch.masked_labels_M - 9.0)  # a: -1, b: -2, c: -3

    claims = [Claim(("aaa", "b"), "x", "p1"), Claim(("ab", "cc", "ac"), "", "p2")]
    result = score_claims(claims, log_probs, Letters(), Frame(0, 2, True, False, 32))
    # -3 against -2, but -1 against -2 by token; -3 against -6 and -4.
    assert result["metrics"] == pytest.approx(
        {"accuracy": 0.5, "accuracy_by_token": 1.0, "margin": 0.0, "x_accuracy": 0.0}
    )
    assert result["claims"][1] == {"texts": ["ab", "cc", "ac"], "nats": [-3.0, -6.0, -4.0], "wins": True, "place": "p2"}
