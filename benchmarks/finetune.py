"""Fine-tuning a classifier: examples per second of our loop beside the Hugging Face Trainer with dynamic padding.

Both train the same network (the peer's weights, read from its folder) on the same texts, whose lengths are spread as
those of SST-2's sentences (mean 24 tokens) or of MRPC's pairs (52), with AdamW, warmup, decay and dropout 0.1, turn by
turn in one run. Timed is one pass over all texts; start-up, evaluation and saving are not. The Trainer has sdpa, with
`--device cuda` flash attention where it is installed. Last line of `--json`: {"ratio", "peer", "ours", "unit"}.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _device import begin_memory, device_option, peak_memory, peer_attentions, settle, where

from remask.model.network import with_heads
from remask.model.settings import HeadSettings
from remask.model.store import open_model
from remask.progress import Progress
from remask.schema import BatchSource
from remask.task_objectives import TaskObjective
from remask.tasks.batches import TaskBatches
from remask.tasks.kinds import KINDS
from remask.tasks.rows import Rows
from remask.tasks.settings import TaskBatchSettings
from remask.train.job import Job
from remask.train.loop import train
from remask.train.settings import TrainSettings
from remask.train.training import Training

SIZES = {"tiny": (2, 64, 2, 128), "small": (6, 384, 6, 1536), "base": (12, 768, 12, 3072)}
VOCAB_SIZE = 16_384
# Standard deviation of the lengths over their mean, measured with RoBERTa's vocabulary: SST-2's dev sentences have 26.0
# tokens on average, MRPC's pairs 53.3, and those are much more alike.
SPREADS = {24: 0.40, 52: 0.23}


def make_model(folder: Path, size: str, attention: str) -> Any:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    layers, width, heads, ffn = SIZES[size]
    config = RobertaConfig(
        vocab_size=VOCAB_SIZE, num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
        intermediate_size=ffn, max_position_embeddings=514, layer_norm_eps=1e-5, type_vocab_size=1, pad_token_id=1,
        bos_token_id=0, eos_token_id=2, num_labels=2,
    )  # fmt: skip
    torch.manual_seed(0)
    RobertaForSequenceClassification(config).save_pretrained(folder)
    model = RobertaForSequenceClassification.from_pretrained(folder, attn_implementation=attention)
    assert model.config._attn_implementation == attention
    return model


def make_rows(count: int, mean: int) -> Rows:
    """Lengths from a gamma distribution as wide as that of the task with the nearest mean, at least 4 tokens."""
    generator = np.random.default_rng(0)
    shape = SPREADS[min(SPREADS, key=lambda known: abs(known - mean))] ** -2
    lengths = np.clip(generator.gamma(shape, mean / shape, count).round().astype(int), 4, 256)
    ids = [np.concatenate([[0], generator.integers(4, VOCAB_SIZE, n - 2), [2]]) for n in lengths]
    return Rows(ids, None, [np.int64(i % 2) for i in range(count)], np.arange(count))


class Clock:
    """When each step began. A run has one step more than a pass has, so that a whole pass lies between the ends, where
    the device has nothing left to do."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.times: list[float] = []
        self._device, self._last = options.device, options.steps

    def tick(self) -> None:
        if len(self.times) in (0, self._last):
            settle(self._device)
        self.times.append(time.perf_counter())

    def seconds_per_step(self) -> float:
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1)


def ours(network: Any, rows: Rows, options: argparse.Namespace, folder: Path) -> float:
    clock = Clock(options)
    objective = TaskObjective(KINDS["classify"], 0)
    batches = TaskBatches(rows, 1, TaskBatchSettings(num_rows=options.batch), seed=0)

    class Timed(BatchSource):
        """The batches, with a note of when each step asked for its own."""

        steps_per_epoch, tokens_per_step = batches.steps_per_epoch, batches.tokens_per_step

        def first_cursor(self) -> dict[str, Any]:
            return batches.first_cursor()

        def take(self, cursor: dict[str, Any]) -> Any:
            clock.tick()
            return batches.take(cursor)

    settings = TrainSettings(
        steps=options.steps + 1, learning_rate=2e-5, warmup=0.06, weight_decay=0.1, save_every=0, eval_every=0,
        precision=options.precision, device=options.device, prefetch=False, spike_sigmas=0.0,
    )  # fmt: skip
    job = Job(
        model=network, batches=Timed(), objective=objective, settings=settings, folder=folder, identity={},
        carried={}, seed=0,
    )  # fmt: skip
    with Training(job, Progress(quiet=True)) as training:
        train(training)
    return options.batch / clock.seconds_per_step()


def peers(model: Any, rows: Rows, options: argparse.Namespace, folder: Path) -> float:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    clock = Clock(options)

    class Times(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            clock.tick()

    def collate(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        width = max(len(row["ids"]) for row in batch)
        ids = torch.full((len(batch), width), 1)
        for number, row in enumerate(batch):
            ids[number, : len(row["ids"])] = torch.from_numpy(row["ids"])
        labels = torch.tensor([int(row["label"]) for row in batch])
        return {"input_ids": ids, "attention_mask": (ids != 1).long(), "labels": labels}

    assert rows.labels is not None
    data = [{"ids": ids, "label": label} for ids, label in zip(rows.ids, rows.labels, strict=True)]
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=options.batch, max_steps=options.steps + 1,
        learning_rate=2e-5, warmup_steps=2, weight_decay=0.1, bf16=options.precision == "bf16",
        use_cpu=options.device == "cpu", report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        remove_unused_columns=False, dataloader_num_workers=0, dataloader_pin_memory=options.device == "cuda",
        logging_nan_inf_filter=False,  # which would make a GPU wait in every step
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=data, data_collator=collate, callbacks=[Times()]).train()  # type: ignore
    return options.batch / clock.seconds_per_step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--length", type=int, default=24, help="mean tokens of a text")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20, help="in a pass, of each side in each round")
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=3)
    device_option(parser)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    speeds: dict[str, list[float]] = {"ours": [], "peer": []}
    memory: dict[str, list[float]] = {"ours": [], "peer": []}
    rows = make_rows(options.batch * options.steps, options.length)
    with tempfile.TemporaryDirectory() as base:
        attention = peer_attentions(options.device, options.precision)[0]
        peer = make_model(Path(base) / "model", options.size, attention)
        encoder = open_model(Path(base) / "model").network
        for number in range(options.rounds + 1):
            network = with_heads(encoder, HeadSettings(num_classes=2), 0)
            for name, side, model in (("ours", ours, network), ("peer", peers, peer)):
                held = begin_memory(options.device)
                speed = side(model, rows, options, Path(base) / f"{name}-{number}")
                if number:  # the first round warms both sides
                    speeds[name].append(speed)
                    memory[name].append(peak_memory(options.device) - held)
                model.zero_grad()
                model.to("cpu")  # for the other one to have the device alone
                gc.collect()
    shape = f"{options.size}, {options.length} tokens, batch {options.batch}, {options.precision}"
    result = {
        "name": f"fine-tuning {shape}{where(options.device)}",
        "ratio": round(statistics.median(o / p for o, p in zip(speeds["ours"], speeds["peer"], strict=True)), 2),
        "peer": round(statistics.median(speeds["peer"]), 1),
        "ours": round(statistics.median(speeds["ours"]), 1),
        "unit": "examples/s",
        "attention": attention,
    }
    if options.device == "cuda":  # of the process on a CPU, both sides have had a part in it
        result["peak_mb"] = {name: round(statistics.median(values)) for name, values in memory.items()}
    if not options.json:
        print(f"Trainer {result['peer']} examples/s, remask {result['ours']} examples/s")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
