"""Every input format against its definition, on random documents, shards and chunk sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remask.data import examples as examples_module
from remask.data import pairs as pairs_module
from remask.data.examples import BOS, EOS, NO_LABEL, Examples, Recipe
from remask.data.index import build_examples
from remask.data.packing import pack
from remask.data.settings import PAIRS
from remask.data.tokens import Shard, SourceTokens

LENGTH = 16


def recipe_of(format: str, **changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "format": format,
        "sentence_loss": "none",
        "length": LENGTH,
        "bert_layout": False,
        "pack_documents": False,
        "shorten_prob": 0.0,
        "shorten_to": 8,
        "seed": 1,
    }
    return Recipe(**{**values, **changes})


def source_of(documents: list[list[int]], num_shards: int = 1) -> SourceTokens:
    """A source in memory from sentence lengths; token i has id i, so that positions can be recognised."""
    shards, token_base, document_base = [], 0, 0
    for part in np.array_split(np.arange(len(documents)), num_shards):
        sizes = [documents[i] for i in part]
        offsets = np.cumsum([0, *[sum(size) for size in sizes]])
        starts = np.cumsum([0, *[n for size in sizes for n in size]])[:-1]
        ids = np.arange(token_base, token_base + offsets[-1])
        words = np.full(-(-len(ids) // 8), 255, np.uint8)
        shards.append(Shard(f"s{len(shards)}", ids, offsets, starts, words, token_base, document_base))
        token_base += len(ids)
        document_base += len(sizes)
    return SourceTokens("s", shards)


def rows_of(examples: Examples) -> Iterator[list[tuple[int, int]]]:
    """The pieces of each row as (first token, end)."""
    for row in range(len(examples)):
        at = slice(examples.rows[row], examples.rows[row + 1])
        yield [(s, s + n) for s, n in zip(examples.starts[at].tolist(), examples.lengths[at].tolist(), strict=True)]


def facts_of(documents: list[list[int]], limit: int) -> tuple[set[int], dict[int, int], list[int], int]:
    """Boundaries of (cut) sentences, the document of every token, document starts, sentences that are cut."""
    bounds, owner, firsts, cut, at = {0}, {}, [], 0, 0
    for number, document in enumerate(documents):
        if document:
            firsts.append(at)
        for size in document:
            for part in range(0, size, limit):
                bounds.add(at + min(part + limit, size))
            cut += size > limit
            for token in range(at, at + size):
                owner[token] = number
            at += size
    return bounds, owner, firsts, cut


sizes = st.lists(st.lists(st.integers(1, 22), max_size=6), max_size=12)
shards = st.integers(1, 3)


@settings(max_examples=150, deadline=None)
@given(sizes, shards, st.sampled_from(["full-sentences", "doc-sentences"]), st.booleans())
def test_rows_of_whole_sentences(documents: list[list[int]], num_shards: int, format: str, chunked: bool) -> None:
    source = source_of(documents, num_shards)
    recipe = recipe_of(format)
    with pytest.MonkeyPatch.context() as patch:
        if chunked:
            patch.setattr(examples_module, "CHUNK_SENTENCES", 20)
        examples = build_examples(source, recipe)
    limit = LENGTH - 2
    bounds, owner, firsts, cut = facts_of(documents, limit)
    assert examples.counts["cut_sentences"] == cut
    rows = list(rows_of(examples))
    assert [t for row in rows for a, b in row for t in range(a, b)] == list(range(source.num_tokens))
    ordered = sorted(bounds)
    for number, row in enumerate(rows):
        text = sum(b - a for a, b in row)
        assert examples.sizes[number] == text + len(row) + 1 <= LENGTH
        assert row[0][0] in bounds
        assert row[-1][1] in bounds
        for a, b in row:
            assert len({owner[t] for t in range(a, b)}) == 1
        assert [a for a, _ in row[1:]] == [f for f in firsts if row[0][0] < f < row[-1][1]]
        end = row[-1][1]
        if end == source.num_tokens:
            continue
        following = next(b for b in ordered if b > end) - end
        new_document = end in firsts
        if format == "doc-sentences":
            assert len(row) == 1
            assert new_document or text + following > limit, "the next sentence would have fit"
        else:
            assert text + len(row) - 1 + new_document + following > limit, "the next sentence would have fit"


@settings(max_examples=100, deadline=None)
@given(sizes, shards, st.integers(4, 20), st.sampled_from([1, 3, 1 << 18]))
def test_fixed_blocks_are_those_of_run_mlm(documents: list[list[int]], num_shards: int, length: int, part: int) -> None:
    source = source_of(documents, num_shards)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examples_module, "CHUNK_BLOCKS", part)
        examples = build_examples(source, recipe_of("fixed-blocks", length=length))
    line, at = [], 0
    for document in documents:
        if document:
            line += ["<s>", *range(at, at + sum(document)), "</s>"]
        at += sum(document)
    kept = len(line) // length * length if len(line) >= length else len(line)
    blocks = [line[i : i + length] for i in range(0, kept, length)]
    found = []
    for row, pieces in enumerate(rows_of(examples)):
        block: list[Any] = []
        for (a, b), flags in zip(pieces, examples.flags[examples.rows[row] :], strict=False):
            block += ["<s>"] * bool(flags & BOS) + list(range(a, b)) + ["</s>"] * bool(flags & EOS)
        found.append(block)
    assert found == blocks
    assert examples.sizes.tolist() == [len(block) for block in blocks]
    assert examples.counts["dropped_tokens"] == len(line) - kept


@settings(max_examples=150, deadline=None)
@given(
    sizes, shards, st.sampled_from(["segment-pair", "sentence-pair"]), st.sampled_from(["none", "sop"]), st.booleans()
)
def test_consecutive_pairs(
    documents: list[list[int]], num_shards: int, format: str, loss: str, bert_layout: bool
) -> None:
    source = source_of(documents, num_shards)
    recipe = recipe_of(format, sentence_loss=loss, bert_layout=bert_layout)
    examples = build_examples(source, recipe)
    bounds, owner, firsts, cut = facts_of(documents, recipe.text_limit // 2)
    assert examples.counts["cut_sentences"] == cut
    seen: list[int] = []
    ends = set(firsts) | {source.num_tokens}
    for number, row in enumerate(rows_of(examples)):
        label = 1 if examples.labels is None else examples.labels[number]
        if len(row) == 1:
            assert examples.labels is None or label == NO_LABEL
            assert row[0][1] in ends, "only a document's last sentence is alone"
        else:
            first, second = row if label == 1 else row[::-1]
            assert first[1] == second[0]
        ordered = sorted(row)
        assert all(edge in bounds for piece in row for edge in piece)
        seen += [t for a, b in ordered for t in range(a, b)]
        assert len({owner[t] for t in seen[-(ordered[-1][1] - ordered[0][0]) :]}) == 1
        text = sum(b - a for a, b in row)
        assert examples.sizes[number] == text + (2 if len(row) == 1 else recipe.num_specials) <= LENGTH
        if format == "sentence-pair":
            assert all(sum(1 for bound in bounds if a < bound <= b) == 1 for a, b in row)
        elif len(row) == 2 and ordered[-1][1] not in ends:
            following = min(b for b in bounds if b > ordered[-1][1]) - ordered[-1][1]
            assert text + following > recipe.text_limit, "the next sentence would have fit"
    assert seen == list(range(source.num_tokens))


@settings(max_examples=150, deadline=None)
@given(sizes, shards, st.sampled_from(["segment-pair", "sentence-pair"]), st.booleans())
def test_next_sentence_pairs(documents: list[list[int]], num_shards: int, format: str, chunked: bool) -> None:
    documents = [*documents, [3, 4], [5]]  # at least two documents
    source = source_of(documents, num_shards)
    recipe = recipe_of(format, sentence_loss="nsp")
    with pytest.MonkeyPatch.context() as patch:
        if chunked:
            patch.setattr(examples_module, "CHUNK_SENTENCES", 20)
        examples = build_examples(source, recipe)
    bounds, owner, _, cut = facts_of(documents, recipe.text_limit // 2)
    whole, _, _, _ = facts_of(documents, 1000)
    assert examples.labels is not None
    seen: list[int] = []
    broken = 0
    for number, row in enumerate(rows_of(examples)):
        first, second = row
        assert first[0] in bounds
        assert first[1] in bounds
        seen += range(*first)
        assert len({owner[t] for t in range(*second)}) == 1
        if examples.labels[number] == 1:
            assert first[1] == second[0]
            assert owner[second[0]] == owner[first[0]]
            seen += range(*second)
        else:
            assert owner[second[0]] != owner[first[0]]
            assert second[0] in whole
            broken += second[1] not in whole
        assert examples.sizes[number] == sum(b - a for a, b in row) + 4 <= LENGTH
        assert all(b > a for a, b in row)
        if format == "sentence-pair":
            assert sum(1 for bound in bounds if first[0] < bound <= first[1]) == 1
            assert sum(1 for bound in whole if second[0] < bound < second[1]) == 0
    assert seen == list(range(source.num_tokens)), "a displaced second part must start the next row"
    assert examples.counts["cut_sentences"] == cut, "of the text, not of what is drawn from it again and again"
    assert examples.counts["cut_negatives"] == broken


@settings(max_examples=100, deadline=None)
@given(
    sizes,
    shards,
    st.sampled_from(["full-sentences", "doc-sentences", "segment-pair", "sentence-pair"]),
    st.sampled_from(["none", "nsp", "sop"]),
    st.sampled_from([0.0, 0.5]),
)
def test_reading_in_runs_changes_nothing(
    documents: list[list[int]], num_shards: int, format: str, loss: str, shorten_prob: float
) -> None:
    documents = [*documents, [3, 4], [5]]
    loss = loss if format in PAIRS else "none"
    recipe = recipe_of(format, sentence_loss=loss, shorten_prob=shorten_prob)
    found = []
    for run in (20, 33, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(examples_module, "CHUNK_SENTENCES", run)
            patch.setattr(pairs_module, "_CALIBRATION_SENTENCES", 5)
            found.append(build_examples(source_of(documents, num_shards), recipe))
    for other in found[:-1]:
        assert other.counts == found[-1].counts
        for name in ("rows", "starts", "lengths", "sizes", "labels"):
            assert np.array_equal(getattr(other, name), getattr(found[-1], name)), name


def many_documents(seed: int, count: int, sentences: int, words: int) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(1, words, generator.integers(1, sentences)).tolist() for _ in range(count)]


@pytest.mark.parametrize("format", ["segment-pair", "sentence-pair"])
@pytest.mark.parametrize("sentences", [4, 40])
def test_half_of_the_pairs_are_real(format: str, sentences: int) -> None:
    """Also where documents are so short that many rows can only be negatives."""
    source = source_of(many_documents(0, 20_000 // sentences, sentences, 12), 2)
    for loss in ("nsp", "sop"):
        examples = build_examples(source, recipe_of(format, sentence_loss=loss, length=32))
        assert examples.labels is not None
        labels = examples.labels[examples.labels != NO_LABEL]
        assert abs(labels.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(labels))
        assert examples.counts["real_pairs"] + examples.counts["false_pairs"] == len(labels)


def test_false_continuations_come_from_all_documents() -> None:
    documents = [[3, 3, 3]] * 41
    examples = build_examples(source_of(documents * 1, 3), recipe_of("sentence-pair", sentence_loss="nsp"))
    counts = np.zeros(41)
    for seed in range(400):
        examples = build_examples(source_of(documents, 3), recipe_of("sentence-pair", sentence_loss="nsp", seed=seed))
        second = examples.starts[1::2][examples.labels == 0]
        counts += np.bincount(second // 9, minlength=41)
    expected = counts.sum() / 41
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 40 + 5 * np.sqrt(80)


def test_the_coin_and_the_cut_follow_the_seed() -> None:
    source = source_of(many_documents(1, 50, 10, 8))
    one, same, other = (
        build_examples(source, recipe_of("segment-pair", sentence_loss="nsp", length=64, seed=seed))
        for seed in (1, 1, 2)
    )
    assert np.array_equal(one.starts, same.starts)
    assert not np.array_equal(one.starts[:50], other.starts[:50])


@pytest.mark.parametrize("format", ["full-sentences", "doc-sentences", "segment-pair"])
def test_randomly_shortened_rows(format: str) -> None:
    generator = np.random.default_rng(2)
    source = source_of([generator.integers(1, 4, 200_000).tolist()])
    full = build_examples(source, recipe_of(format, length=128))
    # Sentences have up to 3 tokens: a row that aims at n ends within 3 of it; only the last one is shorter.
    assert (full.sizes[:-1] > 125).all()
    for prob in (0.1, 1.0):
        examples = build_examples(source, recipe_of(format, length=128, shorten_prob=prob, shorten_to=8))
        short = examples.sizes[:-1][examples.sizes[:-1] <= 125]
        expected = prob * 118 / 121
        assert abs(len(short) / len(examples) - expected) < 4 * np.sqrt(0.25 / len(examples)) + 0.01
        counts, _ = np.histogram(short, bins=4, range=(9, 125))
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 3 + 5 * np.sqrt(6) + 0.01 * len(short)
    text = np.sort(np.concatenate([np.arange(a, b) for row in rows_of(examples) for a, b in row]))
    assert np.array_equal(text, np.arange(source.num_tokens))


@settings(max_examples=80, deadline=None)
@given(sizes, shards)
def test_packed_documents(documents: list[list[int]], num_shards: int) -> None:
    source = source_of(documents, num_shards)
    plain = build_examples(source, recipe_of("doc-sentences"))
    packed = build_examples(source, recipe_of("doc-sentences", pack_documents=True))
    before = sorted(zip(plain.starts.tolist(), plain.lengths.tolist(), strict=True))
    assert sorted(zip(packed.starts.tolist(), packed.lengths.tolist(), strict=True)) == before
    assert len(packed) <= len(plain)
    for number, row in enumerate(rows_of(packed)):
        assert packed.sizes[number] == sum(b - a + 2 for a, b in row) <= LENGTH


def test_packing_wastes_next_to_nothing() -> None:
    generator = np.random.default_rng(0)
    lengths = np.minimum(generator.geometric(0.01, 20_000), 510)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    plain = Examples(np.arange(20_001), starts, lengths.astype(np.int32), (lengths + 2).astype(np.int32))
    packed = pack(plain, 512)
    assert packed.sizes.max() <= 512
    assert packed.sizes.sum() == plain.sizes.sum()
    assert packed.sizes.mean() > 0.99 * 512
