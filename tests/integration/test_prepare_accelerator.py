"""gigatoken in prepare: used where it agrees, left out with a word where it does not, never needed."""

from __future__ import annotations

import io
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from remask.config import build_run
from remask.preparation import prepare
from remask.progress import Progress
from remask.tokenizer import bulk, training


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    texts = [f"Document {n} tells of the river.\nIt doesn't end at {n * n}, says 山水{n}." for n in range(40)]
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(texts))
    return file


def _prepare(corpus: Path, name: str, accelerator: str = "auto") -> tuple[dict[str, Any], str]:
    options = {
        "text.sources": [{"name": "corpus", "paths": [str(corpus)]}],
        "text.dedup.near": "off",
        "tokenizer.vocab_size": 380,
        "tokenizer.accelerator": accelerator,
        "workers": 1,
    }
    heard = io.StringIO()
    run = build_run(prepare.PrepareRun, options=options).run
    return prepare.prepare(run, corpus.with_name(name), progress=Progress(verbose=True, stream=heard)), heard.getvalue()


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often gigatoken was asked to encode or to train."""
    pytest.importorskip("gigatoken")
    calls: Counter[str] = Counter()
    encode, merges = bulk.Gigatoken.encode, training.gigatoken_merges

    def counted_encode(self: bulk.Gigatoken, *pieces: Any) -> Any:
        calls["encode"] += 1
        return encode(self, *pieces)

    def counted_merges(words: Any, vocab_size: int) -> Any:
        calls["train"] += 1
        return merges(words, vocab_size)

    monkeypatch.setattr(bulk.Gigatoken, "encode", counted_encode)
    monkeypatch.setattr(training, "gigatoken_merges", counted_merges)
    return calls


def test_auto_uses_it_and_none_does_not_with_the_same_result(corpus: Path, used: Counter[str]) -> None:
    without, _ = _prepare(corpus, "without", "none")
    assert used == Counter()
    result, heard = _prepare(corpus, "with")
    assert used["encode"] > 1
    assert used["train"] == 2  # the sample, and the whole
    assert result["fingerprint"] == without["fingerprint"]
    assert "warning" not in heard


def test_where_it_is_not_installed_nothing_is_missing(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = _prepare(corpus, "expected", "none")
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    result, heard = _prepare(corpus, "out")
    assert result["fingerprint"] == expected["fingerprint"]
    assert "[fast]" in heard


def test_other_ids_on_this_text_are_said_and_not_used(
    corpus: Path, used: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = _prepare(corpus, "expected", "none")
    right = bulk.Gigatoken.encode
    monkeypatch.setattr(bulk.Gigatoken, "encode", lambda self, p: (right(self, p)[0] ^ 1, right(self, p)[1]))
    result, heard = _prepare(corpus, "out")
    assert result["fingerprint"] == expected["fingerprint"]
    assert "gigatoken gives this text other ids" in heard


def test_other_ids_in_one_shard_only_are_said_and_encoded_again(
    corpus: Path, used: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = _prepare(corpus, "expected", "none")
    monkeypatch.setattr(prepare, "agrees", lambda *_: True)  # of the whole text; each shard asks again
    right = bulk.Gigatoken.encode
    monkeypatch.setattr(bulk.Gigatoken, "encode", lambda self, p: (right(self, p)[0] ^ 1, right(self, p)[1]))
    result, heard = _prepare(corpus, "out")
    assert result["fingerprint"] == expected["fingerprint"]
    assert "corpus.train.00000: gigatoken gave other ids" in heard


def test_other_words_are_said_and_not_used(corpus: Path, used: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = _prepare(corpus, "expected", "none")
    monkeypatch.setattr(training, "_count_fast", lambda pieces: Counter({b"wrong": len(pieces)}))
    result, heard = _prepare(corpus, "out")
    assert result["fingerprint"] == expected["fingerprint"]
    assert "gigatoken cuts this text differently" in heard
    assert used["train"] == 0
