"""Task retrieve made ready for a model: pairs from a file or from plain text, their negatives, their rows.

In: the opened model and the files. Out: a `PairPart`, whose steps compare all of their rows. Not here: what is
learned (tasks/retrieve), negatives and teachers (mining), pairs from text (unsupervised).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from remask.config import fingerprint
from remask.errors import ConfigError, DataError
from remask.progress import Progress, counted
from remask.schema import BatchSource
from remask.tasks.kind import Problem
from remask.tasks.kinds import StoredTask, complete
from remask.tasks.pair_batches import PairBatches
from remask.tasks.retrieve import PairTable, Retrieve, TextPair, pair_table
from remask.tasks.settings import LossSettings, RetrieveSettings, TaskBatchSettings
from remask.tune.examples import opened
from remask.tune.part import Part, Start, model_notes, model_settings
from remask.tune.settings import FinetuneRun

if TYPE_CHECKING:
    from remask.model.network import Network
    from remask.task_objectives import PairObjective


@dataclass(frozen=True)
class PairPart(Part):
    """Pairs as rows for one model: the queries of all pairs, then every document once."""

    table: PairTable
    settings: RetrieveSettings

    @property
    def fingerprint(self) -> str:
        margins = self.table.margins_of_pair or ()
        more = [[values.tolist() for values in of_pair] for of_pair in (self.table.negatives_of_pair, margins)]
        return fingerprint([super().fingerprint, *more])

    def batches(self, settings: TaskBatchSettings, seed: int, rank: int, world_size: int) -> BatchSource:
        return PairBatches(
            self.table, self.train_rows, self.pad_id, settings, num_negatives=self.settings.num_negatives, seed=seed,
            rank=rank, world_size=world_size,
        )  # fmt: skip

    def objective(self, seed: int, network: Network, loss: LossSettings) -> PairObjective:
        from remask.task_objectives import PairObjective

        kind = self.problem.kind
        kind.plan_loss(self.problem, loss, network.head_settings)  # refuses what only other tasks have
        assert isinstance(kind, Retrieve)
        return PairObjective(kind, seed, self.table)

    def finished(self, network: Network) -> Network:
        from remask.model.network import with_heads
        from remask.model.settings import HeadSettings

        return with_heads(network, HeadSettings(pooling=network.head_settings.pooling), seed=0)

    @property
    def stored(self) -> StoredTask:
        return replace(super().stored, prompts=self.settings.prompts)


def open_pairs(run: FinetuneRun, start: Start, progress: Progress) -> PairPart:
    """Read, number and encode the pairs; mine what the settings ask for."""
    settings, kind = run.retrieve, Retrieve(run.retrieve)
    width = start.loaded.settings.hidden_size
    if any(not 0 < narrow < width for narrow in settings.widths):
        raise ConfigError(f"retrieve.widths = {list(settings.widths)}: must lie between 1 and {width - 1}")
    problem = replace(_problem(run, progress), kind=kind)
    problem = replace(problem, notes=(*problem.notes, *model_notes(run, start, problem)))
    table = pair_table(problem.train)
    if len(table.documents) < 2:
        raise DataError("all training pairs have the same document: there is nothing to choose between")
    table = _with_negatives(run, table, kind, start, progress)
    frame = start.reader.frame(run.rows, model_settings(run, start.loaded.settings).max_length)
    train = kind.text_rows(table.queries, table.documents, start.tokenizer, frame, run.rows)
    dev = kind.encode(problem.dev, (), start.tokenizer, frame, run.rows)
    part = PairPart(run, problem, train, dev, start.tokenizer.pad_id, None, table, settings)
    for note in problem.notes:
        progress.say(f"  {note}")
    if part.texts_cut:
        progress.say(f"  {counted(part.texts_cut, 'text')} cut after {frame.max_length} tokens")
    sides = f"{table.num_pairs:,} pairs of {len(table.known_of_query):,} queries and {len(table.documents):,} documents"
    progress.say(f"  {sides}; scored on {problem.facts['dev_queries']:,} among {problem.facts['dev_documents']:,}")
    return part


def _problem(run: FinetuneRun, progress: Progress) -> Problem[TextPair]:
    if run.retrieve.unsupervised is None:
        return opened(run)
    from remask.tasks.retrieve import read_pairs
    from remask.tune.unsupervised import pairs_of_text

    train, dev, notes = pairs_of_text(run.retrieve.unsupervised, run.retrieve.pairs, progress)
    if run.dev_file is not None:
        dev, _, more = read_pairs(Path(run.dev_file), run.table)
        notes = (*notes, *more)
    else:
        notes = (*notes, f"no dev file: {len(dev):,} pairs of other documents of the text are scored")
    return complete(Retrieve().problem(run.task, train, dev, notes, {}), run.max_train, run.max_dev)


def _with_negatives(run: FinetuneRun, table: PairTable, kind: Retrieve, start: Start, progress: Progress) -> PairTable:
    """What each pair has beside the documents of others: mined texts, and a teacher's word on them."""
    from remask.tune import mining

    settings = run.retrieve
    if settings.negatives == "words":
        table = table.with_negatives(mining.near_by_words(table, settings.pool))
    elif settings.negatives == "model":
        progress.say(f"  negatives by the vectors of {settings.miner or run.init}")
        table = table.with_negatives(mining.near_by_vectors(table, kind, settings.miner or run.init, run.rows))
    if settings.negatives != "given":
        found = [len(negatives) for negatives in table.negatives_of_pair]
        progress.say(f"  {sum(found):,} hard negatives; {_without(found)}")
    if settings.distil is None:
        return table
    if not any(len(negatives) for negatives in table.negatives_of_pair):
        raise ConfigError(
            "retrieve.distil compares answers with negatives: name their column (--negative COL) or have them mined "
            "(--set retrieve.negatives=words)"
        )
    return replace(table, margins_of_pair=mining.margins(table, settings.distil, progress))


def _without(found: Sequence[int]) -> str:
    none = sum(count == 0 for count in found)
    return f"{none:,} of {len(found):,} pairs have none" if none else "every pair has some"
