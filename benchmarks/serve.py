"""A classifier over HTTP: `remask serve` beside a plain FastAPI server around transformers' pipeline.

load      clients that each send one text of mixed length after the other: requests/s, and the time that 99 of 100 take
overload  ten times as many requests a second as were answered before: how many of those are still answered (ours only)
slow      the same clients as in `load` beside 500 that send a byte a second: the time that 99 of 100 take (ours only)

The load comes from a process of its own; both servers run the same weights in the same precision (the best that works
here, or --precision; int8 is ours alone, beside the pipeline in fp32) with the same threads, alternating, and must
give the same scores. Last line: the throughput.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _models import make_model, make_texts, mixed_lengths
from _pretraining import SIZES
from _rig import common_options, compared, environment, tell

PARTS = ("load", "overload", "slow")
TOLERANCE = {"fp32": 1e-3, "bf16": 5e-2, "int8": 0.15}


# ------------------------------------------------------------------------------------------------------ the peer


def run_peer(options: argparse.Namespace) -> None:
    """What one writes in ten minutes: a pipeline in a FastAPI endpoint, which FastAPI runs in its threads."""
    import socket

    import torch
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel
    from transformers import pipeline

    torch.set_num_threads(options.threads)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[options.precision]
    classify = pipeline("text-classification", model=str(options.work), device="cpu", dtype=dtype, top_k=None)
    app = FastAPI()

    class Asked(BaseModel):
        inputs: str

    def answer(asked: Asked) -> dict[str, Any]:
        said = classify(asked.inputs)
        labels = said[0] if isinstance(said[0], list) else said
        return {"outputs": [{"scores": {one["label"]: one["score"] for one in labels}}]}

    answer.__annotations__["asked"] = Asked
    app.post("/v1/classify")(answer)
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    print(json.dumps({"url": f"http://127.0.0.1:{sock.getsockname()[1]}"}), flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[sock])


# ------------------------------------------------------------------------------------------------------ the load


def request(text: str) -> bytes:
    body = json.dumps({"inputs": text}).encode()
    head = f"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
    return f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + body


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> tuple[int, bytes]:
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(head.split(None, 2)[1]), await reader.readexactly(length)


async def closed(port: int, texts: list[str], clients: int, requests: int) -> dict[str, Any]:
    """Every client sends its next text when it has the answer to the last one."""
    numbers = iter(range(requests))
    seconds: list[float] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            began = time.perf_counter()
            status, body = await ask(reader, writer, request(texts[number % len(texts)]))
            assert status == 200, body
            seconds.append(time.perf_counter() - began)
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    passed = time.perf_counter() - began
    p50, p99 = (1e3 * float(np.quantile(seconds, q)) for q in (0.5, 0.99))
    return {"rate": len(seconds) / passed, "p50": p50, "p99": p99}


async def opened(port: int, texts: list[str], rate: float, seconds: float) -> dict[str, Any]:
    """So many requests a second, whatever becomes of them; those answered and refused within the time are counted."""
    counts = {200: 0, 429: 0, 503: 0}
    waits: list[float] = []
    links: list[tuple[Any, Any]] = []
    running: set[asyncio.Task[None]] = set()

    async def one(number: int) -> None:
        began = time.perf_counter()
        reader, writer = links.pop() if links else await asyncio.open_connection("127.0.0.1", port)
        status, _ = await ask(reader, writer, request(texts[number % len(texts)]))
        counts[status] += 1
        if status != 200:
            waits.append(time.perf_counter() - began)
        links.append((reader, writer))

    began, number = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        while number < passed * rate:
            task = asyncio.ensure_future(one(number))
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
        await asyncio.sleep(0.002)
    rates = {"rate": counts[200] / passed, "refused": (counts[429] + counts[503]) / passed, "offered": number / passed}
    for task in running:
        task.cancel()
    return {**rates, "refused_p99_ms": 1e3 * float(np.quantile(waits, 0.99)) if waits else 0.0}


async def beside_slow(port: int, texts: list[str], clients: int, requests: int, slow: int) -> dict[str, Any]:
    async def dribble(number: int) -> None:
        data = request(texts[0])
        while True:
            with contextlib.suppress(ConnectionError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                sent = len(data) - 30 if number % 2 else 0
                writer.write(data[:sent])
                for place in range(sent, len(data)):
                    writer.write(data[place : place + 1])
                    await writer.drain()
                    await asyncio.sleep(1.0)

    tasks = [asyncio.ensure_future(dribble(number)) for number in range(slow)]
    await asyncio.sleep(1.0)
    result = await closed(port, texts, clients, requests)
    for task in tasks:
        task.cancel()
    return result


async def scores(port: int, texts: list[str]) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    for text in texts:
        status, body = await ask(reader, writer, request(text))
        assert status == 200, body
        found.append(json.loads(body)["outputs"][0]["scores"]["LABEL_0"])
    writer.close()
    return found


def run_load(options: argparse.Namespace) -> None:
    texts = json.loads((options.work / "texts.json").read_text())
    port, clients, requests = options.port, options.clients, options.requests
    kinds = {
        "closed": lambda: closed(port, texts, clients, requests),
        "open": lambda: opened(port, texts, options.rate, options.seconds),
        "slow": lambda: beside_slow(port, texts, clients, requests, options.slow),
        "scores": lambda: scores(port, texts),
    }
    print(json.dumps(asyncio.run(kinds[options.kind]())))


# ------------------------------------------------------------------------------------------------------ the parent


@contextlib.contextmanager
def server(words: list[str], env: dict[str, str]) -> Iterator[int]:
    """Its port, once it says that it is there."""
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{words[:3]}: ended with {process.wait()} before it served")
        yield int(json.loads(line)["url"].rpartition(":")[2])
    finally:
        process.terminate()
        process.wait()


def load(port: int, kind: str, options: argparse.Namespace, work: Path, rate: float = 0.0) -> Any:
    words = {"clients": options.clients, "requests": options.requests, "seconds": options.seconds, "slow": options.slow}
    words |= {"port": port, "kind": kind, "rate": rate, "work": work, "side": "load"}
    command = [sys.executable, __file__, *(word for key, value in words.items() for word in (f"--{key}", str(value)))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment(1))
    return json.loads(done.stdout)


def best_precision(asked: str) -> str:
    import torch

    from remask.precision import choose_precision

    return choose_precision(asked, torch.device("cpu"))[0]


def measure(options: argparse.Namespace, work: Path, precision: str) -> None:
    env = environment(options.threads, options.allocator)
    # Random weights are near a tie everywhere: the bound on equal answers is for models that have learned.
    words = ["--precision", precision, "--set", "int8.min_agreement=0"]
    ours = ["-m", "remask", "serve", f"bench={work}", "--port", "0", "--json", "-q", *words]
    of_peer = "fp32" if precision == "int8" else precision
    peer = [__file__, "--side", "peer", "--work", str(work), "--threads", str(options.threads), "--precision", of_peer]
    with server(ours, env) as port, server(peer, env) as peer_port:
        texts = json.loads((work / "texts.json").read_text())
        both = [load(one, "scores", options, work) for one in (port, peer_port)]  # warms both, too
        apart = max(abs(a - b) for a, b in zip(*both, strict=True))
        assert apart <= TOLERANCE[precision], f"scores are {apart:.2g} apart"
        turns: dict[int, list[dict[str, Any]]] = {port: [], peer_port: []}
        for number in range(options.rounds):
            for one in (port, peer_port) if number % 2 == 0 else (peer_port, port):
                turns[one].append(load(one, "closed", options, work))
            told = {name: round(turns[one][-1]["rate"], 1) for name, one in (("ours", port), ("peer", peer_port))}
            print(f"round {number + 1} of {options.rounds}: requests/s {json.dumps(told)}", file=sys.stderr, flush=True)
        figures = {
            key: [[turn[key] for turn in turns[one]] for one in (port, peer_port)] for key in ("rate", "p50", "p99")
        }
        shape = f"{options.size}, {precision}, {options.clients} clients"
        facts = {"texts": len(texts), "requests": options.requests, "clients": options.clients, "precision": precision}
        facts["peer_precision"] = of_peer
        capacity, usual = float(np.median(figures["rate"][0])), float(np.median(figures["p99"][0]))
        asked = options.parts.split(",")
        if "overload" in asked:
            said = load(port, "open", options, work, rate=10 * capacity)
            tell(
                compared(f"serve, goodput at 10x overload, {shape}", "requests/s", [said["rate"]], [capacity])
                | facts
                | said,
                options,
            )
        if "slow" in asked:
            said = load(port, "slow", options, work)
            label = f"serve, p99 beside {options.slow} slow clients, {shape}"
            tell(compared(label, "ms", [said["p99"]], [usual], less_is_better=True) | facts, options)
        for key in ("p50", "p99"):
            tell(compared(f"serve, {key}, {shape}", "ms", *figures[key], less_is_better=True) | facts, options)
        tell(compared(f"serve, throughput, {shape}", "requests/s", *figures["rate"]) | facts, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="base", choices=SIZES)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {','.join(PARTS)}; load is always there")
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16", "int8"])
    parser.add_argument("--texts", type=int, default=200, help="of mixed lengths")
    parser.add_argument("--mean", type=int, default=48, help="their mean number of tokens")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=600, help="of each server in each round")
    parser.add_argument("--seconds", type=float, default=20.0, help="of overload")
    parser.add_argument("--slow", type=int, default=500, help="slow clients")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json; else RoBERTa's where it is, or a trained one")
    for hidden, kind in (("port", int), ("kind", str), ("rate", float)):
        parser.add_argument(f"--{hidden}", type=kind, help=argparse.SUPPRESS)
    common_options(parser, rounds=5)
    options = parser.parse_args()
    if options.side:
        return run_peer(options) if options.side == "peer" else run_load(options)
    if unknown := set(options.parts.split(",")) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(prefix="remask-bench-") as folder:
        work = Path(folder)
        tokenizer = make_model(work, options.size, "classify", options.tokenizer)
        (work / "texts.json").write_text(json.dumps(make_texts(tokenizer, mixed_lengths(options.texts, options.mean))))
        measure(options, work, best_precision(options.precision))


if __name__ == "__main__":
    main()
