"""Which documents of all parts are kept: first of its duplicates, story-like enough, within the source's share.

One pass over small files in input order, so the answer does not depend on who made which part. Memory is bounded:
hashes are looked at in slices of their value range, and everything that has an entry for each document is mapped
from disk. In: parts (part.py). Out: a byte for each document, its fate.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from remask import signals
from remask.artifacts import output_errors
from remask.documents import DocumentShard
from remask.errors import DataError
from remask.text.part import NAME, band_shape
from remask.text.settings import DedupSettings, TextSettings

# PASSAGE: the end of the document is held out, the rest of it is trained on. All up to here are kept.
TRAIN, HELDOUT, PASSAGE, EXACT, NEAR, STORY, SHARE = range(7)
REASONS = {EXACT: "exact duplicate", NEAR: "near duplicate", STORY: "not story-like", SHARE: "over the size cap"}
# Entries that are sorted at a time: about 100 MB with what sorting needs.
SLICE_ENTRIES = 2_000_000
_CHUNK = 1 << 18
_FEW = 10  # where nothing is held out by hash, a document of at most a tenth of the text may be
_PASSAGE_BYTES = 16_384  # wanted of a passage that is held out, if that is no more than a tenth of the text


@dataclass(frozen=True)
class PlacedPart:
    """A part and where its documents stand among all."""

    folder: Path
    source: int
    first: int
    count: int

    @property
    def shard(self) -> DocumentShard:
        return DocumentShard(self.folder, NAME)


def choose(parts: list[PlacedPart], settings: TextSettings, work: Path) -> np.ndarray:
    """The fate of every document, in input order (a mapped array)."""
    total = sum(part.count for part in parts)
    with output_errors(work):
        fates = _mapped(work / "fates", np.uint8, total)
        fates[:] = TRAIN
        if total == 0:
            return fates
        hashes = _joined(parts, "hashes", "<u8", 2, work / "hashes")
        if settings.dedup.exact:
            _mark_exact(hashes, fates)
        if settings.dedup.near == "minhash":
            _mark_near(parts, settings.dedup, fates, work)
        for source in range(len(settings.sources)):
            _mark_stories(parts, source, settings, fates)
        _mark_shares(parts, settings, hashes, fates, work)
        _mark_heldout(hashes, settings.heldout_fraction, fates)
        if settings.heldout_fraction > 0 and not (fates == HELDOUT).any():
            _hold_something_out(parts, settings.heldout_fraction, hashes, fates)
    return fates


def _mapped(path: Path, dtype: npt.DTypeLike, count: int) -> np.ndarray:
    return np.memmap(path, dtype, "w+", shape=(count,)) if count else np.zeros(0, dtype)


def _joined(parts: list[PlacedPart], name: str, dtype: str, width: int, out: Path) -> np.ndarray:
    """One file of all parts' entries, one after the other, mapped."""
    with out.open("wb") as file:
        for part in parts:
            with (part.folder / name).open("rb") as data:
                shutil.copyfileobj(data, file, 1 << 20)
        assert file.tell() == sum(part.count for part in parts) * width * np.dtype(dtype).itemsize, name
    return np.memmap(out, dtype, "r").reshape(-1, width)


def _slices(keys: np.ndarray, wanted: np.ndarray) -> Iterator[np.ndarray]:
    """Entry numbers whose key lies in each slice of the value range, ascending; together all wanted ones. One slice is
    held at a time."""
    num_slices = 1
    while len(keys) / num_slices > SLICE_ENTRIES:
        num_slices *= 2
    shift = np.uint64(64 - (num_slices.bit_length() - 1))
    for index in range(num_slices):
        pieces = []
        for start in range(0, len(keys), _CHUNK):
            chunk = keys[start : start + _CHUNK]
            inside = wanted[start : start + _CHUNK].copy()
            if num_slices > 1:
                inside &= (chunk >> shift) == np.uint64(index)
            pieces.append(np.flatnonzero(inside) + start)
        yield np.concatenate(pieces)


def _mark_exact(hashes: np.ndarray, fates: np.ndarray) -> None:
    for entries in _slices(hashes[:, 0], np.asarray(fates == TRAIN)):
        high, low = hashes[entries, 0], hashes[entries, 1]
        order = np.lexsort((entries, low, high))
        high, low = high[order], low[order]
        again = np.flatnonzero((high[1:] == high[:-1]) & (low[1:] == low[:-1])) + 1
        fates[entries[order[again]]] = EXACT


