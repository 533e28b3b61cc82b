"""Every switch does something: math and data switches change the result, speed switches leave it as it is.

Switches of model/ and data/ are turned in tests/unit/model/test_switches.py and tests/unit/data/test_batches.py, where
outputs and batches are at hand; here those of the whole pretraining and preparing runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remask.config import Switch, build_run, switches
from remask.errors import DataError
from remask.model.settings import AdaLoraSettings
from remask.preparation import prepare
from remask.pretraining.run import pretrain
from remask.pretraining.settings import PretrainRun
from remask.progress import Progress
from remask.tune.finetune import finetune
from remask.tune.settings import FinetuneRun

TINY: dict[str, Any] = {
    "model.num_layers": 2,
    "model.hidden_size": 16,
    "model.num_heads": 2,
    "model.ffn_size": 32,
    "model.max_length": 32,
    "data.length": 32,
    "data.batch.num_rows": 4,
    "data.evaluation.num_rows": 4,
    "train.steps": 4,
    "train.warmup": 0.5,
    "train.learning_rate": 0.01,
    "train.eval_every": 0,
    "train.save_every": 0,
    "train.precision": "fp32",
}
# What must be set for a switch to have something to act on.
NEEDS: dict[str, dict[str, Any]] = {
    "train.decay": {"train.schedule": "stable", "train.steps": 10},
    "objective.sentence_weight": {"data.format": "segment-pair", "data.sentence_loss": "nsp"},
    "objective.causal_weight": {"objective.causal_share": 0.5},
    "objective.causal_share": {"objective.causal_share": 0.0},
    **{
        f"start.{name}": {"start.embeddings": "counted"}
        for name in ("std", "weights", "smoothing", "shift", "least_count", "flatten")
    },
    "start.head_share": {"start.head": "direct"},
    "start.attention": {"model.num_heads": 4},
    **{f"start.neighbour_{name}": {"start.attention": "neighbours"} for name in ("share", "noise", "reach", "peak")},
}
# Only runs of hundreds of steps, or another machine, show these: their own tests turn them.
ELSEWHERE = {
    "train.spike_sigmas": "tests/faults: a spike needs a history of losses",
    "train.precision": "tests/unit/train: formats depend on the machine",
    "train.weights": "tests/unit/train: needs bf16 products",
    "start.new_tokens": "tests/unit/test_start.py: needs a model with another vocabulary",
    "train.compile": "tests/unit/train: needs a compiler and most of a minute",
}


MADE: dict[str, Any] = {}


def made_once(make: Callable[..., Any], settings: dict[str, Any], data: Path, out: Path) -> Any:
    """What the run gives that many switches start from."""
    key = f"{make.__name__} {json.dumps(settings, sort_keys=True)}"
    if key not in MADE:
        MADE[key] = make(settings, data, out)
    return MADE[key]


def result_of(settings: dict[str, Any], prepared: Path, out: Path) -> dict[str, Any]:
    """The weights after a few steps, by name."""
    from safetensors.numpy import load_file

    run = build_run(PretrainRun, options={**TINY, **settings, "prepared": str(prepared)}).run
    made = pretrain(run, out, progress=Progress(quiet=True))
    return load_file(Path(made["checkpoint"]) / "model.safetensors")


def parts(prefix: str, model: type) -> list[Switch]:
    return [one for one in switches(model) if one.key.startswith(prefix) and one.key not in ELSEWHERE]


TURNED = [one for prefix in ("start.", "train.", "objective.") for one in parts(prefix, PretrainRun)]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("one", TURNED, ids=lambda one: one.key)
def test_every_switch_of_training_is_live(one: Switch, tiny_prepared: Path, tmp_path: Path) -> None:
    import numpy as np

    needs = NEEDS.get(one.key, {})
    before = made_once(result_of, needs, tiny_prepared, tmp_path / "before")
    default = {**TINY, **needs}.get(one.key, one.default)
    for number, value in enumerate(value for value in one.values if value != default):
        after = result_of({**needs, one.key: value}, tiny_prepared, tmp_path / str(number))
        same = before.keys() == after.keys() and all(np.allclose(before[k], after[k], atol=1e-5) for k in before)
        assert same == (one.effect == "speed"), f"{one.key} = {value!r}"


# ---------------------------------------------------------------------------------------------------- prepare


PROSE = """The harbour lay quiet under the first light, and the old men who mended nets had not yet come down.
A woman in a grey coat walked along the wall, counting the boats as she had done every morning for thirty years.
She knew that one of them would be missing, because the wind had turned in the night and nobody had slept.
When the bell of the church struck six she sat down on the steps and began to write a letter to her brother.
It was a long letter, with many questions, and she did not believe that he would ever find the time to answer it."""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text in which every switch of preparing finds something to do."""
    folder = tmp_path_factory.mktemp("texts")
    story = "Once there was a king who had three sons and a garden. Dr. Bird sang z. B. in the tree.\nHe left.\n"
    letters = "abcdefghij"
    lines = [
        f"Line {i} of {letters[i % 10]}: the cat number {i * 7 % 13} walks under tree {i * 3 % 11}." for i in range(60)
    ]
    pieces = {
        "plain.txt": story + "\nSecond document here, with  two  spaces and a tail.   \nIt goes\ton.\n",
        "symbols.txt": "{}[]()<>#@!$%^&*_+-=~|;:.,?/ a b c " * 3,
        "some_symbols.txt": "(one) [two], three; four: five. (six) [seven], eight; nine: ten, (eleven), (twelve).",
        "repeated.txt": "\n\n".join(PROSE.split("\n") * 3),
        "a_third.txt": "\n\n".join([*lines[:20], *lines[:10]]),
        "english.txt": PROSE,
        "looping.txt": "na na na na na na na na na na na na na na na na na na na na na na na na " * 20,
        "german.txt": "Der König ging am Abend in den Wald und sah dort einen alten Bären. Er war z. B. sehr müde. "
        * 2,
        "unicode.txt": "Cafe\u0301 ﬁnd \u0007 bell and \ufeff mark, x\u00b2 squared. Ein Satz.",
        "wrapped.txt": "\n".join(" ".join(line for line in lines[i : i + 1]) for i in range(30)),
        "near.txt": "\n".join(lines[:40]),
        "nearly.txt": "\n".join([*lines[:34], *lines[50:56]]),
        "chinese.txt": "漢字與语言。臺灣的圖書館，北京的图书馆。",
        "copy.txt": story + "\nSecond document here, with  two  spaces and a tail.   \nIt goes\ton.\n",
        "long.txt": "\n".join(lines) * 3,
    }
    for name, text in pieces.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "bytes.txt").write_bytes(b"Here is a \xff\xfe bad byte in a text of some length. And more.")
    article = f"<h1>A heading</h1><p>{story}</p><table><tr><td>1</td><td>cell</td></tr></table><p>{lines[3] * 8}</p>"
    around = "<nav><a href='/'>Home</a> <a href='/x'>About us</a></nav>{}<footer>Imprint 2020</footer>"
    page = f"<html><head><title>T</title></head><body>{around.format(article)}</body></html>"
    (folder / "page.html").write_text(page, encoding="utf-8")
    return folder


