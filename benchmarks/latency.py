"""Inference of a classifier, from text to label: one short text at a time, and texts of mixed lengths.

short    one text of 32 tokens at a time: ours in int8, bf16 and fp32, beside transformers' pipeline in fp32
single   texts of mixed lengths one at a time: beside ONNX Runtime, OpenVINO and transformers, in the same precision
many     all of those texts at once: beside the same, which get them sorted by length in batches

Of several peers the best counts. All sides tokenise, run and give a label with its score, each in its own process, turn
by turn; all must agree on the scores. ONNX Runtime has no bf16 on CPUs. In int8 it runs its dynamic quantisation, and
OpenVINO the same model with static ranges (QDQ), which its int8 kernels are for. One JSON line a figure; the unit says
whether it is a time or a speed, `ratio` above 1 always means that ours is faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _models import make_model, make_texts, mixed_lengths
from _pretraining import SIZES
from _rig import Turns, common_options, compared, fastest, take_turns, tell

Scores = list[float]  # the probability of the first label, by text
Run = Callable[[Sequence[str]], Scores]
PARTS = ("short", "single", "many")
GRAPHS = {
    ("onnxruntime", "fp32"): "model.onnx",
    ("onnxruntime", "int8"): "model_dynamic.onnx",
    ("openvino", "fp32"): "model.onnx",
    ("openvino", "bf16"): "model.onnx",
    ("openvino", "int8"): "model_static.onnx",
}
TOLERANCE = {"fp32": 1e-3, "bf16": 5e-2, "int8": 0.15}


# ------------------------------------------------------------------------------------------------------ the sides


def open_ours(folder: Path, precision: str, options: argparse.Namespace) -> Run:
    import torch

    import remask
    from remask.answer.settings import Int8Settings

    torch.set_num_threads(options.threads)
    # Random weights are near a tie everywhere: the bound on equal answers is for models that have learned.
    model = remask.load(folder, precision=precision, int8=Int8Settings(min_agreement=0.0))

    def run(texts: Sequence[str]) -> Scores:
        answers = model.classify(texts)
        return [answer.scores["LABEL_0"] for answer in answers]

    return run


def open_pipeline(folder: Path, precision: str, options: argparse.Namespace) -> Run:
    import torch
    from transformers import pipeline

    torch.set_num_threads(options.threads)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    classify = pipeline("text-classification", model=str(folder), device="cpu", dtype=dtype, top_k=None)

    def run(texts: Sequence[str]) -> Scores:
        return [_of_first(classify(text)) for text in texts]

    return run


def _of_first(answer: Any) -> float:
    labels = answer[0] if isinstance(answer[0], list) else answer
    return next(float(one["score"]) for one in labels if one["label"] == "LABEL_0")


def sorted_batches(folder: Path, batch: int, compute: Callable[[Any, Any], Any]) -> Run:
    """What a peer is given: ids padded to the longest of a batch, texts of like length together."""
    import numpy as np
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def run(texts: Sequence[str]) -> Scores:
        ids = tokenizer(list(texts))["input_ids"]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        scores = np.zeros(len(ids))
        for start in range(0, len(order), batch):
            part = order[start : start + batch]
            rows = tokenizer.pad({"input_ids": [ids[i] for i in part]}, return_tensors="np")
            logits = compute(rows["input_ids"], rows["attention_mask"])
            exp = np.exp(logits - logits.max(axis=1, keepdims=True))
            scores[part] = (exp / exp.sum(axis=1, keepdims=True))[:, 0]
        return scores.tolist()

    return run


def open_transformers(folder: Path, precision: str, options: argparse.Namespace) -> Run:
    import torch
    from transformers import AutoModelForSequenceClassification

    torch.set_num_threads(options.threads)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype).eval()
    assert next(model.parameters()).dtype == dtype

    def compute(ids: Any, mask: Any) -> Any:
        with torch.inference_mode():
            return model(torch.from_numpy(ids), torch.from_numpy(mask)).logits.float().numpy()

    return sorted_batches(folder, options.batch, compute)


def open_onnxruntime(folder: Path, precision: str, options: argparse.Namespace) -> Run:
    import onnxruntime

    wanted = onnxruntime.SessionOptions()
    wanted.intra_op_num_threads = options.threads
    session = onnxruntime.InferenceSession(
        folder / GRAPHS["onnxruntime", precision], wanted, providers=["CPUExecutionProvider"]
    )

    def compute(ids: Any, mask: Any) -> Any:
        return session.run(None, {"input_ids": ids, "attention_mask": mask})[0]

    return sorted_batches(folder, options.batch, compute)


def open_openvino(folder: Path, precision: str, options: argparse.Namespace) -> Run:
    import openvino

    hints = {
        "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16", "int8": "f32"}[precision],  # int8: outside of it
        "PERFORMANCE_HINT": "LATENCY",  # one request at a time over all threads, as all sides do
        "INFERENCE_NUM_THREADS": options.threads,
    }
    compiled = openvino.Core().compile_model(folder / GRAPHS["openvino", precision], "CPU", hints)
    used = str(compiled.get_property("INFERENCE_PRECISION_HINT"))
    assert ("bf" in used or "bfloat16" in used) == (precision == "bf16"), f"OpenVINO took {used}"

    def compute(ids: Any, mask: Any) -> Any:
        return compiled({"input_ids": ids, "attention_mask": mask})[0]

    return sorted_batches(folder, options.batch, compute)


SIDES: dict[str, Callable[[Path, str, argparse.Namespace], Run]] = {
    "ours": open_ours,
    "pipeline": open_pipeline,
    "transformers": open_transformers,
    "onnxruntime": open_onnxruntime,
    "openvino": open_openvino,
}


def run_side(options: argparse.Namespace) -> None:
    """A step is all texts of the part once."""
    name, precision = options.side.split("-")
    turns = Turns(options.steps, options.warm)
    run = SIDES[name](options.work, precision, options)
    texts = json.loads((options.work / f"{options.part}.json").read_text())
    scores, times = run(texts), []
    more = True
    while more:
        began = time.perf_counter()
        if options.part == "many":
            run(texts)
        else:
            for text in texts:
                run([text])
        times.append(time.perf_counter() - began)
        more = turns.done()
    turns.last({"scores": scores})


# ------------------------------------------------------------------------------------------------------ the parent


def export_onnx(folder: Path) -> None:
    """The peer's own model as ONNX, for ONNX Runtime and OpenVINO, with free sizes."""
    import torch
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).logits

    ids = torch.randint(4, 100, (2, 16))
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    sizes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("columns", max=512)}
    torch.onnx.export(
        Logits().eval(), (ids, mask), folder / "model.onnx", input_names=["input_ids", "attention_mask"],
        output_names=["logits"], dynamo=True, dynamic_shapes={"input_ids": sizes, "attention_mask": sizes},
        external_data=False, verbose=False,
    )  # fmt: skip


