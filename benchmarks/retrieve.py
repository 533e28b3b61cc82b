"""Embeddings beside sentence-transformers: pairs per second in training, texts per second when encoding.

Both sides start from the same weights (mean of the tokens) and see the same texts. Training: queries and documents of
mixed lengths, cross entropy over the documents of a batch (MultipleNegativesRankingLoss, scale 20), AdamW, dropout 0.1,
both in the given precision, step by step in turns. Encoding: texts of mixed lengths, vectors of length 1, which must
agree. Each side has a process of its own; opening models is not timed. Last line: a JSON object with the ratio.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from _models import make_model, make_texts, mixed_lengths
from _pretraining import SIZES, Enough
from _rig import Turns, common_options, compared, take_turns, tell

SIDES = ("ours", "sentence-transformers")
LEAST_COSINE = {"fp32": 0.9999, "bf16": 0.995}
RATE, TEMPERATURE = 5e-5, 0.05


def peer(folder: Path, precision: str, training: bool) -> Any:
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    # Training keeps fp32 weights under autocast; answers have them in the format itself.
    dtype = torch.bfloat16 if precision == "bf16" and not training else torch.float32
    encoder = Transformer(str(folder), model_kwargs={"dtype": dtype})
    return SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension()), Normalize()], device="cpu")


# ------------------------------------------------------------------------------------------------------- training


def train_ours(options: argparse.Namespace, turns: Turns, texts: list[str]) -> None:
    import torch

    from remask.answer.reader import open_reader
    from remask.model.network import with_heads
    from remask.model.settings import HeadSettings
    from remask.model.used_rows import learn_used_rows
    from remask.progress import Progress
    from remask.task_objectives import PairObjective
    from remask.tasks.pair_batches import PairBatches
    from remask.tasks.retrieve import Retrieve, TextPair, pair_table
    from remask.tasks.settings import RetrieveSettings, RowSettings, TaskBatchSettings
    from remask.train.job import Job
    from remask.train.loop import train
    from remask.train.settings import TrainSettings
    from remask.train.training import Training

    reader = open_reader(options.work)
    half, kind = len(texts) // 2, Retrieve(RetrieveSettings(temperature=TEMPERATURE))
    table = pair_table([TextPair(query, text, "") for query, text in zip(texts[:half], texts[half:], strict=True)])
    rows = kind.text_rows(table.queries, table.documents, reader.tokenizer, reader.frame(), RowSettings())
    network = with_heads(reader.loaded.network, HeadSettings(pooling="mean"), 0)
    used = [torch.tensor([reader.tokenizer.pad_id]), *(torch.as_tensor(ids) for ids in rows.ids)]
    learn_used_rows(network.encoder.embeddings, torch.cat(used))  # as finetune does
    settings = TaskBatchSettings(num_rows=options.batch, micro_tokens=1 << 20)
    batches = PairBatches(table, rows, reader.tokenizer.pad_id, settings, num_negatives=0, seed=1)

    class Paced(Progress):
        def show(self, stage: Any) -> None:
            if stage.done and not turns.done():
                raise Enough

    plan = TrainSettings(
        steps=1 << 20, learning_rate=RATE, warmup=10, weight_decay=0.1, precision=options.precision, device="cpu",
        save_every=0, eval_every=0, log_every=1, spike_sigmas=0.0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        job = Job(network, batches, PairObjective(kind, 1, table), plan, Path(folder), 1, {}, {})
        try:
            with Training(job, Paced(quiet=True)) as training:
                train(training)
        except Enough:
            lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
            turns.last({"loss": json.loads(lines[-1])["train/loss"]})


def train_peer(options: argparse.Namespace, turns: Turns, texts: list[str]) -> None:
    from datasets import Dataset
    from sentence_transformers.sentence_transformer import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from transformers import TrainerCallback

    model, half = peer(options.work, options.precision, training=True), len(texts) // 2

    class Paced(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            control.should_training_stop = not turns.done()

    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(options.work / "peer"), per_device_train_batch_size=options.batch, max_steps=1 << 20,
        learning_rate=RATE, warmup_steps=10, weight_decay=0.1, bf16=options.precision == "bf16", use_cpu=True,
        report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, dataloader_num_workers=0,
        dataloader_pin_memory=False, optim="adamw_torch_fused",
    )  # fmt: skip
    data = Dataset.from_dict({"anchor": texts[:half], "positive": texts[half:]})
    loss = MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)
    SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=loss, callbacks=[Paced()]).train()
    turns.last({})


# ------------------------------------------------------------------------------------------------------- encoding


def encode_side(options: argparse.Namespace, turns: Turns, texts: list[str]) -> None:
    import numpy as np

    if options.side == "ours":
        import remask

        model = remask.load(options.work, precision=options.precision)
        encode: Any = model.embed
    else:
        model = peer(options.work, options.precision, training=False)

        def encode(texts: list[str]) -> Any:
            return model.encode(texts, batch_size=32, show_progress_bar=False)

    more = True
    while more:
        vectors = np.asarray(encode(texts), np.float32)
        more = turns.done()
    np.save(options.work / f"{options.side}.npy", vectors)
    turns.last({})


def check(work: Path, least: float) -> None:
    """Both sides made the same vectors."""
    import numpy as np

    ours, theirs = (np.load(work / f"{name}.npy") for name in SIDES)
    theirs /= np.linalg.norm(theirs, axis=1, keepdims=True)
    cosines = (ours * theirs).sum(1)
    assert cosines.min() >= least, f"vectors differ: cosine {cosines.min():.5f}"


# ------------------------------------------------------------------------------------------------------------ both


def run_side(options: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(options.threads)
    texts = json.loads((options.work / "texts.json").read_text())
    if options.what == "encode":
        return encode_side(options, Turns(1, 1), texts)
    turns = Turns(options.steps, 2)
    return train_ours(options, turns, texts) if options.side == "ours" else train_peer(options, turns, texts)


def measure(options: argparse.Namespace, what: str, lengths: list[int]) -> None:
    with tempfile.TemporaryDirectory(prefix="remask-bench-") as folder:
        work = Path(folder)
        tokenizer = make_model(work, options.size, "masked-lm", options.tokenizer)
        (work / "texts.json").write_text(json.dumps(make_texts(tokenizer, lengths)))
        values = {"precision": options.precision, "threads": options.threads, "batch": options.batch}
        values |= {"steps": options.steps, "what": what, "work": work}
        rounds, _ = take_turns(SIDES, options, [w for n, v in values.items() for w in (f"--{n}", str(v))])
        if what == "encode":
            check(work, LEAST_COSINE[options.precision])
    count = options.batch * options.steps if what == "train" else len(lengths)
    rates = {name: [count / turn["seconds"] for turn in turns] for name, turns in rounds.items()}
    if what == "train":
        name, unit = f"training on pairs, {options.size}, batch {options.batch}, {options.precision}", "pairs/s"
    else:
        name, unit = f"embedding, {options.size}, mixed lengths of {options.mean}, {options.precision}", "texts/s"
    tell(compared(name, unit, rates["ours"], rates["sentence-transformers"]), options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    parser.add_argument("--what", default="both", choices=["both", "train", "encode"])
    parser.add_argument("--batch", type=int, default=64, help="pairs in a step")
    parser.add_argument("--steps", type=int, default=4, help="of a round")
    parser.add_argument("--texts", type=int, default=512, help="to encode in a round")
    parser.add_argument("--mean", type=int, default=64, help="mean tokens of a document; a query has a quarter")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json; else RoBERTa's where it is, or a trained one")
    common_options(parser, rounds=5)
    options = parser.parse_args()
    if options.side:
        return run_side(options)
    pairs = options.batch * 8
    if options.what != "encode":
        documents = mixed_lengths(pairs, options.mean)
        measure(options, "train", [*mixed_lengths(pairs, max(8, options.mean // 4)), *documents])
    if options.what != "train":
        measure(options, "encode", mixed_lengths(options.texts, options.mean))


if __name__ == "__main__":
    main()
