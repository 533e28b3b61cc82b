"""From a cold process to an answer: `remask fill-mask` on a local base model beside the same through transformers.

Every run is a fresh process and the sides alternate; files are in the page cache for both, since every side has been
run once before. The peer is run in two ways, pipeline("fill-mask") and AutoTokenizer with AutoModelForMaskedLM; the
faster counts. Both must give the same best token. Last line: {"ratio", "peer", "ours", "unit"}.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _models import make_model
from _pretraining import SIZES
from _rig import common_options, compared, environment, fastest, tell

TEXT = "The capital of France is <mask>."

PIPELINE = """
import json, sys
from transformers import pipeline
fill = pipeline("fill-mask", model=sys.argv[1], device="cpu")
print(json.dumps({"answers": [{"token": one["token"]} for one in fill(sys.argv[2])]}))
"""

CLASSES = """
import json, sys, torch
from transformers import AutoModelForMaskedLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForMaskedLM.from_pretrained(sys.argv[1]).eval()
given = tokenizer(sys.argv[2], return_tensors="pt")
with torch.inference_mode():
    logits = model(**given).logits[0, (given["input_ids"][0] == tokenizer.mask_token_id).nonzero()[0, 0]]
best = logits.softmax(-1).topk(5).indices.tolist()
print(json.dumps({"answers": [{"token": one, "token_str": tokenizer.decode([one])} for one in best]}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="base", choices=SIZES)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json; else RoBERTa's where it is, or a trained one")
    common_options(parser, rounds=7)
    options = parser.parse_args()
    env = environment(options.threads, options.allocator)
    # The peer's bytecode was written when pip installed it; ours, from a working tree, is written in the first round.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    seconds: dict[str, list[float]] = {"ours": [], "pipeline": [], "AutoModel": []}
    best: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="remask-bench-") as folder:
        make_model(Path(folder), options.size, "masked-lm", options.tokenizer)
        commands = {
            "ours": ["-m", "remask", "fill-mask", folder, TEXT, "--json", "-q"],
            "pipeline": ["-c", PIPELINE, folder, TEXT],
            "AutoModel": ["-c", CLASSES, folder, TEXT],
        }
        for number in range(options.rounds + 1):
            for name, words in commands.items():
                began = time.perf_counter()
                done = subprocess.run([sys.executable, *words], env=env, stdout=subprocess.PIPE, text=True, check=True)
                if number:  # the first round brings the files into the cache
                    seconds[name].append(time.perf_counter() - began)
                best[name] = json.loads(done.stdout.strip().splitlines()[-1])["answers"][0]["token"]
            print(f"round {number} of {options.rounds}", file=sys.stderr)
    assert len(set(best.values())) == 1, f"different answers: {best}"
    peer = fastest({name: seconds[name] for name in ("pipeline", "AutoModel")}, less_is_better=True)
    result = compared(
        f"start of fill-mask, {options.size}", "s", seconds["ours"], seconds[peer], less_is_better=True
    ) | {
        "peer_name": f"transformers {peer}",
        "seconds": {name: [round(value, 3) for value in values] for name, values in seconds.items()},
        "selected": "of the two ways through transformers the faster by its median; all rounds count",
    }  # fmt: skip
    tell(result, options)


if __name__ == "__main__":
    main()
