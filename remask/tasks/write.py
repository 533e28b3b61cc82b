"""Texts from texts: translation, summaries, replies, or whatever pairs teach.

In: files of pairs: a source (a text, or a list of sentences or turns) and a target (a text, or several references).
Rows hold the source; labels are the target's ids with its end. What the network said about a row is a `Draft`. The
tasks differ in their measures and defaults only. Not here: the decoder (model/decoder), the choice of tokens
(answer/decoding), the measures themselves (write_scores).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from remask.errors import ConfigError, DataError
from remask.progress import counted
from remask.schema import Batch, Json
from remask.tables import Cells, read_cells, require_columns
from remask.tasks import write_scores
from remask.tasks.glue import cut_by_group, cut_note
from remask.tasks.kind import Heads, Labelled, NoiseT, Problem, Sums, TaskKind, TaskLoss, TaskNetwork, TaskSource
from remask.tasks.numbers import rounded
from remask.tasks.records import Written
from remask.tasks.rows import Frame, Rows
from remask.tasks.settings import LossSettings, RowSettings, TableSettings
from remask.tasks.tables import BadRow, text_of
from remask.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

Array = np.ndarray
SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+")


@dataclass(frozen=True, slots=True)
class Passage:
    """What is read (its parts, where it came as a list), what may be written about it (nothing where it is not known),
    and what a simple rule would say."""

    source: str
    parts: tuple[str, ...]
    references: tuple[str, ...]
    simple: str
    place: str


@dataclass(frozen=True)
class Draft:
    """What a network wrote about a row: ids without start and end, log probability by length, whether it came to an
    end; and, where the row has a target, what that costs in nats."""

    ids: Array
    score: float
    finished: bool
    nats: float | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """What a row was made from, and the vocabulary that drafts about it are read with."""

    written: Tokenizer
    parts: tuple[str, ...]

    def text(self, draft: Draft) -> str:
        return text_from(draft, self.written)

    def sentences(self, room: int, max_length: int) -> list[tuple[Array, bool]]:
        """(ids with their end, whether they are whole) of the source's sentences, as far as they are in the first
        `room` tokens, which is what the model reads; always the first one."""
        found: list[tuple[Array, bool]] = []
        sentences = self.parts if len(self.parts) > 1 else _sentences(self.parts[0])
        for ids in self.written.encode_batch([sentence.strip() for sentence in sentences]):
            if len(ids) == 0:
                continue
            room -= len(ids)
            if found and room < 0:
                break
            whole = len(ids) < max_length
            found.append((np.append(ids, self.written.eos_id) if whole else ids[:max_length], whole))
        return found or [(np.array([self.written.eos_id]), True)]  # a vocabulary that spells none of it


class Write(TaskKind[Passage]):
    """Any text from any other."""

    name, metric, method = "write", "likelihood", "write"
    baseline_words = "the source itself"
    writes, averages = True, False
    rouge: ClassVar[bool] = False
    between: ClassVar[str] = " "  # of a source that is a list
    decode: ClassVar[Json] = {}

    # ------------------------------------------------------------------------------------------------ reading

    def open(self, source: TaskSource) -> Problem[Passage]:
        write_scores.check_libraries(rouge=self.rouge)
        train_file, dev_file = source.files()
        train, dropped, notes = self._read(train_file, source.table)
        if dev_file is None:
            train, dev = cut_by_group(train, lambda passage: passage.source, train_file)
            notes = (*notes, cut_note(train_file, "by source"))
        else:
            dev, more, dev_notes = self._read(dev_file, source.table)
            dropped, notes = dropped + more, tuple(dict.fromkeys((*notes, *dev_notes)))
        several = sum(len(passage.references) > 1 for passage in train)
        if several:
            notes = (*notes, f"{counted(several, 'source')} with several targets: the first is learned")
        return Problem(source.task, self, (), self.metric, train, dev, notes, {"dropped": dict(dropped)})

    def read_labelled(
        self, path: Path, task: str | None, labels: tuple[str, ...], table: TableSettings
    ) -> Labelled[Passage]:
        write_scores.check_libraries(rouge=self.rouge)
        passages, dropped, notes = self._read(path, table)
        return Labelled(passages, notes, {"dropped": dict(dropped)})

    def _read(self, path: Path, table: TableSettings) -> tuple[list[Passage], Counter[str], tuple[str, ...]]:
        notes: list[str] = []
        passages: list[Passage] = []
        dropped: Counter[str] = Counter()
        for cells in read_cells(path, table, on_note=notes.append):
            if not passages and not dropped:
                require_columns(cells, self._needed(cells, table))
            try:
                passages += self._passages(cells, table)
            except BadRow as bad:
                if table.bad_rows == "error":
                    hint = "mend it, or leave such rows out with --set table.bad_rows=drop"
                    raise DataError(f"{cells.place}: {bad}; {hint}") from bad
                dropped[bad.reason] += 1
        if not passages:
            raise DataError(f"{path}: no usable rows" + (f" ({sum(dropped.values())} left out)" if dropped else ""))
        return passages, dropped, tuple(notes)

    def _needed(self, cells: Cells, table: TableSettings) -> list[str]:
        return [table.source, table.target]

    def _passages(self, cells: Cells, table: TableSettings) -> Iterator[Passage]:
        """The pairs of a row; BadRow where it has none."""
        parts = _texts_of(cells, table.source)
        yield self.passage(parts, tuple(_texts_of(cells, table.target)), cells.place, table)

    def passage(self, parts: list[str], references: tuple[str, ...], place: str, table: TableSettings) -> Passage:
        """A source in one or several parts."""
        source = self.between.join(part.strip() for part in parts)
        return Passage(source, tuple(parts), references, self.simple(parts), place)

    def simple(self, parts: Sequence[str]) -> str:
        """What a rule without a model says: the source itself."""
        return self.between.join(parts)

    def columns(self, table: TableSettings, text: str | None, text2: str | None) -> tuple[str, ...]:
        return (text or table.source,)

    def item(self, cells: Cells, columns: Sequence[str], table: TableSettings) -> Passage:
        return self.passage(_texts_of(cells, columns[0]), (), cells.place, table)

    def key(self, item: Passage) -> Hashable:
        return item.source

    def text(self, item: Passage) -> str:
        return item.source

    # ------------------------------------------------------------------------------------------------ network

    def head(self, problem: Problem[Passage]) -> dict[str, int | bool]:
        return {}  # the decoder's settings follow from the run and the vocabulary, which tune knows

    def fits(self, heads: Heads) -> bool:
        return heads.writer is not None

    def positions(self, network: TaskNetwork[NoiseT], batch: Batch) -> None:
        return None

    def logits(
        self, network: TaskNetwork[NoiseT], hidden_BSD: torch.Tensor, batch: Batch, noise: NoiseT | None = None
    ) -> torch.Tensor:
        raise AssertionError("a writer has no logits for a row: it learns by `losses` and answers by drafts")

    def plan_loss(self, problem: Problem[Passage], settings: LossSettings, heads: Heads) -> TaskLoss:
        super().plan_loss(problem, settings, heads)
        return TaskLoss(label_smoothing=settings.label_smoothing)

    def counts(self, batch: Batch, plan: TaskLoss) -> dict[str, float]:
        assert batch.target_lengths_B is not None
        return {"task": int(batch.target_lengths_B.sum())}

    def losses(
        self, network: TaskNetwork[NoiseT], batch: Batch, noise: NoiseT | None, plan: TaskLoss
    ) -> tuple[Sums, torch.Tensor | None]:
        hidden_BSD = network.encode(batch, noise)
        total, right = network.write_loss(hidden_BSD, batch, noise, plan.label_smoothing)
        return {"task": total}, right

    def loss(self, logits: torch.Tensor, batch: Batch, plan: TaskLoss) -> tuple[Sums, torch.Tensor | None]:
        raise AssertionError("a writer learns by `losses`")

    # ------------------------------------------------------------------------------------------- rows, answers

    def encode(
        self, items: Sequence[Passage], labels: Sequence[str], tokenizer: Tokenizer, frame: Frame,
        settings: RowSettings, *, labelled: bool = True,
    ) -> Rows:  # fmt: skip
        """Rows with an `Origin` each."""
        if settings.long_texts == "windows":
            raise ConfigError("rows.long_texts = windows: a text is written about one row; cut is what there is")
        written = frame.targets or tokenizer
        room = frame.room(1)
        sources = tokenizer.encode_batch([item.source for item in items])
        num_cut = sum(len(ids) > room for ids in sources)
        ids = []
        for item, source in zip(items, sources, strict=True):
            if len(source) == 0:
                raise DataError(f"{item.place}: a text without a single token")
            ids.append(frame.join([source[:room]])[0])
        targets = None
        if labelled and all(item.references for item in items):
            targets, more = _encode_targets(items, written, min(settings.target_length, frame.max_length))
            num_cut += more
        return Rows(
            ids,
            [np.zeros_like(row) for row in ids] if frame.segments else None,
            targets,
            np.arange(len(items), dtype=np.int64),
            label_per_target=True,
            num_cut=num_cut,
            origins=[Origin(written, item.parts) for item in items],
        )

    def answers(
        self, outputs: Sequence[Any], rows: Rows, items: Sequence[Passage], labels: tuple[str, ...], *, refuses: bool
    ) -> list[Written]:
        return [
            Written(origin.text(draft), draft.score, len(draft.ids), draft.finished)
            for draft, origin in zip(outputs, rows.origins, strict=True)
        ]

    def named(self, answer: Written, item: Passage) -> Json:
        return {"written": answer.text, "score": rounded(answer.score), "finished": answer.finished}

    def mean_outputs(self, models: Sequence[Sequence[Array]], rows: Rows) -> list[Array]:
        raise ConfigError(f"{self.name}: what several models write cannot be averaged")

    # ------------------------------------------------------------------------------------------------ measures

    def score(self, outputs: Sequence[Any], rows: Rows, items: Sequence[Passage], labels: tuple[str, ...]) -> Json:
        broken = sum(not math.isfinite(draft.nats) for draft in outputs if draft.nats is not None)
        if broken:
            raise DataError(f"the model's outputs are no numbers (NaN) for {broken:,} of {len(outputs):,} rows")
        return self._score(outputs, rows, items, labels)

    def _score(self, outputs: Sequence[Any], rows: Rows, items: Sequence[Passage], labels: tuple[str, ...]) -> Json:
        texts = [origin.text(draft) for draft, origin in zip(outputs, rows.origins, strict=True)]
        measures, signatures = self.measures(texts, [item.references for item in items])
        if rows.labels is not None and outputs[0].nats is not None:
            nats = sum(draft.nats for draft in outputs) / sum(np.size(label) for label in rows.labels)
            measures |= {"likelihood": -nats, "perplexity": math.exp(min(nats, 700.0))}
        by_item = write_scores.sentence_chrf(texts, [item.references for item in items])
        worst = [(int(i), items[i].references[0], texts[i], by_item[i]) for i in np.argsort(by_item, kind="stable")]
        return {
            "metrics": measures,
            "signatures": signatures,
            "unfinished": sum(not draft.finished for draft in outputs),
            **self.worst(worst, items, "chrF"),
        }

    def tested(self, outputs: Sequence[Any], rows: Rows, items: Sequence[Passage]) -> Json:
        texts = [origin.text(draft) for draft, origin in zip(outputs, rows.origins, strict=True)]
        simple, references = [item.simple for item in items], [item.references for item in items]
        return {"p_against_simple": write_scores.paired_bootstrap(texts, simple, references)}

    def measures(
        self, texts: Sequence[str], references: write_scores.References
    ) -> tuple[dict[str, float], dict[str, str]]:
        """(Measures of texts, whoever wrote them; signatures of those that have one)."""
        scores, signatures = write_scores.bleu_chrf(texts, references)
        if self.rouge:
            scores |= write_scores.rouge(texts, references)
        return {**scores, **write_scores.distinct(texts)}, signatures

    def baseline(self, train: Sequence[Passage], dev: Sequence[Passage], labels: tuple[str, ...]) -> dict[str, float]:
        """The measures of the simple rule."""
        return self.measures([item.simple for item in dev], [item.references for item in dev])[0]


class Translate(Write):
    """A text in another language."""

    name, metric = "translate", "bleu"
    # Without no_repeat a young model's likeliest text is now and then one syllable for ever (EXPERIMENTS.md).
    decode: ClassVar[Json] = {"beams": 4, "no_repeat": 3}

    def fits(self, heads: Heads) -> bool:
        return False  # a decoder alone does not say what it was taught: it is asked to `write`


class Summarise(Translate):
    """A shorter text; a source may be a list of sentences."""

    name, metric = "summarise", "rouge_l"
    baseline_words = "the first sentence"
    rouge = True

    def simple(self, parts: Sequence[str]) -> str:
        """The first sentence."""
        return parts[0] if len(parts) > 1 else SENTENCE_END.split(parts[0].strip())[0]


class Reply(Translate):
    """What is said next. A source that is a list of turns is read from its last ones; a file without targets teaches
    every turn after the first."""

    name, metric = "reply", "likelihood"
    baseline_words = "the last turn again"
    between = "\n"

    def _needed(self, cells: Cells, table: TableSettings) -> list[str]:
        if table.target not in cells.values and isinstance(cells.values.get(table.source), list):
            return [table.source]
        return super()._needed(cells, table)

    def _passages(self, cells: Cells, table: TableSettings) -> Iterator[Passage]:
        if table.target in cells.values:
            yield from super()._passages(cells, table)
            return
        turns = _texts_of(cells, table.source)
        if len(turns) < 2:
            raise BadRow("one turn", f"column {table.source!r} has one turn: nothing is said next")
        for number in range(1, len(turns)):
            yield self.passage(turns[:number], (turns[number],), cells.place, table)

    def passage(self, parts: list[str], references: tuple[str, ...], place: str, table: TableSettings) -> Passage:
        return super().passage(parts[-table.turns :], references, place, table)

    def simple(self, parts: Sequence[str]) -> str:
        return parts[-1]


def _sentences(text: str) -> list[str]:
    """A text's sentences by their signs. Less than three words are no sentence ("e. g."): they go with the next."""
    sentences = [""]
    for piece in SENTENCE_END.split(text.strip()):
        if len(sentences[-1].split()) >= 3:
            sentences.append(piece)
        else:
            sentences[-1] = f"{sentences[-1]} {piece}".strip()
    return sentences