# ------------------------------------------------------------------------------------------ near duplicates


def _mark_near(parts: list[PlacedPart], settings: DedupSettings, fates: np.ndarray, work: Path) -> None:
    """Documents that share a band and enough of their signature are the same; of each cluster the first is kept."""
    signatures = _joined(parts, "signatures", "<u4", settings.num_hashes, work / "signatures")
    parents = _mapped(work / "parents", np.int64, len(fates))
    parents[:] = np.arange(len(fates))
    num_bands, _ = band_shape(settings)
    wanted = np.asarray(fates == TRAIN)
    least = settings.threshold * settings.num_hashes
    for band in range(num_bands):
        signals.check()
        keys = _band_keys(parts, band, num_bands, work / "keys")
        for entries in _slices(keys, wanted & (keys != 0)):
            for first, second in _candidates(keys[entries], entries):
                same = _agreement(signatures, first, second) >= least
                for left, right in zip(first[same].tolist(), second[same].tolist(), strict=True):
                    _unite(parents, left, right)
    for start in range(0, len(fates), _CHUNK):
        chunk = np.arange(start, min(start + _CHUNK, len(fates)))
        for index in chunk[parents[chunk] != chunk].tolist():
            fates[index] = NEAR


def _band_keys(parts: list[PlacedPart], band: int, num_bands: int, out: Path) -> np.ndarray:
    with out.open("wb") as file:
        for part in parts:
            if part.count:
                keys = np.memmap(part.folder / "bands", "<u8", "r", shape=(num_bands, part.count))
                file.write(keys[band].tobytes())
    return np.memmap(out, "<u8", "r")


