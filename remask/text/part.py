"""One task of the text stage: some portions of a source -> cleaned documents on disk, with what is needed to choose.

Everything that looks at one document alone happens here, on any number of processes or machines. A part is a folder
in the work folder, written aside and renamed, so that it is there whole or not at all: an attempt that was killed
loses only the tasks that were running. Not here: what compares documents with each other (choose.py).

Files of a part: those of documents.py, and for each document `hashes` (2 x uint64 of its text), `bands` (uint64,
bands x documents: equal where near duplicates may be), `signatures` (uint32, documents x hashes), `scores` (float64).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import rensa

from remask import artifacts, signals
from remask.artifacts import output_errors
from remask.documents import DocumentWriter
from remask.schema import Json
from remask.text import stories
from remask.text.clean import normalise, reason_not_to_clean, reason_to_drop, wrong_language
from remask.text.records import TOO_SLOW, Document, Drop, Portion, Reading, Steps
from remask.text.sentences import sentence_starts
from remask.text.settings import DedupSettings, Layout, SourceSettings, TextSettings
from remask.text.shingles import mix, ngrams, word_hashes
from remask.text.sources import read_portion

NAME = "part"
FACTS = "facts.json"
MAX_SAMPLES = 100  # drops of one reason that are kept with their place
_SIGNATURE_SEED = 20190726
_MARK_FILES = ("hashes", "scores", "signatures", "keys")
_BATCH_GRAMS = 1 << 20  # n-grams held before they become signatures


@dataclass(frozen=True)
class PartTask:
    """What a worker is handed."""

    folder: Path
    portions: tuple[Portion, ...]
    settings: TextSettings
    layouts: tuple[Layout, ...]
    seed: int
    passed_over: frozenset[int] = frozenset()  # steps that took too long in an earlier attempt

    def without(self, step: int) -> PartTask:
        return replace(self, passed_over=self.passed_over | {step})


@dataclass
class Tally:
    """Counts of a part; `samples` are drops with their place: the first of every reason, and all that are files."""

    read: int = 0
    unread: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    samples: list[Json] = field(default_factory=list)

    def drop(self, drop: Drop) -> None:
        self.dropped[drop.reason] += 1
        self.unread += drop.unread
        if drop.is_file or self.dropped[drop.reason] <= MAX_SAMPLES:
            sample = {"reason": drop.reason, "place": drop.place, "detail": drop.detail}
            sample |= {"is_file": drop.is_file, "unread": drop.unread}
            self.samples.append({key: value for key, value in sample.items() if value})


def band_shape(settings: DedupSettings) -> tuple[int, int]:
    """(bands, rows): the most rows a band that still find nine in ten pairs at the threshold; candidates are checked
    against the whole signature, so more bands cost time and nothing else."""
    rows = 1
    while settings.num_hashes % (rows * 2) == 0 and rows < 16:
        bands = settings.num_hashes // (rows * 2)
        if 1 - (1 - settings.threshold ** (rows * 2)) ** bands < 0.9:
            break
        rows *= 2
    return settings.num_hashes // rows, rows


def make_part(task: PartTask) -> Json:
    """Run a task unless an earlier attempt did; the facts say what came of it."""
    if (counts := artifacts.finished(task.folder / FACTS)) is not None:
        return counts
    aside = task.folder.with_name(f".{task.folder.name}.partial")
    with output_errors(task.folder):
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
    counts = _fill(task, aside)
    artifacts.finish(aside / FACTS, counts)  # the folder is renamed as a whole, so no checksums are needed
    with output_errors(task.folder):
        shutil.rmtree(task.folder, ignore_errors=True)
        aside.rename(task.folder)
    return counts


def _fill(task: PartTask, aside: Path) -> Json:
    tally = Tally()
    with DocumentWriter(aside, NAME) as writer, ExitStack() as files:
        marks = _Marks(aside, files, task.settings.dedup, task.seed)
        source = task.settings.sources[task.portions[0].source]
        scorer = stories.StoryScorer(source.stories) if source.stories else None
        for document in _documents(task, tally):
            starts = sentence_starts(document.text, task.settings.sentences)
            writer.add(document.text, starts, document.place)
            marks.add(document.text, scorer)
        counts = writer.close()
        marks.close()
    return {
        "source": task.portions[0].source,
        "read": tally.read,
        "unread": tally.unread,
        "dropped": dict(sorted(tally.dropped.items())),
        "changed": dict(sorted(tally.changed.items())),
        "samples": tally.samples,
        **counts,
    }


def _documents(task: PartTask, tally: Tally) -> Iterator[Document]:
    """The documents that are fine as far as each alone can tell."""
    settings = task.settings
    steps = Steps(task.passed_over)
    for portion in task.portions:
        source = settings.sources[portion.source]
        reading = Reading(source, settings.reading, task.layouts[portion.source], tally.changed, steps)
        for record in _records(portion, reading):
            signals.check()  # a part can take minutes; stopped here it is made again
            tally.read += 1
            kept = record if isinstance(record, Drop) else _cleaned(record, settings, source, tally, steps)
            if isinstance(kept, Drop):
                tally.drop(kept)
            else:
                yield kept


def _records(portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    """Those of the portion, up to one that the reader cannot get past in time."""
    records = read_portion(portion, reading)
    while True:
        # One record may be all that comes out of a compressed file, which takes time without being hard to read.
        unpacked = portion.size * reading.source.max_expansion if portion.compression else 0
        if reading.steps.is_passed_over(portion.size, unpacked):
            yield Drop(TOO_SLOW, portion.place, "the rest of the file is not read")
            return
        record = next(records, None)
        if record is None:
            return
        yield record


def _cleaned(
    record: Document, settings: TextSettings, source: SourceSettings, tally: Tally, steps: Steps
) -> Document | Drop:
    if steps.is_passed_over(len(record.text)):
        return Drop(TOO_SLOW, record.place)
    text = _encodable(record.text, tally)
    if reason := reason_not_to_clean(text):
        return Drop(reason, record.place)
    text = normalise(text, settings.cleaning)
    if reason := reason_to_drop(text, settings.cleaning):
        return Drop(reason, record.place)
    keep = settings.language.keep if source.languages is None else source.languages
    if keep and (language := wrong_language(text, keep, settings.language)):
        return Drop("language", record.place, language)
    return Document(text, record.place, source.name)


def _encodable(text: str, tally: Tally) -> str:
    """Half a surrogate pair, as some formats can hold, is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        tally.changed["invalid UTF-8 replaced"] += 1
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return text


