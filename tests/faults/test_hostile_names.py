"""FAULTS.md row 33: control characters and HTML in labels, paths and file names are shown, never obeyed."""

from __future__ import annotations

import io
import json
import re
import warnings
from pathlib import Path

import click
import pytest

from remask import __main__ as program
from remask.commands import Common
from remask.documents import one_line
from remask.errors import DataError
from remask.exports.card import model_card
from remask.model.settings import HeadSettings, ModelSettings
from remask.progress import Progress
from remask.reports.charts import Series, line_chart
from remask.reports.page import Page
from remask.tasks.metrics import render
from remask.tokenizer import Tokenizer
from remask.tokenizer.foreign import byte_bpe
from remask.visible import visible, visible_json

from .zygote import Zygote

FORGED = "remask: finished, all is well"
HOSTILE = [
    f"x\n{FORGED}",
    f"x\r{FORGED}",
    f"x\u2028{FORGED}",
    "\x1b]0;title\x07",
    "\x1b[31mred\x1b[0m",
    "\x1b[2J\x1b[1;1H",
    "\x9b31m",  # the same in one character, for terminals that know C1
    "\x08\x08\x08\x08ok",
    "\u202egnp.exe",
    "\u2066a\u2069",
    "\x7f\x00\x0e",
    "\udcff",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "![x](http://a.b/c.png)",
    "[x](javascript:alert(1))",
    "| a | b |",
    "`code`",
    "&lt;b&gt;",
    "'\"><b>",
]
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")  # all but our newline


def assert_harmless(shown: str) -> None:
    assert not OBEYED.search(shown), ascii(shown)
    assert not [line for line in shown.splitlines() if line.startswith(FORGED)]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_name_is_shown_harmless_everywhere(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    progress = Progress(stream=stream)
    progress.say(name)
    progress.warn(name)
    with progress.stage(name) as stage:
        stage.note = name
    assert_harmless(stream.getvalue())

    with pytest.raises(SystemExit) as end:
        program._fail(*DataError(f"{name}: no such thing", name).args, code=DataError.exit_code)
    assert end.value.code == 65
    with warnings.catch_warnings():
        program._show_warning(UserWarning(name), UserWarning, "file", 1)
    common = Common((), None, False, False, (), False, progress)
    row = {"precision": 1.0, "recall": 1.0, "f1": 1.0, "support": 1}
    common.result({}, render({"classes": {name: row}, "averages": {"macro": row}}))
    shown = capsys.readouterr()
    assert_harmless(shown.err + shown.out)
    assert shown.err.count("\n") == 3  # a message, its detail, a warning

    Common((), None, False, False, (), True, progress).result({"label": name.replace("\udcff", "?")})
    line = capsys.readouterr().out
    assert_harmless(line)
    assert json.loads(line) == {"label": name.replace("\udcff", "?")}
    assert_harmless(one_line(name))


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_label_is_no_html_in_cards_and_reports(name: str) -> None:
    tokenizer = Tokenizer(byte_bpe([chr(n) for n in range(33, 127)], []))
    settings = ModelSettings(vocab_size=tokenizer.vocab_size, num_layers=1, hidden_size=8, num_heads=1, ffn_size=8)
    told = {"title": name, "description": name, "data": {f"class {name}": name}, "limits": [name]}
    card = model_card("RobertaModel", settings, HeadSettings(), tokenizer, told)
    assert_harmless(card)
    words = card.split("## Use")[0].replace("\\[", "").replace("\\]", "").replace("\\`", "").replace("\\|", "")
    assert not re.search(r"<\w|\]\(|`code`|\| a \|", words)

    page = Page(name, name)
    page.heading(name)
    page.text(name)
    page.table([name], [[name]])
    page.code(name)
    page.figure(line_chart([Series(name, [(0, 0), (1, 1)])], x_name=name, y_name=name), name)
    html = page.html()
    assert not OBEYED.search(html)
    assert "<script>alert" not in html
    assert "<img src=x" not in html


def test_names_stay_readable() -> None:
    for name in ("plain name.txt", "Ünïcode 文字.txt", "C:\\folder", "it's <fine> & [good]", "😀"):
        assert visible(name) == name
    assert visible("a\nb\tc\x1b") == "a\\nb\\tc\\x1b"
    assert visible("a\nb", lines=True) == "a\nb"
    assert json.loads(visible_json(json.dumps("\x9b\u202e\ud83d\ude00", ensure_ascii=True))) == "\x9b\u202e😀"


@pytest.mark.parametrize("name", ["\x1b[31mred", f"x\n{FORGED}", "\u202etxt"], ids=ascii)
def test_the_command_line_shows_paths_and_words_harmless(name: str, tmp_path: Path, zygote: Zygote) -> None:
    """Through the real program: a path that is not there, a file that is, a verb, an option, a value."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / f"{name}.bin").write_bytes(b"\x00")
    commands = [
        ["prepare", str(tmp_path / "missing" / name), "--out", str(tmp_path / "out")],
        ["prepare", str(folder), "--out", str(tmp_path / "out")],
        ["pretrain", str(tmp_path / f"{name}.yaml"), "--out", str(tmp_path / "out")],
        ["describe", str(folder)],
        [name],
        ["prepare", f"--{name}"],
        ["describe", "x", "--set", f"{name}=1"],
        ["switches", name],
    ]
    for words in commands:
        done = zygote.run(*words)
        assert done.returncode not in (0, 1), (words, done.stderr)
        assert_harmless(done.stderr + done.stdout)
        assert "Traceback" not in done.stderr


def test_messages_of_click_keep_their_lines() -> None:
    with pytest.raises(click.UsageError, match=r"a\\x1b"), program._visible_words():
        raise click.UsageError("a\x1b")
