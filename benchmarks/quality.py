"""What lowers the held-out loss fastest at equal wall clock, or in equal steps: one recipe, and changes of it.

Every run is `remask pretrain` of --recipe for --minutes with one thread; as many run at once as there are cores, so
that all share the machine alike. On a busy machine --steps compares what the clock cannot. Kept in --work and not
repeated: the command can be stopped, and goes on when it is given again. Losses compare within one vocabulary; across
vocabularies bits per byte do.

    python benchmarks/quality.py --work DIR [--minutes 3 | --steps 300] [--seeds 3] [--only start,near,...]
        [--plot FILE.svg]
"""

from __future__ import annotations

import argparse
import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _draw import draw
from _rig import claim_work, environment, num_cores, run_remask

ROOT = Path(__file__).resolve().parents[1]
# What every run starts from; a change says what is otherwise. A vocabulary is a setting of the data, not of the run.
START = (
    "vocabulary=16384 train.optimizer=adamw train.learning_rate=1e-3 data.masking.rate=0.15 "
    "data.masking.schedule=constant model.attention_window=null model.global_every=0 "
    "start.embeddings=random start.attention=random start.head=random start.bias=frequencies"
)
MUON = "train.optimizer=muon train.beta1=0.95"
ROWS_32 = "data.batch.num_rows=32 data.batch.micro_rows=32"
MASKS = "data.masking.schedule=linear data.masking.rate=0.3 data.masking.final_rate=0.15"
W8, W4, W2 = (f"model.attention_window={width} model.global_every=3" for width in (8, 4, 2))
NEAR = f"{W4} train.learning_rate=2e-3"
# The quickstart from a counted start; what is changed of it below is about the recipe around that. SIDES: of today.
COUNTED = f"{NEAR} data.masking.rate=0.3 start.embeddings=counted start.attention=neighbours start.head=direct"
SIDES = f"{COUNTED} start.attention=sides"
CHANGES: dict[str, str] = {
    "start": "",
    "rate-2e-3": "train.learning_rate=2e-3",
    "muon-1e-3": f"{MUON} train.learning_rate=1e-3",
    "muon-2e-3": f"{MUON} train.learning_rate=2e-3",
    "rows-8": "data.batch.num_rows=8 data.batch.micro_rows=8",
    "window-8": W8,
    "window-8-first-layer-alone-global": "model.attention_window=8 model.global_every=4",
    "window-8-rotary-100": f"{W8} model.rotary_base_local=100",
    "window-8-rate-2e-3": f"{W8} train.learning_rate=2e-3",
    "window-8-short-rows-first": f"{W8} data.short_steps=0.5 data.short_length=32",
    "window-2": W2,
    "window-2-rate-2e-3": f"{W2} train.learning_rate=2e-3",
    "window-4": W4,
    "window-4-masks-30-to-15": f"{W4} {MASKS}",
    "window-4-muon-2e-3": f"{W4} {MUON} train.learning_rate=2e-3",
    "window-4-muon-6e-3": f"{W4} {MUON} train.learning_rate=6e-3",
    "window-4-rate-4e-3": f"{W4} train.learning_rate=4e-3",
    "window-4-rows-32-rate-3e-3": f"{W4} train.learning_rate=3e-3 data.batch.num_rows=32 data.batch.micro_rows=32",
    "near": NEAR,
    "near-rows-8": f"{NEAR} data.batch.num_rows=8 data.batch.micro_rows=8",
    "near-rows-4-to-16": f"{NEAR} data.batch.ramp_from=4 data.batch.ramp_steps=0.3 data.batch.micro_rows=4",
    "near-masks-30": f"{NEAR} data.masking.rate=0.3",
    "near-masks-40": f"{NEAR} data.masking.rate=0.4",
    "near-masks-30-rate-3e-3": f"{NEAR} data.masking.rate=0.3 train.learning_rate=3e-3",
    "near-masks-30-to-15": f"{NEAR} {MASKS}",
    "near-beta2-0.95": f"{NEAR} train.beta2=0.95",
    "near-post-norm": f"{NEAR} model.norm=post model.first_norm=true",
    "near-layers-2": f"{NEAR} model.num_layers=2",
    "near-width-384": f"{NEAR} model.hidden_size=384 model.num_heads=6 model.ffn_size=1024",
    "near-vocabulary-8192": f"{NEAR} vocabulary=8192",
    "counted": COUNTED,
    "counted-random-head": f"{COUNTED} start.head=random",
    "counted-rate-1e-3": f"{COUNTED} train.learning_rate=1e-3",
    "counted-rate-3e-3": f"{COUNTED} train.learning_rate=3e-3",
    "counted-muon-6e-3": f"{COUNTED} {MUON} train.learning_rate=6e-3",
    "counted-muon-2e-3": f"{COUNTED} {MUON}",
    "counted-beta2-0.95": f"{COUNTED} train.beta2=0.95",
    "counted-masks-20": f"{COUNTED} data.masking.rate=0.2",
    "counted-masks-40": f"{COUNTED} data.masking.rate=0.4",
    "counted-masks-30-to-15": f"{COUNTED} {MASKS}",
    "counted-rows-8": f"{COUNTED} data.batch.num_rows=8 data.batch.micro_rows=8 train.learning_rate=1.5e-3",
    "counted-window-8": f"{COUNTED} model.attention_window=8",
    "counted-all-layers-see-everything": f"{COUNTED} model.attention_window=null model.global_every=0",
    "counted-layers-2": f"{COUNTED} model.num_layers=2",
    "counted-layers-6": f"{COUNTED} model.num_layers=6",
    "counted-width-384": f"{COUNTED} model.num_layers=6 model.hidden_size=384 model.num_heads=6 model.ffn_size=1024",
    "counted-layers-4-width-384": (
        f"{COUNTED} model.num_layers=4 model.hidden_size=384 model.num_heads=6 model.ffn_size=1024"
    ),
    "counted-std-0.1": f"{COUNTED} start.std=0.1",
    "counted-rows-32-rate-3e-3": f"{COUNTED} {ROWS_32} train.learning_rate=3e-3",
    "counted-sides": SIDES,
    "counted-sides-rows-of-64": f"{SIDES} {ROWS_32} data.short_steps=1 data.short_length=64",
    "counted-sides-masks-40": f"{SIDES} data.masking.rate=0.4",
    "counted-sides-masks-20": f"{SIDES} data.masking.rate=0.2",
    "counted-sides-window-8": f"{SIDES} model.attention_window=8",
    "counted-sides-causal-25": f"{SIDES} objective.causal_share=0.25",
    "counted-stable": f"{COUNTED} train.schedule=stable train.decay=0.3",
    "counted-vocabulary-8192": f"{COUNTED} vocabulary=8192",
    "counted-vocabulary-32768": f"{COUNTED} vocabulary=32768",
    "counted-8-neighbours": f"{COUNTED} start.weights=[1,0.9,0.8,0.7,0.6,0.5,0.4,0.3]",
}