def quantise_onnx(folder: Path, tokenizer: Any) -> None:
    """The peers' int8: dynamic for ONNX Runtime, static ranges from real lengths of text for OpenVINO."""
    import logging

    import numpy as np
    import onnx
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )
    from onnxruntime.quantization.quant_utils import add_pre_process_metadata

    from remask.exports.quantize import plain_products

    logging.disable(logging.WARNING)
    rows = [np.array([tokenizer.encode(text)], np.int64) for text in make_texts(tokenizer, mixed_lengths(16, 48))]

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._rows = iter(rows)

        def get_next(self) -> Any:
            ids = next(self._rows, None)
            return None if ids is None else {"input_ids": ids, "attention_mask": np.ones_like(ids)}

    model = onnx.load(folder / "model.onnx")
    plain_products(model)  # the quantiser stumbles over turned weights
    add_pre_process_metadata(model)
    onnx.save(model, folder / "prepared.onnx")
    quantize_dynamic(
        folder / "prepared.onnx", folder / "model_dynamic.onnx", op_types_to_quantize=["MatMul", "Gemm"],
        per_channel=True, weight_type=QuantType.QInt8,
    )  # fmt: skip
    quantize_static(
        folder / "prepared.onnx", folder / "model_static.onnx", Reader(), quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["MatMul", "Gemm"], per_channel=True, activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )  # fmt: skip


