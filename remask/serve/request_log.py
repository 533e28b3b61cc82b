"""The request log of a server: one JSON object a line for every request, also for those that are refused.

In: an ASGI app. Out: the same app; its answers carry `x-request-id`, and the log has `time`, `id`, `method`, `path`,
`status`, `ms`, and for a question `task` and `model`. Texts are never written unless that was asked for. A log that
cannot be written is given up with one warning: answering goes on. Not here: counters (metrics).
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import BinaryIO

import orjson

from remask.errors import OutputError
from remask.schema import Json
from remask.serve.guard import App, Message, Receive, Send

KEY = "remask.log"  # of the ASGI scope: what the app adds to a request's line
_SOUND_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}\Z")


@contextlib.contextmanager
def opened(name: str | None) -> Iterator[BinaryIO | None]:
    """The file of the log, which grows; `-` is stdout, None is no log."""
    if name is None or name == "-":
        yield None if name is None else sys.stdout.buffer
        return
    try:
        file = open(name, "ab", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise OutputError(f"--request-log {name}: cannot be written: {error.strerror}") from error
    with file:
        yield file


class RequestLog:
    """An ASGI middleware around everything else. `say` gets the one warning."""

    def __init__(
        self,
        app: App,
        file: BinaryIO,
        say: Callable[[str], None],
        *,
        with_texts: bool = False,
    ) -> None:
        self._app, self._file, self._say, self._with_texts = app, file, say, with_texts
        self._is_off = False

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, line = time.perf_counter(), self._line(scope)
        scope[KEY] = added = {}

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                line["status"] = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", line["id"].encode())]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            texts = added.pop("inputs", None)
            line |= added | ({"inputs": texts} if self._with_texts and texts is not None else {})
            line["ms"] = round((time.perf_counter() - began) * 1000, 1)
            self._write(line)

    def _line(self, scope: Message) -> Json:
        """What is known at once. A client's own id is kept where it is a plain word. Status 499: nobody waited."""
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        name = given.decode() if _SOUND_ID.match(given) else uuid.uuid4().hex[:16]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return {"time": now, "id": name, "method": scope["method"], "path": scope["path"][:200], "status": 499}

    def _write(self, line: Json) -> None:
        if self._is_off:
            return
        try:
            self._file.write(orjson.dumps(line, default=str) + b"\n")
            self._file.flush()
        except (OSError, ValueError) as error:
            self._is_off = True
            self._say(f"the request log is off, since it cannot be written: {error}")
