"""The papers' runs on GPUs, computed: memory and traffic of a rank, and days at a stated share of the peak.

In: bases of runs/bases and the numbers of GPUs. Out: the tables of docs/scale.md. Parameters and products are exact
(remask.model.cost), memory and traffic are preflight's formulas, which a run prints for its own ranks. Nothing is
measured here: peak, share of the peak and bandwidth are assumptions, given as options and printed with the result.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from remask.config import build_run
from remask.model.cost import TRAINING_FACTOR, flops_per_token
from remask.model.interop_weights import our_shapes
from remask.model.settings import HeadSettings
from remask.pretraining.settings import PretrainRun
from remask.train.preflight import Facts, gathered

VOCAB_SIZE = 50_265  # RoBERTa's


def facts_of(base: str, ranks: int, parallel: str, micro_rows: int) -> tuple[Facts, float]:
    """What preflight would be told of this run, and the products of a token in training."""
    path = Path(__file__).resolve().parents[1] / "runs" / "bases" / f"{base}.yaml"
    run = build_run(PretrainRun, path).run
    settings, heads = run.model.model_copy(update={"vocab_size": VOCAB_SIZE}), HeadSettings(masked_lm=True)
    shapes = {name: math.prod(shape) for name, shape in our_shapes(settings, heads).items()}
    parameters = sum(shapes.values())
    parts: dict[str, int] = {}
    for name, size in shapes.items():
        if name.startswith(("encoder.attentions.", "encoder.ffns.")):
            part = ".".join(name.split(".")[:3])
            parts[part] = parts.get(part, 0) + size
    rows, length, steps = run.data.batch.num_rows, run.data.length, run.train.steps
    assert steps is not None
    assert rows % ranks == 0, f"{rows} rows cannot be dealt to {ranks} ranks"
    facts = Facts(
        parameters=parameters,
        trainable=parameters,
        hidden_size=settings.hidden_size,
        num_layers=settings.num_layers,
        post_norm=True,
        tokens_per_step=rows * length,
        rows_per_step=rows,
        micro_tokens=micro_rows * length,
        steps_per_epoch=math.nan,
        num_steps=steps,
        free_bytes=0,
        precision="bf16",
        planned_tokens=steps * rows * length,
        ranks=ranks,
        parallel=parallel,
        micro_batches=math.ceil(rows / (ranks * micro_rows)),
        whole_parameters=gathered(parameters, list(parts.values())),
    )
    return facts, TRAINING_FACTOR * sum(flops_per_token(settings, heads, length).values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bases", default="roberta_base,roberta_large")
    parser.add_argument("--gpus", default="8,64,256,1024")
    parser.add_argument("--micro-rows", type=int, default=32)
    parser.add_argument(
        "--peak", type=float, default=312e12, help="products a second of one GPU in bf16 (A100: 312e12)"
    )
    parser.add_argument("--mfu", type=float, default=0.4, help="share of the peak that is reached, communication aside")
    parser.add_argument("--bandwidth", type=float, default=25e9, help="bytes a second that a rank sends between nodes")
    parser.add_argument("--json", action="store_true", help="only the last line")
    options = parser.parse_args()
    rows = []
    for base in options.bases.split(","):
        for gpus in map(int, options.gpus.split(",")):
            for parallel in ("ddp", "fsdp"):
                facts, flops = facts_of(base, gpus, parallel, min(options.micro_rows, 8192 // gpus))
                computing = facts.tokens_per_step * flops / (gpus * options.peak * options.mfu)
                sending = facts.traffic_bytes / options.bandwidth
                # ddp adds up after the last backward pass; fsdp's messages go beside the products.
                step = computing + sending if parallel == "ddp" else max(computing, sending)
                rows.append(
                    {
                        "base": base,
                        "gpus": gpus,
                        "parallel": parallel,
                        "micro_batches": facts.micro_batches,
                        "state_gb": round(facts.state_bytes / 1e9, 2),
                        "memory_gb": round(facts.memory_bytes / 1e9, 1),
                        "traffic_gb": round(facts.traffic_bytes / 1e9, 2),
                        "computing_s": round(computing, 3),
                        "sending_s": round(sending, 3),
                        "days": round(step * (facts.num_steps or 0) / 86_400, 1),
                        "parameters": facts.parameters,
                        "training_flops_per_token": flops,
                    }
                )
    if not options.json:
        names = [name for name in rows[0] if name not in ("parameters", "training_flops_per_token")]
        print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
        for row in rows:
            print("| " + " | ".join(str(row[name]) for name in names) + " |")
    assumed = {"peak": options.peak, "mfu": options.mfu, "bandwidth": options.bandwidth}
    print(json.dumps({"assumed": assumed, "rows": rows}))


if __name__ == "__main__":
    main()
