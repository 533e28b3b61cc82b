"""`remask tune`: the best learning rate, batch, epochs and warmup of a fine-tuning run, with optuna.

In: what `finetune` takes (a run file or options), and under `search:` the ranges. Out: OUT/best.yaml, which
`remask finetune` runs as it is; OUT/results.json and a table of all trials; OUT/trials/N (each a fine-tuning run; only
the best keeps its weights); OUT/trials.journal (optuna's JournalStorage). A trial's values are a pure function of the
seed, its number and the trials before it, so a search that was killed goes on to the same end, and more trials may be
asked for later. Not here: small exhaustive grids (finetune --grid).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from remask import artifacts
from remask.config import dump, to_yaml
from remask.data.order import key_of
from remask.errors import GaveUpError, UsageError, needs_extra
from remask.progress import Progress
from remask.schema import Json, Values
from remask.tune.finetune import finetune
from remask.tune.part import drop_weights, open_start
from remask.tune.seed import Report, train_settings
from remask.tune.seeds import check_identity
from remask.tune.settings import TUNED, FinetuneRun, TuneRun
from remask.tune.sweep import Outcome, Trial, sweep

if TYPE_CHECKING:
    import optuna

AROUND = 4.0  # without a range, learning rates from a quarter to four times the recipe's
STARTUP_TRIALS = 8  # drawn at random before the sampler has something to go by


class _Pruned(Exception):
    """Below the others at the same evaluation."""


# ---------------------------------------------------------------------------------------------------- the search


def search(run: TuneRun, out: Path, *, progress: Progress, allow_change: Sequence[str] = ()) -> Json:
    """Trials until there are as many as asked for; then best.yaml and results.json."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("tune runs in one process; give each trial's fine-tuning more ranks with finetune instead")
    with needs_extra("tune", "tune needs optuna"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with artifacts.lock(out):
        identity = {"run": dump(run) | {"search": dump(run.search) | {"trials": None}}}
        check_identity(identity, TuneRun(), out, allow_change)
        artifacts.write_json(out / "run.json", {"identity": identity})
        # Only what was given: a value that stands in the file would be kept, and not searched, when it is run again.
        given = yaml.safe_dump(run.model_dump(mode="json", exclude_unset=True), sort_keys=False, allow_unicode=True)
        artifacts.write_bytes(out / "run.yaml", given.encode())
        study = _study(run, out)
        trials = _proposals(study, _spaces(run), run, out, progress)
        sweep(finetune, _fixed(run), trials, progress=progress, may_fail=(_Pruned, GaveUpError))
        return _results(study, run, out)


def _spaces(run: TuneRun) -> dict[str, optuna.distributions.BaseDistribution]:
    """What varies, by its short name: neither what has one value only nor what the user gave a value of its own."""
    import optuna

    made, ranges = optuna.distributions, run.search
    rates = ranges.lr
    if rates is None:
        recipe = train_settings(run, open_start(run).loaded.settings.hidden_size, 1).learning_rate
        rates = (recipe / AROUND, recipe * AROUND)
    spaces: Json = {}
    if len(set(rates)) > 1:
        spaces["lr"] = made.FloatDistribution(rates[0], rates[1], log=True)
    for name in ("batch", "epochs"):
        if len(values := tuple(dict.fromkeys(getattr(ranges, name)))) > 1:
            spaces[name] = made.CategoricalDistribution(values)
    for name in ("warmup", "weight_decay"):
        if len(ends := sorted(set(getattr(ranges, name)))) > 1:
            spaces[name] = made.FloatDistribution(ends[0], ends[1])
    spaces = {name: space for name, space in spaces.items() if name not in run.given()}
    if not spaces:
        raise UsageError("search: nothing varies; give a range of lr, batch, epochs, warmup or weight_decay")
    return spaces


def _study(run: TuneRun, out: Path) -> optuna.Study:
    """The journal as it is on the disk, without what a kill left of it."""
    import optuna

    path = out / "trials.journal"
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)  # ours alone: the folder is locked
    if path.is_file():
        whole = path.read_bytes()
        if not whole.endswith(b"\n"):
            artifacts.write_bytes(path, whole[: whole.rfind(b"\n") + 1])
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4) if run.search.prune else optuna.pruners.NopPruner()
    return optuna.create_study(
        storage=storage, study_name="remask", direction="maximize", pruner=pruner, load_if_exists=True
    )


def _next_trial(study: optuna.Study, spaces: Values, run: TuneRun) -> optuna.Trial | None:
    """The trial that a kill cut short, or a new one; None where there are enough."""
    import optuna

    states = optuna.trial.TrialState
    open_ones = study.get_trials(states=(states.RUNNING,))
    if open_ones:
        trial = optuna.Trial(study, open_ones[0]._trial_id)
    else:
        if not study.get_trials(states=(states.WAITING,)):
            if len(study.trials) >= run.search.trials:
                return None
            # Stored with all its values in one line of the journal: from here on a kill changes nothing.
            study.enqueue_trial(_proposed(study, spaces, run))
        trial = study.ask()
    for name, space in spaces.items():
        if isinstance(space, optuna.distributions.CategoricalDistribution):
            trial.suggest_categorical(name, space.choices)
        else:
            trial.suggest_float(name, space.low, space.high, log=space.log)
    return trial


