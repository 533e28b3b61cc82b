"""Prompts of an embedding model: stored with its task, or where sentence-transformers keeps them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import remask
from remask.errors import DataError
from remask.exports.hf import export_hf
from remask.model.interop import PROMPTS_JSON, read_prompts
from remask.model.network import build_network
from remask.model.settings import HeadSettings, ModelSettings, Pooling
from remask.model.store import save_model
from remask.schema import Batch
from remask.tasks.kinds import KINDS, TASK_JSON, StoredTask
from remask.tasks.retrieve import Retrieve
from remask.tasks.settings import RowSettings, TableSettings

PROMPTS = {"query": "ask: ", "document": "text: "}
TEXTS = ["The dog.", "Mary Shelley wrote it"]


def made(
    folder: Path, tokenizer: Path, prompts: dict[str, str], pooling: Pooling = "mean", kind: str = "classify"
) -> Path:
    settings = ModelSettings(
        vocab_size=300, hidden_size=32, num_heads=4, num_layers=2, ffn_size=48, max_length=40, init_std=0.3
    )
    stored = StoredTask(kind, KINDS[kind], (), KINDS[kind].metric, TableSettings(), RowSettings(), prompts)
    network = build_network(settings, HeadSettings(pooling=pooling), seed=1)
    save_model(folder, network, tokenizer, extra={TASK_JSON: stored.to_json()})
    return folder


@pytest.fixture
def folder(tmp_path: Path, tiny_tokenizers: dict[str, Path]) -> Path:
    return made(tmp_path / "m", tiny_tokenizers["byte-bpe"], PROMPTS)


def test_a_prompt_stands_before_every_text(folder: Path) -> None:
    model = remask.load(folder)
    assert model.prompts == PROMPTS
    for name, before in PROMPTS.items():
        asked = model.embed(TEXTS, prompt=name)
        np.testing.assert_array_equal(asked, model.embed([before + text for text in TEXTS]))
        assert np.abs(asked - model.embed(TEXTS)).max() > 1e-3


def test_each_side_of_a_ranking_has_its_prompt(folder: Path) -> None:
    model = remask.load(folder)
    query, texts = model.embed(["Who?"], prompt="query")[0], model.embed(TEXTS, prompt="document")
    found = {ranked.index: ranked.score for ranked in model.rank("Who?", TEXTS)}
    np.testing.assert_allclose([found[0], found[1]], texts @ query, rtol=1e-5)


def test_an_unknown_prompt_names_those_there_are(folder: Path, tiny_tokenizers: dict[str, Path]) -> None:
    with pytest.raises(DataError, match="prompt = 'passage': m has 'query', 'document'"):
        remask.load(folder).embed(TEXTS, prompt="passage")
    bare = made(folder.parent / "bare", tiny_tokenizers["byte-bpe"], {})
    with pytest.raises(DataError, match="prompt = 'query': bare has none"):
        remask.load(bare).embed(TEXTS, prompt="query")


def test_prompts_that_are_no_texts_are_refused(folder: Path, tmp_path: Path) -> None:
    values = json.loads((folder / TASK_JSON).read_bytes()) | {"prompts": {"query": 3}}
    (tmp_path / TASK_JSON).write_text(json.dumps(values))
    with pytest.raises(DataError, match=r"task.json: damaged: prompts must be texts by name"):
        StoredTask.read(tmp_path)
    (tmp_path / PROMPTS_JSON).write_text('{"prompts": ["a"]}')
    with pytest.raises(DataError, match=f"{PROMPTS_JSON}: prompts must be texts by name"):
        read_prompts(tmp_path)


def test_exports_keep_them_where_sentence_transformers_looks(folder: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    export_hf(folder, tmp_path / "hf")
    assert not (tmp_path / "hf" / TASK_JSON).exists()  # a classifier's task is gone with its head
    ours, theirs = remask.load(tmp_path / "hf"), library.SentenceTransformer(str(tmp_path / "hf"), device="cpu")
    assert ours.prompts == PROMPTS
    for name in (None, "query", "document"):
        expected = remask.load(folder).embed(TEXTS, prompt=name)
        np.testing.assert_allclose(ours.embed(TEXTS, prompt=name), expected, atol=1e-6)
        np.testing.assert_allclose(theirs.encode(TEXTS, prompt_name=name), expected, atol=1e-5)
    card = (tmp_path / "hf" / "README.md").read_text()
    assert 'model.encode(["A text.", "Another."], prompt_name="query")' in card
    assert 'model.embed(["A text.", "Another."], prompt="document")' in card


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_states_of_a_graph_are_pooled_as_the_network_pools_them(
    tmp_path: Path, tiny_tokenizers: dict[str, Path], pooling: Pooling
) -> None:
    """A graph leaves states where padding was; `int8 --eval` scores rankings through it."""
    reader = remask.load(made(tmp_path / "m", tiny_tokenizers["byte-bpe"], {}, pooling, "retrieve")).reader
    rows = Retrieve().text_rows(TEXTS, ["a"], reader.tokenizer, reader.frame(), RowSettings())
    network = reader.loaded.network

    def graph(batch: Batch) -> dict[str, np.ndarray]:
        with torch.inference_mode():
            states = network.encode(batch.map(torch.as_tensor)).numpy().copy()
        states[np.arange(states.shape[1]) >= batch.lengths_B[:, None]] = 9.0
        return {"last_hidden_state": states}

    vectors = np.stack(reader.outputs(rows, reader.forward_of(graph)))
    expected = remask.load(tmp_path / "m").embed([*TEXTS, "a"], normalize=False)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
