"""What waits for the engine: bounded by requests, by tokens and by the time they will take; dealt out in batches.

In: jobs (inputs of one task for one model). Out: groups of pieces that fill a batch; a large job goes in pieces between
which others come. Tokens are estimated from characters by what the engine counted lately, and waiting times by how fast
it was. No clock, thread or process in here: callers say what time it is.
"""

from __future__ import annotations

import heapq
import itertools
import math
from asyncio import Future
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from remask.schema import Json
from remask.serve.schemas import Input
from remask.serve.settings import ServeSettings

_SPECIAL_TOKENS = 4  # around the texts of a row
_TOKENIZE_SHARE = 0.02  # tokens that only are counted cost next to nothing
_NEWEST = 0.2  # weight of the newest measurement in a running mean
_LEAST_BATCH = 256  # tokens: however slow a machine is, smaller batches do not make it faster


class OverloadedError(Exception):
    """The queue is full. `seconds`: when it is worth trying again."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many requests are waiting; try again in {math.ceil(seconds)} s")
        self.seconds = max(1, math.ceil(seconds))


class TooMuchError(Exception):
    """One request for more than the server takes at once, however idle it is."""


@dataclass(eq=False)
class Job:
    """One request: its inputs, and its answers as they come."""

    model: str
    task: str
    inputs: list[Input]
    options: Json
    max_length: int
    done: Future[list[bytes]]
    path: Path | None = None  # of a training step
    parts: list[bytes | None] = field(default_factory=list)
    tokens: float = 0.0
    left: bool = False  # answered, or nobody waits for it any more
    on_text: Callable[[str], None] | None = None  # hears what is new of a text that is streamed

    def __post_init__(self) -> None:
        self.parts = [None] * len(self.inputs)


@dataclass(eq=False)
class Piece:
    """Some inputs of a job, from `first` on."""

    job: Job
    first: int
    count: int
    tokens: float
    arrived: float

    @property
    def inputs(self) -> list[Input]:
        return self.job.inputs[self.first : self.first + self.count]

    @property
    def characters(self) -> int:
        """Of what goes through the network as it is; 0 where windows overlap or a text may be cut."""
        sizes = [size for item in self.inputs for size in characters(self.job.task, item)]
        plain = self.job.task not in ("tokenize", "answer") and max(sizes) < self.job.max_length
        return sum(sizes) if plain else 0


def characters(task: str, item: Input) -> list[int]:
    """Characters of each row that an input becomes."""
    if task == "choose":
        text, options, question = item
        return [len(text) + len(question) + len(option) for option in options]
    if task == "rank":
        query, texts = item
        return [len(query), *(len(text) for text in texts)]
    return [len(item) if isinstance(item, str) else sum(len(part) for part in item)]


class Queue:
    """See above. `tokens_per_second` starts with what the engine measured when it warmed up."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.tokens_per_character = 0.35
        self.tokens_per_second = 1_000.0
        self.tokens = 0.0  # waiting
        self.busy_tokens = 0.0  # with the engine
        self.requests = 0  # waiting or with the engine
        self._heap: list[tuple[float, int, Piece]] = []
        self._order = itertools.count()

    # --------------------------------------------------------------------------------------------- estimates

    def estimate(self, task: str, item: Input, max_length: int) -> float:
        """Tokens that an input costs. Tags and answers read long texts in windows, the others up to the length."""
        total = 0.0
        for count in characters(task, item):
            tokens = count * self.tokens_per_character + _SPECIAL_TOKENS
            if task == "tokenize":
                tokens *= _TOKENIZE_SHARE
            elif task == "answer":
                tokens = tokens if tokens <= max_length else 4 * tokens  # windows every quarter of their width
            elif task != "tag":
                tokens = min(tokens, max_length) + _TOKENIZE_SHARE * max(0.0, tokens - max_length)
            total += tokens
        return total

    def learn(self, characters: int, tokens: int, seconds: float) -> None:
        """What the engine measured over a group that it has done."""
        if tokens > 0 and seconds > 0:
            weight = _NEWEST * min(
                1.0, tokens / _LEAST_BATCH
            )  # a small group says little about the speed of large ones
            self.tokens_per_second += weight * (tokens / seconds - self.tokens_per_second)
            if characters > 0:
                ratio = min(4.0, max(0.05, tokens / characters))
                self.tokens_per_character += weight * (ratio - self.tokens_per_character)

    @property
    def batch_tokens(self) -> float:
        """What a batch may hold so that it takes about max_batch_ms."""
        fitting = self.tokens_per_second * self.settings.max_batch_ms / 1000
        return min(self.settings.max_batch_tokens, max(_LEAST_BATCH, fitting))

    @property
    def delay(self) -> float:
        """Seconds until what waits now will be done."""
        return (self.tokens + self.busy_tokens) / self.tokens_per_second

    def check(self) -> None:
        """OverloadedError where no further request, however small, would be taken."""
        if self.requests >= self.settings.max_queue_requests or self.delay > self.settings.max_delay_s:
            raise OverloadedError(self.delay / 2)

    # ------------------------------------------------------------------------------------------ coming, going

    def offer(self, job: Job, now: float) -> None:
        """Take a job in, whole, or refuse it."""
        costs = [self.estimate(job.task, item, job.max_length) for item in job.inputs]
        job.tokens = sum(costs)
        if job.tokens > self.settings.max_request_tokens:
            raise TooMuchError(
                f"about {job.tokens:,.0f} tokens in one request, at most {self.settings.max_request_tokens:,} are "
                "taken; send them in several"
            )
        self.check()
        if self.tokens and self.tokens + job.tokens > self.settings.max_queue_tokens:
            raise OverloadedError(self.delay / 2)
        self.requests += 1
        self.tokens += job.tokens
        before = 0.0
        for first, count, tokens in _cut(costs, self.batch_tokens):
            # As if a large job's later pieces came later: what arrives meanwhile goes in between.
            turn = now + before / self.tokens_per_second
            heapq.heappush(self._heap, (turn, next(self._order), Piece(job, first, count, tokens, now)))
            before += tokens

    def leave(self, job: Job) -> None:
        """Answered, or nobody waits for it any more: what is not with the engine yet never will be."""
        if not job.left:
            job.left = True
            self.requests -= 1

    def take(self, now: float, hurry: bool = False) -> list[Piece]:
        """The next batch's pieces; none where nothing waits, or (unless in a hurry) where more may come soon."""
        self._forget_left()
        if not self._heap:
            return []
        budget = self.batch_tokens
        oldest = self._heap[0][2].arrived
        if not hurry and self.tokens < budget and (now - oldest) * 1000 < self.settings.max_wait_ms:
            return []
        taken: list[Piece] = []
        size = 0.0
        while self._heap and (not taken or size + self._heap[0][2].tokens <= budget):
            piece = heapq.heappop(self._heap)[2]
            self.tokens -= piece.tokens
            if not piece.job.left:
                taken.append(piece)
                size += piece.tokens
            self._forget_left()
        self.busy_tokens += size
        return taken

    def _forget_left(self) -> None:
        while self._heap and self._heap[0][2].job.left:
            self.tokens -= heapq.heappop(self._heap)[2].tokens
        if not self._heap:
            self.tokens = 0.0  # no rounding is left behind

    def next_look(self, now: float) -> float | None:
        """Seconds until `take` may have something; None: nothing waits."""
        if not self._heap:
            return None
        return max(0.0, self._heap[0][2].arrived + self.settings.max_wait_ms / 1000 - now)

    def finished(self, pieces: Sequence[Piece]) -> None:
        """These are no longer with the engine, answered or not."""
        self.busy_tokens = max(0.0, self.busy_tokens - sum(piece.tokens for piece in pieces))


def _cut(costs: Sequence[float], budget: float) -> list[tuple[int, int, float]]:
    """(first, count, tokens) of runs of inputs that fill a batch each."""
    runs = []
    first, size = 0, 0.0
    for i, cost in enumerate(costs):
        if i > first and size + cost > budget:
            runs.append((first, i - first, size))
            first, size = i, 0.0
        size += cost
    return [*runs, (first, len(costs) - first, size)]
