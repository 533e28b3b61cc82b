"""The HTTP side: paths, errors, the page. No model code in here.

In: a Supervisor that answers jobs, and the models it has. Out: an ASGI app with `/v1/...` (schemas.py), `/health`,
`/ready`, `/metrics`, `/openapi.json`, `/docs` (the same to read) and the page at `/`.
Every error is `{"error": {"code", "message", "field"?}}`.
Not here: limits that hold before parsing (guard), queue and engine (supervisor), sockets and signals (server).
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException

import remask
from remask.schema import Json
from remask.serve.api_page import api_page
from remask.serve.catalog import Entry, split_id
from remask.serve.client_paths import PATHS, add_client_paths, error_response, handler
from remask.serve.guard import Guard, RefusedError, is_guarded
from remask.serve.metrics import CONTENT_TYPE, Metrics
from remask.serve.queue import Job, OverloadedError, TooMuchError
from remask.serve.request_log import KEY
from remask.serve.schemas import TASKS, Asked, ErrorOut, MapOut, ModelsOut, StateOut
from remask.serve.supervisor import EngineError, Supervisor

_STATUS = {
    "text_too_long": 422, "no_mask": 422, "bad_target": 422, "bad_prompt": 422, "cannot": 422, "bad_input": 422,
    "too_much": 422, "unknown_model": 404, "unavailable": 503, "internal": 500,
}  # fmt: skip
_CODES = {400: "bad_json", 404: "not_found", 405: "method_not_allowed"}
_FIELDS = {"bad_target": "targets", "bad_prompt": "patterns", "unknown_model": "model", "cannot": "model"}
_PAGE_TYPES = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon", ".json": "application/json",
}  # fmt: skip
_EVENT = {
    "type": "object",
    "properties": {"event": {"enum": ["text", "done", "error"]}, "data": {"type": "string"}},
    "required": ["event", "data"],
}
_RETRY_S = 2  # about how long a new engine takes

_SAID: dict[int | str, Json] = {
    400: {"description": "Not JSON, or a broken head"}, 401: {"description": "Without the token"},
    404: {"description": "No such model or path"}, 405: {"description": "Another method"},
    408: {"description": "The body did not come in time"}, 413: {"description": "Over 2,000,000 bytes"},
    415: {"description": "Not application/json"}, 421: {"description": "Asked by an unknown name"},
    422: {"description": "Understood but not possible"}, 429: {"description": "Too much waits already (Retry-After)"},
    500: {"description": "A fault of the server"}, 503: {"description": "The engine is started again (Retry-After)"},
    504: {"description": "Not answered in time"},
}  # fmt: skip
ERRORS: dict[int | str, Json] = {status: {**said, "model": ErrorOut} for status, said in _SAID.items()}
_PLAIN_ERRORS: dict[int | str, Json] = {
    status: said for status, said in ERRORS.items() if status in (400, 401, 404, 405, 413, 421)
}


class Service:
    """What the paths share: who can do what, and asking the engine."""

    def __init__(self, engine: Supervisor, entries: list[Entry], metrics: Metrics) -> None:
        self.engine, self.metrics = engine, metrics
        self.entries = {entry.id: entry for entry in entries}
        self.draining = False

    def models(self) -> list[Json]:
        """What /v1/models says."""
        found = []
        for number, entry in enumerate(self.entries.values()):
            facts = dict(self.engine.facts[entry.id])
            folder = facts.pop("folder")
            steps = entry.steps()
            step = next((step for step, path in steps.items() if path.name == folder), None)
            found.append({"id": entry.id, "default": number == 0, **facts, "step": step, "steps": list(steps)})
        return found

    def refuse_early(self) -> None:
        """Before a request's body is read."""
        if not self.engine.up:
            raise RefusedError(503, "unavailable", "the engine is being started again", _RETRY_S)
        try:
            self.engine.queue.check()
        except OverloadedError as error:
            self.metrics.add("refused_total")
            raise RefusedError(429, "overloaded", str(error), error.seconds) from None

    async def answer(self, task: str, asked: Asked, request: Request) -> Response:
        """One request from its checked body to its answer."""
        if getattr(asked, "stream", False):
            return await self.stream(task, asked, request)
        return await self._answer(task, asked, request)

    async def stream(self, task: str, asked: Asked, request: Request) -> Response:
        """Server-sent events: `text` with each new piece, then `done` with the whole answer. What fails before the
        first piece is answered as any other request; later it is an `error` event with the same document."""
        if len(asked.items()) != 1:
            return error_response(422, "invalid", "stream: one text at a time", "stream")
        pieces: asyncio.Queue[bytes | Response] = asyncio.Queue()

        def on_text(text: str) -> None:
            pieces.put_nowait(event("text", json.dumps({"text": text}, ensure_ascii=False).encode()))

        async def whole() -> None:
            pieces.put_nowait(await self._answer(task, asked, request, on_text))

        working = asyncio.ensure_future(whole())
        first = await pieces.get()
        if isinstance(first, Response) and first.status_code != 200:
            return first

        async def events() -> AsyncIterator[bytes]:
            piece = first
            try:
                while not isinstance(piece, Response):
                    yield piece
                    piece = await pieces.get()
                yield event("done" if piece.status_code == 200 else "error", bytes(piece.body))
            finally:
                working.cancel()

        return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _answer(
        self, task: str, asked: Asked, request: Request, on_text: Callable[[str], None] | None = None
    ) -> Response:
        said = await self.ask(task, asked, request, on_text)
        if isinstance(said, Response):
            return said
        name, parts = said
        body = b'{"model":"' + name.encode() + b'","outputs":[' + b",".join(parts) + b"]}"
        return Response(body, media_type="application/json")

    async def ask(
        self, task: str, asked: Asked, request: Request, on_text: Callable[[str], None] | None = None
    ) -> tuple[str, list[bytes]] | Response:
        """The model that answered and the JSON of each answer; or what to say instead."""
        try:
            job = self._job(task, asked)
            job.on_text = on_text
            if (line := request.scope.get(KEY)) is not None:  # there is a request log
                line.update(task=task, model=job.model, inputs=asked.items())
            self.engine.submit(job)
            parts = await self._wait(job, request)
        except OverloadedError as error:
            self.metrics.add("refused_total")
            return error_response(429, "overloaded", str(error), retry_after=error.seconds)
        except TooMuchError as error:
            return error_response(422, "too_much", str(error), "inputs")
        except EngineError as error:
            status = _STATUS[error.code]
            field = _FIELDS.get(error.code, "inputs" if status == 422 else None)
            return error_response(status, error.code, str(error), field, _RETRY_S if status == 503 else None)
        except TimeoutError:
            return error_response(504, "timeout", f"not answered within {self.engine.settings.timeout_s:g} s")
        if parts is None:
            return Response(status_code=499)  # nobody reads it
        return job.model, parts

    def map_of(self, name: str | None) -> bytes | None:
        """The map of an index, by its id (none: of the first index); None: there is no such index."""
        found = [one for one in self.entries if self.engine.facts[one]["index"] and name in (None, one)]
        return (self.entries[found[0]].folder / "map.json").read_bytes() if found else None

    def counted(self, task: str, began: float, response: Response) -> Response:
        """The same response, in the metrics."""
        self.metrics.add("requests_total", task=task, status=str(response.status_code))
        if response.status_code == 200:
            self.metrics.observe(task, time.perf_counter() - began)
        return response

    def _job(self, task: str, asked: Asked) -> Job:
        facts = self.engine.facts
        if asked.model is None:
            able = [name for name in self.entries if task in facts[name]["tasks"]]
            if task == "write":  # an encoder alone can fill masks; a decoder comes first
                able.sort(key=lambda name: not facts[name]["decoder"])
            name = able[0] if able else None
            if name is None:
                raise EngineError("cannot", f"no model here can {task}")
            step = None
        else:
            known = split_id(asked.model)
            if known is None or known[0] not in self.entries:
                raise EngineError("unknown_model", "no model of that id; GET /v1/models lists them")
            name, step = known
            if task not in facts[name]["tasks"]:
                raise EngineError("cannot", f"{name} cannot {task}; it can {', '.join(facts[name]['tasks'])}")
        path = None
        if step is not None:
            path = self.entries[name].steps().get(step)
            if path is None:
                raise EngineError("unknown_model", f"{name} has no step {step}; GET /v1/models lists them")
        done = asyncio.get_running_loop().create_future()
        shown = name if step is None else f"{name}@{step}"
        return Job(shown, task, asked.items(), asked.options(), facts[name]["max_length"], done, path)

    async def _wait(self, job: Job, request: Request) -> list[bytes] | None:
        """The job's answer; None where the client went away first. Either way nothing of it waits afterwards."""
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait(
                {job.done, gone}, timeout=self.engine.settings.timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if job.done.done():
                return job.done.result()
            if gone.done():
                return None
            raise TimeoutError
        finally:
            gone.cancel()
            self.engine.drop(job)


def event(name: str, data: bytes) -> bytes:
    """One server-sent event; JSON has no line breaks of its own."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def build_app(service: Service, *, token: str | None, hosts: frozenset[str] | None) -> Guard:
    """The whole ASGI app."""
    app = FastAPI(
        title="remask",
        version=remask.__version__,
        description="Answers of encoders: fill-mask, classes, entities, spans, choices, vectors, states, tokens.",
        docs_url=None,
        redoc_url=None,
        strict_content_type=True,
        redirect_slashes=False,
    )
    for task, (kind, out, line) in TASKS.items():
        answered: Json = {"model": out}
        if "stream" in kind.model_fields:
            answered["content"] = {"text/event-stream": {"schema": _EVENT}}
        responses = {200: answered, **ERRORS}
        path = f"/v1/{task}"
        app.post(path, summary=line, responses=responses, response_class=Response, operation_id=task.replace("-", "_"))(
            handler(service, task, partial(service.answer, task), kind)
        )
    add_client_paths(app, service, ERRORS)
    _add_state(app, service)
    _add_page(app)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _internal)
    if token is not None:
        _document_token(app)
    return Guard(
        app,
        settings=service.engine.settings,
        token=token,
        hosts=hosts,
        refuse_early=service.refuse_early,
        is_draining=lambda: service.draining,
    )


def _add_state(app: FastAPI, service: Service) -> None:
    engine = service.engine

    @app.get("/v1/models", response_model=ModelsOut, responses=_PLAIN_ERRORS)
    def models() -> Any:
        return {"models": service.models(), "data": [{"id": name} for name in service.entries]}

    @app.get("/v1/map", responses={200: {"model": MapOut}, **_PLAIN_ERRORS}, response_class=Response)
    def collection_map(model: str | None = None) -> Response:
        """A sample of an index's passages as points of a map."""
        found = service.map_of(model)
        if found is None:
            return error_response(404, "unknown_model", "no index of that id; GET /v1/models lists them", "model")
        return Response(found, media_type="application/json")

    def state(status: str, well: bool) -> Response:
        body = StateOut(status=status, restarts=engine.restarts).model_dump_json()
        return Response(body, 200 if well else 503, media_type="application/json")

    said: dict[int | str, Json] = {200: {"model": StateOut}, 503: {"model": StateOut}, **_PLAIN_ERRORS}

    @app.get("/health", responses=said, response_class=Response)
    async def health() -> Response:
        """Whether the engine answers."""
        return state("ok" if engine.up else "unresponsive", engine.up)

    @app.get("/ready", responses=said, response_class=Response)
    async def ready() -> Response:
        """Whether a request sent now would be taken."""
        if service.draining:
            return state("draining", False)
        if not engine.up:
            return state("unresponsive", False)
        try:
            engine.queue.check()
        except OverloadedError:
            return state("overloaded", False)
        return state("ready", True)

    texts: dict[int | str, Json] = {
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **_PLAIN_ERRORS,
    }

    @app.get("/metrics", responses=texts, response_class=Response)
    async def metrics() -> Response:
        """Counters in Prometheus' text format."""
        queue = engine.queue
        gauges = {"engine_up": engine.up, "queue_requests": queue.requests, "queue_tokens": queue.tokens}
        return Response(service.metrics.text(gauges), media_type=CONTENT_TYPE)


def _add_page(app: FastAPI) -> None:
    """The files of web/, read once: nothing that a client sends becomes a path."""
    folder = files("remask.serve") / "web"
    found = {}
    if folder.is_dir():
        for file in folder.iterdir():
            ending = f".{file.name.rpartition('.')[2]}"
            if file.is_file() and ending in _PAGE_TYPES:
                found[file.name] = (file.read_bytes(), _PAGE_TYPES[ending])

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return _file("index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(api_page(app.openapi()), media_type=_PAGE_TYPES[".html"])

    @app.get("/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        if name in PATHS:
            raise HTTPException(405, headers={"Allow": "POST"})
        return _file(name)

    def _file(name: str) -> Response:
        if name not in found:
            raise HTTPException(404)
        body, kind = found[name]
        return Response(body, media_type=kind)


def _document_token(app: FastAPI) -> None:
    """Clients that read the OpenAPI document learn of the token there."""
    document = app.openapi()
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if is_guarded(method.upper(), path):
                operation["security"] = [{"token": []}]


# ---------------------------------------------------------------------------------------------------- errors


async def _invalid(request: Request, error: Exception) -> Response:
    """What is wrong with a body: the deepest of the complaints, since a union gives one for each of its kinds."""
    assert isinstance(error, RequestValidationError)
    wrong = max(error.errors(), key=lambda one: len(one["loc"]))
    if wrong["type"] == "json_invalid":
        return error_response(400, "bad_json", f"not JSON: {wrong['ctx']['error']}")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if wrong["loc"] == ("body",) and not (kind == "application/json" or kind.endswith("+json")):
        return error_response(415, "media_type", "the body must come as Content-Type: application/json")
    place = [str(part) for part in wrong["loc"][1:]]
    field = place[0] if place else None
    said = wrong["msg"][:1].lower() + wrong["msg"][1:200]
    if field == "inputs":
        number = next((f"[{part}]" for part in wrong["loc"] if isinstance(part, int)), "")
        kind = TASKS.get(request.url.path.rpartition("/")[2], (Asked,))[0]
        said = f"{number}: {said}; send {kind.one_input}, or a list of 1 to {kind.most_inputs} such"
        return error_response(422, "invalid", f"inputs{said}", field)
    return error_response(422, "invalid", f"{field or 'the body'}: {said}", field)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "bad_request")
    words = {400: "the body cannot be read as JSON", 404: "no such path", 405: "another method is needed here"}
    response = error_response(error.status_code, code, words.get(error.status_code, "not possible"))
    response.headers.update(error.headers or {})
    return response


async def _internal(request: Request, error: Exception) -> Response:
    return error_response(500, "internal", "a fault of the server; its log has more")
