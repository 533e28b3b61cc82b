"""How near our pretraining step comes to the machine: the time of its bare matrix products by the time of the step.

One side is our loop (see pretrain.py); the other alternates with it, in its own process, and computes nothing but the
products that such a step cannot do without, on operands of the same shapes in the same precision: for every linear
layer the output, the gradient of the input and that of the weights, for attention the two products and their four
gradients, for the masked-LM head, and in the last layer after its attention, the masked positions only. FLOPs that a
step spends beyond those count as waste. `ratio` is the share in percent; `peer` the ceiling and `ours` the step in
GFLOPS. The same share with the rate of the linear layers alone as the ceiling (attention's small products run slower)
is told beside it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _pretraining import SIZES, add_options, prepare, run_ours, words_for
from _rig import Turns, common_options, take_turns, tell

MASKED_SHARE = 0.15


@dataclass(frozen=True)
class Shape:
    """A product of `batch` pairs (rows x inner) (inner x columns), which a step does `times` times each way."""

    name: str
    batch: int
    rows: int
    inner: int
    columns: int
    times: int

    @property
    def flops(self) -> float:
        """Forward and both gradients, all times."""
        return 3 * 2.0 * self.batch * self.rows * self.inner * self.columns * self.times


def shapes(options: argparse.Namespace) -> list[Shape]:
    layers, width, heads, ffn, vocab_size = SIZES[options.size]
    tokens, masked = options.batch * options.length, round(MASKED_SHARE * options.batch * options.length)
    pairs, head = options.batch * heads, width // heads
    return [
        Shape("query, key, value", 1, tokens, width, 3 * width, layers),
        Shape("attention output", 1, tokens, width, width, layers - 1),
        Shape("FFN up", 1, tokens, width, ffn, layers - 1),
        Shape("FFN down", 1, tokens, ffn, width, layers - 1),
        Shape("last attention output", 1, masked, width, width, 1),
        Shape("last FFN up", 1, masked, width, ffn, 1),
        Shape("last FFN down", 1, masked, ffn, width, 1),
        Shape("scores", pairs, options.length, head, options.length, layers),
        Shape("weighted values", pairs, options.length, options.length, head, layers),
        Shape("head dense", 1, masked, width, width, 1),
        Shape("head logits", 1, masked, width, vocab_size, 1),
    ]


def products(shape: Shape, dtype: Any) -> Callable[[], None]:
    """y = x w, dx = dy w^T, dw = x^T dy, in the layouts in which a network has them (w as [out, in])."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def made(*sizes: int) -> Any:
        return torch.randn(*sizes, generator=generator).to(dtype)

    x, w = made(shape.batch, shape.rows, shape.inner), made(shape.batch, shape.columns, shape.inner)
    grad = made(shape.batch, shape.rows, shape.columns)
    if shape.batch == 1:
        x, w, grad = x[0], w[0], grad[0]
    if shape.name == "weighted values":  # values lie as [rows, width], not transposed
        w = w.mT.contiguous().mT

    def compute() -> None:
        torch.matmul(x, w.mT)
        torch.matmul(grad, w)
        torch.matmul(grad.mT, x)

    return compute


def run_products(options: argparse.Namespace, turns: Turns) -> dict[str, Any]:
    """A step is every product once; its time counts as often as a step of training does it."""
    import torch

    torch.set_num_threads(options.threads)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[options.precision]
    wanted = shapes(options)
    work = [(shape, products(shape, dtype)) for shape in wanted]
    seconds: dict[str, list[float]] = {shape.name: [] for shape in wanted}
    more = True
    while more:
        for shape, compute in work:
            began = time.perf_counter()
            compute()
            seconds[shape.name].append((time.perf_counter() - began) * shape.times)
        more = turns.done()
    return {"seconds": {name: values[options.warm :] for name, values in seconds.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, size="small", length=128, batch=32)
    common_options(parser, rounds=7)
    options = parser.parse_args()
    if options.side:
        turns = Turns(options.steps, options.warm)
        return turns.last((run_ours if options.side == "ours" else run_products)(options, turns))
    with tempfile.TemporaryDirectory(prefix="remask-bench-") as folder:
        prepare(options, Path(folder))
        rounds, last = take_turns(["ours", "products"], options, words_for(options, Path(folder)))
    wanted, pure = shapes(options), last["products"]["seconds"]
    taken = {shape.name: statistics.median(pure[shape.name]) for shape in wanted}
    flops = sum(shape.flops for shape in wanted)
    linear = [shape for shape in wanted if shape.batch == 1]
    linear_rate = sum(shape.flops for shape in linear) / sum(taken[shape.name] for shape in linear)
    step = statistics.median(turn["seconds"] / turn["steps"] for turn in rounds["ours"])
    ours, ceiling = flops / step, flops / sum(taken.values())
    result = {
        "name": f"share of the GEMM ceiling, {options.size}, {options.length} x {options.batch}, {options.precision}",
        "ratio": round(100 * ours / ceiling, 2),
        "peer": round(ceiling / 1e9, 2),
        "ours": round(ours / 1e9, 2),
        "unit": "GFLOPS",
        "percent_of_linear_rate": round(100 * ours / linear_rate, 2),
        "linear_gflops": round(linear_rate / 1e9, 2),
        "gflops": {shape.name: round(shape.flops / taken[shape.name] / 1e9, 2) for shape in wanted},
        "step_ms": round(1e3 * step, 3),
        "products_ms": {name: round(1e3 * value, 3) for name, value in taken.items()},
        "dropout": options.dropout,
    }
    tell(result, options)


if __name__ == "__main__":
    main()
