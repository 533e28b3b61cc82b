"""Batch prediction from file to file: rows per second of `remask predict` beside transformers' pipeline with batches.

Both read the same CSV (texts of mixed lengths), label every row with a classifier of the same weights in the same
precision, and write a CSV with label and score, each in its own process, alternating; opening the model is not timed.
The pipeline gets the rows in the file's order in batches of 32, as its documentation shows it; ours sorts by length in
pieces of the file and keeps each piece on disk. All scores must agree. Last line: a JSON object with the ratio.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Callable
from pathlib import Path

from _models import make_model, make_texts, mixed_lengths
from _pretraining import SIZES
from _rig import Turns, common_options, compared, take_turns, tell

TOLERANCE = {"fp32": 1e-3, "bf16": 5e-2}
Run = Callable[[Path, Path], None]  # a file with texts, the file to make


def open_ours(folder: Path, options: argparse.Namespace) -> Run:
    import torch

    from remask.answer.predict import PredictRun, open_ready, predict_file
    from remask.progress import Progress

    torch.set_num_threads(options.threads)
    asked = PredictRun(model=str(folder), file=str(folder / "texts.csv"), precision=options.precision, device="cpu")
    ready = open_ready(asked)

    def run(source: Path, target: Path) -> None:
        assert asked.file == str(source)
        predict_file(ready, asked, target, progress=Progress(quiet=True))

    return run


def open_pipeline(folder: Path, options: argparse.Namespace) -> Run:
    import torch
    from transformers import pipeline

    torch.set_num_threads(options.threads)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.precision]
    classify = pipeline("text-classification", model=str(folder), device="cpu", dtype=dtype)

    def run(source: Path, target: Path) -> None:
        with source.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        said = classify([row["text"] for row in rows], batch_size=options.batch, truncation=True)
        with target.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "prediction", "score"])
            for row, one in zip(rows, said, strict=True):
                writer.writerow([row["text"], one["label"], one["score"]])

    return run


SIDES = {"ours": open_ours, "pipeline": open_pipeline}


def run_side(options: argparse.Namespace) -> None:
    """A step is the whole file once."""
    turns = Turns(1, 1)
    run = SIDES[options.side](options.work, options)
    target = options.work / f"{options.side}.csv"
    more = True
    while more:
        target.unlink(missing_ok=True)
        run(options.work / "texts.csv", target)
        more = turns.done()
    turns.last({"rows": len(read_scores(target))})


def read_scores(path: Path) -> list[tuple[str, float]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [(row["prediction"], float(row["score"])) for row in csv.DictReader(file)]


def check(work: Path, tolerance: float) -> None:
    """Both sides said the same about every row; where two labels are as good as equal either will do."""
    ours, theirs = (read_scores(work / f"{name}.csv") for name in SIDES)
    for number, ((label, score), (other, expected)) in enumerate(zip(ours, theirs, strict=True)):
        apart = abs(score - expected) if label == other else abs(score + expected - 1)
        assert apart <= tolerance, f"row {number}: {label} {score:.4f} here, {other} {expected:.4f} in the pipeline"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="base", choices=SIZES)
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    parser.add_argument("--rows", type=int, default=512, help="of the file")
    parser.add_argument("--mean", type=int, default=48, help="mean number of tokens of a text")
    parser.add_argument("--batch", type=int, default=32, help="texts of a batch of the pipeline")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json; else RoBERTa's where it is, or a trained one")
    common_options(parser, rounds=5)
    options = parser.parse_args()
    if options.side:
        return run_side(options)
    with tempfile.TemporaryDirectory(prefix="remask-bench-") as folder:
        work = Path(folder)
        tokenizer = make_model(work, options.size, "classify", options.tokenizer)
        texts = make_texts(tokenizer, mixed_lengths(options.rows, options.mean))
        with (work / "texts.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["text"], *([text] for text in texts)])
        values = {"precision": options.precision, "threads": options.threads, "batch": options.batch}
        words = [word for name, value in values.items() for word in (f"--{name}", str(value))] + ["--work", str(work)]
        rounds, _ = take_turns(list(SIDES), options, words)
        check(work, TOLERANCE[options.precision])
    rates = {name: [options.rows / turn["seconds"] for turn in turns] for name, turns in rounds.items()}
    name = f"predict, {options.size}, mixed lengths of {options.mean}, {options.precision}"
    tell(compared(name, "rows/s", rates["ours"], rates["pipeline"]), options)


if __name__ == "__main__":
    main()
