"""docs/python.md runs as it stands, and its functions are those that the page and help() name."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import remask

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_the_page_runs_from_text_to_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S):
        exec(compile(block, str(PAGE), "exec"), names)
    said = capsys.readouterr().out
    assert "held-out loss" in said
    assert "boddy" in said  # the mistake of the last block, in words
    assert names["scores"]["data"]["test"] == 30
    assert (tmp_path / "answers.csv").read_text().splitlines()[0].startswith("body,topic,prediction")
    again = remask.pretrain("modern_tiny", data="prepared", steps=40, out="encoder", settings=names["tiny"])
    assert again["loss"] == names["encoder"]["loss"]  # finished already: the same result, nothing trained


@pytest.mark.parametrize("name", [name for name in remask.__all__ if callable(getattr(remask, name))])
def test_every_function_says_what_it_does(name: str) -> None:
    function = getattr(remask, name)
    assert name in dir(remask)
    assert (inspect.getdoc(function) or "").strip()
    untyped = [p.name for p in inspect.signature(function).parameters.values() if p.annotation is p.empty]
    assert not untyped or inspect.isclass(function)
