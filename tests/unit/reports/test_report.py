"""Reports: they show the run's numbers, escape everything, load nothing from elsewhere."""

from __future__ import annotations

import json
import shlex
from html import escape
from pathlib import Path

import pytest
from click.testing import CliRunner

from remask.__main__ import cli
from remask.errors import DataError, MissingInputError
from remask.reports.page import Page
from remask.reports.report import comparison_report, training_report
from remask.reports.runs import read_run


def make_run(folder: Path, loss: float, rate: float) -> Path:
    folder.mkdir(parents=True)
    rows = [{"step": s, "train/loss": loss + 1 / s, "train/learning_rate": rate} for s in (1, 2, 3)]
    rows[-1] |= {"eval/loss": loss, "eval/perplexity": 12.5}
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 4, "tr'
    (folder / "metrics.jsonl").write_text(text)
    (folder / "run.yaml").write_text(f"train:\n  learning_rate: {rate}\n  steps: 3\n")
    return folder


def test_training_report_shows_the_last_values(tmp_path: Path) -> None:
    html = training_report(read_run(make_run(tmp_path / "run", 3.25, 0.001)), unigram_nats=7.5)
    for word in ("3.25", "12.5", "word frequencies alone", "learning_rate"):
        assert word in html


def test_training_report_says_how_to_try_the_model(tmp_path: Path) -> None:
    run = make_run(tmp_path / "my <b>run", 3.25, 0.001)
    html = training_report(read_run(run))
    assert escape(f"remask serve {shlex.quote(str(run))}") in html
    assert "href='http://127.0.0.1:8000/'" in html
    assert "<b>run" not in html


def test_a_page_escapes_and_needs_nothing_from_outside() -> None:
    page = Page("<script>alert(1)</script>", "a&b")
    page.table(["<i>"], [["<img src=x onerror=1>"]])
    page.text("<b>")
    page.code("</pre>", "<u>")
    html = page.html()
    for word in ("<script", "<img", "<i>", "<b>", "<u>", "http://", "https://"):
        assert word not in html
    assert "default-src 'none'" in html


def test_compare_shows_what_differs(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a", 3.0, 0.001), make_run(tmp_path / "b", 2.5, 0.002)]
    html = comparison_report([read_run(run) for run in runs])
    assert "train.learning_rate" in html
    assert "train.steps" not in html
    done = CliRunner().invoke(cli, ["compare", *map(str, runs), "--json", "--out", str(tmp_path / "c.html")])
    assert done.exit_code == 0
    result = json.loads(done.stdout)
    assert result["differences"] == {"train.learning_rate": [0.001, 0.002]}
    assert result["runs"]["b"]["eval/loss"] == 2.5
    assert (tmp_path / "c.html").read_text() == html
    runs += [make_run(tmp_path / "c", 2.0, 0.003), make_run(tmp_path / "d", 2.0, 0.001)]
    more = json.loads(CliRunner().invoke(cli, ["compare", *map(str, runs), "--json"]).stdout)
    assert more["differences"] == {"train.learning_rate": [0.001, 0.002, 0.003, 0.001]}


def test_compare_says_what_keeps_numbers_from_being_compared(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a", 3.0, 0.001), make_run(tmp_path / "b", 2.5, 0.001)]
    for run, rows in zip(runs, (64, 256), strict=True):
        (run / "checkpoints" / "step-000000003" / "tokenizer").mkdir(parents=True)
        (run / "checkpoints" / "step-000000003" / "tokenizer" / "tokenizer.json").write_text(f'{{"rows": {rows}}}')
        (run / "run.yaml").write_text(f"data: {{length: 128, evaluation: {{num_rows: {rows}, length: 512}}}}\n")
    with (runs[1] / "metrics.jsonl").open("a") as file:  # a sentence loss of 0.5 is added to a masked one of 2
        file.write('\n{"step": 9, "train/loss": 2.5, "train/loss_mlm": 2.0, "train/tokens": 12345}\n')
    done = CliRunner().invoke(cli, ["compare", *map(str, runs), "--out", str(tmp_path / "c.html")])
    assert done.exit_code == 0, done.output
    table = {line[:16].strip(): line[16:].split() for line in done.stdout.splitlines()[:-1]}
    assert table["steps"] == ["3", "9"]
    assert table["tokens seen"] == ["-", "12,345"]
    assert table["training loss"] == ["3.3333", "2"]
    assert table["with sentences"] == ["3.3333", "2.5000"]
    for text in (done.stderr, (tmp_path / "c.html").read_text()):
        assert "The vocabularies differ" in text
        assert "a 64 rows of 128" in text
        assert "b 256 rows of 128" in text
    assert "not measured, since the runs do not have the same text" in done.stderr
    assert "nats per masked token" in (tmp_path / "c.html").read_text()


def test_a_page_that_its_own_command_wrote_is_shown_or_copied(tmp_path: Path) -> None:
    page = Page("Fine-tuning: classify").html()
    (tmp_path / "report.html").write_text(page)
    done = CliRunner().invoke(cli, ["report", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(tmp_path / "report.html")
    CliRunner().invoke(cli, ["report", str(tmp_path), "--out", str(tmp_path / "copy.html")])
    assert (tmp_path / "copy.html").read_text() == page == (tmp_path / "report.html").read_text()


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError):
        read_run(tmp_path / "none")
    with pytest.raises(DataError, match="not a training run"):
        read_run(tmp_path)