def _proposed(study: optuna.Study, spaces: Values, run: TuneRun) -> Json:
    """The next values, from a sampler that knows the finished trials and has a seed of its own: no state to keep."""
    import optuna

    seed = key_of("search", run.seed, len(study.trials)) & 0x7FFF_FFFF
    if run.search.sampler == "random":
        sampler = optuna.samplers.RandomSampler(seed=seed)
    else:
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
    aside = optuna.create_study(direction="maximize", sampler=sampler)
    aside.add_trials(study.trials)
    return aside.ask(fixed_distributions=dict(spaces)).params


def _folder(out: Path, number: int) -> Path:
    return out / "trials" / str(number)


def _fixed(run: TuneRun) -> FinetuneRun:
    """The fine-tuning run with the only value of what has a range of one."""
    values = {name: getattr(run.search, name) for name in TUNED if name not in run.given()}
    return run.with_values({name: ends[0] for name, ends in values.items() if ends and len(set(ends)) == 1})


def _proposals(study: optuna.Study, spaces: Values, run: TuneRun, out: Path, progress: Progress) -> Iterator[Trial]:
    """Trials one after the other; optuna hears how each ended before it proposes the next."""
    while (trial := _next_trial(study, spaces, run)) is not None:
        ended = partial(_tell, study, trial, progress)
        yield Trial(trial.params, _folder(out, trial.number), _reporter(study, trial), ended)
        _drop_losers(study, out)


def _tell(study: optuna.Study, trial: optuna.Trial, progress: Progress, outcome: Outcome) -> None:
    """Optuna hears how a trial ended."""
    from optuna.trial import TrialState

    if isinstance(outcome, _Pruned):
        progress.say(f"  below the median of the others: trial {trial.number} ends")
        study.tell(trial, state=TrialState.PRUNED)
    elif isinstance(outcome, Exception):
        progress.warn(f"trial {trial.number} diverged: {outcome}")
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, outcome["score"])


def _reporter(study: optuna.Study, trial: optuna.Trial) -> Report:
    """Tells optuna every score of a trial; a trial that falls behind ends there."""
    told = set(study.trials[trial.number].intermediate_values)

    def report(number: int, score: float) -> None:
        if number not in told:
            trial.report(score, number)
        if trial.should_prune():
            raise _Pruned

    return report


def _drop_losers(study: optuna.Study, out: Path) -> None:
    """Only the best trial so far keeps its weights."""
    best = _best(study)
    for trial in study.trials:
        if best is None or trial.number != best.number:
            drop_weights(_folder(out, trial.number))


def _best(study: optuna.Study) -> optuna.trial.FrozenTrial | None:
    """The first of those with the highest score."""
    from optuna.trial import TrialState

    done = study.get_trials(states=(TrialState.COMPLETE,))
    return max(done, key=lambda trial: (trial.value, -trial.number), default=None)


# ------------------------------------------------------------------------------------------------------- results


def _results(study: optuna.Study, run: TuneRun, out: Path) -> Json:
    best = _best(study)
    if best is None:
        raise GaveUpError(f"{out}: no trial came to its end; lower learning rates (search.lr) may help")
    chosen = _fixed(run).with_values(best.params)
    file = out / "best.yaml"
    header = f"# remask finetune {file} --out DIR\n# The best of {len(study.trials)} trials: score {best.value:.4f}.\n"
    artifacts.write_bytes(file, (header + to_yaml(chosen)).encode())
    results = json.loads((_folder(out, best.number) / "results.json").read_bytes())
    values = {
        "metrics": results["metrics"],
        "metric": results.get("metric", "mean"),
        "score": best.value,
        "best": {"trial": best.number, **best.params},
        "best_file": str(file),
        "model": results["model"],
        "trials": [
            {
                "trial": trial.number,
                "state": trial.state.name.lower(),
                **trial.params,
                "score": trial.value,
                "seconds": round(trial.duration.total_seconds(), 1) if trial.duration else None,
            }
            for trial in study.trials
        ],
    }
    artifacts.write_json(out / "results.json", values)
    return values


def render(values: Values) -> str:
    """The table of trials, best first, and how to go on."""
    rows = sorted(values["trials"], key=lambda row: (row["score"] is None, -(row["score"] or 0), row["trial"]))
    names = [name for name in rows[0] if name not in ("trial", "state", "score", "seconds")]
    lines = ["  ".join([f"{'trial':>5}", f"{values['metric']:>10}", *(f"{name:>12}" for name in names), "state"])]
    for row in rows:
        score = f"{row['score']:>10.4f}" if row["score"] is not None else f"{'-':>10}"
        given = [f"{row[name]:>12.4g}" for name in names]
        lines.append("  ".join([f"{row['trial']:>5}", score, *given, row["state"]]))
    return "\n".join([*lines, f"best: remask finetune {values['best_file']} --out DIR", f"model: {values['model']}"])
