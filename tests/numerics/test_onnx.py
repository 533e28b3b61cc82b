"""Exported graphs in ONNX Runtime against their source: every family, every head, lengths and batches never traced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remask.model.network import Network, build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.schema import Batch

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SMALL: dict[str, Any] = {
    "vocab_size": 90, "hidden_size": 16, "num_heads": 2, "num_layers": 1, "ffn_size": 24, "max_length": 200,
    "init_std": 0.2,
}  # fmt: skip
BERT: dict[str, Any] = {"num_segments": 2, "position_offset": 0, "head_form": "bert"}
FAMILIES: dict[str, dict[str, Any]] = {
    "roberta": {},
    "bert": BERT,
    "albert": BERT | {"num_layers": 3, "sharing": "all", "embedding_size": 8, "activation": "gelu_tanh"},
    "modern": {
        "positions": "rotary", "attention_window": 4, "global_every": 2, "num_layers": 2, "norm": "pre",
        "first_norm": False, "ffn": "gated", "num_segments": 0, "position_offset": 0, "head_form": "modern",
        "bias": False, "norm_bias": False,
    },
}  # fmt: skip
# Every head and every family; the encoder alone is in tests/unit/export.
CASES = [
    ("roberta", HeadSettings(num_classes=3)),
    ("bert", HeadSettings(span=True, answerable=True)),
    ("albert", HeadSettings(choice=True)),
    ("albert", HeadSettings(masked_lm=True, sentence=True)),
    ("modern", HeadSettings(num_tags=5)),
    ("modern", HeadSettings(num_classes=4, multilabel=True, pooling="mean")),
]

Made = Callable[[str, HeadSettings], tuple[Network, Path]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """(network, file of its graph), traced once each: that is what takes the time here."""
    from remask.exports.graph import write_graph

    folder = tmp_path_factory.mktemp("graphs")
    known: dict[str, tuple[Network, Path]] = {}

    def make(family: str, heads: HeadSettings) -> tuple[Network, Path]:
        name = f"{family} {heads!r}"
        if name not in known:
            network = build_network(ModelSettings(**(SMALL | FAMILIES[family])), heads, seed=3).eval()
            path = folder / f"{len(known)}.onnx"
            write_graph(path, network.settings, heads, network.state_dict())
            known[name] = network, path
        return known[name]

    return make


@pytest.mark.parametrize(("family", "heads"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_graph_says_what_its_source_says(made: Made, family: str, heads: HeadSettings) -> None:
    from remask.exports.graph import Graph
    from remask.model.outputs import run_network

    network, path = made(family, heads)
    graph = Graph(path)
    segmented = network.settings.num_segments > 1
    assert list(graph.inputs) == ["input_ids", "attention_mask", *(["token_type_ids"] if segmented else [])]
    axes = ["batch", "choices", "length"] if heads.choice else ["batch", "length"]
    assert all(shape == axes for shape in graph.inputs.values())
    draw = np.random.default_rng(1)
    for rows, width in ((1, 1), (1, 17), (5, 40), (2, 200)):
        lengths = draw.integers(1, width + 1, rows)
        lengths[-1] = width
        batch = Batch(
            draw.integers(0, 90, (rows, width)), lengths, draw.integers(0, 2, (rows, width)) if segmented else None
        )
        expected, found = run_network(network, batch), graph(batch)
        assert list(found) == list(expected)
        for name, values in expected.items():
            assert found[name].shape == values.shape
            real = np.arange(width) < lengths[:, None] if values.shape[:2] == (rows, width) else np.ones(rows, bool)
            assert np.abs(values).max() > 1e-3
            np.testing.assert_allclose(found[name][real], values[real], atol=1e-5)


def test_choices_of_a_question_are_an_axis_of_their_own(made: Made) -> None:
    from remask.model.outputs import run_network

    network, path = made("albert", HeadSettings(choice=True))
    ids = np.random.default_rng(1).integers(0, 90, (2, 4, 9))
    logits = run(path, {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)})
    alone = run_network(network, Batch(ids.reshape(8, 9), np.full(8, 9)))["logits"]
    np.testing.assert_allclose(logits, alone.reshape(2, 4), atol=1e-5)


def test_padding_on_the_left_moves_the_positions_along(made: Made) -> None:
    _, path = made("modern", HeadSettings(num_tags=5))
    ids = np.random.default_rng(1).integers(4, 90, (1, 9))
    mask = np.ones_like(ids)
    plain = run(path, {"input_ids": ids, "attention_mask": mask})
    left = ((0, 0), (5, 0))
    moved = run(path, {"input_ids": np.pad(ids, left, constant_values=1), "attention_mask": np.pad(mask, left)})
    np.testing.assert_allclose(moved[:, 5:], plain, atol=1e-5)


def run(path: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["logits"], inputs)[0]


def test_int8_is_near_and_shares_what_was_shared(tmp_path: Path, made: Made) -> None:
    """A weight that three layers use is quantised once, and the tied output matrix is a product in integers too."""
    import onnx

    from remask.exports.graph import Graph
    from remask.exports.quantize import quantise
    from remask.model.outputs import run_network

    network, path = made("albert", HeadSettings(masked_lm=True, sentence=True))
    quantise(path, tmp_path / "small.onnx")
    model = onnx.load(str(tmp_path / "small.onnx"))
    products = [node for node in model.graph.node if node.op_type == "MatMulInteger"]
    layers = network.settings.num_layers
    assert len(products) == 4 * layers + 3  # and the projection of the embeddings, the head's dense, the output matrix
    assert len({node.input[1] for node in products}) == 4 + 3
    floats = [entry for entry in model.graph.initializer if entry.data_type == onnx.TensorProto.FLOAT]
    assert not [entry.name for entry in floats if len(entry.dims) > 1]
    batch = Batch(np.random.default_rng(1).integers(0, 90, (4, 30)), np.full(4, 30))
    expected, found = run_network(network, batch)["logits"], Graph(tmp_path / "small.onnx")(batch)["logits"]
    assert np.corrcoef(expected.ravel(), found.ravel())[0, 1] > 0.98
    assert np.abs(expected - found).max() > 1e-4
    quantise(path, tmp_path / "mixed.onnx", keep=["down"])
    mixed = onnx.load(str(tmp_path / "mixed.onnx"))
    assert sum(node.op_type == "MatMulInteger" for node in mixed.graph.node) == len(products) - layers
