"""What stands in front of the app: limits that hold before anything of a request is parsed.

`Guard` is an ASGI middleware: who may ask (token, Host), how large a body is and how long it may take, overload, and
the headers of every answer. `patient_protocol` is uvicorn's HTTP protocol with a limit on connections, and on the time
and bytes of a request's head. Not here: what any path does (app).
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from remask.serve.schemas import MAX_BODY_BYTES
from remask.serve.settings import ServeSettings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]  # what ASGI says that an app is

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", _CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
]
MAX_HEAD_BYTES = 65_536
_PROBES_S = (0.0, 0.02)  # after a client has closed its end: when it is tried whether it still reads
_DISCARDED_BYTES = 10 * MAX_BODY_BYTES


def error_body(code: str, message: str, field: str | None = None) -> bytes:
    fault = {"code": code, "message": message} | ({"field": field} if field else {})
    return orjson.dumps({"error": fault})


def is_guarded(method: str, path: str) -> bool:
    """Whether a token is needed: for everything but the page itself and whether the server is well."""
    return method == "POST" or path.startswith("/v1/") or path in ("/v1", "/metrics")


class RefusedError(Exception):
    """A request that goes no further."""

    def __init__(self, status: int, code: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after = status, code, retry_after


class Guard:
    """See above. `refuse_early` raises RefusedError where the app could only say that it has no room."""

    def __init__(
        self,
        app: App,
        *,
        settings: ServeSettings,
        token: str | None,
        hosts: frozenset[str] | None,
        refuse_early: Callable[[], None],
        is_draining: Callable[[], bool],
    ) -> None:
        self.app, self.settings, self.hosts = app, settings, hosts
        self.credential = None if token is None else f"Bearer {token}".encode()
        self.refuse_early, self.is_draining = refuse_early, is_draining

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        started = False

        async def bounded_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                last = [(b"connection", b"close")] if self.is_draining() else []
                message["headers"] = [*message.get("headers", []), *HEADERS, *last]
            async with asyncio.timeout(self.settings.write_timeout_s):
                await send(message)

        try:
            headers = self._headers(scope)
            self._check_host(headers)
            self._check_token(scope, headers)
            if scope["method"] == "POST":
                self.refuse_early()
            body = await self._body(headers, receive)
            if body is None:
                return  # the client went away
            await self.app(scope, _replay(body, receive), bounded_send)
        except RefusedError as refused:
            await self._refuse(refused, bounded_send)
        except TimeoutError:
            if not started:
                raise
            # A client that does not read: uvicorn closes the connection of an answer that is not finished.

    def _headers(self, scope: Message) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in (b"host", b"authorization", b"content-length") and name in found:
                raise RefusedError(400, "bad_request", f"the header {name.decode()} is there twice")
            found[name] = value
        return found

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        """A page elsewhere can point its own name at this address and read the answers: only known names are served."""
        if self.hosts is None:
            return
        name = headers.get(b"host", b"").decode("latin-1").lower()
        name = name.rpartition(":")[0] if name.rpartition(":")[2].isdigit() else name
        if name not in self.hosts:
            raise RefusedError(421, "wrong_host", "this server is not asked by that name (--set limits.hosts=[NAME])")

    def _check_token(self, scope: Message, headers: dict[bytes, bytes]) -> None:
        if self.credential is None or not is_guarded(scope["method"], scope["path"]):
            return
        if not hmac.compare_digest(headers.get(b"authorization", b""), self.credential):
            raise RefusedError(401, "unauthorized", "this needs the header Authorization: Bearer TOKEN")

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """All of it, or a refusal; a body sent in chunks has no length to look at first. None: the client went away."""
        length = headers.get(b"content-length", b"0")
        large = length.isdigit() and int(length[:20]) > MAX_BODY_BYTES
        if large and b"expect" in headers:
            raise _too_large()  # it has not begun to send
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.settings.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    piece = message.get("body", b"")
                    size += len(piece)
                    large = large or size > MAX_BODY_BYTES
                    # What is too large is read on for a while and thrown away: a client that is still sending when
                    # the connection closes would never see the answer.
                    pieces.append(piece)
                    if large:
                        pieces.clear()
                    if large and (size > _DISCARDED_BYTES or not message.get("more_body")):
                        raise _too_large()
                    if not message.get("more_body"):
                        return b"".join(pieces)
        except TimeoutError:
            if large:
                raise _too_large() from None
            raise RefusedError(
                408, "slow_body", f"the body did not come within {self.settings.body_timeout_s:g} s"
            ) from None

    async def _refuse(self, refused: RefusedError, send: Send) -> None:
        body = error_body(refused.code, str(refused))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if refused.retry_after is not None:
            headers.append((b"retry-after", str(refused.retry_after).encode()))
        if refused.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if refused.status in (408, 413):
            headers.append((b"connection", b"close"))  # the rest of the body is not read
        await send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _too_large() -> RefusedError:
    return RefusedError(413, "too_large", f"a body of more than {MAX_BODY_BYTES:,} bytes; send it in several")


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body that was read, once; then whatever comes (that the client went away)."""
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def patient_protocol(settings: ServeSettings) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol, but a head must come in time and be of some size, and connections are counted."""
    from uvicorn.protocols.http import auto

    base: Any = auto.AutoHTTPProtocol  # h11's or httptools', whichever is installed

    class Patient(base):
        _timer: asyncio.TimerHandle | None = None
        _head_bytes = 0

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if len(self.connections) > settings.max_connections:
                transport.abort()
                return
            self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._head_bytes = 0
                self._cancel()
                return
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.abort()
            elif self._timer is None:
                self._await_head()

        def eof_received(self) -> bool:
            """A client that has said all it wanted may still read, and gets its answer. One that is gone looks just the
            same until something is sent to it: so it is sent what every client passes over (an interim response, once
            more after the first has come back), and where nobody is, the work for it is dropped."""
            cycle = self.cycle
            if cycle is None or cycle.response_complete or cycle.more_body:
                return False  # nothing to answer: the connection closes
            cycle.keep_alive = False
            if cycle.scope["http_version"] == "1.1":
                for wait_s in _PROBES_S:
                    self.loop.call_later(wait_s, self._probe)
            return True

        def _probe(self) -> None:
            if not self.transport.is_closing() and not self.cycle.response_started:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            self._timer = self.loop.call_later(settings.header_timeout_s, self.transport.abort)

        def _cancel(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Patient
