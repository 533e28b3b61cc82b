"""How long until our model is as good as the peer's after 20 minutes: held-out loss against wall clock, on real text.

data    `remask prepare` of the corpus, once, for both sides: the same vocabulary, the same token shards
peer    transformers' Trainer with run_mlm.py's recipe (blocks of full length, masks by its collator, post-norm RoBERTa,
        AdamW, warmup and linear decay to the end of its minutes, bf16), for every --peer-rates; the lowest loss counts.
        --peer-start counted gives it our counted embeddings and output bias: what is left is speed and recipe
ours    `remask pretrain` with --recipe and --set for every --ours-minutes, longest first, until one does not reach it
Both have the same layers, width, vocabulary and row length and read the same blocks; what else --recipe says (rows a
step, masks, attention windows, rotary positions, norms, learning rate, first output bias) is our own, and both recipes
are told in the JSON line. The peer's time is that of its steps alone, ours that of the whole process with its counting.
One scorer (our network and loss in fp32) reads the weights of both and scores them on the same fixed held-out rows with
the same masks.

    python benchmarks/time_to_loss.py --work DIR [--minutes 20] [--ours-minutes 2,1,0.7,0.5] [--json]

Every part is kept in --work and not repeated: the command can be stopped, and goes on when it is given again.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _pretraining import note_dtype, plain_rows
from _rig import claim_work, common_options, environment, run_remask, tell

LAYERS, WIDTH, HEADS, FFN = 6, 384, 6, 1536
ROOT = Path(__file__).resolve().parents[1]


def prepare_data(options: argparse.Namespace) -> None:
    if not (options.work / "prepared" / "manifest.json").exists():
        words = ["prepare", str(options.corpus), "--out", str(options.work / "prepared")]
        words += ["--vocab-size", str(options.vocab_size), *options.prepare.split()]
        run_remask(words, environment(options.threads, options.allocator))


# ---------------------------------------------------------------------------------------------------------- peer


def run_peer(options: argparse.Namespace) -> None:
    """In a process of its own: the Trainer for the given minutes, then its weights and facts in WORK/peer-RATE."""
    import torch
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

    from remask.data.batches import open_batches
    from remask.data.settings import BatchSettings, DataSettings
    from remask.tokenizer import load_tokenizer

    rate = float(options.side)
    folder = options.work / f"peer-{options.side}"
    torch.set_num_threads(options.threads)
    tokenizer = load_tokenizer(options.work / "prepared" / "tokenizer")
    names = {f"{role}_token": name for role, name in tokenizer.special_names.items()}
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(options.work / "prepared" / "tokenizer" / "tokenizer.json"), **names
    )
    settings = DataSettings(
        format="fixed-blocks", length=options.length,
        batch=BatchSettings(num_rows=options.batch, micro_rows=options.batch),
    )  # fmt: skip
    batches = open_batches(options.work / "prepared", settings, tokenizer, seed=1, total_steps=1)
    rows = plain_rows(batches, batches.num_examples, tuple(tokenizer.special_ids))
    masker = DataCollatorForLanguageModeling(theirs, mlm_probability=0.15)

    def model() -> Any:
        torch.manual_seed(1)
        config = RobertaConfig(
            vocab_size=tokenizer.vocab_size, num_hidden_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=HEADS,
            intermediate_size=FFN, max_position_embeddings=options.length + 2, layer_norm_eps=1e-5, type_vocab_size=1,
            pad_token_id=tokenizer.pad_id, bos_token_id=tokenizer.bos_id, eos_token_id=tokenizer.eos_id,
        )  # fmt: skip
        network = RobertaForMaskedLM._from_config(config, attn_implementation=options.attention)
        return network if options.peer_start == "random" else with_counts(network, options)

    warm, probe = 3, 8 if options.minutes < 1 else 30
    pace = _train(model(), rows, masker, options, rate, warm + probe, folder)[0][warm - 1 :]
    seconds_per_step = (pace[-1] - pace[0]) / (len(pace) - 1)
    num_steps = max(4, math.floor(60 * options.minutes / seconds_per_step))
    print(f"peer: {seconds_per_step:.3f} s a step, {num_steps} steps", file=sys.stderr, flush=True)
    trained = model()
    seen: set[str] = set()
    note_dtype(trained.roberta.encoder.layer[0].intermediate.dense, seen)
    times, losses = _train(trained, rows, masker, options, rate, num_steps, folder)
    assert seen == {"bfloat16" if options.precision == "bf16" else "float32"}
    assert all(math.isfinite(loss) for loss in losses)
    trained.save_pretrained(folder / "model")
    theirs.save_pretrained(folder / "model")
    facts = {
        "seconds": round(times[-1] - times[0], 2), "steps": num_steps, "learning_rate": rate,
        "tokens": num_steps * options.batch * options.length, "attention": options.attention,
        "parameters": sum(p.numel() for p in trained.parameters()),
        "last_training_loss": round(sum(losses[-20:]) / len(losses[-20:]), 4),
    }  # fmt: skip
    (folder / "facts.json").write_text(json.dumps(facts))


def with_counts(network: Any, options: argparse.Namespace) -> Any:
    """The peer's network with the embeddings (tied to its output) and the output bias of our counted start."""
    import torch

    from remask.data.tokens import Tokens
    from remask.model.counted import even_scale
    from remask.progress import Progress
    from remask.start import StartSettings, counted_vectors

    settings, tokens = StartSettings(embeddings="counted"), Tokens.open(options.work / "prepared")
    size = network.config.vocab_size
    counts = counted_vectors(tokens, settings, size, WIDTH, options.work, Progress(quiet=True))
    vectors = even_scale(counts.vectors_VC, counts.is_counted_V, settings.flatten, settings.std)
    seen = torch.from_numpy(counts.is_counted_V)
    with torch.no_grad():
        network.roberta.embeddings.word_embeddings.weight[seen] = torch.from_numpy(vectors)[seen]
        network.lm_head.bias.copy_(torch.as_tensor(tokens.log_frequencies(size)))
    return network


