"""FAULTS.md row 32: a tokenizer whose pattern goes back over a text again and again costs that text its answer, and
nothing else."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from remask.errors import DataError
from remask.tokenizer import Tokenizer, load_tokenizer, timed

from ..serving import serving, tiny_models

EXPONENTIAL = r"(a+)+$"  # the library's own limit ends it, by a panic
SQUARE = r"\s+\S{2}"  # nothing repeats inside a repeat, and yet some spaces take hours
BOMB = "a" * 60 + "b"
SPACES = " " * 190_000 + "x"


def hostile(tokenizer: Path, pattern: str) -> dict[str, Any]:
    description = json.loads((tokenizer / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {**description, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}}


@pytest.mark.parametrize("pattern", [EXPONENTIAL, r"(\w+\s?)*$", r"(a|a)*$", r"(x+x+)+y", "(["])
def test_a_pattern_that_can_explode_is_named_at_load(pattern: str, tiny_tokenizers: dict[str, Path]) -> None:
    assert timed.explosive(hostile(tiny_tokenizers["byte-bpe"], pattern)) == [pattern]
    if pattern != "([":
        with pytest.warns(UserWarning, match="can take very long over some texts"):
            Tokenizer(hostile(tiny_tokenizers["byte-bpe"], pattern))


@pytest.mark.parametrize(
    "pattern",
    [
        SQUARE,
        r"\s*[\r\n]+",
        r" ?\p{L}+| ?\p{N}+|\s+(?!\S)|\s+",
        r"(?i:'s|'t)|[^\r\n\p{L}]?\p{L}+|\p{N}{1,3}",
        r"(?>a+)+",
    ],
)
def test_patterns_of_real_tokenizers_are_not(pattern: str, tiny_tokenizers: dict[str, Path]) -> None:
    assert timed.explosive(hostile(tiny_tokenizers["byte-bpe"], pattern)) == []


@pytest.mark.filterwarnings("ignore:the tokenizer's pattern")
@pytest.mark.parametrize(("pattern", "bomb"), [(EXPONENTIAL, BOMB), (SQUARE, SPACES)])
def test_a_text_that_takes_too_long_is_one_clear_error(
    pattern: str, bomb: str, tiny_tokenizers: dict[str, Path]
) -> None:
    """Others before and after it get the ids that they would have had without the watch."""
    process = _ask_twice(Tokenizer(hostile(tiny_tokenizers["byte-bpe"], pattern)), bomb)
    gc.collect()
    assert process.poll() is not None  # nothing is left behind


def _ask_twice(tokenizer: Tokenizer, bomb: str) -> subprocess.Popen[bytes]:
    plain = tokenizer._encoder.encode("The dog", add_special_tokens=False)
    for _ in range(2):
        assert tokenizer.encode("The dog").tolist() == plain.ids
        for ask in (tokenizer.encode, tokenizer.encode_with_offsets, lambda text: tokenizer.encode_batch(["a", text])):
            with pytest.raises(DataError, match=r"the tokenizer (gave up|takes longer)"):
                ask(bomb)
    ids, spans = tokenizer.encode_with_offsets("The dog " * 400)  # long enough for the process
    assert ids.tolist() == tokenizer._encoder.encode("The dog " * 400, add_special_tokens=False).ids
    assert len(spans) == len(ids)
    process = tokenizer._timed._process if tokenizer._timed else None
    assert process is not None
    return process


def test_the_processes_of_a_tokenizer_end_with_their_owner(tmp_path: Path, tiny_tokenizers: dict[str, Path]) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(hostile(tiny_tokenizers["byte-bpe"], SQUARE)))
    code = f"""
import os, signal
from pathlib import Path
from remask.tokenizer import load_tokenizer
tokenizer = load_tokenizer(Path({str(tmp_path / "tokenizer.json")!r}))
tokenizer.encode("a" * 3000)
print(tokenizer._timed._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environ)
    child = Path(f"/proc/{int(done.stdout)}")
    end = time.monotonic() + 30
    while child.exists() and "(zombie)" not in (child / "status").read_text():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_plain_panic_is_an_error_too(tiny_tokenizers: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that no heuristic suspects, on a short text: caught where it happens."""
    monkeypatch.setattr(timed, "is_slow", lambda description: False)
    monkeypatch.setattr(timed, "explosive", lambda description: [])
    tokenizer = Tokenizer(hostile(tiny_tokenizers["byte-bpe"], EXPONENTIAL))
    with pytest.raises(DataError, match="gave up on a text"):
        tokenizer.encode(BOMB)
    with pytest.raises(DataError, match="gave up on a text"):
        tokenizer.encode_batch([BOMB, BOMB])
    assert load_tokenizer(tiny_tokenizers["byte-bpe"]).encode(BOMB).size


@pytest.mark.parametrize("pattern", [EXPONENTIAL, SQUARE])
def test_one_model_of_a_server_does_not_take_the_others_down(
    pattern: str, tmp_path: Path, tiny_tokenizers: dict[str, Path]
) -> None:
    (tmp_path / "hostile").mkdir()
    (tmp_path / "hostile" / "tokenizer.json").write_text(json.dumps(hostile(tiny_tokenizers["byte-bpe"], pattern)))
    bad = tiny_models(tmp_path / "bad", tmp_path / "hostile")["classes"]
    good = tiny_models(tmp_path / "good", tiny_tokenizers["byte-bpe"])["lm"]
    bomb = BOMB if pattern == EXPONENTIAL else SPACES
    with serving(bad, good) as server:
        engine = server.engine()
        for task in ("classify", "embed", "tokenize"):
            status, said, _ = server.ask(f"/v1/{task}", {"model": "classes", "inputs": [bomb]})
            assert status == 422, said
            assert "the tokenizer" in said["error"]["message"]
            assert server.outputs("fill-mask", "The <mask> dog", model="lm")
            assert server.outputs("classify", ["The dog"], model="classes")
        assert server.engine() == engine
