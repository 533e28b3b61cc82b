"""Rows per second: our batches, read from shards, laid out and masked, beside DataCollatorForLanguageModeling.

The peer gets its rows as run_mlm.py's datasets hand them over (lists of ids with a special-tokens mask, already in
memory) and pads and masks them; ours starts from token shards on disk. Both make the same rows of the same length,
turn by turn in one run, in one process. Last line of `--json`: {"ratio", "peer", "ours", "unit"}.
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
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from transformers import DataCollatorForLanguageModeling

    with tempfile.TemporaryDirectory() as folder:
        prepared = write_corpus(Path(folder) / "prepared", 4_000_000)
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
