"""The command line as a user meets it: help, completion, errors in one line with their exit codes, plain output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from remask import __version__
from remask.__main__ import VERBS

from ..faults.zygote import Zygote


def remask(*words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "remask", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
    )


def test_help_names_every_verb() -> None:
    done = remask("--help")
    assert done.returncode == 0
    for verb in VERBS:
        assert f"  {verb} " in done.stdout
    assert remask("--version").stdout == f"remask {__version__}\n"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_the_common_options(verb: str, zygote: Zygote) -> None:
    done = zygote.run(verb, "--help")
    assert done.returncode == 0, done.stderr
    for option in ("--set", "--seed", "--dry-run", "--print-config", "--json", "--quiet", "--debug"):
        assert option in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(shell: str) -> None:
    code = "import sys; sys.argv[0] = 'remask'; from remask.__main__ import main; main()"
    env = {**os.environ, "_REMASK_COMPLETE": f"{shell}_source"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert "_REMASK_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    "words, code, message",
    [
        (["pretrian"], 2, "did you mean pretrain?"),
        (["prepare"], 2, ""),
        (["prepare", "no/such/file.txt", "--out", "x"], 66, "no/such/file.txt"),
        (["pretrain", "no-such-run.yaml", "--out", "x"], 66, "no-such-run.yaml: no such run file"),
        (["inspect", "no-such-folder"], 66, "no-such-folder"),
        (["report", "no-such-folder"], 66, "no-such-folder"),
        (["quickstart", "no/such/corpus", "--out", "x"], 66, "no/such/corpus"),
        (["describe", "no/such/model"], 66, "no/such/model"),
        (["describe", "x" * 300], 74, "File name too long"),
        (["describe", "roberta_tiny", "--set", "device=moon"], 69, "device = moon"),
        (["prepare", "README.md", "--out", "x", "--set", "nonsense=1"], 78, "unknown key nonsense"),
    ],
)
def test_mistakes_are_one_line_with_an_exit_code(
    words: list[str], code: int, message: str, tmp_path: Path, zygote: Zygote
) -> None:
    (tmp_path / "README.md").write_text("hello\n")
    done = zygote.run(*words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert not (tmp_path / "x" / "manifest.json").exists()


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in remask("report", "none", "--debug", cwd=tmp_path).stderr


def test_doctor_probes_every_precision_without_dying() -> None:
    done = remask("doctor", "--json")
    assert done.returncode in (0, 69), done.stderr
    found = json.loads(done.stdout)
    assert set(found["precisions"]) == {"fp32", "bf16", "fp16"}
    assert found["precisions"]["fp32"]
    names = [finding["name"] for finding in found["findings"]]
    for name in ("python", "torch", "threads", "gpu", "memory", "disk", "compiler", "allocator", "extra serve"):
        assert name in names
    for finding in found["findings"]:
        assert finding["state"] == "ok" or finding["advice"]


def test_doctor_says_so_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so is missing')")
    done = remask("doctor", "--out", "not/made/yet", "--json", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 69, done.stderr
    found = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert "libcudart" in found["torch"]["value"]
    assert found["torch"]["advice"]
    assert found["disk"]


def test_switches_lists_every_decision_with_its_values() -> None:
    found = json.loads(remask("switches", "--json").stdout)["switches"]
    keys = {row["key"] for row in found}
    assert {"model.sharing", "model.norm", "data.format", "data.masking.repeat", "train.optimizer"} <= keys
    for row in found:
        assert row["doc"]
        assert row["effect"] in ("math", "data", "speed")
        assert len(row["values"]) >= 1, f"{row['key']} gives no value to turn it to"
    text = remask("switches", "pretrain").stdout
    assert "model.sharing" in text
    assert "\x1b" not in text