def _train(
    model: Any, rows: list[Any], masker: Any, options: argparse.Namespace, rate: float, num_steps: int, folder: Path
) -> tuple[list[float], list[float]]:
    """(when training began and every step ended, losses). run_mlm.py's recipe, with RoBERTa's b2 and eps."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    times: list[float] = []
    losses: list[float] = []

    class Clock(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            times.append(time.perf_counter())

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            times.append(time.perf_counter())

    class Noted(Trainer):
        def compute_loss(self, *given: Any, **named: Any) -> Any:
            loss = super().compute_loss(*given, **named)
            losses.append(float((loss[0] if isinstance(loss, tuple) else loss).detach()))
            return loss

    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=options.batch, max_steps=num_steps, learning_rate=rate,
        lr_scheduler_type="linear", warmup_steps=round(0.06 * num_steps), weight_decay=0.01, adam_beta2=0.98,
        adam_epsilon=1e-6, max_grad_norm=1.0, optim="adamw_torch_fused", bf16=options.precision == "bf16",
        use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, seed=1,
        remove_unused_columns=False, dataloader_pin_memory=False,
    )  # fmt: skip

    def collate(chosen: list[dict[str, Any]]) -> Any:
        return masker([dict(row) for row in chosen])

    Noted(model, arguments, train_dataset=rows, data_collator=collate, callbacks=[Clock()]).train()  # type: ignore
    return times, losses


def peers(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """By learning rate: the facts and the held-out loss."""
    found = {}
    for rate in options.peer_rates.split(","):
        folder = options.work / f"peer-{rate}"
        if not (folder / "facts.json").exists():
            names = ("length", "batch", "minutes", "precision", "attention", "threads", "work", "peer_start")
            words = [w for name in names for w in (f"--{name.replace('_', '-')}", str(getattr(options, name)))]
            command = [sys.executable, __file__, *words, "--side", rate]
            subprocess.run(command, env=environment(options.threads, options.allocator), stdout=sys.stderr, check=True)
        facts = json.loads((folder / "facts.json").read_text())
        found[rate] = facts | score(folder / "model", options)
        print(f"peer, learning rate {rate}: {found[rate]}", file=sys.stderr, flush=True)
    return found


# ---------------------------------------------------------------------------------------------------- ours, score


def train_ours(minutes: str, options: argparse.Namespace) -> dict[str, Any]:
    out, kept = options.work / f"ours-{minutes}", options.work / f"ours-{minutes}.json"
    prepared = options.work / "prepared"
    if not kept.exists():
        shutil.rmtree(out, ignore_errors=True)  # of a try that was stopped: its time would not be whole
        shutil.rmtree(prepared / "counted", ignore_errors=True)  # every try pays for its own counting
        fixed = [
            f"model.num_layers={LAYERS}", f"model.hidden_size={WIDTH}", f"model.num_heads={HEADS}",
            f"data.length={options.length}", "data.format=fixed-blocks", f"train.precision={options.precision}",
            "train.eval_every=0", "train.save_every=0", "train.device=cpu",
        ]  # fmt: skip
        words = ["pretrain", str(options.recipe), "--data", str(prepared), "--out", str(out), "--minutes", minutes]
        words += [word for one in (*fixed, *options.set) for word in ("--set", one)]
        began = time.perf_counter()
        run_remask(words, environment(options.threads, options.allocator))
        kept.write_text(json.dumps({"seconds": round(time.perf_counter() - began, 2)}))
    facts = json.loads((out / "run.json").read_text())
    told = {"steps": facts["result"]["step"], "tokens": facts["result"]["tokens"], "parameters": facts["parameters"]}
    return json.loads(kept.read_text()) | told | score(out, options)


def score(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The one scorer, in fp32, on fixed rows and masks of the held-out text."""
    import torch

    from remask.data.evaluation import evaluation_batches
    from remask.data.settings import DataSettings, EvaluationSettings
    from remask.model.store import open_model
    from remask.objectives import held_out
    from remask.tokenizer import load_tokenizer

    torch.set_num_threads(options.threads)
    tokenizer = load_tokenizer(options.work / "prepared" / "tokenizer")
    wanted = EvaluationSettings(length=min(128, options.length), num_rows=options.rows)
    settings = DataSettings(length=options.length, evaluation=wanted)
    network = open_model(model).network.eval()
    with torch.no_grad():
        measured = held_out(
            network, evaluation_batches(options.work / "prepared", settings, tokenizer), tokenizer.token_lengths
        )
    return {"held_out": {name: round(value, 5) for name, value in measured.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    corpus = ROOT.parent / "shared" / "data" / "wiki" / "wiki.train.txt.xz"
    parser.add_argument("--corpus", type=Path, default=corpus)
    parser.add_argument("--prepare", default="", help="more words for remask prepare")
    parser.add_argument("--vocab-size", type=int, default=16_384)
    parser.add_argument("--minutes", type=float, default=20.0, help="of the peer")
    parser.add_argument("--peer-rates", default="3e-4,5e-4,1e-3", help="learning rates; the best one counts")
    parser.add_argument(
        "--peer-start", default="random", choices=["random", "counted"], help="of the peer's embeddings"
    )
    parser.add_argument("--attention", default="eager", choices=["eager", "sdpa"], help="of the peer; see pretrain.py")
    parser.add_argument("--ours-minutes", default="2,1,0.7,0.5", help="schedules to try, longest first")
    parser.add_argument("--recipe", type=Path, default=ROOT / "runs" / "bases" / "modern_small.yaml", help="ours")
    parser.add_argument("--set", action="append", default=[], help="more settings of ours")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp32"])
    parser.add_argument("--rows", type=int, default=512, help="held-out rows")
    common_options(parser, rounds=1)
    options = parser.parse_args()
    if options.work is None:
        options.work = ROOT / "remask-out" / "bench-time-to-loss"
    if options.side:
        return run_peer(options)
    if not options.corpus.exists():
        parser.error(f"--corpus {options.corpus}: no such file")
    told = (
        "corpus",
        "prepare",
        "vocab_size",
        "minutes",
        "attention",
        "peer_start",
        "recipe",
        "set",
        "length",
        "batch",
        "precision",
    )
    claim_work(options.work, {name: getattr(options, name) for name in (*told, "threads", "allocator")})
    prepare_data(options)
    found = peers(options)
    best = min(found.values(), key=lambda facts: facts["held_out"]["loss"])
    target, tries, reached = best["held_out"]["loss"], {}, None
    for minutes in options.ours_minutes.split(","):
        tries[minutes] = train_ours(minutes, options)
        print(f"ours, {minutes} minutes: {tries[minutes]} (wanted: {target})", file=sys.stderr, flush=True)
        if tries[minutes]["held_out"]["loss"] > target:
            break
        reached = tries[minutes]
    if reached is None:
        sys.exit(
            f"ours did not reach {target} in {options.ours_minutes.split(',')[0]} minutes: give more --ours-minutes"
        )
    start = "" if options.peer_start == "random" else f" with {options.peer_start} embeddings"
    result = {
        "name": f"time to the held-out loss of {options.minutes:g} minutes of the peer{start}, {options.precision}",
        "ratio": round(best["seconds"] / reached["seconds"], 2),
        "peer": round(best["seconds"] / 60, 3),
        "ours": round(reached["seconds"] / 60, 3),
        "unit": "minutes",
        "target_loss": target,
        "peers": found,
        "tries": tries,
        "our_recipe": {"base": options.recipe.stem, "set": options.set},
        "peer_start": options.peer_start,
        "peer_recipe": "run_mlm.py: post-norm RoBERTa, dropout 0.1, AdamW, linear schedule, clip 1.0",
        "selected": "of the peer's learning rates the best; of ours the shortest schedule that reached its loss",
    }
    tell(result, options)


if __name__ == "__main__":
    main()