def contests(part: str, asked: Sequence[str]) -> list[tuple[str, list[str], list[str]]]:
    """(precision of ours, our sides, peers) of a part."""
    if part == "short":
        return [(precision, [f"ours-{precision}"], ["pipeline-fp32"]) for precision in asked]
    peers = {"fp32": ["transformers", "onnxruntime", "openvino"], "bf16": ["transformers", "openvino"]}
    peers["int8"] = ["onnxruntime", "openvino"]
    return [(p, [f"ours-{p}"], [f"{name}-{p}" for name in peers[p]]) for p in asked]


def measure(part: str, options: argparse.Namespace, work: Path, texts: list[str]) -> None:
    (work / f"{part}.json").write_text(json.dumps(texts))
    wanted = contests(part, options.precisions.split(","))
    names = list(dict.fromkeys(name for _, ours, peers in wanted for name in ours + peers))
    values = {"part": part, "steps": options.steps, "warm": 2, "threads": options.threads, "batch": options.batch}
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))] + ["--work", str(work)]
    rounds, last = take_turns(names, options, words)
    truth = min(names, key=lambda name: not name.endswith("fp32"))  # an fp32 side, where there is one
    for name, said in last.items():
        apart = max(abs(a - b) for a, b in zip(said["scores"], last[truth]["scores"], strict=True))
        bound = TOLERANCE[name.split("-")[1]]
        assert apart <= bound, f"{name}: scores are {apart:.2g} away from the others'"
    each = {name: [turn["seconds"] / turn["steps"] for turn in turns] for name, turns in rounds.items()}
    for precision, (ours,), peers in wanted:
        best = fastest({name: each[name] for name in peers}, less_is_better=True)
        label = {"short": "latency, 1 x 32 tokens", "single": "latency, mixed lengths, one at a time"}.get(part, "")
        if part == "many":
            rates = {name: [len(texts) / s for s in seconds] for name, seconds in each.items()}
            label = f"throughput, mixed lengths, {options.size}, {precision}"
            result = compared(label, "texts/s", rates[ours], rates[best])
        else:
            times = {name: [1e3 * s / len(texts) for s in seconds] for name, seconds in each.items()}
            result = compared(
                f"{label}, {options.size}, {precision}", "ms a text", times[ours], times[best], less_is_better=True
            )
        medians = {name: float(f"{1e3 * statistics.median(each[name]) / len(texts):.4g}") for name in [ours, *peers]}
        tell(result | {"peer_name": best, "ms_a_text": medians, "selected": "the best peer by its median"}, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="base", choices=SIZES)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--precisions", default="fp32,bf16,int8")
    parser.add_argument("--texts", type=int, default=64, help="of mixed lengths")
    parser.add_argument("--mean", type=int, default=48, help="their mean number of tokens")
    parser.add_argument("--batch", type=int, default=32, help="texts of a batch of the peers")
    parser.add_argument("--steps", type=int, default=1, help="passes over the texts in a round")
    parser.add_argument("--warm", type=int, default=2, help=argparse.SUPPRESS)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json; else RoBERTa's where it is, or a trained one")
    common_options(parser, rounds=9)
    options = parser.parse_args()
    if options.side:
        return run_side(options)
    asked = options.parts.split(",")
    if unknown := set(asked) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(prefix="remask-bench-") as folder:
        work = Path(folder)
        tokenizer = make_model(work, options.size, "classify", options.tokenizer)
        if asked != ["short"]:
            export_onnx(work)
            if "int8" in options.precisions:
                quantise_onnx(work, tokenizer)
        texts = {"short": make_texts(tokenizer, [32] * 16)}
        texts["single"] = texts["many"] = make_texts(tokenizer, mixed_lengths(options.texts, options.mean))
        for part in asked:
            measure(part, options, work, texts[part])


if __name__ == "__main__":
    main()
