"""Two hosts and a slow link: a pretraining step with gradients sent during the backward pass, and after it.

Each rank lives in a network namespace of its own; the two are joined by a virtual cable that is shaped to --mbit
(token bucket, `tc tbf`). Needs root, and touches only the namespaces that it makes. Sides, turn by turn, a process pair
each: `overlap`, `after` (train.overlap false), and `free` (the same without shaping: computing alone, nearly). Beside
them what the link needs for the gradients by itself: 8 P (N-1)/N bytes. The best a step can take is the larger of
computing and sending; `ratio` is the step after / the step with overlap, more is better.

    python benchmarks/overlap.py --size small --length 128 --batch 32 --mbit 2000 [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _pretraining import SIZES, add_options, num_steps, run_ours, words_for, write_tokens
from _rig import Turns, common_options, environment, tell

ADDRESSES = ("10.213.0.1", "10.213.0.2")  # of our own namespaces only: no other network is reachable from there
PORT = 29531
SIDES = {"overlap": (True, True), "after": (False, True), "free": (True, False)}  # overlap, shaped link


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip() or done.returncode} (needs root, iproute2 and sch_tbf)")


@contextlib.contextmanager
def two_hosts() -> Iterator[list[str]]:
    """The names of two namespaces that see each other and nothing else."""
    names = [f"remask-{os.getpid()}-{number}" for number in range(2)]
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run(
            "ip",
            "link",
            "add",
            "cable0",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            "cable1",
            "netns",
            names[1],
        )
        for number, name in enumerate(names):
            run("ip", "-n", name, "address", "add", f"{ADDRESSES[number]}/24", "dev", f"cable{number}")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "link", "set", f"cable{number}", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def shape(names: list[str], mbit: int | None) -> None:
    for number, name in enumerate(names):
        device = ["dev", f"cable{number}", "root"]
        subprocess.run(["tc", "-n", name, "qdisc", "delete", *device], capture_output=True)
        if mbit is not None:
            bucket = ["rate", f"{mbit}mbit", "burst", "256kb", "latency", "2s"]
            run("tc", "-n", name, "qdisc", "add", *device, "tbf", *bucket)


def measure(side: str, names: list[str], options: argparse.Namespace, work: Path) -> float:
    """Seconds a step."""
    overlap, shaped = SIDES[side]
    shape(names, options.mbit if shaped else None)
    words = [*words_for(options, work), "--side", "rank", "--overlap", str(int(overlap))]
    children = []
    for rank, name in enumerate(names):
        env = environment(options.threads, options.allocator) | {
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": ADDRESSES[0],
            "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": f"cable{rank}",
        }  # fmt: skip
        command = ["ip", "netns", "exec", name, sys.executable, __file__, *words]
        children.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    said = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        sys.exit(f"{side}: ended with {[child.returncode for child in children]}; see above")
    facts = json.loads(next(line for line in said[0].splitlines() if line.startswith("{")))
    print(f"{side}: {facts['seconds'] / facts['steps']:.3f} s a step", file=sys.stderr, flush=True)
    return facts["seconds"] / facts["steps"]


def run_rank(options: argparse.Namespace) -> None:
    from remask.model.network import build_network
    from remask.train.distributed import joined

    turns = Turns(options.steps, options.warm, alone=True)
    with joined() as world:
        facts = run_ours(options, turns, build_network(*network_of(options), 0), world)
    if world.is_first:
        turns.last(facts)


def network_of(options: argparse.Namespace) -> tuple[Any, Any]:
    from remask.model.settings import HeadSettings, ModelSettings

    layers, width, heads, ffn, vocab_size = SIZES[options.size]
    settings = ModelSettings(
        vocab_size=vocab_size, num_layers=layers, hidden_size=width, num_heads=heads, ffn_size=ffn,
        max_length=options.length, dropout=options.dropout, attention_dropout=options.dropout,
    )  # fmt: skip
    return settings, HeadSettings(masked_lm=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, size="small", length=128, batch=32)
    parser.add_argument("--mbit", type=int, default=2000, help="what the link carries a second, each way")
    parser.add_argument("--overlap", type=int, default=1, help=argparse.SUPPRESS)
    common_options(parser, rounds=3)
    parser.set_defaults(threads=1, steps=4, warm=2)
    options = parser.parse_args()
    if options.side:
        return run_rank(options)
    from remask.model.network import empty_network

    parameters = sum(p.numel() for p in empty_network(*network_of(options)).parameters())
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    with tempfile.TemporaryDirectory(prefix="remask-bench-") as folder, two_hosts() as names:
        tokens = num_steps(options) * options.batch * options.length
        write_tokens(Path(folder) / "prepared", SIZES[options.size][4], tokens)
        for _ in range(options.rounds):
            for name in SIDES:
                seconds[name].append(measure(name, names, options, Path(folder)))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    sending = 4 * parameters * 8 / (options.mbit * 1e6)  # 8 P (N-1)/N bytes of two ranks
    shape_of = f"{options.size}, {options.length} x {options.batch}, {options.precision}, {options.mbit} Mbit/s"
    result = {
        "name": f"step of two hosts, gradients on their way, {shape_of}",
        "ratio": round(medians["after"] / medians["overlap"], 3),
        "ours": round(medians["overlap"], 4),
        "peer": round(medians["after"], 4),
        "unit": "s a step",
        "rounds": [round(a / b, 3) for a, b in zip(seconds["after"], seconds["overlap"], strict=True)],
        "computing": round(medians["free"], 4),
        "sending": round(sending, 4),
        "above_the_larger": round(medians["overlap"] / max(medians["free"], sending), 3),
        "peer_name": "ours, gradients after the backward pass",
    }
    tell(result, options)


if __name__ == "__main__":
    main()
