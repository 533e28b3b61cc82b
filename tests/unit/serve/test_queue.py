"""The queue of a server: what it takes, in which order it deals, what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from remask.serve.queue import Job, OverloadedError, Piece, Queue, TooMuchError, characters
from remask.serve.settings import ServeSettings


def queue(rate: float = 1_000.0, **limits: Any) -> Queue:
    made = Queue(ServeSettings(**{"max_batch_ms": 1_000.0, "max_wait_ms": 10.0, **limits}))
    made.tokens_per_character, made.tokens_per_second = 1.0, rate
    return made


def job(*texts: str, task: str = "embed", max_length: int = 512) -> Job:
    return Job("m", task, list(texts), {}, max_length, None)


def text(tokens: int) -> str:
    """A text that is estimated at this many tokens, special ones included."""
    return "a" * (tokens - 4)


def inputs(pieces: list[Piece]) -> list[str]:
    return [item for piece in pieces for item in piece.inputs]


def test_an_idle_engine_waits_a_moment_for_more_and_no_longer() -> None:
    waiting = queue()
    waiting.offer(job("one"), now=0.0)
    assert waiting.take(0.0) == []
    assert waiting.next_look(0.0) == pytest.approx(0.01)
    waiting.offer(job("two"), now=0.005)
    assert inputs(waiting.take(0.01)) == ["one", "two"]
    assert waiting.next_look(0.01) is None
    assert waiting.take(1.0) == []


def test_a_full_batch_does_not_wait() -> None:
    waiting = queue(max_batch_tokens=1_000)
    waiting.offer(job(text(600)), now=0.0)
    waiting.offer(job(text(600)), now=0.0)
    assert len(waiting.take(0.0)) == 1
    assert waiting.take(0.0) == []
    assert len(waiting.take(0.0, hurry=True)) == 1


def test_a_batch_is_what_takes_about_its_time() -> None:
    assert queue(rate=2_000.0, max_batch_ms=500.0).batch_tokens == 1_000
    assert queue(rate=1e6).batch_tokens == 8_192
    assert queue(rate=1.0).batch_tokens == 256


def test_others_come_between_the_pieces_of_a_large_job() -> None:
    waiting = queue(max_batch_tokens=500)
    large = job(*(text(500) for _ in range(4)))
    waiting.offer(large, now=0.0)
    first = waiting.take(0.0)
    waiting.offer(job("small"), now=0.1)
    dealt = [first, *(waiting.take(1.0, hurry=True) for _ in range(4))]
    assert [[piece.job is large for piece in pieces] for pieces in dealt] == [[True], [False], [True], [True], [True]]
    assert [pieces[0].first for pieces in dealt if pieces[0].job is large] == [0, 1, 2, 3]


def test_what_left_is_never_dealt() -> None:
    waiting = queue()
    jobs = [job(str(i)) for i in range(5)]
    for one in jobs:
        waiting.offer(one, now=0.0)
    for one in jobs[:4]:
        waiting.leave(one)
        waiting.leave(one)
    assert waiting.requests == 1
    assert inputs(waiting.take(1.0)) == ["4"]
    waiting.leave(jobs[4])
    assert (waiting.requests, waiting.tokens) == (0, 0)


def test_more_than_may_wait_is_refused_with_a_time() -> None:
    waiting = queue(max_queue_requests=2)
    waiting.offer(job("a"), now=0.0)
    waiting.offer(job("b"), now=0.0)
    with pytest.raises(OverloadedError) as refused:
        waiting.offer(job("c"), now=0.0)
    assert refused.value.seconds == 1
    waiting = queue(max_delay_s=2.0, rate=100.0)
    waiting.offer(job(text(500)), now=0.0)
    with pytest.raises(OverloadedError) as refused:
        waiting.check()
    assert refused.value.seconds == 3  # half of what waits
    waiting = queue(max_queue_tokens=1_000)
    waiting.offer(job(*[text(400)] * 3), now=0.0)  # an empty queue takes whatever one request may be
    with pytest.raises(OverloadedError):
        waiting.offer(job("d"), now=0.0)
    assert waiting.requests == 1


def test_what_the_engine_has_counts_as_waiting() -> None:
    waiting = queue(max_delay_s=2.0, rate=100.0)
    waiting.offer(job(text(500)), now=0.0)
    taken = waiting.take(1.0)
    with pytest.raises(OverloadedError):
        waiting.check()
    waiting.finished(taken)
    waiting.check()


def test_one_request_may_not_be_the_work_of_many() -> None:
    with pytest.raises(TooMuchError, match="at most 1,000 are taken"):
        queue(max_request_tokens=1_000).offer(job(*[text(400)] * 3), now=0.0)


def test_estimates_follow_the_task() -> None:
    waiting = queue()
    assert waiting.estimate("embed", "a" * 50, 64) == 54
    assert waiting.estimate("embed", "a" * 1_060, 64) == 64 + 20  # the rest is only tokenised
    assert waiting.estimate("tag", "a" * 1_000, 64) == 1_004
    assert waiting.estimate("answer", ("q", "c" * 999), 64) == 4_016
    assert waiting.estimate("tokenize", "a" * 996, 64) == pytest.approx(20)
    assert characters("choose", ("ab", ["c", "def"], "q")) == [4, 6]
    assert characters("rank", ("ab", ["c", "def"])) == [2, 1, 3]


def test_estimates_are_learned() -> None:
    waiting = queue()
    for _ in range(60):
        waiting.learn(characters=1_000, tokens=250, seconds=0.125)
    assert waiting.tokens_per_character == pytest.approx(0.25, rel=1e-3)
    assert waiting.tokens_per_second == pytest.approx(2_000, rel=1e-3)
    waiting.learn(0, 0, 1.0)  # a group that put nothing through the network
    assert waiting.tokens_per_second == pytest.approx(2_000, rel=1e-3)
