"""The page that `remask serve` shows at /, in a real browser: every task by clicks and by keys, two models side by
side, requests to copy, errors, links, and what a screen reader and a phone get."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest

from ..page_server import TOKEN, Server, link, open_page

SENTENCE = "The quick brown <mask> jumps."
CONTEXT = "\U0001f600\U0001f600 Mary Shelley wrote it by the river."
# task -> (model, tab, what is typed into which field, request to the server for the same)
TASKS: dict[str, tuple[str, str, dict[str, str], dict[str, Any]]] = {
    "fill-mask": ("run", "Fill mask", {"Sentence": SENTENCE}, {"inputs": SENTENCE, "top_k": 8}),
    "prompt": (
        "run",
        "Prompt",
        {
            "Text": "The lazy dog",
            "Patterns with {text} and <mask>, one a line": "{text} is <mask>.\n<mask>: {text}",
            "Words for each label, one label a line": "yes = dog, lazy fox\nno = river",
        },
        {
            "inputs": "The lazy dog",
            "patterns": ["{text} is <mask>.", "<mask>: {text}"],
            "words": {"yes": ["dog", "lazy fox"], "no": ["river"]},
        },
    ),
    "classify": ("topics", "Classify", {"Text": "The lazy dog"}, {"inputs": "The lazy dog"}),
    "pairs": (
        "topics",
        "Pairs",
        {"First text": "Who wrote it?", "Second text": "Mary"},
        {"inputs": {"text": "Who wrote it?", "text2": "Mary"}},
    ),
    "tag": ("names", "Entities", {"Text": CONTEXT}, {"inputs": CONTEXT}),
    "answer": (
        "answers",
        "Answer",
        {"Question": "Who wrote it?", "Context": CONTEXT},
        {"inputs": {"question": "Who wrote it?", "context": CONTEXT}},
    ),
    "choose": (
        "choices",
        "Choose",
        {"Text": "The fox", "Question about it (may be left empty)": "Who", "Options, one a line": "jumps\nwrote"},
        {"inputs": {"text": "The fox", "question": "Who", "options": ["jumps", "wrote"]}},
    ),
    "write": (
        "writes",
        "Write",
        {"Text": "The lazy dog"},
        {"inputs": "The lazy dog", "beams": 4, "max_length": 40, "attentions": True},
    ),
    "rank": (
        "run",
        "Rank",
        {"Query": "the dog", "Texts to rank, one a line": "the fox\nthe river\nMary"},
        {"inputs": {"query": "the dog", "texts": ["the fox", "the river", "Mary"]}},
    ),
    "embed": ("run", "Embed", {"Texts, one a line": "the fox\nMary"}, {"inputs": ["the fox", "Mary"]}),
    "tokenize": ("run", "Tokens", {"Text": " fox \U0001f600"}, {"inputs": " fox \U0001f600"}),
    "attention": (
        "run",
        "Attention",
        {"Text": "The lazy dog"},
        {"inputs": "The lazy dog", "states": False, "attentions": True},
    ),
}


def settled(page: Any) -> None:
    """The last request is answered and shown."""
    page.wait_for_timeout(300)  # longer than the page rests after a key
    page.wait_for_selector("[role=tabpanel]:not([hidden]) .results:not([aria-busy]) .column")


def results(page: Any) -> Any:
    return page.locator("[role=tabpanel]:not([hidden]) .results")


def percent(share: float) -> str:
    if share >= 0.9995:
        return "100%"
    return f"{share:.1%}" if share >= 0.1 else f"{share:.2%}" if share >= 0.001 else "<0.1%"


def rows(page: Any) -> list[list[str]]:
    """The bars that are shown, [name, number] each."""
    found = results(page).locator("table.bars tr").all()
    return [[row.locator("th").text_content(), row.locator("td.value").inner_text()] for row in found]


def check(page: Any, server: Server, task: str) -> None:
    """What is shown is what the server says."""
    model, _, _, body = TASKS[task]
    outputs = server.post("encode" if task == "attention" else task, model=model, **body)
    said = outputs[0]
    shown = results(page)
    if task == "fill-mask":
        assert [number for _, number in rows(page)] == [percent(fill["score"]) for fill in said]
        bars = shown.locator(".bar").evaluate_all("bars => bars.map(bar => parseFloat(bar.style.width))")
        assert bars == pytest.approx([100 * fill["score"] for fill in said], abs=0.01)  # 1 % looks like 1 %
    elif task in ("classify", "pairs", "prompt"):
        ordered = sorted(said["scores"].items(), key=lambda item: -item[1])
        assert [name.removesuffix(" (chosen)") for name, _ in rows(page)] == [name for name, _ in ordered]
        assert [number for _, number in rows(page)] == [percent(score) for _, score in ordered]
    elif task == "tag":
        marks = shown.locator("mark").all()
        assert [mark.text_content() for mark in marks] == [entity["text"] + entity["label"] for entity in said]
        assert len(marks) > 0
        assert shown.locator(".legend li").count() == len({entity["label"] for entity in said})
    elif task == "answer":
        assert said["text"], "the tiny model found nothing: choose another seed"
        assert shown.locator("mark").text_content() == said["text"] == CONTEXT[said["start"] : said["end"]]
        assert shown.locator(".passage").text_content() == CONTEXT
    elif task == "choose":
        assert [number for _, number in rows(page)] == [percent(score) for score in said["scores"]]
        assert "chosen" in rows(page)[said["index"]][0]
    elif task == "write":
        assert shown.locator(".verdict").text_content() == said["text"] != ""
        assert shown.get_by_role("option").count() == len(said["look"]["written"])
        mean = [
            sum(head[0][i] for head in said["look"]["attentions"][0]) / 2 for i in range(len(said["look"]["source"]))
        ]
        assert rows(page)[0][1] == percent(max(mean))
    elif task == "rank":
        assert [name for name, _ in rows(page)] == [one["text"] for one in said]
    elif task == "embed":
        cosine = sum(a * b for a, b in zip(*outputs, strict=True))
        assert f"{cosine:.3f}".replace("-", "\u2212") in shown.locator("table.matrix").inner_text()
    elif task == "tokenize":
        assert shown.locator(".token").count() == len(said["ids"])
        assert "F0" in shown.inner_text()
    else:
        assert shown.get_by_role("option").count() == len(said["tokens"])
        mean = [sum(head[0][i] for head in said["attentions"][0]) / 2 for i in range(len(said["tokens"]))]
        assert rows(page)[0][1] == percent(max(mean))


@pytest.mark.parametrize("task", TASKS)
def test_each_task_by_clicks(page_browser: Any, page_server: Server, task: str) -> None:
    model, tab, inputs, _ = TASKS[task]
    with open_page(page_browser, page_server.address) as (page, told):
        page.get_by_label("Model", exact=True).select_option(model)
        page.get_by_role("tab", name=tab, exact=True).click()
        for label, text in inputs.items():
            page.locator("[role=tabpanel]:not([hidden])").get_by_label(label, exact=True).fill(text)
        settled(page)
        check(page, page_server, task)
        if task == "tokenize":
            page.get_by_label("Show ids", exact=True).check()
            assert results(page).locator(".id").count() == results(page).locator(".token").count()
        assert told.console == []


@pytest.mark.parametrize("task", TASKS)
def test_each_task_by_keys_alone(page_browser: Any, page_server: Server, task: str) -> None:
    model, tab, inputs, _ = TASKS[task]
    with open_page(page_browser, page_server.address) as (page, told):
        page.wait_for_selector("[role=tab]")
        press_until(page, "Tab", "document.activeElement.id === 'model'")
        press_until(page, "ArrowDown", f"document.activeElement.value === {json.dumps(model)}", first=False)
        press_until(page, "Tab", "document.activeElement.role === 'tab'")
        press_until(page, "ArrowRight", f"document.activeElement.textContent === {json.dumps(tab)}", first=False)
        assert page.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        for label, text in inputs.items():
            press_until(page, "Tab", f"document.activeElement.labels?.[0]?.textContent === {json.dumps(label)}")
            page.keyboard.press("Control+A")
            page.keyboard.insert_text(text)
        settled(page)
        check(page, page_server, task)
        if task in ("attention", "write"):
            press_until(page, "Tab", "document.activeElement.role === 'listbox'")
            before = rows(page)
            page.keyboard.press("ArrowRight")
            assert results(page).get_by_role("option").nth(1).get_attribute("aria-selected") == "true"
            assert rows(page) != before
        assert page.locator("#said").inner_text() != ""
        assert told.console == []


def press_until(page: Any, key: str, condition: str, *, first: bool = True) -> None:
    for number in range(40):
        if (number or not first) and page.evaluate(condition):
            return
        page.keyboard.press(key)
    raise AssertionError(f"{key} never led to {condition}")


def test_two_training_steps_side_by_side(page_browser: Any, page_server: Server) -> None:
    with open_page(page_browser, page_server.address + link("fill-mask", "run@20", text=SENTENCE)) as (page, _):
        page.get_by_label("Compare with", exact=True).select_option("run@10")
        settled(page)
        columns = results(page).locator(".column")
        assert [h.inner_text() for h in columns.locator("h3").all()] == ["run@20", "run@10"]
        for column, model in zip(columns.all(), ("run@20", "run@10"), strict=True):
            said = page_server.post("fill-mask", model=model, inputs=SENTENCE, top_k=8)[0]
            numbers = [cell.inner_text() for cell in column.locator("td.value").all()]
            assert numbers == [percent(fill["score"]) for fill in said]
        boxes = [column.bounding_box() for column in columns.all()]
        assert boxes[0]["y"] == boxes[1]["y"]


def test_top_and_target_words(page_browser: Any, page_server: Server) -> None:
    with open_page(page_browser, page_server.address + link("fill-mask", "run", text=SENTENCE)) as (page, _):
        page.get_by_label("Candidates", exact=True).fill("3")
        settled(page)
        assert len(rows(page)) == 3
        words = [word for word in ("the", "it", "wrote", "over") if len(tokens_of(page_server, f" {word}")) == 1]
        page.get_by_label("Only these words").fill(", ".join(words))
        settled(page)
        assert sorted(name.split()[-1] for name, _ in rows(page)) == sorted(words)  # "joined:" stands before some
        assert len(words) >= 2
        page.get_by_label("Sentence", exact=True).fill("no word is missing")
        settled(page)
        assert "Write <mask>" in results(page).inner_text()
        page.get_by_role("button", name="Insert <mask>").click()
        settled(page)
        assert len(rows(page)) == len(words)


def test_candidates_of_scripts_without_spaces_have_no_sign(page_browser: Any, page_server: Server) -> None:
    script = """async (texts) => {
      const { candidate } = await import("/views.js");
      return texts.map((text) => [candidate(text)].flat().map((part) => part.textContent ?? part).join(""));
    }"""
    with open_page(page_browser, page_server.address) as (page, _):
        found = page.evaluate(script, ["中国", "のは", "ing", " dog", "\ufffd"])
    assert found == ["中国", "のは", "\u2026joined: ing", "dog", "part of a character"]


def tokens_of(server: Server, text: str) -> list[int]:
    return server.post("tokenize", model="run", inputs=text)[0]["ids"]


def test_an_overtaken_request_is_dropped(page_browser: Any, page_server: Server) -> None:
    with open_page(page_browser, page_server.address + link("fill-mask", "run", text=SENTENCE)) as (page, _):
        settled(page)
        held: list[Any] = []
        dropped: list[str] = []
        page.on("requestfailed", lambda request: dropped.append(request.post_data))
        page.route(
            "**/v1/fill-mask",
            lambda route: held.append(route) if "slow" in route.request.post_data else route.continue_(),
        )
        page.get_by_label("Sentence", exact=True).fill("slow <mask>")
        page.wait_for_timeout(400)
        assert len(held) == 1
        page.get_by_label("Sentence", exact=True).fill(SENTENCE.replace("quick", "lazy"))
        settled(page)
        assert len(dropped) == 1
        assert "slow" in dropped[0]
        said = page_server.post("fill-mask", model="run", inputs=SENTENCE.replace("quick", "lazy"), top_k=8)[0]
        assert [number for _, number in rows(page)] == [percent(fill["score"]) for fill in said]


@pytest.mark.parametrize("kind", ["curl", "Python"])
def test_a_copied_request_works_as_it_is(page_browser: Any, page_server: Server, kind: str) -> None:
    text = 'It\'s "<mask>" $(echo no) \\ `x` \U0001f600\nfox'
    if kind == "curl" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    options = {"permissions": ["clipboard-read", "clipboard-write"]}
    with open_page(page_browser, page_server.address + link("fill-mask", "run", text=text), **options) as (page, _):
        settled(page)
        page.get_by_role("button", name=f"Copy as {kind}").click()
        page.get_by_role("button", name="Copied").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
    assert TOKEN not in copied
    command = ["bash", "-c", copied] if kind == "curl" else [sys.executable, "-c", copied]
    done = subprocess.run(
        command, env={**os.environ, "REMASK_TOKEN": TOKEN}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    said = page_server.post("fill-mask", model="run", inputs=text, top_k=8)
    assert (json.loads(done.stdout)["outputs"] if kind == "curl" else eval(done.stdout)) == said


def test_a_link_brings_everything_back_but_the_token(page_browser: Any, page_server: Server) -> None:
    with open_page(page_browser, page_server.address) as (page, _):
        page.get_by_label("Model", exact=True).select_option("run@10")
        page.get_by_role("tab", name="Rank").click()
        page.get_by_label("Query", exact=True).fill("fox & <dog> #1")
        page.get_by_label("Compare with", exact=True).select_option("run")
        settled(page)
        address, before = page.url, rows(page)
        kept = page.evaluate("JSON.stringify({...localStorage})")
    assert TOKEN not in address + kept
    with open_page(page_browser, address) as (page, _):
        settled(page)
        assert page.get_by_label("Query", exact=True).input_value() == "fox & <dog> #1"
        assert page.get_by_role("tab", selected=True).inner_text() == "Rank"
        assert rows(page) == before
        page.goto(page_server.address + link("no-such-task", "../../etc/passwd", "run@999999"))
        settled(page)
        assert page.get_by_label("Model", exact=True).input_value() == "run"


def test_the_token_is_asked_for(page_browser: Any, page_server: Server) -> None:
    with open_page(page_browser, page_server.address, token="") as (page, _):
        page.get_by_label("Token", exact=True).wait_for()
        assert page.evaluate("document.activeElement.id") == "token"
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.get_by_role("alert").get_by_text("does not know this token").wait_for()
        page.keyboard.type(TOKEN)
        page.keyboard.press("Enter")
        settled(page)
        assert page.get_by_label("Token", exact=True).is_hidden()
        assert rows(page)


def test_errors_are_shown_decently(page_browser: Any, page_server: Server) -> None:
    long = "fox " * 400 + "<mask>"
    with open_page(page_browser, page_server.address + link("fill-mask", "run", text=long)) as (page, _):
        settled(page)
        alert = results(page).get_by_role("alert")
        assert re.search(r"tokens", alert.inner_text())
        assert "Traceback" not in alert.inner_text()

        busy = {"error": {"code": "overloaded", "message": "too many requests wait"}}
        page.route("**/v1/fill-mask", lambda route: route.fulfill(status=429, json=busy))
        page.get_by_label("Sentence", exact=True).fill(SENTENCE)
        settled(page)
        assert "Busy, try again" in alert.inner_text()
        page.unroute("**/v1/fill-mask")
        alert.get_by_role("button", name="Try again").click()
        settled(page)
        assert alert.count() == 0
        assert len(rows(page)) == 8

        page.context.set_offline(True)
        page.get_by_label("Sentence", exact=True).fill(SENTENCE + " again")
        settled(page)
        assert "does not answer" in alert.inner_text()
        page.context.set_offline(False)


def test_a_long_text_is_cut_only_when_asked_for(page_browser: Any, page_server: Server) -> None:
    long = "fox " * 400
    with open_page(page_browser, page_server.address + link("classify", "topics", text=long)) as (page, _):
        settled(page)
        results(page).get_by_role("button", name="Cut it to fit").click()
        settled(page)
        said = page_server.post("classify", model="topics", inputs=long, long_texts="cut")[0]
        assert rows(page)[0][1] == percent(said["score"])
        assert "are cut" in results(page).inner_text()
        results(page).get_by_role("button", name="Do not cut").click()
        settled(page)
        assert results(page).get_by_role("alert").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_fault_for_assistive_technology(page_browser: Any, page_server: Server, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    with open_page(page_browser, page_server.address, color_scheme=scheme) as (page, told):
        faults = []
        for task, (model, _, _, _) in TASKS.items():
            other = "run@10" if model == "run" else ""
            page.goto(page_server.address + link(task, model, other))
            settled(page)
            found = axe.run(page).response["violations"]
            faults += [
                (task, fault["id"], node["html"][:200])
                for fault in found
                if fault["impact"] in ("serious", "critical")
                for node in fault["nodes"]
            ]
        assert faults == []
        assert told.console == []


def test_on_a_phone_nothing_is_cut_off(page_browser: Any, page_server: Server) -> None:
    with open_page(page_browser, page_server.address, viewport={"width": 360, "height": 740}) as (page, _):
        for task, (model, _, _, _) in TASKS.items():
            page.goto(page_server.address + link(task, model, "run@10" if model == "run" else ""))
            settled(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, task


def test_light_and_dark_follow_the_system_until_chosen(page_browser: Any, page_server: Server) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with open_page(page_browser, page_server.address, color_scheme="dark") as (page, _):
        dark = page.evaluate(ground)
        page.get_by_role("button", name="Switch to light").click()
        assert page.evaluate(ground) != dark
        page.reload()
        assert page.evaluate(ground) != dark
        assert page.get_by_role("button", name="Switch to dark").is_visible()
