"""What a fine-tuned model's card says: data, recipe, metrics and limits, from the run that made it.

In: the results of a fine-tuning and its run as plain values. Out: a mapping that `export` writes into the model card.
It is kept beside the weights as card.json, so that a model that was moved still tells where it comes from. Only what
was measured is said. Not here: Markdown (export/card).
"""

from __future__ import annotations

from pathlib import Path

from remask.schema import Json, Values
from remask.tasks.metrics import shown_names

CARD_JSON = "card.json"
_RECIPE = (
    "epochs",
    "steps",
    "minutes",
    "learning_rate",
    "schedule",
    "warmup",
    "weight_decay",
    "optimizer",
    "precision",
)
_HUB_NAMES = {
    "glue": "nyu-mll/glue",
    "squad1": "rajpurkar/squad",
    "squad2": "rajpurkar/squad_v2",
    "race": "ehovy/race",
}
_OWN = {
    "classify": "A classifier of texts", "pair": "A classifier of pairs of texts",
    "regress": "A model that rates texts",
    "multilabel": "A model that labels texts", "ner": "A model that finds entities",
    "qa": "A model that answers questions about passages", "choice": "A model that chooses answers",
    "retrieve": "An embedding model that finds texts",
}  # fmt: skip


def task_card(values: Values, run: Values) -> Json:
    """`values`: results.json; `run`: the dumped FinetuneRun."""
    counts, seeds = values["data"], values["seeds"]
    data: Json = {"examples trained on": counts["train"], "examples scored": counts["dev"]}
    files = {"training file": run.get("train_file"), "dev file": run.get("dev_file"), "folder": run.get("data")}
    data |= {name: Path(path).name for name, path in files.items() if path}
    data |= {f"left out, {reason}": count for reason, count in counts.get("dropped", {}).items()}
    data |= {f"class {name}": f"{count:,} examples" for name, count in counts.get("classes", {}).items()}
    metrics = {}
    for name in shown_names(values["spread"], values["metric"]):
        spread = values["spread"][name]
        over = f" ({spread['low']:.4f} to {spread['high']:.4f})" if seeds["count"] > 1 else ""
        metrics[name] = f"{spread['median']:.4f}{over}"
    best = next((r for r in values.get("runs", ()) if r["seed"] == seeds["best"]), {})
    recipe = run.get("train", {}) | {name: best[name] for name in ("learning_rate", "precision") if name in best}
    training = {name: recipe[name] for name in _RECIPE if recipe.get(name) is not None}
    start = Path(str(values["init"])).name
    training |= {
        "examples a step": run["batch"]["num_rows"],
        "longest row": f"{run['rows']['max_length']} tokens, {run['rows']['long_texts']}",
        "start": start if values["init_weights"] else f"random weights of the form of {start}",
        "seeds": ", ".join(str(seed) for seed in seeds["seeds"]),
    }
    confusion = {"labels": values["labels"], "counts": best["confusion"]} if "confusion" in best else None
    return {
        **({"confusion": confusion} if confusion else {}),
        "title": _OWN.get(values["task"], f"A model for {values['task']}"),
        "description": f"Fine-tuned with remask. The figures are of the dev data{_over(seeds['count'])}.",
        "data": data,
        "metrics": metrics,
        "training": training,
        "limits": _limits(values),
        "results": {
            "dataset": _dataset(values["task"], run),
            "metrics": {name: values["spread"][name]["median"] for name in metrics},
        },
        **({"base_model": start} if values["init_weights"] else {}),
        **({"datasets": [hub]} if (hub := _hub_name(values["task"])) else {}),
    }


def _hub_name(task: str) -> str | None:
    """What the data of a named task are called on the hub."""
    return _HUB_NAMES.get(task.split(":")[0])


def _dataset(task: str, run: Values) -> dict[str, str]:
    """What was scored, as a model index names it."""
    scored = Path(run.get("dev_file") or run.get("train_file") or task)
    own = {"name": scored.name, "type": scored.suffix.lstrip(".") or "table"}
    return {"name": task, "type": hub, "split": "dev"} if (hub := _hub_name(task)) else own


def _over(count: int) -> str:
    return f", medians over {count} seeds; these weights are those of the best one" if count > 1 else ", with one seed"


def _limits(values: Values) -> list[str]:
    """What a user of the model should know before trusting it."""
    limits = [f"Note on the figures: {note}." for note in values["notes"]]
    if cut := values.get("texts_cut"):
        limits.append(
            f"{cut:,} of the texts were longer than a row and were cut: what stands at their end was not read."
        )
    if values["metric"] in values["data"]["baseline"]:
        least = values["data"]["baseline"][values["metric"]]
        limits.append(f"Always giving the same answer has {values['metric']} {least:.4f}.")
    best = next((r for r in values.get("runs", ()) if r["seed"] == values["seeds"]["best"]), {})
    classes = best.get("table", {}).get("classes", {})
    if len(classes) > 1:
        name, row = min(classes.items(), key=lambda item: item[1]["f1"])
        limits.append(f"It is weakest on {name!r}: F1 {row['f1']:.4f} over {row['support']:,} examples.")
    if "calibration" in best:
        error = best["calibration"]["expected_calibration_error"]
        limits.append(f"Its stated confidence is off by {error:.3f} on average (expected calibration error).")
    limits.append(
        "The dev data chose the weights, so these figures are a little too good; texts of another kind were not tried."
    )
    return limits
