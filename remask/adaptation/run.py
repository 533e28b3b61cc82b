"""Adapting as a whole: prepare the text, measure, continue pretraining, measure again, publish, compare on a task.

In: an AdaptRun and a folder. Out: OUT/model (a MODEL), OUT/adapt.json, OUT/report.html; beside them the data, the
pretraining run and the fine-tuning runs. Every stage is the code of its own verb and keeps what it finished: the same
call in the same folder goes on, and ends with the same bits. Not here: how any stage works, the report's words.
"""

from __future__ import annotations

import datetime
import io
import json
import os
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from remask import artifacts
from remask.adaptation.report import adaptation_report
from remask.adaptation.settings import DEFAULT_MINUTES, HEAD_RATE, AdaptRun, length_for, rate_for
from remask.adaptation.texts import CORPUS, GENERAL, Side, new_side, old_side
from remask.config import differences, dump, to_yaml
from remask.errors import ConfigError, DataError, MissingInputError, UsageError
from remask.pretraining.settings import BUDGETS, PretrainRun
from remask.progress import Progress
from remask.schema import Json, Values
from remask.workers import num_cores

if TYPE_CHECKING:
    from remask.adaptation.measure import Hidden
    from remask.model.network import Network
    from remask.model.store import Loaded

_CLAIM = ".adapt.json"  # by which a folder is known to be an adaptation's, and of which model


def adapt(run: AdaptRun, out: Path, *, progress: Progress, allow_change: Sequence[str] = ()) -> Json:
    """Adapt, or go on with it; what was measured before and after, and where the model is."""
    check(run)
    with artifacts.lock(out):
        work = _Work(run, out, progress)
        _claim(work)
        before = work.measured("before", lambda: _measure_start(work, work.old))
        start = work.measured("start", lambda: _measure_start(work, work.new)) if work.has_new_tokens else None
        if not work.had_head:
            work.kept("head", lambda: _train_head(work, allow_change))
        trained = work.kept("pretrain", lambda: _pretrain(work, allow_change))
        _publish(work)
        after = work.measured("after", lambda: _measure_end(work))
        task = None if run.task is None else _compare_task(work)
        values = {
            "model": str(out / "model"),
            "report": str(out / "report.html"),
            "from": run.model,
            "corpus": _corpus_counts(work),
            "before": before,
            "start": start,
            "after": after,
            "task": task,
            "recipe": _recipe(work, trained),
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {num_cores()} cores",
        }
        values = work.kept("result", lambda: values)  # a repeated call tells what the first one told
        artifacts.write_json(out / "adapt.json", values)
        from remask.reports.runs import read_run

        artifacts.write_bytes(out / "report.html", adaptation_report(values, read_run(out / "pretrain")).encode())
    return values


