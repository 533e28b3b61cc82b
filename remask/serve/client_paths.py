"""Paths as the clients of other tools call them, so that these work with nothing but another address.

`POST /v1/embeddings` is OpenAI's; `/embed`, `/rerank`, `/predict` and `/` are those of text-embeddings-inference, which
Hugging Face's InferenceClient speaks too. Each is a question to the same engine as `/v1/...`, answered in the other
tool's form. What these clients may send besides is taken and, where it changes nothing here, passed over; a wish that
cannot be met is refused. Errors are remask's own: both clients go by the status. Not here: remask's own paths (app).
"""

import base64
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import orjson
from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from remask.schema import Json
from remask.serve.guard import error_body
from remask.serve.schemas import MAX_INPUTS, Classify, Embed, Pairs, Rank, Text, TextPair, Texts, Word

if TYPE_CHECKING:
    from remask.serve.app import Service

ModelId = Annotated[str, Field(min_length=1, max_length=120, description="an id of /v1/models")]
PATHS = ("embed", "rerank", "predict")  # beside the page's own files


class Lenient(BaseModel):
    """Other tools' bodies have fields that mean nothing here."""

    model_config = ConfigDict(extra="ignore", strict=True, protected_namespaces=())


class EmbeddingsIn(Lenient):
    """As OpenAI's client sends it."""

    input: Texts = Field(description="a text or a list of texts; token ids are of OpenAI's vocabulary and not taken")
    model: ModelId | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, description="the first so many numbers, at length 1 again")


class EmbedIn(Lenient):
    """As text-embeddings-inference takes it."""

    inputs: Texts
    normalize: bool | None = None
    truncate: bool | None = None
    prompt_name: Word | None = None
    dimensions: int | None = Field(None, ge=1)
    model: ModelId | None = None


class RerankIn(Lenient):
    query: Text
    texts: list[Text] = Field(min_length=1, max_length=MAX_INPUTS)
    raw_scores: bool = False
    return_text: bool = False
    truncate: bool | None = None
    model: ModelId | None = None


PredictText = Text | Annotated[list[Text], Field(min_length=1, max_length=2)]


class PredictIn(Lenient):
    """One text, one pair `[a, b]`, or a list of `[text]` and `[a, b]`."""

    inputs: Text | Annotated[list[PredictText], Field(min_length=1, max_length=MAX_INPUTS)]
    truncate: bool | None = None
    parameters: Json | None = None
    model: ModelId | None = None


class AnyIn(Lenient):
    """What InferenceClient posts to an address without a path."""

    inputs: Text | Annotated[list[PredictText], Field(min_length=1, max_length=MAX_INPUTS)]
    normalize: bool | None = None
    truncate: bool | None = None
    prompt_name: Word | None = None
    parameters: Json | None = None


class CountedEmbed(Embed):
    """Vectors with the number of tokens of each text."""

    count: bool = True


# --------------------------------------------------------------------------------------------------- answers


