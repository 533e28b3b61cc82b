"""Peak memory of training steps: our loop beside the Hugging Face Trainer, each in a process of its own.

Counted is what a process holds at most while it trains (peak resident memory) above what it held after its imports:
weights, gradients, Adam's moments, activations, the batch, and whatever the allocator keeps. Imports are told apart:
they differ by libraries, not by training. The same model, rows, dropout and optimizer as in pretrain.py; the Trainer
with both attention implementations, the leaner one is the peer. `ratio` is ours / peer: less is better.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from _device import device_option, peer_attentions, where
from _pretraining import add_options, prepare, run_side, words_for
from _rig import common_options, fastest, sides, tell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, size="base", length=512, batch=8)
    device_option(parser)
    common_options(parser, rounds=3)
    parser.set_defaults(steps=3, warm=1, allocator="plain")
    options = parser.parse_args()
    if options.side:
        return run_side(options)
    names = ["ours", *(f"transformers-{name}" for name in peer_attentions(options.device, options.precision))]
    held: dict[str, list[float]] = {name: [] for name in names}
    imported: dict[str, list[float]] = {name: [] for name in names}
    rounds, options.rounds = options.rounds, 1  # a round is a process
    with tempfile.TemporaryDirectory(prefix="remask-bench-") as folder:
        prepare(options, Path(folder))
        for _ in range(rounds):
            for name in names:
                with sides([name], options, words_for(options, Path(folder))) as (side,):
                    side.round()
                    words = side.stop()
                held[name].append(words["peak_mb"] - words["imported_mb"])
                imported[name].append(words["imported_mb"])
    best = fastest({name: held[name] for name in names[1:]}, less_is_better=True)
    ratios = [ours / peer for ours, peer in zip(held["ours"], held[best], strict=True)]
    medians = {name: round(statistics.median(values), 1) for name, values in held.items()}
    shape = f"{options.size}, {options.length} x {options.batch}, {options.precision}"
    result = {
        "name": f"peak memory of a step, {shape}{where(options.device)}",
        "ratio": round(statistics.median(ratios), 3),
        "peer": medians[best],
        "ours": medians["ours"],
        "unit": "MB",
        "rounds": [round(value, 3) for value in ratios],
        "peer_name": best,
        "peers": {name: medians[name] for name in names[1:]},
        "after_imports_mb": {name: round(statistics.median(values), 1) for name, values in imported.items()},
        "counted": "peak memory (resident; on a GPU that of torch's allocator) above that after the imports",
    }
    tell(result, options)


if __name__ == "__main__":
    main()