def run(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """What the run ended with; it is made if it is not there."""
    out = options.work / f"{name}-{seed}"
    if not (out / "run.json").exists() or "result" not in json.loads((out / "run.json").read_text()):
        words = settings(CHANGES[name])
        prepared = prepare(words.pop("vocabulary"), options)
        told = {"seed": str(seed), "train.eval_every": "0", "train.save_every": "0", "train.device": "cpu"} | words
        command = ["pretrain", str(options.recipe), "--data", str(prepared), "--out", str(out)]
        command += ["--steps", str(options.steps)] if options.steps else ["--minutes", str(options.minutes)]
        with (options.work / f"{name}-{seed}.log").open("w") as log:
            changed = [word for key, value in told.items() for word in ("--set", f"{key}={value}")]
            run_remask([*command, *changed], environment(1), log)
    facts = json.loads((out / "run.json").read_text())
    kept = {key: facts["result"][key] for key in ("loss", "bits_per_byte", "step", "tokens", "seconds")}
    print(f"{name}, seed {seed}: {kept}", flush=True)
    return kept


def settings(change: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in f"{START} {change}".split())


def prepare(vocabulary: str, options: argparse.Namespace) -> Path:
    out = options.work / f"prepared-{vocabulary}"
    if not (out / "manifest.json").exists():
        words = ["prepare", str(options.corpus), "--out", str(out), "--vocab-size", vocabulary]
        run_remask(words, environment(num_cores()))
    return out


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Best first, by bits per byte."""
    lines = [
        "| change | bits per byte, median | lowest to highest | loss, nats | steps | tokens |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in sorted(found.items(), key=lambda item: middle(item[1], "bits_per_byte")):
        bits = [one["bits_per_byte"] for one in runs]
        spread = f"{min(bits):.3f} to {max(bits):.3f}" if len(bits) > 1 else "one seed"
        lines.append(
            f"| {name}: `{CHANGES[name]}` | {middle(runs, 'bits_per_byte'):.3f} | {spread} "
            f"| {middle(runs, 'loss'):.3f} | {middle(runs, 'step'):.0f} | {middle(runs, 'tokens') / 1e6:.2f}M |"
        )
    return "\n".join(lines)


def curve(name: str, options: argparse.Namespace) -> list[tuple[float, float]]:
    """(minutes, loss of the training rows), means over the seeds; every point over the last tenth of the steps."""
    runs = []
    for seed in range(options.seeds):
        lines = map(json.loads, (options.work / f"{name}-{seed}" / "metrics.jsonl").read_text().splitlines())
        runs.append([(line["time"] / 60, line["train/loss"]) for line in lines if "train/loss" in line])
    length = min(map(len, runs))
    minutes, losses = ([statistics.mean(run[i][k] for run in runs) for i in range(length)] for k in (0, 1))
    width = max(1, length // 10)
    return [(minutes[i], statistics.mean(losses[max(0, i - width + 1) : i + 1])) for i in range(length)]


def middle(runs: list[dict[str, Any]], key: str) -> float:
    return statistics.median(one[key] for one in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, default=ROOT.parent / "shared" / "data" / "wiki" / "wiki.train.txt.xz")
    parser.add_argument("--recipe", default=str(ROOT / "runs" / "bases" / "quickstart.yaml"))
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--steps", type=int, help="of every run, instead of --minutes")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="names of changes, by commas; else all")
    parser.add_argument("--plot", type=Path, help="an SVG file for the training curves of the --only changes (up to 3)")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(CHANGES)
    if unknown := [name for name in names if name not in CHANGES]:
        parser.error(f"no change {', '.join(unknown)}; there are {', '.join(CHANGES)}")
    claim_work(options.work, {key: getattr(options, key) for key in ("recipe", "corpus", "minutes", "steps")})
    for name in names:
        prepare(settings(CHANGES[name])["vocabulary"], options)
    jobs = [(name, seed) for seed in range(options.seeds) for name in names]
    found: dict[str, list[dict[str, Any]]] = {}
    with ThreadPoolExecutor(num_cores()) as pool:
        for (name, _), result in zip(jobs, pool.map(lambda job: run(*job, options), jobs), strict=True):
            found.setdefault(name, []).append(result)
    print("\n" + table(found))
    if options.plot:
        lines = {name: curve(name, options) for name in names}
        draw(options.plot, lines, "minutes of one core", "loss of the training rows, nats", names_at=0.6)


if __name__ == "__main__":
    main()
