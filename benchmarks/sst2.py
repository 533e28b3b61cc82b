"""One real fine-tuning from start to end: accuracy and time of `remask finetune` on SST-2 beside transformers' Trainer.

Both start from the same checkpoint with the same recipe (AdamW with RoBERTa's b2 and eps, weight decay 0.1, 6 % of
warmup, linear decay, no clipping, the model's dropout, bf16) on the same training sentences, and score the same dev
set; seed by seed in turns, each in its own process. The Trainer pads to the longest of a batch. Timed is training with
one evaluation of the dev set; starting, reading the files and tokenising are not. The last line has both accuracies for
every seed; `ratio` is the peer's time by ours.

    python benchmarks/sst2.py --data FOLDER_OF_GLUE --model FOLDER [--epochs 1] [--rate 1.1e-4] [--rounds 3]
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _rig import common_options, compared, environment, tell

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def read(path: Path, most: int | None) -> tuple[list[str], list[int]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:most]
    return [row["sentence"] for row in rows], [int(row["label"]) for row in rows]


def write_part(options: argparse.Namespace, work: Path) -> None:
    """The files both sides read: SST-2's own, the training file cut to --examples."""
    for name, most in (("train", options.examples), ("dev", None)):
        texts, labels = read(options.data / "SST-2" / f"{name}.tsv", most)
        with (work / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for text, label in zip(texts, labels, strict=True):
                file.write(json.dumps({"text": text, "label": str(label)}) + "\n")


def ours(options: argparse.Namespace, seed: int, work: Path) -> dict[str, Any]:
    out = work / f"ours-{seed}"
    words = [
        "finetune", "--task", "classify", "--train", str(work / "train.jsonl"), "--dev", str(work / "dev.jsonl"),
        "--init", str(options.model), "--out", str(out), "--epochs", str(options.epochs), "--seed", str(seed),
        "--quiet",
        "--set", f"train.learning_rate={options.rate}", "--set", f"train.precision={options.precision}",
        "--set", f"batch.num_rows={options.batch}",
    ]  # fmt: skip
    env = environment(options.threads, options.allocator)
    subprocess.run([sys.executable, "-m", "remask", *words], env=env, stdout=sys.stderr, check=True)
    results = json.loads((out / "results.json").read_bytes())
    (run,) = results["runs"]
    return {"accuracy": run["metrics"]["accuracy"], "seconds": run["seconds"]}


def peer(options: argparse.Namespace, seed: int, work: Path) -> dict[str, Any]:
    words = ["--side", str(seed), "--work", str(work), "--model", str(options.model), "--epochs", str(options.epochs)]
    words += ["--rate", str(options.rate), "--batch", str(options.batch), "--precision", options.precision]
    env = environment(options.threads, options.allocator)
    said = subprocess.run(
        [sys.executable, __file__, *words, "--threads", str(options.threads)],
        env=env,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(said.stdout.splitlines()[-1])


def run_peer(options: argparse.Namespace) -> None:
    """In a process of its own: the Trainer with the recipe, then one evaluation."""
    import numpy as np
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )  # fmt: skip

    torch.set_num_threads(options.threads)
    set_seed(int(options.side))
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2, dtype=torch.float32)

    def rows(name: str) -> list[dict[str, Any]]:
        read = [json.loads(line) for line in (options.work / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        ids = tokenizer([row["text"] for row in read], truncation=True, max_length=512)["input_ids"]
        return [{"input_ids": one, "label": int(row["label"])} for one, row in zip(ids, read, strict=True)]

    train, dev = rows("train"), rows("dev")
    num_steps = -(-len(train) // options.batch) * options.epochs
    arguments = TrainingArguments(
        output_dir=str(options.work / f"peer-{options.side}"), per_device_train_batch_size=options.batch,
        per_device_eval_batch_size=32, num_train_epochs=options.epochs, learning_rate=options.rate,
        warmup_steps=round(0.06 * num_steps), weight_decay=0.1, adam_beta2=0.98, adam_epsilon=1e-6, max_grad_norm=0.0,
        optim="adamw_torch_fused", bf16=options.precision == "bf16", use_cpu=True, seed=int(options.side), report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip

    def score(said: Any) -> dict[str, float]:
        return {"accuracy": float(np.mean(said.predictions.argmax(1) == said.label_ids))}

    trainer = Trainer(
        model, arguments, train_dataset=train, eval_dataset=dev, compute_metrics=score,
        data_collator=DataCollatorWithPadding(tokenizer),
    )  # fmt: skip
    began = time.perf_counter()
    trainer.train()
    accuracy = trainer.evaluate()["eval_accuracy"]
    print(json.dumps({"accuracy": accuracy, "seconds": round(time.perf_counter() - began, 1)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED / "glue", help="folder with SST-2/train.tsv and dev.tsv")
    parser.add_argument("--model", type=Path, default=SHARED / "roberta-30m", help="folder in Hugging Face layout")
    parser.add_argument("--examples", type=int, help="train on the first so many")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1.1e-4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    common_options(parser, rounds=3)
    options = parser.parse_args()
    if options.side:
        return run_peer(options)
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": []}
    with tempfile.TemporaryDirectory(prefix="remask-bench-") as folder:
        work = Path(folder)
        write_part(options, work)
        for seed in range(options.rounds):
            sides = [("ours", ours), ("peer", peer)]
            for name, run in sides if seed % 2 == 0 else reversed(sides):
                found[name].append(run(options, seed, work))
                print(f"seed {seed}, {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    seconds = {name: [run["seconds"] for run in runs] for name, runs in found.items()}
    accuracy = {name: [round(run["accuracy"], 4) for run in runs] for name, runs in found.items()}
    result = compared("fine-tuning on SST-2, start to end", "s", seconds["ours"], seconds["peer"], less_is_better=True)
    medians = {name: statistics.median(values) for name, values in accuracy.items()}
    tell(result | {"accuracy": accuracy, "median_accuracy": medians, "epochs": options.epochs}, options)


if __name__ == "__main__":
    main()