def check(run: AdaptRun) -> None:
    """What is missing shows before anything is read."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError(
            "adapt is one process; under torchrun go on with remask pretrain --init-from MODEL on prepared text"
        )
    if not run.model:
        raise UsageError("which model? remask adapt MODEL TEXT… --out DIR")
    if not run.corpus.paths:
        raise UsageError("which text? remask adapt MODEL TEXT… --out DIR")
    if not Path(run.model).is_dir():
        raise MissingInputError(f"{run.model}: no such model folder")
    if run.validation is not None and not Path(run.validation).exists():
        raise MissingInputError(f"{run.validation}: no such file")
    if run.pairs.file is not None:
        from remask.adaptation.measure import read_pairs

        read_pairs(run.pairs)
    if run.task is not None and run.task.tasks:
        raise ConfigError("task.tasks: one task is compared before and after")


# --------------------------------------------------------------------------------------- one run in one folder


@dataclass(frozen=True)
class _Work:
    """The run in its folder, and what its stages share."""

    run: AdaptRun
    out: Path
    progress: Progress

    @property
    def has_new_tokens(self) -> bool:
        return self.run.vocabulary != "keep"

    @cached_property
    def loaded(self) -> Loaded:
        """The model as it came."""
        from remask.model.store import open_model

        loaded = open_model(Path(self.run.model))
        if loaded.tokenizer_folder is None:
            raise DataError(f"{self.run.model}: has no tokenizer, so text cannot be prepared for it")
        return loaded

    @property
    def had_head(self) -> bool:
        return self.loaded.network.heads.masked_lm is not None

    @cached_property
    def old(self) -> Side:
        folder = self.loaded.tokenizer_folder
        assert folder is not None
        return old_side(self.run, self.out, folder, self.progress)

    @cached_property
    def new(self) -> Side:
        """The data that is trained on."""
        return new_side(self.run, self.out, self.old, self.progress) if self.has_new_tokens else self.old

    @cached_property
    def sentences(self) -> list[Hidden]:
        from remask.adaptation.measure import hidden_words

        return hidden_words(self.old.documents, self.old.source, self.run.seed)

    def kept(self, name: str, make: Callable[[], Json]) -> Json:
        """The result of a stage, from the disk where it was finished before."""
        return artifacts.once(self.out / f".{name}.json", make)

    def measured(self, name: str, make: Callable[[], Json]) -> Json:
        def shown() -> Json:
            with self.progress.stage(f"measure {name}"):
                return make()

        self.new  # noqa: B018 - text is prepared outside of the measuring stage
        return self.kept(name, shown)


def _claim(work: _Work) -> None:
    """A folder belongs to one adaptation of one model; a changed one is refused with the difference."""
    from remask.model.store import model_fingerprint

    out, place, file = work.out, work.out / _CLAIM, work.out / "run.yaml"
    artifacts.claim(out, _CLAIM)
    identity = {"run": dump(work.run), "model": model_fingerprint(work.loaded.folder)}
    known = json.loads(place.read_bytes()) if place.is_file() else identity
    if known != identity and any((out / name).exists() for name in ("head", "pretrain")):
        changed = differences(known["run"], identity["run"])
        words = "; ".join(f"{key} {json.dumps(old)} -> {json.dumps(new)}" for key, old, new in changed)
        raise ConfigError(
            f"{out}: holds another adaptation ({words or 'of other weights'}); choose another --out, or remove it"
        )
    if known != identity:  # there is nothing to lose but prepared text: a corrected command simply works
        for name in ("before", "start", "vocabulary"):
            (out / f".{name}.json").unlink(missing_ok=True)
        for folder in [*out.glob("prepared*"), *out.glob(".prepared*.work"), out / "vocabulary"]:
            shutil.rmtree(folder, ignore_errors=True)
    artifacts.write_json(place, identity)
    artifacts.write_bytes(file, to_yaml(work.run).encode())


# ------------------------------------------------------------------------------------------------- the stages


def pretrain_run(work: _Work, side: Side) -> PretrainRun:
    """The continuation as a pretraining run on one side's data."""
    run, form = work.run, work.loaded.settings
    documents = max(1, work.old.total("documents"))
    length = length_for(run, form, work.old.total("tokens") / documents)
    train = {**dump(run.train), "learning_rate": rate_for(run, form)}
    if all(train[name] is None for name in BUDGETS):
        train["minutes"] = DEFAULT_MINUTES
    data: Json = {**dump(run.data), "length": length}
    data["evaluation"]["sources"] = [side.source]
    data["shorten_to"] = min(data["shorten_to"], length)
    if "num_rows" in run.data.batch.model_fields_set and "num_tokens" not in run.data.batch.model_fields_set:
        data["batch"]["num_tokens"] = None
    if run.general.paths:
        data["source_weights"] = {CORPUS: 1 - run.general_share, GENERAL: run.general_share}
    values = {
        "seed": run.seed,
        "prepared": str(side.prepared),
        "validation": None if run.validation is None else str(side.measured),
        "init_from": run.model,
        "learn": run.learn,
        "lora": dump(run.lora),
        "start": dump(run.start),
        "model": {**dump(form), "vocab_size": 0},
        "data": data,
        "train": train,
    }
    return PretrainRun.model_validate_json(json.dumps(values))


