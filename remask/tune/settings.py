"""What a fine-tuning run says: its files, its recipe, what learns; several tasks at once; a small grid. No torch.

In: a run file or options. Out: the frozen FinetuneRun that `finetune`, `search`, `evaluate` and `quickstart` share.
The recipe is the paper's (RoBERTa, appendix, table 10): AdamW, weight decay 0.1, 6 % warmup, linear decay, 10 epochs,
the best evaluation kept. Not here: what is done with it (finetune and the modules named after it).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from remask.config import Config, dump, setting, switch
from remask.model.settings import UPDATES, AdaLoraSettings, DecoderSettings, Ia3Settings, LoraSettings, Updates
from remask.tasks.kinds import OWN_TASKS, kind_of
from remask.tasks.settings import (
    DecodeSettings,
    LossSettings,
    PromptSettings,
    RetrieveSettings,
    RowSettings,
    TableSettings,
    TaskBatchSettings,
)
from remask.tasks.specs import TASKS
from remask.train.settings import TrainSettings

Learn = Literal["all", "heads", "lora", "adalora", "ia3", "bottleneck", "prefix"]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_:-]*\Z")  # of a task among several: part of paths and of weights' names


class FinetuneTrainSettings(TrainSettings):
    """The loop's settings with fine-tuning's defaults."""

    epochs: float | None = setting(10.0, "passes over the training data", gt=0)
    learning_rate: float | None = switch(  # pyrefly: ignore
        None, "peak learning rate; null: by what learns (all 2e-5, LoRA 4e-4, heads 1e-3, … at width 768), more for "
        "narrow networks", effect="math", samples=[1e-5, 3e-5], gt=0,
    )  # fmt: skip
    warmup: float = switch(0.06, "linear warmup: a share of all steps, or steps", effect="math", samples=[0.0], ge=0)
    weight_decay: float = switch(0.1, "decoupled weight decay", effect="math", samples=[0.0, 0.01], ge=0)
    spike_sigmas: float = switch(
        0.0, "skip updates whose loss is an outlier; 0: never", effect="math", samples=[4.5], ge=0
    )
    keep_checkpoints: int = setting(1, "verified checkpoints that are kept", ge=1)


class BottleneckSettings(Config):
    """Adapters behind attention and FFN of every layer (arXiv 1902.00751); norms and heads learn with them."""

    size: int = switch(32, "width of an adapter", effect="math", samples=[4], ge=1)


class PrefixSettings(Config):
    """Keys and values in front of every layer's own (arXiv 2101.00190, without its second network)."""

    length: int = switch(
        20, "places of the prefix, which count as positions: texts may be that much shorter", effect="math",
        samples=[3], ge=1,
    )  # fmt: skip


class TaskFiles(Config):
    """A task and where its examples are."""

    task: str = setting(
        "classify",
        "classify, regress, multilabel, pair, ner, qa, choice, prompt, retrieve, write, translate, summarise, reply, "
        "or a named one such as glue:cola",
    )
    train_file: str | None = setting(None, "what to train on")
    dev_file: str | None = setting(None, "what to evaluate on; null: a fifth of train_file")
    data: str | None = setting(None, "folder of a named task's files")
    max_train: int | None = setting(None, "train on so many examples at most", ge=1)
    max_dev: int | None = setting(None, "score on so many dev examples at most", ge=1)
    table: TableSettings = setting(TableSettings(), "columns of the user's own table")
    prompt: PromptSettings = setting(PromptSettings(), "task: prompt")
    rows: RowSettings = setting(RowSettings(), "texts -> rows")
    decode: DecodeSettings = setting(DecodeSettings(), "writing: how texts are written when they are scored")

    @model_validator(mode="after")
    def _check_task(self) -> Self:
        kind_of(self.task)
        return self

    def path(self, value: str | None) -> Path | None:
        return None if value is None else Path(value)


class TaskEntry(TaskFiles):
    """One of several tasks that share an encoder."""

    name: str = setting("", "what it is called in results and folders; empty: as its task")

    @property
    def called(self) -> str:
        return self.name or self.task

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if not NAME.match(self.called):
            raise ValueError(f"name = {self.called!r}: letters, digits and _ : - only")
        return self