def text_from(draft: Draft, written: Tokenizer, *, strip: bool = True) -> str:
    text = written.decode(draft.ids)
    return text.strip() if strip else text


def _texts_of(cells: Cells, column: str) -> list[str]:
    """A text, or a list of them. Blank ones are left out: splitters of sentences leave some."""
    value = cells.values.get(column)
    if not isinstance(value, list):
        return [text_of(cells, column)]
    texts = [part for part in value if not isinstance(part, str) or part.strip()]
    if not texts or not all(isinstance(part, str) for part in texts):
        raise BadRow("empty text", f"column {column!r} must hold a text or a list of texts, not {str(value)[:60]!r}")
    return texts


def _encode_targets(items: Sequence[Passage], written: Tokenizer, length: int) -> tuple[list[Array], int]:
    """(ids of the first target of each with its end, how many were cut)."""
    targets, num_cut = [], 0
    for item, ids in zip(items, written.encode_batch([item.references[0] for item in items]), strict=True):
        if len(ids) == 0:
            raise DataError(f"{item.place}: a target without a single token")
        if written.unk_id in ids:
            raise DataError(
                f"{item.place}: the target {item.references[0][:40]!r} holds signs that the vocabulary cannot spell; "
                "take one that spells everything (byte-level, as remask prepare makes it): --target-tokenizer"
            )
        num_cut += len(ids) > length - 1
        targets.append(np.append(ids[: length - 1], written.eos_id).astype(np.int64))
    return targets, num_cut
