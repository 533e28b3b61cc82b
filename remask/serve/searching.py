"""A served index: from queries in a request to the JSON of what was found. Runs in the engine's process.

The query's vector comes from the index's own model, in a batch with whatever else is asked of it. Not here: how
anything is found (finding/index).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from remask.artifacts import MANIFEST
from remask.errors import DataError
from remask.finding.encode import QUERY, prompt_name
from remask.finding.index import STAGE, Hit, Index, Seeker, open_index
from remask.finding.map import place_of
from remask.schema import Json

if TYPE_CHECKING:
    import numpy as np

    from remask.answer.model import Model
    from remask.answer.questions import Question

_SEARCH_S = 5.0  # one query over a large index on a slow disk


def opened(path: Path) -> Index | None:
    """The index of a folder, ready for its first query; None: the folder holds something else."""
    try:
        stage = json.loads((path / MANIFEST).read_bytes())["stage"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if stage != STAGE:
        return None
    index = open_index(path)
    _ = index.words, index.map_vectors
    return index


def model_of(index: Index) -> Path:
    """The folder of the index's model, which must still be the same."""
    from remask.finding.index import same_model

    return same_model(index.model_path, index.model_fingerprint)


def facts(index: Index) -> dict[str, int]:
    return {"passages": len(index), "documents": int(index.artifact.counts["documents"])}


def ask(
    index: Index | None, model: Model, inputs: Sequence[str], options: Json, expect: Callable[[float], None]
) -> Question[list[bytes]]:
    """The question of a piece: its queries' vectors, answered with the JSON of what each query finds. `expect` hears
    how many seconds the search may take."""
    if index is None:
        raise DataError("this model is no index; GET /v1/models lists those that can search")
    prompt = prompt_name(model.prompts, index.run.query_prompt, QUERY, model.folder)

    def answer(vectors: np.ndarray) -> list[bytes]:
        expect(_SEARCH_S * len(inputs))
        return _written(index, model, inputs, options, vectors)

    return model.questions.embed(list(inputs), prompt=prompt, long_texts="cut").then(answer)


def _written(index: Index, model: Model, inputs: Sequence[str], options: Json, vectors: np.ndarray) -> list[bytes]:
    """What each query finds, as JSON."""
    seeker, top = Seeker(index, model, None), options["top_k"]
    ways: Json = {"hits": options["by"]} | ({"vectors": "vectors", "words": "words"} if options["lists"] else {})
    rankings = {name: seeker.found(inputs, vectors, by, top) for name, by in ways.items()}
    answers = []
    on_map = options["point"]
    for number, vector in enumerate(vectors):
        lists: Json = {name: [_shown(index, hit, on_map) for hit in hits[number]] for name, hits in rankings.items()}
        if on_map:
            lists["point"] = place_of(index, vector)
        answers.append(orjson.dumps(lists))
    return answers


def _shown(index: Index, hit: Hit, on_map: bool) -> Json:
    around = index.hit(hit.row, hit.score, around=True)
    values = replace(hit, before=around.before, after=around.after).to_json()
    return values | ({"point": place_of(index, index.vector(hit.row))} if on_map else {})
