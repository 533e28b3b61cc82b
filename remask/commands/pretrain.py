"""`remask pretrain`: train an encoder on prepared data.

In: a run file (model, data, objective, train), PREPARED, optionally a model to start from. Out: a run folder with
run.yaml, run.json, metrics.jsonl and checkpoints, which is a MODEL for every other verb. The same command in the same
folder goes on where it stopped. Not here: how any part works.
"""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import numpy as np

from remask import signals
from remask.artifacts import lock, open_artifact, write_bytes, write_json
from remask.commands import Common, common_options, is_first_rank
from remask.config import Built, Config, dump, setting, switch, to_yaml
from remask.data.settings import DataSettings
from remask.errors import ConfigError, MissingInputError, OutputError, Stopped
from remask.model.settings import HeadSettings, ModelSettings
from remask.objectives import ObjectiveSettings
from remask.progress import Progress
from remask.schema import Batch
from remask.train.settings import TrainSettings

if TYPE_CHECKING:
    from torch import nn

    from remask.model.network import Network
    from remask.tokenizer import Tokenizer
    from remask.train.distributed import World

BUDGETS = ("steps", "tokens", "epochs", "minutes")


class PretrainRun(Config):
    """A pretraining run."""

    seed: int = setting(0, "the one seed that everything random follows from", ge=0)
    prepared: Path | None = setting(None, "prepared data (remask prepare); --data")
    init_from: Path | None = setting(None, "a model to start from instead of fresh weights; --init-from")
    output_bias: Literal["zeros", "frequencies"] = switch(
        "zeros", "the masked-LM bias starts at 0, or at the log frequencies of the data's tokens", effect="math"
    )
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    train: TrainSettings = TrainSettings()


def main(
    run: PretrainRun,
    out: Path,
    *,
    progress: Progress,
    allow_change: Sequence[str] = (),
    dry_run: bool = False,
) -> dict[str, Any]:
    """Pretrain, or go on with it; the final held-out measures and where the model is."""
    prepared = _prepared(run)
    if dry_run or not is_first_rank():
        return _run(run, prepared, out, progress, allow_change, dry_run)
    with lock(out):  # before torch is imported: a second run in this folder is told so at once
        _claim(out, run)
        return _run(run, prepared, out, progress, allow_change, dry_run)


def _prepared(run: PretrainRun) -> Path:
    if run.prepared is None:
        raise ConfigError("prepared: which data? Give --data PREPARED (made by remask prepare)")
    if run.init_from is not None and not run.init_from.is_dir():
        raise MissingInputError(f"init_from = {run.init_from}: no such model folder")
    if run.train.parallel == "fsdp" and run.objective.causal_share:
        raise ConfigError(
            f"objective.causal_share = {run.objective.causal_share}: goes with train.parallel = ddp; under fsdp all "
            "ranks must compute the same passes, and whether a micro-batch has such rows differs between them"
        )
    open_artifact(run.prepared, "prepared")
    return run.prepared


def _claim(out: Path, run: PretrainRun) -> None:
    """A folder that holds something else is not written into; what another pretraining left there is kept until it is
    settled that this one may go on with it."""
    file = out / "run.yaml"
    if not file.is_file():
        others = [path.name for path in out.iterdir() if path.name != ".lock"]
        if others:
            raise OutputError(f"{out}: holds something else ({', '.join(sorted(others)[:3])}, …); choose another --out")
        write_bytes(file, to_yaml(run).encode())
    elif any(out.glob("seed-*")) or (out / "results.json").exists():
        raise OutputError(f"{out}: holds another kind of run; choose another --out")


