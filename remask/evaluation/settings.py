"""What an evaluation says: the model, the tasks or the labelled file, the limits. No torch.

In: a run file or options. Out: the frozen EvaluateRun. Not here: what is done with it (evaluate).
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from remask.config import Config, setting, switch
from remask.tables import OtherForm
from remask.tasks.specs import TASKS
from remask.train.settings import Precision

GROUPS = {
    group: tuple(name for name in TASKS if name.startswith(f"{group}:") and "form_of" not in TASKS[name])
    for group in ("glue", "clue")
}
ZERO_SHOT = ("blimp", "claims", "perplexity")
_OF_TEST = ("test", "task", "table")  # what only a labelled file needs
_OF_BOTH = ("model", "seed", "max_dev", "precision", "device")


class FileTable(OtherForm):
    """Where a file differs from the one that the model was trained on; null: as said, or it does not."""

    text: str | None = setting(None, "the column with the text")
    text2: str | None = setting(None, "the column with the second text of a pair")
    label: str | None = setting(None, "the column with the class, number or list of labels")
    source: str | None = setting(None, "writing: the column that is read")
    target: str | None = setting(None, "writing: the column with the text or the references")
    turns: int | None = setting(None, "replies: turns of a dialogue that are read", ge=1)
    id: str | None = setting(None, "a column whose values must all differ")
    separator: str | None = setting(None, "between the labels of a multi-label cell", min_length=1)
    bad_rows: Literal["error", "drop"] | None = setting(None, "a row with an empty text or without a label")
    skip_articles: tuple[str, ...] | None = setting(None, "SQuAD: articles that are not scored")


class EvaluateRun(Config):
    """A model and the tasks it is to show itself on."""

    seed: int = setting(0, "the first seed of fine-tuning", ge=0)
    seeds: int = setting(1, "fine-tuning runs a task; of several the ensemble is scored, too", ge=1)
    model: str = setting("", "the model")
    tasks: tuple[str, ...] = setting((), "glue, clue (all of it), a task of finetune, blimp, claims, perplexity")
    data: str = setting("", "folder with the tasks' files (or with folders named as the tasks')")
    texts: tuple[str, ...] = setting((), "perplexity: text files or prepared data; none: what `data` has")
    max_train: int | None = setting(None, "train on so many examples a task at most", ge=1)
    max_dev: int | None = setting(None, "score on so many dev examples a task at most", ge=1)
    max_pairs: int | None = setting(None, "BLiMP: so many pairs of each paradigm", ge=1)
    epochs: float | None = setting(None, "passes of fine-tuning; null: the recipe's", gt=0)
    minutes: float | None = setting(None, "all fine-tuning together; each run gets an equal share", gt=0)
    init_weights: bool = switch(
        True, "fine-tune from the model's weights; false: the same network from scratch, for comparison", effect="math"
    )
    from_mnli: bool = switch(
        False, "RTE, STS-B and MRPC start from the MNLI model, as the paper's leaderboard entry", effect="math"
    )
    grid: bool = switch(
        False, "GLUE: the paper's learning rates x batches for each task; the best median counts", effect="math"
    )
    submission: str | None = setting(None, "folder for answers to GLUE's test files, as the leaderboard takes them")
    test: str | None = setting(None, "instead of tasks: a labelled file that the model is scored on, with no training")
    task: str | None = setting(None, "test, of a model with several tasks: which one")
    table: FileTable = setting(FileTable(), "test: columns; null: as the model was trained")
    precision: Precision = setting("auto", "of fine-tuning and scoring: auto, fp32, bf16 or fp16")
    device: str = setting("auto", "auto, cpu, cuda, cuda:N or mps")

    @model_validator(mode="after")
    def _check(self) -> Self:
        """What one of the two ways to score does not read is not given to it."""
        for name, field in type(self).model_fields.items():
            is_read = name in _OF_BOTH or (name in _OF_TEST if self.test else name not in _OF_TEST)
            if is_read or getattr(self, name) == field.default:
                continue
            if self.test:
                raise ValueError(f"{name}: is not for a file given as test, on which nothing is trained")
            raise ValueError(f"{name}: is only for a file given as test")
        if not self.init_weights:
            for name in ("from_mnli", "grid"):
                if getattr(self, name):
                    raise ValueError(f"{name}: is made for pretrained weights, and init_weights is false")
            if asked := [task for task in self.tasks if task in ZERO_SHOT]:
                raise ValueError(
                    f"tasks: {asked[0]} trains nothing, and random weights (init_weights: false) know nothing"
                )
        return self
