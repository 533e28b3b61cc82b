"""A really running `remask serve` for tests: tiny models, a process of its own, a free port."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

JSON_TYPE = {"Content-Type": "application/json"}
SMALL: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 32, "num_heads": 4, "num_layers": 2, "ffn_size": 48, "max_length": 64,
}  # fmt: skip


def tiny_models(folder: Path, tokenizer: Path) -> dict[str, Path]:
    """A folder for each kind of head, never trained: `lm`, `classes`, `names`, `spans` (with choices)."""
    from remask.model.network import build_network
    from remask.model.settings import HeadSettings, ModelSettings
    from remask.model.store import save_model

    kinds: dict[str, tuple[HeadSettings, tuple[str, ...] | None]] = {
        "lm": (HeadSettings(masked_lm=True), None),
        "classes": (HeadSettings(num_classes=2), ("neg", "pos")),
        "names": (HeadSettings(num_tags=3), ("O", "B-PER", "I-PER")),
        "spans": (HeadSettings(span=True, choice=True), None),
    }
    for name, (heads, labels) in kinds.items():
        save_model(folder / name, build_network(ModelSettings(**SMALL, init_std=0.3), heads, 1), tokenizer, labels)
    return {name: folder / name for name in kinds}


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "REMASK_TOKEN"}
    return {**kept, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **more}


class Served:
    """The running server."""

    def __init__(self, words: list[str], **environ: str) -> None:
        usual = ["--port", "0", "--precision", "fp32", "--json", "-q"]  # what is given comes after and counts
        command = [sys.executable, "-m", "remask", "serve", *usual, *words]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**environ)
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the server did not start: {self.process.communicate()[1]}")
        self.facts: dict[str, Any] = json.loads(line)
        self.url: str = self.facts["url"]
        self.port = int(self.url.rpartition(":")[2])

    def ask(
        self, path: str, body: Any = None, *, headers: dict[str, str] | None = None, method: str | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        """(status, JSON or text, headers); a body that is not bytes goes as JSON."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(link):
            sent = {**(JSON_TYPE if body is not None else {}), **(headers or {})}
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            link.request(method or ("GET" if body is None else "POST"), path, data, sent)
            answer = link.getresponse()
            text = answer.read().decode()
            found = {name.lower(): value for name, value in answer.getheaders()}
        is_json = found.get("content-type", "").startswith("application/json")
        return answer.status, json.loads(text) if is_json else text, found

    def outputs(self, task: str, inputs: Any, **options: Any) -> list[Any]:
        status, said, _ = self.ask(f"/v1/{task}", {"inputs": inputs, **options})
        assert status == 200, said
        return said["outputs"]

    def metric(self, name: str) -> float:
        """A counter or gauge without labels."""
        _, text, _ = self.ask("/metrics")
        (line,) = [line for line in text.splitlines() if line.startswith(f"remask_{name} ")]
        return float(line.split()[1])

    def until(self, condition: Any, seconds: float = 60.0) -> None:
        """Wait for something that will come; the bound only ends a test that has gone wrong."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.02)

    def engine(self) -> int:
        """The process id of the engine."""
        found = [pid for pid in children(self.process.pid) if b"spawn_main" in command_line(pid)]
        assert len(found) == 1, found
        return found[0]

    @contextlib.contextmanager
    def engine_paused(self) -> Iterator[None]:
        """The engine does nothing for a while. A server for this needs a long limits.stall_s."""
        engine = self.engine()
        os.kill(engine, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(engine, signal.SIGCONT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.communicate()


def children(pid: int) -> list[int]:
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in file.read_text().split()]
    return found


def command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def serving(*words: Any, **environ: str) -> Iterator[Served]:
    served = Served([str(word) for word in words], **environ)
    try:
        yield served
    finally:
        served.close()
