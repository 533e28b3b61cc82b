"""How the cost of our pretraining grows: with the length of rows, with rows per step, and over ranks.

length   tokens/s at 128 to 2,048 tokens a row, always the same tokens a step: attention over everything, with a window,
         and hashed, whose costs should not grow with the length
batch    tokens/s and peak memory (above that after the imports) against rows a step
ranks    tokens/s of one process with all threads, and of two processes (torchrun) that share them

Every point is a process of its own; all points take their turn before any is repeated, and medians of all rounds are
told. `--docs DIR` draws the curves into DIR/images. One JSON line for each question; the first has all curves.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _draw import draw
from _pretraining import SIZES, add_options, num_steps, run_ours, write_tokens
from _rig import Turns, common_options, environment, tell


@dataclass(frozen=True)
class Point:
    """One process: rows of `length`, `batch` of them a step, a window, buckets or neither, on so many ranks."""

    length: int
    batch: int
    window: int | None = None
    ranks: int = 1
    bucket: int | None = None


def measure(point: Point, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    threads = max(1, options.threads // point.ranks)
    values = {
        "size": options.size, "length": point.length, "batch": point.batch, "precision": options.precision,
        "dropout": options.dropout, "steps": options.steps, "warm": options.warm, "rounds": 1, "threads": threads,
        "work": work, "side": "point", "window": point.window or 0,
        "bucket": point.bucket or 0,
    }  # fmt: skip
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    many = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(point.ranks)]
    command = [sys.executable, *(many if point.ranks > 1 else []), __file__, *words]
    env = environment(threads, options.allocator)
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    facts = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    speed = facts["tokens"] / facts["seconds"]
    print(f"{point}: {speed:.0f} tokens/s", file=sys.stderr, flush=True)
    return {"speed": speed, "memory": facts["peak_mb"] - facts["imported_mb"]}


def run_point(options: argparse.Namespace) -> None:
    from remask.model.network import build_network
    from remask.model.settings import HeadSettings, ModelSettings
    from remask.train.distributed import joined

    layers, width, heads, ffn, vocab_size = SIZES[options.size]
    settings = ModelSettings(
        vocab_size=vocab_size, num_layers=layers, hidden_size=width, num_heads=heads, ffn_size=ffn,
        max_length=options.length, dropout=options.dropout, attention_dropout=options.dropout,
        attention_window=options.window or None, bucket_size=options.bucket or 64,
        attention_kind="hashed" if options.bucket else "window" if options.window else "full",
    )  # fmt: skip
    turns = Turns(options.steps, options.warm, alone=True)
    network = build_network(settings, HeadSettings(masked_lm=True), 0)
    with joined() as world:
        facts = run_ours(options, turns, network, world)
    if world.is_first:
        turns.last(facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, size="small", length=128, batch=32)
    parser.add_argument("--lengths", default="128,256,512,1024,2048")
    parser.add_argument("--batches", default="4,8,16,32,64")
    parser.add_argument("--window", type=int, default=64, help="tokens to either side that a token sees")
    parser.add_argument("--bucket", type=int, default=64, help="tokens of a bucket of hashed attention")
    parser.add_argument("--docs", type=Path, help="where docs/speed.md is: draws its curves")
    common_options(parser, rounds=3)
    parser.set_defaults(steps=4, warm=2)
    options = parser.parse_args()
    if options.side:
        return run_point(options)
    lengths, batches = ([int(word) for word in given.split(",")] for given in (options.lengths, options.batches))
    tokens = options.batch * options.length
    full = [Point(length, max(1, tokens // length)) for length in lengths]
    local = [Point(length, max(1, tokens // length), options.window) for length in lengths]
    hashed = [Point(length, max(1, tokens // length), bucket=options.bucket) for length in lengths]
    rows = [Point(options.length, batch) for batch in batches]
    ranks = [Point(options.length, options.batch, None, number) for number in (1, 2)]
    points = list(dict.fromkeys([*full, *local, *hashed, *rows, *ranks]))
    found: dict[Point, list[dict[str, Any]]] = {point: [] for point in points}
    with tempfile.TemporaryDirectory(prefix="remask-bench-") as folder:
        most = max(point.length * point.batch for point in points)
        write_tokens(Path(folder) / "prepared", SIZES[options.size][4], num_steps(options) * most + 4096)
        for number in range(options.rounds):
            for point in points if number % 2 == 0 else reversed(points):
                found[point].append(measure(point, options, Path(folder)))
    speed = {point: statistics.median(turn["speed"] for turn in turns) for point, turns in found.items()}
    memory = {point: statistics.median(turn["memory"] for turn in turns) for point, turns in found.items()}
    if options.docs:
        images = options.docs / "images"
        curves = {
            "attention over everything": [(p.length, speed[p]) for p in full],
            f"window of {options.window}": [(p.length, speed[p]) for p in local],
            f"hashed, buckets of {options.bucket}": [(p.length, speed[p]) for p in hashed],
        }
        draw(images / "speed-length.svg", curves, "tokens of a row", "tokens/s", names_at=0.45)
        draw(images / "speed-batch.svg", {"tokens/s": [(p.batch, speed[p]) for p in rows]}, "rows", "tokens/s")
        draw(images / "speed-memory.svg", {"MB": [(p.batch, memory[p]) for p in rows]}, "rows", "MB at most")
    curves = {
        "full": {p.length: round(speed[p]) for p in full},
        "windowed": {p.length: round(speed[p]) for p in local},
        "hashed": {p.length: round(speed[p]) for p in hashed},
        "batch": {p.batch: round(speed[p]) for p in rows},
        "memory_mb": {p.batch: round(memory[p], 1) for p in rows},
        "memory_mb_by_length": {p.length: round(memory[p], 1) for p in full},
        "ranks": {p.ranks: round(speed[p]) for p in ranks},
    }
    questions = [
        (f"tokens/s at {lengths[-1]:,} over {lengths[0]}, attention over everything", full[0], full[-1]),
        (f"tokens/s at {lengths[-1]:,} over {lengths[0]}, window of {options.window}", local[0], local[-1]),
        ("tokens/s of 2 ranks over 1", ranks[0], ranks[1]),
    ]
    for number, (name, before, after) in enumerate(questions):
        result = {
            "name": f"{name}, {options.size}, {options.precision}",
            "ratio": round(speed[after] / speed[before], 3),
            "peer": round(speed[before], 1),
            "ours": round(speed[after], 1),
            "unit": "tokens/s",
        }
        tell(result | ({"curves": curves} if number == 0 else {}), options)


if __name__ == "__main__":
    main()
