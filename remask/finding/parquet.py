"""An index as one Parquet file, for any other engine: a row a passage, its vector as a list of float32.

Columns: `id`, `passage`, `start`, `place`, `text`, `vector`, and one for each field that the index keeps. What was
removed is not in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from remask.finding.index import Index

_GROUP_ROWS = 16_384


def write_parquet(index: Index, path: Path) -> None:
    names = list(index.run.fields)
    columns: dict[str, pa.DataType] = {
        "id": pa.string(), "passage": pa.int32(), "start": pa.int64(), "place": pa.string(), "text": pa.string(),
        "vector": pa.list_(pa.float32(), index.size), **{f"field_{name}": pa.string() for name in names},
    }  # fmt: skip
    schema = pa.schema(list(columns.items()), metadata={"model": index.model_fingerprint})
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for segment in index.segments:
            for begin in range(0, len(segment.passages), _GROUP_ROWS):
                rows = np.arange(begin, min(begin + _GROUP_ROWS, len(segment.passages)))
                if index.removed is not None:
                    rows = rows[~index.removed[rows + segment.first]]
                hits = [index.hit(int(row) + segment.first, 0.0) for row in rows]
                flat = np.asarray(segment.vectors.vectors[rows]).reshape(-1)
                arrays: list[pa.Array] = [
                    pa.array([getattr(hit, name) for hit in hits], columns[name])
                    for name in ("id", "passage", "start", "place", "text")
                ]
                arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(flat), index.size))
                arrays += [pa.array([_text(hit.fields[name]) for hit in hits], pa.string()) for name in names]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()