def _share(run: PretrainRun, share: float) -> PretrainRun:
    """The run with a part of its budget."""
    train = run.train
    budget: dict[str, float | int] = {
        name: value * share for name in ("epochs", "minutes") if (value := getattr(train, name)) is not None
    }
    budget |= {
        name: max(1, round(value * share))
        for name in ("steps", "tokens")
        if (value := getattr(train, name)) is not None
    }
    return run.model_copy(update={"train": train.model_copy(update=budget)})


def _train_head(work: _Work, allow_change: Sequence[str]) -> Json:
    """A masked-LM head for a model that came without one, which learns first and alone, in OUT/head."""
    from remask.pretraining.run import pretrain

    run = _share(pretrain_run(work, work.new), work.run.head_share)
    train = run.train.model_copy(update={"trainable_top_layers": 0, "learning_rate": HEAD_RATE})
    run = run.model_copy(update={"train": train, "learn": "all"})
    work.progress.say("the model has no masked-LM head: one learns first, alone")
    made = pretrain(run, work.out / "head", progress=work.progress, allow_change=allow_change)
    return {"step": made["step"], "loss": made["loss"], "seconds": made["seconds"], "tokens": made["tokens"]}


def _pretrain(work: _Work, allow_change: Sequence[str]) -> Json:
    from remask.pretraining.run import pretrain

    run = pretrain_run(work, work.new)
    if not work.had_head:
        run = _share(run, 1 - work.run.head_share).model_copy(update={"init_from": work.out / "head"})
    made = pretrain(run, work.out / "pretrain", progress=work.progress, allow_change=allow_change)
    return {key: made[key] for key in ("step", "tokens", "seconds", "parameters")}


def _publish(work: _Work) -> None:
    """The continued model under OUT/model, low-rank updates merged. A model that came without a masked-LM head is for
    embeddings, say: what stands for a text stays what it was."""
    from remask.model.network import with_heads
    from remask.model.store import open_model, save_model

    if (work.out / "model" / artifacts.MANIFEST).is_file():
        return
    trained = open_model(work.out / "pretrain")
    network = trained.network
    if not work.had_head:
        heads = trained.heads.model_copy(update={"pooling": work.loaded.heads.pooling})
        network = with_heads(network, heads, work.run.seed)
    save_model(work.out / "model", network, trained.tokenizer_folder, replace=True)


def _measure_start(work: _Work, side: Side) -> Json:
    """The network before the first step. On the old side it is the model as it came; one without a masked-LM head
    gets one that answers word frequencies."""
    from remask.model.store import Loaded
    from remask.pretraining.start import make_network

    run = pretrain_run(work, side).model_copy(update={"learn": "all"})
    unheard = Progress(quiet=True, stream=io.StringIO())  # the same is said when training starts
    network = make_network(run, side.tokenizer, unheard, work.out)
    loaded = Loaded(
        network, network.settings, network.head_settings, side.prepared / "tokenizer", None, work.loaded.folder
    )
    is_old = side is work.old
    return _measures(work, side, network, loaded, Path(work.run.model) if is_old else None)


def _measure_end(work: _Work) -> Json:
    from remask.model.store import open_model

    loaded = open_model(work.out / "model")
    return _measures(work, work.new, loaded.network, loaded, work.out / "model")


