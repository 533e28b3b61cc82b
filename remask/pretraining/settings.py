"""A pretraining run as one frozen object: what `remask pretrain` reads from its file. No torch at import."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from remask.config import Config, setting, switch
from remask.data.settings import DataSettings
from remask.model.settings import LoraSettings, ModelSettings
from remask.objectives import ObjectiveSettings
from remask.start import StartSettings
from remask.train.settings import TrainSettings

BUDGETS = ("steps", "tokens", "epochs", "minutes")


class PretrainRun(Config):
    """A pretraining run."""

    seed: int = setting(0, "the one seed that everything random follows from", ge=0)
    prepared: Path | None = setting(None, "prepared data (remask prepare); --data")
    validation: Path | None = setting(
        None, "prepared data whose held-out text is measured in place of the data's own; --validation FILE makes it"
    )
    init_from: Path | None = setting(
        None, "a model to start from instead of fresh weights, whose form is taken over; --init-from"
    )
    learn: Literal["all", "lora"] = switch(
        "all", "what learns: all (or train.trainable_top_layers), or LoRA and the heads over a model", effect="math"
    )
    lora: LoraSettings = setting(LoraSettings(), "learn: lora")
    start: StartSettings = StartSettings()
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    train: TrainSettings = TrainSettings()

    @model_validator(mode="after")
    def _check_learn(self) -> Self:
        if self.learn == "all":
            return self
        if self.init_from is None:
            raise ValueError("learn: lora needs the weights of a model (init_from): random ones would stay frozen")
        if self.train.trainable_top_layers is not None:
            raise ValueError("learn: lora already says what learns, and so does train.trainable_top_layers")
        if self.train.parallel == "fsdp":
            raise ValueError("learn: lora goes with train.parallel = ddp")
        if self.lora.dropout and self.train.compile:
            raise ValueError("lora.dropout cannot be compiled: train.compile must be false, or lora.dropout 0")
        return self


def budget_alone(minutes: float | None = None, steps: int | None = None) -> list[str]:
    """Assignments by which a budget that is given stands alone: the run file's own could end the run earlier."""
    given = {"minutes": minutes, "steps": steps}
    if all(value is None for value in given.values()):
        return []
    return [f"train.{name}={'null' if given.get(name) is None else given[name]}" for name in BUDGETS]