class EmbeddingOut(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsOut(BaseModel):
    object: Literal["list"]
    data: list[EmbeddingOut]
    model: str
    usage: dict[str, int]


class RerankedOut(BaseModel):
    index: int
    score: float
    text: str = Field("", description="only where `return_text` is asked for")


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def error_response(
    status: int, code: str, message: str, field: str | None = None, retry_after: int | None = None
) -> Response:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return Response(error_body(code, message, field), status, headers, media_type="application/json")


def _refused(message: str, field: str) -> Response:
    return error_response(422, "invalid", message, field)


def _shortened(vector: list[float], dimensions: int | None) -> list[float]:
    if dimensions is None:
        return vector
    first = np.asarray(vector[:dimensions], np.float32)
    return (first / max(float(np.linalg.norm(first)), 1e-12)).tolist()


class ClientPaths:
    """What each path does."""

    def __init__(self, service: "Service") -> None:
        self._service = service

    async def embeddings(self, body: EmbeddingsIn, request: Request) -> Response:
        answered = await self._service.ask("embed", CountedEmbed(model=body.model, inputs=body.input), request)
        if isinstance(answered, Response):
            return answered
        name, parts = answered
        vectors = [orjson.loads(part) for part in parts]
        if body.dimensions is not None and body.dimensions > len(vectors[0]["vector"]):
            return _refused(f"dimensions: {name} has vectors of {len(vectors[0]['vector'])} numbers", "dimensions")
        data = []
        for index, counted in enumerate(vectors):
            vector: list[float] | str = _shortened(counted["vector"], body.dimensions)
            if body.encoding_format == "base64":
                vector = base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
            data.append({"object": "embedding", "index": index, "embedding": vector})
        tokens = sum(counted["tokens"] for counted in vectors)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return _json({"object": "list", "data": data, "model": name, "usage": usage})

    async def embed(self, body: EmbedIn, request: Request) -> Response:
        asked = Embed(
            model=body.model, inputs=body.inputs, normalize=body.normalize is not False, prompt=body.prompt_name,
            long_texts="cut" if body.truncate else "error",
        )  # fmt: skip
        answered = await self._service.ask("embed", asked, request)
        if isinstance(answered, Response):
            return answered
        vectors = [_shortened(orjson.loads(part), body.dimensions) for part in answered[1]]
        if body.dimensions is not None and body.dimensions > len(vectors[0]):
            return _refused(f"dimensions: {answered[0]} has vectors of {len(vectors[0])} numbers", "dimensions")
        return _json(vectors)

    async def rerank(self, body: RerankIn, request: Request) -> Response:
        """By a model that scores pairs where there is one, else by the closeness of vectors."""
        cut = "cut" if body.truncate else "error"
        name = body.model or self._scorer()
        if name is not None and self._service.engine.facts.get(name, {}).get("kind") == "regress":
            pairs: list[TextPair | list[str]] = [[body.query, text] for text in body.texts]
            answered = await self._service.ask("pairs", Pairs(model=name, inputs=pairs, long_texts=cut), request)
            if isinstance(answered, Response):
                return answered
            scores = [orjson.loads(part)["score"] for part in answered[1]]
        else:
            asked = Rank.model_validate(
                {"model": name, "inputs": {"query": body.query, "texts": body.texts}, "long_texts": cut}
            )
            answered = await self._service.ask("rank", asked, request)
            if isinstance(answered, Response):
                return answered
            ranked = {text["index"]: text["score"] for text in orjson.loads(answered[1][0])}
            scores = [ranked[index] for index in range(len(body.texts))]
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        texts = ({"text": body.texts[index]} if body.return_text else {} for index in order)
        return _json([{"index": i, "score": scores[i], **text} for i, text in zip(order, texts, strict=True)])

    def _scorer(self) -> str | None:
        """The first model here that gives a pair of texts a number."""
        known = self._service.engine.facts
        return next(
            (n for n in self._service.entries if known[n]["kind"] == "regress" and "pairs" in known[n]["tasks"]), None
        )

    async def predict(self, body: PredictIn, request: Request) -> Response:
        inputs = body.inputs
        if isinstance(inputs, list):
            are_texts = [isinstance(item, str) for item in inputs]
            if any(are_texts) and not (all(are_texts) and len(are_texts) == 2):
                return _refused("inputs: send a text, a pair [a, b], or a list of [text] and [a, b]", "inputs")
        several = isinstance(inputs, list) and not isinstance(inputs[0], str)
        items = inputs if isinstance(inputs, list) and several else [inputs]
        plain = [item[0] if isinstance(item, list) and len(item) == 1 else item for item in items]
        texts = [item for item in plain if isinstance(item, str)]
        if texts and len(texts) < len(plain):
            return _refused("inputs: texts and pairs cannot be mixed in one request", "inputs")
        cut = "cut" if body.truncate else "model"
        if texts:
            asked = Classify(model=body.model, inputs=texts, long_texts=cut)
            answered = await self._service.ask("classify", asked, request)
        else:
            pairs: list[TextPair | list[str]] = [list(map(str, item)) for item in plain]
            answered = await self._service.ask("pairs", Pairs(model=body.model, inputs=pairs, long_texts=cut), request)
        if isinstance(answered, Response):
            return answered
        top = (body.parameters or {}).get("top_k")
        labels = [_labels(orjson.loads(part), top) for part in answered[1]]
        # Hugging Face's client, known by its `parameters`, wants a list around the answer to one text as well.
        return _json(labels if several or body.parameters is not None else labels[0])

    async def anything(self, body: AnyIn, request: Request) -> Response:
        """The first model decides: a classifier's labels, or vectors."""
        first = next(iter(self._service.entries))
        if "classify" in self._service.engine.facts[first]["tasks"]:
            asked = PredictIn(inputs=body.inputs, truncate=body.truncate, parameters=body.parameters or {})
            return await self.predict(asked, request)
        inputs = body.inputs
        if not isinstance(inputs, str):
            texts = [item for item in inputs if isinstance(item, str)]
            if len(texts) < len(inputs):
                return _refused("inputs: send a text or a list of texts", "inputs")
            inputs = texts
        wanted = EmbedIn(inputs=inputs, normalize=body.normalize, truncate=body.truncate, prompt_name=body.prompt_name)
        return await self.embed(wanted, request)


def _labels(answer: Json, top: object) -> list[Json]:
    if answer["label"] is None:  # a regression
        return [{"label": "score", "score": answer["score"]}]
    best_first = sorted(answer["scores"].items(), key=lambda pair: -pair[1])
    labels = [{"label": name, "score": score} for name, score in best_first]
    return labels[:top] if isinstance(top, int) and top > 0 else labels


def add_client_paths(app: FastAPI, service: "Service", errors: dict[int | str, Json]) -> None:
    """The paths above, each in the server's counters under its own name."""
    paths = ClientPaths(service)
    table: tuple[tuple[str, Callable[..., Awaitable[Response]], type[BaseModel], object, str], ...] = (
        ("/v1/embeddings", paths.embeddings, EmbeddingsIn, EmbeddingsOut, "Vectors, as OpenAI's client asks for them."),
        ("/embed", paths.embed, EmbedIn, list[list[float]], "Vectors, as text-embeddings-inference gives them."),
        ("/rerank", paths.rerank, RerankIn, list[RerankedOut], "Texts by how well they fit a query, best first."),
        ("/predict", paths.predict, PredictIn, list[Any], "Classes with their probabilities, best first."),
        ("/", paths.anything, AnyIn, list[Any], "Vectors, or classes where the first model is a classifier."),
    )
    for path, answer, kind, out, line in table:
        name = path.rpartition("/")[2] or "inference"
        app.post(
            path, summary=line, responses={200: {"model": out}, **errors}, response_class=Response,
            operation_id=f"client_{name}", include_in_schema=path != "/",
        )(handler(service, name, answer, kind))  # fmt: skip


def handler(
    service: "Service", name: str, answer: Callable[..., Awaitable[Response]], kind: type[BaseModel]
) -> Callable[..., Awaitable[Response]]:
    """What FastAPI calls for a path whose body is of this kind; counted under its name."""

    async def handle(body: BaseModel, request: Request) -> Response:
        began = time.perf_counter()
        return service.counted(name, began, await answer(body, request))

    handle.__annotations__["body"] = kind  # what FastAPI reads
    return handle
