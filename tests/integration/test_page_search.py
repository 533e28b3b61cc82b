"""The search tab of the page in a real browser: both ways side by side, the passage marked, the map with the query."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import remask
from remask.progress import Progress

from ..page_server import PAYLOADS, TOKEN, Server, link, need_browser, open_page, serve
from ..serving import tiny_models

FOX = "The quick brown fox jumps over the lazy dog. A fox runs by the river. Nobody wakes the dog."
BOOK = "Mary Shelley wrote the book. Who wrote it? Mary wrote it by the river."


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizers: dict[str, Path]) -> Iterator[Server]:
    need_browser()
    folder = tmp_path_factory.mktemp("page-search")
    models = tiny_models(folder, tiny_tokenizers["byte-bpe"])
    rows = [{"id": "fox", "text": FOX, "shelf": "A"}, {"id": "book", "text": BOOK, "shelf": "B"}]
    rows += [{"id": word, "text": f"{word} dog {i}", "shelf": word} for i, word in enumerate(PAYLOADS)]
    docs = folder / "docs.jsonl"
    docs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"passages.length": 24}
    remask.index(
        model=models["lm"], docs=[docs], out=folder / "manuals", fields=["shelf"], settings=settings,
        progress=Progress(quiet=True),
    )  # fmt: skip
    with serve({"manuals": folder / "manuals", "lm": models["lm"]}) as server:
        yield server


def shown(page: Any) -> Any:
    page.wait_for_selector("[role=tabpanel]:not([hidden]) .results:not([aria-busy]) .hits li")
    return page.locator("[role=tabpanel]:not([hidden]) .results")


def test_what_is_found_is_shown_side_by_side_with_its_passage_marked(searched: Server, page_browser: Any) -> None:
    with open_page(page_browser, searched.address + link("search", "manuals", query="who wrote it?")) as (page, _):
        results = shown(page)
        said = searched.post("search", inputs="who wrote it?", top_k=5, lists=True)[0]
        for name, key in (("By vectors", "vectors"), ("By words", "words")):
            items = results.get_by_role("list", name=name).get_by_role("listitem")
            assert items.count() == len(said[key])
            assert said[key][0]["text"] in items.nth(0).locator("mark").inner_text()
            assert f"shelf: {said[key][0]['fields']['shelf']}" in items.nth(0).inner_text()
        words = results.get_by_role("list", name="By words")
        assert {text.lower() for text in words.locator("mark strong").all_inner_texts()} >= {"wrote"}
        assert words.locator(".around").count() > 0
        page.get_by_label("Show", exact=True).select_option("both as one")
        assert results.get_by_role("list", name="Vectors and words as one").count() == 1
        page.get_by_label("Look for").fill("")
        page.get_by_text("Write what to look for.").first.wait_for()


def test_the_map_has_the_collection_and_the_query(searched: Server, page_browser: Any) -> None:
    with open_page(page_browser, searched.address + link("search", "manuals", query="fox")) as (page, told):
        canvas = shown(page).locator(".collection canvas")
        assert "the query stands near" in (canvas.get_attribute("aria-label") or "")
        page.wait_for_function("document.querySelector('.collection canvas').width > 300")
        drawn = """() => { const c = document.querySelector('.collection canvas');
            const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; }"""
        page.wait_for_function(f"({drawn})() > 200")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        point = json.loads(page.evaluate(ASK_MAP, TOKEN))["points"][0]
        x = box["x"] + 14 + (point["x"] + 1) / 2 * (box["width"] - 28)
        y = box["y"] + 14 + (1 - point["y"]) / 2 * (box["height"] - 28)
        page.mouse.move(x, y)
        page.locator(".collection p.soft", has_text=": ").wait_for()
        page.get_by_label("Look for").fill("river")
        page.wait_for_timeout(400)
        shown(page)
        assert sum("/v1/map" in url for url in told.asked) == 2, "asked for once by the page, once by this test"


ASK_MAP = "async (token) => (await fetch('v1/map?model=manuals', {headers: {Authorization: `Bearer ${token}`}})).text()"


@pytest.mark.parametrize("width", [1280, 375])
def test_it_fits_its_screen_and_reads_well(searched: Server, page_browser: Any, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    address = searched.address + link("search", "manuals", query="the lazy dog")
    with open_page(page_browser, address, viewport={"width": width, "height": 900}) as (page, _):
        shown(page)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        wrong = axe.Axe().run(page).response["violations"]
        assert wrong == [], [one["id"] for one in wrong]
        page.locator("#model").select_option("lm")
        assert page.get_by_role("tab", name="Search").count() == 0, "only an index is searched"
