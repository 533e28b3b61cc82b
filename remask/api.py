"""remask from Python: a function for every verb that makes something. The verbs call these functions.

In: a run (a frozen object or the path of its YAML file) or its most used settings as keywords, any other setting by its
dotted name in `settings`, and `out`, where results go. Out: what the verb prints with `--json`, as a dict. The same
call with the same `out` goes on after a stop. Mistakes are exceptions of `remask.errors`. Nothing heavy is imported
before a function is called. Not here: how any of it works.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from remask.config import Config, build_run, find_run, is_run
from remask.errors import UsageError
from remask.progress import Progress

if TYPE_CHECKING:
    from remask.adaptation.settings import AdaptRun
    from remask.answer.encode import EncodeRun
    from remask.answer.predict import PredictRun
    from remask.evaluation.settings import EvaluateRun
    from remask.exports.settings import ExportRun
    from remask.finding.settings import IndexRun, SearchRun
    from remask.monitoring.settings import MonitorRun
    from remask.preparation.settings import PrepareRun
    from remask.pretraining.settings import PretrainRun
    from remask.studies.settings import StudyRun
    from remask.tune.settings import FinetuneRun, TuneRun

StrPath = str | os.PathLike[str]
Settings = Mapping[str, object]  # dotted names of a run's settings, as --set takes them: {"train.epochs": 3}
RunT = TypeVar("RunT", bound=Config)


def _run(
    model: type[RunT],
    verb: str | None,
    run: RunT | StrPath | None,
    keywords: Mapping[str, object],
    settings: Settings | None,
    assignments: Sequence[str] = (),
) -> RunT:
    """The frozen run: as given, or from a run file (for `verb` also by name) with keywords and settings over it."""
    given = {key: _plain(value) for key, value in keywords.items() if value is not None}
    if isinstance(run, Config):
        if given or settings or assignments:
            raise UsageError(
                f"{', '.join([*given, *(settings or {}), *assignments])}: a finished run is given, which has its own"
            )
        return run
    file = None if run is None else Path(run) if verb is None else find_run(verb, run)
    both = given | {key: _plain(value) for key, value in (settings or {}).items()}
    return build_run(model, file, assignments, both).run


def _plain(value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _prompt(pattern: str | Sequence[str] | None, words: Mapping[str, Sequence[str]] | None) -> dict[str, object]:
    """A prompt's keywords as settings."""
    patterns = [pattern] if isinstance(pattern, str) else pattern
    return {"prompt.patterns": patterns, "prompt.words": words and {label: list(said) for label, said in words.items()}}


# ---------------------------------------------------------------------------------------------- pretraining


