"""Two ways to pretrain one model on one set of rows: our loop as `remask pretrain` runs it, and the Trainer of
transformers with its masking collator. Used by pretrain, ceiling, memory and scaling.

Both start from the same weights and see the same rows in the same order: blocks of full length, as run_mlm.py cuts them
(synthetic ids, Zipf-distributed). Each masks them anew in its own way, 15 %. AdamW (torch's fused one on both sides),
warmup and linear decay, gradients clipped at 1.0, dropout as the configuration says. Nothing is saved or evaluated.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
from _device import begin_memory, peak_memory, settle
from _rig import Turns

# layers, width, heads, FFN, vocabulary. Base has RoBERTa's own vocabulary.
SIZES = {
    "tiny": (2, 64, 2, 128, 1_024),
    "small": (6, 384, 6, 1536, 16_384),
    "base": (12, 768, 12, 3072, 50_265),
    "large": (24, 1024, 16, 4096, 50_265),
}
LEARNING_RATE, WARMUP_STEPS, CLIP, WEIGHT_DECAY, BETA2, EPSILON = 5e-4, 10, 1.0, 0.01, 0.98, 1e-6


class Vocabulary:
    """Ids laid out as RoBERTa's; all that batches need of a tokenizer."""

    kind, bos_id, pad_id, eos_id = "byte-bpe", 0, 1, 2

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size, self.mask_id = vocab_size, vocab_size - 1
        self.special_ids = (0, 1, 2, 3, self.mask_id)


def add_options(parser: argparse.ArgumentParser, *, size: str, length: int, batch: int) -> None:
    parser.add_argument("--size", default=size, choices=SIZES)
    parser.add_argument("--length", type=int, default=length, help="tokens of a row")
    parser.add_argument("--batch", type=int, default=batch, help="rows of a step")
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--dropout", type=float, default=0.1, help="of both sides, hidden states and attention")
    parser.add_argument("--steps", type=int, default=6, help="steps of a round")
    parser.add_argument("--warm", type=int, default=3, help="steps before the first round")


def words_for(options: argparse.Namespace, work: Path) -> list[str]:
    """The options that a side needs, as words of its command line."""
    names = ["size", "length", "batch", "precision", "dropout", "steps", "warm", "rounds", "threads"]
    names += ["device"] if "device" in options else []
    return [word for name in names for word in (f"--{name}", str(getattr(options, name)))] + ["--work", str(work)]


def prepare(options: argparse.Namespace, work: Path) -> None:
    """The common start: WORK/model (weights in Hugging Face layout) and WORK/prepared (token shards)."""
    import torch
    from transformers import RobertaConfig, RobertaForMaskedLM

    layers, width, heads, ffn, vocab_size = SIZES[options.size]
    config = RobertaConfig(
        vocab_size=vocab_size, num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
        intermediate_size=ffn, max_position_embeddings=options.length + 2, layer_norm_eps=1e-5, type_vocab_size=1,
        pad_token_id=1, bos_token_id=0, eos_token_id=2, hidden_dropout_prob=options.dropout,
        attention_probs_dropout_prob=options.dropout,
    )  # fmt: skip
    torch.manual_seed(0)
    RobertaForMaskedLM(config).save_pretrained(work / "model")
    write_tokens(work / "prepared", vocab_size, num_steps(options) * options.batch * options.length)


def device_of(options: argparse.Namespace) -> str:
    """Most scripts are about CPUs alone."""
    return getattr(options, "device", "cpu")


def num_steps(options: argparse.Namespace) -> int:
    return options.warm + options.rounds * options.steps + 2


