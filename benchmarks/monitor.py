"""How soon the monitor's detector calls a shift, and how often it speaks for nothing, beside a fixed threshold.

Predictions are simulated: texts of two classes, a classifier whose confusion is known, a number of texts a window. The
detector is the one of `remask monitor`, which first has to learn its level; the threshold gets the true level for
nothing, looks at the said share of one window, and is set so that it raises as many false alarms as was asked of the
detector. Delays are in windows (1: in the first window of the shift), the median over the runs; `found` is the share of
the runs that were called within `--within` windows. The last line is a JSON object with all figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from remask.monitoring.detector import Detector
from remask.monitoring.settings import AlarmSettings
from remask.monitoring.shares import Corrector

CLASSES = ("negative", "other")
CONFUSION = np.array([[170, 30], [24, 176]])  # of 200 each: 85 and 88 % right
SAID = CONFUSION / CONFUSION.sum(1, keepdims=True)
LEVEL = 0.4
HOUR = 3600


def draw(rng: np.random.Generator, share: float, texts: int, windows: int) -> np.ndarray:
    """What is said in so many windows: windows x 2."""
    said = np.array([share, 1 - share]) @ SAID
    return rng.multinomial(np.maximum(1, rng.poisson(texts, windows)), said)


def alarms(counts: np.ndarray, settings: AlarmSettings) -> list[int]:
    detector = Detector(CLASSES, CLASSES, Corrector(CONFUSION.tolist(), 2), settings, ZoneInfo("UTC"))
    judged = [detector.take(number * HOUR, row.tolist()) for number, row in enumerate(counts)]
    return [number for number, one in enumerate(judged) if one.shift is not None]


def threshold(rng: np.random.Generator, texts: int, rate: float) -> float:
    """How far the said share of a window must be off to be off by chance in `rate` of 1,000 windows."""
    counts = draw(rng, LEVEL, texts, 200_000)
    off = np.abs(counts[:, 0] / counts.sum(1) - said_level(LEVEL))
    return float(np.quantile(off, 1 - rate / 1000))


def said_level(share: float) -> float:
    return float(np.array([share, 1 - share]) @ SAID[:, 0])


def delays(words: argparse.Namespace, rng: np.random.Generator, texts: int, size: float) -> dict[str, list[float]]:
    """By side: windows until the call, infinite where there was none."""
    found: dict[str, list[float]] = {"threshold": [], **{f"looks for {one:g}": [] for one in words.look}}
    limit = threshold(rng, texts, words.rate)
    for _ in range(words.runs):
        calm, moved = draw(rng, LEVEL, texts, words.calm), draw(rng, LEVEL + size, texts, words.within)
        off = np.abs(moved[:, 0] / moved.sum(1) - said_level(LEVEL)) > limit
        found["threshold"].append(float(np.argmax(off)) + 1 if off.any() else float("inf"))
        for look in words.look:
            settings = AlarmSettings(shift=look, rate=words.rate)
            late = [number - words.calm + 1 for number in alarms(np.vstack([calm, moved]), settings)]
            found[f"looks for {look:g}"].append(float(min([one for one in late if one > 0], default=float("inf"))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, nargs="+", default=[10, 30, 100, 300], help="texts a window, on average")
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.05, 0.1, 0.2], help="injected shifts")
    parser.add_argument("--look", type=float, nargs="+", default=[0.05, 0.1], help="alarm.shift of the detector")
    parser.add_argument("--rate", type=float, default=2.0, help="false alarms asked for in 1,000 windows")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--calm", type=int, default=60, help="windows before the shift")
    parser.add_argument("--within", type=int, default=100, help="windows after it")
    parser.add_argument("--quiet-windows", type=int, default=4000, help="windows without a shift, for false alarms")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="only the last line")
    words = parser.parse_args()
    rng = np.random.default_rng(words.seed)
    rows: list[dict[str, Any]] = []
    for texts in words.texts:
        for look in words.look:
            counts = draw(rng, LEVEL, texts, words.quiet_windows)
            judged = words.quiet_windows - AlarmSettings().baseline
            raised = 1000 * len(alarms(counts, AlarmSettings(shift=look, rate=words.rate))) / judged
            rows.append({"texts": texts, "looks for": look, "false alarms in 1,000": round(raised, 2)})
        for size in words.sizes:
            for side, runs in delays(words, rng, texts, size).items():
                called = [one for one in runs if one != float("inf")]
                middle = statistics.median(runs)
                rows.append(
                    {
                        "texts": texts,
                        "shift": size,
                        "side": side,
                        "median delay": None if middle == float("inf") else middle,
                        "found": round(len(called) / len(runs), 2),
                    }
                )
        if not words.json:
            for row in rows:
                if row["texts"] == texts:
                    print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    print(json.dumps({"benchmark": "monitor", "rate": words.rate, "rows": rows}))


if __name__ == "__main__":
    main()
