"""Pairs from plain text, without any labels: what stands together belongs together.

In: files of text, read as `prepare` reads them, and what a pair is: a sentence and the rest of its paragraph (the
inverse cloze task, arXiv 1906.00300), two neighbouring paragraphs, a document's first line and a paragraph, or the
same sentence twice, which dropout tells apart (SimCSE, arXiv 2104.08821). Out: pairs to train on, and pairs of other
documents to score. Not here: learning (tasks/retrieve).
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from remask import signals
from remask.errors import DataError, MissingInputError
from remask.progress import Progress
from remask.schema import Document
from remask.tasks.retrieve import TextPair
from remask.text.files import find_files
from remask.text.plain import guess_layout
from remask.text.records import Reading
from remask.text.sentences import sentence_starts
from remask.text.settings import ReadSettings, SentenceSettings, SourceSettings
from remask.text.sources import portions, read_portion

MIN_CHARACTERS = 40  # of a text of a pair but a title: shorter ones are headings and remains
MAX_TITLE = 120
SCORED_SHARE, MAX_SCORED = 0.05, 500
_HALF = 2  # a sentence's context needs another sentence


def pairs_of_text(text: str, how: str, progress: Progress) -> tuple[list[TextPair], list[TextPair], tuple[str, ...]]:
    """(pairs to train on, pairs to score, what was guessed): documents are cut in two by their hash. What is scored is
    always a sentence and its context, so that scores of different choices compare."""
    train: list[TextPair] = []
    dev: list[TextPair] = []
    notes: list[str] = []
    with progress.stage("pairs from text", None, "documents") as stage:
        for number, document in enumerate(_documents(text, notes), 1):
            digest = int.from_bytes(hashlib.sha256(document.text.encode()).digest()[:4], "big")
            scored = digest < SCORED_SHARE * 2**32 and len(dev) < MAX_SCORED
            if scored:
                dev += _context(document)
            else:
                train += MAKERS[how](document)
            stage.update(number)
            signals.check()
    if not dev and len(train) > 1:  # few documents: the last pairs
        count = max(1, min(MAX_SCORED, round(SCORED_SHARE * len(train))))
        train, dev = train[:-count], train[-count:]
    if not train or not dev:
        raise DataError(f"{text}: has too little text for pairs of the kind {how}; at least two are needed")
    return train, dev[:MAX_SCORED], tuple(notes)


def _documents(text: str, notes: list[str]) -> Iterator[Document]:
    if not Path(text).exists():
        raise MissingInputError(f"{text}: no such file or folder")
    source, reading = SourceSettings(paths=(text,)), ReadSettings()
    files = find_files(source, Path())  # nothing is spooled: paths are no streams
    layout = reading.layout
    texts = [file for file in files if file.kind == "text"]
    if layout == "guess" and texts:
        layout = guess_layout(texts, source.max_expansion)
        notes.append(f"{text}: read as {layout} (guessed)")
    dropped: Counter[str] = Counter()
    for portion in portions(files, 0, layout):
        for record in read_portion(portion, Reading(source, reading, layout, Counter())):
            if isinstance(record, Document):
                yield record
            else:
                dropped[record.reason] += 1
    notes += [f"{count:,} records left out: {reason}" for reason, count in dropped.items()]


def _paragraphs(document: Document) -> list[str]:
    lines = [line.strip() for line in document.text.splitlines()]
    return [line for line in lines if len(line) >= MIN_CHARACTERS]


def _sentences(paragraph: str) -> list[str]:
    starts = [*sentence_starts(paragraph, SentenceSettings()).tolist(), len(paragraph)]
    return [paragraph[a:b].strip() for a, b in itertools.pairwise(starts)]


def _title(document: Document) -> Iterator[TextPair]:
    first, _, rest = document.text.strip().partition("\n")
    if 0 < len(first.strip()) <= MAX_TITLE:
        body = _paragraphs(Document(rest, document.place))
        yield from (TextPair(first.strip(), paragraph, document.place) for paragraph in body[:1])


def _neighbours(document: Document) -> Iterator[TextPair]:
    paragraphs = _paragraphs(document)
    for one, two in zip(paragraphs[::2], paragraphs[1::2], strict=False):
        yield TextPair(one, two, document.place)


def _context(document: Document) -> Iterator[TextPair]:
    """One sentence of each paragraph, chosen by the paragraph's hash, and all others of it."""
    for paragraph in _paragraphs(document):
        sentences = _sentences(paragraph)
        long = [i for i, sentence in enumerate(sentences) if len(sentence) >= MIN_CHARACTERS]
        if len(sentences) < _HALF or not long:
            continue
        chosen = long[int.from_bytes(hashlib.sha256(paragraph.encode()).digest()[:4], "big") % len(long)]
        rest = " ".join(sentence for i, sentence in enumerate(sentences) if i != chosen)
        if len(rest) >= MIN_CHARACTERS:
            yield TextPair(sentences[chosen], rest, document.place)


def _dropout(document: Document) -> Iterator[TextPair]:
    for paragraph in _paragraphs(document):
        for sentence in _sentences(paragraph):
            if len(sentence) >= MIN_CHARACTERS:
                yield TextPair(sentence, sentence, document.place)


MAKERS = {"title": _title, "neighbours": _neighbours, "context": _context, "dropout": _dropout}
