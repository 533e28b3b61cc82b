"""Our batches, read from shards, laid out and masked: beside a training step, and beside transformers' collator.

The first JSON line is what a batch of 32 x 128 costs as a share of the step that uses it: forward, backward and
optimizer of roberta_small with a vocabulary of 16,384, alternating in this process, no worker, no prefetch; `ratio` is
in percent. The last line is rows per second beside DataCollatorForLanguageModeling, which gets its rows as run_mlm.py's
datasets hand them over (lists of ids with a special-tokens mask, already in memory) and pads and masks them; ours
starts from token shards on disk. Both make the same rows of the same length, alternating in one process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from remask import artifacts
from remask.data.batches import open_batches
from remask.data.settings import BatchSettings, DataSettings, MaskingSettings
from remask.data.tokens import STAGE, ShardWriter

VOCAB_SIZE = 16_384
SPECIALS = (0, 1, 2, 3, VOCAB_SIZE - 1)


STEP_ROWS, STEP_LENGTH = 32, 128


class Vocabulary:
    """Ids laid out as RoBERTa's."""

    vocab_size, kind, special_ids = VOCAB_SIZE, "byte-bpe", SPECIALS
    bos_id, pad_id, eos_id, mask_id = 0, 1, 2, VOCAB_SIZE - 1


