"""Batches as a pure function of a cursor: which rows a step sees, dealt to ranks, laid out and masked.

In: a PREPARED folder, DataSettings, a tokenizer. Out: a BatchSource. Slots 0, 1, 2, ... are dealt to sources by
weight, a source's serials run through keyed permutations of its examples, one permutation a pass; so slot -> (source,
pass, example) has a closed form and any step is found at once. Steps of a fixed number of rows take the next slots;
steps of a number of tokens are cut from fixed windows of slots. The step's rows are settled for all ranks together
and then dealt, so ids and masks do not depend on ranks, workers or micro-batches. Evaluation is in evaluation.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from threading import Lock

import numpy as np

from remask.data import order
from remask.data.corpus import Chosen, Corpus, uses_bert_layout
from remask.data.evaluation import evaluation_batches, evaluation_length, is_comparable, masked_bytes, word_batches
from remask.data.examples import Recipe
from remask.data.index import open_index
from remask.data.masking import Masker, rate_at
from remask.data.ramp import Ramp
from remask.data.rows import Vocabulary, padded_width
from remask.data.settings import DataSettings
from remask.data.tokens import Tokens
from remask.errors import ConfigError, DataError
from remask.schema import Batch, BatchSource, Json

__all__ = ["Batches", "evaluation_batches", "is_comparable", "masked_bytes", "open_batches", "word_batches"]

_LOOKUP_ROWS = 4096
_NOMINAL_STEPS = 100_000  # of a run whose parts are timed before its length is known
# Of a pass of token batches. Rows are seldom full: a step of micro_rows x length tokens has a row or two more than
# micro_rows, and two passes of half as many take a tenth longer (4 x 192, EXPERIMENTS.md).
_SLACK = 1.125
_WINDOW_STEPS = 16  # token batches are cut from windows of about this many steps, or some more


class Batches(BatchSource):
    """The BatchSource of pretraining. Cursors: {"step"} for rows, and the window with the batch in it for tokens."""

    def __init__(
        self,
        settings: DataSettings,
        vocabulary: Vocabulary,
        phases: Sequence[Corpus],
        *,
        seed: int,
        rank: int,
        world_size: int,
        total_steps: int | None,
    ) -> None:
        self.settings, self._vocabulary, self.phases = settings, vocabulary, list(phases)
        self._seed, self._rank, self._world_size, self._total_steps = seed, rank, world_size, total_steps
        self._ramp = Ramp(settings.batch, total_steps)
        self._windows: OrderedDict[tuple[bool, int], list[Chosen]] = OrderedDict()
        self._lock = Lock()

    # ------------------------------------------------------------------------------- the BatchSource protocol

    def first_cursor(self) -> Json:
        return {"step": 0} if self.settings.batch.num_tokens is None else {"step": 0, "window": 0, "batch": 0}

    def take(self, cursor: Json) -> tuple[list[Batch], Json]:
        """This rank's micro-batches of the step at the cursor, and the next cursor."""
        chosen, following = self.plan(cursor)
        phase = self._phase_at(cursor["step"])
        rate = self._rate_at(cursor["step"])
        return [self._read(phase, part, rate) for part in self.deal(chosen, cursor["step"])], following

    def plan(self, cursor: Json) -> tuple[Chosen, Json]:
        """The rows of a step over all ranks, and the next cursor."""
        step = cursor["step"]
        phase = self._phase_at(step)
        if self.settings.batch.num_tokens is None:
            return self._rows_of_step(phase, step - self._first_step(phase)), {"step": step + 1}
        if "window" not in cursor:
            raise ConfigError(
                f"data.batch.num_tokens = {self.settings.batch.num_tokens}: this run has counted its batches in rows "
                "so far, and cannot go on in tokens"
            )
        window, number = cursor["window"], cursor["batch"]
        if cursor.get("short", phase.is_short) != phase.is_short:  # it counts windows of rows of the other length
            window, number = 0, 0
        cut = self._window(phase, window, self._cut_by_tokens)
        following = {"step": step + 1, "window": window, "batch": number + 1}
        if number + 1 == len(cut):
            following |= {"window": window + 1, "batch": 0}
        return cut[number], following | ({"short": phase.is_short} if len(self.phases) > 1 else {})

    # -------------------------------------------------------------------------------------- rows of a step

    def with_steps(self, num_steps: int) -> Batches:
        """The same batches in a training of this many steps; until it is known all goes on as at the start."""
        return Batches(
            self.settings,
            self._vocabulary,
            self.phases,
            seed=self._seed,
            rank=self._rank,
            world_size=self._world_size,
            total_steps=num_steps,
        )

    def _phase_at(self, step: int) -> Corpus:
        short = len(self.phases) > 1 and (self._total_steps is None or step < self._short_steps)
        return self.phases[0 if short else -1]

    def _first_step(self, phase: Corpus) -> int:
        return self._short_steps if len(self.phases) > 1 and phase is self.phases[1] else 0

    @property
    def _short_steps(self) -> int:
        return round(self.settings.short_steps * (self._total_steps or 0))

    def _rate_at(self, step: int) -> float:
        return rate_at(self.settings.masking, step / max(self._total_steps - 1, 1) if self._total_steps else 0.0)

    def _rows_of_step(self, phase: Corpus, step: int) -> Chosen:
        steps = self._steps_per_window
        return self._window(phase, step // steps, self._cut_by_rows)[step % steps]

    @property
    def _steps_per_window(self) -> int:
        """Steps whose rows are looked up together: those of a bucket, or as many as is cheaper than one by one."""
        batch = self.settings.batch
        return batch.bucket_steps if batch.bucket_steps > 1 else max(_LOOKUP_ROWS // batch.num_rows, 1)

    def _window(self, phase: Corpus, number: int, cut: Callable[[Corpus, int], list[Chosen]]) -> list[Chosen]:
        """A window's batches; the last few are kept, since consecutive steps ask for the same one."""
        with self._lock:
            key = (phase.is_short, number)
            if key not in self._windows:
                self._windows[key] = cut(phase, number)
                while len(self._windows) > 3:
                    self._windows.popitem(last=False)
            return self._windows[key]

    def _cut_by_rows(self, phase: Corpus, window: int) -> list[Chosen]:
        steps, first = self._steps_per_window, self._first_step(phase)
        begin = first + window * steps
        num_rows = np.array([self._ramp.rows(step) for step in range(begin, begin + steps)])
        start = self._ramp.before(begin) - self._ramp.before(first)
        chosen = phase.choose(np.arange(start, start + int(num_rows.sum())))
        if self.settings.batch.bucket_steps == 1:
            return [chosen.take(at) for at in np.split(np.arange(len(chosen.rows)), np.cumsum(num_rows)[:-1])]
        # Sorted by size, a window is cut into steps of rows of nearly one length, which need little padding.
        # The steps then come in a drawn order: from short to long would be a curriculum that nobody asked for.
        place = self._shuffled(phase, window, steps)  # of each step among the parts of the sorted rows
        parts = np.split(np.argsort(chosen.sizes, kind="stable"), np.cumsum(num_rows[np.argsort(place)])[:-1])
        return [chosen.take(parts[at]) for at in place]

    def _cut_by_tokens(self, phase: Corpus, window: int) -> list[Chosen]:
        """Batches of nearly equal numbers of tokens, as near to num_tokens as a whole number of them allows."""
        # How many rows a number of tokens is depends on the rows, so a step's rows would depend on all steps before.
        # Windows of a fixed number of slots end that chain: a step is found from its window alone, after any resume.
        wanted, steps = self.settings.batch.num_tokens or 0, self.settings.batch.bucket_steps
        num_buckets = -(-_WINDOW_STEPS // steps)
        num_slots = max(round(num_buckets * steps * wanted / phase.mean_size), 1)
        chosen = phase.choose(np.arange(window * num_slots, (window + 1) * num_slots))
        if steps > 1:
            bucket = np.arange(num_slots) * num_buckets // num_slots
            chosen = chosen.take(np.lexsort((chosen.sizes, bucket)))
        total = np.cumsum(chosen.sizes)
        num_batches = max(round(int(total[-1]) / wanted), 1)
        middle = total - chosen.sizes / 2  # a row belongs to the batch that holds its middle
        ends = np.searchsorted(middle, total[-1] * np.arange(1, num_batches) / num_batches)
        batches = [chosen.take(at) for at in np.split(np.arange(num_slots), ends)]
        return [batches[at] for at in self._shuffled(phase, window, num_batches)] if steps > 1 else batches

    def _shuffled(self, phase: Corpus, window: int, count: int) -> np.ndarray:
        key = order.key_of("window", self._seed, phase.is_short, window)
        return order.permute(np.arange(count), count, key)

    # ------------------------------------------------------------------------------- dealing and reading

    def deal(self, chosen: Chosen, step: int) -> list[Chosen]:
        """This rank's micro-batches of a step's rows: groups, each dealt row by row, so that all ranks have as many.

        Who gets the first row goes round with the steps: sources come in a regular pattern, which would otherwise give
        some ranks more of one source, and of its row lengths, for ever."""
        count, world, phase = len(chosen.rows), self._world_size, self._phase_at(step)
        per_group = self.settings.batch.micro_rows * world
        if self.settings.batch.num_tokens is None:
            groups = [np.arange(at, min(at + per_group, count)) for at in range(0, count, per_group)]
        else:
            groups = self._groups_by_tokens(chosen, phase)
        assert all(len(group) >= world for group in groups), "a rank without a row"
        return [chosen.take(group[(self._rank + step) % world :: world]) for group in groups]

    def _groups_by_tokens(self, chosen: Chosen, phase: Corpus) -> list[np.ndarray]:
        """The fewest even groups whose padded share per rank is at most `pass_tokens`.

        Every rank needs a row of every group. So with micro_rows = 1, where the ranks do not divide the number of rows,
        some ranks have two rows in some groups, which is one more than asked.
        """
        count, limit = len(chosen.rows), self._pass_tokens(phase)
        most = max(count // self._world_size, 1)
        for number in range(1, most):
            groups = np.array_split(np.arange(count), number)
            if all(self._width(chosen.sizes[group], phase) * -(-len(group) // self._world_size) <= limit
                   for group in groups):  # fmt: skip
                return groups
        return np.array_split(np.arange(count), most)

    def _pass_tokens(self, phase: Corpus) -> float:
        batch = self.settings.batch
        return batch.micro_rows * phase.recipe.length * (1.0 if batch.num_tokens is None else _SLACK)

    def _width(self, sizes: np.ndarray, phase: Corpus) -> int:
        length = phase.recipe.length
        if self.settings.batch.pad == "length":
            return length
        return padded_width(int(sizes.max()), self.settings.batch.pad_multiple, length)

    def _read(self, phase: Corpus, chosen: Chosen, rate: float) -> Batch:
        return phase.read(chosen, self._width(chosen.sizes, phase), rate, self._vocabulary)

    # -------------------------------------------------------------------------------------- for people

    @property
    def num_examples(self) -> int:
        """Of the full row length."""
        return self.phases[-1].num_examples

    @property
    def tokens_per_step(self) -> float:
        """Marks included, padding not; of the full row length and the full batch."""
        batch = self.settings.batch
        return float(batch.num_tokens or batch.num_rows * self.phases[-1].mean_size)

    @property
    def pass_tokens(self) -> float:
        """Padded tokens that one forward pass of a rank has at most."""
        return self._pass_tokens(self.phases[-1])

    @property
    def steps_per_epoch(self) -> float:
        """Steps after which every source was seen once, on the average over sources."""
        return self.num_examples * self.phases[-1].mean_size / self.tokens_per_step

    def tokens_in(self, num_steps: int) -> float:
        """About how many tokens a run of so many steps reads, its short rows and its growing batch counted."""
        return sum(num_rows * phase.mean_size for phase, num_rows in self._rows_in(num_steps))

    def passes_in(self, num_steps: int) -> float:
        """How often such a run reads everything, in rows of either length."""
        return sum(num_rows / phase.num_examples for phase, num_rows in self._rows_in(num_steps))

    def _rows_in(self, num_steps: int) -> list[tuple[Corpus, float]]:
        """Rows of each length that such a run reads."""
        source = self.with_steps(num_steps)
        short = source._short_steps if len(self.phases) > 1 else 0
        if (num_tokens := self.settings.batch.num_tokens) is not None:
            parts = ((self.phases[0], short), (self.phases[-1], num_steps - short))
            return [(phase, steps * num_tokens / phase.mean_size) for phase, steps in parts]
        before = source._ramp.before(short)
        return [(self.phases[0], before), (self.phases[-1], source._ramp.before(num_steps) - before)]

    def stretches(self) -> list[tuple[float, Batches, Batches]]:
        """A run cut where the cost of a step begins to move otherwise: (share of the steps, batches that are all as at
        the start of the stretch, batches as at its end). Within one, rows have one length and the batch grows evenly or
        not at all."""
        settings, steps = self.settings, _NOMINAL_STEPS
        shares = [settings.short_steps, settings.batch.ramp_steps if settings.batch.ramp_from else 0.0, 1.0]
        ends = sorted({round(share * steps) for share in shares} - {0})
        run = self.with_steps(steps)
        kinds: dict[tuple[bool, int], Batches] = {}
        stretches, begin = [], 0
        for end in ends:
            first, last = (kinds.setdefault(*run._all_like(step)) for step in (begin, end - 1))
            stretches.append(((end - begin) / steps, first, last))
            begin = end
        return stretches

    def _all_like(self, step: int) -> tuple[tuple[bool, int], Batches]:
        """Batches that are all of the kind of this step (one row length, one size), under a key of that kind."""
        phase, num_rows = self._phase_at(step), self._ramp.rows(step)
        batch = self.settings.batch.model_copy(update={"num_rows": num_rows, "ramp_from": None})
        settings = self.settings.model_copy(update={"batch": batch, "short_steps": 0.0})
        world = {"seed": self._seed, "rank": self._rank, "world_size": self._world_size}
        return (phase.is_short, num_rows), Batches(settings, self._vocabulary, [phase], total_steps=None, **world)

    def describe(self) -> Json:
        """Counts for reports: examples, mean row length, sentences that were cut, pairs; and the rows of evaluations.

        `evaluation.is_capped`: the run's rows are shorter than the evaluation's should be, so its held-out numbers
        compare with runs of the same row length only.
        """
        phase = self.phases[-1]
        return {
            "examples": self.num_examples,
            "tokens_per_step": round(self.tokens_per_step),
            "steps_per_epoch": round(self.steps_per_epoch, 2),
            "padding_share": round(1 - phase.mean_size / phase.recipe.length, 4),
            "evaluation": {
                "length": (length := evaluation_length(self.settings)),
                "is_capped": length < (self.settings.evaluation.length or length),
            },
            **_rows_facts(phase),
            **({"short_rows": _rows_facts(self.phases[0])} if len(self.phases) > 1 else {}),
        }

    def batch_of_epoch(self, number: int, epoch: int, max_rows: int | None = None) -> Batch:
        """All ranks' rows of the number-th step that starts in a pass, as one batch: the rows that `take` deals.

        A step starts in pass `epoch` if the steps before it read all the data's number of rows `epoch` times, but not
        once more (while rows are short: the number of short rows). So in pass 0 it is the run's step `number`, and a
        step in which one pass ends and the next begins belongs to the one that ends. Where no step starts in a pass,
        since one step reads more than that, batch 0 is what such a step has of the pass.
        """
        cursor, read = self._before_pass(epoch)
        before, num_batches = cursor, 0
        while read < epoch + 1:
            if read >= epoch:
                if num_batches == number:
                    return self._read_step(cursor, max_rows)
                num_batches += 1
            before = cursor
            num_rows, cursor = self._skip(cursor)
            read += Fraction(num_rows, self._phase_at(before["step"]).num_examples)
        if num_batches == number == 0:
            return self._read_step(before, max_rows, epoch)
        raise DataError(f"batch {number}: the pass has batches 0 to {max(num_batches, 1) - 1}")

    def _before_pass(self, epoch: int) -> tuple[Json, Fraction]:
        """A cursor at or before a pass and how many passes were read until there; the last such where that is known."""
        num_rows, size = self.settings.batch.num_rows, self.num_examples
        if self.settings.batch.num_tokens is not None or self.settings.batch.ramp_from or len(self.phases) > 1:
            return self.first_cursor(), Fraction()
        step = epoch * size // num_rows
        return {"step": step}, Fraction(step * num_rows, size)

    def _skip(self, cursor: Json) -> tuple[int, Json]:
        """How many rows the step at the cursor reads, and the next cursor."""
        if self.settings.batch.num_tokens is None:
            return self._ramp.rows(cursor["step"]), {"step": cursor["step"] + 1}
        chosen, following = self.plan(cursor)
        return len(chosen.rows), following

    def _read_step(self, cursor: Json, max_rows: int | None, only_pass: int | None = None) -> Batch:
        """A step's rows; `only_pass`: those that are in this pass of their source."""
        step = cursor["step"]
        chosen, _ = self.plan(cursor)
        if only_pass is not None:
            chosen = chosen.take(np.flatnonzero(chosen.passes == only_pass))
            if not len(chosen.rows):
                raise DataError(f"epoch {only_pass}: no step starts in it, and step {step} has no row of it")
        return self._read(self._phase_at(step), chosen.take(slice(0, max_rows)), self._rate_at(step))

    def example(self, example_id: int, epoch: int) -> Batch:
        """One example by its id, with its mask in the given pass."""
        for phase in self.phases:
            if (chosen := phase.find(example_id, epoch)) is not None:
                return self._read(phase, chosen, self._rate_at(int(epoch * self.steps_per_epoch)))
        raise DataError(f"example {example_id}: no such example; ids are those that batches show")


def _rows_facts(phase: Corpus) -> Json:
    """Counts of the rows of one length, in total and by source."""
    sources = {
        name: {"examples": len(examples), "mean_length": round(float(examples.sizes.mean()), 1), **examples.counts}
        for name, examples in zip(phase.names, phase.examples, strict=True)
        if len(examples)
    }
    num_cut = sum(source["cut_sentences"] for source in sources.values())
    return {"length": phase.recipe.length, "cut_sentences": num_cut, "sources": sources}


def open_batches(
    prepared: Path,
    settings: DataSettings,
    tokenizer: Vocabulary,
    *,
    seed: int,
    rank: int = 0,
    world_size: int = 1,
    total_steps: int | None = None,
    index_folder: Path | None = None,
) -> Batches:
    """Batches of the train split. What follows the progress of the training needs `total_steps` (see `with_steps`)."""
    _check(settings, world_size)
    tokens = Tokens.open(prepared, "train").first(settings.max_tokens)
    bert_layout = uses_bert_layout(settings, tokenizer)
    lengths = [settings.length]
    if settings.short_steps:
        lengths.insert(0, settings.short_length)
    masker = Masker(settings.masking, tokenizer)
    phases = []
    for number, length in enumerate(lengths):
        recipe = Recipe.of(settings, length, bert_layout, seed)
        examples = open_index(tokens, recipe, index_folder)
        is_short = number < len(lengths) - 1
        phases.append(
            Corpus(recipe, tokens, examples, masker, weights=settings.source_weights, seed=seed, is_short=is_short)
        )
    return Batches(settings, tokenizer, phases, seed=seed, rank=rank, world_size=world_size, total_steps=total_steps)


def _check(settings: DataSettings, world_size: int) -> None:
    batch = settings.batch
    name = "num_rows" if batch.ramp_from is None else "ramp_from"
    if batch.num_tokens is None and (num_rows := getattr(batch, name)) % world_size:
        raise ConfigError(f"data.batch.{name} = {num_rows}: cannot be dealt evenly to {world_size} ranks")
    # Batches of tokens may be a little smaller than asked, and every rank needs a row.
    least = -(-settings.length * world_size * _WINDOW_STEPS // (_WINDOW_STEPS - 1))
    if batch.num_tokens is not None and batch.num_tokens < least:
        raise ConfigError(
            f"data.batch.num_tokens = {batch.num_tokens}: rows of {settings.length} on {world_size} ranks need at"
            f" least {least}"
        )