def _run(
    run: PretrainRun, prepared: Path, out: Path, progress: Progress, allow_change: Sequence[str], dry_run: bool
) -> dict[str, Any]:
    from remask.data.batches import evaluation_batches, open_batches
    from remask.model.store import model_files
    from remask.objectives import Pretraining
    from remask.study.report import training_report
    from remask.study.runs import read_run
    from remask.tokenizer import load_tokenizer
    from remask.train.budget import planned_steps
    from remask.train.distributed import joined
    from remask.train.loop import train

    started = time.monotonic()
    artifact = open_artifact(prepared, "prepared")
    tokenizer = load_tokenizer(prepared / "tokenizer")
    with joined(run.train.rank_timeout_seconds) as world:
        batches = world.first_then_others(
            lambda: open_batches(
                prepared,
                run.data,
                tokenizer,
                seed=run.seed,
                rank=world.rank,
                world_size=world.size,
                total_steps=run.train.steps or 1,  # the loop tells the batches the number it has settled on
                index_folder=None if dry_run else out / "index",
            )
        )
        held = evaluation_batches(prepared, run.data, tokenizer)
        has_pairs = run.data.sentence_loss != "none"
        held_pairs = evaluation_batches(prepared, run.data, tokenizer, pairs=True) if has_pairs else []
        evaluate = partial(_evaluate, held=held, held_pairs=held_pairs, tokenizer=tokenizer, world=world)
        network = make_network(run, tokenizer, progress)
        num_steps = planned_steps(run.train, batches)
        facts = _preflight(run, out, network, batches, num_steps, world, progress)
        if dry_run:
            return {"dry_run": True, **facts}
        unigram_nats: float | None = artifact.counts.get("unigram_nats")
        write_facts = {**facts, "machine": _machine(), "unigram_nats": unigram_nats}

        def record() -> None:
            if world.is_first:
                write_bytes(out / "run.yaml", to_yaml(run).encode())
                write_json(out / "run.json", write_facts)

        result = train(
            model=network,
            batches=batches,
            objective=Pretraining(run.objective, seed=run.seed, sentence=has_pairs),
            settings=run.train,
            folder=out,
            identity=_identity(run, artifact.fingerprint, tokenizer),
            carried=model_files(network.settings, network.head_settings, prepared / "tokenizer"),
            evaluate=evaluate,
            progress=progress,
            seed=run.seed,
            allow_change=allow_change,
            world=world,
            name="pretrain",
            locked=True,
            flops_per_token=facts["flops_per_token"],
            started=record,
        )
        found = {
            "step": result.step,
            "tokens": int(result.metrics.get("train/tokens", 0)),
            "checkpoint": str(result.checkpoint),
            "metrics": dict(result.metrics),
            "seconds": round(time.monotonic() - started, 1),
            **{name: result.metrics[f"eval/{name}"] for name in ("loss", "perplexity", "accuracy", "bits_per_byte")},
        }
        if world.is_first:
            write_json(out / "run.json", {**write_facts, "result": found})
            write_bytes(out / "report.html", training_report(read_run(out), unigram_nats).encode())
        return {**found, "unigram_nats": unigram_nats, "parameters": facts["parameters"]}


def _evaluate(
    model: Any, *, held: Sequence[Batch], held_pairs: Sequence[Batch], tokenizer: Tokenizer, world: World
) -> dict[str, Any]:
    """Masked LM on the held-out rows, the sentence objective where there is one, and a few answers to look at."""
    from remask.objectives import held_out, sentence_accuracy

    found = held_out(model, _until_stopped(held, world), tokenizer.token_lengths)
    if held_pairs:
        found["sentence_accuracy"] = sentence_accuracy(model, _until_stopped(held_pairs, world))
    return {**found, "samples": _samples(model, held[0], tokenizer)}


def _until_stopped(batches: Iterable[Batch], world: World) -> Iterator[Batch]:
    """The batches of an evaluation; a signal ends it on all ranks at once."""
    for batch in batches:
        if world.any(signals.requested()):
            raise Stopped("stopped before the first step; run the same command again")
        yield batch


def make_network(run: PretrainRun, tokenizer: Tokenizer, progress: Progress) -> Network:
    """Fresh weights, or those of another model as far as they fit. Its vocabulary is the data's."""
    from remask.model.network import build_network

    if run.model.vocab_size not in (0, tokenizer.vocab_size):
        raise ConfigError(
            f"model.vocab_size = {run.model.vocab_size}: the data's tokenizer has {tokenizer.vocab_size} entries; "
            "leave it out (0)"
        )
    if run.data.length > run.model.max_length:
        raise ConfigError(f"data.length = {run.data.length}: the model reads at most {run.model.max_length} tokens")
    settings = run.model.model_copy(update={"vocab_size": tokenizer.vocab_size})
    has_pairs = run.data.sentence_loss != "none"
    # Only a sentence loss trains the first token; without one the mean of the tokens says more about a text.
    heads = HeadSettings(masked_lm=True, sentence=has_pairs, pooling="first" if has_pairs else "mean")
    network = build_network(settings, heads, run.seed)
    if run.output_bias == "frequencies":
        _start_at_frequencies(network, _prepared(run))
    if run.init_from is not None:
        _take_over(network, run.init_from, tokenizer, progress)
    return network


