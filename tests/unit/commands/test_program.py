"""Commands that remask prints work as printed."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click.testing
import pytest

import remask
from remask.__main__ import cli
from remask.commands import program
from remask.commands.doctor import EXTRAS
from remask.config import ConfigError, build_run, find_run
from remask.errors import install_command
from remask.tune.settings import FinetuneRun

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("on_path", [False, True])
def test_the_printed_name_starts_this_remask(on_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "my tools" / "remask"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nprint('this one')\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), "quickstart"])
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin" if on_path else "/usr/bin:/bin")
    name = program()
    assert (name == "remask") == on_path
    assert subprocess.run(name, shell=True, capture_output=True, text=True, check=True).stdout == "this one\n"


def test_a_module_call_is_printed_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["somewhere/__main__.py", "quickstart"])
    assert program().endswith("-m remask")


def json_of(*words: str) -> Any:
    done = click.testing.CliRunner().invoke(cli, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("folder", [ROOT, ROOT.parent])
def test_an_extra_is_installed_into_the_checkout_that_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    python, *words = shlex.split(install_command("onnx"))
    assert (folder / python).samefile(sys.executable)
    assert words[:4] == ["-m", "pip", "install", "-c"]
    assert (folder / words[4]).samefile(ROOT / "constraints.txt")
    place, bracket, extra = words[6].partition("[")
    assert (words[5], bracket + extra) == ("-e", "[onnx]")
    assert (folder / place).samefile(ROOT)


def test_an_extra_of_the_installed_package_needs_no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remask.errors, "__file__", str(tmp_path / "site-packages" / "remask" / "errors.py"))
    assert shlex.split(install_command("onnx"))[1:] == ["-m", "pip", "install", "remask[onnx]"]


def test_doctor_knows_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"])


def test_runs_are_listed_and_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = json_of("runs")["runs"]
    assert {"wiki_small", "roberta_base", "whole_words"} <= {r["name"] for r in rows if r["verb"] == "pretrain"}
    for row in rows:
        assert row["about"], row
        assert "remask " not in row["about"][:7], row
        assert find_run(row["verb"], row["name"]) == Path(row["file"])
    assert {row["verb"] for row in json_of("runs", "tune")["runs"]} == {"tune"}
    with pytest.raises(ConfigError, match=r"'own_tabel' is neither a run file nor one of .*did you mean own_table\?"):
        find_run("finetune", "own_tabel")


@pytest.mark.parametrize(
    "words", [["finetune", "own_table"], ["tune", "own_table"], ["prepare", "cc_news"], ["evaluate", "paper"]]
)
def test_a_verb_takes_the_name_of_a_run(words: list[str], tmp_path: Path) -> None:
    done = click.testing.CliRunner().invoke(cli, [*words, "--out", str(tmp_path / "out"), "--print-config"])
    assert done.exit_code == 0, done.output
    by_path = [words[0], str(find_run(*words)), "--out", str(tmp_path / "out"), "--print-config"]
    assert done.stdout == click.testing.CliRunner().invoke(cli, by_path).stdout


def test_the_options_that_people_type(tmp_path: Path) -> None:
    words = ["finetune", "--lr", "1e-4", "--batch-size", "8", "--epochs", "2", "--out", str(tmp_path), "--print-config"]
    done = click.testing.CliRunner().invoke(cli, words)
    for line in ("learning_rate: 0.0001", "num_rows: 8", "epochs: 2.0"):
        assert line in done.stdout
    for typed, meant in (("train.lr", "train.learning_rate"), ("batch_size", "batch.num_rows")):
        with pytest.raises(ConfigError, match=f"unknown key {typed}; did you mean {meant}"):
            build_run(FinetuneRun, None, [f"{typed}=1"])
