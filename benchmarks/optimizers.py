"""A step with Muon beside the same step with AdamW: our loop, the same weights, rows and precision, turn by turn.

Muon makes fifteen to eighteen products for every hidden matrix and step, whatever the batch: its share is the larger,
the fewer tokens a step has. Figures are seconds a step; `ratio` is Muon's over AdamW's, less is better.

    python benchmarks/optimizers.py --size small --length 128 --batch 16 --precision bf16 [--json]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from _pretraining import add_options, prepare, run_ours, words_for
from _rig import Turns, common_options, take_turns, tell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, size="small", length=128, batch=16)
    common_options(parser, rounds=5)
    options = parser.parse_args()
    if options.side:
        turns = Turns(options.steps, options.warm)
        options.optimizer = options.side
        return turns.last(run_ours(options, turns))
    with tempfile.TemporaryDirectory(prefix="remask-bench-") as folder:
        prepare(options, Path(folder))
        rounds, _ = take_turns(["muon", "adamw"], options, words_for(options, Path(folder)))
    seconds = {name: [turn["seconds"] / options.steps for turn in turns] for name, turns in rounds.items()}
    ratios = [muon / adamw for muon, adamw in zip(seconds["muon"], seconds["adamw"], strict=True)]
    shape = f"{options.size}, {options.batch * options.length:,} tokens a step, {options.precision}"
    result = {
        "name": f"Muon's step beside AdamW's, {shape}",
        "ratio": round(statistics.median(ratios), 3),
        "ours": round(statistics.median(seconds["muon"]), 4),
        "peer": round(statistics.median(seconds["adamw"]), 4),
        "unit": "s a step",
        "rounds": [round(ratio, 3) for ratio in ratios],
        "peer_name": "ours with AdamW",
    }
    tell(result, options)


if __name__ == "__main__":
    main()