PREPARE: dict[str, Any] = {
    "tokenizer.vocab_size": 400,
    "text.heldout_fraction": 0.1,
    "text.reading.layout": "file",
    "workers": 1,
}
PREPARE_NEEDS: dict[str, dict[str, Any]] = {
    "tokenizer.lowercase": {"tokenizer.kind": "wordpiece", "tokenizer.vocab_size": 200},
    "text.language.min_prob": {"text.language.keep": ["en"]},
    "text.dedup.exact": {"text.dedup.near": "off"},
    "text.cleaning.max_repeated_lines": {"text.dedup.near": "off"},
    "text.cleaning.whitespace": {"tokenizer.newlines": "token"},
    "text.reading.long_documents": {"text.reading.max_document_bytes": 2000},
}
PREPARE_TOGETHER: dict[tuple[str, str], dict[str, Any]] = {
    ("tokenizer.kind", "wordpiece"): {"tokenizer.vocab_size": 200},
    ("text.sentences.newline", "space"): {"tokenizer.newlines": "space"},
}


def shards_of(settings: dict[str, Any], texts: Path, out: Path) -> Any:
    options = {**PREPARE, **settings, "text.sources": [{"name": "c", "paths": [str(texts)], "layout": None}]}
    prepare.prepare(build_run(prepare.PrepareRun, options=options).run, out, progress=Progress(quiet=True))
    files = json.loads((out / "manifest.json").read_text())["files"]
    return {name: facts["sha256"] for name, facts in files.items() if name != "drops.jsonl"}


