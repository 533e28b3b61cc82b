"""An index to search: `remask.search(index, query)`, or `open_index(folder)` for many queries.

An index is a published folder of segments (passages, vectors), a BM25 index over all of them, a list of removed rows, a
map, and perhaps a FAISS structure. Rows are counted over all segments. A query goes by vectors, by words or by both
(reciprocal rank fusion); a model of pairs may put the best in a new order. Not here: making one (build), a database
(postgres), scores (measure).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import orjson

from remask.artifacts import Artifact, open_artifact
from remask.errors import DataError, MissingInputError
from remask.finding.passages import Passages
from remask.finding.settings import By, IndexRun
from remask.finding.vectors import Best, VectorFile, merged
from remask.finding.words import Words, fused
from remask.schema import Json

if TYPE_CHECKING:
    from remask.answer.model import Model

STAGE = "index"
_FUSED_DEPTH = 100  # of each ranking, that the fusion looks at


@dataclass(frozen=True)
class Hit:
    """A passage that was found. `rank_by`: its place in each ranking that it came from."""

    id: str  # of its document
    passage: int  # its number in the document
    score: float
    text: str
    start: int  # its first character in the document
    place: str
    fields: Json
    row: int
    before: str = ""  # the passages around it, where they are wanted
    after: str = ""
    rank_by: dict[str, int] | None = None

    def to_json(self) -> Json:
        return asdict(self)


class Searchable(Protocol):
    """What finds passages: a folder, or a table of a database."""

    @property
    def size(self) -> int: ...
    def by_vectors(self, vectors: np.ndarray, top: int) -> list[Best]: ...
    def by_words(self, query: str, top: int) -> Best: ...
    def hits(self, rows: Sequence[int], scores: Sequence[float]) -> list[Hit]: ...


@dataclass(frozen=True)
class Segment:
    """What was added at once."""

    first: int
    passages: Passages
    vectors: VectorFile


class Index:
    """An opened index folder."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact, self.folder = artifact, artifact.folder
        config, counts = artifact.manifest["config"], artifact.counts
        self.run = IndexRun.model_validate_json(orjson.dumps(config["run"]))
        self.size, self.num_rows = int(config["size"]), int(counts["passages"])
        self.model_fingerprint, self.model_path = str(config["model"]), Path(config["model_path"])
        self.segments: list[Segment] = []
        first = 0
        for number, facts in enumerate(counts["segments"]):
            folder = self.folder / f"segment-{number:04d}"
            file = VectorFile(folder, facts["passages"], self.size)
            self.segments.append(Segment(first, Passages(folder), file))
            first += facts["passages"]

    def __len__(self) -> int:
        """Passages that can be found."""
        return self.num_rows - self.artifact.counts["removed"]

    @cached_property
    def removed(self) -> np.ndarray | None:
        """Of every row whether it was removed; None: none was."""
        if not self.artifact.counts["removed"]:
            return None
        return np.fromfile(self.folder / "removed", np.uint8).astype(bool)

    @cached_property
    def words(self) -> Words:
        return Words(self.folder / "words", self.run.words, self.num_rows)

    @cached_property
    def _approximate(self) -> Any:
        from remask.finding.approximate import Approximate

        return Approximate(self.folder / "approximate", self.run.approximate, self.num_rows)

    @cached_property
    def map(self) -> Json:
        """Points of a sample of the passages (map.py)."""
        return orjson.loads((self.folder / "map.json").read_bytes())

    @cached_property
    def map_vectors(self) -> np.ndarray:
        """The vectors of the map's points."""
        return np.stack([self.vector(point["row"]) for point in self.map["points"]])

    # ------------------------------------------------------------------------------------------------- search

    def by_vectors(self, vectors: np.ndarray, top: int, *, exact: bool = False) -> list[Best]:
        """(scores, rows) of each query's vector. `exact`: whatever the index has, compare all in full."""
        candidates = max(top, top * self.run.vectors.rescore, 200)
        if not exact and self.run.approximate.kind != "none":
            return [self._near(vector, top, candidates) for vector in vectors]
        found: list[list[Best]] = [[] for _ in vectors]
        for segment in self.segments:
            file, first = segment.vectors, segment.first
            removed = None if self.removed is None else self.removed[first : first + file.num_rows]
            if file.has_codes and not exact:
                best = file.search_roughly(vectors, top, candidates, removed)
            else:
                best = file.search(vectors, top, removed)
            for one, (scores, rows) in zip(found, best, strict=True):
                one.append((scores, rows + first))
        return [merged(parts, top) for parts in found]

    def _near(self, vector: np.ndarray, top: int, candidates: int) -> Best:
        rows = self._approximate.search(vector, candidates)
        if self.removed is not None:
            rows = rows[~self.removed[rows]]
        parts = []
        for segment in self.segments:
            inside = rows[(rows >= segment.first) & (rows < segment.first + segment.vectors.num_rows)]
            scores, found = segment.vectors.rescored(vector, inside - segment.first, top)
            parts.append((scores, found + segment.first))
        return merged(parts, top)

    def by_words(self, query: str, top: int) -> Best:
        return self.words.search(query, top, self.removed)

    def vector(self, row: int) -> np.ndarray:
        segment = self._segment(row)
        return np.array(segment.vectors.vectors[row - segment.first])

    # ------------------------------------------------------------------------------------------------- reading

    def _segment(self, row: int) -> Segment:
        return next(one for one in reversed(self.segments) if row >= one.first)

    def hits(self, rows: Sequence[int], scores: Sequence[float], *, around: bool = False) -> list[Hit]:
        return [self.hit(int(row), float(score), around=around) for row, score in zip(rows, scores, strict=True)]

    def hit(self, row: int, score: float, *, around: bool = False) -> Hit:
        segment = self._segment(row)
        passages, local = segment.passages, row - segment.first
        number, start = map(int, passages.table[local])
        facts = passages.document(number)
        hit = Hit(
            facts["id"], local - passages.first_of(number), score, passages.text(local), start, facts["place"],
            facts["fields"], row,
        )  # fmt: skip
        if not around:
            return hit

        def beside(other: int) -> str:
            inside = 0 <= other < len(passages) and passages.document_of(other) == number
            return passages.text(other) if inside else ""

        return replace(hit, before=beside(local - 1), after=beside(local + 1))


