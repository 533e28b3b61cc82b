"""The piece of a passage that answers a question.

In: SQuAD's files. Rows are <s> question </s></s> window </s>, the windows of a long passage overlapping, with the
answer's first and last token as labels ((0, 0): not in this window). An answer is the best of 20 starts and 20 ends a
window, at most 30 tokens, cut out of the passage by character offsets, so that accents and Chinese come back as they
were. RoBERTa, section 5.2: questions up to 64 tokens, windows of 512 every 128; for SQuAD 2.0 a second loss says
whether there is an answer. Not here: files (squad), scores (squad_scores).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from remask.errors import DataError
from remask.progress import counted
from remask.schema import Batch, Json
from remask.tables import Cells
from remask.tasks import characters, squad
from remask.tasks.glue import cut_by_group, cut_note
from remask.tasks.kind import Heads, Labelled, NoiseT, Problem, Sums, TaskKind, TaskLoss, TaskNetwork, TaskSource
from remask.tasks.numbers import divergence, rounded
from remask.tasks.records import Answer
from remask.tasks.rows import Frame, Rows
from remask.tasks.settings import LossSettings, RowSettings, TableSettings
from remask.tasks.squad import Question
from remask.tasks.squad_scores import Measure, exact, f1, golds, score_answers
from remask.tasks.tables import text_of
from remask.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

Array = np.ndarray
MAX_QUESTION_TOKENS = 64
MAX_ANSWER_TOKENS = 30
NUM_BEST = 20
NO_ANSWER = "(no answer)"


@dataclass(frozen=True, slots=True)
class Window:
    """What turns a row's positions back into characters: `spans[i]` are those of position `first + i`."""

    question: int
    first: int
    spans: Array


@dataclass(frozen=True, slots=True)
class Span:
    """The best piece of a passage, how likely it is in its window, and the log odds that there is no answer."""

    text: str
    start: int
    score: float  # the sum of its logits
    probability: float
    null_odds: float


