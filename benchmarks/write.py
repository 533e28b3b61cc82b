"""Writing: training tokens per second beside EncoderDecoderModel and its Trainer, and tokens written beside `generate`.

Both sides have the same network: RoBERTa's form with a decoder of all layers, ours exported to the peer's folder, so
that the weights are the same. Training: the same pairs, whose lengths are spread as those of short sentences, label
smoothing and dropout 0.1, AdamW, as many pairs a step; a token is one of a source or of a target. Decoding: the same
sources, beams, batch and longest length; texts of random weights rarely end, so both sides write about as many tokens,
and those that were written are counted. Both take turns in one process. Last lines of `--json`: one for each figure.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from remask.answer.decoding import write
from remask.answer.runner import Runner
from remask.exports.hf import export_hf
from remask.model.network import build_network
from remask.model.packed import for_answers
from remask.model.settings import HeadSettings, ModelSettings, WriterSettings
from remask.model.store import open_model, save_model
from remask.precision import autocast
from remask.progress import Progress
from remask.schema import BatchSource
from remask.task_objectives import TaskObjective
from remask.tasks.batches import TaskBatches
from remask.tasks.kind import TaskLoss
from remask.tasks.kinds import KINDS
from remask.tasks.rows import Rows
from remask.tasks.settings import DecodeSettings, TaskBatchSettings
from remask.train.job import Job
from remask.train.loop import train
from remask.train.settings import TrainSettings
from remask.train.training import Training

SIZES = {"tiny": (2, 64, 2, 128), "small": (6, 384, 6, 1536), "base": (12, 768, 12, 3072)}
VOCAB_SIZE = 16_384
SPREAD = 0.4  # standard deviation of the lengths over their mean


def make_models(base: Path, size: str) -> tuple[Path, Path]:
    """(our folder, the peer's) with the same weights and a vocabulary that nobody reads texts with."""
    from remask.tokenizer.settings import TokenizerSettings
    from remask.tokenizer.training import count_pieces, train_tokenizer

    layers, width, heads, ffn = SIZES[size]
    settings = ModelSettings(
        vocab_size=VOCAB_SIZE, num_layers=layers, hidden_size=width, num_heads=heads, ffn_size=ffn, max_length=512
    )
    pieces = count_pieces([b"a vocabulary that nobody reads texts with"] * 3, TokenizerSettings(vocab_size=300), False)
    train_tokenizer(sorted(pieces.items()), TokenizerSettings(vocab_size=300), False).save(base / "tokenizer")
    save_model(base / "ours", build_network(settings, HeadSettings(writer=WriterSettings()), 0), base / "tokenizer")
    export_hf(base / "ours", base / "theirs")
    return base / "ours", base / "theirs"


def make_rows(count: int, mean: int) -> Rows:
    draw = np.random.default_rng(0)

    def some(start: list[int]) -> np.ndarray:
        length = int(np.clip(round(draw.gamma(SPREAD**-2, mean * SPREAD**2)), 4, 256))
        return np.array([*start, *draw.integers(4, VOCAB_SIZE, length), 2], np.int64)

    return Rows(
        [some([0]) for _ in range(count)], None, [some([]) for _ in range(count)], np.arange(count),
        label_per_target=True,
    )  # fmt: skip


class Clock:
    """When each step began. A run has one step more than a pass has, so that a whole pass lies between the ends."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def seconds(self) -> float:
        return self.times[-1] - self.times[0]


# ---------------------------------------------------------------------------------------------------- training


def our_training(folder: Path, rows: Rows, options: argparse.Namespace, out: Path) -> float:
    clock = Clock()
    batches = TaskBatches(rows, 1, TaskBatchSettings(num_rows=options.batch), seed=0)

    class Timed(BatchSource):
        steps_per_epoch, tokens_per_step = batches.steps_per_epoch, batches.tokens_per_step

        def first_cursor(self) -> dict[str, Any]:
            return batches.first_cursor()

        def take(self, cursor: dict[str, Any]) -> Any:
            clock.times.append(time.perf_counter())
            return batches.take(cursor)

    settings = TrainSettings(
        steps=options.steps + 1, learning_rate=5e-5, warmup=0.06, weight_decay=0.01, save_every=0, eval_every=0,
        precision=options.precision, device="cpu", prefetch=False, spike_sigmas=0.0,
    )  # fmt: skip
    job = Job(
        model=open_model(folder).network, batches=Timed(),
        objective=TaskObjective(KINDS["write"], 0, TaskLoss(label_smoothing=0.1)), settings=settings, folder=out,
        identity={}, carried={}, seed=0,
    )  # fmt: skip
    with Training(job, Progress(quiet=True)) as training:
        train(training)
    return float(rows.sizes.sum()) / clock.seconds()


def their_training(folder: Path, rows: Rows, options: argparse.Namespace, out: Path) -> float:
    from transformers import EncoderDecoderModel, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback

    clock = Clock()

    class Times(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            clock.times.append(time.perf_counter())

    def collate(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        def padded(key: str, fill: int) -> torch.Tensor:
            out = torch.full((len(batch), max(len(row[key]) for row in batch)), fill)
            for number, row in enumerate(batch):
                out[number, : len(row[key])] = torch.from_numpy(row[key])
            return out

        ids, labels = padded("ids", 1), padded("labels", -100)
        # With label smoothing the Trainer takes the labels away, so the model must be told what the decoder reads.
        told = torch.cat([torch.zeros(len(batch), 1, dtype=torch.int64), labels[:, :-1]], dim=1)
        told = told.masked_fill(told == -100, 1)
        return {
            "input_ids": ids, "attention_mask": (ids != 1).long(), "labels": labels, "decoder_input_ids": told,
            "decoder_attention_mask": (told != 1).long(),
        }  # fmt: skip

    assert rows.labels is not None
    data = [{"ids": ids, "labels": label} for ids, label in zip(rows.ids, rows.labels, strict=True)]
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(out), per_device_train_batch_size=options.batch, max_steps=options.steps + 1,
        learning_rate=5e-5, warmup_steps=2, weight_decay=0.01, bf16=options.precision == "bf16", use_cpu=True,
        label_smoothing_factor=0.1, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        remove_unused_columns=False, dataloader_num_workers=0,
    )  # fmt: skip
    model = EncoderDecoderModel.from_pretrained(folder)
    Seq2SeqTrainer(model, arguments, train_dataset=data, data_collator=collate, callbacks=[Times()]).train()
    return float(rows.sizes.sum()) / clock.seconds()


# ---------------------------------------------------------------------------------------------------- decoding


def our_decoder(folder: Path, options: argparse.Namespace) -> Any:
    network = for_answers(open_model(folder).network, options.precision)
    runner = Runner(network, 1, has_segments=False, precision=options.precision)
    settings = DecodeSettings(beams=options.beams)

    def run(sources: list[np.ndarray]) -> int:
        count = 0
        for start in range(0, len(sources), options.batch):
            batch = runner.batch([(ids, np.zeros_like(ids)) for ids in sources[start : start + options.batch]])
            with torch.inference_mode(), runner.products():
                drafts = write(network, batch, network.encode(batch), settings, options.longest)
            count += sum(len(draft.ids) + draft.finished for draft in drafts)
        return count

    return run


def their_decoder(folder: Path, options: argparse.Namespace) -> Any:
    from transformers import EncoderDecoderModel

    model = EncoderDecoderModel.from_pretrained(folder).eval()
    if options.precision == "bf16":
        model = model.to(torch.bfloat16)  # faster for it than autocast

    def run(sources: list[np.ndarray]) -> int:
        count = 0
        for start in range(0, len(sources), options.batch):
            some = sources[start : start + options.batch]
            ids = torch.full((len(some), max(map(len, some))), 1)
            for number, row in enumerate(some):
                ids[number, : len(row)] = torch.from_numpy(row)
            with torch.inference_mode(), autocast("fp32", "cpu"):
                written = model.generate(
                    ids, attention_mask=(ids != 1).long(), num_beams=options.beams, max_new_tokens=options.longest,
                    do_sample=False,
                )  # fmt: skip
            count += int((written[:, 1:] != 1).sum())
        return count

    return run


# -------------------------------------------------------------------------------------------------------- both


def tell(name: str, speeds: dict[str, list[float]], options: argparse.Namespace) -> None:
    pairs = list(zip(speeds["ours"], speeds["peer"], strict=True))
    result = {
        "name": name,
        "ratio": round(statistics.median(o / p for o, p in pairs), 2),
        "peer": round(statistics.median(speeds["peer"]), 1),
        "ours": round(statistics.median(speeds["ours"]), 1),
        "unit": "tokens/s",
        "rounds": [round(o / p, 2) for o, p in pairs],
    }
    if not options.json:
        print(f"{name}: transformers {result['peer']:,} tokens/s, remask {result['ours']:,} tokens/s")
    print(json.dumps(result), flush=True)


def compare_training(folders: tuple[Path, Path], base: Path, options: argparse.Namespace) -> None:
    speeds: dict[str, list[float]] = {"ours": [], "peer": []}
    rows = make_rows(options.batch * options.steps, options.length)
    for number in range(options.rounds + 1):
        left = our_training(folders[0], rows, options, base / f"ours-{number}")
        right = their_training(folders[1], rows, options, base / f"peer-{number}")
        if number:  # the first round warms both sides
            speeds["ours"].append(left)
            speeds["peer"].append(right)
    shape = f"{options.size}, {options.length} tokens a side, batch {options.batch}, {options.precision}"
    tell(f"training to write, {shape}", speeds, options)


def compare_decoding(folders: tuple[Path, Path], options: argparse.Namespace) -> None:
    sources = [np.asarray(ids) for ids in make_rows(options.batch * options.decode_batches, options.length).ids]
    runs = {"ours": our_decoder(folders[0], options), "peer": their_decoder(folders[1], options)}
    speeds: dict[str, list[float]] = {"ours": [], "peer": []}
    for number in range(options.rounds + 1):
        for side in ("ours", "peer") if number % 2 else ("peer", "ours"):
            began = time.perf_counter()
            count = runs[side](sources)
            if number:
                speeds[side].append(count / (time.perf_counter() - began))
    shape = f"{options.size}, beam {options.beams}, batch {options.batch}, {options.precision}"
    tell(f"writing, {shape}", speeds, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--length", type=int, default=24, help="mean tokens of a source and of a target")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=12, help="in a pass of training, of each side in each round")
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--longest", type=int, default=32, help="most tokens of a written text")
    parser.add_argument("--decode-batches", type=int, default=4)
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["training", "decoding"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        folders = make_models(base, options.size)
        if options.only != "decoding":
            compare_training(folders, base, options)
        if options.only != "training":
            compare_decoding(folders, options)


if __name__ == "__main__":
    main()
