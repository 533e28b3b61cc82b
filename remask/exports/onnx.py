"""A finished model -> a folder with an ONNX graph: `onnx/model.onnx` in fp32, or `onnx/model_quantized.onnx` in int8.

In: a run, checkpoint, model or Hugging Face folder. Out: the graph where transformers' tools look for it, config.json,
the tokenizer's files, results.json and a card with code that runs it. Nothing is published that was not compared with
its source: fp32 within 1e-4 on real sentences, int8 by the scores before and after on a given set or, without one, by
how often both say the same. Not here: tracing (graph), the comparison (answer.agreement), reading sets (commands).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from remask.answer import agreement
from remask.answer.scores import Scores
from remask.artifacts import Artifact, publish
from remask.errors import DataError, RemaskError
from remask.exports.card import graph_card
from remask.exports.graph import Graph, left_out, need, write_graph
from remask.exports.hf import (
    Source,
    export_key,
    open_with_tokenizer,
    write_json,
    write_sentence_transformers,
    write_tokenizer,
)
from remask.exports.quantize import quantise
from remask.model.interop import TASK_JSON
from remask.model.interop_config import SpecialIds, no_class, write_config
from remask.model.interop_weights import export_kind
from remask.model.network import Network, empty_network
from remask.model.outputs import run_network
from remask.model.settings import Pooling
from remask.model.store import Loaded
from remask.schema import Json, Values
from remask.tokenizer import Tokenizer

FOLDER = "onnx"
FILES = {"onnx": f"{FOLDER}/model.onnx", "int8": f"{FOLDER}/model_quantized.onnx"}
_HINT = "keep the products that suffer most in fp32 (--keep down)"


@dataclass(frozen=True)
class Bound:
    """What int8 may cost. `measure` scores a form of the model on a given set, called `name` in the card."""

    measure: Callable[[agreement.Answerer], Scores] | None = None
    name: str = ""
    max_drop: float = 0.01
    min_agreement: float = 0.9
    keep: tuple[str, ...] = ()  # parts that stay fp32: see quantise


def export_onnx(
    model: Path | Loaded,
    out: Path,
    *,
    to: Literal["onnx", "int8"] = "onnx",
    card: Values | None = None,
    embedding: bool = False,
    pooling: Pooling | None = None,
    bound: Bound | None = None,
) -> Artifact:
    """Write the folder, or refuse with a DataError and leave nothing. `embedding`, `pooling`: as in export_hf."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        need(name)  # before any work
    source, tokenizer = open_with_tokenizer(model, embedding, pooling)
    if source.heads.writer is not None:
        raise DataError(
            f"{source.folder}: writes token by token, for which there is no graph; --to hf makes a folder for "
            "transformers, --embedding exports the encoder alone"
        )
    if tokenizer.vocab_size > source.settings.vocab_size:
        raise DataError(
            f"{source.folder}: the tokenizer has {tokenizer.vocab_size:,} entries, the model only "
            f"{source.settings.vocab_size:,}: they do not belong together"
        )

    def fill(aside: Path) -> Json:
        results = _write_graphs(aside, source, tokenizer, to, bound or Bound())
        _write_beside(aside, source, tokenizer, results, to, card or {})
        return results

    bounds = None if bound is None else [bound.name, bound.max_drop, bound.min_agreement, bound.keep]
    key = export_key(source, to, card, embedding, bounds)
    try:
        return publish(out, to, fill, inputs={"model": source.folder.name}, key=key)
    except RemaskError:
        shutil.rmtree(out.with_name(f".{out.name}.partial"), ignore_errors=True)
        raise


