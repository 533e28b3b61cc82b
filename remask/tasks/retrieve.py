"""Finding texts: one encoder reads queries and documents, and a query's vector lies near those of its answers.

In: tables with a query, a text that answers it (or several) and, where known, texts that only look like answers. A
step learns by choosing the answer of every query among all documents of the step (cross entropy of cosines); texts
that are known answers of a query, and copies of any, are never its negatives. Scored as rankings among all documents
of the dev file. Not here: batches (pair_batches), mined negatives and pairs from plain text (tune), indexes.

Shapes: N rows of a step, Q queries, D documents, E width of a vector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from remask.errors import ConfigError, DataError
from remask.schema import Batch, Json
from remask.tables import Cells, read_cells, require_columns
from remask.tasks import ranking_scores
from remask.tasks.glue import cut_by_group, cut_note
from remask.tasks.kind import Heads, Labelled, NoiseT, Problem, Sums, TaskKind, TaskLoss, TaskNetwork, TaskSource
from remask.tasks.records import Record
from remask.tasks.rows import Frame, Rows
from remask.tasks.settings import RetrieveSettings, RowSettings, TableSettings
from remask.tasks.tables import BadRow, check_id, count_or_refuse, text_of
from remask.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

Array = np.ndarray
DEPTH = 100  # ranks that are looked at
ONLY_VECTORS = "a model of task retrieve gives vectors: remask encode MODEL FILE --pooled, remask index, or .embed(…)"


@dataclass(frozen=True, slots=True)
class TextPair:
    """A query and a text that answers it; `negatives` look like answers and are none."""

    query: str
    positive: str
    place: str
    negatives: tuple[str, ...] = ()


# --------------------------------------------------------------------------------------- which texts are answers


@dataclass(frozen=True)
class PairTable:
    """Pairs by numbers. Texts that differ in spaces only are one text; a query's row is its pair's number."""

    queries: list[str]  # of every pair
    documents: list[str]  # each once
    positive_of_pair: Array
    query_of_pair: Array  # pairs with the same query have the same number
    known_of_query: list[Array]  # documents that answer it, or say the same as it does
    negatives_of_pair: list[Array]
    margins_of_pair: list[Array] | None = None  # by a cross-encoder: positive over each of the negatives

    @property
    def num_pairs(self) -> int:
        return len(self.queries)

    def known(self, pair: int) -> Array:
        """What is no negative for a pair."""
        return self.known_of_query[self.query_of_pair[pair]]

    def with_negatives(self, found: Iterable[Array]) -> PairTable:
        """With mined documents behind the given ones; known answers are left out."""
        both = [
            np.array(list(dict.fromkeys([*own.tolist(), *more[~np.isin(more, self.known(pair))].tolist()])), np.int64)
            for pair, (own, more) in enumerate(zip(self.negatives_of_pair, found, strict=True))
        ]
        return replace(self, negatives_of_pair=both)


def _same(text: str) -> str:
    return " ".join(text.split())


def pair_table(pairs: Sequence[TextPair]) -> PairTable:
    """Number the texts of some pairs."""
    documents: dict[str, int] = {}
    spelled: list[str] = []
    queries: dict[str, int] = {}
    known: list[set[int]] = []

    def number(text: str) -> int:
        key = _same(text)
        if key not in documents:
            documents[key] = len(spelled)
            spelled.append(text)
        return documents[key]

    for pair in pairs:
        query = queries.setdefault(_same(pair.query), len(known))
        if query == len(known):
            known.append(set())
        known[query].add(number(pair.positive))
    negatives = [np.array([number(text) for text in pair.negatives], np.int64) for pair in pairs]
    for text, query in queries.items():
        if text in documents:
            known[query].add(documents[text])
    return PairTable(
        [pair.query for pair in pairs],
        spelled,
        np.array([documents[_same(pair.positive)] for pair in pairs], np.int64),
        np.array([queries[_same(pair.query)] for pair in pairs], np.int64),
        [np.array(sorted(found), np.int64) for found in known],
        negatives,
    )


# ------------------------------------------------------------------------------------------------------ the loss


def compare_pairs(
    vectors_NE: torch.Tensor, ids_N: Array, table: PairTable, settings: RetrieveSettings, scale: torch.Tensor | float,
    rank: int = 0, num_ranks: int = 1,
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:  # fmt: skip
    """(sums by part, how many queries found their answer first) of the queries that are this rank's share.

    `ids_N`: the rows of `pair_batches`: pairs, then documents."""
    import torch

    is_query_N = ids_N < table.num_pairs
    pairs_Q, documents_D = ids_N[is_query_N], ids_N[~is_query_N] - table.num_pairs
    column_of = {int(document): column for column, document in enumerate(documents_D)}
    chosen_Q = np.array([column_of[int(table.positive_of_pair[pair])] for pair in pairs_Q], np.int64)
    known_QD = np.zeros((len(pairs_Q), len(documents_D)), bool)
    for row, pair in enumerate(pairs_Q):
        known_QD[row, [column_of[int(d)] for d in table.known(pair) if int(d) in column_of]] = True
    share = np.arange(rank, len(pairs_Q), num_ranks)
    device = vectors_NE.device
    queries, documents = (torch.from_numpy(np.flatnonzero(rows)).to(device) for rows in (is_query_N, ~is_query_N))
    own, targets_Q = torch.from_numpy(share).to(device), torch.from_numpy(chosen_Q).to(device)
    hidden_QD = torch.from_numpy(known_QD).to(device)

    def scores(width: int) -> torch.Tensor:
        unit_NE = torch.nn.functional.normalize(vectors_NE[:, :width], dim=-1)
        return scale * (unit_NE[queries] @ unit_NE[documents].T)

    def loss(scores_QD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total, right = _chosen(scores_QD[own], targets_Q[own], hidden_QD[own])
        if settings.symmetric:  # the answer chooses among queries; those that it answers too are no negatives
            of_answers, _ = _chosen(scores_QD.T[targets_Q[own]], own, hidden_QD.T[targets_Q[own]])
            total = (total + of_answers) / 2
        return total, right

    scores_QD = scores(vectors_NE.shape[1])
    total, right = loss(scores_QD)
    for width in settings.widths:
        total = total + loss(scores(width))[0]
    sums = {"task": total / (1 + len(settings.widths))}
    if table.margins_of_pair is not None:
        sums["margin"] = _margins(scores_QD, pairs_Q, chosen_Q, column_of, table, share)
    return sums, right


def _chosen(
    scores_QD: torch.Tensor, targets_Q: torch.Tensor, hidden_QD: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropy of the targets, in which hidden columns take no part; and how often the target is first."""
    import torch

    shown_QD = hidden_QD.scatter(1, targets_Q[:, None], False)
    scores_QD = scores_QD.masked_fill(shown_QD, -torch.inf)
    loss = torch.nn.functional.cross_entropy(scores_QD, targets_Q, reduction="sum")
    return loss, (scores_QD.argmax(1) == targets_Q).sum()


