"""Pseudo-log-likelihoods: sentences scored per second by `remask evaluate --tasks blimp` beside a plain batched loop.

The peer is what one writes with transformers: every masked copy of every sentence, padded in batches, logits
everywhere, log-softmax, pick the masked token. Ours runs copies of one length together and computes logits at the
masked places only. Both score the same sentences with the same weights, alternating in one run, and must agree.
Last line of `--json`: {"ratio", "peer", "ours", "unit"}.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from remask.model.packed import for_answers
from remask.model.store import open_model
from remask.tasks.blimp import pseudo_log_likelihoods

SIZES = {"tiny": (2, 64, 2, 128), "small": (6, 384, 6, 1536), "base": (12, 768, 12, 3072)}
VOCAB_SIZE = 16_384
MASK = VOCAB_SIZE - 1


def make_model(folder: Path, size: str) -> Any:
    """A random RoBERTa in Hugging Face layout; gives the peer's object."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    layers, width, heads, ffn = SIZES[size]
    config = RobertaConfig(
        vocab_size=VOCAB_SIZE, num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
        intermediate_size=ffn, max_position_embeddings=130, layer_norm_eps=1e-5, type_vocab_size=1, pad_token_id=1,
        bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = RobertaForMaskedLM(config).eval()
    model.save_pretrained(folder)
    return model


def make_sentences(count: int) -> list[np.ndarray]:
    """As long as BLiMP's with a small vocabulary: 6 to 16 tokens."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(6, 17, count)
    return [np.concatenate([[0], generator.integers(4, MASK, n), [2]]) for n in lengths]


def peer_scores(model: Any, sentences: list[np.ndarray], batch: int) -> np.ndarray:
    copies = [(number, place) for number, ids in enumerate(sentences) for place in range(1, len(ids) - 1)]
    scores = np.zeros(len(sentences))
    for start in range(0, len(copies), batch):
        part = copies[start : start + batch]
        width = max(len(sentences[number]) for number, _ in part)
        ids = torch.full((len(part), width), 1)
        for row, (number, place) in enumerate(part):
            ids[row, : len(sentences[number])] = torch.from_numpy(sentences[number])
            ids[row, place] = MASK
        log_probs = model(ids, attention_mask=(ids != 1).long()).logits.float().log_softmax(-1)
        for row, (number, place) in enumerate(part):
            scores[number] += log_probs[row, place, sentences[number][place]].item()
    return scores


def our_scores(network: Any, sentences: list[np.ndarray]) -> np.ndarray:
    def log_probs(batch: Any) -> np.ndarray:
        tensors = batch.map(torch.as_tensor)
        hidden = network.encode(tensors, wanted_M=tensors.masked_positions_M)
        logits = network.masked_lm(hidden, tensors.masked_positions_M).float()
        return (logits.gather(1, tensors.masked_labels_M[:, None])[:, 0] - logits.logsumexp(1)).numpy()

    return pseudo_log_likelihoods(log_probs, sentences, MASK)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64, help="rows of the peer's batches")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        peer = make_model(Path(folder), options.size)
        network = for_answers(open_model(Path(folder)).network, options.precision)
    if options.precision == "bf16":
        peer.to(torch.bfloat16)
    sentences = make_sentences(options.sentences)
    half = torch.autocast("cpu", torch.bfloat16) if options.precision == "bf16" else contextlib.nullcontext()
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    with torch.inference_mode(), half:
        for number in range(options.rounds + 1):
            began = time.perf_counter()
            ours = our_scores(network, sentences)
            middle = time.perf_counter()
            with torch.autocast("cpu", enabled=False):  # its weights are in that format
                theirs = peer_scores(peer, sentences, options.batch)
            end = time.perf_counter()
            assert np.allclose(ours, theirs, rtol=1e-3 if options.precision == "fp32" else 3e-2), "they disagree"
            if number:  # the first round warms both sides
                seconds["ours"].append(middle - began)
                seconds["peer"].append(end - middle)
    ratio = statistics.median(p / o for o, p in zip(seconds["ours"], seconds["peer"], strict=True))
    result = {
        "name": f"BLiMP sentences, {options.size}, {options.precision}",
        "ratio": round(ratio, 2),
        "peer": round(options.sentences / statistics.median(seconds["peer"]), 1),
        "ours": round(options.sentences / statistics.median(seconds["ours"]), 1),
        "unit": "sentences/s",
    }
    if not options.json:
        print(f"transformers {result['peer']} sentences/s, remask {result['ours']} sentences/s")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
