"""The data order at the size of the papers' largest runs: a billion examples dealt to 1,024 ranks, by the real code.

The classes that training uses (Corpus, Batches) get sources that are only a number of examples and a length for each:
what they choose and deal is what a run would read. Counted over one pass: examples that came twice or never, rows,
tokens and sources that a rank has, how evenly the rows of a step lie over the corpus (chi-square over its degrees of
freedom: 1 is a fair draw), memory, and what it costs a new rank to find step 10 and the last step. `--steps` looks at
so many steps, spread over the pass, instead of all. The last line is a JSON object with all figures.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from remask.data import order
from remask.data.batches import Batches
from remask.data.corpus import Chosen, Corpus
from remask.data.examples import Recipe
from remask.data.masking import Masker
from remask.data.settings import DataSettings

SHARES = {"cc_news": 0.48, "openwebtext": 0.24, "stories": 0.19, "books_wikipedia": 0.09}  # of the paper's 160 GB
LENGTH, SLICES = 512, 64


class Lengths:
    """Row lengths 449 to 512 as a function of the row: an array of a billion numbers that needs no memory."""

    def __init__(self, key: int) -> None:
        self._key = key

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return LENGTH - order.below(order.draw(self._key, rows), 64)

    def mean(self) -> float:
        return LENGTH - 31.5


class Source:
    """What Corpus asks of a source's examples in order to choose some."""

    def __init__(self, number: int, size: int) -> None:
        self.sizes, self._size = Lengths(order.key_of("lengths", number)), size

    def __len__(self) -> int:
        return self._size


def build(num_examples: int, num_rows: int, ranks: int, rank: int = 0) -> Batches:
    settings = DataSettings.model_validate({"length": LENGTH, "batch": {"num_rows": num_rows, "micro_rows": 8}})
    vocabulary: Any = SimpleNamespace(
        vocab_size=50_265, bos_id=0, pad_id=1, eos_id=2, mask_id=50_264, special_ids=(0, 1, 2, 3, 50_264), kind="bpe"
    )
    sizes = [round(share * num_examples) for share in SHARES.values()]
    sizes[-1] = num_examples - sum(sizes[:-1])
    examples: Any = {name: Source(i, size) for i, (name, size) in enumerate(zip(SHARES, sizes, strict=True))}
    tokens: Any = SimpleNamespace(sources=dict.fromkeys(SHARES), folder="simulated", split="train")
    recipe = Recipe.of(settings, LENGTH, False, 0)
    corpus = Corpus(recipe, tokens, examples, Masker(settings.masking, vocabulary), weights={}, seed=0)
    return Batches(settings, vocabulary, [corpus], seed=0, rank=rank, world_size=ranks, total_steps=None)