def _measures(work: _Work, side: Side, network: Network, loaded: Loaded, embeds: Path | None) -> Json:
    """`embeds`: the model whose embeddings are measured on the pairs, where there are some."""
    from remask.adaptation import measure
    from remask.answer.model import Model, load
    from remask.answer.reader import open_reader

    run, tokenizer, data = work.run, side.tokenizer, pretrain_run(work, side).data
    values: Json = {
        "heldout": measure.held_out_measures(network, tokenizer, side.measured, data, side.source),
        "bytes_per_token": round(side.total("bytes") / side.total("tokens"), 4),
        "vocabulary": tokenizer.vocab_size,
        "had_head": work.had_head,
    }
    if run.general.paths:
        values["general"] = measure.held_out_measures(network, tokenizer, side.prepared, data, GENERAL)
    if run.pairs.file is not None and embeds is not None:
        values["closeness"] = round(measure.closeness(load(embeds, packed=False), measure.read_pairs(run.pairs)), 4)
    model = Model(open_reader(loaded), packed=False)
    filled = measure.answers(model, work.sentences)
    values["samples"] = [
        {"text": sentence.masked("___"), "hidden": sentence.word, "answers": answers}
        for sentence, answers in zip(work.sentences, filled, strict=True)
    ]
    return values


def _compare_task(work: _Work) -> Json:
    """The same fine-tuning, with the same seeds, from the model as it came and as it is now."""
    from remask.tune.finetune import finetune

    task = work.run.task
    assert task is not None
    sides: Json = {}
    for name, model in (("before", Path(work.run.model)), ("after", work.out / "model")):
        work.progress.say(f"fine-tune {name} adapting ({task.task})")
        run = task.model_copy(update={"init": str(model)})
        made = finetune(run, work.out / "task" / name, progress=work.progress)
        metric = made["metric"]
        scores = [seed["metrics"][metric] for seed in made["runs"]]
        sides[name] = {"median": made["metrics"][metric], "seeds": scores}
        sides |= {"metric": metric, "baseline": made["data"]["baseline"].get(metric), "data": made["data"]}
    return {"task": task.task, **sides, "verdict": verdict(sides["before"]["seeds"], sides["after"]["seeds"])}


def verdict(before: Sequence[float], after: Sequence[float]) -> str:
    """Whether adapting paid, as far as these seeds can tell: higher scores are better."""
    ordered = sorted(after)
    middle = ordered[len(ordered) // 2] - sorted(before)[len(before) // 2]
    if len(before) < 2:
        return f"one seed says {middle:+.4f}; more seeds (--seeds 3) tell whether that is chance"
    if min(after) > max(before):
        return f"it paid: every seed after is above every seed before ({middle:+.4f} in the median)"
    if max(after) < min(before):
        return f"it harmed: every seed after is below every seed before ({middle:+.4f} in the median)"
    return f"not clear: the seeds overlap ({middle:+.4f} in the median)"


# ------------------------------------------------------------------------------------------------- the result


def _corpus_counts(work: _Work) -> Json:
    side = work.new
    counts = {key: side.total(key) for key in ("documents", "tokens", "bytes")}
    counts["heldout_tokens"] = side.total("tokens", "heldout")
    if work.run.general.paths:
        counts["general_tokens"] = side.total("tokens", source=GENERAL)
    return counts


def _recipe(work: _Work, trained: Values) -> Json:
    run = pretrain_run(work, work.new)
    learn = work.run.learn
    if work.run.train.trainable_top_layers is not None:
        learn = f"top {work.run.train.trainable_top_layers}"
    return {
        "steps": trained["step"],
        "head": None if work.had_head else work.kept("head", dict),
        "tokens_seen": trained["tokens"],
        "seconds": trained["seconds"],
        "parameters": trained["parameters"],
        "learning_rate": run.train.learning_rate,
        "schedule": run.train.schedule,
        "warmup": run.train.warmup,
        "length": run.data.length,
        "tokens_a_step": run.data.batch.num_tokens or run.data.batch.num_rows * run.data.length,
        "learn": learn,
        "vocabulary": work.run.vocabulary,
        "general_share": work.run.general_share if work.run.general.paths else 0.0,
    }