class _Marks:
    """Writes what choosing needs to know of each document, a batch at a time; memory does not grow with the part."""

    def __init__(self, folder: Path, files: ExitStack, settings: DedupSettings, seed: int) -> None:
        self._folder, self._settings = folder, settings
        self._key = seed.to_bytes(8, "little", signed=True)
        self._near = settings.near == "minhash"
        self._grams: list[np.ndarray] = []
        self._num_grams = self._num_signed = 0
        self._files = {name: files.enter_context((folder / name).open("wb")) for name in _MARK_FILES}

    def add(self, text: str, scorer: stories.StoryScorer | None) -> None:
        # The seed keys the hash, so that another seed holds out other documents.
        digest = hashlib.blake2b(text.encode(), digest_size=16, key=self._key).digest()
        words = word_hashes(text) if self._near or scorer else None
        with output_errors(self._folder):
            self._files["hashes"].write(digest)
            if scorer and words is not None:
                self._files["scores"].write(np.float64(scorer.score(words)).astype("<f8").tobytes())
        if self._near and words is not None:
            self._grams.append(ngrams(words, self._settings.ngram))
            self._num_grams += len(self._grams[-1]) + 1
            if self._num_grams > _BATCH_GRAMS:
                self._sign()

    def _sign(self) -> None:
        if not self._grams:
            return
        offsets = np.cumsum([0, *map(len, self._grams)]).astype(np.uint64)
        digests = rensa.RMinHash.digest_matrix_from_flat_token_hashes  # pyrefly: ignore[missing-attribute]
        matrix = digests(np.concatenate(self._grams), offsets, self._settings.num_hashes, _SIGNATURE_SEED)
        signatures = np.array(matrix.to_rows(), np.uint32)
        num_bands, rows = band_shape(self._settings)
        keys = np.zeros((len(signatures), num_bands), np.uint64)
        for row in range(rows):
            keys = mix(keys * np.uint64(0x9E3779B97F4A7C15) + signatures[:, row::rows].astype(np.uint64))
        # 0 marks documents without a single n-gram: they are like nothing.
        keys[np.diff(offsets) == 0] = 0
        with output_errors(self._folder):
            self._files["signatures"].write(signatures.astype("<u4").tobytes())
            self._files["keys"].write(keys.astype("<u8").tobytes())
        self._num_signed += len(signatures)
        self._grams, self._num_grams = [], 0

    def close(self) -> None:
        """Bands by document become documents by band, as choosing reads them."""
        self._sign()
        with output_errors(self._folder):
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
            shape = (self._num_signed, band_shape(self._settings)[0])
            if self._num_signed:
                keys = np.memmap(self._folder / "keys", "<u8", "r", shape=shape)
                bands = np.memmap(self._folder / "bands", "<u8", "w+", shape=shape[::-1])
                for start in range(0, shape[0], 1 << 16):
                    bands[:, start : start + (1 << 16)] = keys[start : start + (1 << 16)].T
                bands.flush()
            (self._folder / "keys").unlink()
