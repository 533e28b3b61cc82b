"""The page of a study: the picture first, what is broken apart, its script allowed by hash; in a browser on a phone."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from remask.studies.page import study_page

NAMES = ("plain", "static masks <script>alert(1)</script>", "a row with a rather long label, as tables have them")


def a_row(number: int, label: str) -> dict[str, Any]:
    value = 1.5 - number / 10
    said = {
        "word": "better",
        "value": -0.1,
        "low": -0.12,
        "high": -0.08,
        "p": 0.01,
        "smallest": 0.02,
        "words": "better: …",
    }
    return {
        "label": label, "about": "what it is", "note": False, "decide": "bits_per_byte",
        "against": NAMES[0] if number else None, "seeds": [0, 1],
        "broken": {"2": ["diverged: the loss is not a number"]} if number == 1 else {},
        "metrics": {"bits_per_byte": {"median": value, "low": value - 0.01, "high": value + 0.01}},
        "tokens": 1_000_000, "minutes": 3.0, "parameters": 4e6, "flops": 6e13, "evaluation_minutes": 2.0,
        "settings": [["data.masking.repeat", "dynamic", "static"]] if number else [], "tune": {}, "tokenizer": {},
        "paper": {"F1": 78.7 - number}, "paper_rank": number + 1, "expected": None, "notes": [], "layers": [],
        "beside_paper": "disagrees: worse in the paper (F1 77.7 against 78.7), better here" if number else "",
        "beside_expected": "",
        "curves": [{"seed": s, "points": [[t * 1e5, value + 1 / t + s / 50] for t in range(1, 9)]} for s in (0, 1)],
        "runs": [{"seed": s, "metrics": {"bits_per_byte": value + s / 50}, "minutes": 3.0} for s in (0, 1)],
        "verdicts": {"bits_per_byte": said} if number else {},
    }  # fmt: skip


@pytest.fixture
def html() -> str:
    values = {
        "name": "mine", "title": "A question?", "about": "", "scale": "tiny", "scale_about": "small", "seeds": 3,
        "hardware": "a machine", "date": "2026-11-17", "decide": {"metric": "bits_per_byte", "difference": 0.01},
        "metrics": [{"name": "bits_per_byte", "title": "bits per byte", "higher_is_better": False}],
        "paper": {"source": "a paper", "by": "F1", "higher": True}, "findings": ["static: better"],
        "rows": [a_row(number, label) for number, label in enumerate(NAMES)],
    }  # fmt: skip
    return study_page(values)


def test_the_picture_comes_first_and_nothing_runs_but_the_sorting(html: str) -> None:
    assert "A question? (scale: tiny)" in html
    assert html.index("class='dots'") < html.index("The table") < html.index("Runs that are no results")
    assert "paper: 2nd" in html
    assert "disagrees: worse in the paper" in html
    (script,) = re.findall(r"<script>(.*?)</script>", html, flags=re.S)
    mark = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{mark}'" in html
    assert "alert(1)</script>" not in html


def test_on_a_phone_it_is_readable_and_sorts(html: str, tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    (tmp_path / "page.html").write_text(html)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 375, "height": 800}, color_scheme="dark")
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.goto((tmp_path / "page.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") == 375
        heights = page.evaluate(
            "[...document.querySelectorAll('.chart text, .dots *')]"
            ".filter(e => e.textContent.trim() && !e.children.length && getComputedStyle(e).display !== 'none')"
            ".map(e => parseFloat(getComputedStyle(e).fontSize)"
            " * (e.closest('svg') ? e.closest('svg').getBoundingClientRect().width / 640 : 1))"
        )
        assert min(heights) >= 9.5, "text of charts does not shrink away"
        page.locator("th button", has_text="bits per byte").click()
        first = page.locator("table.sortable tbody tr").first.inner_text()
        browser.close()
    assert first.startswith(NAMES[2])
    assert said == []
