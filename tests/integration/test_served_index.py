"""A served index and the paths that other tools' clients call, with these clients themselves."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remask
from remask.progress import Progress

from ..serving import Served, tiny_models

TEXTS = {
    "fox": "The quick brown fox jumps over the lazy dog. A fox runs by the river.",
    "book": "Mary Shelley wrote the book. Who wrote it? Mary wrote it by the river.",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizers: dict[str, Path]) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("served-index")
    found = tiny_models(folder, tiny_tokenizers["byte-bpe"])
    docs = folder / "docs.jsonl"
    docs.write_text("".join(json.dumps({"id": key, "text": text}) + "\n" for key, text in TEXTS.items()))
    settings = {"passages.length": 24}
    remask.index(
        model=found["lm"], docs=[docs], out=folder / "manuals", settings=settings, progress=Progress(quiet=True)
    )
    return {"manuals": folder / "manuals", "classes": found["classes"]}


@pytest.fixture(scope="module")
def server(models: dict[str, Path]) -> Iterator[Served]:
    served = Served([f"{name}={path}" for name, path in models.items()])
    yield served
    served.close()


def test_search_over_http_is_search_in_python(server: Served, models: dict[str, Path]) -> None:
    query = "Who wrote the book?"
    status, said, _ = server.ask("/v1/search", {"inputs": [query, "fox"], "top_k": 3, "lists": True, "point": True})
    assert status == 200, said
    assert said["model"] == "manuals"
    mine = remask.search(models["manuals"], query, top=3, progress=Progress(quiet=True))["hits"]
    first, second = said["outputs"]
    assert [hit["row"] for hit in first["hits"]] == [hit["row"] for hit in mine]
    assert [hit["score"] for hit in first["hits"]] == pytest.approx([hit["score"] for hit in mine], abs=1e-5)
    assert {hit["id"] for hit in second["words"]} == {"fox"}
    assert len(first["vectors"]) == 3
    inside = next(hit for hit in second["words"] if hit["passage"] == 0)
    assert inside["after"]
    assert TEXTS["fox"].startswith(f"{inside['text']} {inside['after']}")
    assert all(-1 <= value <= 1 for value in first["point"])
    status, found, _ = server.ask("/v1/map?model=manuals")
    assert status == 200
    assert len(found["points"]) == found["passages"] == server.ask("/v1/models")[1]["models"][0]["index"]["passages"]
    assert server.ask("/v1/map?model=classes")[0] == 404
    status, said, _ = server.ask("/v1/search", {"model": "classes", "inputs": "x"})
    assert (status, said["error"]["code"]) == (422, "cannot")


def test_openais_client_gets_vectors_and_models(server: Served, models: dict[str, Path]) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    texts = ["The lazy dog", "Mary"]
    mine = remask.load(models["manuals"].parent / "lm").embed(texts)
    answer = client.embeddings.create(model="manuals", input=texts)  # base64 on its way, as the client asks for it
    np.testing.assert_allclose([one.embedding for one in answer.data], mine, atol=1e-5)
    assert answer.model == "manuals"
    assert answer.usage.total_tokens > 4
    plain = client.embeddings.create(model="manuals", input="Mary", encoding_format="float", dimensions=8)
    short = np.array(plain.data[0].embedding)
    np.testing.assert_allclose(short, mine[1][:8] / np.linalg.norm(mine[1][:8]), atol=1e-5)
    assert [model.id for model in client.models.list()] == ["manuals", "classes"]
    with pytest.raises(openai.NotFoundError, match="no model of that id"):
        client.embeddings.create(model="text-embedding-3-small", input="x")
    with pytest.raises(openai.UnprocessableEntityError):
        client.embeddings.create(model="manuals", input=[[1, 2, 3]])


def test_huggingfaces_client_gets_vectors_and_classes(server: Served, models: dict[str, Path]) -> None:
    hub = pytest.importorskip("huggingface_hub")
    mine = remask.load(models["manuals"].parent / "lm").embed(["The lazy dog"])
    for path in ("/embed", ""):  # the path of text-embeddings-inference, and its address alone
        client = hub.InferenceClient(model=f"{server.url}{path}", token="none")
        np.testing.assert_allclose(client.feature_extraction("The lazy dog"), mine, atol=1e-5)
    client = hub.InferenceClient(model=f"{server.url}/predict", token="none")
    known = remask.load(models["classes"]).classify(["The lazy dog"])[0].scores
    said: Any = client.text_classification("The lazy dog")
    assert {one.label: one.score for one in said} == pytest.approx(known, abs=1e-5)
    assert said[0].score >= said[1].score


def test_the_paths_of_text_embeddings_inference(server: Served) -> None:
    status, said, _ = server.ask("/rerank", {"query": "the fox", "texts": ["Mary", "the fox", "dog"]})
    assert status == 200
    assert said[0]["index"] == 1
    assert [one["score"] for one in said] == sorted((one["score"] for one in said), reverse=True)
    _, said, _ = server.ask("/rerank", {"query": "fox", "texts": ["Mary"], "return_text": True, "raw_scores": True})
    assert said[0]["text"] == "Mary"
    status, said, _ = server.ask("/predict", {"inputs": "The dog"})
    assert (status, {one["label"] for one in said}) == (200, {"neg", "pos"})
    status, said, _ = server.ask("/predict", {"inputs": [["The dog"], ["Mary"]]})
    assert (status, len(said), len(said[0])) == (200, 2, 2)
    assert server.ask("/predict", {"inputs": ["The dog", "Mary"]})[0] == 200  # a pair
    assert server.ask("/predict", {"inputs": [["The dog"], ["Mary", "dog"]]})[0] == 422
    long = "dog " * 400
    assert server.ask("/embed", {"inputs": long})[0] == 422
    status, said, _ = server.ask("/embed", {"inputs": [long], "truncate": True, "normalize": False})
    assert (status, len(said), len(said[0])) == (200, 1, 32)
    assert server.ask("/embed", {"inputs": "x", "prompt_name": "nothing"})[0] == 422
    status, said, _ = server.ask("/v1/embeddings", {"input": "x", "encoding_format": "base64"})
    assert len(base64.b64decode(said["data"][0]["embedding"])) == 4 * 32


def test_a_token_guards_the_clients_paths_too(models: dict[str, Path]) -> None:
    served = Served([f"manuals={models['manuals']}"], REMASK_TOKEN="secret")
    try:
        for path in ("/embed", "/rerank", "/predict", "/", "/v1/embeddings", "/v1/search"):
            assert served.ask(path, {"inputs": "x"})[0] == 401, path
        assert served.ask("/v1/map")[0] == 401
        assert served.ask("/")[0] == 200, "the page itself is for everybody"
        headers = {"Authorization": "Bearer secret"}
        assert served.ask("/embed", {"inputs": "x"}, headers=headers)[0] == 200
    finally:
        served.close()