PREPARE_SWITCHES = list(switches(prepare.PrepareRun))


@pytest.mark.parametrize("one", PREPARE_SWITCHES, ids=lambda one: one.key)
def test_every_switch_of_preparing_is_live(one: Switch, texts: Path, tmp_path: Path) -> None:
    needs = PREPARE_NEEDS.get(one.key, {})
    before = made_once(shards_of, needs, texts, tmp_path / "before")
    default = {**PREPARE, **needs}.get(one.key, one.default)
    turned = [value for value in one.values if value != default]
    changed = {}
    for number, value in enumerate(turned):
        together = PREPARE_TOGETHER.get((one.key, str(value)), {})
        changed[str(value)] = shards_of({**needs, **together, one.key: value}, texts, tmp_path / str(number)) != before
    if one.effect == "speed":
        assert not any(changed.values()), changed
    else:
        assert changed
        assert any(changed.values()), changed
        assert all(changed.values()) or one.key in PARTLY, changed


# Sample values that this small text cannot tell from the default; another value of the same switch does act on it.
PARTLY = {"text.reading.layout"}


# --------------------------------------------------------------------------------------------------- finetune

FINETUNE: dict[str, Any] = {
    "task": "classify",
    "rows.max_length": 24,
    "batch.num_rows": 8,
    "batch.bucket_batches": 4,
    "evaluations": 2,
    "train.epochs": 3.0,
    "train.precision": "fp32",
}
# A writer that has learned a little, so that its texts differ by how they are written.
WRITE = {
    "task": "write",
    "train_file": "sources.jsonl",
    "rows.target_length": 8,
    "train.learning_rate": 0.02,
    "dropout": 0.0,
}
FINETUNE_NEEDS: dict[str, dict[str, Any]] = {
    "rows.stride": {"task": "squad1", "rows.max_length": 64, "rows.stride": 8},
    "rows.overlap": {"rows.long_texts": "windows", "rows.max_length": 8},
    "rows.max_windows": {"rows.long_texts": "windows", "rows.max_length": 8},
    "table.bad_rows": {"train_file": "bad.jsonl"},
    "pooling": {"pooling": "mean"},
    "loss.class_weights": {"train_file": "skewed.jsonl"},
    "loss.choice": {"task": "choice", "rows.max_length": 64, "train_file": "choice.jsonl"},
    "temperature": {"tasks": ["train.jsonl", "skewed.jsonl"]},
    "prompt.calibrate": {
        "task": "prompt",
        "prompt.patterns": ["{text} the <mask>."],
        "prompt.words": {"a": ["fox"], "b": ["dog"]},
    },
    "unlabelled.min_score": {"unlabelled.file": "texts.jsonl", "unlabelled.min_score": 0.5005},
    "loss.adversarial_step": {"loss.adversarial": 1},
    **{f"lora.{name}": {"learn": "lora"} for name in ("rank", "alpha", "dropout", "modules")},
    **{key: WRITE for key in ("decoder.weights", "decoder.num_layers", "loss.label_smoothing", "batch.num_tokens")},
    "table.turns": {**WRITE, "task": "reply", "train_file": "turns.jsonl"},
    **{f"decode.{name}": WRITE for name in ("by", "beams", "cached")},
    "decode.no_repeat": {**WRITE, "train_file": "repeats.jsonl"},
    "decode.length_penalty": {**WRITE, "decode.beams": 3},
    **{f"decode.{name}": {**WRITE, "decode.by": "sampling"} for name in ("temperature", "top_k", "top_p", "seed")},
    **{
        f"retrieve.{name}": {"task": "retrieve", "train_file": "pairs.jsonl"}
        for name in ("query_prompt", "document_prompt", "temperature", "learned_temperature", "symmetric", "widths")
    },
    "retrieve.negatives": {"task": "retrieve", "train_file": "pairs.jsonl", "retrieve.below": 1.0},
    "retrieve.num_negatives": {"task": "retrieve", "train_file": "pairs.jsonl", "retrieve.negatives": "words"},
    "retrieve.pool": {"task": "retrieve", "train_file": "pairs.jsonl", "retrieve.negatives": "words"},
    "retrieve.below": {
        "task": "retrieve",
        "train_file": "pairs.jsonl",
        "retrieve.negatives": "model",
        "retrieve.below": 1.5,
    },
    "retrieve.pairs": {"task": "retrieve", "train_file": None, "retrieve.unsupervised": "text.txt", "max_train": 16},
    **{
        f"adalora.{name}": {"learn": "adalora", "adalora.start_rank": 6, "adalora.rank": 3, "adalora.every": 2}
        for name in AdaLoraSettings.model_fields
    },
    "ia3.modules": {"learn": "ia3", "train.learning_rate": 0.05},
    "bottleneck.size": {"learn": "bottleneck"},
    "prefix.length": {"learn": "prefix"},
}
FINETUNE_SWITCHES = [one for one in switches(FinetuneRun) if not one.key.startswith("train.")]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizers: dict[str, Path]) -> Path:
    """A folder with a tiny model and files to fine-tune it on."""
    from remask.model.network import build_network
    from remask.model.settings import HeadSettings, ModelSettings
    from remask.model.store import save_model
    from remask.tokenizer import load_tokenizer

    folder = tmp_path_factory.mktemp("finetune")
    vocab_size = load_tokenizer(tiny_tokenizers["byte-bpe"]).vocab_size
    sizes = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "ffn_size": 32, "max_length": 64}
    settings = ModelSettings.model_validate({"vocab_size": vocab_size, **sizes})
    save_model(folder / "model", build_network(settings, HeadSettings(masked_lm=True), 1), tiny_tokenizers["byte-bpe"])
    rows = [{"text": f"the {'fox' if i % 3 else 'dog'} " * (1 + i % 9), "label": "ab"[i % 2]} for i in range(40)]
    context = "The quick brown fox jumps over the lazy dog by the river. Mary Shelley wrote it. " * 3
    answer = {"text": "Mary Shelley", "answer_start": context.index("Mary")}
    for part in ("train", "dev"):
        asked = [{"id": f"{part}{i}", "question": f"Who wrote it {i}?", "answers": [answer]} for i in range(12)]
        squad = {"version": "1.1", "data": [{"title": part, "paragraphs": [{"context": context, "qas": asked}]}]}
        (folder / f"{part}.json").write_text(json.dumps(squad))
    skewed = [{**row, "label": "ab"[i % 4 == 0]} for i, row in enumerate(rows)]
    choices = [{"question": "Who?", "options": ["a fox", f"dog {i}", "it"], "answer": i % 3} for i in range(24)]
    beings = ("fox", "dog", "river", "Mary")
    pairs = [
        {"source": beings[i % 4] + " the" * (i % 3), "target": f"{beings[(i + 1) % 4]} {beings[i % 3]}"}
        for i in range(40)
    ]
    turns = [
        {"source": [f"{beings[i % 4]}?", beings[i % 3], "the lazy dog"], "target": beings[(i + 1) % 4]}
        for i in range(24)
    ]
    texts = [{"text": f"{'river' if i % 2 else 'lazy'} {i}"} for i in range(20)]
    files = {
        "texts": texts,
        "sources": pairs,
        "repeats": [{**pair, "target": "fox fox fox"} for pair in pairs],
        "turns": turns,
        "train": rows,
        "bad": [*rows, {"text": "", "label": "a"}],
        "skewed": skewed,
        "choice": choices,
    }
    names = ["fox", "dog", "river", "hill", "tree"]
    files["pairs"] = [
        {"query": f"the {names[i % 5]} {names[i % 3]}", "positive": f"{names[i % 3]} {i % 7} {names[i % 5]} it"}
        for i in range(24)
    ]
    story = "\n".join(
        f"The {names[i % 5]} {i} was by the river for a year or two. It slept {i} days." for i in range(6)
    )
    (folder / "text.txt").write_text(
        "\n\n".join(f"Story {i}\n{story.replace('year', f'{i} years')}" for i in range(20))
    )
    for name, lines in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def finetuned(settings: dict[str, Any], start: Path, out: Path) -> Any:
    """Weights, scores and history; or the error that the switch asks for."""
    from safetensors.numpy import load_file

    file = "train.json" if settings.get("task") == "squad1" else settings.get("train_file", "train.jsonl")
    dev = {
        "squad1": "dev.json",
        "choice": "choice.jsonl",
        "retrieve": "pairs.jsonl",
        "write": "sources.jsonl",
        "reply": "turns.jsonl",
    }
    dev = dev.get(settings.get("task", ""), "train.jsonl")
    files: dict[str, Any] = {"train_file": file and str(start / file), "dev_file": str(start / dev)}
    if text := settings.get("retrieve.unsupervised"):
        files["retrieve.unsupervised"] = str(start / text)
    if several := settings.get("tasks"):
        files = {
            "tasks": [
                {"name": name[:-6], "train_file": str(start / name), "dev_file": str(start / dev), "max_train": count}
                for name, count in zip(several, (40, 10), strict=True)
            ]
        }
    if unlabelled := settings.get("unlabelled.file"):
        files["unlabelled.file"] = str(start / unlabelled)
    files["init"] = str(start / "model")
    run = build_run(FinetuneRun, options={**FINETUNE, **settings, **files}).run
    try:
        made = finetune(run, out, progress=Progress(quiet=True))
    except DataError as error:
        return str(error)
    if several:  # the best step may come before the tasks took different turns: the log knows
        lines = [json.loads(line) for line in (out / "seed-0" / "metrics.jsonl").read_text().splitlines()]
        return [{k: v for k, v in line.items() if k.startswith("train/")} for line in lines]
    weights = load_file(out / "model" / "model.safetensors")
    return [weights[name].round(4).tolist() for name in sorted(weights)], made["runs"][0]["history"]


@pytest.mark.parametrize("one", FINETUNE_SWITCHES, ids=lambda one: one.key)
def test_every_switch_of_fine_tuning_is_live(one: Switch, start: Path, tmp_path: Path) -> None:
    needs = FINETUNE_NEEDS.get(one.key, {})
    before = made_once(finetuned, needs, start, tmp_path / "before")
    default = {**FINETUNE, **needs}.get(one.key, one.default)
    turned = [value for value in one.values if value != default]
    assert turned
    for number, value in enumerate(turned):
        after = finetuned({**needs, one.key: value}, start, tmp_path / str(number))
        assert (after == before) == (one.effect == "speed"), f"{one.key} = {value!r}"
