"""One query over a million vectors of 384 numbers: exact, and with an int8 pass first, beside FAISS' flat index.

Ours reads a mapped file, as `remask search` does; the peer (`IndexFlatIP`) holds its own copy in memory. All sides get
the same queries in turn, in one process, on the same threads. The vectors lie in groups, as those of texts do. `ratio`
is our time in milliseconds, which is what is promised; `recall` is the share of the exact ten best that the rough pass
ends with, and `private_mb` what the search itself holds besides the mapped file.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from _rig import common_options, tell


def private_mb() -> float:
    """Memory of this process that is no mapped file."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon:")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--queries", type=int, default=20, help="in each round")
    common_options(parser, rounds=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="remask-bench-") as folder:
        measure(options, Path(folder))


def measure(options: argparse.Namespace, folder: Path) -> None:
    import numpy as np
    import torch

    from remask.finding.vectors import BLOCK_ROWS, VectorFile, mean_vector, write_codes

    torch.set_num_threads(options.threads)
    draw = np.random.default_rng(0)
    groups = draw.normal(size=(1_000, options.width)).astype(np.float32)

    def some(count: int) -> np.ndarray:
        rows = groups[draw.integers(len(groups), size=count)] + draw.normal(size=(count, options.width)) * 0.7
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    with (folder / "vectors").open("wb") as file:
        for begin in range(0, options.passages, BLOCK_ROWS):
            file.write(some(min(BLOCK_ROWS, options.passages - begin)).tobytes())
    ours = VectorFile(folder, options.passages, options.width)
    write_codes(ours, mean_vector(ours))
    queries = some(options.queries)
    before = private_mb()
    found = {"exact": [], "int8": []}
    for query in queries[:2]:  # pages of the file, kernels, threads
        ours.search(query[None], 10)
        ours.search_roughly(query[None], 10, 200)
    held = private_mb() - before
    peer = flat_index(options, ours)
    times: dict[str, list[float]] = {"exact": [], "int8": [], "faiss": []}
    for _ in range(options.rounds):
        for query in queries:
            for name, search in (
                ("exact", lambda q: ours.search(q[None], 10)[0][1]),
                ("int8", lambda q: ours.search_roughly(q[None], 10, 200)[0][1]),
                ("faiss", lambda q: peer.search(q[None], 10)[1][0]),
            ):
                began = time.perf_counter()
                rows = search(query)
                times[name].append(1000 * (time.perf_counter() - began))
                if name in found:
                    found[name].append(set(rows.tolist()))
    same = [len(a & b) / 10 for a, b in zip(found["exact"], found["int8"], strict=True)]
    size = f"{options.passages:,} x {options.width}"
    for name in ("exact", "int8"):
        middle = statistics.median(times[name])
        result = {
            "name": f"search of {size} vectors, one query, {name}", "ratio": round(middle, 2), "ours": round(middle, 2),
            "peer": round(statistics.median(times["faiss"]), 2), "unit": "ms", "peer_name": "faiss IndexFlatIP",
            "spread": [round(value, 2) for value in (min(times[name]), max(times[name]))],
            "recall": round(statistics.mean(same), 4) if name == "int8" else 1.0, "private_mb": round(held, 1),
            "threads": options.threads,
        }  # fmt: skip
        tell(result, options)


def flat_index(options: argparse.Namespace, file):
    import faiss

    faiss.omp_set_num_threads(options.threads)
    made = faiss.IndexFlatIP(options.width)
    for begin in range(0, options.passages, 65_536):
        made.add(file.vectors[begin : begin + 65_536])
    return made


if __name__ == "__main__":
    main()
