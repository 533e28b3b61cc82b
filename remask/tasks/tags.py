"""A tag for every word: named entities and the like.

In: CoNLL's column files, tables with lists of words, and for answers plain texts, which are cut into words. Rows hold
a tag on each word's first token; words are encoded one by one, as they would be inside their sentence (each but the
first with its space before it). A sentence beyond the model's length goes on in further rows. Not here: files (conll),
what an entity is (entities).
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from remask.errors import DataError
from remask.schema import IGNORE, Batch, Json
from remask.streams import split_name
from remask.tables import TABLE_KINDS, Cells
from remask.tasks import metrics
from remask.tasks.conll import Sentence, check_tags, read_sentences, tag_names
from remask.tasks.entities import entities, score_entities
from remask.tasks.glue import cut_by_group, cut_note
from remask.tasks.kind import Heads, Labelled, NoiseT, Problem, Sums, TaskKind, TaskLoss, TaskNetwork, TaskSource
from remask.tasks.numbers import by_size, divergence, log_of, rounded, softmax
from remask.tasks.records import Entity, Tagging
from remask.tasks.rows import Frame, Rows
from remask.tasks.settings import RowSettings, TableSettings
from remask.tasks.tables import SET_ASIDE, UNSEEN, BadRow, text_of
from remask.tasks.texts import foreign_labels
from remask.tokenizer import Tokenizer
from remask.tokenizer.words import BARE, BARE_MARK, character_class

if TYPE_CHECKING:
    import torch

Array = np.ndarray
SIGN = re.compile(r"\w+|[^\w\s]")  # what a text is cut into: runs of letters and digits, and single other signs


class Tags(TaskKind[Sentence]):
    """One tag a word."""

    name, metric, method = "tags", "f1", "tag"

    # ------------------------------------------------------------------------------------------------ reading

    def open(self, source: TaskSource) -> Problem[Sentence]:
        train_file, dev_file = source.files()
        train = read_sentences(train_file, source.table)
        if dev_file is None:
            train, dev = cut_by_group(train, lambda s: " ".join(s.words), train_file)
        else:
            dev = read_sentences(dev_file, source.table)
        names = tag_names(train, train_file)
        check_tags(dev, names, dev_file or train_file, SET_ASIDE if dev_file is None else UNSEEN)
        notes = (cut_note(train_file, "by sentence"),) if dev_file is None else ()
        return Problem(source.task, self, names, self.metric, train, dev, notes)

    def read_labelled(
        self, path: Path, task: str | None, labels: tuple[str, ...], table: TableSettings
    ) -> Labelled[Sentence]:
        sentences = read_sentences(path, table)
        types = dict.fromkeys(tag[2:] for tag in labels if tag != "O")
        check_tags(sentences, labels, path, foreign_labels(list(types)))
        return Labelled(sentences)

    def has_own_layout(self, path: Path) -> bool:
        """CoNLL's columns, unless the file is a table by its name."""
        return path.is_file() and split_name(path.name)[0] not in TABLE_KINDS

    def _own_rows(self, path: Path, table: TableSettings) -> Iterator[Cells]:
        for number, sentence in enumerate(read_sentences(path, table, labelled=False), 1):
            yield Cells({table.text: list(sentence.words)}, sentence.place, number)

    def columns(self, table: TableSettings, text: str | None, text2: str | None) -> tuple[str, ...]:
        return (text or table.text,)

    def item(self, cells: Cells, columns: Sequence[str], table: TableSettings) -> Sentence:
        """A list of words, or a text cut into its words."""
        (column,) = columns
        value = cells.values.get(column)
        if isinstance(value, list):
            if not value or not all(isinstance(word, str) and word.strip() for word in value):
                raise BadRow("words", f"column {column!r} must hold a text or a list of words, not {str(value)[:60]!r}")
            return Sentence(tuple(value), None, cells.place)
        sentence = in_words(text_of(cells, column), cells.place)
        if not sentence.words:
            raise BadRow("empty text", f"column {column!r} has no words")
        return sentence

    def key(self, item: Sentence) -> Hashable:
        return item.words

    def text(self, item: Sentence) -> str:
        return " ".join(item.words)

    # ------------------------------------------------------------------------------------------------ network

    def head(self, problem: Problem[Sentence]) -> dict[str, int | bool]:
        return {"num_tags": len(problem.labels)}

    def fits(self, heads: Heads) -> bool:
        return heads.num_tags is not None

    def num_labels(self, heads: Heads) -> int:
        return heads.num_tags or 0

    def positions(self, network: TaskNetwork[NoiseT], batch: Batch) -> None:
        return None

    def logits(
        self, network: TaskNetwork[NoiseT], hidden_BSD: torch.Tensor, batch: Batch, noise: NoiseT | None = None
    ) -> torch.Tensor:
        return network.tag(hidden_BSD, noise)

    def counts(self, batch: Batch, plan: TaskLoss) -> dict[str, float]:
        assert batch.labels is not None
        return {"task": int((batch.labels != IGNORE).sum())}

    def loss(self, logits: torch.Tensor, batch: Batch, plan: TaskLoss) -> tuple[Sums, torch.Tensor]:
        import torch.nn.functional as F

        assert batch.labels is not None
        logits_TC, labels_T = logits.flatten(0, 1), batch.labels.flatten()
        total = F.cross_entropy(logits_TC, labels_T, ignore_index=IGNORE, reduction="sum")
        return {"task": total}, (logits_TC.argmax(-1) == labels_T).sum()

    def difference(self, one: torch.Tensor, other: torch.Tensor, batch: Batch) -> torch.Tensor:
        assert batch.labels is not None
        return divergence(one, other)[batch.labels != IGNORE].sum()

    # ------------------------------------------------------------------------------------------- rows, answers

    def encode(
        self, items: Sequence[Sentence], labels: Sequence[str], tokenizer: Tokenizer, frame: Frame,
        settings: RowSettings, *, labelled: bool = True,
    ) -> Rows:  # fmt: skip
        """Rows whose `origins` are (sentence, its first word in this row, positions of the words' first tokens)."""
        forms = sorted({_form(s.words, i) for s in items for i in range(len(s.words))})
        tokens = dict(zip(forms, tokenizer.encode_batch(forms), strict=True))
        index = {name: i for i, name in enumerate(labels)}
        room = frame.room(1)
        ids: list[Array] = []
        tags: list[Array] = []
        origins: list[tuple[int, int, Array]] = []
        num_cut = 0
        for number, sentence in enumerate(items):
            pieces = [tokens[_form(sentence.words, i)] for i in range(len(sentence.words))]
            for word, piece in zip(sentence.words, pieces, strict=True):
                if len(piece) == 0:
                    raise DataError(f"{sentence.place}: the word {word!r} has no token in this vocabulary")
            num_cut += any(len(piece) > room for piece in pieces)
            pieces = [piece[:room] for piece in pieces]
            for first, last in _pack([len(piece) for piece in pieces], room):
                row, _ = frame.join([np.concatenate(pieces[first:last])])
                sizes = np.array([len(piece) for piece in pieces[first:last]])
                starts = 1 + np.concatenate([[0], np.cumsum(sizes)[:-1]])
                label = np.full(len(row), IGNORE, np.int64)
                if sentence.tags is not None:
                    label[starts] = [index[tag] for tag in sentence.tags[first:last]]
                ids.append(row)
                tags.append(label)
                origins.append((number, first, starts))
        return Rows(
            ids,
            [np.zeros_like(row) for row in ids] if frame.segments else None,
            tags if all(s.tags is not None for s in items) else None,
            np.array([number for number, _, _ in origins]),
            label_per_token=True,
            num_cut=num_cut,
            origins=origins,
        )

    def _tagged(
        self, outputs: Sequence[Array], rows: Rows, items: Sequence[Sentence], labels: Sequence[str]
    ) -> list[list[tuple[str, float]]]:
        """Each sentence's tags, word by word, with how likely each is."""
        tagged = [[("O", 0.0)] * len(s.words) for s in items]
        for logits_SC, (number, first, starts) in zip(outputs, rows.origins, strict=True):
            probs_WC = softmax(logits_SC[starts])
            for offset, probs in enumerate(probs_WC):
                best = int(probs.argmax())
                tagged[number][first + offset] = labels[best], float(probs[best])
        return tagged

    def answers(
        self, outputs: Sequence[Array], rows: Rows, items: Sequence[Sentence], labels: tuple[str, ...], *, refuses: bool
    ) -> list[Tagging]:
        return [
            Tagging(tuple(tag for tag, _ in words), tuple(_entities(item, words)))
            for item, words in zip(items, self._tagged(outputs, rows, items, labels), strict=True)
        ]

    def named(self, answer: Tagging, item: Sentence) -> Json:
        """Words get their tags, a text its entities."""
        if item.text is None:
            return {"tags": list(answer.tags)}
        return {"entities": [vars(e) | {"score": rounded(e.score)} for e in answer.entities]}

    def mean_outputs(self, models: Sequence[Sequence[Array]], rows: Rows) -> list[Array]:
        return [log_of(np.mean([softmax(outputs[row]) for outputs in models], axis=0)) for row in range(len(rows.ids))]

    def _score(self, outputs: Sequence[Array], rows: Rows, items: Sequence[Sentence], labels: tuple[str, ...]) -> Json:
        predicted = [[tag for tag, _ in words] for words in self._tagged(outputs, rows, items, labels)]
        return {
            **score_entities([s.tags or () for s in items], predicted),
            **self._mistakes(items, predicted),
        }

    def example_values(
        self, outputs: Sequence[Array], rows: Rows, items: Sequence[Sentence], labels: tuple[str, ...], metric: str
    ) -> Array:
        counts_EK = []
        for sentence, words in zip(items, self._tagged(outputs, rows, items, labels), strict=True):
            true, claimed = set(entities(sentence.tags or ())), set(entities([tag for tag, _ in words]))
            counts_EK.append([len(true & claimed), len(true) + len(claimed)])
        return metrics.linearised(
            np.array(counts_EK), lambda means: float(2 * means[0] / means[1]) if means[1] else 0.0
        )

    def _mistakes(self, items: Sequence[Sentence], predicted: Sequence[Sequence[str]]) -> Json:
        """Sentences with the most entities that were missed or made up."""
        missed, made_up = [], []
        for sentence, tags in zip(items, predicted, strict=True):
            true, claimed = set(entities(sentence.tags or ())), set(entities(tags))
            missed.append(sorted(true - claimed, key=lambda e: e[1:]))
            made_up.append(sorted(claimed - true, key=lambda e: e[1:]))
        wrong = np.array([len(a) + len(b) for a, b in zip(missed, made_up, strict=True)])
        shown = [
            (i, _in_words(missed[i], items[i]), _in_words(made_up[i], items[i]), wrong[i])
            for i in by_size(wrong)
            if wrong[i]
        ]
        return self.worst(shown, items, "entities that differ")

    def baseline(self, train: Sequence[Sentence], dev: Sequence[Sentence], labels: tuple[str, ...]) -> dict[str, float]:
        """No entity anywhere."""
        tags = [s.tags or () for s in dev]
        return score_entities(tags, [["O"] * len(words) for words in tags])["metrics"]


