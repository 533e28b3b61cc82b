"""FAULTS.md row 25: 60 payloads typed, linked, as labels of a model and in everything a server says; none runs. Model
ids that look like paths are unknown models.

"None runs" is four facts: nothing called alert, the browser's policy had nothing to block (a page that leans on the
policy alone would fail here), no element or attribute came from a payload, and the payloads are readable as text.
"""

from __future__ import annotations

import json
import urllib.error
from typing import Any

import pytest

from ..page_server import PAYLOADS, Server, link, open_page

OWN = "a article button canvas code details div footer form h1 h2 h3 h4 header img input label li main mark noscript ol"
OWN += " option p pre section select span summary table tbody td textarea th thead tr ul"
RUNS = ["srcdoc", "action", "formaction", "xlink:href"]
# Elements that are not the page's own, or carry something that could run.
FOREIGN = """([own, runs]) => [...document.body.querySelectorAll("*")].filter((element) =>
  !own.includes(element.localName)
  || [...element.attributes].some(({ name }) => name.startsWith("on") || runs.includes(name))
  || (element.hasAttribute("src") && element.getAttribute("src") !== "icon.svg")
  || (element.hasAttribute("href") && !["#main", "docs", "openapi.json"].includes(element.getAttribute("href")))
).map((element) => element.outerHTML.slice(0, 200))"""
SHOWN = "[role=tabpanel]:not([hidden]) .results"


def check(page: Any) -> None:
    assert page.evaluate(FOREIGN, [OWN.split(), RUNS]) == []
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    assert page.evaluate("[window.ran, window.violations.length]") == [0, 0]


def shown(page: Any, text: str) -> None:
    """Wait until the answer holds the text, as text."""
    page.wait_for_function(
        "([where, text]) => document.querySelector(where)?.textContent.includes(text)", arg=[SHOWN, text]
    )


def test_typed_and_linked(page_browser: Any, page_server: Server) -> None:
    assert len(set(PAYLOADS)) == 60
    with open_page(page_browser, page_server.address) as (page, _):
        for number, payload in enumerate(PAYLOADS):
            page.goto(page_server.address + link("rank", "run", query=payload, texts=f"{number} {payload}"))
            shown(page, f"{number} {payload}")
        check(page)
        page.get_by_label("Query", exact=True).fill(PAYLOADS[0])
        page.get_by_label("Texts to rank, one a line", exact=True).fill("\n".join(PAYLOADS))
        for payload in PAYLOADS:
            shown(page, payload)
        check(page)


@pytest.mark.parametrize("task, model, inputs", [
    ("fill-mask", "run", ["text", "targets"]), ("classify", "topics", ["text"]), ("pairs", "topics", ["text", "text2"]),
    ("tag", "names", ["text"]), ("answer", "answers", ["question", "context"]),
    ("choose", "choices", ["text", "question", "options"]), ("embed", "run", ["texts"]),
    ("tokenize", "run", ["text"]), ("attention", "run", ["text"]),
])  # fmt: skip
def test_in_every_field(page_browser: Any, page_server: Server, task: str, model: str, inputs: list[str]) -> None:
    """Two at once in every field, where the address brings them; the fields themselves show them as they are."""
    text = f"{PAYLOADS[0]}\n{PAYLOADS[7]}"
    values = dict.fromkeys(inputs, text + (" <mask>" if task == "fill-mask" else ""))
    with open_page(page_browser, page_server.address + link(task, model, **values)) as (page, _):
        page.wait_for_selector(f"{SHOWN} .column")
        check(page)
        area = page.locator("[role=tabpanel]:not([hidden]) textarea").first
        assert area.input_value() == values[inputs[-1] if task == "answer" else inputs[0]]
        page.get_by_text("Show the request").locator("visible=true").click()
        assert "alert(1)" in page.locator("[role=tabpanel]:not([hidden]) pre").first.inner_text()
        check(page)


def test_as_labels_of_a_model(page_browser: Any, page_server: Server) -> None:
    with open_page(page_browser, page_server.address + link("classify", "hostile", text="fox")) as (page, _):
        for payload in PAYLOADS:
            shown(page, payload)
        names = [name.removesuffix(" (chosen)") for name in page.locator(f"{SHOWN} th").all_text_contents()]
        assert sorted(names) == sorted(PAYLOADS)
        check(page)
        page.goto(page_server.address + link("tag", "hostile-names", text="The quick brown fox jumps"))
        page.wait_for_selector(f"{SHOWN} mark")
        labels = page.locator(f"{SHOWN} mark .label").all_text_contents()
        assert labels
        assert set(labels) <= set(PAYLOADS)
        check(page)


