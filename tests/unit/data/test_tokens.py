"""Shards: what is written is what is read, over any number of shards, and damage is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remask import artifacts
from remask.data import tokens as tokens_module
from remask.data.tokens import STAGE, ShardWriter, Tokens
from remask.errors import DataError, MissingInputError


def write(folder: Path, shards: dict[str, list[tuple[list[int], list[int], list[bool]]]], vocab_size: int) -> Path:
    def fill(aside: Path) -> dict[str, Any]:
        facts = []
        for name, documents in shards.items():
            writer = ShardWriter(aside, name, vocab_size)
            for ids, sentences, words in documents:
                writer.add(np.array(ids, np.int32), sentences, words, num_bytes=3 * len(ids))
            facts.append(writer.close())
        return {"shards": facts}

    artifacts.publish(folder, STAGE, fill)
    return folder


@st.composite
def documents(draw: st.DrawFn) -> tuple[list[int], list[int], list[bool]]:
    ids = draw(st.lists(st.integers(0, 999), max_size=20))
    starts = draw(st.sets(st.integers(0, max(0, len(ids) - 1)), max_size=5)) | {0} if ids else set()
    return ids, sorted(starts), draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(documents(), max_size=5), min_size=1, max_size=4), st.sampled_from([1000, 100_000]))
def test_shards_of_a_source_read_as_one_sequence(shards: list[Any], vocab_size: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        names = {f"wiki.train.{number:05d}": shard for number, shard in enumerate(shards)}
        opened = Tokens.open(write(Path(folder) / "p", names, vocab_size), "train", verify=True)
        source = opened.sources["wiki"]
        ids = [i for shard in shards for document in shard for i in document[0]]
        words = [w for shard in shards for document in shard for w in document[2]]
        offsets, starts = [0], []
        for shard in shards:
            for document, sentences, _ in shard:
                starts += [offsets[-1] + s for s in sentences]
                offsets.append(offsets[-1] + len(document))
        assert source.ids.tolist() == ids
        assert source.document_offsets.tolist() == offsets
        assert source.sentence_starts.tolist() == starts
        assert (source.num_tokens, source.num_documents) == (len(ids), len(offsets) - 1)
        everywhere = np.arange(len(ids))[::-1].copy()
        assert source.gather(everywhere).tolist() == ids[::-1]
        assert source.starts_word(everywhere).tolist() == words[::-1]
        assert all(
            shard.ids.itemsize == (2 if vocab_size < 1 << 16 else 4) for shard in source.shards if len(shard.ids)
        )


def test_words_keep_their_places_over_flushes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "_FLUSH_TOKENS", 13)
    generator = np.random.default_rng(0)
    shard = []
    for length in generator.integers(1, 12, 60).tolist():
        shard.append((generator.integers(0, 9, length).tolist(), [0], (generator.random(length) < 0.5).tolist()))
    source = Tokens.open(write(tmp_path / "p", {"a.heldout.00000": shard}, 9), "heldout").sources["a"]
    assert source.starts_word(np.arange(source.num_tokens)).tolist() == [w for d in shard for w in d[2]]
    assert source.ids.tolist() == [i for d in shard for i in d[0]]


def test_splits_and_sources_stay_apart(tmp_path: Path) -> None:
    one = ([1, 2], [0], [True, True])
    shards = {"a.b.train.00000": [one], "c.train.00000": [one, one], "c.heldout.00000": [one]}
    folder = write(tmp_path / "p", shards, 10)
    opened = Tokens.open(folder)
    assert {name: source.num_documents for name, source in opened.sources.items()} == {"a.b": 1, "c": 2}
    assert opened.num_tokens == 6
    assert list(Tokens.open(folder, "heldout").sources) == ["c"]
    assert opened.tokenizer_folder == folder / "tokenizer"
    facts = artifacts.open_artifact(folder, STAGE).counts["shards"][1]
    assert facts["bytes"] == 12


@pytest.mark.parametrize("suffix", ["tokens", "offsets", "sentences", "words"])
def test_damage_is_refused(tmp_path: Path, suffix: str) -> None:
    folder = write(tmp_path / "p", {"a.train.00000": [(list(range(50)), [0, 10, 20], [True] * 50)]}, 100)
    path = folder / f"a.train.00000.{suffix}"
    data = bytearray(path.read_bytes())
    path.write_bytes(bytes(data[:-1]))
    with pytest.raises(DataError, match="damaged"):
        Tokens.open(folder)
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match="damaged"):
        Tokens.open(folder, verify=True)
    path.unlink()
    with pytest.raises(DataError, match="missing"):
        Tokens.open(folder)


def test_a_shard_that_contradicts_its_manifest_is_refused(tmp_path: Path) -> None:
    def fill(aside: Path) -> dict[str, Any]:
        writer = ShardWriter(aside, "a.train.00000", 100)
        writer.add(np.arange(10), [0], np.ones(10, bool))
        return {"shards": [{**writer.close(), "tokens": 5}]}

    artifacts.publish(tmp_path / "p", STAGE, fill)
    with pytest.raises(DataError, match="damaged"):
        Tokens.open(tmp_path / "p")
    with pytest.raises(MissingInputError):
        Tokens.open(tmp_path / "nothing")


def test_sentences_out_of_order_are_found_by_verify(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", {"a.train.00000": [(list(range(10)), [0, 7, 3], [True] * 10)]}, 100)
    Tokens.open(folder)
    with pytest.raises(DataError, match="out of order"):
        Tokens.open(folder, verify=True)


def test_log_frequencies_are_those_of_the_tokens(tmp_path: Path) -> None:
    shards = {"a.train.00000": [([5, 5, 6], [0], [True] * 3)], "a.train.00001": [([5, 7], [0], [True] * 2)]}
    folder = write(tmp_path / "prepared", shards, 10)
    found = Tokens.open(folder).log_frequencies(10)
    counts = np.array([1, 1, 1, 1, 1, 4, 2, 2, 1, 1])
    np.testing.assert_allclose(found, np.log(counts / counts.sum()))
    assert Tokens.open(folder).log_frequencies(10, most=2)[6] < found[6]


def test_the_first_documents_of_every_source_are_whole(tmp_path: Path) -> None:
    document = ([5, 6, 7, 8, 9, 10], [0, 3], [True] * 6)
    shards = {f"{source}.train.0000{n}": [document] * 4 for source in ("a", "b") for n in (0, 1)}
    whole = Tokens.open(write(tmp_path / "p", shards, 1000))
    assert whole.first(None) is whole
    assert whole.first(10_000) is whole
    cut = whole.first(62)  # of 96: five documents of each source, the fifth in its second shard
    for source in cut.sources.values():
        assert (source.num_tokens, source.num_documents, source.num_sentences) == (30, 5, 10)
        assert source.document_offsets.tolist() == [0, 6, 12, 18, 24, 30]
        assert source.gather(np.arange(30)).tolist() == document[0] * 5
        assert source.starts_word(np.arange(30)).all()
    assert cut.fingerprint not in (whole.fingerprint, whole.first(50).fingerprint)
    assert [source.num_documents for source in whole.first(1).sources.values()] == [1, 1]
