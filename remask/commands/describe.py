"""`remask describe MODEL_OR_RUN`: parameters by part, FLOPs per token, memory of training, time for so many tokens.

MODEL_OR_RUN is a model of any layout, a training run (its folder or file) or the name of a base. Memory of the
activations and the time come from a short probe on this machine, with masked LM and dropout as in pretraining.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from remask.commands import Common, common_options
from remask.config import Config, build_run, find_base, setting
from remask.errors import ConfigError, MissingInputError, UnavailableError
from remask.model.settings import HeadSettings, ModelSettings
from remask.progress import duration
from remask.schema import Json

if TYPE_CHECKING:
    from remask.model.network import Network

ROBERTA_VOCABULARY = 50_265


class DescribeRun(Config):
    """What is looked at, and in which situation."""

    what: str = setting(..., "a model, a training run (folder or file), or the name of a base")
    batch: int = setting(32, "rows that are trained in one piece (a micro-batch), for the memory", ge=1)
    length: int | None = setting(None, "tokens of a row; by default the model's longest", ge=1)
    tokens: float = setting(1e9, "how many tokens the estimated time is for", gt=0)
    probe_seconds: float = setting(3.0, "how long the speed is measured; 0: not at all", ge=0)
    device: str = setting("auto", "auto (a GPU where there is one), cpu, cuda, ...")


@click.command()
@click.argument("what", metavar="MODEL | RUN | RUN.yaml | BASE")
@click.option("--batch", type=int, help="Rows trained in one piece.")
@click.option("--length", type=int, help="Tokens of a row.")
@click.option("--tokens", type=float, help="Tokens that the time is estimated for.")
@click.option("--probe-seconds", type=float, help="How long the speed is measured; 0: not at all.")
@common_options
def command(
    what: str,
    batch: int | None,
    length: int | None,
    tokens: float | None,
    probe_seconds: float | None,
    common: Common,
) -> None:
    """Size, arithmetic, memory and time of a model, a run or a base."""
    options = {"batch": batch, "length": length, "tokens": tokens, "probe_seconds": probe_seconds}
    if _is_own_file(Path(what)):
        built = common.build(DescribeRun, Path(what), **options)
    else:
        built = common.build(DescribeRun, None, what=what, **options)
    if common.dry_run:
        return
    description = main(built.run)
    common.result(description, _text(description))


def _is_own_file(path: Path) -> bool:
    """A run file of this verb, not of the training that it describes."""
    return path.suffix in (".yaml", ".yml") and path.is_file() and bool(re.search(rb"(?m)^what:", path.read_bytes()))


def main(run: DescribeRun) -> Json:
    """Everything known about it."""
    from remask.model import cost

    settings, heads, note = _find(run.what)
    length = run.length or settings.max_length
    if length > settings.max_length:
        raise ConfigError(f"length = {length}: the model's longest input is {settings.max_length}")
    parts = cost.parameters_by_part(settings, heads)
    total = sum(parts.values())
    # What is trained has a masked-LM head, whatever the model has.
    training = heads.model_copy(update={"masked_lm": True})
    flops = cost.flops_per_token(settings, training, length)
    description: Json = {
        "what": run.what,
        "note": note,
        "parameters": total,
        "parts": parts,
        "length": length,
        "flops_per_token": {"forward": sum(flops.values()), "training": cost.TRAINING_FACTOR * sum(flops.values())},
        "flops_by_part": flops,
        "memory": {"batch": run.batch, **cost.state_bytes(total)},
        "time": None,
    }
    if run.probe_seconds > 0:
        network = _network(settings, training, run.device)
        description["memory"]["activations"] = cost.activation_bytes(network, run.batch, length)
        description["time"] = _probe(network, run, length, description["flops_per_token"]["training"])
    description["memory"]["total"] = sum(value for name, value in description["memory"].items() if name != "batch")
    return description


def _find(what: str) -> tuple[ModelSettings, HeadSettings, str]:
    """The settings that a model, run or base has; weights are read only where the settings hang on them."""
    path = Path(what)
    if what.endswith((".yaml", ".yml")) or not path.exists():
        from remask.pretraining.settings import PretrainRun

        if not path.exists():
            _check_name(what)
        run = build_run(PretrainRun, path if path.exists() else None, base=None if path.exists() else what).run
        heads = HeadSettings(masked_lm=True, sentence=run.data.sentence_loss != "none")
        if run.model.vocab_size:
            return run.model, heads, ""
        size, note = _vocabulary(run.prepared)
        return run.model.model_copy(update={"vocab_size": size}), heads, note
    from remask.model.interop import read_hf_folder
    from remask.model.store import MODEL_JSON, find_model, read_model_json

    folder = find_model(path)
    if (folder / MODEL_JSON).is_file():
        settings, heads, *_ = read_model_json(folder / MODEL_JSON)
        return settings, heads, ""
    foreign = read_hf_folder(folder)
    return foreign.settings, foreign.heads, ""


def _check_name(what: str) -> None:
    """What is no file or folder must be the name of a base."""
    absent = f"{what}: no such model, run or run file"
    if len(Path(what).parts) > 1:
        raise MissingInputError(absent)
    try:
        find_base(what)
    except ConfigError as error:  # it says which ones there are
        raise MissingInputError(f"{absent}; {error}") from None


def _vocabulary(prepared: Path | None) -> tuple[int, str]:
    if prepared is not None and (prepared / "tokenizer").is_dir():
        from remask.tokenizer import load_tokenizer

        return load_tokenizer(prepared / "tokenizer").vocab_size, f"vocabulary of {prepared}"
    return ROBERTA_VOCABULARY, f"vocabulary not known yet: RoBERTa's {ROBERTA_VOCABULARY:,} entries assumed"


def _network(settings: ModelSettings, heads: HeadSettings, device: str) -> Network:
    import torch

    from remask.model.network import build_network

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return build_network(settings, heads, seed=0).to(device)
    except (RuntimeError, AssertionError) as error:
        raise UnavailableError(f"device = {device}: {str(error).splitlines()[0][:160]}") from error


def _probe(network: Network, run: DescribeRun, length: int, flops: float) -> Json:
    """Forward and backward on full rows, again and again; the median counts. The optimizer's step is not in it: its
    share falls with the batch."""
    import torch

    from remask.model import cost

    device = next(network.parameters()).device
    batch = cost.probe_batch(network.settings, max(1, min(run.batch, 4096 // length)), length, device)
    seconds: list[float] = []
    begin = time.monotonic()
    while len(seconds) < 3 or time.monotonic() - begin < run.probe_seconds:
        start = time.monotonic()
        cost.training_loss(network, batch).backward()
        network.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.monotonic() - start)
    rate = batch.num_tokens / sorted(seconds[1:])[len(seconds[1:]) // 2]  # the first one warms up
    return {
        "tokens": run.tokens,
        "seconds": run.tokens / rate,
        "tokens_per_second": rate,
        "flops_per_second": rate * flops,
        "device": str(device),
        "precision": "fp32",
        "threads": torch.get_num_threads(),
    }


def _text(description: Json) -> str:
    lines = [f"{description['what']}: {description['parameters']:,} parameters"]
    lines += [f"  {part:<32}{count:>15,}" for part, count in description["parts"].items()]
    forward, training = description["flops_per_token"]["forward"], description["flops_per_token"]["training"]
    lines += [
        "",
        f"FLOPs per token in rows of {description['length']}: "
        f"{forward / 1e6:,.1f}M forward, {training / 1e6:,.1f}M training",
    ]
    lines += [f"    {part:<30}{value / 1e6:>14,.1f}M" for part, value in description["flops_by_part"].items()]
    memory = {name: value for name, value in description["memory"].items() if name != "batch"}
    lines += ["", f"memory of training, {description['memory']['batch']} rows in one piece, fp32"]
    lines += [f"  {part:<32}{value / 1e6:>13,.1f} MB" for part, value in memory.items()]
    if description["time"]:
        spent = description["time"]
        lines += ["", f"{spent['tokens']:,.0f} tokens: about {duration(spent['seconds'])} at "
                  f"{spent['tokens_per_second']:,.0f} tokens/s ({spent['device']}, {spent['precision']}, "
                  f"{spent['threads']} threads, {spent['flops_per_second'] / 1e9:,.1f} GFLOP/s)"]  # fmt: skip
    return "\n".join(lines + (["", description["note"]] if description["note"] else []))
