"""The texts of an adaptation as prepared data: with the model's tokens, and with other ones where they are asked for.

In: the run, the model's tokenizer. Out: a `Side` for each vocabulary: data to train on, and data whose held-out text
is measured. The same documents are held out on both sides. Not here: how text is prepared, how new tokens are chosen
(tokenizer/extend).
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from remask import artifacts
from remask.adaptation.settings import AdaptRun, PlaceSettings
from remask.config import build_run, dump
from remask.documents import Documents, read_documents
from remask.errors import DataError
from remask.progress import Progress
from remask.schema import Json, Values
from remask.tokenizer import Tokenizer, load_tokenizer

ALL_HELD_OUT = 1 - 2**-52  # a share must be below 1
CORPUS, GENERAL, VALIDATION = "corpus", "general", "validation"


@dataclass(frozen=True)
class Side:
    """One vocabulary's data. `measured`: whose held-out text of the source `source` is measured."""

    prepared: Path
    measured: Path
    source: str
    counts: Values  # of `prepared`

    @property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.prepared / "tokenizer")

    @property
    def documents(self) -> Documents:
        return read_documents(self.measured / "documents")

    def total(self, key: str, split: str | None = None, source: str = CORPUS) -> int:
        """Tokens, bytes or documents of a source."""
        shards = [shard for shard in self.counts["shards"] if shard["source"] == source]
        return sum(shard[key] for shard in shards if split in (None, shard["split"]))


def old_side(run: AdaptRun, out: Path, tokenizer_folder: Path, progress: Progress) -> Side:
    """With the model's own tokens."""
    return _side(run, out, "prepared", {"path": str(tokenizer_folder)}, progress)


def new_side(run: AdaptRun, out: Path, old: Side, progress: Progress) -> Side:
    """With the tokens that the run asks for instead."""
    assert run.tokens is not None
    if run.vocabulary == "extend":
        folder = _extended(run, out, old, progress)
        return _side(run, out, "prepared-extended", {"path": str(folder)}, progress)
    tokenizer = old.tokenizer
    normalizer = tokenizer.description.get("normalizer") or {}
    settings = {
        "kind": "wordpiece" if tokenizer.kind == "wordpiece" else "byte-bpe",
        "vocab_size": run.tokens,
        "lowercase": bool(normalizer.get("lowercase", True)),
    }
    side = _side(run, out, "prepared-replaced", settings, progress)
    if side.counts["vocab_size"] < run.tokens:
        raise DataError(
            f"{_named(run.corpus)}: the text gives a vocabulary of {side.counts['vocab_size']:,} entries at most, "
            f"not {run.tokens:,}: ask for fewer"
        )
    return side


def _side(run: AdaptRun, out: Path, name: str, tokenizer: Values, progress: Progress) -> Side:
    sources = [_source(run.corpus, CORPUS)]
    if run.general.paths:
        sources.append(_source(run.general, GENERAL))
    # With a text of its own to measure on, all of the corpus is learned from.
    fraction = run.text.heldout_fraction if run.validation is None or run.general.paths else 0.0
    counts = _prepare(run, out / name, sources, fraction, tokenizer, progress)
    measured, source = out / name, CORPUS
    if run.validation is not None:
        measured, source = out / f"{name}-validation", VALIDATION
        files = [{"name": VALIDATION, "paths": [run.validation]}]
        own = {"path": str(out / name / "tokenizer")}
        _prepare(run, measured, files, ALL_HELD_OUT, own, progress)
    side = Side(out / name, measured, source, counts)
    _check(run, side)
    return side


def _source(place: PlaceSettings, name: str) -> Json:
    return {**dump(place), "name": name}


def _named(place: PlaceSettings) -> str:
    return " ".join(place.paths)


def _prepare(
    run: AdaptRun,
    folder: Path,
    sources: list[Json],
    heldout_fraction: float,
    tokenizer: Values,
    progress: Progress,
) -> Json:
    from remask.preparation.prepare import prepare
    from remask.preparation.settings import PrepareRun

    settings = {
        "seed": run.seed,
        "text": {**dump(run.text), "sources": sources, "heldout_fraction": heldout_fraction},
        "tokenizer": dict(tokenizer),
        "keep_documents": True,
    }
    return prepare(build_run(PrepareRun, options=settings).run, folder, progress=progress)


def _check(run: AdaptRun, side: Side) -> None:
    """Text to learn from, and text to measure on."""
    needed = {CORPUS: run.corpus} | ({GENERAL: run.general} if run.general.paths else {})
    for source, place in needed.items():
        if not side.total("tokens", "train", source):
            raise DataError(f"{_named(place)}: no text is left to learn from")
        is_measured = source == GENERAL or run.validation is None
        if is_measured and not side.total("tokens", "heldout", source):
            raise DataError(
                f"{_named(place)}: too little text to hold some of it out; give more of it, --validation FILE, or hold "
                "out more with --set text.heldout_fraction=0.2"
            )


# ------------------------------------------------------------------------------------------------ new tokens


def _extended(run: AdaptRun, out: Path, old: Side, progress: Progress) -> Path:
    """The model's vocabulary with more tokens, in OUT/vocabulary."""
    from remask.tokenizer.extend import extended

    assert run.tokens is not None
    folder, record = out / "vocabulary", out / ".vocabulary.json"
    if artifacts.finished(record) is not None:
        return folder
    with progress.stage("learn new tokens") as stage:
        words = _count_words(old)
        stage.note = f"{len(words):,} distinct words"
        try:
            larger = extended(old.tokenizer, list(words.items()), run.tokens)
        except DataError as error:
            raise DataError(f"{_named(run.corpus)}: {error}") from None
    shutil.rmtree(folder, ignore_errors=True)
    larger.save(folder)
    artifacts.finish(record, larger.vocab_size, sorted(folder.iterdir()))
    return folder


def _count_words(old: Side) -> Counter[bytes]:
    """Of the corpus's training documents, cut as the model's tokenizer cuts text into words."""
    from remask.tokenizer.bulk import pieces_of, plan_blocks
    from remask.tokenizer.settings import TokenizerSettings
    from remask.tokenizer.training import count_pieces, cut_words

    tokenizer = old.tokenizer
    normalizer = tokenizer.description.get("normalizer") or {}
    kind = "wordpiece" if tokenizer.kind == "wordpiece" else "byte-bpe"
    settings = TokenizerSettings(kind=kind, lowercase=bool(normalizer.get("lowercase", False)))
    words: Counter[bytes] = Counter()
    shards = [shard for shard in read_documents(old.prepared / "documents").of("train") if shard.source == CORPUS]
    for blocks in plan_blocks(shards):
        for data, offsets, _ in blocks:
            words.update(count_pieces(pieces_of(data, offsets, settings.newlines), settings, False))
    return cut_words(words, settings.max_word_bytes)
