"""A server under malformed, slow, vanishing and too many clients, and with an engine that stops (promises 21 to 26).

Each fault is injected into a really running server. Counts are those of every change; REMASK_SOAK has the full ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remask

from ..serving import Served, children, command_line, resident_bytes, serving, tiny_models
from .soak import tries
from .zygote import Zygote

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizers: dict[str, Path]) -> dict[str, Path]:
    return tiny_models(tmp_path_factory.mktemp("models"), tiny_tokenizers["byte-bpe"])


@pytest.fixture(scope="module")
def served(models: dict[str, Path]) -> Iterator[Served]:
    """One server for all tests that leave it as it was; its engine may be paused for long."""
    limits = [
        "limits.stall_s=60",
        "limits.max_queue_requests=40",
        "limits.header_timeout_s=1",
        "limits.body_timeout_s=1",
    ]
    words = [word for limit in limits for word in ("--set", limit)]
    with serving(*models.values(), *words) as server:
        yield server


@pytest.fixture(scope="module")
def watched(models: dict[str, Path]) -> Iterator[Served]:
    """A server whose engine is soon missed."""
    with serving(models["lm"], "--set", "limits.stall_s=2") as server:
        yield server


def request(path: str, body: bytes, *heads: str) -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: localhost", *heads]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in heads):
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


async def exchange(port: int, data: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes, read one answer: (status, headers, body); status 0 where the server just closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        return await answer_of(reader)
    except ConnectionError:
        return 0, {}, b""
    finally:
        writer.close()


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    first = await asyncio.wait_for(reader.readline(), 60)
    if not first:
        return 0, {}, b""
    headers = {}
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return int(first.split()[1]), headers, body


def post(task: str, value: Any) -> bytes:
    return request(f"/v1/{task}", json.dumps(value).encode(), "Content-Type: application/json")


# ------------------------------------------------------------------------------------------------ 21: malformed


def malformed(draw: random.Random) -> bytes:
    """One request with something wrong: bytes, JSON, types, bounds, kinds of content, paths, ids or heads."""
    task = draw.choice(["fill-mask", "classify", "pairs", "tag", "answer", "choose", "embed", "rank", "encode"])
    good = json.dumps({"inputs": "The <mask> dog"}).encode()
    kind = draw.randrange(14)
    if kind == 0:
        body = good[: draw.randrange(len(good))]
    elif kind == 1:
        body = draw.randbytes(draw.randrange(1, 200))
    elif kind == 2:
        body = b'{"inputs":' + b"[" * draw.choice([50, 5_000, 100_000])
    elif kind == 3:
        body = draw.choice(
            [b'{"inputs": NaN}', b'{"inputs": 1e999}', b'{"inputs": ' + b"9" * 5_000 + b"}", b"null", b""]
        )
    elif kind == 4:
        body = draw.choice([rb'{"inputs": "\ud800"}', b'{"inputs": "\xff\xfe"}', rb'{"inputs": "\udfff x <mask>"}'])
    elif kind == 5:
        value = draw.choice(
            [None, True, 3, 1.5, [], {}, [[]], [None], ["a", 3], {"text": "a"}, [["a"]], {"inputs": "x"}]
        )
        body = json.dumps({"inputs": value}).encode()
    elif kind == 6:
        body = json.dumps({"inputs": "The <mask>", draw.choice(["top", "Model", "__class__", "top_k "]): 3}).encode()
    elif kind == 7:
        task = "fill-mask"
        value = draw.choice([0, -1, 101, 1.5, "5", None, 10**30])
        body = json.dumps({"inputs": "The <mask>", "top_k": value}).encode()
    elif kind == 8:
        body = json.dumps({"inputs": ["a"] * 257}).encode()
    elif kind == 9:
        ids = [
            "../lm",
            "/etc/passwd",
            "lm/",
            "lm@",
            "lm@1",
            "lm@-1",
            "..",
            "file:///lm",
            "lm\x00",
            "LM",
            "lm%2f..",
            "é",
        ]
        body = json.dumps({"model": draw.choice(ids), "inputs": "The <mask>"}).encode()
    elif kind == 10:
        path = draw.choice(
            ["/v1/", "/v1/../v1/tag", "/v2/tag", "/v1/tag/", "/%2e%2e/etc/passwd", "//", "/v1/fill_mask"]
        )
        return request(path, good, "Content-Type: application/json")
    elif kind == 11:
        kind_of = draw.choice(["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x", "é"])
        return request(f"/v1/{task}", good, f"Content-Type: {kind_of}")
    elif kind == 12:
        length = draw.choice(["-1", "abc", "99999999999999999999", "2000001"])
        heads = [f"Content-Length: {length}", "Content-Type: application/json"]
        return request(f"/v1/{task}", b"" if length == "2000001" else good, *heads, "Expect: 100-continue")
    else:
        lines = [b"GET\r\n\r\n", b"\x00" * 50 + b"\r\n\r\n", b"BREW /v1/tag HTTP/1.1\r\nHost: localhost\r\n\r\n"]
        return draw.choice([*lines, b"DELETE /v1/tag HTTP/1.1\r\nHost: localhost\r\n\r\n"])
    return request(f"/v1/{task}", body, "Content-Type: application/json")


def test_malformed_requests_are_refused_and_leave_no_memory_behind(served: Served) -> None:
    count = tries(21, 2_000, 100_000)
    draw = random.Random(21)
    processes = [served.process.pid, served.engine()]

    async def some(number: int) -> list[tuple[bytes, int, bytes]]:
        found = []
        for _ in range(number // 10):
            data = [malformed(draw) for _ in range(10)]
            answers = await asyncio.gather(*(exchange(served.port, one) for one in data))
            found += [(one, status, body) for one, (status, _, body) in zip(data, answers, strict=True)]
        return found

    asyncio.run(some(300))  # what is allocated once
    before = [resident_bytes(pid) for pid in processes]
    for _ in range(count // 1_000):
        for data, status, body in asyncio.run(some(1_000)):
            assert status in (400, 404, 405, 413, 415, 422), (status, data[:300], body)
            assert b"Traceback" not in body
    grown = [resident_bytes(pid) - size for pid, size in zip(processes, before, strict=True)]
    assert max(grown) < 30_000_000, grown
    assert served.outputs("tokenize", "The dog")  # as before
    assert served.ask("/health")[1] == {"status": "ok", "restarts": 0}


def test_a_body_beyond_the_limit_is_refused_also_in_chunks(served: Served) -> None:
    def body(size: int) -> bytes:
        return b'{"inputs": "' + b"a" * (size - 14) + b'"}'

    assert len(body(2_000_000)) == 2_000_000
    status, said, _ = served.ask("/v1/tokenize", body(2_000_000))
    assert (status, said["error"]["code"]) == (422, "invalid")  # read, and only then found too long for one text
    status, said, _ = served.ask("/v1/tokenize", body(2_000_001))
    assert (status, said["error"]["code"]) == (413, "too_large")
    for size in (1_900_000, 2_100_000, 6_000_000):
        chunk = b"10000\r\n" + b"a" * 65_536 + b"\r\n"
        data = chunk * (size // 65_536) + b"0\r\n\r\n"
        heads = ("Transfer-Encoding: chunked", "Content-Type: application/json")
        status, _, answer = asyncio.run(exchange(served.port, request("/v1/tokenize", data, *heads)))
        expected = (400, "bad_json") if size < 2_000_000 else (413, "too_large")
        assert (status, json.loads(answer)["error"]["code"]) == expected, size


def test_a_head_without_end_is_cut_off(served: Served) -> None:
    data = b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"".join(
        b"X-%d: %s\r\n" % (i, b"a" * 1000) for i in range(200)
    )
    status, _, _ = asyncio.run(exchange(served.port, data))
    assert status in (0, 400, 431)


# ------------------------------------------------------------------------- 22: slow clients, overload, disconnects


def test_slow_clients_are_let_go_and_others_are_answered_meanwhile(served: Served) -> None:
    count = tries(22, 50, 500)
    asks = tries(22, 40, 200)

    async def normal() -> list[float]:
        seconds = []
        for number in range(asks):
            began = time.perf_counter()
            status, _, body = await exchange(served.port, post("embed", {"inputs": f"dog {number}"}))
            assert status == 200, body
            seconds.append(time.perf_counter() - began)
        return seconds

    async def slow(number: int) -> int:
        """A head or a body, a byte at a time, for longer than anybody waits."""
        whole = post("embed", {"inputs": "The dog"})
        start = len(whole) - 5 if number % 2 else 0
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        try:
            writer.write(whole[:start])
            for place in range(start, len(whole)):
                writer.write(whole[place : place + 1])
                await writer.drain()
                await asyncio.sleep(0.5)
            return (await answer_of(reader))[0]
        except ConnectionError:
            return 0
        finally:
            writer.close()

    async def both() -> tuple[list[float], list[int], list[float]]:
        alone = await normal()
        tasks = [asyncio.ensure_future(slow(number)) for number in range(count)]
        await asyncio.sleep(0.2)
        beside = await normal()
        return beside, await asyncio.gather(*tasks), alone

    beside, ends, alone = asyncio.run(both())
    assert set(ends[0::2]) == {0}  # heads: closed
    assert set(ends[1::2]) <= {0, 408}  # bodies: told, or closed
    if count == 500:
        assert np.quantile(beside, 0.99) <= 2 * np.quantile(alone, 0.99)


def test_overload_is_refused_at_once_and_the_rest_is_answered(served: Served) -> None:
    async def overload() -> tuple[list[Any], list[Any]]:
        taken, refused = [], []
        with served.engine_paused():
            tasks = [
                asyncio.ensure_future(exchange(served.port, post("embed", {"inputs": f"dog {i}"}))) for i in range(400)
            ]
            while (
                sum(task.done() for task in tasks) < 360
            ):  # 40 may wait; the engine does nothing, so only refusals end
                await asyncio.sleep(0.01)
            refused = [task.result() for task in tasks if task.done()]
            assert served.ask("/ready")[0] == 503
            assert served.ask("/health")[0] == 200
        taken = [await task for task in tasks if not task.done() or task.result()[0] == 200]
        return taken, refused

    before = served.metric("refused_total")
    taken, refused = asyncio.run(overload())
    assert len(refused) == 360
    for status, headers, body in refused:
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        assert json.loads(body)["error"]["code"] == "overloaded"
    assert [status for status, _, _ in taken] == [200] * 40
    assert served.metric("refused_total") - before == 360
    served.until(lambda: served.ask("/ready")[0] == 200)


def test_what_nobody_waits_for_is_not_computed(served: Served) -> None:
    count = tries(22, 30, 1_000)

    async def vanish() -> None:
        links = []
        for number in range(count):
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(post("embed", {"inputs": f"dog {number}"}))
            await writer.drain()
            links.append(writer)
            if len(links) == 30:
                await gone(links)
                links = []
        await gone(links)

    async def gone(links: list[asyncio.StreamWriter]) -> None:
        await asyncio.to_thread(served.until, lambda: served.metric("queue_requests") == 2 + len(links))
        for writer in links:
            writer.transport.abort()
        await asyncio.to_thread(served.until, lambda: served.metric("queue_requests") == 2)

    async def main() -> list[int]:
        with served.engine_paused():
            # One at work and one ready: further ones wait in the queue, where they can be taken back.
            stay = []
            for number in range(2):
                before = served.metric("inputs_total")
                stay.append(asyncio.ensure_future(exchange(served.port, post("embed", {"inputs": f"stay {number}"}))))
                while served.metric("inputs_total") == before:
                    await asyncio.sleep(0.01)
            await vanish()
        return [(await task)[0] for task in stay]

    inputs, dropped = served.metric("inputs_total"), served.metric("dropped_total")
    assert asyncio.run(main()) == [200, 200]
    assert served.outputs("embed", "The last one")
    assert served.metric("inputs_total") - inputs == 3
    assert served.metric("dropped_total") - dropped == count


# ---------------------------------------------------------------------------------------------- 23: mixed up


@pytest.mark.parametrize("pause", [False, True])
def test_a_client_that_closes_its_end_still_gets_its_answer(served: Served, pause: bool) -> None:
    """As `nc -N` and others do: everything is sent, the sending end is closed, the answer is read. Also where the
    answer takes a while, so that it is tried whether somebody still reads."""
    body = json.dumps({"model": "classes", "inputs": ["The quick fox."]}).encode()
    head = "POST /v1/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}"
    for version in (b"HTTP/1.1", b"HTTP/1.0"):
        with contextlib.ExitStack() as stack:
            if pause:
                stack.enter_context(served.engine_paused())
            link = socket.create_connection(("127.0.0.1", served.port), timeout=30)
            link.sendall(head.encode().replace(b"HTTP/1.1", version) + b"\r\n\r\n" + body)
            link.shutdown(socket.SHUT_WR)
            if pause:
                time.sleep(0.3)
        answer = b""
        while block := link.recv(65536):
            answer += block
        link.close()
        interim, _, final = answer.rpartition(b"HTTP/1.1 200")
        assert b'"outputs"' in final, answer
        assert set(interim.split(b"\r\n\r\n")) <= {b"HTTP/1.1 100 Continue", b""}
        if version == b"HTTP/1.0":
            assert interim == b""


def test_concurrent_answers_are_those_of_one_after_the_other(served: Served, models: dict[str, Path]) -> None:
    count = tries(23, 500, 10_000)
    draw = random.Random(23)
    words = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "who", "wrote", "it", "Mary")
    opened = {name: remask.load(path) for name, path in models.items()}

    def text(number: int) -> str:
        return f"{number} " + " ".join(draw.choices(words, k=draw.randrange(1, 9)))

    async def one(limit: asyncio.Semaphore, task: str, model: str, inputs: Any) -> Any:
        async with limit:
            status, _, body = await exchange(served.port, post(task, {"model": model, "inputs": inputs}))
        assert status == 200, body
        return json.loads(body)["outputs"]

    asked: list[tuple[str, str, Any]] = []
    for number in range(count):
        task, model = draw.choice(
            [("fill-mask", "lm"), ("embed", "lm"), ("embed", "names"), ("classify", "classes"), ("choose", "spans"),
             ("tag", "names"), ("answer", "spans"), ("tokenize", "classes")]
        )  # fmt: skip
        said = text(number)
        inputs: Any = [said, text(-number)]
        if task == "fill-mask":
            inputs = f"{said} <mask>"
        elif task == "choose":
            inputs = {"text": said, "options": ["dog", text(number)]}
        elif task == "answer":
            inputs = {"question": said, "context": text(number)}
        asked.append((task, model, inputs))

    async def main() -> list[Any]:
        limit = asyncio.Semaphore(30)
        return await asyncio.gather(*(one(limit, *question) for question in asked))

    for (task, model, inputs), said in zip(asked, asyncio.run(main()), strict=True):
        use = opened[model]
        if task == "fill-mask":
            (found,) = said
            assert [fill["sequence"] for fill in found] == [fill.sequence for fill in use.fill_mask(inputs)]
        elif task == "embed":
            np.testing.assert_allclose(np.array(said), use.embed(inputs), atol=1e-5)
        elif task == "classify":
            expected = [[label.scores["neg"], label.scores["pos"]] for label in use.classify(inputs)]
            np.testing.assert_allclose([list(one["scores"].values()) for one in said], expected, atol=1e-5)
        elif task == "choose":
            expected = use.choose(inputs["text"], inputs["options"]).scores
            np.testing.assert_allclose(said[0]["scores"], expected, atol=1e-5)
        elif task == "answer":
            assert said[0]["text"] == use.answer(inputs["question"], inputs["context"]).text
        elif task == "tag":
            assert [[e["text"] for e in one] for one in said] == [[e.text for e in one] for one in use.tag(inputs)]
        else:
            assert [one["ids"] for one in said] == [list(one.ids) for one in use.tokenize(inputs)]


# ------------------------------------------------------------------------------------- 24: the engine stops, drain


@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL])
def test_an_engine_that_stops_answering_is_replaced(watched: Served, fault: signal.Signals) -> None:
    before, expected = watched.engine(), watched.outputs("embed", "The dog")
    restarts = watched.ask("/health")[1]["restarts"]
    os.kill(before, fault)
    began = time.monotonic()
    watched.until(lambda: watched.ask("/health")[0] == 503)
    assert time.monotonic() - began < 5
    assert watched.ask("/ready")[0] == 503
    status, said, headers = watched.ask("/v1/embed", {"inputs": "The dog"})
    assert (status, said["error"]["code"]) == (503, "unavailable")
    assert int(headers["retry-after"]) >= 1
    watched.until(lambda: watched.ask("/health")[0] == 200)
    assert watched.ask("/health")[1]["restarts"] == restarts + 1
    assert watched.engine() != before
    assert watched.outputs("embed", "The dog") == expected
    assert b"spawn_main" not in command_line(before)


def test_the_heaviest_requests_that_are_taken_do_not_look_like_a_stall(watched: Served) -> None:
    restarts = watched.ask("/health")[1]["restarts"]
    long = "Mary jumps " * 18_000
    assert len(watched.outputs("tokenize", [long] * 3)) == 3
    assert len(watched.outputs("embed", [long] * 9, long_texts="cut")) == 9
    assert len(watched.outputs("fill-mask", ["The <mask>"] * 100, top_k=100)) == 100
    assert watched.ask("/health")[1] == {"status": "ok", "restarts": restarts}


def test_what_the_engine_had_in_hand_is_answered_503_and_what_waits_is_kept(watched: Served) -> None:
    async def main() -> list[int]:
        inputs = watched.metric("inputs_total")
        os.kill(watched.engine(), signal.SIGSTOP)
        tasks = []
        for number in range(3):  # one at work, one ready, one waiting
            tasks.append(asyncio.ensure_future(exchange(watched.port, post("embed", {"inputs": f"dog {number}"}))))
            await asyncio.sleep(0.3)
        assert watched.metric("inputs_total") - inputs == 2
        return [(await task)[0] for task in tasks]

    assert asyncio.run(main()) == [503, 503, 200]


def test_too_little_memory_is_said_and_the_engine_goes_on(models: dict[str, Path]) -> None:
    """FAULTS row 36: a limit on the engine's process while it answers. On a server of its own: one that has answered
    much keeps freed memory, and needs no more."""
    with serving(models["lm"]) as served:
        assert served.outputs("embed", ["the fox"])
        engine = served.engine()
        used = int(Path(f"/proc/{engine}/statm").read_text().split()[0]) * resource.getpagesize()
        before = resource.prlimit(engine, resource.RLIMIT_AS)
        resource.prlimit(engine, resource.RLIMIT_AS, (used + (1 << 20), before[1]))
        try:
            texts = ["the quick fox " * 30] * 256
            status, said, _ = served.ask("/v1/embed", {"inputs": texts, "long_texts": "cut"})
        finally:
            resource.prlimit(engine, resource.RLIMIT_AS, before)
        assert (status, said["error"]["code"]) == (503, "unavailable")
        assert "too little memory for this request" in said["error"]["message"]
        assert served.outputs("embed", ["the fox"])
        assert served.engine() == engine


def test_a_signal_drains_and_a_second_one_ends_at_once(models: dict[str, Path]) -> None:
    async def main(server: Served, signals: int) -> list[int]:
        engine = server.engine()
        os.kill(engine, signal.SIGSTOP)
        tasks = [asyncio.ensure_future(exchange(server.port, post("embed", {"inputs": f"dog {i}"}))) for i in range(30)]
        while server.metric("queue_requests") < 30:
            await asyncio.sleep(0.01)
        for _ in range(signals):
            os.kill(server.process.pid, signal.SIGTERM)
            await asyncio.sleep(1.0)
        if signals == 1:
            os.kill(engine, signal.SIGCONT)
        return [(await task)[0] for task in tasks]

    with serving(models["lm"], "--set", "limits.stall_s=60") as server:
        assert asyncio.run(main(server, signals=1)) == [200] * 30
        assert server.process.wait(20) == 0
    with serving(models["lm"], "--set", "limits.stall_s=60") as server:
        below = children(server.process.pid)
        assert asyncio.run(main(server, signals=2)) == [0] * 30
        assert server.process.wait(5) == -signal.SIGTERM  # by the system itself, at once
        server.until(lambda: not any(b"spawn_main" in command_line(pid) for pid in below))


def test_clients_that_never_rest_lose_nothing_in_a_drain(models: dict[str, Path]) -> None:
    """Connections that are used all the time: each gets an answer that says it is the last."""

    async def client(port: int) -> list[int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        statuses, headers = [], {}
        while headers.get("connection") != "close" and 0 not in statuses:
            try:
                writer.write(post("embed", {"inputs": "The dog"}))
                status, headers, _ = await answer_of(reader)
            except (ConnectionError, asyncio.IncompleteReadError):
                status = 0
            statuses.append(status)
        writer.close()
        return statuses

    async def main(server: Served) -> list[list[int]]:
        tasks = [asyncio.ensure_future(client(server.port)) for _ in range(20)]
        await asyncio.sleep(0.5)
        os.kill(server.process.pid, signal.SIGTERM)
        return await asyncio.gather(*tasks)

    with serving(models["lm"]) as server:
        for statuses in asyncio.run(main(server)):
            assert set(statuses) == {200}
        assert server.process.wait(20) == 0


# ------------------------------------------------------------------------------------ 25, 26: ids, beyond loopback


@pytest.mark.parametrize(
    "name", ["../lm", "/etc/passwd", "lm/../lm", ".", "..", "C:\\lm", "lm@../1", "models/lm", "lm\n"]
)
def test_ids_that_look_like_paths_are_unknown(served: Served, name: str) -> None:
    status, said, _ = served.ask("/v1/embed", {"model": name, "inputs": "The dog"})
    assert (status, said["error"]["code"]) == (404, "unknown_model")
    assert served.ask(f"/{name.strip()}".replace("\\", "%5C").replace(" ", ""), method="GET")[0] == 404


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_beyond_loopback_it_only_starts_with_a_token(models: dict[str, Path], host: str, zygote: Zygote) -> None:
    done = zygote.run("serve", models["lm"], "--port", "0", "--host", host)
    assert done.returncode == 2
    assert "--token" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_with_a_token_only_those_who_have_it_are_answered(models: dict[str, Path]) -> None:
    with serving(models["lm"], "--host", "0.0.0.0", REMASK_TOKEN="s3cret") as server:
        for path, body in (("/v1/embed", {"inputs": "a"}), ("/v1/models", None), ("/metrics", None)):
            for word in (None, "Bearer s3cre", "Bearer s3crett", "s3cret", "bearer s3cret ", "Basic s3cret", "Bearer "):
                headers = {} if word is None else {"Authorization": word}
                assert server.ask(path, body, headers=headers)[0] == 401, (path, word)
            assert server.ask(path, body, headers={"Authorization": "Bearer s3cret"})[0] == 200
        for path in ("/health", "/ready", "/openapi.json", "/"):
            assert server.ask(path)[0] == 200
        assert (
            server.ask("/v1/embed", {"inputs": "a"}, headers={"Host": "any.name", "Authorization": "Bearer s3cret"})[0]
            == 200
        )


def test_a_page_elsewhere_cannot_ask_by_a_name_of_its_own(served: Served) -> None:
    for host, status in (
        ("evil.example", 421),
        ("localhost", 200),
        ("localhost:1", 200),
        ("127.0.0.1:99", 200),
        ("", 421),
    ):
        found, said, _ = served.ask("/v1/models", headers={"Host": host})
        assert found == status, host
        if status == 421:
            assert said["error"]["code"] == "wrong_host"
    with socket.create_connection(("127.0.0.1", served.port), 10) as link:
        link.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert link.recv(100).split()[1] == b"400"
