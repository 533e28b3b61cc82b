"""An fp32 ONNX graph -> the same with 8-bit weights, for CPUs (ONNX Runtime's dynamic quantisation).

In: a graph's file. Out: another, about a quarter of its size: matrix products in integers, activations quantised as
they come, the embedding tables 8-bit too. Weights keep 7 of their 8 bits: processors without VNNI add pairs of products
in 16 bits, which 8 would overflow, and what was measured here must hold there. Not here: what it costs (onnx).
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from remask.errors import ConfigError
from remask.exports.graph import need

QUANTISED = ("MatMul", "Gather")


def quantise(source: Path, target: Path, keep: Sequence[str] = ()) -> None:
    """Write the 8-bit form of a graph. `keep`: products whose weight has such a word in its name stay fp32."""
    onnx = need("onnx")
    need("onnxruntime")
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.quant_utils import add_pre_process_metadata

    model = onnx.load(str(source))
    plain_products(model)
    add_pre_process_metadata(model)  # plain_products is what the library's own preparation is for
    words = {part for node in model.graph.node for name in node.input for part in name.split(".")}
    if unknown := [word for word in keep if word not in words]:
        raise ConfigError(
            f"keep = {unknown[0]}: no weight of this model has that in its name; known are {_parts(words)}"
        )
    kept = [node.name for node in model.graph.node for name in node.input if set(keep) & set(name.split("."))]
    prepared = target.with_name(f"{target.stem}.prepared.onnx")
    onnx.save(model, str(prepared))
    with _quiet():
        quantize_dynamic(
            prepared, target, op_types_to_quantize=list(QUANTISED), per_channel=True, reduce_range=True,
            weight_type=QuantType.QInt8, nodes_to_exclude=kept,
        )  # fmt: skip
    prepared.unlink()


def plain_products(model: Any) -> None:
    """Every product with a weight as MatMul (and Add), its weight stored as it is multiplied.

    The quantiser does this itself for Gemm, but turns a weight that several layers share (ALBERT) once for each of
    them, and keeps the shapes that torch noted for the unturned one; it passes a turned weight (the tied output matrix
    of a masked-LM head) by."""
    onnx = need("onnx")
    graph = model.graph
    weights = {entry.name: entry for entry in graph.initializer}
    turned: dict[str, str] = {}

    def turn(name: str) -> str:
        if name not in turned:
            array = onnx.numpy_helper.to_array(weights[name]).T.copy()
            turned[name] = f"{name}.turned"
            graph.initializer.append(onnx.numpy_helper.from_array(array, turned[name]))
        return turned[name]

    nodes, renamed = [], {}
    for node in graph.node:
        values = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
        if node.op_type == "Transpose" and node.input[0] in weights and list(values.get("perm", (1, 0))) == [1, 0]:
            renamed[node.output[0]] = turn(node.input[0])
            continue
        for number, name in enumerate(node.input):
            node.input[number] = renamed.get(name, name)
        plain = values.get("alpha", 1.0) == 1.0 == values.get("beta", 1.0) and not values.get("transA", 0)
        if node.op_type != "Gemm" or node.input[1] not in weights or not plain:
            nodes.append(node)
            continue
        weight = turn(node.input[1]) if values.get("transB", 0) else node.input[1]
        biased = len(node.input) > 2
        product = f"{node.output[0]}.product" if biased else node.output[0]
        nodes.append(onnx.helper.make_node("MatMul", [node.input[0], weight], [product], name=node.name))
        if biased:
            added = onnx.helper.make_node("Add", [product, node.input[2]], [node.output[0]], name=f"{node.name}.bias")
            nodes.append(added)
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.value_info[:]
    used = {name for node in graph.node for name in node.input}
    for entry in [entry for entry in graph.initializer if entry.name not in used]:
        graph.initializer.remove(entry)


def _parts(words: set[str]) -> str:
    return ", ".join(word for word in ("qkv", "output", "up", "down", "tokens", "positions", "dense") if word in words)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The quantiser speaks through the root logger."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