def prepare(
    run: PrepareRun | StrPath | Sequence[StrPath] | None = None,
    *,
    out: StrPath,
    vocab_size: int | None = None,
    tokenizer: StrPath | None = None,
    workers: int | None = None,
    settings: Settings | None = None,
    allow_change: Sequence[str] = (),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Turn raw files into documents, a vocabulary and token shards.

    `run`: texts (files, folders or globs; one or a list), or a run file (.yaml). `vocab_size`: the entries of the
    vocabulary that is trained; or `tokenizer`: one that exists. The result counts documents, sentences, tokens, bytes.

    >>> remask.prepare("texts/", vocab_size=16384, out="prepared")["tokens"]          # doctest: +SKIP
    """
    from remask.preparation.prepare import prepare as make
    from remask.preparation.settings import PrepareRun

    if vocab_size is not None and tokenizer is not None:
        raise UsageError("vocab_size trains a vocabulary and tokenizer brings one: give one of them")
    keywords: dict[str, object] = {
        "tokenizer.vocab_size": vocab_size, "tokenizer.path": tokenizer, "workers": workers
    }  # fmt: skip
    if run is not None and not isinstance(run, Config):
        texts = [run] if isinstance(run, (str, os.PathLike)) else list(run)
        if len(texts) != 1 or not is_run("prepare", texts[0]):
            keywords["text.sources"], run = [{"name": "corpus", "paths": _plain(texts)}], None
        else:
            run = find_run("prepare", texts[0])
    built = _run(PrepareRun, "prepare", run, keywords, settings)
    return make(built, Path(out), progress=progress or Progress(), allow_change=allow_change)


def pretrain(
    run: PretrainRun | StrPath | None = None,
    *,
    out: StrPath,
    data: StrPath | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    init_from: StrPath | None = None,
    settings: Settings | None = None,
    allow_change: Sequence[str] = (),
    dry_run: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train an encoder on prepared data.

    `run`: a run file, or the name of one that comes with remask ("wiki_small", "roberta_base"): the network and the
    recipe. `data`: what `prepare` made. `minutes` or `steps`: how long, in place of the run file's own. `init_from`: a
    model to start from. `dry_run`: check everything, train nothing.

    The result has the held-out `loss`, `perplexity`, `accuracy`, `bits_per_byte` and `bits_per_character`; `out` is a
    model for `load`, `finetune` and all others.

    >>> remask.pretrain("wiki_small", data="prepared", minutes=60, out="encoder")["bits_per_byte"]  # doctest: +SKIP
    """
    from remask.pretraining.run import pretrain as train
    from remask.pretraining.settings import PretrainRun, budget_alone

    keywords = {"prepared": data, "init_from": init_from}
    built = _run(PretrainRun, "pretrain", run, keywords, settings, budget_alone(minutes, steps))
    return train(built, Path(out), progress=progress or Progress(), allow_change=allow_change, dry_run=dry_run)


def adapt(
    run: AdaptRun | StrPath | None = None,
    *,
    out: StrPath,
    model: StrPath | None = None,
    text: Sequence[StrPath] | None = None,
    general: Sequence[StrPath] | None = None,
    validation: StrPath | None = None,
    vocabulary: str | None = None,
    tokens: int | None = None,
    learn: str | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    settings: Settings | None = None,
    allow_change: Sequence[str] = (),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Go on with a trained model on text of your own; measured before the first step and at the end.

    `text`: files, folders or globs. `general`: text mixed in against forgetting. `validation`: a text to measure on
    in place of a part of `text`. `vocabulary`: "keep", "extend" (by `tokens` more) or "replace" (by `tokens` entries).
    `learn`: "all" or "lora" (the top layers: settings={"train.trainable_top_layers": 2}). A labelled file to fine-tune
    on before and after: settings such as `{"task.task": "classify", "task.train_file": "my.csv", "task.seeds": 3}`.

    The result has `before`, `after` (held-out loss, bits per byte, fill-mask answers), `task` with its verdict, and
    `model`, the folder of the adapted model.

    >>> result = remask.adapt(model="encoder", text=["tickets/"], out="mine", minutes=20)       # doctest: +SKIP
    >>> result["before"]["heldout"]["loss"], result["after"]["heldout"]["loss"]                 # doctest: +SKIP
    """
    from remask.adaptation.run import adapt as continue_on
    from remask.adaptation.settings import AdaptRun

    keywords = {
        "model": model, "corpus.paths": text, "general.paths": general, "validation": validation,
        "vocabulary": vocabulary, "tokens": tokens, "learn": learn, "train.minutes": minutes, "train.steps": steps,
    }  # fmt: skip
    built = _run(AdaptRun, None, run, keywords, settings)
    return continue_on(built, Path(out), progress=progress or Progress(), allow_change=allow_change)


# ---------------------------------------------------------------------------------------------------- tasks


def finetune(
    run: FinetuneRun | StrPath | None = None,
    *,
    out: StrPath,
    task: str | None = None,
    init: StrPath | None = None,
    train: StrPath | None = None,
    dev: StrPath | None = None,
    data: StrPath | None = None,
    text: str | None = None,
    text2: str | None = None,
    label: str | None = None,
    source: str | None = None,
    target: str | None = None,
    target_tokenizer: StrPath | None = None,
    pattern: str | Sequence[str] | None = None,
    words: Mapping[str, Sequence[str]] | None = None,
    seeds: int | None = None,
    epochs: float | None = None,
    learn: str | None = None,
    query: str | None = None,
    positive: str | None = None,
    negative: str | None = None,
    unsupervised: StrPath | None = None,
    distil: StrPath | None = None,
    settings: Settings | None = None,
    allow_change: Sequence[str] = (),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Teach a pretrained model a task of your own or of the papers.

    `task`: classify, regress, multilabel, pair, ner, qa, choice, prompt, retrieve, write, translate, summarise, reply,
    or a named one such as "glue:sst2". `init`: the model to start from. `train`, `dev`: labelled files; without `dev` a
    fifth of `train` is set aside. `text`, `text2`, `label`: columns. `data`: the folder of a named task's files,
    instead of `train` and `dev`. `pattern`, `words`: for a prompt, see `Model.prompt`. Of a task that writes: `source`,
    `target` are columns, `target_tokenizer` the targets' own vocabulary. Of task retrieve: `query`, `positive`,
    `negative` are columns, `unsupervised` is text to make pairs from in place of `train`, and `distil` a cross-encoder
    to learn from.

    The result has `metrics`, `spread` over the seeds, `notes`, and `model`, the folder of the best seed's model.

    >>> result = remask.finetune(task="classify", init="encoder", train="train.csv", text="body", label="topic",
    ...                          out="topics", settings={"train.epochs": 3})          # doctest: +SKIP
    >>> remask.load(result["model"]).classify(["Oil rose."])                          # doctest: +SKIP
    """
    from remask.tune.finetune import finetune as tune
    from remask.tune.settings import FinetuneRun, recipe_of

    keywords = {
        "task": task, "init": init, "train_file": train, "dev_file": dev, "data": data, "table.text": text,
        "table.text2": text2, "table.label": label, "seeds": seeds, "train.epochs": epochs, "learn": learn,
        "table.source": source, "table.target": target, "target_tokenizer": target_tokenizer,
        "table.query": query, "table.positive": positive, "table.negative": negative,
        "retrieve.unsupervised": unsupervised, "retrieve.distil": distil,
        **_prompt(pattern, words),
    }  # fmt: skip
    recipe = recipe_of(task) if run is None else ()
    built = _run(FinetuneRun, "finetune", run, keywords, settings, recipe)
    return tune(built, Path(out), progress=progress or Progress(), allow_change=allow_change)


def tune_recipe(
    run: TuneRun | StrPath | None = None,
    *,
    out: StrPath,
    task: str | None = None,
    init: StrPath | None = None,
    train: StrPath | None = None,
    dev: StrPath | None = None,
    data: StrPath | None = None,
    text: str | None = None,
    text2: str | None = None,
    label: str | None = None,
    trials: int | None = None,
    settings: Settings | None = None,
    allow_change: Sequence[str] = (),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Search the recipe of a fine-tuning (learning rate, batch, epochs, warmup) with optuna.

    Takes what `finetune` takes; `trials`: fine-tuning runs in all. The result names the best trial, its model and
    `best_file`, a run file that `finetune` takes as it is.
    """
    from remask.tune.search import search as find
    from remask.tune.settings import TUNED, TuneRun, recipe_of

    keywords = {
        "task": task, "init": init, "train_file": train, "dev_file": dev, "data": data, "table.text": text,
        "table.text2": text2, "table.label": label, "search.trials": trials,
    }  # fmt: skip
    # What a search varies is not taken from a named task's recipe: a value that is given is not searched.
    recipe = recipe_of(task, [".".join(place) for place in TUNED.values()]) if run is None else ()
    built = _run(TuneRun, "tune", run, keywords, settings, recipe)
    return find(built, Path(out), progress=progress or Progress(), allow_change=allow_change)


def evaluate(
    run: EvaluateRun | StrPath | None = None,
    *,
    out: StrPath | None = None,
    model: StrPath | None = None,
    tasks: Sequence[str] | None = None,
    data: StrPath | None = None,
    test: StrPath | None = None,
    seeds: int | None = None,
    minutes: float | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Score a model on tasks of the papers, or a fine-tuned one on a labelled file (`test`).

    `tasks`: "glue", a named task of `finetune`, "blimp", "claims", "perplexity"; `data`: the folder with their files.
    Where the model has no head for a task, it is fine-tuned first, in `out` or the user's cache.

    >>> remask.evaluate(model="topics", test="held-out.csv")["metrics"]["accuracy"]   # doctest: +SKIP
    """
    from remask.evaluation.evaluate import evaluate as score
    from remask.evaluation.settings import EvaluateRun

    keywords = {"model": model, "tasks": tasks, "data": data, "test": test, "seeds": seeds, "minutes": minutes}
    built = _run(EvaluateRun, "evaluate", run, keywords, settings)
    return score(built, None if out is None else Path(out), progress=progress or Progress())


# -------------------------------------------------------------------------------------------------- answers


def predict(
    run: PredictRun | StrPath | None = None,
    *,
    out: StrPath,
    model: StrPath | None = None,
    file: StrPath | None = None,
    text: str | None = None,
    text2: str | None = None,
    pattern: str | Sequence[str] | None = None,
    words: Mapping[str, Sequence[str]] | None = None,
    scores: bool | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Answer every row of a file with a fine-tuned model; `out` has the same rows with the answers beside them.

    `pattern` and `words` ask a model that fills masks instead, without fine-tuning (see `Model.prompt`).
    For texts that are in memory use `remask.load(model)`. The result counts `rows`, `bad` (set aside) and `cut`.
    """
    from remask.answer.predict import PredictRun
    from remask.answer.predict import main as answer

    keywords = {"model": model, "file": file, "text": text, "text2": text2, "scores": scores, **_prompt(pattern, words)}
    return answer(_run(PredictRun, None, run, keywords, settings), Path(out), progress=progress or Progress())


def encode(
    run: EncodeRun | StrPath | None = None,
    *,
    out: StrPath,
    model: StrPath | None = None,
    file: StrPath | None = None,
    pooled: bool | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Token ids and last hidden states of every text of a file, or with `pooled` one vector a text.

    For texts that are in memory use `remask.load(model).encode(texts)` or `.embed(texts)`.
    """
    from remask.answer.encode import EncodeRun
    from remask.answer.encode import main as write

    keywords = {"model": model, "file": file, "pooled": pooled}
    return write(_run(EncodeRun, None, run, keywords, settings), Path(out), progress=progress or Progress())


def export(
    run: ExportRun | StrPath | None = None,
    *,
    out: StrPath,
    model: StrPath | None = None,
    to: str | None = None,
    embedding: bool | None = None,
    settings: Settings | None = None,
) -> dict[str, Any]:
    """Write a model for others: `to` "hf" (transformers), "onnx" (an fp32 graph) or "int8".

    What misses its bound (a graph that answers otherwise, an int8 that loses too much) is refused: nothing is written.
    """
    from remask.exports.export import export as write
    from remask.exports.settings import ExportRun

    return write(_run(ExportRun, None, run, {"model": model, "to": to, "embedding": embedding}, settings), Path(out))


# -------------------------------------------------------------------------------------------------- finding


def index(
    run: IndexRun | StrPath | None = None,
    *,
    out: StrPath,
    model: StrPath | None = None,
    docs: Sequence[StrPath] | None = None,
    text: Sequence[str] | None = None,
    id: str | None = None,
    fields: Sequence[str] | None = None,
    to: str | None = None,
    add: bool = False,
    remove: Sequence[str] = (),
    workers: int | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Cut documents into passages, encode them with a model and index them in the folder `out`.

    `docs`: files, folders or globs, as `prepare` takes them. Of tables, `text`: the columns with the text; `id`;
    `fields` that are kept. `add`: to the index that is there. `remove`: ids of documents to take out of it (nothing
    else is given then). `to`: also to "postgres://…", or "parquet". The result counts documents and passages.

    >>> remask.index(model="encoder", docs=["manuals/"], out="manuals.index")["passages"]     # doctest: +SKIP
    """
    from remask.finding.build import index as make
    from remask.finding.settings import IndexRun

    keywords = {
        "model": model, "docs.paths": docs, "docs.text_columns": text, "id": id, "fields": fields, "to": to,
        "workers": workers,
    }  # fmt: skip
    built = _run(IndexRun, None, run, keywords, settings)
    return make(built, Path(out), add=add, remove=remove, progress=progress or Progress())


def search(
    index: SearchRun | StrPath,
    query: str | None = None,
    *,
    queries: StrPath | None = None,
    qrels: StrPath | None = None,
    by: str | None = None,
    top: int | None = None,
    rerank: StrPath | None = None,
    out: StrPath | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Search an index (a folder, or postgres://…) for a query, or score it on a file of queries.

    `by`: "vectors", "words" (BM25) or "both" (fused). `rerank`: a model of pairs that puts the best in a new order.
    With `qrels`, the documents that are right for each of the `queries`, the result has `metrics` of every way with
    intervals; `out` gets TREC run files and a page.

    >>> remask.search("manuals.index", "how do I reset it?")["hits"][0]["text"]               # doctest: +SKIP
    """
    from remask.finding.search import search as find
    from remask.finding.settings import SearchRun

    keywords = {"query": query, "queries": queries, "qrels": qrels, "by": by, "top": top, "rerank": rerank}
    if not isinstance(index, Config):
        keywords["index"] = os.fspath(index)
    built = _run(SearchRun, None, index if isinstance(index, Config) else None, keywords, settings)
    return find(built, None if out is None else Path(out), progress=progress or Progress())


# --------------------------------------------------------------------------------------------------- studies


def study(
    run: StudyRun | StrPath,
    *,
    out: StrPath,
    corpus: Sequence[StrPath] | None = None,
    data: StrPath | None = None,
    tasks: StrPath | None = None,
    scale: str | None = None,
    seeds: int | None = None,
    settings: Settings | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train, fine-tune and measure every row of a table with several seeds; `out` gets a page and a JSON.

    `run`: a table of the papers by its name ("table1", …), or the file of a study of your own. `corpus` (text) or
    `data` (prepared); `tasks`: the folder with the tasks' files. `dry_run`: only how long it will take here. The same
    call goes on after a stop, and finished runs are never done again.

    >>> remask.study("table1", data="prepared", tasks="tasks", scale="tiny", out="study")   # doctest: +SKIP
    """
    from remask.studies.runner import estimate
    from remask.studies.runner import study as do
    from remask.studies.settings import StudyRun, definition_file

    given = run if isinstance(run, StudyRun) else definition_file(os.fspath(run))
    keywords = {"corpus": corpus, "prepared": data, "tasks": tasks, "scale": scale, "seeds": seeds}
    built = _run(StudyRun, None, given, keywords, settings)
    if not built.name:
        name = Path(given).stem if isinstance(given, Path) else "study"
        built = built.model_copy(update={"name": name})
    work = estimate if dry_run else do
    return work(built, Path(out), progress=progress or Progress())


def monitor(
    run: MonitorRun | StrPath | None = None,
    *,
    out: StrPath,
    model: StrPath | None = None,
    input: StrPath | None = None,
    time: str | None = None,
    text: str | None = None,
    group: str | None = None,
    window: str | None = None,
    settings: Settings | None = None,
    on_event: Callable[[Mapping[str, Any]], None] = lambda event: None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Watch texts over time: shares of the model's classes by window and group, and an alarm where one shifts.

    `input`: a table, or "-" for stdin. `time`, `text`, `group`: columns. `window`: "15m", "1h", "1d". Others by name:
    `{"alarm.shift": 0.05, "alarm.rhythm": "daily", "zone": "Europe/Berlin", "follow": True}`. `on_event` gets every
    closed window and every alarm, once. The same call with the same `out` goes on after a stop or a kill.

    >>> remask.monitor(model="opinion", input="tweets.csv", time="created", group="airline", window="3h",
    ...                out="watch")["alarms"]                                         # doctest: +SKIP
    """
    from remask.monitoring.run import monitor as watch
    from remask.monitoring.settings import MonitorRun

    keywords = {"model": model, "input": input, "time": time, "text": text, "group": group, "window": window}
    built = _run(MonitorRun, None, run, keywords, settings)
    return watch(built, Path(out), progress=progress or Progress(), on_event=on_event)