def _write_graphs(aside: Path, source: Source, tokenizer: Tokenizer, to: str, bound: Bound) -> Json:
    """The graph in its place, compared with its source; what was found."""
    settings, heads = source.settings, source.heads
    network = _network(source)
    (aside / FOLDER).mkdir()
    path = aside / FILES["onnx"]
    outputs = write_graph(path, settings, heads, source.state)
    asked = partial(run_network, network)
    graph = Graph(path)
    rows = agreement.rows_for(tokenizer, settings, heads)
    batches = agreement.shapes_tried(rows, tokenizer.pad_id, settings)
    largest = agreement.check(asked, graph, batches)
    results: Json = {
        "format": to,
        "file": FILES[to],
        "class": None if no_class(settings, heads) else export_kind(settings, heads),
        "inputs": list(graph.inputs),
        "outputs": outputs,
        "left_out": left_out(heads),
        "parameters": sum(tensor.numel() for tensor in source.state.values()),
        "largest_difference": largest,
        "tolerance": agreement.TOLERANCE,
        "sentences": len(rows),
        "bytes": path.stat().st_size,
    }
    if to == "int8":
        quantise(path, aside / FILES["int8"], bound.keep)
        for file in (aside / FOLDER).glob(f"{path.name}*"):
            file.unlink()
        small = Graph(aside / FILES["int8"])
        results["fp32_bytes"], results["bytes"] = results["bytes"], (aside / FILES["int8"]).stat().st_size
        what, value = agreement.agreement(asked, small, rows, tokenizer, settings, heads)
        results["fp32_parts"] = list(bound.keep)
        results["agreement"] = {"what": what, "value": value, "sentences": len(rows)}
        results["int8_difference"] = agreement.largest_difference(
            asked, small, agreement.shapes_tried(rows, tokenizer.pad_id, settings)
        )
        if bound.measure is None:
            _check_agreement(what, value, bound)
        else:
            results["scores"] = _scores(bound, bound.measure(asked), bound.measure(small))
    return results


def _network(source: Source) -> Network:
    network = empty_network(source.settings, source.heads)
    network.load_state_dict({name: tensor.float() for name, tensor in source.state.items()}, assign=True)
    return network.eval().requires_grad_(False)


def _check_agreement(what: str, value: float, bound: Bound) -> None:
    if not value >= bound.min_agreement:
        raise DataError(
            f"int8 and its source: {what} {value:.4f} on {len(agreement.SENTENCES)} real sentences, below the bound of "
            f"{bound.min_agreement:g}: nothing was written; {_HINT}, score it on a set of your own (--eval FILE), "
            "or set --min-agreement"
        )


def _scores(bound: Bound, before: Scores, after: Scores) -> Json:
    name = before.metric
    drop = before.metrics[name] - after.metrics[name]
    if not drop <= bound.max_drop:
        raise DataError(
            f"int8 lowers {name} on {bound.name} from {before.metrics[name]:.4f} to {after.metrics[name]:.4f}, by "
            f"{drop:.4f}, more than --max-drop {bound.max_drop:g}: nothing was written; {_HINT}"
        )
    return {
        "set": bound.name,
        "examples": before.examples,
        "metric": name,
        "before": dict(before.metrics),
        "after": dict(after.metrics),
        "drop": drop,
        "max_drop": bound.max_drop,
    }


def _write_beside(aside: Path, source: Source, tokenizer: Tokenizer, results: Values, to: str, card: Values) -> None:
    settings, heads = source.settings, source.heads
    ids = SpecialIds(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    reasons = no_class(settings, heads)
    kind = export_kind(settings, heads)
    if reasons:
        config = _own_config(source, ids)
    else:
        config = write_config(settings, heads, kind, ids, "float32", source.labels)
    write_json(aside / "config.json", config)
    write_tokenizer(aside, source, tokenizer)
    if kind == "Model":
        write_sentence_transformers(aside, source)
    if source.has_task:
        shutil.copyfile(source.folder / TASK_JSON, aside / TASK_JSON)
    write_json(aside / "results.json", results)
    text = graph_card(settings, heads, tokenizer, card, results, reasons)
    (aside / "README.md").write_text(text, encoding="utf-8")


def _own_config(source: Source, ids: SpecialIds) -> Json:
    """For a form that transformers has no class for: what whoever runs the graph must know."""
    settings, heads = source.settings, source.heads
    config: Json = {
        "model_type": "remask",
        "vocab_size": settings.vocab_size,
        "num_hidden_layers": settings.num_layers,
        "hidden_size": settings.hidden_size,
        "num_attention_heads": settings.num_heads,
        "max_length": settings.max_length,
        "pad_token_id": ids.pad,
        "bos_token_id": ids.bos,
        "eos_token_id": ids.eos,
    }
    count = heads.num_classes if heads.num_classes is not None else heads.num_tags
    if count is not None:
        names = source.labels or tuple(f"LABEL_{i}" for i in range(count))
        config["id2label"] = {str(i): name for i, name in enumerate(names)}
        config["label2id"] = {name: i for i, name in enumerate(names)}
    return config
