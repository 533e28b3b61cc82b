"""The report in a real browser: drawn, offline, readable on a phone and in the dark."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from remask.reports.report import training_report
from remask.reports.runs import read_run

# A browser that looks for nobody on the network while it starts.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run")
    rows = [
        {"step": s, "train/loss": 9 - s / 20, "train/learning_rate": 1e-3, "eval/loss": 9 - s / 25}
        for s in range(1, 80)
    ]
    hostile = "<img src=x onerror=document.title='ran'> text ___"
    rows[-1]["samples"] = [{"text": hostile, "hidden": "<b>x", "answers": [{"word": "y", "score": 0.01}]}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.yaml").write_text("train: {learning_rate: 0.001}\nname: '<script>document.title=1</script>'\n")
    path = folder / "report.html"
    path.write_text(training_report(read_run(folder), unigram_nats=8.0))
    return path.as_uri()


def test_it_is_drawn_and_asks_nobody(browser: Any, report: str) -> None:
    page = browser.new_page()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto(report)
    assert asked == [report]
    assert said == []
    assert page.title().startswith("Training run")
    for chart in page.locator("svg.chart").all():
        box = chart.bounding_box()
        assert box["width"] > 300
        assert box["height"] > 100
    line = page.locator("polyline").first.bounding_box()
    assert line["height"] > 50
    assert page.get_by_text("<img src=x", exact=False).count() == 1
    page.close()


def test_on_a_phone_and_in_the_dark(browser: Any, report: str) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        page = browser.new_page(viewport={"width": 360, "height": 740}, color_scheme=scheme)
        page.goto(report)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        colours[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.close()
    assert colours["light"] != colours["dark"]


def test_the_first_screen_is_the_curve_and_the_answers(browser: Any, report: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(report)
    answers, numbers = page.locator(".fill").first.bounding_box(), page.locator(".tiles").bounding_box()
    assert page.locator("svg.chart").first.bounding_box()["y"] < answers["y"] < 800 - answers["height"]
    assert answers["y"] < numbers["y"]
    page.close()


def test_words_of_charts_are_as_large_on_a_phone(browser: Any, report: str) -> None:
    page = browser.new_page(viewport={"width": 375, "height": 740})
    page.goto(report)
    seen = "es => es.filter(e => e.checkVisibility()).map(e => parseFloat(getComputedStyle(e).fontSize))"
    for kind in (".tick", ".rule-name", ".plot-name", ".legend li", ".dot-name", ".dot-value"):
        sizes = page.locator(kind).evaluate_all(seen)
        assert sizes, kind
        assert min(sizes) >= 12, kind
    ticks = [box for tick in page.locator(".plot-box").first.locator(".tick.x").all() if (box := tick.bounding_box())]
    assert all(one["x"] + one["width"] < next_["x"] for one, next_ in itertools.pairwise(ticks)), "no two overlap"
    page.close()
