"""A running `remask serve` with tiny models of every task, and a real browser: what the tests of the page share.

The server wants a token, so that every test also shows that the page works behind one; `open_page` brings it along.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

TOKEN = "a-token-that-nobody-may-see"
# A browser that looks for nobody on the network while it starts.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
START_SECONDS = 120
PAYLOADS = Path(__file__).with_name("payloads.txt").read_text().splitlines()
# Reported by the page itself, before anything else in it runs.
WATCH = """
window.ran = 0;
window.violations = [];
for (const name of ["alert", "confirm", "prompt"]) window[name] = () => { window.ran += 1; };
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""


@dataclass
class Server:
    """Where it answers, and its models by id."""

    address: str
    models: tuple[str, ...] = ()

    def post(self, task: str, **body: Any) -> Any:
        """The outputs, asked for without the page."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.address}/v1/{task}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["outputs"]


@dataclass
class Told:
    """What a page said while it was open."""

    console: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


def make_models(folder: Path, tokenizer: Path, hostile: Sequence[str]) -> dict[str, Path]:
    """id -> folder; untrained, two narrow layers. `hostile` become the labels of two of them."""
    from remask.model.network import build_network
    from remask.model.settings import HeadSettings, ModelSettings, WriterSettings
    from remask.model.store import save_model
    from remask.tokenizer import load_tokenizer

    settings = ModelSettings(
        vocab_size=load_tokenizer(tokenizer).vocab_size, num_layers=2, hidden_size=16, num_heads=2, ffn_size=32,
        max_length=256, dropout=0.0, attention_dropout=0.0, head_dropout=0.0, init_std=0.3,
    )  # fmt: skip

    def save(path: Path, heads: HeadSettings, labels: Sequence[str] | None = None, seed: int = 0) -> None:
        save_model(path, build_network(settings, heads, seed=seed), tokenizer, labels=labels)

    for step in (10, 20):
        save(folder / f"model-{step}", HeadSettings(masked_lm=True), seed=step)
        checkpoint(folder / f"model-{step}", folder / "run" / "checkpoints" / f"step-{step:09d}")
    tags = ["O", *(f"{sign}-{kind}" for kind in ("PER", "LOC", "ORG") for sign in "BI")]
    heads = {
        "topics": (HeadSettings(masked_lm=False, num_classes=3), ["sport", "politics", "science"]),
        "names": (HeadSettings(masked_lm=False, num_tags=len(tags)), tags),
        "answers": (HeadSettings(masked_lm=False, span=True), None),
        "choices": (HeadSettings(masked_lm=False, choice=True), None),
        "writes": (HeadSettings(writer=WriterSettings()), None),
        "hostile": (HeadSettings(masked_lm=False, num_classes=len(hostile)), list(hostile)),
        "hostile-names": (HeadSettings(masked_lm=False, num_tags=len(hostile)), [f"B-{word}" for word in hostile]),
    }
    for name, (head, labels) in heads.items():
        save(folder / name, head, labels)
    return {"run": folder / "run"} | {name: folder / name for name in heads}


def checkpoint(model: Path, out: Path) -> None:
    """What a training run leaves of a model, as far as readers are concerned."""
    from remask.artifacts import publish

    def fill(aside: Path) -> dict[str, Any]:
        shutil.copytree(model, aside, ignore=shutil.ignore_patterns("manifest.json"), dirs_exist_ok=True)
        return {}

    publish(out, "checkpoint", fill)


@contextmanager
def serve(models: dict[str, Path]) -> Iterator[Server]:
    """The real command in a process of its own, until the end of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [f"{name}={path}" for name, path in models.items()]
    command = [sys.executable, "-m", "remask", "serve", *words, "--port", str(port), "--token", TOKEN]
    log = next(iter(models.values())).parent / "server.log"
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env={**os.environ, "OMP_NUM_THREADS": "1"})
        try:
            server = Server(f"http://127.0.0.1:{port}", tuple(models))
            wait_for(server, process, log)
            yield server
        finally:
            process.terminate()
            process.wait(60)


def wait_for(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, f"the server ended: {log.read_text()[-2000:]}"
        try:
            with urllib.request.urlopen(f"{server.address}/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the server was not ready after {START_SECONDS} s: {log.read_text()[-2000:]}")


def need_browser() -> Any:
    """playwright, or the test is skipped."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    return sync_api


@contextmanager
def open_browser() -> Iterator[Any]:
    with need_browser().sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@contextmanager
def open_page(browser: Any, address: str, *, token: str = TOKEN, **options: Any) -> Iterator[tuple[Any, Told]]:
    """A page of a browser that remembers nothing; at the end nothing was blocked, loaded from elsewhere, or run."""
    context = browser.new_context(reduced_motion="reduce", **options)
    context.add_init_script(WATCH)
    if token:
        context.add_init_script(f"sessionStorage.setItem('remask-token', {json.dumps(token)})")
    page, told = context.new_page(), Told()
    page.set_default_timeout(20_000)
    page.on("console", lambda message: told.console.append(message.text))
    page.on("pageerror", lambda error: told.errors.append(str(error)))
    page.on("request", lambda request: told.asked.append(request.url))
    page.goto(address)
    try:
        yield page, told
    except BaseException as error:
        error.add_note(f"the page said: {told}")
        raise
    assert told.errors == []
    assert page.evaluate("window.violations") == []
    assert page.evaluate("window.ran") == 0
    own = "{0.scheme}://{0.netloc}/".format(urllib.parse.urlsplit(address))
    assert [url for url in told.asked if not url.startswith(own)] == []
    context.close()


def link(task: str, model: str, other: str = "", **inputs: str) -> str:
    """The part of an address that opens a task with these inputs."""
    state = {"task": task, "model": model} | ({"with": other} if other else {})
    return "/#" + urllib.parse.urlencode(state | {f"in.{key}": value for key, value in inputs.items()})