def forged(task: str, words: list[str]) -> Any:
    """An answer of the right form with payloads wherever there is text."""
    share = 1 / len(words)
    return {
        "fill-mask": [{"score": share, "token": 1, "token_str": word, "sequence": word} for word in words],
        "classify": {"label": words[0], "score": share, "scores": dict.fromkeys(words, share), "labels": words[:1]},
        "tag": [
            {"label": word, "text": word, "start": i, "end": i + 1, "score": share} for i, word in enumerate(words)
        ],
        "answer": {"text": words[0], "start": 0, "end": 3, "score": share},
        "rank": [{"index": i, "score": share, "text": word} for i, word in enumerate(words)],
        "tokenize": {
            "ids": [*range(len(words))],
            "tokens": words,
            "spans": [],
            "bytes": ["" if i % 2 else word.encode().hex() for i, word in enumerate(words)],
        },
        "encode": {
            "ids": [*range(len(words))],
            "tokens": words,
            "bytes": ["" if i % 2 else word.encode().hex() for i, word in enumerate(words)],
            "attentions": [[[[share] * len(words)] * len(words)]],
        },
    }[task]


@pytest.mark.parametrize("answers", ["outputs", "errors"])
def test_in_what_a_server_says(page_browser: Any, page_server: Server, answers: str) -> None:
    """Models with hostile ids and mask, hostile answers, hostile errors: the page trusts none of them."""
    tasks = ["fill-mask", "classify", "pairs", "tag", "answer", "rank", "encode", "tokenize"]
    facts = {
        "default": False, "tasks": tasks, "labels": PAYLOADS, "kind": None, "takes": PAYLOADS[0], "max_length": 9,
        "mask_token": PAYLOADS[1], "num_layers": 1, "num_heads": 1, "hidden_size": 1, "vocab_size": 1, "parameters": 1,
        "precision": PAYLOADS[2], "tokenizer": PAYLOADS[3], "step": None, "steps": [],
    }  # fmt: skip
    models = {"models": [{"id": payload, **facts} for payload in PAYLOADS]}
    with open_page(page_browser, page_server.address) as (page, _):
        said = iter(range(10**6))

        def answer(route: Any) -> None:
            task = route.request.url.rsplit("/", 1)[1]
            if task == "models":
                route.fulfill(json=models)
            elif answers == "errors":
                message = PAYLOADS[next(said) % 60]
                route.fulfill(status=422, json={"error": {"code": message, "message": message, "field": message}})
            else:
                output = forged("classify" if task == "pairs" else task, PAYLOADS)
                route.fulfill(json={"model": PAYLOADS[0], "outputs": [output]})

        page.route("**/v1/**", answer)
        page.reload()
        page.wait_for_selector(f"{SHOWN} .column")
        ids = page.locator("#model option").all_text_contents()
        assert ids == PAYLOADS
        for tab in page.get_by_role("tab").all():
            tab.click()
            page.wait_for_selector(f"{SHOWN} .column")
            if answers == "outputs":
                shown(page, "alert(1)")
            check(page)
        for payload in PAYLOADS if answers == "errors" else PAYLOADS[:3]:
            page.get_by_label("Model", exact=True).select_option(payload)
            page.wait_for_selector(f"{SHOWN}:not([aria-busy]) .column")
            check(page)
        page.get_by_label("Compare with", exact=True).select_option(PAYLOADS[9])
        page.wait_for_selector(f"{SHOWN}:not([aria-busy]) .columns.two")
        check(page)


@pytest.mark.parametrize(
    "model", ["../run", "/etc/passwd", "run/../run", "run@../20", "run%2f", "..\\run", "run@-1", "\0"]
)
def test_ids_that_look_like_paths_are_unknown(page_server: Server, model: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        page_server.post("tokenize", model=model, inputs="fox")
    assert refused.value.code == 404
    assert json.load(refused.value)["error"]["code"] == "unknown_model"
