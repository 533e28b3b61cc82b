"""Counters, gauges and one histogram in Prometheus' text format.

In: `add`, `observe` and what the engine counted. Out: `text`. Names have the prefix `remask_`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_HELP = {
    "requests_total": ("counter", "Requests by task and status."),
    "request_seconds": ("histogram", "Seconds from a request's head to its answer, by task, of those answered 200."),
    "refused_total": ("counter", "Requests refused at once because the queue was full."),
    "dropped_total": ("counter", "Requests whose client went away, or that took too long."),
    "inputs_total": ("counter", "Inputs handed to the engine."),
    "engine_restarts_total": ("counter", "Times the engine's process was replaced."),
    "tokens_total": ("counter", "Tokens that went through a model."),
    "padding_tokens_total": ("counter", "Padding that stood beside them in batches."),
    "batches_total": ("counter", "Batches that went through a model."),
    "engine_up": ("gauge", "Whether the engine answers."),
    "queue_requests": ("gauge", "Requests that wait or are worked on."),
    "queue_tokens": ("gauge", "Tokens that wait, as estimated."),
}


class Metrics:
    """What has happened since the server started."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._seconds: dict[str, tuple[list[int], float]] = {}
        self._engine_before = self._engine_now = (0, 0, 0)

    def add(self, name: str, amount: int = 1, **labels: str) -> None:
        self._counts[name, _labels(labels)] += amount

    def observe(self, task: str, seconds: float) -> None:
        buckets, total = self._seconds.get(task) or ([0] * (len(_BOUNDS) + 1), 0.0)
        buckets[bisect_left(_BOUNDS, seconds)] += 1
        self._seconds[task] = buckets, total + seconds

    def engine(self, counts: tuple[int, int, int]) -> None:
        """Tokens, tokens with padding, batches, counted since that engine started; a new one counts from 0 again."""
        if counts[0] < self._engine_now[0]:
            self._engine_before = self._engine()
        self._engine_now = counts

    def _engine(self) -> tuple[int, int, int]:
        a, b = self._engine_before, self._engine_now
        return a[0] + b[0], a[1] + b[1], a[2] + b[2]

    def text(self, gauges: Mapping[str, float]) -> str:
        tokens, padded, batches = self._engine()
        values: dict[tuple[str, str], float] = dict(self._counts)
        values |= {("tokens_total", ""): tokens, ("padding_tokens_total", ""): padded - tokens}
        values |= {("batches_total", ""): batches} | {(name, ""): value for name, value in gauges.items()}
        lines = []
        for name, (kind, line) in _HELP.items():
            lines += [f"# HELP remask_{name} {line}", f"# TYPE remask_{name} {kind}"]
            if kind == "histogram":
                lines += self._histogram(name)
                continue
            found = {labels: value for (one, labels), value in values.items() if one == name}
            if not found and name != "requests_total":
                found = {"": 0}
            lines += [f"remask_{name}{labels} {value:g}" if kind == "gauge" else f"remask_{name}{labels} {value:.0f}"
                      for labels, value in sorted(found.items())]  # fmt: skip
        return "\n".join(lines) + "\n"

    def _histogram(self, name: str) -> list[str]:
        lines = []
        for task, (buckets, total) in sorted(self._seconds.items()):
            seen = 0
            for bound, count in zip((*_BOUNDS, "+Inf"), buckets, strict=True):
                seen += count
                lines.append(f"remask_{name}_bucket{_labels({'task': task, 'le': str(bound)})} {seen}")
            lines += [f"remask_{name}_sum{_labels({'task': task})} {total:.6f}"]
            lines += [f"remask_{name}_count{_labels({'task': task})} {seen}"]
        return lines


def _labels(labels: Mapping[str, str]) -> str:
    """{name="value",…}; values are words of ours (tasks, numbers), never a client's."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""