def _start_at_frequencies(network: Network, prepared: Path) -> None:
    """What a model learns first, and slowly, is how frequent each token is: that can be counted instead."""
    import torch

    from remask.data.tokens import Tokens

    assert network.heads.masked_lm is not None, "pretraining has the masked-LM head"
    bias = network.heads.masked_lm.bias
    with torch.no_grad():
        bias.copy_(torch.from_numpy(Tokens.open(prepared).log_frequencies(len(bias))))


def _take_over(network: Network, init_from: Path, tokenizer: Tokenizer, progress: Progress) -> None:
    """Weights of another model; tokens that both vocabularies have keep their vectors."""
    from remask.model.store import open_model
    from remask.model.transplant import transplant
    from remask.tokenizer import load_tokenizer

    loaded = open_model(init_from)
    if loaded.tokenizer_folder is None:
        raise ConfigError(f"init_from = {init_from}: has no tokenizer, so its embeddings cannot be told apart")
    old = load_tokenizer(loaded.tokenizer_folder)
    old_id = {name: number for number, name in enumerate(old.tokens)}
    rows = [old_id.get(name, -1) for name in tokenizer.tokens]
    for role in ("bos", "pad", "eos", "unk", "mask"):  # specials go by what they do, whatever they are called
        rows[getattr(tokenizer, f"{role}_id")] = getattr(old, f"{role}_id")
    fresh = transplant(network, loaded.network, rows)
    kept = sum(row >= 0 for row in rows)
    progress.say(f"  weights from {init_from}: {kept:,} of {len(rows):,} tokens keep their vectors")
    if fresh:
        progress.warn(f"not in {init_from}, so fresh: {', '.join(fresh)}")