def write_tokens(folder: Path, vocab_size: int, num_tokens: int) -> None:
    """Token shards of random documents of about 800 tokens; frequent ids are frequent as words are."""
    from remask import artifacts
    from remask.data.tokens import STAGE, ShardWriter

    def fill(aside: Path) -> dict[str, object]:
        generator = np.random.default_rng(0)
        ids = 3 + np.minimum(generator.zipf(1.3, num_tokens), vocab_size - 5)
        sentences = np.unique(np.append(generator.integers(1, num_tokens, num_tokens // 25), 0))
        documents = np.unique(np.append(sentences[generator.random(len(sentences)) < 25 / 800], [0, num_tokens]))
        writer = ShardWriter(aside, "corpus.train.00000", vocab_size)
        writer.add_many(ids, documents, sentences, generator.random(num_tokens) < 0.75)
        return {"shards": [writer.close()]}

    artifacts.publish(folder, STAGE, fill)


def our_batches(options: argparse.Namespace, work: Path, world: Any = None) -> Any:
    from remask.data.batches import open_batches
    from remask.data.settings import BatchSettings, DataSettings

    settings = DataSettings(
        format="fixed-blocks", length=options.length,
        batch=BatchSettings(num_rows=options.batch, micro_rows=options.batch),
    )  # fmt: skip
    vocabulary = Vocabulary(SIZES[options.size][4])
    rank, size = (0, 1) if world is None else (world.rank, world.size)
    return open_batches(
        work / "prepared", settings, vocabulary, seed=1, rank=rank, world_size=size, total_steps=num_steps(options)
    )


def plain_rows(batches: Any, count: int, special_ids: tuple[int, ...]) -> list[dict[str, list[int]]]:
    """The rows of the first steps as they stood before masking, in the form in which `datasets` hands them over."""
    rows: list[dict[str, list[int]]] = []
    cursor = batches.first_cursor()
    while len(rows) < count:
        micro_batches, cursor = batches.take(cursor)
        for batch in micro_batches:
            ids = batch.input_ids_BS.reshape(-1).copy()
            ids[batch.masked_positions_M] = batch.masked_labels_M
            for row, length in zip(ids.reshape(batch.input_ids_BS.shape), batch.lengths_B, strict=True):
                special = np.isin(row[:length], special_ids).astype(int)
                rows.append({"input_ids": row[:length].tolist(), "special_tokens_mask": special.tolist()})
    return rows[:count]


def peer_tokenizer(vocab_size: int) -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    names = ["<s>", "<pad>", "</s>", "<unk>", *(f"w{i}" for i in range(vocab_size - 5)), "<mask>"]
    backend = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
        mask_token="<mask>",
    )  # fmt: skip


def note_dtype(layer: Any, seen: set[str]) -> None:
    """Remember the number format in which a layer computes: what ran, not what was asked for."""

    def note(module: Any, given: Any, output: Any) -> None:
        seen.add(str(output.dtype).removeprefix("torch."))
        handle.remove()

    handle = layer.register_forward_hook(note)


def last_words(losses: list[float], seen: set[str], options: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """The facts of a side, after checking that it did what it claims."""
    wanted = {"bf16": "bfloat16", "fp32": "float32"}[options.precision]
    assert seen == {wanted}, f"products ran in {seen}, not in {wanted}"
    assert losses
    assert all(math.isfinite(loss) for loss in losses), "a loss is not finite"
    peak = peak_memory(device_of(options))
    return {"dtype": wanted, "first_loss": losses[0], "last_loss": losses[-1], "peak_mb": peak, **more}


class Enough(Exception):
    """The parent wants no more rounds."""


def run_ours(options: argparse.Namespace, turns: Turns, network: Any = None, world: Any = None) -> dict[str, Any]:
    """`remask.train` with the pretraining objective and the data pipeline, step by step."""
    import json
    import tempfile

    import torch

    from remask.model.store import open_model
    from remask.objectives import ObjectiveSettings, Pretraining
    from remask.progress import Progress
    from remask.train.job import Job
    from remask.train.loop import train
    from remask.train.settings import TrainSettings
    from remask.train.training import Training

    torch.set_num_threads(options.threads)
    imported = begin_memory(device_of(options))
    batches = our_batches(options, options.work, world)
    network = open_model(options.work / "model").network if network is None else network
    assert network.settings.dropout == network.settings.attention_dropout == options.dropout
    seen: set[str] = set()
    note_dtype(network.encoder.ffns[0].up, seen)
    tokens_per_step = options.batch * options.length  # blocks have no padding; checked on the first batch
    own = sum(batch.num_tokens for batch in batches.take(batches.first_cursor())[0])
    assert own * (1 if world is None else world.size) == tokens_per_step

    class Paced(Progress):
        def show(self, stage: Any) -> None:
            if stage.done and not turns.done(tokens_per_step):
                raise Enough

    settings = TrainSettings(
        steps=num_steps(options), learning_rate=LEARNING_RATE, warmup=WARMUP_STEPS, weight_decay=WEIGHT_DECAY,
        beta2=BETA2, epsilon=EPSILON, clip=CLIP, precision=options.precision, device=device_of(options), save_every=0,
        eval_every=0, log_every=1, optimizer=getattr(options, "optimizer", "adamw"),
        overlap=bool(getattr(options, "overlap", True)),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        try:
            job = Job(
                model=network, batches=batches, objective=Pretraining(ObjectiveSettings(), seed=1, sentence=False),
                settings=settings, folder=Path(folder), identity={}, carried={}, seed=1,
            )  # fmt: skip
            with Training(job, Paced(quiet=True), world) as training:
                train(training)
            raise AssertionError("the budget ended before the rounds did")
        except Enough:
            if world is not None and not world.is_first:
                return {}
            lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["train/loss"] for line in lines]
    return last_words(losses, seen, options, imported_mb=imported)


def in_order(losses: list[Any]) -> Any:
    """transformers' Trainer on the rows as they come, noting the loss of every step: as a tensor, which nobody waits
    for."""
    from torch.utils.data import SequentialSampler
    from transformers import Trainer

    class InOrder(Trainer):
        def _get_train_sampler(self, *given: Any, **named: Any) -> Any:
            return SequentialSampler(self.train_dataset)  # type: ignore[arg-type]

        def compute_loss(self, *given: Any, **named: Any) -> Any:
            loss = super().compute_loss(*given, **named)
            losses.append((loss[0] if isinstance(loss, tuple) else loss).detach())
            return loss

    return InOrder


def run_peer(options: argparse.Namespace, turns: Turns, attention: str) -> dict[str, Any]:
    """The Trainer on the same weights and rows, with DataCollatorForLanguageModeling."""
    import torch
    from transformers import DataCollatorForLanguageModeling, RobertaForMaskedLM, TrainerCallback, TrainingArguments

    losses: list[Any] = []
    trainer = in_order(losses)  # here, since what it imports is not the step's memory
    torch.set_num_threads(options.threads)
    imported = begin_memory(device_of(options))
    vocab_size = SIZES[options.size][4]
    rows = plain_rows(
        our_batches(options, options.work), num_steps(options) * options.batch, Vocabulary(vocab_size).special_ids
    )
    model = RobertaForMaskedLM.from_pretrained(options.work / "model", attn_implementation=attention)
    assert model.config._attn_implementation == attention
    seen: set[str] = set()
    note_dtype(model.roberta.encoder.layer[0].intermediate.dense, seen)
    masker = DataCollatorForLanguageModeling(peer_tokenizer(vocab_size), mlm_probability=0.15)
    tokens: list[int] = []

    def collate(rows: list[dict[str, Any]]) -> Any:
        batch = masker([dict(row) for row in rows])
        tokens.append(int(batch["attention_mask"].sum()))
        return batch

    class Paced(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            # The loader makes a batch ahead of its step: of the steps so far, not of what was collated.
            control.should_training_stop = not turns.done(tokens[state.global_step - 1])

    arguments = TrainingArguments(
        output_dir=str(options.work / f"peer-{attention}"), per_device_train_batch_size=options.batch,
        max_steps=num_steps(options), learning_rate=LEARNING_RATE, warmup_steps=WARMUP_STEPS,
        weight_decay=WEIGHT_DECAY, adam_beta2=BETA2, adam_epsilon=EPSILON, max_grad_norm=CLIP,
        optim="adamw_torch_fused", bf16=options.precision == "bf16", use_cpu=device_of(options) == "cpu", report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False,
        dataloader_num_workers=0, dataloader_pin_memory=device_of(options) == "cuda",
        logging_nan_inf_filter=False,  # which would make a GPU wait in every step
    )  # fmt: skip
    trainer(model, arguments, train_dataset=rows, data_collator=collate, callbacks=[Paced()]).train()
    numbers = [float(loss) for loss in losses]
    return last_words(numbers, seen, options, imported_mb=imported, attention=attention)


def run_side(options: argparse.Namespace) -> None:
    """The process of one side: ours, or transformers-ATTENTION."""
    import torch

    torch.manual_seed(1)
    turns = Turns(options.steps, options.warm, settle=lambda: settle(device_of(options)))
    if options.side == "ours":
        turns.last(run_ours(options, turns))
    else:
        turns.last(run_peer(options, turns, options.side.removeprefix("transformers-")))