def in_words(text: str, place: str) -> Sentence:
    """A text cut into its words; in scripts without spaces every letter is one, since a tag may begin anywhere."""
    spans: list[tuple[int, int]] = []
    for sign in SIGN.finditer(text):
        start = sign.start()
        for at in range(sign.start() + 1, sign.end()):
            if character_class(text[at]) == BARE or (is_spaceless(text[at - 1]) and not is_spaceless(text[at])):
                spans.append((start, at))
                start = at
        spans.append((start, sign.end()))
    return Sentence(tuple(text[a:b] for a, b in spans), None, place, text, tuple(spans))


def is_spaceless(character: str) -> bool:
    """Whether it is of a script whose words stand beside each other without spaces."""
    return character_class(character) in (BARE, BARE_MARK)


def joined(words: Sequence[str]) -> str:
    """Words as a text has them: spaces between them, but for scripts that have none."""
    return "".join(_form(words, place) for place in range(len(words)))


def _entities(item: Sentence, words: Sequence[tuple[str, float]]) -> Iterator[Entity]:
    """The entities of a sentence: with characters where its text is known, else with the numbers of their words."""
    for kind, first, last in entities([tag for tag, _ in words]):
        score = min(likely for _, likely in words[first : last + 1])
        if item.text is None:
            yield Entity(kind, joined(item.words[first : last + 1]), first, last + 1, score)
        else:
            start, end = item.spans[first][0], item.spans[last][1]
            yield Entity(kind, item.text[start:end], start, end, score)


def _in_words(differing: Sequence[tuple[str, int, int]], sentence: Sentence) -> str:
    return "; ".join(f"{kind} {joined(sentence.words[a : b + 1])}" for kind, a, b in differing) or "(none)"


def _form(words: Sequence[str], place: int) -> str:
    if place == 0 or is_spaceless(words[place][:1]) or is_spaceless(words[place - 1][-1:]):
        return words[place]
    return f" {words[place]}"


def _pack(sizes: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Runs of words, as many as fit in a row."""
    first = used = 0
    for place, size in enumerate(sizes):
        if used + size > room:
            yield first, place
            first, used = place, 0
        used += size
    yield first, len(sizes)
