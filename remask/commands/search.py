"""`remask search`: the best learning rate, batch, epochs and warmup of a fine-tuning run, with optuna.

In: what `finetune` takes (a run file or options), and under `search:` the ranges. Out: OUT/best.yaml, which
`remask finetune` runs as it is; OUT/results.json and a table of all trials; OUT/trials/N (each a fine-tuning run; only
the best keeps its weights); OUT/trials.journal (optuna's JournalStorage). A trial's values are a pure function of the
seed, its number and the trials before it, so a search that was killed goes on to the same end, and more trials may be
asked for later. Not here: small exhaustive grids (finetune --grid).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import click
from pydantic import model_validator

from remask import artifacts
from remask.commands import Common, common_options
from remask.commands.finetune import check_identity, dry_run, task_options, with_recipe
from remask.commands.finetune import main as finetune
from remask.commands.finetune_part import drop_weights, open_start
from remask.commands.finetune_run import FinetuneRun
from remask.commands.finetune_seed import train_settings
from remask.config import Config, dump, setting, to_yaml
from remask.data.order import key_of
from remask.errors import GaveUpError, UnavailableError, UsageError
from remask.progress import Progress

if TYPE_CHECKING:
    import optuna

AROUND = 4.0  # without a range, learning rates from a quarter to four times the recipe's
STARTUP_TRIALS = 8  # drawn at random before the sampler has something to go by


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


class SearchRun(FinetuneRun):
    """A fine-tuning run and what may vary in it."""

    search: SearchSettings = setting(SearchSettings(), "what varies, how often, how it is chosen")

    @model_validator(mode="after")
    def _check_search(self) -> Self:
        if self.grid.given():
            raise ValueError("grid: a search has ranges instead (search.lr, search.batch, …)")
        return self


class _Pruned(Exception):
    """Below the others at the same evaluation."""


# ---------------------------------------------------------------------------------------------------- the search


def main(run: SearchRun, out: Path, *, progress: Progress, allow_change: Sequence[str] = ()) -> dict[str, Any]:
    """Trials until there are as many as asked for; then best.yaml and results.json."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("search runs in one process; give each trial's fine-tuning more ranks with finetune instead")
    optuna = _optuna()
    with artifacts.lock(out):
        identity = {"run": dump(run) | {"search": dump(run.search) | {"trials": None}}}
        check_identity(identity, SearchRun(), out, allow_change)
        artifacts.write_json(out / "run.json", {"identity": identity})
        artifacts.write_bytes(out / "run.yaml", to_yaml(run).encode())
        spaces = _spaces(run, optuna)
        study = _study(run, out, optuna)
        while (trial := _next_trial(study, spaces, run, optuna)) is not None:
            _one_trial(study, trial, run, out, progress, optuna)
            _drop_losers(study, out, optuna)
        return _results(study, run, out, optuna)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UnavailableError('search needs optuna: pip install "remask[search]"') from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _spaces(run: SearchRun, optuna: Any) -> dict[str, optuna.distributions.BaseDistribution]:
    """What varies, by its short name; what has one value only does not."""
    made, search = optuna.distributions, run.search
    rates = search.lr
    if rates is None:
        recipe = train_settings(run, open_start(run).loaded.settings.hidden_size, 1).learning_rate
        rates = (recipe / AROUND, recipe * AROUND)
    found: dict[str, Any] = {}
    if len(set(rates)) > 1:
        found["lr"] = made.FloatDistribution(rates[0], rates[1], log=True)
    for name in ("batch", "epochs"):
        if len(values := tuple(dict.fromkeys(getattr(search, name)))) > 1:
            found[name] = made.CategoricalDistribution(values)
    for name in ("warmup", "weight_decay"):
        if len(ends := sorted(set(getattr(search, name)))) > 1:
            found[name] = made.FloatDistribution(ends[0], ends[1])
    if not found:
        raise UsageError("search: nothing varies; give a range of lr, batch, epochs, warmup or weight_decay")
    return found


def _study(run: SearchRun, out: Path, optuna: Any) -> optuna.Study:
    """The journal as it is on the disk, without what a kill left of it."""
    journal = optuna.storages.journal
    path = out / "trials.journal"
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)  # ours alone: the folder is locked
    if path.is_file():
        whole = path.read_bytes()
        if not whole.endswith(b"\n"):
            artifacts.write_bytes(path, whole[: whole.rfind(b"\n") + 1])
    storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(path)))
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4) if run.search.prune else optuna.pruners.NopPruner()
    return optuna.create_study(
        storage=storage, study_name="remask", direction="maximize", pruner=pruner, load_if_exists=True
    )


def _next_trial(study: optuna.Study, spaces: Mapping[str, Any], run: SearchRun, optuna: Any) -> optuna.Trial | None:
    """The trial that a kill cut short, or a new one; None where there are enough."""
    states = optuna.trial.TrialState
    open_ones = study.get_trials(states=(states.RUNNING,))
    if open_ones:
        trial = optuna.Trial(study, open_ones[0]._trial_id)
    else:
        if not study.get_trials(states=(states.WAITING,)):
            if len(study.trials) >= run.search.trials:
                return None
            # Stored with all its values in one line of the journal: from here on a kill changes nothing.
            study.enqueue_trial(_proposed(study, spaces, run, optuna))
        trial = study.ask()
    for name, space in spaces.items():
        if isinstance(space, optuna.distributions.CategoricalDistribution):
            trial.suggest_categorical(name, space.choices)
        else:
            trial.suggest_float(name, space.low, space.high, log=space.log)
    return trial


