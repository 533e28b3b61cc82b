"""Texts through a tokenizer whose patterns come from elsewhere, in a process that can be ended.

A pattern in a foreign tokenizer.json can go back over a text for hours, inside code that nothing interrupts. In: the
description of a tokenizer. Out: which of its patterns can do that (`explosive`), whether any text needs watching
(`is_slow`), and a `TimedEncoder`, which gives up on a text that takes longer than its length allows, with a DataError.
Not here: what ids mean (codec).
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import struct
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import orjson
import tokenizers

from remask import signals
from remask.errors import DataError, UnavailableError
from remask.schema import Values
from remask.workers import die_with_parent

SECONDS_FOR_ANY = 2.0  # below serve's stall_s, so that the engine lives to say what happened
CHARACTERS_PER_SECOND = 100_000
SHORT = 2_000  # characters in which no pattern without a repeat inside a repeat takes long
_START_SECONDS = 120.0
_MAX_WORD = 1_000  # WordPiece tries every beginning of a word
_LENGTH = struct.Struct("<Q")
_PROPERTY = re.compile(r"\\[pP](?:\{[^}]*\}|[A-Za-z])|\\[hHRX]|\[:\^?\w+:\]")


class PlainEncoding(NamedTuple):
    """What is used of the library's own answer."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    word_ids: list[int | None]


@contextlib.contextmanager
def panics() -> Iterator[None]:
    """The library's Rust code gives up on a text by a panic, which is no Exception and would end the process."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise DataError(f"the tokenizer gave up on a text: {str(error)[:200]}") from None


# ------------------------------------------------------------------------------------------------- judging


def patterns(description: Values) -> list[str]:
    """The regular expressions that a text goes through."""
    patterns: list[str] = []
    waiting: list[Any] = [description.get("normalizer"), description.get("pre_tokenizer")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            if isinstance(value.get("Regex"), str):
                patterns.append(value["Regex"])
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return patterns


def is_slow(description: Values) -> bool:
    """Whether the time of a long text may grow faster than its length."""
    model = description.get("model") or {}
    return bool(patterns(description)) or (model.get("max_input_chars_per_word") or 0) > _MAX_WORD


def explosive(description: Values) -> list[str]:
    """The patterns with a repeat inside a repeat, or that cannot be judged: a short text can be enough for them."""
    return [pattern for pattern in patterns(description) if _can_explode(pattern)]


def _can_explode(pattern: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Python's own parser, which does not know Oniguruma's classes; any class stands for them.
            return _repeats(re._parser.parse(_PROPERTY.sub("w", pattern)), False)  # pyrefly: ignore
    except (re.error, RecursionError, OverflowError, ValueError):
        return True


def _repeats(parsed: Any, inside: bool) -> bool:
    for name, value in parsed:
        word = str(name)
        if word in ("MAX_REPEAT", "MIN_REPEAT"):
            low, high, body = value
            varies = int(high) > int(low) and int(high) > 16
            if (inside and varies) or _repeats(body, inside or varies):
                return True
        elif word == "GROUPREF" or (word == "BRANCH" and inside):
            return True
        elif word == "BRANCH":
            if any(_repeats(branch, inside) for branch in value[1]):
                return True
        elif word == "SUBPATTERN":
            if _repeats(value[-1], inside):
                return True
        elif word in ("ASSERT", "ASSERT_NOT"):
            if _repeats(value[1], inside):
                return True
        elif word in ("ATOMIC_GROUP", "POSSESSIVE_REPEAT") and _repeats(
            value if word == "ATOMIC_GROUP" else value[-1], False
        ):
            return True
    return False


# ------------------------------------------------------------------------------------------------- the process


class TimedEncoder:
    """One tokenizer in a process of its own, started when it is first needed and again after it was ended."""

    def __init__(self, description: str) -> None:
        self._description = description
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize | None = None
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str]) -> list[PlainEncoding]:
        with self._lock:
            process = self._started()
            seconds = SECONDS_FOR_ANY + sum(map(len, texts)) / CHARACTERS_PER_SECOND
            assert process.stdin is not None
            _send(process.stdin, list(texts))
            answer = self._answer(process, seconds)
        if answer is None:
            longest = max(map(len, texts), default=0)
            raise DataError(
                f"the tokenizer takes longer than {seconds:.3g} s for {len(texts):,} text(s) of up to {longest:,} "
                "characters: one of its patterns goes back over the text again and again"
            )
        if isinstance(answer, str):
            raise DataError(answer)
        return [PlainEncoding(ids, [(start, end) for start, end in offsets], words) for ids, offsets, words in answer]

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            code = f"import sys; sys.path[:] = {sys.path!r}; from remask.tokenizer.timed import run; run({os.getpid()})"
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # a panic prints its stack
                env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
            )
            self._end = weakref.finalize(self, _ended, self._process)
            assert self._process.stdin is not None
            _send(self._process.stdin, self._description)
            if self._answer(self._process, _START_SECONDS) is None:
                raise UnavailableError("the tokenizer's process does not start")
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], seconds: float) -> Any:
        """What it says, or None if its time passed or it is gone; then it is ended."""
        assert process.stdout is not None
        data, wanted, until = b"", _LENGTH.size, time.monotonic() + seconds
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            while len(data) < wanted and ready.select(until - time.monotonic()):
                block = os.read(process.stdout.fileno(), 1 << 20)
                if not block:
                    break
                data += block
                if wanted == _LENGTH.size and len(data) >= wanted:
                    wanted += _LENGTH.unpack_from(data)[0]
                    until += 60  # computed: what is left is copying
        if len(data) < wanted or wanted == _LENGTH.size:
            assert self._end is not None
            self._end()
            self._process = None
            return None
        return orjson.loads(data[_LENGTH.size :])


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _send(pipe: IO[bytes], value: object) -> None:
    data = orjson.dumps(value)
    with contextlib.suppress(BrokenPipeError):  # gone: the answer, which does not come, says so
        pipe.write(_LENGTH.pack(len(data)) + data)
        pipe.flush()


def run(parent: int) -> None:
    """The process's life: a description, then texts until the other end closes."""
    signals.ignore()
    die_with_parent(parent)
    library: tokenizers.Tokenizer | None = None
    while len(head := sys.stdin.buffer.read(_LENGTH.size)) == _LENGTH.size:
        value = orjson.loads(sys.stdin.buffer.read(_LENGTH.unpack(head)[0]))
        if library is None:
            library = tokenizers.Tokenizer.from_str(value)
            library.encode_special_tokens = True
            _send(sys.stdout.buffer, "ready")
            continue
        try:
            with panics():
                rows = library.encode_batch(value, add_special_tokens=False)
            _send(sys.stdout.buffer, [(row.ids, row.offsets, row.word_ids) for row in rows])
        except DataError as error:
            _send(sys.stdout.buffer, str(error))