def open_index(folder: Path | str, *, verify: bool = False) -> Index:
    """A published index; damaged or unfinished ones are refused. `verify`: every byte is checked."""
    artifact = open_artifact(Path(folder), STAGE, verify=verify)
    try:
        return Index(artifact)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder}: its manifest says nothing about an index: {error!r}: damaged") from None


def same_model(path: Path, fingerprint: str) -> Path:
    """The folder of the model that an index was made with; of any other, vectors cannot be compared with its own."""
    from remask.model.store import find_model, model_fingerprint

    if not path.is_dir():
        raise MissingInputError(f"{path}: the model of this index is not there; say where it is (--model MODEL)")
    folder = find_model(path)
    if model_fingerprint(folder) != fingerprint:
        raise DataError(
            f"{path}: is another model than the one that this index was made with; its vectors cannot be compared. "
            "Index the documents with it, or name the old one (--model MODEL)"
        )
    return folder


def open_model(stored: Path, fingerprint: str, *, moved_to: Path | None = None, device: str = "cpu") -> Model:
    """The model of an index, to encode queries with."""
    from remask.answer.model import load

    return load(same_model(moved_to or stored, fingerprint), device=device, packed=False)


# ------------------------------------------------------------------------------------------------------- asking


@dataclass(frozen=True)
class Seeker:
    """A searchable thing with the model that turns queries into vectors (None: only words are looked for)."""

    index: Searchable
    model: Model | None
    prompt: str | None
    reranker: Model | None = None
    rerank_top: int = 50
    rerank_label: str | None = None

    def vectors(self, queries: Sequence[str]) -> np.ndarray:
        assert self.model is not None
        return self.model.embed(list(queries), prompt=self.prompt, long_texts="cut")

    def find(self, queries: Sequence[str], by: By, top: int) -> list[list[Hit]]:
        """The hits of each query, best first."""
        vectors = None if by == "words" else self.vectors(queries)
        return self.found(queries, vectors, by, top)

    def found(self, queries: Sequence[str], vectors: np.ndarray | None, by: By, top: int) -> list[list[Hit]]:
        """The same where the queries' vectors are known already."""
        depth = top if by != "both" else max(top, _FUSED_DEPTH)
        if self.reranker is not None:
            depth = max(depth, self.rerank_top)
        near = self.index.by_vectors(vectors, depth) if vectors is not None else []
        answers = []
        for number, query in enumerate(queries):
            rankings: dict[str, Best] = {}
            if by != "words":
                rankings["vectors"] = near[number]
            if by != "vectors":
                rankings["words"] = self.index.by_words(query, depth)
            answers.append(self._ordered(query, rankings, top))
        return answers

    def _ordered(self, query: str, rankings: dict[str, Best], top: int) -> list[Hit]:
        kept = top if self.reranker is None else max(top, self.rerank_top)
        if len(rankings) > 1:
            pairs = fused([rows.tolist() for _, rows in rankings.values()], kept)
            scores, rows = [score for score, _ in pairs], [row for _, row in pairs]
        else:
            ((found, places),) = rankings.values()
            scores, rows = found.tolist()[:kept], places.tolist()[:kept]
        ranks = {name: {int(row): n for n, row in enumerate(rows, 1)} for name, (_, rows) in rankings.items()}
        hits = [
            replace(hit, rank_by={name: known[hit.row] for name, known in ranks.items() if hit.row in known})
            for hit in self.index.hits(rows, scores)
        ]
        return hits if self.reranker is None else reranked(query, hits, self.reranker, self.rerank_label)[:top]


def reranked(query: str, hits: Sequence[Hit], model: Model, label: str | None) -> list[Hit]:
    """In the order of what a model says about (query, passage): its number, or the probability of a class."""
    if not hits:
        return []
    said = model.classify([(query, hit.text) for hit in hits], long_texts="cut")
    scores = [one.score if one.label is None else one.scores[str(label)] for one in said]
    order = sorted(range(len(hits)), key=lambda i: -scores[i])
    return [replace(hits[i], score=float(scores[i])) for i in order]


def open_reranker(path: Path, label: str | None, device: str = "cpu") -> Model:
    """A model of pairs; of a classifier the class must be named, for nothing in it says which one means a match."""
    from remask.answer.model import load

    model = load(path, device=device, packed=False)
    if "classify" not in model.methods:
        raise DataError(f"{path}: cannot compare a query with a passage; a reranker is a model of task pair or regress")
    labels = model.reader.tasks["classify"].labels
    if labels and label not in labels:
        given = "" if label is None else f", not {label!r}"
        raise DataError(f"{path}: rerank_label must be the class that means a match, one of {', '.join(labels)}{given}")
    return model
