"""A pretraining run as one frozen object: what `remask pretrain` reads from its file. No torch at import."""

from __future__ import annotations

from pathlib import Path

from remask.config import Config, setting
from remask.data.settings import DataSettings
from remask.model.settings import ModelSettings
from remask.objectives import ObjectiveSettings
from remask.start import StartSettings
from remask.train.settings import TrainSettings

BUDGETS = ("steps", "tokens", "epochs", "minutes")


class PretrainRun(Config):
    """A pretraining run."""

    seed: int = setting(0, "the one seed that everything random follows from", ge=0)
    prepared: Path | None = setting(None, "prepared data (remask prepare); --data")
    init_from: Path | None = setting(None, "a model to start from instead of fresh weights; --init-from")
    start: StartSettings = StartSettings()
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    train: TrainSettings = TrainSettings()


def budget_alone(minutes: float | None = None, steps: int | None = None) -> list[str]:
    """Assignments by which a budget that is given stands alone: the run file's own could end the run earlier."""
    given = {"minutes": minutes, "steps": steps}
    if all(value is None for value in given.values()):
        return []
    return [f"train.{name}={'null' if given.get(name) is None else given[name]}" for name in BUDGETS]