class UnlabelledSettings(Config):
    """Self-training: a first model labels texts, and a second one learns from those that it is sure of as well."""

    file: str | None = setting(None, "texts without labels, in the form of the training file")
    min_score: float = switch(
        0.9, "how sure the first model must be of a label", effect="data", samples=[0.0], ge=0, le=1
    )
    max_texts: int = setting(10_000, "texts that are learned from at most, the surest of each class first", ge=1)


class CurveSettings(Config):
    """A comparison over numbers of labels: prompt, fine-tuning, nearest neighbours."""

    labels: tuple[int | Literal["all"], ...] = setting((), "numbers of labelled examples, such as 0, 8, 32, 128, all")
    min_steps: int = setting(100, "steps of a training at least: few labels are read more often", ge=1)
    neighbours: int = setting(5, "labelled texts whose classes are counted", ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(size != "all" and size < 0 for size in self.labels):
            raise ValueError(f"labels = {list(self.labels)}: numbers from 0 on, or all")
        return self


class GridSettings(Config):
    """Values that are all tried with one another; the best median over the seeds wins."""

    lr: tuple[float, ...] = setting((), "learning rates")
    batch: tuple[int, ...] = setting((), "batch.num_rows")
    epochs: tuple[float, ...] = setting((), "passes over the training data")
    warmup: tuple[float, ...] = setting((), "shares of the steps")
    weight_decay: tuple[float, ...] = setting((), "decoupled weight decay")

    def given(self) -> dict[str, tuple[float | int, ...]]:
        """Those that have values."""
        return {name: values for name in TUNED if (values := getattr(self, name))}


# What grid and search vary: their short names and where the value goes.
TUNED = {
    "lr": ("train", "learning_rate"),
    "batch": ("batch", "num_rows"),
    "epochs": ("train", "epochs"),
    "warmup": ("train", "warmup"),
    "weight_decay": ("train", "weight_decay"),
}


# Few labels make few steps an epoch, so that there are more epochs and smaller batches.
FEW_LABELS = {"train.epochs": 30.0, "batch.num_rows": 8}


def recipe_of(task: str | None, without: Sequence[str] = ()) -> list[str]:
    """A named task's recipe as assignments, below what the user says."""
    recipe = FEW_LABELS if task == "prompt" else TASKS.get(task or "", {}).get("recipe", {})
    if task in OWN_TASKS and kind_of(task).writes:
        decode = {f"decode.{key}": value for key, value in kind_of(task).decode.items()}
        recipe = {"batch.num_tokens": 4096, "train.weight_decay": 0.01, **decode}
    return [f"{key}={value}" for key, value in recipe.items() if key not in without]


class FinetuneRun(TaskFiles):
    """One fine-tuning: a task (or several), a model, some seeds."""

    seed: int = setting(0, "the first seed", ge=0)
    seeds: int = setting(1, "runs, with seeds seed, seed + 1, …; the result is their median and spread", ge=1)
    init: str = setting("", "the model to start from: a run, a checkpoint or a Hugging Face folder")
    pooling: Literal["model", "first", "mean"] = switch(
        "model",
        "what stands for a text: as the model was taught (a masked LM: the first token), first, or mean",
        effect="math",
    )
    dropout: float | None = switch(
        None, "chance to drop a value, in states, attention and heads, while this learns; null: as the model has it",
        effect="math", samples=[0.0, 0.3], ge=0, lt=1,
    )  # fmt: skip
    init_weights: bool = switch(True, "start from its weights; false: the same network from scratch", effect="math")
    learn: Learn = switch(
        "all", "what learns: all (or train.trainable_top_layers), the heads alone, or the heads and: low-rank updates "
        "(lora, adalora), factors (ia3), adapters behind the sub-layers (bottleneck), a prefix in every layer",
        effect="math",
    )  # fmt: skip
    lora: LoraSettings = setting(LoraSettings(), "learn: lora")
    decoder: DecoderSettings = setting(DecoderSettings(), "writing: the decoder that the encoder's layers become")
    target_tokenizer: str | None = setting(
        None, "writing: the vocabulary of the targets, a folder or file; null: the model's own, for both sides"
    )
    unlabelled: UnlabelledSettings = setting(UnlabelledSettings(), "texts to learn from without labels (classes only)")
    curve: CurveSettings = setting(
        CurveSettings(), "compare ways to learn over numbers of labels, in place of one model"
    )
    adalora: AdaLoraSettings = setting(AdaLoraSettings(), "learn: adalora")
    ia3: Ia3Settings = setting(Ia3Settings(), "learn: ia3")
    bottleneck: BottleneckSettings = setting(BottleneckSettings(), "learn: bottleneck")
    prefix: PrefixSettings = setting(PrefixSettings(), "learn: prefix")
    tasks: tuple[TaskEntry, ...] = setting((), "several tasks over one encoder, each with a head of its own")
    temperature: float = switch(
        1.0, "several tasks: steps go to a task by size ^ (1 / temperature); large: all alike", effect="math",
        samples=[1000.0], gt=0,
    )  # fmt: skip
    single: bool = setting(False, "several tasks: also train each alone, for comparison")
    batch: TaskBatchSettings = setting(TaskBatchSettings(), "rows -> batches")
    loss: LossSettings = setting(LossSettings(), "what is minimised, where there is a choice")
    retrieve: RetrieveSettings = setting(RetrieveSettings(), "task retrieve: pairs, negatives, the loss")
    train: FinetuneTrainSettings = setting(FinetuneTrainSettings(), "the recipe")
    grid: GridSettings = setting(GridSettings(), "values of the recipe to try with one another")
    evaluations: int = setting(1, "evaluations in an epoch", ge=1)
    patience: int = switch(
        0, "end a seed after so many evaluations without a better score; 0: never", effect="math", samples=[1], ge=0
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.learn != "all" and self.train.trainable_top_layers is not None:
            raise ValueError(f"learn: {self.learn} already says what learns, and so does train.trainable_top_layers")
        writes = kind_of(self.task).writes
        if writes and self.learn not in ("all", "heads"):
            raise ValueError(
                f"learn: {self.learn} is not for a task that writes, whose decoder has fresh weights; all or heads"
            )
        if writes and (self.loss.consistency or self.loss.adversarial):
            raise ValueError(f"loss.consistency and loss.adversarial are not for task {self.task}")
        if self.target_tokenizer is not None and not writes:
            raise ValueError(f"target_tokenizer is for a task that writes, not for {self.task}")
        if any(kind_of(entry.task).writes for entry in self.tasks):
            raise ValueError("tasks: a task that writes is trained alone")
        if isinstance(self.updates, LoraSettings | AdaLoraSettings) and self.updates.dropout and self.train.compile:
            raise ValueError(
                f"{self.learn}.dropout cannot be compiled: train.compile must be false, or {self.learn}.dropout 0"
            )
        if self.learn != "all" and not self.init_weights:
            raise ValueError(f"learn: {self.learn} needs the weights of the model: random ones would stay frozen")
        embeds = self.task == "retrieve"
        if embeds and self.learn in ("heads", "adalora"):
            raise ValueError(f"learn: {self.learn} is not for task retrieve, which has no head and a loss of its own")
        if embeds and (self.loss.consistency or self.loss.adversarial):
            raise ValueError("loss.consistency and loss.adversarial are not for task retrieve")
        if embeds and (self.curve.labels or self.unlabelled.file is not None):
            raise ValueError("curve and unlabelled.file are for tasks with labels, not for task retrieve")
        if not embeds and (self.retrieve.unsupervised or self.retrieve.distil):
            raise ValueError("retrieve.unsupervised and retrieve.distil are for task retrieve")
        if self.retrieve.miner and self.retrieve.negatives != "model":
            raise ValueError("retrieve.miner mines where retrieve.negatives is model")
        if self.retrieve.unsupervised and self.train_file:
            raise ValueError("retrieve.unsupervised takes the place of train_file: give one of them")
        if any(entry.task == "retrieve" for entry in self.tasks):
            raise ValueError("tasks: retrieve compares all rows of a step, so it does not share steps; train it alone")
        if self.unlabelled.file is not None and (self.tasks or self.grid.given()):
            raise ValueError("unlabelled.file: is for one task and one recipe")
        if self.curve.labels and (self.tasks or self.grid.given() or self.unlabelled.file is not None):
            raise ValueError("curve: is for one task, without a grid and without unlabelled.file")
        if self.tasks:
            given = [name for name in ("train_file", "dev_file", "data") if getattr(self, name) is not None]
            if given:
                raise ValueError(f"{', '.join(given)}: belongs inside an entry of tasks, where there are several")
            often, count = Counter(entry.called for entry in self.tasks).most_common(1)[0]
            if count > 1:
                raise ValueError(f"tasks: {often} is there {count} times; give each a name of its own")
        elif self.single:
            raise ValueError("single compares several tasks with each alone: there are no tasks")
        return self

    @model_validator(mode="after")
    def _check_divided(self) -> Self:
        """What cannot go with a model that is divided among the ranks."""
        reason = ""
        if self.updates is not None:
            reason = f"learn: {self.learn} learns so little that there is next to nothing to divide"
        elif self.task == "retrieve":
            reason = "task retrieve compares the rows of all ranks outside of the passes that gather weights"
        elif self.loss.adversarial:
            reason = "loss.adversarial takes gradients in the middle of a pass, where weights are not gathered"
        if self.train.parallel == "fsdp" and reason:
            raise ValueError(f"train.parallel = fsdp: {reason}; it goes with train.parallel = ddp")
        return self

    @property
    def updates(self) -> Updates | None:
        """What `learn` puts beside the matrices and merges at the end."""
        return getattr(self, self.learn) if self.learn in UPDATES else None

    def with_values(self, values: Mapping[str, float | int]) -> FinetuneRun:
        """The same run with other values of TUNED, each once (no grid)."""
        parts: dict[str, dict[str, float | int]] = {}
        for name, value in values.items():
            part, key = TUNED[name]
            parts.setdefault(part, {})[key] = value
        changed = {key: value for key, value in dump(self).items() if key in FinetuneRun.model_fields}
        for part, inner in parts.items():
            changed[part] |= inner
        return FinetuneRun.model_validate_json(json.dumps({**changed, "grid": {}}))


class SearchSettings(Config):
    """Where to look. A list of one value, or none, leaves the run's own."""

    trials: int = setting(20, "fine-tuning runs in all; more may be asked for later", ge=1)
    lr: tuple[float, ...] | None = setting(None, "[lowest, highest] learning rate; null: 1/4 to 4 times the recipe's")
    batch: tuple[int, ...] = setting((16, 32), "sizes of a batch")
    epochs: tuple[float, ...] = setting((3.0, 5.0, 10.0), "numbers of epochs")
    warmup: tuple[float, ...] = setting((0.0, 0.2), "[lowest, highest] share of the steps")
    weight_decay: tuple[float, ...] = setting((), "[lowest, highest] decoupled weight decay")
    sampler: Literal["tpe", "random"] = setting("tpe", "what proposes values: a model of the trials so far, or chance")
    prune: bool = setting(False, "end a trial whose score is below the median of the others at the same evaluation")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("lr", "warmup", "weight_decay"):
            ends = getattr(self, name)
            if ends and (len(ends) > 2 or ends[0] > ends[-1] or ends[0] < 0 or (name == "lr" and ends[0] == 0)):
                raise ValueError(f"{name} = {list(ends)}: give [lowest, highest], both above 0 for lr")
        return self


class TuneRun(FinetuneRun):
    """A fine-tuning run and what may vary in it."""

    search: SearchSettings = setting(SearchSettings(), "what varies, how often, how it is chosen")

    @model_validator(mode="after")
    def _check_search(self) -> Self:
        if self.curve.labels or self.unlabelled.file is not None:
            raise ValueError("curve, unlabelled.file: are for finetune; a search tries recipes for one model")
        if self.grid.given():
            raise ValueError("grid: a search has ranges instead (search.lr, search.batch, …)")
        for name in self.given():
            part, key = TUNED[name]
            if name in self.search.model_fields_set:
                raise ValueError(f"{part}.{key} and search.{name} are both given: a value, or a range to search")
        return self

    def given(self) -> set[str]:
        """What the user gave one value: that is kept, and not searched."""
        return {name for name, (part, key) in TUNED.items() if key in getattr(self, part).model_fields_set}
