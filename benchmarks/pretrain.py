"""Pretraining: tokens per second of our loop beside the Hugging Face Trainer with DataCollatorForLanguageModeling.

The same RoBERTa (weights, batch, length, dropout 0.1, fused AdamW, clipping), the same rows in the same order, every
side in a process of its own, alternating. The Trainer runs with both of transformers' attention implementations (sdpa,
its default, and eager), with `--device cuda` with flash attention where it is installed, else sdpa; the faster one is
the peer. Padding counts for nobody: rows are full blocks. Start-up, saving and evaluation are not timed; the first
steps belong to no round. The most memory of every process (on a GPU: of torch there) is told as well.

    python benchmarks/pretrain.py --size small --length 128 --batch 32 --precision bf16 --rounds 5 [--json]

Last line: {"ratio", "peer", "ours", "unit"} and the facts behind them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from _device import device_option, peer_attentions, where
from _pretraining import add_options, prepare, run_side, words_for
from _rig import common_options, compared, fastest, take_turns, tell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, size="small", length=128, batch=32)
    parser.add_argument("--peers", help="attention implementations of the Trainer; else those of _device")
    device_option(parser)
    common_options(parser, rounds=5)
    options = parser.parse_args()
    if options.side:
        return run_side(options)
    given = options.peers.split(",") if options.peers else peer_attentions(options.device, options.precision)
    peers = [f"transformers-{name}" for name in given]
    with tempfile.TemporaryDirectory(prefix="remask-bench-") as folder:
        prepare(options, Path(folder))
        rounds, last = take_turns(["ours", *peers], options, words_for(options, Path(folder)))
    assert len({turn["tokens"] for turns in rounds.values() for turn in turns}) == 1, "the sides saw other tokens"
    speeds = {name: [turn["tokens"] / turn["seconds"] for turn in turns] for name, turns in rounds.items()}
    best = fastest({name: speeds[name] for name in peers})
    shape = f"{options.size}, {options.length} x {options.batch}, {options.precision}"
    name = f"pretraining {shape}{where(options.device)}"
    result = compared(name, "tokens/s", speeds["ours"], speeds[best])
    told = {"dtype", "attention", "first_loss", "last_loss"}
    facts = {
        "peer_name": best,
        "peers": {name: round(statistics.median(speeds[name]), 1) for name in peers},
        "peak_mb": {name: round(words["peak_mb"]) for name, words in last.items()},
        "sides": {name: {key: value for key, value in words.items() if key in told} for name, words in last.items()},
        "steps_a_round": options.steps,
        "dropout": options.dropout,
        "selected": "of the Trainer's attention implementations the faster by its median; all rounds count",
    }
    tell(result | facts, options)


if __name__ == "__main__":
    main()
