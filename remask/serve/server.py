"""Sockets, signals and the life of a server.

In: models by id, an address, limits. Out: an HTTP server that listens once its models are loaded, and that ends after
a signal when every request that reached it is answered. Beyond loopback it only starts with a token. Not here: paths
(app), limits of a request (guard), the engine (supervisor).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn

from remask import signals
from remask.answer.settings import Int8Settings
from remask.errors import UnavailableError, UsageError
from remask.schema import Json
from remask.serve import worker
from remask.serve.app import Service, build_app
from remask.serve.catalog import Entry
from remask.serve.guard import patient_protocol
from remask.serve.metrics import Metrics
from remask.serve.request_log import RequestLog, opened
from remask.serve.settings import ServeSettings
from remask.serve.supervisor import Supervisor

_LAST_CALL_S = 0.5  # after a signal: time for requests on their way; answers now say that they are the last
_KEEP_ALIVE_S = 10


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int
    token: str | None


def check_address(address: Address) -> None:
    """Anyone who reaches an address beyond loopback could use the models: there a token is needed."""
    if address.token is not None and (not address.token or not address.token.isprintable() or " " in address.token):
        raise UsageError("the token must be one word without spaces")
    if address.token is None and not _is_loopback(address.host):
        raise UsageError(
            f"--host {address.host} can be reached from other machines: give --token TOKEN (or REMASK_TOKEN), "
            "or stay at 127.0.0.1"
        )


def _is_loopback(host: str) -> bool:
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise UsageError(f"--host {host}: no such address here: {error.strerror}") from None
    return all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in found)


def bind(address: Address) -> socket.socket:
    """The socket, bound but not listening yet: a port in use shows before models are loaded."""
    family, kind, protocol, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(place)
    except OSError as error:
        made.close()
        raise UnavailableError(f"{address.host} port {address.port}: {error.strerror}; choose another --port") from None
    made.set_inheritable(False)
    return made


def serve(
    entries: list[Entry],
    address: Address,
    settings: ServeSettings,
    *,
    precision: str,
    int8: Int8Settings,
    device: str,
    on_ready: Callable[[str, list[Json]], None],
    say: Callable[[str], None],
    request_log: str | None = None,
    log_texts: bool = False,
) -> None:
    """Serve until a signal. `on_ready(url, models)` is called when the server listens. `request_log`: a file, or -."""
    check_address(address)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # what clients get wrong is told to them, not to the log
    metrics = Metrics()
    models = {entry.id: entry.folder for entry in entries}
    assignment = worker.Assignment(models, precision, device, settings, os.getpid(), int8)
    engine = Supervisor(assignment, metrics, say)
    service = Service(engine, entries, metrics)
    with contextlib.closing(bind(address)) as sock, opened(request_log) as log:
        host, port = sock.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        app = build_app(service, token=address.token, hosts=_names(address, shown, settings))
        config = uvicorn.Config(
            app if log is None else RequestLog(app, log, say, with_texts=log_texts),
            http=patient_protocol(settings),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(settings.drain_s)),
            backlog=2048,
        )
        _Server(config, service, lambda: on_ready(f"http://{shown}:{port}", service.models())).run(sockets=[sock])


def _names(address: Address, shown: str, settings: ServeSettings) -> frozenset[str] | None:
    """Names by which a loopback server may be asked; beyond loopback the token guards."""
    if address.token is not None:
        return None
    names = {"localhost", "127.0.0.1", "[::1]", shown.lower(), address.host.lower(), *map(str.lower, settings.hosts)}
    return frozenset(names)


class _Server(uvicorn.Server):
    """uvicorn with remask's signals: the first one drains, the second one ends at once."""

    def __init__(self, config: uvicorn.Config, service: Service, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._on_ready = service, on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the handlers of remask.signals stay

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self._service.engine.start()
        await super().startup(sockets)
        self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        if signals.requested():
            self._service.draining = self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._stop_listening(sockets or [])
        # Requests on open connections are still read, and each answer closes its connection; idle ones are closed next.
        await asyncio.sleep(_LAST_CALL_S)
        await super().shutdown(sockets)
        await self._service.engine.stop()

    async def _stop_listening(self, sockets: list[socket.socket]) -> None:
        """Connections that the system has made but nobody accepted yet would be reset: they are taken in first."""
        loop = asyncio.get_running_loop()
        copies = [one.dup() for one in sockets]
        for server in self.servers:
            server.close()
        self.servers = []
        for one in sockets:
            one.close()
        found: list[socket.socket] = []
        for copy in copies:
            copy.setblocking(False)
            with contextlib.suppress(OSError):
                while True:
                    found.append(copy.accept()[0])
            copy.close()
        for one in found:
            await loop.connect_accepted_socket(self._protocol, one)

    def _protocol(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        return kind(config=self.config, server_state=self.server_state, app_state={})
