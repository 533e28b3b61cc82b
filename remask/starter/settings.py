"""What a quickstart may be told. No torch at import."""

from __future__ import annotations

from remask.config import Config, setting

PYTHON_DOCS = "the documentation of this machine's Python libraries"


class QuickstartRun(Config):
    """What a quickstart may be told; everything else is the preset's."""

    seed: int = setting(0, "the one seed that everything random follows from", ge=0)
    corpus: tuple[str, ...] = setting((), f"files, folders or globs; none: {PYTHON_DOCS}")
    preset: str = setting("quickstart", "a file of runs/bases: network and recipe")
    minutes: float = setting(5.0, "for pretraining; the rest takes some two minutes more", gt=0)
    steps: int | None = setting(None, "pretrain for so many steps instead", ge=1)
    vocab_size: int = setting(8192, "entries of the vocabulary", ge=300)
    max_corpus_bytes: int = setting(16_000_000, "a larger corpus is sampled: more is not read in minutes", ge=1000)
    max_document_bytes: int = setting(20_000, "longer texts are cut, so that a book can be held out in part", ge=100)
    heldout_fraction: float = setting(0.05, "share of the documents that is never trained on", gt=0, lt=1)
    seeds: int = setting(3, "fine-tuning runs from each start", ge=1)
    task_labels: int = setting(240, "labelled passages to fine-tune on: few, as one's own labels are", ge=40)
    task_passages: int = setting(1200, "passages the task is drawn from, most; three in ten are for the test", ge=40)
    task_epochs: float = setting(6.0, "passes over the labelled passages", gt=0)
    task_learning_rate: float = setting(3e-4, "the same from every start", gt=0)