class Spans(TaskKind[Question]):
    """Questions about passages."""

    name, metric, method = "spans", "f1", "answer"
    own_columns = True
    measures: ClassVar[dict[str, Measure]] = {"exact": exact, "f1": f1}

    # ------------------------------------------------------------------------------------------------ reading

    def open(self, source: TaskSource) -> Problem[Question]:
        train_file, dev_file = source.files()
        notes = []
        if dev_file is None:
            questions = squad.read_squad(train_file, source.table)
            by_article = len({q.article for q in questions}) >= 5  # one's own file may have one title for all
            train, dev = cut_by_group(questions, lambda q: q.article if by_article else q.context, train_file)
            notes.append(cut_note(train_file, "by article" if by_article else "by passage"))
        elif train_file.resolve() == dev_file.resolve():
            train, dev = squad.cut_by_article(squad.read_squad(train_file, source.table))
            notes.append(
                f"{train_file.name} is the only file at hand: every fifth article is scored and the others trained on, "
                "so scores do not compare with published ones"
            )
        else:
            train, dev = squad.read_squad(train_file, source.table), squad.read_squad(dev_file, source.table)
        (train, mute), (dev, mute_dev) = squad.with_text(train), squad.with_text(dev)
        notes += _mute_notes([*mute, *mute_dev])
        dev, skipped = squad.without_articles(dev, source.table.skip_articles)
        notes += _skipped_notes(skipped)
        train, dropped = squad.with_answers_in_place(train)
        if dropped and not train:
            place = dropped[0].place
            raise DataError(f"{place}: the answer does not stand where the file says, as in all other questions")
        if not train or not dev:
            raise DataError(f"{train_file}: too few articles to train on and to score")
        if dropped:
            where = f"the answer does not stand where the file says (the first: {dropped[0].place})"
            notes.append(f"{counted(len(dropped), 'question')} not trained on: {where}")
        facts = {"dropped": {"answer not in its place": len(dropped)} if dropped else {}, "skipped_articles": skipped}
        return Problem(source.task, self, (), self.metric, train, dev, tuple(notes), facts)

    def read_labelled(
        self, path: Path, task: str | None, labels: tuple[str, ...], table: TableSettings
    ) -> Labelled[Question]:
        questions, mute = squad.with_text(squad.read_squad(path, table))
        questions, skipped = squad.without_articles(questions, table.skip_articles)
        if not questions:
            raise DataError(f"{path}: all its articles are among table.skip_articles: {', '.join(skipped)}")
        return Labelled(questions, [*_mute_notes(mute), *_skipped_notes(skipped)], {"skipped_articles": skipped})

    def has_own_layout(self, path: Path) -> bool:
        """SQuAD's articles."""
        return not squad.is_table(path)

    def _own_rows(self, path: Path, table: TableSettings) -> Iterator[Cells]:
        for number, asked in enumerate(squad.read_squad(path), 1):
            yield Cells({"id": asked.id, "question": asked.question, "context": asked.context}, asked.place, number)

    def columns(self, table: TableSettings, text: str | None, text2: str | None) -> tuple[str, ...]:
        return text or "question", text2 or "context"

    def item(self, cells: Cells, columns: Sequence[str], table: TableSettings) -> Question:
        question, context = (text_of(cells, column) for column in columns)
        return Question("", question, context, (), "", cells.place)

    def key(self, item: Question) -> Hashable:
        return item.question, item.context

    def text(self, item: Question) -> str:
        return f"{item.question.strip()} / {item.context}"

    # ------------------------------------------------------------------------------------------------ network

    def head(self, problem: Problem[Question]) -> dict[str, int | bool]:
        return {"span": True, "answerable": any(not question.answers for question in problem.train)}

    def fits(self, heads: Heads) -> bool:
        return heads.span

    def positions(self, network: TaskNetwork[NoiseT], batch: Batch) -> None:
        return None

    def logits(
        self, network: TaskNetwork[NoiseT], hidden_BSD: torch.Tensor, batch: Batch, noise: NoiseT | None = None
    ) -> torch.Tensor:
        """B x S x 2, or x 3 where the network also says whether there is an answer: that logit at every position."""
        import torch

        logits_BS2 = network.span(hidden_BSD, noise)
        if not network.head_settings.answerable:
            return logits_BS2
        logit_B = network.answerable(hidden_BSD, batch.lengths_B, noise)
        return torch.cat([logits_BS2, logit_B[:, None, None].expand(-1, logits_BS2.shape[1], 1)], dim=2)

    def graph_outputs(self, named: Mapping[str, Array], batch: Batch) -> Array:
        columns = [named["start_logits"], named["end_logits"]]
        if "answerable_logits" in named:
            columns.append(np.broadcast_to(named["answerable_logits"][:, None], columns[0].shape))
        return np.stack(columns, axis=-1)

    def plan_loss(self, problem: Problem[Question], settings: LossSettings, heads: Heads) -> TaskLoss:
        super().plan_loss(problem, settings, heads)
        return TaskLoss(answerable=heads.answerable)

    def counts(self, batch: Batch, plan: TaskLoss) -> dict[str, float]:
        assert batch.labels is not None
        rows = batch.labels.shape[0]
        return {"task": 2 * rows, **({"answerable": rows} if plan.answerable else {})}

    def loss(self, logits: torch.Tensor, batch: Batch, plan: TaskLoss) -> tuple[Sums, torch.Tensor]:
        import torch
        import torch.nn.functional as F

        assert batch.labels is not None
        # Padding cannot be the start or the end of an answer.
        columns_S = torch.arange(logits.shape[1], device=logits.device)
        outside_BS = columns_S[None, :] >= batch.lengths_B[:, None]
        masked = logits[:, :, :2].masked_fill(outside_BS[:, :, None], float("-inf")).transpose(1, 2).flatten(0, 1)
        labels = batch.labels.flatten()
        sums = {"task": F.cross_entropy(masked, labels, reduction="sum")}
        if plan.answerable:
            has_answer_B = (batch.labels[:, 1] > 0).float()
            sums["answerable"] = F.binary_cross_entropy_with_logits(logits[:, 0, 2], has_answer_B, reduction="sum")
        return sums, (masked.argmax(-1) == labels).sum()

    def difference(self, one: torch.Tensor, other: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Of where answers start and end; whether there is one is in the first position of both."""
        import torch

        columns_S = torch.arange(one.shape[1], device=one.device)
        outside_B1S = (columns_S[None, :] >= batch.lengths_B[:, None])[:, None]
        starts_and_ends = (logits[:, :, :2].transpose(1, 2) for logits in (one, other))
        return divergence(*starts_and_ends, hidden=outside_B1S).sum()

    # ------------------------------------------------------------------------------------------- rows, answers

    def encode(
        self, items: Sequence[Question], labels: Sequence[str], tokenizer: Tokenizer, frame: Frame,
        settings: RowSettings, *, labelled: bool = True,
    ) -> Rows:  # fmt: skip
        """Rows whose `origins` are `Window`s. A passage is encoded once for all its questions."""
        asked = tokenizer.encode_batch([q.question.strip() for q in items])
        passages: dict[str, tuple[Array, Array]] = {}
        ids: list[Array] = []
        segments: list[Array] = []
        ends: list[Array] = []
        windows: list[Window] = []
        num_cut = 0
        for number, question in enumerate(items):
            if question.context not in passages:
                passages[question.context] = tokenizer.encode_with_offsets(question.context)
            tokens, spans = passages[question.context]
            if len(tokens) == 0 or len(asked[number]) == 0:
                raise DataError(f"{question.place}: a question or passage without a single token")
            limit = min(MAX_QUESTION_TOKENS, frame.room(2) // 2)
            num_cut += len(asked[number]) > limit
            head = asked[number][:limit]
            width = frame.room(2) - len(head)
            first = frame.second_start(len(head))
            for start in _starts(len(tokens), width, _step(settings.stride, width)):
                row, segment = frame.join([head, tokens[start : start + width]])
                window = Window(number, first, spans[start : start + width])
                ids.append(row)
                segments.append(segment)
                ends.append(_label(question, window))
                windows.append(window)
        return Rows(
            ids,
            segments if frame.segments else None,
            ends,
            np.array([window.question for window in windows]),
            num_cut=num_cut,
            origins=windows,
        )

    def answers(
        self, outputs: Sequence[Array], rows: Rows, items: Sequence[Question], labels: tuple[str, ...], *, refuses: bool
    ) -> list[Answer]:
        answers = []
        for span in best_spans(outputs, rows, items):
            empty = refuses and span.null_odds > 0
            end = span.start + len(span.text)
            text, start, end = ("", 0, 0) if empty else (span.text, span.start, end)
            answers.append(Answer(text, start, end, span.probability, span.null_odds))
        return answers

    def named(self, answer: Answer, item: Question) -> Json:
        scores = {"score": rounded(answer.score), "null_odds": rounded(answer.null_odds)}
        return {"prediction": answer.text, "start": answer.start, "end": answer.end, **scores}

    def mean_outputs(self, models: Sequence[Sequence[Array]], rows: Rows) -> list[Array]:
        """Mean logits, as is usual for SQuAD."""
        return [np.mean([outputs[row] for outputs in models], axis=0) for row in range(len(rows.ids))]

    def _score(self, outputs: Sequence[Array], rows: Rows, items: Sequence[Question], labels: tuple[str, ...]) -> Json:
        spans = best_spans(outputs, rows, items)
        can_refuse = any(not q.answers for q in items)
        odds = [span.null_odds for span in spans] if can_refuse else None
        gold = [[text for text, _ in q.answers] for q in items]
        scores = score_answers(gold, [span.text for span in spans], odds, **self.measures)
        return {"metrics": scores, **self._mistakes(items, spans, can_refuse)}

    def example_values(
        self, outputs: Sequence[Array], rows: Rows, items: Sequence[Question], labels: tuple[str, ...], metric: str
    ) -> Array:
        measure = self.measures[metric]
        can_refuse = any(not q.answers for q in items)
        values = []
        for question, span in zip(items, best_spans(outputs, rows, items), strict=True):
            text = "" if can_refuse and span.null_odds > 0 else span.text
            values.append(max(measure(text, gold) for gold in golds([answer for answer, _ in question.answers])))
        return np.array(values)

    def _mistakes(self, items: Sequence[Question], spans: Sequence[Span], can_refuse: bool) -> Json:
        """Answers that share no word with any right one, the surest first."""
        wrong = []
        for number, (question, span) in enumerate(zip(items, spans, strict=True)):
            text = "" if can_refuse and span.null_odds > 0 else span.text
            wanted = [gold for gold, _ in question.answers] or [""]
            if max(self.measures["f1"](text, gold) for gold in wanted) == 0.0:
                wrong.append((number, wanted[0] or NO_ANSWER, text or NO_ANSWER, span.score))
        return self.worst(sorted(wrong, key=lambda row: -row[3]), items, "score")

    def baseline(self, train: Sequence[Question], dev: Sequence[Question], labels: tuple[str, ...]) -> dict[str, float]:
        """The whole passage as the answer; for files with questions that have none, no answer at all."""
        can_refuse = any(not q.answers for q in dev)
        gold = [[text for text, _ in q.answers] for q in dev]
        scores = score_answers(
            gold, ["" if can_refuse else q.context for q in dev], [1.0] * len(dev) if can_refuse else None,
            **self.measures,
        )  # fmt: skip
        return {name: scores[name] for name in ("f1", "exact")}


class CharacterSpans(Spans):
    """The same, with answers compared by characters: words have no spaces between them in the answers' language."""

    name = "character_spans"
    measures: ClassVar[dict[str, Measure]] = {"exact": characters.exact, "f1": characters.f1}

    def fits(self, heads: Heads) -> bool:
        return False  # a span head does not say how its answers are compared: words, unless task.json knows better


def _mute_notes(mute: Sequence[Question]) -> list[str]:
    return [f"left out, for it asks nothing: {question.place}" for question in mute]


def _skipped_notes(skipped: dict[str, int]) -> list[str]:
    shown = ", ".join(f"{name} ({counted(count, 'question')})" for name, count in skipped.items())
    return [f"not scored, because corpora for pretraining hold them: {shown}"] if skipped else []


def _step(stride: int, width: int) -> int:
    """Tokens from window to window: narrow ones stand closer, so that an answer of any length is whole in one."""
    return min(stride, max(width - MAX_ANSWER_TOKENS, (width + 1) // 2))


def _starts(length: int, width: int, step: int) -> Iterator[int]:
    """Where windows start; the last one reaches the end."""
    start = 0
    while True:
        yield start
        if start + width >= length:
            return
        start += step


def _label(question: Question, window: Window) -> Array:
    """First and last position of the first answer, if all of it is in the window; else (0, 0)."""
    if not question.answers:
        return np.zeros(2, np.int64)
    text, begin = question.answers[0]
    end = begin + len(text)
    touched = np.flatnonzero((window.spans[:, 1] > begin) & (window.spans[:, 0] < end))
    if len(touched) == 0:
        return np.zeros(2, np.int64)
    # What the tokens leave out at either end may be white space, which has no token of its own; more: it goes on
    # outside the window and is no answer here.
    missing = (
        question.context[begin : window.spans[touched[0], 0]] + question.context[window.spans[touched[-1], 1] : end]
    )
    if missing.strip():
        return np.zeros(2, np.int64)
    return np.array([window.first + touched[0], window.first + touched[-1]], np.int64)


# ------------------------------------------------------------------------------------------------- answers


def best_spans(outputs: Sequence[Array], rows: Rows, questions: Sequence[Question]) -> list[Span]:
    """Each question's best span over its windows.

    An output has columns start, end and, for SQuAD 2.0, the answerability logit (the same at every position). Without
    it the odds of no answer are the score of <s> (the least over the windows) less that of the best span, as in BERT.
    """
    best: list[tuple[float, int, int] | None] = [None] * len(questions)
    likely = np.zeros(len(questions))
    null = np.full(len(questions), np.inf)
    answerable = np.full(len(questions), -np.inf)
    has_logit = outputs[0].shape[1] > 2
    totals = [float(np.logaddexp.reduce(logits[:, :2].astype(np.float64), axis=0).sum()) for logits in outputs]
    for logits, window in zip(outputs, rows.origins, strict=True):
        number = window.question
        null[number] = min(null[number], float(logits[0, 0] + logits[0, 1]))
        if has_logit:
            answerable[number] = max(answerable[number], float(logits[0, 2]))
        score, first, last = best_span(logits[window.first : window.first + len(window.spans)])
        before = best[number]
        if before is None or score > before[0]:
            best[number] = (score, int(window.spans[first, 0]), int(window.spans[last, 1]))
    for total, window in zip(totals, rows.origins, strict=True):
        chosen = best[window.question]
        assert chosen is not None, "a question has at least one window"
        likely[window.question] = max(likely[window.question], min(1.0, np.exp(chosen[0] - total)))
    spans = []
    for number, question in enumerate(questions):
        chosen = best[number]
        assert chosen is not None, "a question has at least one window"
        score, begin, end = chosen
        odds = -answerable[number] if has_logit else null[number] - score
        spans.append(Span(question.context[begin:end], begin, score, float(likely[number]), float(odds)))
    return spans


def best_span(logits_T2: Array) -> tuple[float, int, int]:
    """(score, first, last) of the likeliest span among the 20 best starts and ends."""
    start_T, end_T = logits_T2[:, 0], logits_T2[:, 1]
    starts = np.argsort(-start_T, kind="stable")[:NUM_BEST]
    ends = np.argsort(-end_T, kind="stable")[:NUM_BEST]
    score = start_T[starts][:, None].astype(np.float64) + end_T[ends][None, :]
    length = ends[None, :] - starts[:, None] + 1
    allowed = (length >= 1) & (length <= MAX_ANSWER_TOKENS)
    if not allowed.any():
        # The best starts all come after the best ends: the best single token is the honest answer.
        place = int(np.argmax(start_T + end_T))
        return float(start_T[place] + end_T[place]), place, place
    score = np.where(allowed, score, -np.inf)
    row, column = np.unravel_index(int(np.argmax(score)), score.shape)
    return float(score[row, column]), int(starts[row]), int(ends[column])
