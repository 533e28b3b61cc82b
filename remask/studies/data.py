"""The prepared text of a study, with the vocabularies that its rows need; and whether held-out text leaks.

In: --corpus or --data. Out: a prepared folder for every variant that rows need, made in OUT/data and
kept for the next time. A leak is held-out text that stands in the training text, word for word.
Not here: how text is prepared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from remask import artifacts
from remask.config import build_values, fingerprint
from remask.data.tokens import Tokens
from remask.errors import ConfigError, MissingInputError
from remask.preparation.prepare import prepare
from remask.preparation.settings import PrepareRun
from remask.progress import Progress
from remask.studies.plan import PLAIN, StudyPlan, Variant, data_fingerprint

LEAK_TOKENS = 32  # a run of so many tokens that stands in both is no chance
MAX_LEAK = 0.02  # of such runs: the same formula, licence or table may stand in many documents
_PRIME = np.uint64(0x9E3779B97F4A7C15)


def open_data(plan: StudyPlan, out: Path, progress: Progress) -> dict[Variant, Path]:
    """Every variant's folder. What is there is not made again."""
    study = plan.study
    if study.prepared is not None and study.corpus:
        raise ConfigError(
            "corpus and prepared: --corpus is prepared by the study, --data was prepared before: give one"
        )
    if study.prepared is not None:
        artifacts.open_artifact(Path(study.prepared), "prepared")
        if plan.variants != [PLAIN]:
            raise ConfigError(
                f"{study.name}: has rows with a vocabulary of their own, for which the text must be prepared: give "
                "--corpus PATH… instead of --data"
            )
        return {PLAIN: Path(study.prepared).absolute()}
    if not study.corpus:
        raise ConfigError("corpus: which text? Give --corpus PATH… or --data PREPARED")
    return {variant: _prepared(plan, variant, out, progress) for variant in plan.variants}


def _prepared(plan: StudyPlan, variant: Variant, out: Path, progress: Progress) -> Path:
    settings = {
        "text": {"sources": [{"name": "corpus", "paths": [_absolute(path) for path in plan.study.corpus]}]},
        "tokenizer": {"vocab_size": plan.scale.vocab_size, **json.loads(variant or "{}")},
    }
    name = "vocabulary" if variant else "plain"
    folder = (out / "data" / f"{name}-{fingerprint(settings)[:10]}").absolute()
    if not (folder / artifacts.MANIFEST).is_file():
        run = build_values(PrepareRun, settings, place=f"{plan.study.name}: tokenizer")
        progress.say(f"preparing {folder.name}")
        prepare(run, folder, progress=progress)
    return folder


def _absolute(path: str) -> str:
    if ":" in path:  # hf:NAME, pydocs:
        return path
    if not any(sign in path for sign in "*?[") and not Path(path).exists():
        raise MissingInputError(f"corpus: {path}: no such file or folder")
    return str(Path(path).absolute())


# -------------------------------------------------------------------------------------------------------- leaks


def leaked_share(prepared: Path, out: Path) -> float:
    """The share of held-out runs of tokens that also stand in the training text; measured once and kept."""
    from remask.data.tokens import Tokens

    kept = out / "data" / f"leak-{data_fingerprint(prepared)[:10]}.json"
    if kept.is_file():
        return float(json.loads(kept.read_bytes())["share"])
    asked = np.unique(
        np.concatenate([_hashes(ids)[::LEAK_TOKENS] for ids in _sequences(Tokens.open(prepared, "heldout"))])
    )
    hit = np.zeros(len(asked), bool)
    for ids in _sequences(Tokens.open(prepared, "train")):
        present = _hashes(ids)
        place = np.searchsorted(asked, present).clip(max=max(0, len(asked) - 1))
        hit[place[asked[place] == present]] = True
    share = float(hit.mean()) if len(asked) else 0.0
    with artifacts.output_errors(kept):
        kept.parent.mkdir(parents=True, exist_ok=True)
    artifacts.write_json(kept, {"share": share, "runs": len(asked), "tokens_a_run": LEAK_TOKENS})
    return share


def _sequences(tokens: Tokens, chunk: int = 4_000_000) -> Iterable[np.ndarray]:
    """A source's ids in overlapping pieces, so that no run of tokens is missed at a seam."""
    for source in tokens.sources.values():
        for begin in range(0, max(1, len(source)), chunk):
            yield np.asarray(source.ids[begin : min(len(source), begin + chunk + LEAK_TOKENS - 1)], np.uint64)


def _hashes(ids: np.ndarray) -> np.ndarray:
    """A polynomial hash of every run of LEAK_TOKENS ids."""
    count = len(ids) - LEAK_TOKENS + 1
    if count <= 0:
        return np.zeros(0, np.uint64)
    hashes = np.zeros(count, np.uint64)
    for offset in range(LEAK_TOKENS):
        hashes = hashes * _PRIME + ids[offset : offset + count] + np.uint64(1)
    return hashes
