"""docs/speed.md from results: the table, the curves and how everything was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _claims import table

HEAD = """# Speed

Made by `python -m benchmarks` (`make bench`) on {hardware}; the last column says when. Do not edit: run it again.

A ratio is taken from one run in which all sides take turns, and is the median of the rounds' own ratios. For shares of
the GEMM ceiling it is in percent; for memory it is ours by the peer's, so less is better. Everywhere else more is
better.

{table}

## How it is measured
- Both sides get the same threads, the same allocator settings (those that remask sets itself while it computes) and,
  where the machine needs it for bf16, the same shim. Sides whose imports or allocations could disturb each other run in
  processes of their own.
- Pretraining: our real loop beside transformers' Trainer with DataCollatorForLanguageModeling, one configuration of
  RoBERTa, the same first weights and rows, dropout 0.1, fused AdamW, clipping. The Trainer runs with both attention
  implementations of transformers and the faster one counts. `curves` shows that both learn the same, step by step.
- The ceiling is the time that the bare matrix products of a step take at their shapes in the same precision (the
  masked-LM head, and the last layer after its attention, at masked positions only), measured between our steps.
- Time to a loss: the recipes differ, and the results file names both. Weights of both sides are scored by one scorer on
  the same rows and masks.
- Latency and throughput: from text to label. Of ONNX Runtime, OpenVINO and transformers (sorted by length) the best
  counts, in the same precision.
- Memory is what a process holds at most above what it held after its imports.
"""

CURVES = """
## How cost grows
{model}, {precision}; every point is the median of separate processes.

![tokens/s against the length of rows](images/speed-length.svg)

{lengths}

![tokens/s against rows a step](images/speed-batch.svg)

![peak memory against rows a step](images/speed-memory.svg)

{batches}

{ranks}
"""


def write_page(results: dict[str, Any], docs: Path) -> None:
    parts = [HEAD.format(hardware=results["hardware"], table=table(results["rows"], missing=True))]
    for row in results["rows"]:
        if "curves" in row:
            parts.append(_curves(row))
            break
    docs.mkdir(exist_ok=True)
    (docs / "speed.md").write_text("".join(parts))


def _curves(row: dict[str, Any]) -> str:
    curves = row["curves"]
    *_, model, precision = row["name"].split(", ")
    lengths = _table(
        ["tokens of a row", *curves["full"]],
        ["attention over everything, tokens/s", *curves["full"].values()],
        ["with a window, tokens/s", *curves["windowed"].values()],
        ["memory without a window, MB", *curves["memory_mb_by_length"].values()],
    )
    batches = _table(
        ["rows a step", *curves["batch"]],
        ["tokens/s", *curves["batch"].values()],
        ["memory, MB", *curves["memory_mb"].values()],
    )
    ranks = _table(["ranks", *curves["ranks"]], ["tokens/s", *curves["ranks"].values()])
    return CURVES.format(model=model, precision=precision, lengths=lengths, batches=batches, ranks=ranks)


def _table(*rows: list[Any]) -> str:
    lines = ["| " + " | ".join(f"{cell:,}" if isinstance(cell, int | float) else cell for cell in row) + " |" for row in rows]  # fmt: skip  # noqa: E501
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