def write_corpus(folder: Path, num_tokens: int) -> Path:
    """Random ids in documents of about 800 tokens and sentences of about 25."""

    def fill(aside: Path) -> dict[str, object]:
        generator = np.random.default_rng(0)
        ids = generator.integers(4, VOCAB_SIZE - 1, num_tokens)
        bounds = np.unique(np.append(generator.integers(1, num_tokens, num_tokens // 25), 0))
        documents = np.unique(np.append(bounds[generator.random(len(bounds)) < 25 / 800], [0, num_tokens]))
        writer = ShardWriter(aside, "corpus.train.00000", VOCAB_SIZE)
        writer.add_many(ids, documents, bounds, generator.random(num_tokens) < 0.75)
        return {"shards": [writer.close()]}

    artifacts.publish(folder, STAGE, fill)
    return folder


def peer_tokenizer() -> object:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    names = ["<s>", "<pad>", "</s>", "<unk>", *(f"w{i}" for i in range(VOCAB_SIZE - 5)), "<mask>"]
    backend = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    marks = {
        "bos_token": "<s>",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    return PreTrainedTokenizerFast(tokenizer_object=backend, **marks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--unit", default="token", choices=["token", "word", "ngram", "span"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each side in each round")
    parser.add_argument("--steps", type=int, default=8, help="training steps that are timed")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from transformers import DataCollatorForLanguageModeling

    with tempfile.TemporaryDirectory() as folder:
        prepared = write_corpus(Path(folder) / "prepared", 4_000_000)
        share = share_of_step(prepared, options.steps)
        if not options.json:
            print(f"a batch {share['ours']} ms, a step of roberta_small {share['peer']} ms: {share['ratio']} %")
        print(json.dumps(share), flush=True)
        settings = DataSettings(
            length=options.length,
            masking=MaskingSettings(unit=options.unit),
            batch=BatchSettings(num_rows=options.batch, micro_rows=options.batch),
        )
        began = time.perf_counter()
        batches = open_batches(prepared, settings, Vocabulary(), seed=1)
        index_seconds = time.perf_counter() - began
        rows = _plain_rows(batches, options.batch)
        collator = DataCollatorForLanguageModeling(peer_tokenizer(), mlm_probability=0.15, pad_to_multiple_of=8)
        speeds: dict[str, list[float]] = {"ours": [], "peer": []}
        step = 0
        for number in range(options.rounds + 1):
            ours, step = _ours(batches, step, options.batch, options.seconds)
            peer = _peer(collator, rows, options.batch, options.seconds)
            if number:  # the first round warms both sides
                speeds["ours"].append(ours)
                speeds["peer"].append(peer)
    result = {
        "name": f"batches of {options.batch} x {options.length}, {options.unit}",
        "ratio": round(statistics.median(o / p for o, p in zip(speeds["ours"], speeds["peer"], strict=True)), 2),
        "peer": round(statistics.median(speeds["peer"])),
        "ours": round(statistics.median(speeds["ours"])),
        "unit": "rows/s",
        "length": options.length,
        "batch": options.batch,
        "masking_unit": options.unit,
        "milliseconds_per_batch": round(1000 * options.batch / statistics.median(speeds["ours"]), 3),
        "index_seconds": round(index_seconds, 3),
    }
    if not options.json:
        print(f"DataCollatorForLanguageModeling {result['peer']:,} rows/s, remask {result['ours']:,} rows/s")
    print(json.dumps(result))


def share_of_step(prepared: Path, num_steps: int) -> dict[str, object]:
    """Milliseconds of one batch and of one step of roberta_small with it, and their ratio in percent.

    Every batch is made right after a step, with the caches as the network left them. The rows of many steps are looked
    up together: a first batch, with all of that, is added by its share.
    """
    import torch

    from remask.config import build_run
    from remask.model.network import build_network
    from remask.model.settings import HeadSettings
    from remask.objectives import Pretraining
    from remask.precision import Precision, choose_precision
    from remask.pretraining.settings import PretrainRun
    from remask.train.optim import Optimizer

    words = [f"data.length={STEP_LENGTH}", f"data.batch.num_rows={STEP_ROWS}", f"data.batch.micro_rows={STEP_ROWS}"]
    run = build_run(PretrainRun, None, words, {}, base="roberta_small").run
    batches = open_batches(prepared, run.data, Vocabulary(), seed=1)
    settings = run.model.model_copy(update={"vocab_size": VOCAB_SIZE})
    network = build_network(settings, HeadSettings(masked_lm=True), 1).train()
    optimizer, objective = Optimizer(network, run.train), Pretraining(run.objective, seed=1, sentence=False)
    precision, _ = choose_precision(run.train.precision, torch.device("cpu"))
    autocast = Precision(precision, torch.device("cpu")).autocast
    makes, steps = [], []
    cursor = batches.first_cursor()
    for number in range(num_steps + 1):
        began = time.perf_counter()
        (batch,), cursor = batches.take(cursor)
        made = time.perf_counter()
        optimizer.zero_grad()
        with autocast():
            (part,) = objective(network, batch.map(torch.as_tensor), number + 1).parts.values()
            loss = part.sum / part.count
        loss.backward()
        optimizer.step(1e-4)
        makes.append(made - began)
        steps.append(time.perf_counter() - made)
    ours = 1000 * (statistics.median(makes[1:]) + makes[0] / batches._steps_per_window)
    peer = 1000 * statistics.median(steps[1:])
    return {
        "name": f"a batch of {STEP_ROWS} x {STEP_LENGTH} as % of roberta_small's step",
        "ratio": round(100 * ours / peer, 3),
        "peer": round(peer, 1),
        "ours": round(ours, 3),
        "unit": "ms",
        "precision": precision,
        "threads": torch.get_num_threads(),
    }


def _plain_rows(batches: object, count: int) -> list[dict[str, list[int]]]:
    """The same rows, unmasked, as lists."""
    rows = []
    for step in range(20):
        (batch,), _ = batches.take({"step": step})  # type: ignore[attr-defined]
        ids = batch.input_ids_BS.reshape(-1).copy()
        ids[batch.masked_positions_M] = batch.masked_labels_M
        table = ids.reshape(batch.input_ids_BS.shape)
        for row, length in zip(table, batch.lengths_B, strict=True):
            special = np.isin(row[:length], SPECIALS).astype(int)
            rows.append({"input_ids": row[:length].tolist(), "special_tokens_mask": special.tolist()})
    assert len(rows) == 20 * count
    return rows


def _ours(batches: object, step: int, size: int, seconds: float) -> tuple[float, int]:
    began, first = time.perf_counter(), step
    while (passed := time.perf_counter() - began) < seconds:
        _, cursor = batches.take({"step": step})  # type: ignore[attr-defined]
        step = cursor["step"]
    return (step - first) * size / passed, step


def _peer(collator: object, rows: list[dict[str, list[int]]], size: int, seconds: float) -> float:
    began, done = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        at = done * size % len(rows)
        collator([dict(row) for row in rows[at : at + size]])  # type: ignore[operator]
        done += 1
    return done * size / passed


if __name__ == "__main__":
    main()
