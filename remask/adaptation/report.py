"""The page of an adaptation: what the model was before, what it is now, and what that is worth.

In: the plain values that `adapt` gives, and the pretraining run. Out: one HTML text. Nothing is computed here beyond
picking and rounding.
"""

from __future__ import annotations

import json

from remask.progress import duration
from remask.reports.charts import Bar, Rule, Series, bar_chart, line_chart
from remask.reports.page import Fill, Page, Tile
from remask.reports.runs import RunFolder
from remask.schema import Values

MEASURES = {
    "loss": "loss of masked tokens (nats)",
    "perplexity": "perplexity",
    "accuracy": "accuracy of masked tokens",
    "bits_per_byte": "bits per byte of masked tokens",
    "word_bits_per_byte": "bits per byte of whole words",
}


def adaptation_report(values: Values, run: RunFolder) -> str:
    before, after, recipe = values["before"], values["after"], values["recipe"]
    page = Page("An adapted model", f"{values['from']} · {values['date']} · {values['machine']}")
    page.tiles(_tiles(values))
    page.playground(values["model"])
    if values["task"]:
        _task(page, values["task"])
    _heldout(page, values, run)
    _samples(page, before, after)
    if "closeness" in before:
        page.heading("Embeddings")
        page.text(
            "Closeness of texts against the given pairs: Spearman's correlation of the cosine of two texts' vectors "
            "with the number beside them. Masked words teach a model the words of a text, not what stands for a text "
            "as a whole."
        )
        page.table(["", "before", "after"], [["Spearman's correlation", before["closeness"], after["closeness"]]])
    _vocabulary(page, values)
    page.heading("How it was adapted")
    corpus = values["corpus"]
    page.text(
        f"{recipe['steps']:,} steps of about {recipe['tokens_a_step']:,} tokens in {duration(recipe['seconds'])}: "
        f"{recipe['tokens_seen']:,} tokens read, {recipe['tokens_seen'] / max(1, corpus['tokens']):.1f} times the "
        f"corpus. Rows of {recipe['length']} tokens. Learning rate {recipe['learning_rate']:.3g} at its peak, "
        f"{recipe['warmup']:g} of the steps to warm up, then {recipe['schedule']} decay. What learned: "
        f"{recipe['learn']}."
    )
    if head := recipe["head"]:
        page.text(
            f"Before that the masked-LM head, which the model came without, learned alone for {head['step']:,} steps: "
            f"the held-out loss was {head['loss']:.3f} when the rest joined."
        )
    names = ["documents", "tokens", "bytes", "held-out tokens"]
    page.table(names, [[corpus[key] for key in ("documents", "tokens", "bytes", "heldout_tokens")]])
    if points := run.curve("train/learning_rate"):
        chart = line_chart([Series("learning rate", points)], x_name="step", y_name="learning rate")
        page.figure(chart, "Learning rate.")
    page.code(json.dumps(run.config, indent=1, ensure_ascii=False), "the whole pretraining run")
    return page.html()


def _tiles(values: Values) -> list[Tile]:
    before, after = values["before"]["heldout"], values["after"]["heldout"]
    tiles = []
    if values["recipe"]["vocabulary"] == "keep":
        tiles.append(Tile(f"{before['loss']:.3f} → {after['loss']:.3f}", "held-out loss, nats per masked token"))
    if before["word_bits_per_byte"] is not None:
        bits = f"{before['word_bits_per_byte']:.3f} → {after['word_bits_per_byte']:.3f}"
        tiles.append(Tile(bits, "bits per byte of whole words"))
    if values["recipe"]["vocabulary"] != "keep":
        pair = f"{values['before']['bytes_per_token']:.2f} → {values['after']['bytes_per_token']:.2f}"
        tiles.append(Tile(pair, "bytes per token"))
    if task := values["task"]:
        scores = f"{task['before']['median']:.3f} → {task['after']['median']:.3f}"
        tiles.append(Tile(scores, f"{task['metric']} of the task {task['task']}"))
    if "general" in values["before"]:
        general = [values[side]["general"]["word_bits_per_byte"] for side in ("before", "after")]
        if None not in general:
            tiles.append(Tile(f"{general[0]:.3f} → {general[1]:.3f}", "bits per byte of whole words, general text"))
    return tiles