def _identity(run: PretrainRun, data: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """What must not change between a start and a resume. Paths may: what they hold has fingerprints. Trackers may."""
    config = dump(run)
    del config["prepared"], config["train"]["trackers"]
    return {**config, "fingerprints": {"data": data, "tokenizer": tokenizer.fingerprint}}


def _preflight(
    run: PretrainRun,
    out: Path,
    network: Network,
    batches: Any,
    num_steps: int | None,
    world: World,
    progress: Progress,
) -> dict[str, Any]:
    from remask.model import cost
    from remask.precision import choose_device, choose_precision, products_per_second
    from remask.train import preflight
    from remask.train.narrow import masters

    if run.train.trainable_top_layers is not None:
        network.train_top_layers(run.train.trainable_top_layers)
    parameters, rows = _size(network), batches.num_examples / batches.steps_per_epoch
    device = choose_device(run.train.device, "train.device")
    precision, _ = choose_precision(run.train.precision, device, key="train.precision")
    products = cost.flops_per_token(network.settings, network.head_settings, run.data.length)
    place = next(path for path in [out, *out.absolute().parents] if path.exists())
    facts = preflight.Facts(
        parameters=parameters,
        trainable=sum(p.numel() for p in network.parameters() if p.requires_grad),
        hidden_size=run.model.hidden_size,
        num_layers=run.model.num_layers,
        post_norm=run.model.norm == "post",
        tokens_per_step=batches.tokens_per_step,
        rows_per_step=rows,
        micro_tokens=run.data.batch.micro_rows * run.data.length,
        steps_per_epoch=batches.steps_per_epoch,
        num_steps=num_steps,
        free_bytes=shutil.disk_usage(place).free,
        flops_per_token=cost.TRAINING_FACTOR * sum(products.values()),
        flops_per_second=world.size * products_per_second(device, precision),
        precision=precision,
        planned_tokens=batches.tokens_in(num_steps) if num_steps else 0.0,
        planned_passes=batches.passes_in(num_steps) if num_steps else 0.0,
        first_rows=run.data.batch.ramp_from,
        growing_share=run.data.batch.ramp_steps,
        short_length=run.data.short_length if run.data.short_steps else None,
        short_share=run.data.short_steps,
        length=run.data.length,
        ranks=world.size,
        parallel=run.train.parallel,
        micro_batches=math.ceil(rows / (run.data.batch.micro_rows * world.size)),
        whole_parameters=preflight.gathered(parameters, [_size(part) for part in network.parts_to_shard()]),
        has_average=run.train.ema_decay > 0,
        copied_parameters=sum(w.numel() for w in masters(network)) if run.train.weights == "bf16-master" else 0,
    )
    data = batches.describe()
    if world.is_first:
        for line in preflight.lines(facts, run.train):
            progress.say(f"  {line}")
        if data["cut_sentences"]:
            progress.say(f"  {data['cut_sentences']:,} sentences are longer than a row of {data['length']} and cut")
        for line in preflight.warnings(facts, run.train):
            progress.warn(line)
    return {**dataclasses.asdict(facts), "data": data}


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _samples(model: Network, batch: Batch, tokenizer: Tokenizer, count: int = 3, reach: int = 12) -> list[list[str]]:
    """What the model answers at the middle masked place of some held-out rows: [text around it, truth, answers]."""
    import torch

    assert batch.masked_positions_M is not None
    assert batch.masked_labels_M is not None
    device = next(model.parameters()).device
    columns = batch.input_ids_BS.shape[1]
    rows = batch.masked_positions_M // columns
    chosen = [np.flatnonzero(rows == row) for row in range(min(count, batch.num_rows))]
    picks = np.array([places[len(places) // 2] for places in chosen if len(places)], np.int64)
    if not len(picks):
        return []
    tensors = batch.map(lambda array: torch.as_tensor(array).to(device))
    hidden = model.encode(tensors, None)
    logits = model.masked_lm(hidden, torch.as_tensor(batch.masked_positions_M[picks]).to(device))
    best = logits.float().topk(3, dim=1).indices.tolist()
    found = []
    for pick, answers in zip(picks, best, strict=True):
        row, column = divmod(int(batch.masked_positions_M[pick]), columns)
        ids = batch.input_ids_BS[row]
        left = tokenizer.decode(ids[max(0, column - reach) : column])
        right = tokenizer.decode(ids[column + 1 : min(column + 1 + reach, int(batch.lengths_B[row]))])
        words = ", ".join(tokenizer.token_text(answer).strip() for answer in answers)
        truth = tokenizer.token_text(int(batch.masked_labels_M[pick])).strip()
        found.append([f"… {left.strip()} ___ {right.strip()} …", truth, words])
    return found


def _machine() -> dict[str, Any]:
    import torch

    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


@click.command()
@click.argument("run_file", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The run folder.")
@click.option("--data", type=click.Path(path_type=Path), help="Prepared data (remask prepare).")
@click.option("--minutes", type=float, help="Use so many minutes.")
@click.option("--steps", type=int, help="Make so many steps.")
@click.option("--init-from", type=click.Path(path_type=Path), help="Start from this model.")
@common_options
def command(
    run_file: Path,
    out: Path,
    data: Path | None,
    minutes: float | None,
    steps: int | None,
    init_from: Path | None,
    common: Common,
) -> None:
    """Train an encoder on prepared data. The same command in the same folder goes on."""
    common = common.of_rank()
    given: Mapping[str, Any] = {"minutes": minutes, "steps": steps}
    if any(value is not None for value in given.values()):
        # A budget on the command line stands alone: the run file's own would otherwise end the run earlier.
        others = tuple(f"train.{name}=null" for name in BUDGETS if given.get(name) is None)
        common = dataclasses.replace(common, assignments=(*common.assignments, *others))
    built: Built[PretrainRun] = common.build(
        PretrainRun,
        run_file,
        prepared=None if data is None else str(data),
        init_from=None if init_from is None else str(init_from),
        train__minutes=minutes,
        train__steps=steps,
    )
    common.show_differences(built)
    result = main(built.run, out, progress=common.progress, allow_change=common.allow_change, dry_run=common.dry_run)
    if common.dry_run:
        common.result(result, "the run is sound; nothing was trained")
    elif is_first_rank():
        common.result(
            result,
            f"{out}: {result['step']:,} steps; held-out loss {result['loss']:.3f} nats, "
            f"perplexity {result['perplexity']:.1f}, accuracy {result['accuracy']:.1%}, "
            f"{result['bits_per_byte']:.3f} bits per byte",
        )
