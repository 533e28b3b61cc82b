"""What the reports say: a training run, several runs side by side, and the quickstart's whole way.

In: run folders as reports/runs reads them, and the quickstart's plain facts. Out: one HTML text each. The numbers are
those of the files; nothing is computed here beyond picking and rounding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from remask.config import differences, value_at
from remask.reports.charts import Bar, Rule, Series, bar_chart, line_chart
from remask.reports.page import Fill, Page, Tile
from remask.reports.runs import RunFolder
from remask.schema import Values


def training_report(run: RunFolder, unigram_nats: float | None = None) -> str:
    """Curves, last values, config and machine of one run."""
    page = Page(f"Training run {run.folder.name}", _headline(run))
    _loss_curve(page, run, unigram_nats)
    _samples(page, run)
    page.playground(str(run.folder))
    page.heading("Last values")
    page.tiles(_training_tiles(run))
    _other_curves(page, run)
    _setting(page, run)
    return page.html()


def comparison_report(runs: Sequence[RunFolder], word_bits: Sequence[float | None] | None = None) -> str:
    """Curves of several runs in one chart, what to mind when they are compared, and only what differs between their
    configs. `word_bits`: bits per byte of whole words, where somebody measured them."""
    names = short_names(runs)
    word_bits = word_bits or [None] * len(runs)
    page = Page("Runs side by side", ", ".join(names))
    for caution in cautions(runs, names):
        page.text(caution)
    curves = {"held-out loss": [run.curve("eval/loss") for run in runs]}
    curves["training loss"] = [run.curve(run.masked_loss_key) for run in runs]
    for title, points in curves.items():
        if any(points):
            page.heading(title)
            series = [Series(name, line) for name, line in zip(names, points, strict=True)]
            caption = f"{title}, nats per masked token, against the step"
            page.figure(line_chart(series, x_name="step", y_name=title), caption)
    page.heading("Last values")
    values = [compared_values(run) | {"word_bits_per_byte": bits} for run, bits in zip(runs, word_bits, strict=True)]
    keys = shown_keys(values)
    rows = [[name, *(_value(value[key]) for key in keys)] for name, value in zip(names, values, strict=True)]
    page.table(["run", *(COMPARED_VALUES[key] for key in keys)], rows)
    page.heading("What differs")
    changed = dict.fromkeys(key for run in runs[1:] for key, _, _ in differences(runs[0].config, run.config))
    if changed:
        rows = [[key, *(json.dumps(value_at(run.config, key)) for run in runs)] for key in changed]
        page.table(["setting", *names], rows)
    else:
        page.text("The runs have the same settings.")
    return page.html()


def quickstart_report(summary: Values, run: RunFolder) -> str:
    """The whole way: corpus, curves against the unigram line, fill-mask answers, pretrained against scratch."""
    evaluation, corpus, task = summary["evaluation"], summary["corpus"], summary.get("task")
    page = Page("Your encoder", f"{corpus['name']} · {summary['date']} · {summary['machine']}")
    tiles = [
        Tile(
            f"{evaluation['loss']:.2f}",
            f"held-out loss (nats); word frequencies alone give {corpus['unigram_nats']:.2f}",
        ),
        Tile(f"{evaluation['perplexity']:.1f}", "held-out perplexity of masked tokens"),
        Tile(f"{evaluation['bits_per_byte']:.2f}", "bits per byte of masked text"),
    ]
    if task:
        tiles.append(
            Tile(f"{task['pretrained']['median']:.1%}", f"accuracy; from scratch {task['scratch']['median']:.1%}")
        )
    page.tiles(tiles)
    learned = evaluation["loss"] < corpus["unigram_nats"]
    page.heading(
        "It learned more than word frequencies" if learned else "It has not learned more than word frequencies yet"
    )
    _loss_curve(page, run, corpus["unigram_nats"])
    page.heading("What it fills in")
    page.text("Sentences of the held-out part, one word hidden, and the model's first answers with their probability.")
    for sample in summary["samples"]:
        answers = [{"word": answer["token_str"].strip(), "score": answer["score"]} for answer in sample["answers"]]
        page.fills([fill_of({**sample, "answers": answers})])
    if task:
        _task(page, task)
    page.heading("The corpus")
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in corpus["dropped"].items()) or "none"
    page.table(
        ["documents", "sentences", "tokens", "bytes per token", "vocabulary"],
        [[corpus["documents"], corpus["sentences"], corpus["tokens"], corpus["bytes_per_token"], corpus["vocab_size"]]],
    )
    page.text(f"Documents dropped: {dropped}.")
    page.heading("How long it took")
    page.table(["stage", "seconds"], [[name, seconds] for name, seconds in summary["seconds"].items()])
    page.heading("Where things are")
    page.playground(summary["model"])
    page.code("\n".join([f"model   {summary['model']}", f"report  {summary['report']}", "", *summary["next_commands"]]))
    _other_curves(page, run)
    _setting(page, run)
    return page.html()


SHOWN_ANSWERS = 3  # of the model, for each hidden word
LAST_VALUES = {
    "eval/loss": "held-out loss",
    "eval/perplexity": "perplexity",
    "eval/accuracy": "accuracy",
    "eval/bits_per_byte": "bits per byte",
    "eval/bits_per_character": "bits per character",
    "train/loss": "training loss",
    "perf/tokens_per_second": "tokens/s",
}


# What `compare` shows of each run, in this order.
COMPARED_VALUES = {
    "steps": "steps",
    "train/tokens": "tokens seen",
    "eval/loss": "held-out loss",
    "eval/perplexity": "perplexity",
    "eval/accuracy": "accuracy",
    "eval/bits_per_byte": "bits per byte",
    "word_bits_per_byte": "word bits/byte",
    "eval/sentence_accuracy": "sentence acc.",
    "train/loss_mlm": "training loss",
    "train/loss": "with sentences",
    "perf/tokens_per_second": "tokens/s",
}


def compared_values(run: RunFolder) -> dict[str, float | None]:
    """The last values. `train/loss_mlm` is the training loss of masked tokens in every run, `train/loss` all of it."""
    values = {key: run.last(key) for key in COMPARED_VALUES}
    values["steps"] = float(run.num_steps)
    values["train/loss_mlm"] = run.last(run.masked_loss_key)
    return values


def shown_keys(values: Sequence[Mapping[str, float | None]]) -> list[str]:
    """What there is to show; the whole training loss only where it is more than that of masked tokens."""
    keys = [key for key in COMPARED_VALUES if any(value[key] is not None for value in values)]
    added = any(value["train/loss"] != value["train/loss_mlm"] for value in values)
    return [key for key in keys if key != "train/loss" or added]


def cautions(runs: Sequence[RunFolder], names: Sequence[str]) -> list[str]:
    """Why numbers of these runs do not say which is better, where that is so."""
    lines = []
    if len({run.vocabulary for run in runs} - {None}) > 1:
        lines.append(
            "The vocabularies differ: losses, perplexities, accuracies and bits per byte of tokens are of other tokens "
            "and do not compare; bits per byte of whole words do, where they are given."
        )
    if len({run.heldout_text for run in runs} - {None}) > 1:
        lines.append("The runs were measured on different held-out text.")
    sizes = [run.evaluation for run in runs]
    if any(size != sizes[0] for size in sizes):
        shown = [
            f"{name} {size.get('num_rows')} rows of {size.get('length')}, {size.get('rate')} predicted"
            for name, size in zip(names, sizes, strict=True)
        ]
        lines.append(f"The evaluations differ in size: {'; '.join(shown)}.")
    return lines


def _training_tiles(run: RunFolder) -> list[Tile]:
    titles = dict(LAST_VALUES)
    if run.masked_loss_key != "train/loss":
        titles |= {"train/loss": "training loss, sentence loss added", "train/loss_mlm": "training loss, masked tokens"}
    tiles = [Tile(_value(run.last(key)), name) for key, name in titles.items() if run.last(key) is not None]
    return [Tile(f"{run.rows[-1]['step']:,}" if run.rows else "0", "steps"), *tiles]


def _loss_curve(page: Page, run: RunFolder, unigram_nats: float | None) -> None:
    training = Series("training", run.curve(run.masked_loss_key), faint=True)
    loss = [Series("held-out", run.curve("eval/loss")), training]
    rules = [Rule("word frequencies alone", unigram_nats)] if unigram_nats else []
    caption = "Loss in nats per masked token. Held-out: documents that were never trained on, with fixed masks."
    page.figure(line_chart(loss, x_name="step", y_name="loss", rules=rules), caption)


def _other_curves(page: Page, run: RunFolder) -> None:
    page.heading("How it was trained")
    for key, name, caption in (
        ("train/learning_rate", "learning rate", "Learning rate."),
        ("train/grad_norm", "gradient norm", "Norm of the gradient before clipping."),
        ("perf/tokens_per_second", "tokens/s", "Speed."),
    ):
        if points := run.curve(key):
            page.figure(line_chart([Series(name, points)], x_name="step", y_name=name), caption)


def _headline(run: RunFolder) -> str:
    """The run in one line."""
    loss, perplexity = run.last("eval/loss"), run.last("eval/perplexity")
    words = [f"{run.num_steps:,} steps"]
    words += [] if loss is None else [f"held-out loss {loss:.3f}"]
    words += [] if perplexity is None else [f"perplexity {_value(perplexity)}"]
    return " · ".join(words)


def _samples(page: Page, run: RunFolder) -> None:
    """The last answers as bars; those of the evaluations before them in a table."""
    told = [(row["step"], row["samples"]) for row in run.rows if row.get("samples")]
    told = [(step, samples) for step, samples in told if isinstance(samples[0], Mapping)]  # older logs hold no scores
    if not told:
        return
    step, samples = told[-1]
    page.heading("What it fills in")
    page.text(f"Held-out text with one word hidden, and the answers at step {step:,} with their probability.")
    page.fills([fill_of(sample) for sample in samples])
    if len(told) > 1:
        rows = [
            [
                step,
                sample["hidden"],
                ", ".join(f"{answer['word']} {answer['score']:.0%}" for answer in sample["answers"]),
            ]
            for step, samples in told
            for sample in samples
        ]
        page.table(["step", "hidden word", "answers"], rows, folded="answers along the way")


def fill_of(sample: Values) -> Fill:
    """A sentence of a log or of a result; ___ or <mask> stands for the hidden word."""
    left, _, right = sample["text"].partition("___" if "___" in sample["text"] else "<mask>")
    answers = [(answer["word"], answer["score"]) for answer in sample["answers"][:SHOWN_ANSWERS]]
    return Fill(left, sample["hidden"], right, {"": answers})


def _task(page: Page, task: Values) -> None:
    page.heading("Is pretraining worth it?")
    page.text(f"The task: {task['question']} {task['description']}")
    bars = [
        Bar(label, task[key]["median"], min(task[key]["seeds"]), max(task[key]["seeds"]), task[key]["seeds"])
        for key, label in task["starts"].items()
    ]
    bars.append(Bar("largest class", task["majority"], is_quiet=True))
    page.figure(
        bar_chart(bars, label="accuracy"),
        f"Test accuracy, median of {len(task['pretrained']['seeds'])} seeds; the line spans all seeds. Same network, "
        "same data, same recipe; only the starting weights differ.",
    )
    page.table(
        ["start", "median", "lowest", "highest", "seeds"],
        [[bar.name, bar.value, min(bar.samples), max(bar.samples), len(bar.samples)] for bar in bars[:-1]],
    )


def _setting(page: Page, run: RunFolder) -> None:
    page.heading("Settings and machine")
    page.code(json.dumps(run.config, indent=1, ensure_ascii=False), "the whole run")
    if run.facts:
        page.code(json.dumps(run.facts, indent=1, ensure_ascii=False), "facts about the run and the machine")


def short_names(runs: Sequence[RunFolder]) -> list[str]:
    """Folder names, with as much of the path as it takes to tell them apart."""
    for depth in range(1, 10):
        names = ["/".join(run.folder.resolve().parts[-depth:]) for run in runs]
        if len(set(names)) == len(names):
            return names
    return [str(index) for index in range(len(runs))]


def _value(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
