"""What the speed scripts share: sides in processes of their own that take turns, and the line that they end with.

A side is the same script started again with `--side NAME`. It sets itself up, says that it is ready, and measures one
round whenever the parent says `go`; the others wait meanwhile, so that a change of the machine's speed meets all sides
alike. Both sides of a comparison get the same threads and the same allocator settings (those of remask's own).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

# As remask.allocator sets them: freed memory stays with the process, instead of being zeroed again every step.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "268435456",
}


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


def environment(threads: int, allocator: str = "tuned") -> dict[str, str]:
    """What every side gets. `allocator`: tuned, or plain for the C library's own settings."""
    root = str(Path(__file__).resolve().parents[1])
    same = {
        "OMP_NUM_THREADS": str(threads), "PYTHONPATH": root, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    inherited = {name: value for name, value in os.environ.items() if name not in ALLOCATOR}
    return inherited | same | (ALLOCATOR if allocator == "tuned" else {})


def common_options(parser: argparse.ArgumentParser, rounds: int) -> None:
    parser.add_argument("--rounds", type=int, default=rounds, help="turns of each side; medians are over all of them")
    threads = int(os.environ.get("OMP_NUM_THREADS", num_cores()))
    parser.add_argument("--threads", type=int, default=threads, help="of each side; else OMP_NUM_THREADS, or the cores")
    parser.add_argument("--allocator", default="tuned", choices=["tuned", "plain"], help="of both sides")
    parser.add_argument("--json", action="store_true", help="nothing but the JSON lines on stdout")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)


def run_remask(words: Sequence[str], env: dict[str, str], log: IO[str] = sys.stderr) -> None:
    subprocess.run([sys.executable, "-m", "remask", *words], env=env, stdout=log, stderr=log, check=True)


def claim_work(folder: Path, facts: dict[str, Any]) -> None:
    """A folder keeps the runs of one set of facts; it is refused for others, whose runs would pass for each other."""
    folder.mkdir(parents=True, exist_ok=True)
    file, told = folder / "facts.json", json.dumps(facts, indent=1, default=str)
    if not file.exists():
        file.write_text(told)
    elif file.read_text() != told:
        sys.exit(f"--work {folder}: keeps runs of {file.read_text()}, not of {told}; give another folder")


class Side:
    """A process that measures when it is told to."""

    def __init__(self, name: str, script: str, words: Sequence[str], env: dict[str, str]) -> None:
        self.name = name
        command = [sys.executable, script, *words, "--side", name]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.ready = self._answer()

    def round(self) -> dict[str, Any]:
        return self._say("go")

    def stop(self) -> dict[str, Any]:
        """What the side has to say at its end."""
        facts = self._say("stop")
        if self._child.wait() != 0:
            raise SystemExit(f"{self.name}: ended with {self._child.returncode}")
        return facts

    def kill(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()

    def _say(self, word: str) -> dict[str, Any]:
        stdin: IO[str] | None = self._child.stdin
        assert stdin is not None
        stdin.write(word + "\n")
        stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: ended early with {self._child.wait()}; see above")
        return json.loads(line)


@contextlib.contextmanager
def sides(names: Sequence[str], options: argparse.Namespace, words: Sequence[str]) -> Iterator[list[Side]]:
    """One process for each name, all of them of the running script."""
    started: list[Side] = []
    env = environment(options.threads, options.allocator)
    try:
        for name in names:
            started.append(Side(name, sys.argv[0], words, env))
        yield started
    finally:
        for side in started:
            side.kill()


def take_turns(
    names: Sequence[str], options: argparse.Namespace, words: Sequence[str]
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, Any]]]:
    """(the rounds, the last words) of every side. The order is turned round after every round."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with sides(names, options, words) as started:
        for number in range(options.rounds):
            for side in started if number % 2 == 0 else reversed(started):
                found[side.name].append(side.round())
            told = {name: round(rounds[-1]["seconds"], 4) for name, rounds in found.items()}
            print(f"round {number + 1} of {options.rounds}: seconds {json.dumps(told)}", file=sys.stderr, flush=True)
        last = {side.name: side.stop() for side in started}
    return found, last


class Turns:
    """The child's end: `done()` after every step, rounds of `steps` steps, the first `warm` steps belong to none.

    Without a parent (`alone`) it measures one round and ends. `settle` waits for what a device still computes: a round
    begins and ends with an idle one, and between its steps nobody waits.
    """

    def __init__(self, steps: int, warm: int, alone: bool = False, settle: Callable[[], None] = lambda: None) -> None:
        self._steps, self._warm, self._alone, self._settle = steps, warm, alone, settle
        self._told = sys.stdout
        sys.stdout = sys.stderr  # libraries that print must not speak in our name
        self._count = -warm
        self._began = 0.0
        self._tokens = 0
        self.first: dict[str, Any] = {}

    def done(self, tokens: int = 0) -> bool:
        """A step is over. False: no more of them, please."""
        self._count += 1
        if self._count > 0:
            self._tokens += tokens
        if self._count == 0:
            self._settle()
            self._say({"ready": True})
            return self._wait()
        if self._count < self._steps:
            return True
        self._settle()
        self.first = {"seconds": time.perf_counter() - self._began, "tokens": self._tokens, "steps": self._steps}
        if self._alone:
            return False
        self._say(self.first)
        return self._wait()

    def last(self, facts: dict[str, Any]) -> None:
        self._say(self.first | facts if self._alone else facts)

    def _wait(self) -> bool:
        if not self._alone and sys.stdin.readline().strip() != "go":
            return False
        self._count, self._tokens, self._began = 0, 0, time.perf_counter()
        return True

    def _say(self, facts: dict[str, Any]) -> None:
        if not self._alone or "ready" not in facts:
            print(json.dumps(facts), file=self._told, flush=True)


def memory_mb(field: str) -> float:
    """VmRSS (now) or VmHWM (the most so far) of this process."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(f"{field}:")) / 1024


def forget_peak() -> None:
    """VmHWM starts again from what is held now."""
    Path("/proc/self/clear_refs").write_text("5")


def compared(
    name: str, unit: str, ours: Sequence[float], peer: Sequence[float], *, less_is_better: bool = False
) -> dict[str, Any]:
    """A result line: medians of all rounds, and the median of the rounds' own ratios."""
    pairs = list(zip(ours, peer, strict=True))
    ratios = [p / o if less_is_better else o / p for o, p in pairs]
    return {
        "name": name,
        "ratio": round(statistics.median(ratios), 3),
        "peer": _short(statistics.median(peer)),
        "ours": _short(statistics.median(ours)),
        "unit": unit,
        "rounds": [round(value, 3) for value in ratios],
    }


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def fastest(rounds: dict[str, list[float]], *, less_is_better: bool = False) -> str:
    """Of several peers the best by its median."""
    medians = {name: statistics.median(values) for name, values in rounds.items()}
    return min(medians, key=medians.__getitem__) if less_is_better else max(medians, key=medians.__getitem__)


def tell(result: dict[str, Any], options: argparse.Namespace) -> None:
    """A sentence for people unless --json, and the JSON line."""
    result = {**result, "threads": options.threads, "allocator": options.allocator}
    if not options.json:
        print(f"{result['name']}: {result['peer']:,} -> {result['ours']:,} {result['unit']}, ratio {result['ratio']}")
    print(json.dumps(result), flush=True)
