"""Every way to tune on two tasks: score, trained parameters, minutes of one core; and what robust passes do.

    python benchmarks/ways.py --init MODEL --data DIR --work OUT                     what learns: 8 ways
    python benchmarks/ways.py --init MODEL --data DIR --work OUT --what robust --seeds 3

`DIR` holds `glue/SST-2` and `conll2003` as published. All runs of a table have the same examples, batches and epochs,
and each its own default rate. Minutes are of the process, not of the clock, so that other work on the machine does not
count; they include reading, evaluations and saving. Runs that are there already are not done again. The last line is a
JSON object with all rows.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import remask
from remask.config import build_run
from remask.progress import Progress
from remask.tune.settings import FinetuneRun
from remask.tune.single import prepare

LEARN: dict[str, dict[str, Any]] = {
    "all": {},
    "top 2 layers": {"train.trainable_top_layers": 2},
    "lora": {"learn": "lora"},
    "adalora": {"learn": "adalora"},
    "ia3": {"learn": "ia3"},
    "bottleneck": {"learn": "bottleneck"},
    "prefix": {"learn": "prefix"},
    "heads": {"learn": "heads"},
}
ROBUST: dict[str, dict[str, Any]] = {
    "plain": {},
    "consistency 1": {"loss.consistency": 1.0},
    "adversarial 1": {"loss.adversarial": 1},
}
TASKS = {
    "sst2": {"task": "glue:sst2", "data": "glue/SST-2"},
    "ner": {"task": "ner", "train_file": "conll2003/eng.train", "dev_file": "conll2003/eng.testa"},
}
QUIET = Progress(quiet=True)


def one(words: argparse.Namespace, task: str, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """A cell of the table, from its folder where it is done."""
    out = words.work / f"{words.what}-{task}-{name.replace(' ', '-')}"
    kept = out / "row.json"
    if kept.is_file():
        return json.loads(kept.read_text())
    files = {key: value if key == "task" else str(words.data / value) for key, value in TASKS[task].items()}
    recipe = {"batch.num_rows": 32, "train.epochs": words.epochs, "train.precision": words.precision}
    sizes = {"max_train": words.examples, "max_dev": words.dev, "seeds": words.seeds, "rows.max_length": 128}
    run = build_run(FinetuneRun, options={"init": str(words.init), **files, **recipe, **sizes, **settings}).run
    network = prepare(run, QUIET).build(run.seed)
    if (top := run.train.trainable_top_layers) is not None:
        network.train_top_layers(top)
    trained = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    before = time.process_time()
    values = remask.finetune(run, out=out, progress=QUIET)
    row = {
        "task": task,
        "way": name,
        "metric": values["metric"],
        **{key: round(values["spread"][values["metric"]][key], 4) for key in ("median", "low", "high")},
        "trained": trained,
        "minutes": round((time.process_time() - before) / 60 / words.seeds, 2),
        "rate": values["runs"][0]["learning_rate"],
    }
    kept.write_text(json.dumps(row))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--init", type=Path, required=True, help="the model to start from")
    parser.add_argument("--data", type=Path, required=True, help="folder with glue/SST-2 and conll2003")
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--what", choices=["learn", "robust"], default="learn")
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--dev", type=int, default=1000)
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--json", action="store_true", help="only the last line")
    words = parser.parse_args()
    rows = []
    for task in words.tasks:
        for name, settings in (LEARN if words.what == "learn" else ROBUST).items():
            rows.append(one(words, task, name, settings))
            if not words.json:
                row = rows[-1]
                spread = f" ({row['low']:.4f} to {row['high']:.4f})" if words.seeds > 1 else ""
                print(
                    f"{task:5} {name:14} {row['metric']} {row['median']:.4f}{spread}  {row['trained']:>12,} trained  "
                    f"{row['minutes']:.2f} min",
                    flush=True,
                )
    print(json.dumps({"benchmark": "ways", "what": words.what, "rows": rows}))


if __name__ == "__main__":
    main()
