"""`remask monitor` as a user runs it, with a real (tiny) classifier: docs/uses/opinion.md at smoke scale."""

from __future__ import annotations

import csv
import json
import random
import re
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click.testing
import pytest

from remask.__main__ import cli

ROOT = Path(__file__).resolve().parents[2]
DAYS = range(16, 25)


def remask(words: Sequence[Any], code: int = 0) -> click.testing.Result:
    done = click.testing.CliRunner().invoke(cli, [str(word) for word in words])
    assert done.exit_code == code, (words, done.output, done.exception)
    return done


def tweets(path: Path) -> None:
    """As the published file has them: newest first, American dates, no zone."""
    draw = random.Random(0)
    rows = []
    for day in DAYS:
        for hour in range(24):
            for airline in ("united", "JetBlue", "USAirways"):
                for _ in range(9 if airline == "united" else 5):
                    is_bad = draw.random() < (0.9 if airline == "JetBlue" and day >= 22 else 0.3)
                    word = "red cold" if is_bad else "warm new"
                    rows.append(
                        {
                            "text": f"@{airline} {word} {draw.randrange(10**6)}",
                            "tweet_created": f"2/{day}/2015 {hour}:{draw.randrange(60):02}",
                            "airline_sentiment": "negative" if is_bad else "positive",
                        }
                    )
    rows.append({"text": "no name", "tweet_created": "2/20/2015 1:00", "airline_sentiment": "neutral"})
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(reversed(rows))


def page_commands() -> list[list[str]]:
    blocks = re.findall(r"^```console\n(.*?)^```", (ROOT / "docs/uses/opinion.md").read_text(), flags=re.M | re.S)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines if line.strip()]


def test_the_page_about_opinion_runs(task_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tweets(tmp_path / "tweets.csv")
    commands = page_commands()
    assert [words[1] for words in commands] == ["docs/uses/opinion.py", "finetune", "monitor"]
    monkeypatch.setattr(sys, "argv", [str(ROOT / commands[0][1]), *commands[0][2:]])
    runpy.run_path(str(ROOT / commands[0][1]), run_name="__main__")
    fast = ["--set", "train.precision=fp32", "--set", "train.learning_rate=0.01", "--set", "rows.max_length=32"]
    named = [str(task_model) if word == "MODEL" else word for word in commands[1][1:]]
    remask([*named, *fast])
    watched = remask([*commands[2][1:], "--json", "--set", "precision=fp32"])
    *events, end = (json.loads(line) for line in watched.stdout.splitlines())
    assert end["event"] == "end"
    assert end["texts"] == len(DAYS) * 24 * 10
    alarms = [event for event in events if event["event"] == "alarm"]
    assert alarms == end["alarms"]
    assert [(alarm["group"], alarm["class"], alarm["onset"][:10]) for alarm in alarms] == [
        ("jetblue", "negative", "2015-02-22")
    ]
    assert "JetBlue" in (tmp_path / "watch/page.html").read_text()
    # Again: nothing is counted twice, and no alarm comes again, nor with --alarm-exit.
    again = remask([*commands[2][1:], "--json", "--set", "precision=fp32", "--alarm-exit", 3])
    (last,) = (json.loads(line) for line in again.stdout.splitlines())
    assert (last["texts"], last["alarms"], last["new_alarms"]) == (end["texts"], end["alarms"], 0)
    words = [word if word != "watch" else "watch-2" for word in commands[2][1:]]
    remask([*words, "--set", "precision=fp32", "--alarm-exit", 3], code=3)

    refused = remask([*words[:-1], "c", "--class", "angry"], code=1)
    assert "classes = angry: the model has no such class; it has negative, positive" in str(refused.exception)
    untold = remask(["monitor", task_model, "air/watch.csv", "--time", "created", "--out", "d"], code=1)
    assert "head" in str(untold.exception) or "classifies texts" in str(untold.exception)
    words[1] = "opinion/seed-0/best"  # a model that nothing was measured of
    bare = remask([*words[:-1], "e"], code=1)
    assert "has no confusion of its dev data beside it: give --labelled FILE" in str(bare.exception)
    told = remask([*words[:-1], "f", "--labelled", "air/dev.csv", "--set", "precision=fp32", "--json"])
    assert json.loads(told.stdout.splitlines()[-1])["alarms"] == end["alarms"]