def _margins(
    scores_QD: torch.Tensor, pairs_Q: Array, chosen_Q: Array, column_of: dict[int, int], table: PairTable, share: Array
) -> torch.Tensor:
    """Squared distance of the margin between answer and negative to the cross-encoder's, the mean over the negatives
    of a query that are in the step (arXiv 2010.02666)."""
    assert table.margins_of_pair is not None
    total = scores_QD.new_zeros(())
    for row in share:
        pair = int(pairs_Q[row])
        there = [
            (column_of[int(document)], float(margin))
            for document, margin in zip(table.negatives_of_pair[pair], table.margins_of_pair[pair], strict=True)
            if int(document) in column_of
        ]
        if there:
            columns, wanted = zip(*there, strict=True)
            margins = scores_QD[row, int(chosen_Q[row])] - scores_QD[row, list(columns)]
            total = total + (margins - margins.new_tensor(wanted)).square().mean()
    return total


# ------------------------------------------------------------------------------------------------------ the kind


class Retrieve(TaskKind[TextPair]):
    """Queries and the texts that answer them."""

    name, metric, method = "retrieve", "ndcg@10", "embed"
    own_columns = True

    def __init__(self, settings: RetrieveSettings | None = None) -> None:
        self.settings = settings or RetrieveSettings()

    def with_prompts(self, prompts: dict[str, str]) -> Retrieve:
        said = {f"{name}_prompt": prompts[name] for name in ("query", "document") if name in prompts}
        return Retrieve(self.settings.model_copy(update=said))

    # ------------------------------------------------------------------------------------------------ reading

    def open(self, source: TaskSource) -> Problem[TextPair]:
        if source.train is None:
            raise ConfigError(
                "task retrieve needs pairs: --train FILE --query COL --positive COL, or a text: --unsupervised TEXT"
            )
        train, dropped, notes = read_pairs(source.train, source.table)
        if source.dev is None:
            train, dev = cut_by_group(train, lambda pair: _same(pair.positive), source.train)
            notes = (*notes, cut_note(source.train, "by document"))
        else:
            dev, also, more = read_pairs(source.dev, source.table)
            dropped, notes = dropped + also, tuple(dict.fromkeys((*notes, *more)))
        return self.problem(source.task, train, dev, notes, {"dropped": dict(dropped)})

    def problem(
        self, task: str, train: Sequence[TextPair], dev: Sequence[TextPair], notes: Sequence[str], facts: Json
    ) -> Problem[TextPair]:
        """Pairs to train on and to score."""
        queries, documents, _ = _sides(dev)
        facts = {**facts, "dev_queries": len(queries), "dev_documents": len(documents)}
        return Problem(task, self, (), self.metric, train, dev, tuple(notes), facts)

    def read_labelled(
        self, path: Path, task: str | None, labels: tuple[str, ...], table: TableSettings
    ) -> Labelled[TextPair]:
        pairs, dropped, notes = read_pairs(path, table)
        return Labelled(pairs, notes, {"dropped": dict(dropped)})

    def columns(self, table: TableSettings, text: str | None, text2: str | None) -> tuple[str, ...]:
        raise ConfigError(ONLY_VECTORS)

    def item(self, cells: Cells, columns: Sequence[str], table: TableSettings) -> TextPair:
        raise ConfigError(ONLY_VECTORS)

    def key(self, item: TextPair) -> Hashable:
        return _same(item.query), _same(item.positive)

    def text(self, item: TextPair) -> str:
        return item.query

    # ------------------------------------------------------------------------------------------------ network

    def head(self, problem: Problem[TextPair]) -> dict[str, int | bool]:
        return {"temperature": True} if self.settings.learned_temperature else {}

    def fits(self, heads: Heads) -> bool:
        """Every network gives vectors, and none tells that it was taught to."""
        return False

    def logits(
        self, network: TaskNetwork[NoiseT], hidden_BSD: torch.Tensor, batch: Batch, noise: NoiseT | None = None
    ) -> torch.Tensor:
        return network.embed(hidden_BSD, batch.lengths_B)

    def loss(self, logits: torch.Tensor, batch: Batch, plan: TaskLoss) -> tuple[Sums, torch.Tensor | None]:
        raise AssertionError("rows are compared with one another: task_objectives.PairObjective")

    # ------------------------------------------------------------------------------------------- rows, answers

    def encode(
        self, items: Sequence[TextPair], labels: Sequence[str], tokenizer: Tokenizer, frame: Frame,
        settings: RowSettings, *, labelled: bool = True,
    ) -> Rows:  # fmt: skip
        """What is scored: the queries, each once, then the documents."""
        queries, documents, _ = _sides(items)
        return self.text_rows(queries, documents, tokenizer, frame, settings)

    def text_rows(
        self, queries: Sequence[str], documents: Sequence[str], tokenizer: Tokenizer, frame: Frame,
        settings: RowSettings,
    ) -> Rows:  # fmt: skip
        """A row for each text, with the prompt of its side."""
        if settings.long_texts == "windows":
            raise ConfigError("rows.long_texts = windows: task retrieve has one vector a text; cut is what it can do")
        said = self.settings
        texts = [*(said.query_prompt + text for text in queries), *(said.document_prompt + text for text in documents)]
        room = frame.room(1)
        encoded = tokenizer.encode_batch(texts)
        for text, ids in zip(texts, encoded, strict=True):
            if len(ids) == 0:
                raise DataError(f"{text[:60]!r}: a text without a single token has no vector")
        rows = [frame.join([ids[:room]]) for ids in encoded]
        return Rows(
            [ids for ids, _ in rows],
            [segments for _, segments in rows] if frame.segments else None,
            None,
            np.arange(len(rows)),
            num_cut=sum(len(ids) > room for ids in encoded),
        )

    def _score(self, outputs: Sequence[Array], rows: Rows, items: Sequence[TextPair], labels: tuple[str, ...]) -> Json:
        queries, documents, relevant = _sides(items)
        vectors_NE = np.stack(outputs).astype(np.float32)
        values = self._values(vectors_NE, len(queries), relevant)
        found = ranking_scores.summary(values)
        for width in self.settings.widths:
            narrow = self._values(vectors_NE[:, :width], len(queries), relevant)[self.metric]
            found[f"{self.metric}_{width}"] = ranking_scores.summary({"": narrow})[""]
        return {
            "metrics": {name: value["mean"] for name, value in found.items()},
            "intervals": found,
            **self._misses(vectors_NE, queries, documents, relevant),
        }

    def _values(self, vectors_NE: Array, num_queries: int, relevant: Sequence[dict[int, float]]) -> dict[str, Array]:
        unit_NE = _unit(vectors_NE)
        gains = ranking_scores.ranked_gains(unit_NE[:num_queries], unit_NE[num_queries:], relevant, DEPTH)
        return ranking_scores.ranking_values(gains, [list(row.values()) for row in relevant])

    def _misses(
        self, vectors_NE: Array, queries: Sequence[str], documents: Sequence[str], relevant: Sequence[dict[int, float]]
    ) -> Json:
        """Queries for which a wrong document was surest to be nearer than the right one."""
        unit_NE = _unit(vectors_NE)
        scores_QD = unit_NE[: len(queries)] @ unit_NE[len(queries) :].T
        ahead = []
        for number, row in enumerate(relevant):
            right = max(row, key=lambda document: scores_QD[number, document])
            first = int(scores_QD[number].argmax())
            ahead.append((scores_QD[number, first] - scores_QD[number, right], number, right, first))
        worst = sorted((miss for miss in ahead if miss[0] > 0), reverse=True)
        asked = [TextPair(queries[number], documents[right], "") for _, number, right, _ in worst]
        shown = [(i, documents[m[2]][:200], documents[m[3]][:200], float(m[0])) for i, m in enumerate(worst)]
        return self.worst(shown, asked, "cosine of the wrong one above the right one's")

    def answers(
        self, outputs: Sequence[Array], rows: Rows, items: Sequence[TextPair], labels: tuple[str, ...], *, refuses: bool
    ) -> Sequence[Record]:
        raise ConfigError(ONLY_VECTORS)

    def named(self, answer: Record, item: TextPair) -> Json:
        raise ConfigError(ONLY_VECTORS)

    def mean_outputs(self, models: Sequence[Sequence[Array]], rows: Rows) -> list[Array]:
        """Vectors end to end, whose cosine is the mean of the models' cosines."""
        return list(np.concatenate([_unit(np.stack(outputs)) for outputs in models], axis=1))


