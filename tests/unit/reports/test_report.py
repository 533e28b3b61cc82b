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


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError):
        read_run(tmp_path / "none")
    with pytest.raises(DataError, match="not a training run"):
        read_run(tmp_path)
