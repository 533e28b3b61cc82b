"""The request log: one line for every request, with an id that the client sees, and no text unless it was asked for."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

from remask.errors import OutputError
from remask.serve.request_log import KEY, RequestLog, opened


def ask(log: RequestLog, headers: list[tuple[bytes, bytes]] = []) -> list[Any]:  # noqa: B006
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/classify", "headers": headers}
    asyncio.run(log(scope, None, send))
    return sent


async def answering(scope: Any, receive: Any, send: Any) -> None:
    scope[KEY].update(task="classify", model="topics", inputs=["a secret"])
    await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
    await send({"type": "http.response.body", "body": b"{}"})


@pytest.mark.parametrize("with_texts", [False, True])
def test_a_line_says_what_was_asked_and_the_text_only_if_wanted(with_texts: bool) -> None:
    file = io.BytesIO()
    sent = ask(RequestLog(answering, file, pytest.fail, with_texts=with_texts))
    line = json.loads(file.getvalue())
    assert (line["status"], line["task"], line["model"], line["path"]) == (200, "classify", "topics", "/v1/classify")
    assert line["ms"] >= 0
    assert dict(sent[0]["headers"]) == {b"a": b"b", b"x-request-id": line["id"].encode()}
    assert (b"secret" in file.getvalue()) == with_texts


@pytest.mark.parametrize("given, is_kept", [(b"my-id.7", True), (b'a"b\n', False), (b"x" * 65, False), (b"", False)])
def test_a_clients_own_id_is_kept_if_it_is_a_plain_word(given: bytes, is_kept: bool) -> None:
    file = io.BytesIO()
    ask(RequestLog(answering, file, pytest.fail), [(b"x-request-id", given)])
    assert (json.loads(file.getvalue())["id"].encode() == given) == is_kept
    assert file.getvalue().count(b"\n") == 1


def test_a_client_that_went_away_and_a_fault_have_a_line_too() -> None:
    async def silent(scope: Any, receive: Any, send: Any) -> None:
        return

    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("our mistake")

    file = io.BytesIO()
    ask(RequestLog(silent, file, pytest.fail))
    with pytest.raises(RuntimeError):
        ask(RequestLog(failing, file, pytest.fail))
    assert [json.loads(line)["status"] for line in file.getvalue().splitlines()] == [499, 499]


def test_a_log_that_cannot_be_written_is_given_up_with_one_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    with open("/dev/full", "wb", buffering=0) as full:
        log = RequestLog(answering, full, warnings.append)
        assert [ask(log)[0]["status"] for _ in range(3)] == [200] * 3
    assert len(warnings) == 1
    with pytest.raises(OutputError, match="--request-log"), opened(str(tmp_path)):
        pass