class Tally:
    """What the ranks got."""

    def __init__(self, batches: Batches, ranks: int) -> None:
        corpus = batches.phases[0]
        sizes = [len(one) for one in corpus.examples]
        self._offsets = np.cumsum([0, *sizes[:-1]])
        self._seen = np.zeros(-(-corpus.num_examples // 8), np.uint8)
        self._slice = -(-corpus.num_examples // SLICES)
        self.rows, self.tokens = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
        self.by_source = np.zeros((ranks, len(sizes)), np.int64)
        self.repeated = self.count = 0
        self.fullest = 0.0
        self.uneven: list[float] = []

    def add(self, chosen: Chosen, rank_of_row: np.ndarray) -> None:
        """One step of all ranks."""
        numbers = self._offsets[chosen.sources] + chosen.rows
        different = np.unique(numbers)
        bits = np.uint8(1) << (different & 7).astype(np.uint8)
        self.repeated += len(numbers) - int((self._seen[different >> 3] & bits == 0).sum())
        np.bitwise_or.at(self._seen, different >> 3, bits)
        self.count += len(numbers)
        ranks = len(self.rows)
        self.rows += np.bincount(rank_of_row, minlength=ranks)
        which = rank_of_row * self.by_source.shape[1] + chosen.sources
        self.by_source += np.bincount(which, minlength=self.by_source.size).reshape(self.by_source.shape)
        tokens = np.bincount(rank_of_row, weights=chosen.sizes, minlength=ranks)
        self.tokens += tokens.astype(np.int64)
        self.fullest = max(self.fullest, float(tokens.max() / tokens.mean() - 1))
        places = np.bincount(numbers // self._slice, minlength=SLICES)
        expected = len(numbers) / SLICES
        self.uneven.append(float(((places - expected) ** 2 / expected).sum() / (SLICES - 1)))

    def never(self, num_examples: int) -> int:
        return num_examples - sum(int(np.bitwise_count(part).sum()) for part in np.array_split(self._seen, 64))


def rank_of_rows(ranks: list[Batches], step: int) -> np.ndarray:
    """Which rank reads each row of a step, by dealing it to all of them."""
    chosen, _ = ranks[0].plan({"step": step})
    places = np.arange(len(chosen.rows))
    marked = Chosen(chosen.sources, chosen.passes, places, chosen.sizes, chosen.keys)
    found = np.full(len(places), -1)
    for rank, one in enumerate(ranks):
        for part in one.deal(marked, step):
            assert (found[part.rows] == -1).all(), "a row for two ranks"
            found[part.rows] = rank
    assert (found >= 0).all(), "a row for no rank"
    return found


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def seconds_to(step: int, options: argparse.Namespace) -> float:
    """A new rank that starts at this step: nothing is walked through."""
    started = time.perf_counter()
    build(options.examples, options.rows, options.ranks, options.ranks - 1).plan({"step": step})
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=1_000_000_000)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=8192, help="a step, over all ranks")
    parser.add_argument("--steps", type=int, help="spread over the pass; without it every step")
    parser.add_argument("--json", action="store_true", help="only the last line")
    options = parser.parse_args()
    batches = build(options.examples, options.rows, options.ranks)
    whole = options.examples // options.rows  # the step after these holds rows of two passes
    steps = range(whole) if options.steps is None else np.linspace(0, whole - 1, options.steps).astype(int).tolist()
    ends = {step: min(seconds_to(step, options) for _ in range(5)) for step in (10, whole - 1)}
    before = peak_mb()
    for step in (0, whole // 2, whole - 1):
        batches.plan({"step": step})
    choosing = peak_mb()
    ranks = [build(options.examples, options.rows, options.ranks, rank) for rank in range(options.ranks)]
    first = rank_of_rows(ranks, 0)
    assert ((first - (whole - 1)) % options.ranks == rank_of_rows(ranks, whole - 1)).all(), "dealing goes round"
    tally = Tally(batches, options.ranks)
    began, planning = time.perf_counter(), 0.0
    for number, step in enumerate(steps):
        started = time.perf_counter()
        chosen, _ = batches.plan({"step": step})
        planning += time.perf_counter() - started
        tally.add(chosen, (first - step) % options.ranks)
        if not options.json and number % max(len(steps) // 20, 1) == 0:
            print(f"step {step:,}: {tally.count:,} rows dealt", file=sys.stderr, flush=True)
    shares = tally.by_source / tally.rows[:, None]
    found = {
        "examples": options.examples,
        "ranks": options.ranks,
        "rows_per_step": options.rows,
        "steps": len(steps),
        "rows_dealt": tally.count,
        "repeated": tally.repeated,
        "never": tally.never(options.examples) - (options.examples - whole * options.rows)
        if not options.steps
        else None,
        "rows_per_rank": [int(tally.rows.min()), int(tally.rows.max())],
        "tokens_per_rank_spread": round(float(tally.tokens.max() / tally.tokens.min() - 1), 6),
        "fullest_rank_of_a_step_above_mean": round(tally.fullest, 4),
        "share_of_each_source_by_rank": {
            name: [round(float(share.min()), 4), round(float(share.max()), 4)]
            for name, share in zip(SHARES, shares.T, strict=True)
        },
        "chi_square_of_steps_over_the_corpus": round(float(np.mean(tally.uneven)), 3),
        "microseconds_per_row": round(1e6 * planning / tally.count, 3),
        "seconds_to_step": {str(step): round(seconds, 4) for step, seconds in ends.items()},
        "megabytes_before_and_after_choosing": [round(before), round(choosing)],
        "seconds": round(time.perf_counter() - began),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