def _unit(vectors_NE: Array) -> Array:
    return vectors_NE / np.maximum(np.linalg.norm(vectors_NE, axis=1, keepdims=True), 1e-12)


def _sides(pairs: Sequence[TextPair]) -> tuple[list[str], list[str], list[dict[int, float]]]:
    """(queries, each once; documents, negatives among them; the documents that answer each query, with gain 1)."""
    table = pair_table(pairs)
    first_of_query = {int(query): pair for pair, query in reversed(list(enumerate(table.query_of_pair)))}
    order = sorted(first_of_query)
    queries = [table.queries[first_of_query[query]] for query in order]
    relevant: list[dict[int, float]] = [{} for _ in order]
    for query, document in zip(table.query_of_pair, table.positive_of_pair, strict=True):
        relevant[int(query)][int(document)] = 1.0
    return queries, table.documents, relevant


# --------------------------------------------------------------------------------------------------------- files


def read_pairs(path: Path, table: TableSettings) -> tuple[list[TextPair], Counter[str], tuple[str, ...]]:
    """(pairs, rows left out by reason, what was guessed about the file). A cell may hold a list of texts."""
    notes: list[str] = []
    pairs: list[TextPair] = []
    dropped: Counter[str] = Counter()
    places: dict[str, str] = {}
    columns = [table.query, table.positive, *([table.negative] if table.negative else [])]
    for cells in read_cells(path, table, on_note=notes.append):
        if not pairs and not dropped:
            require_columns(cells, [*columns, *([table.id] if table.id else [])])
        if table.id:
            check_id(cells, table.id, places)
        try:
            query = text_of(cells, table.query)
            negatives = tuple(_texts(cells, table.negative)) if table.negative else ()
            positives = _texts(cells, table.positive)
            if not positives:
                raise BadRow("no positive", f"the query has no text that answers it in column {table.positive!r}")
            pairs += [TextPair(query, positive, cells.place, negatives) for positive in positives]
        except BadRow as bad:
            count_or_refuse(bad, cells, table, dropped)
    if not pairs:
        raise DataError(f"{path}: no usable rows" + (f" ({sum(dropped.values())} left out)" if dropped else ""))
    return pairs, dropped, tuple(notes)


def _texts(cells: Cells, column: str) -> list[str]:
    """A cell's text, or its list of texts; an empty cell has none."""
    value = cells.values.get(column)
    if value is None or value == "":
        return []
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) and text.strip() for text in values):
        raise BadRow("empty text", f"column {column!r} holds an empty text or none: {str(value)[:60]!r}")
    return values