def _candidates(keys: np.ndarray, entries: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs with the same key: each with the first of its group and with the one before it."""
    order = np.lexsort((entries, keys))
    keys, entries = keys[order], entries[order]
    same = np.flatnonzero(keys[1:] == keys[:-1]) + 1
    if len(same) == 0:
        return []
    group_starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    first = group_starts[np.searchsorted(group_starts, same, side="right") - 1]
    return [(entries[first], entries[same]), (entries[same - 1], entries[same])]


def _agreement(signatures: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    counts = np.zeros(len(first), np.int64)
    for start in range(0, len(first), 8192):
        stop = start + 8192
        counts[start:stop] = (signatures[first[start:stop]] == signatures[second[start:stop]]).sum(axis=1)
    return counts


def _root(parents: np.ndarray, index: int) -> int:
    while (parent := int(parents[index])) != index:
        parents[index] = parents[parent]
        index = int(parents[index])
    return index


def _unite(parents: np.ndarray, first: int, second: int) -> None:
    first, second = _root(parents, first), _root(parents, second)
    if first != second:
        parents[max(first, second)] = min(first, second)


# ---------------------------------------------------------------------------------- stories, shares, held out


def _mark_stories(parts: list[PlacedPart], source: int, settings: TextSettings, fates: np.ndarray) -> None:
    """The best-scored part of what is left of the source; ties go to the earlier document."""
    stories = settings.sources[source].stories
    mine = [part for part in parts if part.source == source and part.count]
    if stories is None or not mine:
        return
    scores = np.concatenate([np.fromfile(part.folder / "scores", "<f8") for part in mine])
    entries = np.concatenate([np.arange(part.first, part.first + part.count) for part in mine])
    left = fates[entries] == TRAIN
    scores, entries = scores[left], entries[left]
    keep = int(np.ceil(stories.keep_fraction * len(entries)))
    order = np.lexsort((entries, -scores))
    fates[entries[order[keep:]]] = STORY
    fates[entries[scores <= 0]] = STORY


def _mark_shares(
    parts: list[PlacedPart], settings: TextSettings, hashes: np.ndarray, fates: np.ndarray, work: Path
) -> None:
    """Size caps and the mix: each source keeps the documents with the smallest hashes up to its number of bytes, so a
    smaller cap is always a subset of a larger one."""
    if settings.max_bytes is None and all(s.max_bytes is None and s.weight is None for s in settings.sources):
        return
    sizes = _mapped(work / "sizes", np.int64, len(fates))
    available = [0] * len(settings.sources)
    for part in parts:
        mine = slice(part.first, part.first + part.count)
        sizes[mine] = np.diff(part.shard.offsets)
        available[part.source] += int(sizes[mine][fates[mine] == TRAIN].sum())
    for source, limit in enumerate(byte_limits(settings, available)):
        if limit >= available[source]:
            continue
        wanted = np.zeros(len(fates), bool)
        for part in (part for part in parts if part.source == source):
            mine = slice(part.first, part.first + part.count)
            wanted[mine] = fates[mine] == TRAIN
        taken = 0
        for entries in _slices(hashes[:, 0], wanted):  # slices of the hash's range, from the smallest on
            entries = entries[np.lexsort((entries, hashes[entries, 0]))]
            total = taken + np.cumsum(sizes[entries])
            fates[entries[total > limit]] = SHARE
            taken = int(total[-1]) if len(total) else taken


def byte_limits(settings: TextSettings, available: list[int]) -> list[int]:
    """How many bytes each source may give: its cap, and its share of the mix without repeating anything."""
    limits = [min(size, source.max_bytes or size) for source, size in zip(settings.sources, available, strict=True)]
    if settings.sources and settings.sources[0].weight is not None:
        weights = [source.weight or 0.0 for source in settings.sources]
        if 0 in limits:
            name = settings.sources[limits.index(0)].name
            raise DataError(f"sources: {name} gave no text, so no mix has its share of it; remove it from the sources")
        total = min(limit / weight for limit, weight in zip(limits, weights, strict=True))
        if settings.max_bytes is not None:
            total = min(total, settings.max_bytes / sum(weights))
        return [int(total * weight) for weight in weights]
    if settings.max_bytes is not None and sum(limits) > settings.max_bytes:
        return [limit * settings.max_bytes // sum(limits) for limit in limits]
    return limits


def _hold_something_out(parts: list[PlacedPart], fraction: float, hashes: np.ndarray, fates: np.ndarray) -> None:
    """For few documents, none of which was held out by its hash: the share of the bytes in those with the smallest
    hashes that are no large part of the text, or else a passage of the longest document."""
    sizes = _kept_sizes(parts, fates)
    total = int(sizes.sum())
    small = np.flatnonzero((sizes > 0) & (sizes <= total // _FEW))
    small = small[np.argsort(hashes[small, 1], kind="stable")]
    if len(small):
        held = np.cumsum(sizes[small])
        fates[small[: 1 + int(np.searchsorted(held, min(fraction * total, total / _FEW)))]] = HELDOUT
        return
    longest = int(np.argmax(sizes))
    if sizes[longest] and _passage_start(*_located(parts, longest), total, fraction):
        fates[longest] = PASSAGE


def _kept_sizes(parts: list[PlacedPart], fates: np.ndarray) -> np.ndarray:
    """Bytes of each document; 0 for those that are not kept."""
    sizes = [np.diff(part.shard.offsets) for part in parts if part.count]
    return np.where(fates <= PASSAGE, np.concatenate([*sizes, np.zeros(0, np.int64)]), 0)


def _located(parts: list[PlacedPart], entry: int) -> tuple[PlacedPart, int]:
    part = next(part for part in parts if part.first <= entry < part.first + part.count)
    return part, entry - part.first


def _passage_start(part: PlacedPart, index: int, total: int, fraction: float) -> int:
    """Where the held-out end of a document begins, at the start of a sentence; 0 if it has only one."""
    length = int(part.shard.offsets[index + 1] - part.shard.offsets[index])
    wanted = length - max(fraction * total, min(total / _FEW, _PASSAGE_BYTES))
    starts = part.shard.sentence_starts(index)[1:]
    before = starts[starts <= wanted]
    return int(before[-1]) if len(before) else int(starts[0]) if len(starts) else 0


def heldout_passages(parts: list[PlacedPart], fates: np.ndarray, fraction: float) -> dict[int, int]:
    """Entry -> byte of the document at which its held-out passage begins."""
    entries = np.flatnonzero(fates == PASSAGE).tolist()
    total = int(_kept_sizes(parts, fates).sum()) if entries else 0
    return {entry: _passage_start(*_located(parts, entry), total, fraction) for entry in entries}


def _mark_heldout(hashes: np.ndarray, fraction: float, fates: np.ndarray) -> None:
    """By the other half of the hash, so that neither caps nor added documents move one from split to split."""
    bound = np.uint64(min(int(fraction * 2.0**64), 2**64 - 1))
    for start in range(0, len(fates), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        out = (hashes[chunk, 1] < bound) & (fates[chunk] == TRAIN)
        fates[chunk][out] = HELDOUT