def _proposed(study: optuna.Study, spaces: Mapping[str, Any], run: SearchRun, optuna: Any) -> dict[str, Any]:
    """The next values, from a sampler that knows the finished trials and has a seed of its own: no state to keep."""
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


def tuned_run(run: SearchRun, params: Mapping[str, Any]) -> FinetuneRun:
    """The fine-tuning run of a trial: its values, and the only value of what does not vary."""
    search = run.search
    single = {name: getattr(search, name) for name in ("lr", "batch", "epochs", "warmup", "weight_decay")}
    fixed = {name: values[0] for name, values in single.items() if values and len(set(values)) == 1}
    return run.with_values({**fixed, **params})


def _one_trial(
    study: optuna.Study, trial: optuna.Trial, run: SearchRun, out: Path, progress: Progress, optuna: Any
) -> None:
    states = optuna.trial.TrialState
    shown = ", ".join(f"{name} {value:.3g}" for name, value in trial.params.items())
    progress.say(f"trial {trial.number}: {shown}")
    told = set(study.trials[trial.number].intermediate_values)

    def report(number: int, score: float) -> None:
        if number not in told:
            trial.report(score, number)
        if trial.should_prune():
            raise _Pruned

    try:
        found = finetune(tuned_run(run, trial.params), _folder(out, trial.number), progress=progress, report=report)
    except _Pruned:
        progress.say(f"  below the median of the others: trial {trial.number} ends")
        study.tell(trial, state=states.PRUNED)
    except GaveUpError as error:
        progress.warn(f"trial {trial.number} diverged: {error}")
        study.tell(trial, state=states.FAIL)
    else:
        study.tell(trial, found["score"])


def _drop_losers(study: optuna.Study, out: Path, optuna: Any) -> None:
    """Only the best trial so far keeps its weights."""
    best = _best(study, optuna)
    for trial in study.trials:
        if best is None or trial.number != best.number:
            drop_weights(_folder(out, trial.number))


def _best(study: optuna.Study, optuna: Any) -> optuna.trial.FrozenTrial | None:
    """The first of those with the highest score."""
    done = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    return max(done, key=lambda trial: (trial.value, -trial.number), default=None)


# ------------------------------------------------------------------------------------------------------- results


def _results(study: optuna.Study, run: SearchRun, out: Path, optuna: Any) -> dict[str, Any]:
    best = _best(study, optuna)
    if best is None:
        raise GaveUpError(f"{out}: no trial came to its end; lower learning rates (search.lr) may help")
    chosen = tuned_run(run, best.params)
    file = out / "best.yaml"
    header = f"# remask finetune {file} --out DIR\n# The best of {len(study.trials)} trials: score {best.value:.4f}.\n"
    artifacts.write_bytes(file, (header + to_yaml(chosen)).encode())
    found = json.loads((_folder(out, best.number) / "results.json").read_bytes())
    values = {
        "metrics": found["metrics"],
        "metric": found.get("metric", "mean"),
        "score": best.value,
        "best": {"trial": best.number, **best.params},
        "best_file": str(file),
        "model": found["model"],
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


def render(values: Mapping[str, Any]) -> str:
    """The table of trials, best first, and how to go on."""
    rows = sorted(values["trials"], key=lambda row: (row["score"] is None, -(row["score"] or 0), row["trial"]))
    names = [name for name in rows[0] if name not in ("trial", "state", "score", "seconds")]
    lines = ["  ".join([f"{'trial':>5}", f"{values['metric']:>10}", *(f"{name:>12}" for name in names), "state"])]
    for row in rows:
        score = f"{row['score']:>10.4f}" if row["score"] is not None else f"{'-':>10}"
        given = [f"{row[name]:>12.4g}" for name in names]
        lines.append("  ".join([f"{row['trial']:>5}", score, *given, row["state"]]))
    return "\n".join([*lines, f"best: remask finetune {values['best_file']} --out DIR", f"model: {values['model']}"])


@click.command()
@task_options
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for trials and the best run file.")
@click.option("--trials", "search__trials", type=int, help="Fine-tuning runs in all; more may be asked for later.")
@click.option("--prune", "search__prune", is_flag=True, default=None, help="End trials that fall behind.")
@common_options
def command(common: Common, file: Path | None, out: Path, **options: Any) -> None:
    """Search the recipe of a fine-tuning run: learning rate, batch, epochs, warmup.

    remask search --task classify --init MODEL --train my.csv --text body --label topic --trials 20 --out DIR
    """
    started = time.monotonic()
    built = with_recipe(common, file, options["task"]).build(SearchRun, file, **options)
    common.show_differences(built)
    if not built.run.init:
        raise UsageError("--init MODEL is needed")
    if common.dry_run:
        dry_run(built.run, common.progress)
        return
    values = main(built.run, out, progress=common.progress, allow_change=common.allow_change)
    common.result({**values, "seconds": round(time.monotonic() - started, 1)}, render(values))
