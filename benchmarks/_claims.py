"""Which commands `make bench` runs, and what each of their figures is held against.

A command is a script with its words, and the words of the quick form, which only shows that everything runs. A claim is
the name of a figure as its script prints it, with the least that the project promises and what it aims at.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

TINY = "--size tiny --rounds 1"
TINY_STEPS = f"{TINY} --steps 2 --length 32 --batch 4"
SHAPES = (("small", 128, 32), ("small", 512, 8), ("base", 512, 8))


@dataclass(frozen=True)
class Command:
    script: str
    words: str = ""
    quick: str = ""


@dataclass(frozen=True)
class Claim:
    """`more`: a larger figure is the better one."""

    floor: float
    aim: float
    more: bool = True

    def verdict(self, ratio: float) -> str:
        reached = [ratio >= bound if self.more else ratio <= bound for bound in (self.floor, self.aim)]
        return "aim reached" if reached[1] else "floor reached" if reached[0] else "below the floor"


def _commands() -> list[Command]:
    found = [Command("curves", quick=TINY_STEPS)]
    for precision in ("bf16", "fp32"):
        for size, length, batch in SHAPES:
            steps = 3 if size == "base" else 6
            words = f"--size {size} --length {length} --batch {batch} --precision {precision} --steps {steps}"
            quick = f"{TINY_STEPS} --precision {precision}" if size == "base" else ""  # once is enough to see it run
            found += [Command("pretrain", words, quick), Command("ceiling", words, quick)]
    found.append(Command("memory", quick=TINY_STEPS))
    found += [
        Command("finetune", f"--size base --length {length} --batch 32 --precision bf16 --steps 12 --rounds 5", quick)
        for length, quick in ((24, "--size tiny --rounds 1 --steps 2 --batch 4"), (52, ""))
    ]
    found += [
        Command("latency", quick=f"{TINY} --texts 6 --precisions fp32,int8"),
        Command("optimizers", quick=TINY_STEPS),
        Command("predict", quick=f"{TINY} --rows 12 --precision fp32"),
        Command("retrieve", quick=f"{TINY} --batch 4 --steps 1 --texts 6 --precision fp32"),
        Command("start", quick=TINY),
        Command("scaling", "--docs docs", f"{TINY_STEPS} --lengths 32,64 --batches 2,4 --window 8 --bucket 8"),
        Command("batches", quick="--rounds 1 --steps 1"),
        Command("blimp", "--precision bf16", f"{TINY} --precision fp32"),
        Command("prepare", quick="--rounds 1 --megabytes 1 --vocab-size 2048"),
        Command("prepare", "--parts tokenise --times 4 --rounds 2"),
        Command("serve", quick="--size tiny --rounds 1 --texts 20 --requests 60 --seconds 2 --slow 10"),
        Command("serve", "--precision int8 --parts load", "--size tiny --rounds 1 --texts 20 --requests 60"),
        Command("write", quick=f"{TINY} --steps 2 --batch 4 --length 8 --longest 6 --decode-batches 1"),
        Command("search", quick="--rounds 1 --passages 20000 --queries 3"),
        Command("time_to_loss"),
    ]
    return found


def _all() -> list[Command]:
    """Scripts that are not named above run as they are. `quality`, `monitor` and `ways` show no speed beside a peer,
    and `overlap` needs root for its network namespaces."""
    found = _commands()
    named = {command.script for command in found} | {"quality", "monitor", "ways", "overlap"}
    scripts = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
    return found + [Command(script) for script in scripts if script not in named]


COMMANDS = _all()

# Where there is a GPU, before all others. Nobody has measured them yet, so they are held against nothing.
GPU_COMMANDS = [
    Command("pretrain", "--size base --length 512 --batch 32 --steps 20 --warm 10 --device cuda"),
    Command("pretrain", "--size large --length 512 --batch 16 --steps 20 --warm 10 --device cuda"),
    Command("memory", "--size base --length 512 --batch 32 --device cuda"),
    Command("memory", "--size large --length 512 --batch 16 --device cuda"),
    Command("finetune", "--size base --length 24 --batch 32 --steps 50 --rounds 5 --device cuda"),
    Command("finetune", "--size base --length 52 --batch 32 --steps 50 --rounds 5 --device cuda"),
]


def _claims() -> dict[str, Claim]:
    found: dict[str, Claim] = {"loss curves of 50 steps, 6 x 384 (peer: the bound)": Claim(1.0, 1.0)}
    aims: dict[str, Any] = {"bf16": ((2.5, 4.0), (3.5, 6.0), (3.0, 5.0)), "fp32": ((1.5, 1.75),) * 3}
    shares = {"bf16": (35.0, 60.0), "fp32": (75.0, 90.0)}
    for precision in ("bf16", "fp32"):
        for (size, length, batch), bounds in zip(SHAPES, aims[precision], strict=True):
            shape = f"{size}, {length} x {batch}, {precision}"
            found[f"pretraining {shape}"] = Claim(*bounds)
            found[f"share of the GEMM ceiling, {shape}"] = Claim(*shares[precision])
    for minutes, floor, aim in (("20", 30.0, 100.0), ("120", 20.0, 50.0)):
        found[f"time to the held-out loss of {minutes} minutes of the peer, bf16"] = Claim(floor, aim)
    found["time to the held-out loss of 20 minutes of the peer with counted embeddings, bf16"] = Claim(1.0, 3.0)
    for length, floor in ((24, 2.2), (52, 2.0)):
        found[f"fine-tuning base, {length} tokens, batch 32, bf16"] = Claim(floor, 2.5)
    for precision, bounds in (("int8", (4.0, 6.0)), ("bf16", (3.0, 4.0)), ("fp32", (1.3, 1.5))):
        found[f"latency, 1 x 32 tokens, base, {precision}"] = Claim(*bounds)
        found[f"latency, mixed lengths, one at a time, base, {precision}"] = Claim(1.0, 1.3)
        found[f"throughput, mixed lengths, base, {precision}"] = Claim(1.0, 1.3)
    found["peak memory of a step, base, 512 x 8, bf16"] = Claim(0.55, 0.3, more=False)
    found["start of fill-mask, base"] = Claim(2.5, 4.0)
    found["prepare: tokenise"] = Claim(30.0, 40.0)
    found["fine-tuning on SST-2, start to end"] = Claim(2.0, 2.0)
    found["BLiMP sentences, small, bf16"] = Claim(3.0, 3.0)
    found["predict, base, mixed lengths of 48, bf16"] = Claim(3.0, 3.0)
    found["serve, throughput, base, int8, 16 clients"] = Claim(3.0, 4.0)
    found["serve, throughput, base, bf16, 16 clients"] = Claim(1.6, 1.9)
    found["Muon's step beside AdamW's, small, 2,048 tokens a step, bf16"] = Claim(1.3, 1.15, more=False)
    found["training to write, small, 24 tokens a side, batch 16, bf16"] = Claim(1.5, 2.0)
    found["writing, small, beam 4, batch 16, bf16"] = Claim(1.5, 3.0)
    found["training on pairs, small, batch 64, bf16"] = Claim(1.5, 2.5)
    found["embedding, small, mixed lengths of 64, bf16"] = Claim(1.5, 2.5)
    # Milliseconds rather than times a peer.
    found["search of 1,000,000 x 384 vectors, one query, exact"] = Claim(60.0, 60.0, more=False)
    found["search of 1,000,000 x 384 vectors, one query, int8"] = Claim(60.0, 25.0, more=False)
    return found


CLAIMS = _claims()


def table(rows: list[dict[str, Any]], *, missing: bool) -> str:
    """In the order of the claims, then the rest. `missing`: claims without a figure are listed too."""
    by_name = {row.get("name", row["benchmark"]): row for row in rows}
    names = [name for name in CLAIMS if missing or name in by_name] + [name for name in by_name if name not in CLAIMS]
    lines = [
        "| what | ours | peer | unit | ratio | floor | aim | | measured |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        row, claim = by_name.get(name), CLAIMS.get(name)
        figures = "| | | | |" if row is None else (
            f"| {row['ours']:.4g} | {row['peer']:.4g} | {row['unit']} | {row['ratio']:.4g} |"
        )  # fmt: skip
        bounds = " | | " if claim is None else f" {claim.floor:g} | {claim.aim:g} | "
        verdict = "not measured yet" if row is None else "" if claim is None else claim.verdict(row["ratio"])
        lines.append(f"| {name} {figures}{bounds}{verdict} | {(row or {}).get('date', '')} |")
    return "\n".join(lines)
