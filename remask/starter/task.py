"""What the quickstart fine-tunes on and shows: a task and sentences that come with any corpus.

In: the documents of the corpus. Out: two JSONL files with no document in both. For the Python documentation: which
library a passage is from; for any other corpus: whether two passages are from the same document. Also sentences of
the held-out part with one word hidden. Everything is drawn by the hash of (seed, text), never by what a model says.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from remask.artifacts import write_bytes
from remask.documents import Documents
from remask.schema import Json
from remask.text.pydocs import Passage, passages

NUM_LIBRARIES = 8
MIN_MODULES = 12  # of a library, so that some are for the test
MAX_PER_DOCUMENT = 8  # one large document must not be the whole task
TEST_SHARE = 0.3  # of the documents
MIN_ROWS = 40
MAX_CHARS = 240  # of a passage: six fine-tuning runs must fit into minutes
# Sentences, and the words in them that may be hidden. In Chinese: two characters between particles or commas, which is
# nearly always a word.
_HAN = "[\u4e00-\u9fff]"
_SAMPLED = (
    (re.compile(r"[A-Z][a-z]+(?:,? [\w'-]+){7,16}\."), re.compile(r"(?<= )[a-z]{3,9}(?=[ ,])")),
    (
        re.compile(f"{_HAN}[^。！？\\n]{{10,40}}[。！？]"),
        re.compile(f"(?<=[的在是了和，]){_HAN}{{2}}(?=[的在是了和，。])"),
    ),
)


@dataclass(frozen=True)
class Task:
    """Files for `finetune`, and what they ask."""

    kind: str
    question: str
    description: str
    train: Path
    test: Path


def make_task(
    documents: Documents, folder: Path, *, is_python_docs: bool, most: int, labels: int, seed: int
) -> Task | None:
    """Write the task's files; None where the corpus has too few documents for one."""
    ordered = _ordered(passages(documents, min_chars=80, max_chars=MAX_CHARS), seed)
    rows = _library_rows(ordered, most) if is_python_docs else _pair_rows(ordered, most, seed)
    train = [row for row in rows if not row["test"]][:labels]
    test = [row for row in rows if row["test"]]
    # Labels that one side lacks cannot be learned or tested.
    shared = {row["label"] for row in train} & {row["label"] for row in test}
    train, test = ([row for row in part if row["label"] in shared] for part in (train, test))
    if min(len(train), len(test)) < MIN_ROWS:
        return None
    _write(folder / "train.jsonl", train)
    _write(folder / "test.jsonl", test)
    sizes = f"{len(train):,} passages to learn from, {len(test):,} of other {{}} to test on."
    if is_python_docs:
        question = "which library is this passage from?"
        names = ", ".join(sorted(shared))
        description = (
            f"{sizes.format('modules')} {len(shared)} libraries: {names}. Passages that name theirs are left out."
        )
        return Task("classify", question, description, folder / "train.jsonl", folder / "test.jsonl")
    question = "are these two passages from the same document?"
    description = sizes.format("documents").replace("passages", "pairs of passages")
    return Task("pair", question, description, folder / "train.jsonl", folder / "test.jsonl")


def _ordered(passages_of_all: Iterable[Passage], seed: int) -> list[Passage]:
    """In an order that only the seed and the texts decide, with few of any one document."""
    ordered = sorted(passages_of_all, key=lambda passage: draw(seed, passage.module, passage.text))
    taken: Counter[str] = Counter()
    kept = []
    for passage in ordered:
        taken[passage.module] += 1
        if taken[passage.module] <= MAX_PER_DOCUMENT:
            kept.append(passage)
    return kept


def _library_rows(ordered: Sequence[Passage], most: int) -> list[Json]:
    modules: dict[str, set[str]] = defaultdict(set)
    silent = [p for p in ordered if p.library.lower() not in p.text.lower()]  # that do not name their library
    for passage in silent:
        modules[passage.library].add(passage.module)
    sizes = {library: len(names) for library, names in modules.items() if len(names) >= MIN_MODULES}
    libraries = sorted(sizes, key=lambda library: (-sizes[library], library))[:NUM_LIBRARIES]
    room = {library: most // max(1, len(libraries)) for library in libraries}
    rows = []
    for passage in silent:
        if room.get(passage.library, 0) > 0:
            room[passage.library] -= 1
            rows.append({"text": passage.text, "label": passage.library, "test": _is_test(passage.module)})
    return rows


def _pair_rows(ordered: Sequence[Passage], most: int, seed: int) -> list[Json]:
    """Half of the pairs from one document, half from two; both documents on the same side of the split."""
    rows: list[Json] = []
    for test in (False, True):
        by_document: dict[str, list[str]] = defaultdict(list)
        for passage in ordered:
            if _is_test(passage.module) == test:
                by_document[passage.module].append(passage.text)
        several = {name: texts for name, texts in by_document.items() if len(texts) > 1}
        names = sorted(several, key=lambda name: draw(seed, "pair", name))
        room = int(most * (TEST_SHARE if test else 1 - TEST_SHARE))
        for index in range(MAX_PER_DOCUMENT // 2):
            for place, name in enumerate(names):
                if len(several[name]) < 2 * index + 2 or room <= 0 or len(names) < 2:
                    continue
                first, second = several[name][2 * index : 2 * index + 2]
                same = int(draw(seed, "coin", first), 16) % 2 == 0
                other = several[names[(place + 1) % len(names)]]
                text2 = second if same else other[min(2 * index + 1, len(other) - 1)]
                rows.append({"text": first, "text2": text2, "label": "same" if same else "other", "test": test})
                room -= 1
    return rows


def _is_test(name: str) -> bool:
    """By the document's name alone: stable whatever else is in the corpus."""
    return int(draw(0, "split", name)[:8], 16) < TEST_SHARE * 2**32


def _write(path: Path, rows: Sequence[Json]) -> None:
    lines = [orjson.dumps({key: value for key, value in row.items() if key != "test"}) for row in rows]
    write_bytes(path, b"\n".join([*lines, b""]))


def draw(seed: int, *words: str) -> str:
    """A number as hexadecimal text, as good as random."""
    return hashlib.blake2b("\0".join([str(seed), *words]).encode(), digest_size=8).hexdigest()


# -------------------------------------------------------------------------------------------------- sentences


@dataclass(frozen=True)
class Sample:
    """A sentence with `<mask>` in the place of one word."""

    masked: str
    hidden: str


def sample_sentences(documents: Documents, *, seed: int, count: int = 6, mask: str = "<mask>") -> list[Sample]:
    """Plain sentences of held-out documents, at most one of each document."""
    drawn: list[tuple[str, Sample]] = []
    for shard in documents.of("heldout"):
        for index in range(len(shard)):
            text = shard.text(index)
            found = ((list(sentences.finditer(text)), words) for sentences, words in _SAMPLED)
            matches, hideable = next((pair for pair in found if pair[0]), ([], None))
            if hideable is None:
                continue
            sentence = min((match.group() for match in matches), key=lambda text: draw(seed, text))
            words = list(hideable.finditer(sentence))
            if words:
                word = words[int(draw(seed, "word", sentence), 16) % len(words)]
                masked = f"{sentence[: word.start()]}{mask}{sentence[word.end() :]}"
                drawn.append((draw(seed, "sample", sentence), Sample(masked, word.group())))
    return [sample for _, sample in sorted(drawn, key=lambda pair: pair[0])[:count]]