def _heldout(page: Page, values: Values, run: RunFolder) -> None:
    sides = [name for name in ("before", "start", "after") if values[name]]
    titles = {"before": "before", "start": "with the new tokens, before the first step", "after": "after"}
    headers = ["", *(titles[name] for name in sides)]
    page.heading("Text that it never read")
    if not values["before"]["had_head"]:
        page.text(
            "The model came without a masked-LM head. It got one that answers word frequencies, whatever the text: "
            "that is what stands under “before”."
        )
    page.table(headers, _rows(values, sides, "heldout"))
    is_kept = values["recipe"]["vocabulary"] == "keep"
    if not is_kept:
        page.text(
            "Tokens differ between the vocabularies, so losses, perplexities, accuracies and bits per byte of tokens "
            "do not compare between before and after. Bits per byte of whole words do."
        )
    rules = [Rule("before", values["before"]["heldout"]["loss"])] if is_kept else []
    curves = [Series("held-out", run.curve("eval/loss")), Series("training", run.curve("train/loss"), faint=True)]
    page.figure(
        line_chart(curves, x_name="step", y_name="loss", rules=rules),
        "Loss in nats per masked token. Held-out: documents that were never trained on, with fixed masks.",
    )
    lowest = min((loss for _, loss in run.curve("eval/loss")), default=None)
    last = run.last("eval/loss")
    if lowest is not None and last is not None and last > lowest + 0.02:
        page.text(
            f"The held-out loss was {lowest:.3f} on the way and rose to {last:.3f}: the text was read too often. Fewer "
            "steps, or more text, would do better."
        )
    if "general" in values["before"]:
        page.heading("The general text")
        page.text(f"{values['recipe']['general_share']:.0%} of the rows came from it. What it costs to specialise:")
        page.table(headers, _rows(values, sides, "general"))


def _rows(values: Values, sides: list[str], kind: str) -> list[list[object]]:
    return [
        [title, *(round(values[side][kind][key], 4) for side in sides)]
        for key, title in MEASURES.items()
        if all(values[side][kind][key] is not None for side in sides)
    ]


def _samples(page: Page, before: Values, after: Values) -> None:
    if not before["samples"]:
        return
    page.heading("What it fills in")
    page.text("Held-out sentences with one word hidden, and the first answers with their probability.")
    for old, new in zip(before["samples"], after["samples"], strict=True):
        left, _, right = old["text"].partition("___")
        page.fills([Fill(left, old["hidden"], right, {"before": _answers(old), "after": _answers(new)})])


def _answers(sample: Values) -> list[tuple[str, float]]:
    return [(answer["word"], answer["score"]) for answer in sample["answers"][:3]]


def _task(page: Page, task: Values) -> None:
    page.heading("Did it pay?")
    page.text(
        f"The task {task['task']}, fine-tuned before and after with the same recipe and seeds: {task['verdict']}."
    )
    bars = [
        Bar(name, task[name]["median"], min(task[name]["seeds"]), max(task[name]["seeds"]), task[name]["seeds"])
        for name in ("before", "after")
    ]
    page.figure(
        bar_chart(bars, label=task["metric"]),
        f"{task['metric']}, median of {len(task['before']['seeds'])} seeds; the line spans all seeds.",
    )
    page.table(
        ["", "median", "lowest", "highest", "seeds"],
        [
            [bar.name, round(bar.value, 4), round(min(bar.samples), 4), round(max(bar.samples), 4), len(bar.samples)]
            for bar in bars
        ],
    )


def _vocabulary(page: Page, values: Values) -> None:
    before, after = values["before"], values["after"]
    page.heading("Vocabulary")
    page.table(
        ["", "before", "after"],
        [
            ["entries", before["vocabulary"], after["vocabulary"]],
            ["bytes per token of the corpus", before["bytes_per_token"], after["bytes_per_token"]],
        ],
    )
    if before["vocabulary"] == after["vocabulary"] and values["recipe"]["vocabulary"] == "keep":
        page.text("The vocabulary was kept: every token has the id that it had.")
