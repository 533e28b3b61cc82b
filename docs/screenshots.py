"""The pictures of the page in docs/images, taken of a real server with the models of a quickstart.

    remask quickstart --out OUT
    remask index MODEL README.md docs/*.md --length 128 --out INDEX
    python docs/screenshots.py OUT INDEX

Needs Chromium and playwright (the `test` extra). Each picture is one address of the page: the address has its state.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).with_name("images")
START_SECONDS = 120


class Picture(NamedTuple):
    """What is open in it, how large, in which colours, beside the first training step or not; keys pressed last."""

    task: str
    inputs: dict[str, str]
    width: int = 1200
    height: int = 640
    scheme: str = "light"
    model: str = "encoder"
    compares: bool = False
    keys: tuple[str, ...] = ()


SENTENCE = "Return a new <mask> with the same values."
PASSAGE = "Draw samples from a normal distribution and return them as an array of the given shape."
PICTURES = {
    "page-fill-mask": Picture(
        "fill-mask", {"text": "If <mask> is given, return a new <mask>.", "top": "5"}, height=760
    ),
    "page-compare": Picture("fill-mask", {"text": SENTENCE}, height=860, scheme="dark", compares=True),
    "page-classify": Picture("classify", {"text": PASSAGE}, model="libraries"),
    "page-tokens": Picture("tokenize", {"ids": "1"}, height=560, scheme="dark"),
    "page-attention": Picture(
        "attention", {"text": SENTENCE, "layer": "3", "head": "2"}, height=900, keys=("End", "ArrowLeft", "ArrowLeft")
    ),
    "page-phone": Picture("fill-mask", {"text": SENTENCE, "top": "6"}, width=360, height=740),
    "page-search": Picture(
        "search", {"query": "What happens when a run is killed?", "top": "4"}, 1280, 2230, model="docs"
    ),
}


@contextlib.contextmanager
def served(out: Path, index: Path) -> Iterator[str]:
    """`remask serve` with the encoder's run and the classifier of a quickstart, and an index; the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    models = [f"encoder={out / 'pretrain'}", f"libraries={out / 'finetune' / 'pretrained'}", f"docs={index}"]
    process = subprocess.Popen([sys.executable, "-m", "remask", "serve", *models, "--port", str(port)])
    address = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + START_SECONDS
        while not answers(f"{address}/ready"):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit("the server did not start")
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except OSError:
        return False


def take(browser: Browser, address: str, name: str, picture: Picture) -> None:
    page = browser.new_page(
        viewport={"width": picture.width, "height": picture.height},
        color_scheme="dark" if picture.scheme == "dark" else "light",
        reduced_motion="reduce",
    )
    state = {"task": picture.task, "model": picture.model}
    state |= {f"in.{key}": value for key, value in picture.inputs.items()}
    page.goto(f"{address}/#{urllib.parse.urlencode(state)}")
    page.wait_for_selector("[role=tabpanel]:not([hidden]) .column")
    if picture.compares:
        page.get_by_label("Compare with").select_option(first_step(page, picture.model))
        page.wait_for_selector(".columns.two")
    if picture.keys:
        page.get_by_role("listbox").focus()
        for key in picture.keys:
            page.keyboard.press(key)
    page.wait_for_timeout(500)
    page.screenshot(path=IMAGES / f"{name}.png")
    page.close()


def first_step(page: Page, model: str) -> str:
    ids = [option.get_attribute("value") or "" for option in page.locator("#other option").all()]
    return [name for name in ids if name.startswith(f"{model}@")][-1]


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if len(sys.argv) != 3 or chromium is None:
        raise SystemExit("usage: python docs/screenshots.py QUICKSTART_FOLDER INDEX   (and chromium must be installed)")
    with served(Path(sys.argv[1]), Path(sys.argv[2])) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for name, picture in PICTURES.items():
            take(browser, address, name, picture)
        browser.close()


if __name__ == "__main__":
    main()
