"""The README's commands, executed in order as they are printed, on a tiny corpus and with tiny networks.

Only what costs time is changed: minutes become steps, networks shrink. `serve` is only checked (--dry-run), and of what
needs the papers' benchmarks only the run is built (--print-config); so with queries and their answers.
"""

from __future__ import annotations

import csv
import json
import random
import re
import shlex
from pathlib import Path

import click.testing
import pytest

from remask.__main__ import cli
from remask.exports.hf import export_hf
from remask.model.network import build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.model.store import save_model

ROOT = Path(__file__).resolve().parents[2]
DRAW = random.Random(0)
SUBJECTS = {"lift": ["The lift", "A door", "The stair"], "rent": ["The tenant", "A landlord", "The rent"]}
ENDINGS = ["is broken again.", "is late this month.", "waits for the rain.", "is older than it looks."]
TINY_MODEL = ["model.num_layers=1", "model.hidden_size=32", "model.num_heads=2", "model.ffn_size=32"]
TINY_DATA = ["model.max_length=64", "data.length=64", "data.batch.num_rows=4", "data.batch.micro_rows=4"]


def passage(topic: str, sentences: int) -> str:
    return " ".join(f"{DRAW.choice(SUBJECTS[topic])} {DRAW.choice(ENDINGS)}" for _ in range(sentences))


def commands() -> list[list[str]]:
    blocks = re.findall(r"^```console\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.M | re.S)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("remask ")]


def at_smoke_scale(words: list[str]) -> list[str]:
    verb = words[0]
    if "--tasks" in words:
        return [*words, "--print-config"]
    if verb == "serve" or "--qrels" in words:
        return [*words, "--dry-run"]
    if verb == "adapt":
        place = words.index("--minutes")
        small = ["--set", "data.batch.num_tokens=128", "--set", "text.heldout_fraction=0.1"]
        return [*words[:place], "--steps", "2", *words[place + 2 :], *small]
    if verb == "prepare":
        small = [word if word != "16384" else "300" for word in words]
        return [*small, "--set", "text.heldout_fraction=0.1", "--set", "workers=1"]
    if verb == "pretrain":
        place = words.index("--minutes")
        changes = [part for setting in (*TINY_MODEL, *TINY_DATA) for part in ("--set", setting)]
        return [*words[:place], "--steps", "2", *words[place + 2 :], *changes]
    if verb == "finetune":
        return [*words, "--epochs", "1", "--batch-size", "8", "--set", "rows.max_length=64"]
    if verb == "monitor":  # a classifier of seconds cannot tell classes apart, so there is nothing to correct by
        return [*words, "--set", "alarm.correct=false"]
    if "int8" in words:
        return [*words, "--max-drop", "1"]
    return words


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a reader brings: texts, tables with a text and a label."""
    (tmp_path / "path/to/texts").mkdir(parents=True)
    for number in range(60):
        topic = DRAW.choice(list(SUBJECTS))
        (tmp_path / f"path/to/texts/{number}.txt").write_text(passage(topic, 12))
    for name in ("train.csv", "dev.csv", "held-out.csv", "new.csv"):
        with (tmp_path / name).open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["body", "topic", "date"])
            topics = list(SUBJECTS) * 12
            rows.writerows([passage(t, 2), t, f"2026-10-{1 + day:02}"] for day, t in enumerate(topics))
    few = [f"The lift of house {n} is fine.,good\nThe rent of house {n} is late.,bad\n" for n in range(12)]
    (tmp_path / "few.csv").write_text("text,label\n" + "".join(few))
    pairs = [f"Where is lift {n}?,The lift of house {n} is behind the stair.\n" for n in range(20)]
    (tmp_path / "pairs.csv").write_text("question,answer\n" + "".join(pairs))
    texts = [{"en": passage("lift", 1), "de": passage("rent", 1)} for _ in range(30)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in texts))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def somebodys_model(folder: Path, tokenizer: Path) -> None:
    """RoBERTa's form in the size of the others here, in Hugging Face layout."""
    settings = ModelSettings(vocab_size=300, num_layers=1, hidden_size=32, num_heads=2, ffn_size=32, max_length=64)
    own = folder.with_name(f"{folder.name}-own")
    save_model(own, build_network(settings, HeadSettings(masked_lm=True), seed=1), tokenizer)
    export_hf(own, folder)


def test_every_command_of_the_readme_runs_in_order(folder: Path) -> None:
    for words in commands():
        for theirs in {"path/to/roberta-base", "path/to/model"} & set(words):
            if not Path(theirs).exists():
                somebodys_model(Path(theirs), Path("prepared/tokenizer"))
        run(at_smoke_scale(words))
    made_by_readme = ("encoder/report.html", "at-once/report.html", "answers.csv", "topics-hf/config.json")
    for made in (*made_by_readme, "tones.csv", "tone/report.html", "watch", "texts.index", "finder", "compare.html"):
        assert (folder / made).exists(), made


def run(words: list[str]) -> None:
    result = click.testing.CliRunner().invoke(cli, words)
    assert result.exit_code == 0, (words, result.output[-500:], result.exception)
