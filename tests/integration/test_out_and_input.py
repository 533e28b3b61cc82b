"""Rows 27 and 28 of FAULTS for the other verbs: what stands at --out stays, and a file that changes while it is read is
refused; finetune and evaluate read every kind of file that predict reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from remask.__main__ import cli
from remask.artifacts import PAGE_MARK
from remask.errors import ConfigError, DataError, OutputError
from remask.tasks.kind import TaskSource
from remask.tasks.kinds import open_problem
from remask.tasks.settings import TableSettings
from remask.tasks.texts import Classify


def invoke(*words: Any) -> Any:
    return CliRunner().invoke(cli, [str(word) for word in words])


def write_table(path: Path, count: int = 24) -> Path:
    rows = [{"body": f"{('red', 'blue')[n % 2]} big {n}", "topic": "ab"[n % 2]} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def finetune(init: Path, train: Path, out: Path, *more: Any) -> Any:
    words = ["--task", "classify", "--init", init, "--train", train, "--text", "body", "--label", "topic", "--out", out]
    return invoke("finetune", *words, "--epochs", 1, "--set", "train.precision=fp32", "-q", *more)


def test_folders_that_hold_something_else_are_left_alone(task_model: Path, tmp_path: Path) -> None:
    train = write_table(tmp_path / "train.jsonl")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("precious")
    done = finetune(task_model, train, mine)
    assert isinstance(done.exception, OutputError), done.output
    assert "holds something else (thesis.txt)" in str(done.exception)
    tuned = tmp_path / "tuned"
    assert finetune(task_model, train, tuned).exit_code == 0
    done = invoke("evaluate", tuned, "--test", train, "--out", mine, "-q")
    assert isinstance(done.exception, OutputError), done.output
    assert [path.name for path in mine.iterdir() if path.name != ".lock"] == ["thesis.txt"]
    for _ in range(2):  # its own folder may be used again
        assert invoke("evaluate", tuned, "--test", train, "--out", tmp_path / "scores", "-q").exit_code == 0
    assert isinstance(invoke("evaluate", tuned, "--test", train, "--out", tuned, "-q").exception, ConfigError)


def test_export_knows_its_own_result_and_no_others(task_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "hf"
    words = ["export", task_model, "--to", "hf", "--out", out, "--json", "-q"]
    first = invoke(*words)
    assert first.exit_code == 0, first.output
    before = (out / "manifest.json").read_bytes()
    again = invoke(*words)
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout) == json.loads(first.stdout)
    assert (out / "manifest.json").read_bytes() == before
    assert isinstance(invoke(*words, "--title", "Another").exception, OutputError)
    (out / "README.md").write_text("edited")
    assert isinstance(invoke(*words).exception, OutputError)
    assert (out / "README.md").read_text() == "edited"


@pytest.mark.parametrize("verb", ["compare", "report"])
def test_pages_replace_only_pages(verb: str, tmp_path: Path) -> None:
    runs = []
    for name in ("one", "two"):
        runs.append(tmp_path / name)
        runs[-1].mkdir()
        (runs[-1] / "run.yaml").write_text("seed: 0\n")
        (runs[-1] / "run.json").write_text(json.dumps({"machine": {}, "unigram_nats": None}))
        (runs[-1] / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 2.0}) + "\n")
    page = tmp_path / "page.html"
    words = [verb, *(runs if verb == "compare" else runs[:1]), "--out", page, "-q"]
    for _ in range(2):
        done = invoke(*words)
        assert done.exit_code == 0, (done.output, done.exception)
        assert PAGE_MARK in page.read_text()
    page.write_text("<html>my own page</html>")
    done = invoke(*words)
    assert isinstance(done.exception, OutputError)
    assert page.read_text() == "<html>my own page</html>"


@pytest.mark.parametrize("how", ["rewritten", "replaced"])
def test_a_file_that_changes_while_it_is_read_is_refused(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = write_table(tmp_path / "train.jsonl")
    source = TaskSource("classify", TableSettings(text="body", label="topic"), train)
    assert len(open_problem(source).train) > 10
    real = Classify.open

    def then_change(self: Any, given: TaskSource) -> Any:
        problem = real(self, given)
        if how == "rewritten":
            train.write_bytes(train.read_bytes())
        else:
            write_table(tmp_path / "new.jsonl").rename(train)
        return problem

    monkeypatch.setattr(Classify, "open", then_change)
    with pytest.raises(DataError, match=r"train\.jsonl: has changed while it was read"):
        open_problem(source)


def test_evaluate_keeps_nothing_under_a_hash_that_no_longer_holds(tmp_path: Path) -> None:
    from remask import artifacts
    from remask.evaluation.models import check_unchanged

    file = write_table(tmp_path / "a.jsonl")
    known = artifacts.sha256_of(file)
    check_unchanged([file], [known])
    write_table(file, 25)
    with pytest.raises(DataError, match="has changed while it was evaluated"):
        check_unchanged([file], [known])


def test_finetune_reads_what_predict_reads(task_model: Path, tmp_path: Path) -> None:
    """A delimiter that is guessed is said among the notes; encoding and header are options."""
    rows = [(f"{('red', 'blue')[n % 2]} caf\u00e9 {n}", "ab"[n % 2]) for n in range(24)]
    file = tmp_path / "train.csv"
    file.write_bytes("\n".join(["body;topic", *map(";".join, rows)]).encode("cp1252"))
    refused = finetune(task_model, file, tmp_path / "refused")
    assert isinstance(refused.exception, DataError)
    assert "train.csv:2: not UTF-8" in str(refused.exception)
    assert "--encoding" in str(refused.exception)
    done = finetune(task_model, file, tmp_path / "out", "--encoding", "cp1252", "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    notes = json.loads((tmp_path / "out" / "results.json").read_bytes())["notes"]
    assert any("divided by semicolons (guessed" in note for note in notes)
    (tmp_path / "rows.json").write_text(json.dumps([{"body": text, "topic": label} for text, label in rows]))
    scored = invoke("evaluate", tmp_path / "out", "--test", tmp_path / "rows.json", "--json", "-q")
    assert scored.exit_code == 0, (scored.output, scored.exception)
    again = invoke("evaluate", tmp_path / "out", "--test", file, "--encoding", "cp1252", "--json", "-q")
    assert json.loads(again.stdout)["metrics"] == json.loads(scored.stdout)["metrics"]


@pytest.mark.parametrize("task", ["qa", "ner", "choice"])
def test_other_kinds_read_tables_too(task: str, tmp_path: Path) -> None:
    rows: dict[str, list[dict[str, Any]]] = {
        "qa": [
            {"id": n, "context": f"The {w} bird.", "question": "Which?", "answers": {"text": [w], "answer_start": [4]}}
            for n, w in enumerate(("red", "old", "big", "new", "dark", "fast"))
        ],
        "ner": [{"text": ["Anna", f"{n}", "sings"], "label": ["B-PER", "O", "O"]} for n in range(6)],
        "choice": [{"question": f"It was _ {n}", "options": ["red", "old"], "answer": n % 2} for n in range(6)],
    }
    (tmp_path / "a.json").write_text(json.dumps(rows[task]))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[task]))
    found = [open_problem(TaskSource(task, TableSettings(), tmp_path / name)) for name in ("a.json", "a.jsonl")]
    keys = [[problem.kind.key(item) for item in (*problem.train, *problem.dev)] for problem in found]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 6
