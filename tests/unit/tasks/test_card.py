"""A fine-tuned model's card: what was measured is said, with its limits; what was not is left out."""

from __future__ import annotations

from typing import Any

from remask.tasks.card import task_card

RUN: dict[str, Any] = {
    "train_file": "/data/me/my.csv", "dev_file": None, "data": None,
    "train": {"epochs": 3.0, "steps": None, "learning_rate": None, "warmup": 0.06}, "batch": {"num_rows": 16},
    "rows": {"max_length": 128, "long_texts": "cut"},
}  # fmt: skip
VALUES: dict[str, Any] = {
    "task": "classify", "metric": "accuracy", "init": "/models/small", "init_weights": True, "notes": ["no dev file"],
    "texts_cut": 7,
    "data": {
        "train": 80, "dev": 20, "dropped": {"empty text": 2}, "classes": {"a": 60, "b": 20},
        "baseline": {"accuracy": 0.75, "macro_f1": 0.4},
    },
    "spread": {"accuracy": {"median": 0.9, "low": 0.85, "high": 0.95}},
    "seeds": {"count": 2, "seeds": [0, 1], "best": 1},
    "runs": [
        {"seed": 0},
        {
            "seed": 1, "calibration": {"expected_calibration_error": 0.05},
            "table": {"classes": {"a": {"f1": 0.9, "support": 15}, "b": {"f1": 0.4, "support": 5}}},
        },
    ],
}  # fmt: skip


def test_a_classifiers_card() -> None:
    card = task_card(VALUES, RUN)
    assert card["data"] == {
        "examples trained on": 80, "examples scored": 20, "training file": "my.csv", "left out, empty text": 2,
        "class a": "60 examples", "class b": "20 examples",
    }  # fmt: skip
    assert card["title"] == "A classifier of texts"
    assert "medians over 2 seeds" in card["description"]
    assert card["metrics"] == {"accuracy": "0.9000 (0.8500 to 0.9500)"}
    assert card["training"]["epochs"] == 3.0
    assert "learning_rate" not in card["training"]
    assert (card["training"]["start"], card["base_model"]) == ("small", "small")
    assert card["results"] == {"dataset": {"name": "my.csv", "type": "csv"}, "metrics": {"accuracy": 0.9}}
    assert "datasets" not in card
    limits = "\n".join(card["limits"])
    for words in ("no dev file", "7 of the texts", "accuracy 0.7500", "weakest on 'b': F1 0.4000", "0.050 on average"):
        assert words in limits
    assert "/data/" not in str(card)  # nobody's folders go out with a model


def test_what_a_task_does_not_have_is_not_said() -> None:
    values = {
        **VALUES,
        "data": {"train": 8, "dev": 2, "baseline": {}},
        "runs": [{"seed": 1}],
        "texts_cut": 0,
        "notes": [],
    }
    values["init_weights"] = False
    card = task_card(values, RUN)
    assert len(card["limits"]) == 1
    assert card["training"]["start"] == "random weights of the form of small"


def test_the_card_has_the_rate_and_the_precision_that_were_chosen() -> None:
    runs = [
        {"seed": 0, "learning_rate": 1.0, "precision": "fp32"},
        {"seed": 1, "learning_rate": 3e-5, "precision": "bf16"},
    ]
    auto = RUN | {"train": {**RUN["train"], "precision": "auto"}}
    training = task_card(VALUES | {"runs": runs}, auto)["training"]
    assert (training["learning_rate"], training["precision"]) == (3e-5, "bf16")


def test_a_named_tasks_data_have_their_name_on_the_hub() -> None:
    card = task_card(VALUES | {"task": "glue:sst2"}, RUN)
    assert card["datasets"] == ["nyu-mll/glue"]
    assert card["results"]["dataset"] == {"name": "glue:sst2", "type": "nyu-mll/glue", "split": "dev"}


def test_one_number_stands_under_one_name() -> None:
    three = {"median": 0.5, "low": 0.4, "high": 0.6}
    twins = {"accuracy": {**three, "median": 0.7}, "f1": three, "macro_f1": dict(three)}
    assert list(task_card(VALUES | {"spread": twins}, RUN)["metrics"]) == ["accuracy", "macro_f1"]
    assert list(task_card(VALUES | {"spread": twins, "metric": "f1"}, RUN)["metrics"]) == ["accuracy", "f1"]
    two_classes = twins | {"f1": {**three, "median": 0.8}}
    assert list(task_card(VALUES | {"spread": two_classes}, RUN)["metrics"]) == ["accuracy", "f1", "macro_f1"]
