"""The first steps of fine-tuning beside a plain transformers loop: the same losses, for every kind of task.

Both start from the same exported weights, see the same texts (encoded by each side's own tokenizer where that is one
call) and step by AdamW with the same rates; dropout is off, and everything is fp32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from remask.config import build_run
from remask.exports.hf import export_hf
from remask.progress import Progress
from remask.tune.finetune import finetune
from remask.tune.settings import FinetuneRun
from remask.tune.single import prepare

STEPS = 5
WORDS = "the quick brown fox jumps over a lazy dog by the river Mary Shelley wrote it".split()  # noqa: SIM905
CLASSES = {
    "classify": "AutoModelForSequenceClassification",
    "pair": "AutoModelForSequenceClassification",
    "regress": "AutoModelForSequenceClassification",
    "ner": "AutoModelForTokenClassification",
    "qa": "AutoModelForQuestionAnswering",
    "choice": "AutoModelForMultipleChoice",
}


def model_folder(folder: Path, tokenizer: Path) -> Path:
    from remask.model.network import build_network
    from remask.model.settings import HeadSettings, ModelSettings
    from remask.model.store import save_model
    from remask.tokenizer import load_tokenizer

    sizes = {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "ffn_size": 64, "max_length": 64, "init_std": 0.1}
    settings = ModelSettings.model_validate({"vocab_size": load_tokenizer(tokenizer).vocab_size, **sizes})
    save_model(folder, build_network(settings, HeadSettings(masked_lm=True), 1), tokenizer)
    return folder


def write_task(task: str, path: Path) -> Path:
    """24 examples of random words; numbers with mean 0 and deviation 1, which a regression learns as they are."""
    rng = np.random.default_rng(0)

    def text() -> str:
        return " ".join(rng.choice(WORDS, rng.integers(3, 9)))

    rows: list[dict[str, Any]] = []
    for i in range(24):
        if task == "ner":
            words = text().split()
            rows.append({"text": words, "label": ["B-PER" if word == "Mary" else "O" for word in words[:-1]] + ["B-X"]})
        elif task == "choice":
            rows.append({"article": text(), "question": "Who?", "options": [text() for _ in range(3)], "answer": i % 3})
        else:
            rows.append(
                {
                    "text": text(),
                    "text2": text(),
                    "label": (i - 11.5) / 47.9166667**0.5 if task == "regress" else "xyz"[i % 3],
                }
            )
    if task == "qa":
        asked = []
        for i, row in enumerate(rows):
            at = row["text"].rfind(" ") + 1
            answers = [{"text": row["text"][at:], "answer_start": at}]
            asked.append({"context": row["text"], "qas": [{"id": str(i), "question": "What?", "answers": answers}]})
        path.write_text(json.dumps({"data": [{"title": str(i), "paragraphs": [one]} for i, one in enumerate(asked)]}))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def reference_inputs(setup: Any, batch: Any, tokenizer: Any) -> dict[str, torch.Tensor]:
    """A batch as transformers takes it."""
    kind, labels = setup.problem.kind.name, torch.as_tensor(batch.labels)
    if kind in ("classify", "regress"):
        texts = [list(setup.problem.train[i].texts) for i in batch.example_ids_B]
        columns = [list(column) for column in zip(*texts, strict=True)]
        return {**tokenizer(*columns, padding=True, return_tensors="pt"), "labels": labels}
    ids = torch.as_tensor(batch.input_ids_BS)
    values = {"input_ids": ids, "attention_mask": (ids != tokenizer.pad_token_id).long()}
    if kind == "choice":
        values = {key: value.view(len(labels), -1, value.shape[1]) for key, value in values.items()}
    if kind == "spans":
        return {**values, "start_positions": labels[:, 0], "end_positions": labels[:, 1]}
    return {**values, "labels": labels}


def reference_losses(folder: Path, setup: Any, rates: list[float], name: str) -> list[float]:
    import transformers

    model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).train()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": [p for p in model.parameters() if p.ndim < 2]}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.0)
    source = setup.batches(0, 0, 1)
    cursor, losses = source.first_cursor(), []
    for rate in rates:
        (batch,), cursor = source.take(cursor)
        inputs = reference_inputs(setup, batch, tokenizer)
        out = model(**inputs)
        loss = out.loss
        if setup.problem.kind.name == "spans":  # transformers lets padding take part; no answer is there
            padding = inputs["attention_mask"] == 0
            sides = ((out.start_logits, "start_positions"), (out.end_logits, "end_positions"))
            each = [torch.nn.functional.cross_entropy(x.masked_fill(padding, -1e9), inputs[key]) for x, key in sides]
            loss = sum(each) / 2
        loss.backward()
        losses.append(loss.item())
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("task", CLASSES)
def test_the_first_losses_are_those_of_transformers(
    task: str, tiny_tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    model = model_folder(tmp_path / "model", tiny_tokenizers["byte-bpe"])
    file = write_task(task, tmp_path / ("task.json" if task == "qa" else "task.jsonl"))
    options = {
        "task": task, "init": str(model), "train_file": str(file), "dev_file": str(file), "dropout": 0.0,
        "batch.num_rows": 4, "train.steps": STEPS, "train.warmup": 2.0, "train.learning_rate": 1e-2,
        "train.precision": "fp32", "train.device": "cpu", "train.log_every": 1,
        **({"table.text2": "text2"} if task == "pair" else {}),
    }  # fmt: skip
    quiet = Progress(quiet=True)
    run = build_run(FinetuneRun, options=options).run
    setup = prepare(run, quiet)
    setup.keep(tmp_path / "start", setup.build(0))
    export_hf(tmp_path / "start", tmp_path / "hf")
    finetune(run, tmp_path / "out", progress=quiet)
    lines = [json.loads(line) for line in (tmp_path / "out/seed-0/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "train/loss" in line]
    ours, rates = ([line[f"train/{key}"] for line in steps] for key in ("loss", "learning_rate"))
    theirs = reference_losses(tmp_path / "hf", setup, rates, CLASSES[task])
    assert len(ours) == STEPS
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert len({round(loss, 3) for loss in ours}) > 1
