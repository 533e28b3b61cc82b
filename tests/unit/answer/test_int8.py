"""Int8 answers are compared with fp32 before they are given, and refused where they cost too much."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import remask
from remask.answer import int8 as answer_int8
from remask.answer.scores import Scores
from remask.answer.settings import Int8Settings, shown_int8
from remask.errors import DataError, UnavailableError
from remask.model.network import build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.model.store import save_model
from remask.precision import choose_precision, probe

pytestmark = pytest.mark.skipif(not (tried := probe("int8"))[0], reason=f"int8: {tried[1]}")
SIZES = {"hidden_size": 64, "num_heads": 4, "num_layers": 2, "ffn_size": 96, "max_length": 48, "init_std": 0.2}
TEXTS = ["The dog.", "The quick brown fox jumps over it", "a", "Who wrote it? Mary Shelley"]


@pytest.fixture
def folder(tmp_path: Path, tiny_tokenizers: dict[str, Path]) -> Path:
    network = build_network(ModelSettings(vocab_size=300, **SIZES), HeadSettings(num_classes=2), seed=3)
    save_model(tmp_path / "m", network, tiny_tokenizers["byte-bpe"], ("no", "yes"))
    return tmp_path / "m"


def test_int8_answers_as_fp32_and_says_how_alike_they_are(folder: Path) -> None:
    plain = remask.load(folder)
    model = remask.load(folder, precision="int8", int8=Int8Settings(min_agreement=0.5))
    assert model.precision == "int8"
    assert model.int8_report is not None
    assert model.int8_report["agreement"]["value"] >= 0.5
    assert "equal predictions" in shown_int8(model.int8_report)
    expected = [answer.scores["yes"] for answer in plain.classify(TEXTS)]
    found = [answer.scores["yes"] for answer in model.classify(TEXTS)]
    assert found == pytest.approx(expected, abs=0.1)
    assert found != expected
    alone = [model.classify([text])[0].scores["yes"] for text in TEXTS]
    assert alone == pytest.approx(found, abs=1e-2)


def test_int8_that_says_something_else_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, answers = answer_int8.quantise, []

    def wrong(network, ranges, dtype, keep):
        answers.append(keep)
        for ffn in network.encoder.ffns:
            ffn.down.weight.mul_(-40.0)
        return real(network, ranges, dtype, keep)

    monkeypatch.setattr(answer_int8, "quantise", wrong)
    monkeypatch.setattr(
        answer_int8.agreement, "alike", lambda one, two, heads: ("equal predictions", float(np.mean(one == two)))
    )
    with pytest.raises(
        DataError, match=r"int8 and fp32: equal predictions 0\.\d+ on \d+ real sentences, below the bound"
    ):
        remask.load(folder, precision="int8", int8=Int8Settings(min_agreement=0.999, keep=("qkv",)))
    assert answers == [("qkv",)]


def test_a_file_with_labels_decides(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "dev.csv"
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([["text", "label"], *((text, "yes") for text in TEXTS)])
    model = remask.load(folder, precision="int8", int8=Int8Settings(eval_file=file, max_drop=1.0, min_agreement=1.0))
    assert model.int8_report is not None
    scores = model.int8_report["scores"]
    right = [answer.label == "yes" for answer in remask.load(folder).classify(TEXTS)]
    assert scores["before"] == pytest.approx(np.mean(right))
    assert scores["examples"] == len(TEXTS)
    falling = iter([Scores("accuracy", {"accuracy": 0.91}, 4), Scores("accuracy", {"accuracy": 0.88}, 4)])
    monkeypatch.setattr(answer_int8, "scorer", lambda *_: lambda answer: next(falling))
    with pytest.raises(DataError, match=r"lowers accuracy on dev\.csv from 0\.9100 to 0\.8800, by 0\.0300, more than"):
        remask.load(folder, precision="int8", int8=Int8Settings(eval_file=file))


def test_int8_is_for_cpus() -> None:
    with pytest.raises(UnavailableError, match=r"precision = int8: .* CPU"):
        choose_precision("int8", "mps")
