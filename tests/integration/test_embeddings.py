"""Embeddings agree: `remask.load`, `remask encode`, the server, both exports and sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

import remask
from remask.__main__ import cli

from ..serving import serving

TEXTS = ["The dog sleeps by the river.", "A king", "The child walks on the hill. The bird sings under a tree."]


def invoke(*words: Any) -> None:
    result = CliRunner().invoke(cli, [str(word) for word in (*words, "-q")], catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="module", params=["full-sentences", "segment-pair"])
def encoder(request: Any, tmp_path_factory: pytest.TempPathFactory, tiny_prepared: Path) -> Path:
    """Pretrained here for two steps, without and with a sentence loss, which trains the first token."""
    out = tmp_path_factory.mktemp("encoder") / request.param
    run = out.with_suffix(".yaml")
    run.write_text("base: roberta_base\n")
    changes = [
        "model.num_layers=1", "model.hidden_size=32", "model.num_heads=2", "model.ffn_size=48", "model.max_length=64",
        "data.length=64", f"data.format={request.param}", "data.batch.num_rows=4", "data.batch.micro_rows=4",
        f"data.sentence_loss={'none' if request.param == 'full-sentences' else 'nsp'}", "train.precision=fp32",
        "train.device=cpu", "model.init_std=0.2",
    ]  # fmt: skip
    words = [word for change in changes for word in ("--set", change)]
    invoke("pretrain", run, "--data", tiny_prepared, "--steps", 2, "--out", out, *words)
    return out


def test_everyone_gives_the_same_vectors(encoder: Path, tmp_path: Path) -> None:
    pooling = remask.load(encoder).heads.pooling
    assert pooling == ("mean" if encoder.name == "full-sentences" else "first")
    expected = remask.load(encoder).embed(TEXTS)
    states = [encoded.states for encoded in remask.load(encoder).encode(TEXTS)]
    by_hand = np.stack([s.mean(0) if pooling == "mean" else s[0] for s in states])
    np.testing.assert_allclose(expected, by_hand / np.linalg.norm(by_hand, axis=1, keepdims=True), atol=1e-6)

    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    invoke("encode", encoder, tmp_path / "texts.txt", "--pooled", "--out", tmp_path / "v.safetensors")
    np.testing.assert_allclose(load_file(tmp_path / "v.safetensors")["vectors"], expected, atol=1e-6)
    with serving(encoder) as server:
        np.testing.assert_allclose(server.outputs("embed", TEXTS), expected, atol=1e-5)
    for name, words in (("whole", ()), ("bare", ("--embedding",))):
        invoke("export", encoder, "--to", "hf", *words, "--out", tmp_path / name)
        np.testing.assert_allclose(remask.load(tmp_path / name).embed(TEXTS), expected, atol=1e-6)


def test_sentence_transformers_gives_them_too(encoder: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    expected = remask.load(encoder).embed(TEXTS)
    invoke("export", encoder, "--to", "hf", "--embedding", "--out", tmp_path / "bare")
    theirs = library.SentenceTransformer(str(tmp_path / "bare"), device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), expected, atol=1e-5)
    if encoder.name == "full-sentences":  # the export as a masked LM, which it pools by the mean
        invoke("export", encoder, "--to", "hf", "--out", tmp_path / "whole")
        plain = library.SentenceTransformer(str(tmp_path / "whole"), device="cpu")
        vectors = plain.encode(TEXTS, normalize_embeddings=True)
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
        assert json.loads((tmp_path / "whole/config.json").read_text())["architectures"] == ["RobertaForMaskedLM"]
