"""One of several options: RACE, QNLI and WSC as rankings, and files like them.

A question becomes a group of rows, one an option: <s> question and option </s></s> passage </s>, the first part cut at
128 tokens, the whole at 512 (RoBERTa, section 5.3). The rows of a group stay together in training; when answering, the
number of options may differ from question to question. Not here: files (race), pairs to rank (ranking).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from remask.errors import ConfigError, DataError
from remask.schema import Batch, Json
from remask.tables import Cells, is_saved_dataset
from remask.tasks import ranking
from remask.tasks.clue import read_chid
from remask.tasks.glue import cut_by_group, cut_note, read_glue_file
from remask.tasks.kind import Heads, Labelled, NoiseT, Problem, Sums, TaskKind, TaskLoss, TaskNetwork, TaskSource
from remask.tasks.numbers import divergence, log_of, most_frequent, rounded, softmax, surest_mistakes
from remask.tasks.race import ChoiceQuestion, parts_of, race_paths, read_choices
from remask.tasks.records import Choice
from remask.tasks.rows import Frame, Rows
from remask.tasks.settings import LossSettings, RowSettings, TableSettings
from remask.tasks.specs import TASKS
from remask.tasks.tables import BadRow, text_of
from remask.tasks.texts import Classify
from remask.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

Array = np.ndarray
MAX_CHOICE_TOKENS = 128
MARGIN = 1.0


class Choices(TaskKind[ChoiceQuestion]):
    """Questions with options."""

    name, metric, method = "choice", "accuracy", "choose"
    own_columns = True

    # ------------------------------------------------------------------------------------------------ reading

    def open(self, source: TaskSource) -> Problem[ChoiceQuestion]:
        if source.task == "clue:chid":
            return self._open_chid(source)
        if source.task in TASKS and source.task != "race":
            return self._open_rankings(source)
        if source.train is not None and source.dev is None and source.folder is None:
            questions = read_choices([source.train], source.table)
            train, dev = cut_by_group(questions, lambda q: q.article or q.question, source.train)
            return Problem(source.task, self, (), self.metric, train, dev, (cut_note(source.train, "by passage"),))
        if source.train is not None and source.dev is not None:
            train_paths, dev_paths = [source.train], [source.dev]
        elif source.folder is not None:
            train_paths, dev_paths = race_paths(source.folder)
        else:
            raise ConfigError(f"task {source.task} needs its files: --data FOLDER, or --train FILE (and --dev FILE)")
        train, dev = (read_choices(paths, source.table) for paths in (train_paths, dev_paths))
        return Problem(source.task, self, (), self.metric, train, dev)

    def _open_chid(self, source: TaskSource) -> Problem[ChoiceQuestion]:
        train_file, dev_file = source.files()
        train, notes = read_chid(train_file), []
        if dev_file is None:
            train, dev = cut_by_group(train, lambda q: q.question, train_file)
            notes.append(cut_note(train_file, "by passage"))
        else:
            dev = read_chid(dev_file)
        return Problem(source.task, self, (), self.metric, train, dev, tuple(notes))

    def _open_rankings(self, source: TaskSource) -> Problem[ChoiceQuestion]:
        """QNLI's candidates and WSC's phrases, two by two."""
        task, notes = source.task, []
        if task == "wsc":
            train_file, dev_file = source.files()
            if dev_file is None:  # what is trained on and what is scored are read in different ways
                raise ConfigError(f"task {task} needs both of its files: --data FOLDER, or --train FILE and --dev FILE")
            train, untrained = ranking.read_wsc(train_file, training=True)
            dev, unscored = ranking.read_wsc(dev_file, training=False)
            words = (
                "examples are false or have one candidate only: not trained on",
                "have one candidate only: not scored",
            )
        else:
            plain = TASKS[task]["form_of"]
            pairs = Classify().open(TaskSource(plain, source.table, source.train, source.dev, source.folder))
            notes = list(pairs.notes)
            train, untrained = ranking.candidate_pairs(pairs.train, pairs.labels[0])
            dev, unscored = ranking.candidate_pairs(pairs.dev, pairs.labels[0])
            without = "examples have no other candidate of their question: not"
            words = f"{without} trained on", f"{without} scored"
            if not train or not dev:
                raise DataError(f"task {task}: no question has two candidates to compare")
        notes += [f"{count:,} {text}" for count, text in zip((untrained, unscored), words, strict=True) if count]
        counts = {"dropped": {"nothing to rank": untrained + unscored}}
        return Problem(task, self, (), self.metric, train, dev, tuple(notes), counts)

    def read_labelled(
        self, path: Path, task: str | None, labels: tuple[str, ...], table: TableSettings
    ) -> Labelled[ChoiceQuestion]:
        if task not in TASKS or task == "race":
            return Labelled(read_choices([path], table))
        if task == "clue:chid":
            return Labelled(read_chid(path))
        if task == "wsc":
            questions, unscored = ranking.read_wsc(path, training=False)
        else:
            plain = TASKS[task]["form_of"]
            examples = read_glue_file(plain, TASKS[plain], path).examples
            questions, unscored = ranking.candidate_pairs(examples, TASKS[plain]["labels"][0])
        if not questions:
            raise DataError(f"{path}: no question has two candidates to compare")
        return Labelled(questions, [f"{unscored:,} have no other candidate: not scored"] if unscored else [])

    def has_own_layout(self, path: Path) -> bool:
        """RACE's folders."""
        return path.is_dir() and not is_saved_dataset(str(path))

    def _own_rows(self, path: Path, table: TableSettings) -> Iterator[Cells]:
        for number, asked in enumerate(read_choices([path]), 1):
            values = {"article": asked.article, "question": asked.question, "options": list(asked.options)}
            yield Cells(values, asked.place, number)

    def columns(self, table: TableSettings, text: str | None, text2: str | None) -> tuple[str, ...]:
        """Question and options; a third names the passage, which a row may lack."""
        return text2 or "question", "options", text or "article"

    def required(self, columns: Sequence[str]) -> Sequence[str]:
        return columns[:2]

    def item(self, cells: Cells, columns: Sequence[str], table: TableSettings) -> ChoiceQuestion:
        question, offered, passage = columns
        article = cells.values.get(passage) or ""
        if not isinstance(article, str):
            raise BadRow("text of another type", f"column {passage!r} holds no text")
        value = cells.values.get(offered)
        options = value.split(table.separator) if isinstance(value, str) else value
        if not isinstance(options, list) or len(options) < 2 or not all(isinstance(o, str) and o for o in options):
            raise BadRow("options", f"column {offered!r} must hold two texts or more, not {str(value)[:60]!r}")
        return ChoiceQuestion(article, text_of(cells, question), tuple(options), 0, "", cells.place)

    def key(self, item: ChoiceQuestion) -> Hashable:
        return item.article, item.question, item.options

    def text(self, item: ChoiceQuestion) -> str:
        return " / ".join(part for part in (item.question or parts_of(item, item.options[0])[0], item.article) if part)

    # ------------------------------------------------------------------------------------------------ network

    def head(self, problem: Problem[ChoiceQuestion]) -> dict[str, int | bool]:
        return {"choice": True}

    def fits(self, heads: Heads) -> bool:
        return heads.choice

    def logits(
        self, network: TaskNetwork[NoiseT], hidden_BSD: torch.Tensor, batch: Batch, noise: NoiseT | None = None
    ) -> torch.Tensor:
        return network.choose(hidden_BSD, batch.lengths_B, noise)

    def plan_loss(self, problem: Problem[ChoiceQuestion], settings: LossSettings, heads: Heads) -> TaskLoss:
        super().plan_loss(problem, settings.model_copy(update={"choice": "softmax"}), heads)
        return TaskLoss(margin=settings.choice == "margin")

    def loss(self, logits: torch.Tensor, batch: Batch, plan: TaskLoss) -> tuple[Sums, torch.Tensor]:
        import torch.nn.functional as F

        labels_Q = batch.labels
        assert labels_Q is not None
        logits_QC = logits.view(labels_Q.shape[0], -1)
        if plan.margin:
            # The right option must be ahead of each other one by MARGIN; what is missing is the loss.
            missing_QC = (MARGIN + logits_QC - logits_QC.gather(1, labels_Q[:, None])).clamp(min=0)
            total = missing_QC.sum() - MARGIN * labels_Q.shape[0]  # the right one's distance to itself is no loss
        else:
            total = F.cross_entropy(logits_QC, labels_Q, reduction="sum")
        return {"task": total}, (logits_QC.argmax(-1) == labels_Q).sum()

    def difference(self, one: torch.Tensor, other: torch.Tensor, batch: Batch) -> torch.Tensor:
        assert batch.labels is not None
        return divergence(*(logits.view(batch.labels.shape[0], -1) for logits in (one, other))).sum()

    # ------------------------------------------------------------------------------------------- rows, answers

    def alike(self, items: Sequence[ChoiceQuestion]) -> list[list[int]]:
        """Questions with as many options as each other."""
        groups: dict[int, list[int]] = {}
        for number, item in enumerate(items):
            groups.setdefault(len(item.options), []).append(number)
        return list(groups.values())

    def encode(
        self, items: Sequence[ChoiceQuestion], labels: Sequence[str], tokenizer: Tokenizer, frame: Frame,
        settings: RowSettings, *, labelled: bool = True,
    ) -> Rows:  # fmt: skip
        """`group_size` rows a question, in the order of its options."""
        texts = [parts_of(q, option) for q in items for option in q.options]
        distinct = sorted({text for parts in texts for text in parts})
        encoded = dict(zip(distinct, tokenizer.encode_batch(distinct), strict=True))
        ids: list[Array] = []
        segments: list[Array] = []
        num_cut = 0
        size = len(items[0].options)
        for number, parts in enumerate(texts):
            first, *rest = [encoded[text] for text in parts]
            if len(first) == 0 or any(len(other) == 0 for other in rest):
                raise DataError(f"{items[number // size].place}: a question, option or passage without a single token")
            if rest:
                first = first[: min(MAX_CHOICE_TOKENS, frame.room(2) // 2)]
                room = frame.room(2) - len(first)
                num_cut += len(rest[0]) > room
                row, segment = frame.join([first, rest[0][:room]])
            else:
                num_cut += len(first) > frame.room(1)
                row, segment = frame.join([first[: frame.room(1)]])
            ids.append(row)
            segments.append(segment)
        return Rows(
            ids,
            segments if frame.segments else None,
            [np.int64(q.answer) for q in items],
            np.repeat(np.arange(len(items)), size),
            group_size=size,
            num_cut=-(-num_cut // size),
        )

    def _probabilities(self, outputs: Sequence[Array], items: Sequence[ChoiceQuestion]) -> Array:
        return softmax(np.array([float(output) for output in outputs]).reshape(len(items), -1))

    def answers(
        self, outputs: Sequence[Array], rows: Rows, items: Sequence[ChoiceQuestion], labels: tuple[str, ...], *,
        refuses: bool,
    ) -> list[Choice]:  # fmt: skip
        probs_QC = self._probabilities(outputs, items)
        return [Choice(int(probs.argmax()), tuple(probs.tolist())) for probs in probs_QC]

    def named(self, answer: Choice, item: ChoiceQuestion) -> Json:
        chosen = answer.index
        return {"prediction": item.options[chosen], "choice": chosen, "score": rounded(answer.scores[chosen])}

    def mean_outputs(self, models: Sequence[Sequence[Array]], rows: Rows) -> list[Array]:
        tables = [softmax(np.array(outputs, np.float64).reshape(-1, rows.group_size)) for outputs in models]
        return list(log_of(np.mean(tables, axis=0)).reshape(-1))

    def _score(
        self, outputs: Sequence[Array], rows: Rows, items: Sequence[ChoiceQuestion], labels: tuple[str, ...]
    ) -> Json:
        probs_QC, truth = self._probabilities(outputs, items), np.array([q.answer for q in items])
        chosen = probs_QC.argmax(1)
        mistakes = [
            (i, items[i].options[truth[i]], items[i].options[chosen[i]], probs_QC[i].max())
            for i in surest_mistakes(probs_QC, truth)
        ]
        return {"metrics": choice_metrics(chosen, items), **self.worst(mistakes, items, "confidence")}

    def example_values(
        self, outputs: Sequence[Array], rows: Rows, items: Sequence[ChoiceQuestion], labels: tuple[str, ...],
        metric: str,
    ) -> Array:  # fmt: skip
        if any(question.claim for question in items):
            return super().example_values(outputs, rows, items, labels, metric)
        chosen = self._probabilities(outputs, items).argmax(1)
        return (chosen == np.array([q.answer for q in items])).astype(np.float64)

    def baseline(
        self, train: Sequence[ChoiceQuestion], dev: Sequence[ChoiceQuestion], labels: tuple[str, ...]
    ) -> dict[str, float]:
        """Always the option in the place that is right most often."""
        return choice_metrics(np.full(len(dev), most_frequent([q.answer for q in train])), dev)


def choice_metrics(chosen: Array, questions: Sequence[ChoiceQuestion]) -> dict[str, float]:
    """Accuracy over all, and apart for each group."""
    right = chosen == np.array([q.answer for q in questions])
    metrics = {"accuracy": float(right.mean())}
    if any(q.claim for q in questions):
        metrics = {"accuracy": _claim_accuracy(chosen, questions), "pair_accuracy": metrics["accuracy"]}
    for name in sorted({q.group for q in questions} - {""}):
        metrics[f"{name}_accuracy"] = float(right[[q.group == name for q in questions]].mean())
    return metrics


def _claim_accuracy(chosen: Array, questions: Sequence[ChoiceQuestion]) -> float:
    """The share of claims that are held to be what they are."""
    held: dict[str, bool] = {}
    truth: dict[str, bool] = {}
    for question, choice in zip(questions, chosen, strict=True):
        assert question.claim is not None
        name, truth[question.claim[0]] = question.claim
        held[name] = held.get(name, True) and int(choice) == 0
    return float(np.mean([held[name] == truth[name] for name in truth]))
