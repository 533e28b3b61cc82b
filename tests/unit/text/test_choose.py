"""What needs to know other documents: duplicates, stories, caps, mixes, the held-out split."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remask.text import choose
from remask.text.part import band_shape
from remask.text.settings import DedupSettings, SourceSettings, StoriesSettings, TextSettings
from remask.text.shingles import ngrams, word_hashes
from remask.text.stories import StoryScorer


def corpus(folder: Path, name: str, documents: list[str]) -> SourceSettings:
    path = folder / f"{name}.txt"
    path.write_text("\n\n".join(documents))
    return SourceSettings(name=name, paths=(str(path),), layout="blank")


def test_words_of_any_script() -> None:
    one = word_hashes("The CAT, the cat; 2 好猫 été")
    assert len(one) == 8
    assert (one[:2] == one[2:4]).all()
    assert len(set(one.tolist())) == 6
    assert word_hashes("cat")[0] == one[1]
    assert len(word_hashes("... !!")) == 0
    assert len(ngrams(one, 3)) == 6
    assert len(ngrams(one, 9)) == 0


@given(st.lists(st.sampled_from(["a", "bb", "été", "xyz1"]), min_size=1, max_size=20))
def test_a_word_has_one_hash_wherever_it_stands(words: list[str]) -> None:
    found = word_hashes(" ".join(words))
    assert found.tolist() == [int(word_hashes(word)[0]) for word in words]


def test_exact_duplicates_keep_the_first(tmp_path: Path, texts, build, all_texts) -> None:
    a, b = next(texts), next(texts)
    first, second = corpus(tmp_path, "first", [a, a, b]), corpus(tmp_path, "second", [b, next(texts)])
    documents = build(first, second, dedup=DedupSettings(near="off"))
    assert all_texts(documents)[:2] == [a, b]
    assert documents.counts["sources"]["second"]["dropped"] == {"exact duplicate": 1}
    assert documents.counts["dropped"] == {"exact duplicate": 2}
    all_of_it = build(first, second, dedup=DedupSettings(exact=False, near="off"))
    assert all_of_it.counts["documents"] == 5


def changed(text: str, share: float) -> str:
    words = text.split()
    for index in range(0, int(len(words) * share)):
        words[-1 - index] = f"other{index}"
    return " ".join(words)


def test_near_duplicates_by_their_threshold(tmp_path: Path, texts, build, all_texts) -> None:
    base = [next(texts) for _ in range(40)]
    near = [changed(text, 0.05) for text in base[:20]]
    far = [changed(text, 0.5) for text in base[20:]]
    source = corpus(tmp_path, "a", [*base, *near, *far])
    found = build(source)
    assert found.counts["dropped"] == {"near duplicate": 20}
    assert all_texts(found) == [*base, *far]
    assert build(source, dedup=DedupSettings(near="off")).counts["documents"] == 80
    assert build(source, dedup=DedupSettings(threshold=0.3)).counts["documents"] < 60
    assert build(source, dedup=DedupSettings(ngram=1, threshold=0.5)).counts["documents"] < 60
    few = build(source, dedup=DedupSettings(num_hashes=64))
    assert few.counts["documents"] == 60


def test_bands_find_pairs_at_the_threshold() -> None:
    for threshold in (0.3, 0.5, 0.8, 0.95):
        for num_hashes in (16, 64, 128, 256):
            bands, rows = band_shape(DedupSettings(threshold=threshold, num_hashes=num_hashes))
            assert bands * rows == num_hashes
            assert rows == 1 or 1 - (1 - threshold**rows) ** bands >= 0.9


def test_slices_bound_memory_and_change_nothing(tmp_path: Path, texts, build, monkeypatch) -> None:
    base = [next(texts) for _ in range(60)]
    source = corpus(tmp_path, "a", [*base, *base[:30], *(changed(text, 0.05) for text in base)])
    whole = build(source)
    assert set(whole.counts["dropped"]) == {"exact duplicate", "near duplicate"}
    capped = build(source, max_bytes=9_000)
    assert capped.counts["dropped"]["over the size cap"] > 5
    assert 8_000 < capped.counts["bytes"] <= 9_000
    monkeypatch.setattr(choose, "SLICE_ENTRIES", 10)
    monkeypatch.setattr(choose, "_CHUNK", 16)
    assert build(source).artifact.fingerprint == whole.artifact.fingerprint
    assert build(source, max_bytes=9_000).artifact.fingerprint == capped.artifact.fingerprint
    keys = np.arange(100, dtype=np.uint64) << np.uint64(57)
    slices = list(choose._slices(keys, np.ones(100, bool)))
    assert max(map(len, slices)) <= 10
    assert len(slices) > 8
    assert sorted(np.concatenate(slices).tolist()) == list(range(100))


def test_stories_keep_what_is_close_to_the_seeds(tmp_path: Path, texts, build, all_texts) -> None:
    seeds = (
        "The old man gave the boy his coat because he was cold.",
        "She did not see the dog until it barked at her.",
    )
    story = "When the old man saw the child he gave the boy his coat, because he was cold and she did not see the dog."
    others = [next(texts) for _ in range(9)]
    source = corpus(tmp_path, "a", [*others[:5], story, *others[5:]])
    filtered = source.model_copy(update={"stories": StoriesSettings(seeds=seeds, keep_fraction=0.1)})
    documents = build(filtered)
    assert all_texts(documents) == [story]
    assert documents.counts["dropped"] == {"not story-like": 9}
    scorer = StoryScorer(StoriesSettings(seeds=seeds))
    assert scorer.score(word_hashes(story)) > scorer.score(word_hashes("The old market was cold.")) > 0
    assert scorer.score(word_hashes("")) == 0


def test_caps_are_samples_and_smaller_ones_are_part_of_larger_ones(tmp_path: Path, texts, build, all_texts) -> None:
    source = corpus(tmp_path, "a", [next(texts) for _ in range(100)])
    large = build(source.model_copy(update={"max_bytes": 20_000}))
    small = build(source.model_copy(update={"max_bytes": 8_000}))
    assert small.counts["bytes"] <= 8_000 < large.counts["bytes"] <= 20_000
    assert set(all_texts(small)) < set(all_texts(large))
    assert small.counts["documents"] + small.counts["dropped"]["over the size cap"] == 100
    whole = build(source, max_bytes=10_000)
    assert 9_000 < whole.counts["bytes"] <= 10_000


def test_weights_are_shares_of_the_bytes(tmp_path: Path, texts, build) -> None:
    a = corpus(tmp_path, "a", [next(texts) for _ in range(150)]).model_copy(update={"weight": 3.0})
    b = corpus(tmp_path, "b", [next(texts) for _ in range(150)]).model_copy(update={"weight": 1.0})
    mixed = build(a, b).counts["sources"]
    assert mixed["a"]["documents"] >= 148
    assert mixed["a"]["bytes"] / mixed["b"]["bytes"] == pytest.approx(3, rel=0.03)
    small = build(a, b, max_bytes=20_000).counts
    assert 18_000 < small["bytes"] <= 20_000
    assert small["sources"]["a"]["bytes"] / small["sources"]["b"]["bytes"] == pytest.approx(3, rel=0.1)


def test_sources_must_fit_together() -> None:
    one, two = SourceSettings(name="a", paths=("x",), weight=1.0), SourceSettings(name="b", paths=("x",))
    with pytest.raises(ValueError, match="b has no weight"):
        TextSettings(sources=(one, two))
    with pytest.raises(ValueError, match="given twice"):
        TextSettings(sources=(one, one))


def test_held_out_documents_stay_so_when_others_are_added(tmp_path: Path, texts, build) -> None:
    documents = [next(texts) for _ in range(300)]

    def held_out(found) -> set[str]:
        return {text for shard in found.of("heldout") for text in shard.texts()}

    few = build(corpus(tmp_path, "a", documents[:200]), heldout_fraction=0.2)
    more = build(corpus(tmp_path, "a", documents[::-1]), heldout_fraction=0.2)
    assert 20 < len(held_out(few)) < 60
    assert held_out(few) == held_out(more) & set(documents[:200])
    other = build(corpus(tmp_path, "a", documents[:200]), heldout_fraction=0.2, seed=1)
    assert held_out(other) != held_out(few)
    splits = Counter(shard.split for shard in few.shards)
    assert splits == {"train": 1, "heldout": 1}
    assert not build(corpus(tmp_path, "a", documents[:50]), heldout_fraction=0.0).of("heldout")


def test_few_documents_always_leave_something_held_out(tmp_path: Path, texts, build) -> None:
    documents = [next(texts) for _ in range(37)]
    built = build(corpus(tmp_path, "a", documents), heldout_fraction=0.000001)
    assert [len(shard) for shard in built.of("heldout")] == [1]
    assert built.counts["documents"] == 37
    assert not build(corpus(tmp_path, "a", documents), heldout_fraction=0.0).of("heldout")


def test_of_one_long_document_a_passage_is_held_out(tmp_path: Path, texts, build, all_texts, capsys) -> None:
    (tmp_path / "book.txt").write_text(text := " ".join(next(texts) for _ in range(40)))
    source = SourceSettings(paths=(str(tmp_path / "book.txt"),), layout="file")
    built = build(source, heldout_fraction=0.01)
    train, held = (next(iter(built.of(split)[0].texts())) for split in ("train", "heldout"))
    assert f"{train} {held}" == text
    assert 0.03 < len(held) / len(text) < 0.2
    assert held.startswith("Document ")
    assert built.of("heldout")[0].sentence_starts(0)[0] == 0
    assert built.counts["documents"] + sum(built.counts["dropped"].values()) == built.counts["read"] == 2
    assert built.counts["changed"] == {"passage held out": 1}
    (tmp_path / "book.txt").write_text("One sentence only")
    assert not build(source, heldout_fraction=0.01).of("heldout")
    assert "no text is held out" in capsys.readouterr().err
