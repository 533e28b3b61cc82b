"""FAULTS.md rows 29 and 30: inputs that were written to hold a reader up, and signals while foreign code computes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remask import workers
from remask.documents import read_documents
from remask.text import records, web
from remask.text.clean import normalise, reason_not_to_clean, wrong_language
from remask.text.part import PartTask, make_part
from remask.text.sentences import sentence_starts
from remask.text.settings import CleanSettings, LanguageSettings, SentenceSettings, SourceSettings, TextSettings
from remask.text.wikipedia import plain_text

from . import slow_inputs
from .soak import tries

SECONDS_PER_MB = 10
SIZE = 210_000  # just over where a file gets a process of its own

BUILD = """
import sys
from pathlib import Path
from remask.text.build import build_documents
from remask.text.settings import TextSettings
if __name__ == "__main__":
    build_documents(TextSettings.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
"""


def build(folder: Path, out: Path, seconds: float, **reading: Any) -> dict[str, Any]:
    """Counts of the documents in a folder. Longer than it may take means that something hangs: that fails the test."""
    source = {"name": "slow", "paths": [str(folder)], "layout": "file"}
    settings = {
        "sources": [source],
        "reading": reading,
        "language": {"keep": ["en", "zh", "de"]},
        "cleaning": {"max_compression": 0, "max_symbols": 1.0, "max_repeated_lines": 1.0},
        "heldout_fraction": 0.0,
    }
    (folder / "good.txt").write_text("An ordinary text that stands among the others and has to come through.")
    script = out.with_suffix(".py")
    script.write_text(BUILD)
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(settings), str(out)],
        capture_output=True, text=True, timeout=seconds, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    counts = read_documents(out).counts
    assert counts["documents"] + sum(counts["dropped"].values()) == counts["read"]
    return counts


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", slow_inputs.KINDS)
def test_no_input_takes_more_than_its_size_allows(kind: str, tmp_path: Path) -> None:
    """Every file is kept, in part or whole, or dropped with its reason; nothing stops the others."""
    ending, make = slow_inputs.KINDS[kind]
    folder = tmp_path / "inputs"
    folder.mkdir()
    count = tries(29, 10, 200)
    for number, data in enumerate(make(count, SIZE)):
        (folder / f"{number:03d}{ending}").write_bytes(data)
    size = sum(path.stat().st_size for path in folder.iterdir())
    counts = build(folder, tmp_path / "out", 60 + SECONDS_PER_MB * size / 1e6)
    assert counts["read"] >= count + 1


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("<p " + " ".join(f"a{i:x}=1" for i in range(30_000)) + ">words</p>", "too many attributes"),
        ("<p " + "".join(f'a{i:x}=">"' for i in range(30_000)) + ">words</p>", "too many attributes"),
        ("".join(f"<body a{i:x}=1>" for i in range(20_000)) + "words", "too many attributes"),
        ("<p>x" * 300_000, "too many tags"),
    ],
)
def test_a_page_made_to_hang_is_dropped_by_name(page: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "page.html").write_text(page)
    assert build(tmp_path / "inputs", tmp_path / "out", 100)["dropped"] == {reason: 1}


def make_part_with_hanging_extractor(task: PartTask) -> dict[str, Any]:
    """In a worker: foreign code that never ends, as a page that no limit foresaw would have it."""

    def extract(html: str) -> str:
        if "hang" in html:
            unicodedata.normalize("NFC", "\u0300\u0323" * 10_000_000)
        return html.replace("<p>", "")

    web.EXTRACTORS["resiliparse"] = extract
    records._SECONDS_FOR_ANY = 1.0
    return make_part(task)


def test_a_page_that_no_limit_foresaw_is_given_up_for_its_time(tmp_path: Path) -> None:
    """Alone: the pages before and after it in the same file are kept."""
    head = "WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://{0}/\r\n"
    head += "Content-Type: application/http; msgtype=response\r\nContent-Length: {1}\r\n\r\n"
    pages = [f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>{word}" for word in ("first", "hang", "last")]
    archive = tmp_path / "pages.warc"
    archive.write_text("".join(f"{head.format(page[-4:], len(page))}{page}\r\n\r\n" for page in pages), newline="")
    settings = TextSettings(sources=(SourceSettings(paths=(str(archive),)),))
    portion = records.Portion(0, str(archive), "pages.warc", "warc", size=archive.stat().st_size)
    task = PartTask(tmp_path / "part", (portion,), settings, ("file",), 0)
    (facts,) = workers.run_tasks(make_part_with_hanging_extractor, [task], workers=1, without=PartTask.without)
    assert (facts["read"], facts["documents"], facts["dropped"]) == (3, 2, {"took too long": 1})
    assert facts["samples"][0]["place"].endswith("http://hang/")


TEXT_STEPS = {
    "normalise": lambda text: reason_not_to_clean(text) or normalise(text, CleanSettings(whitespace="collapse")),
    "language": lambda text: wrong_language(text, ("en",), LanguageSettings()),
    "sentences": lambda text: sentence_starts(text, SentenceSettings()),
    "one line": lambda text: sentence_starts(text, SentenceSettings(newline="space")),
    "markup": plain_text,
}


def do_texts(step: str) -> int:
    pieces = slow_inputs.MARKUP if step == "markup" else slow_inputs.TEXT
    texts = [*slow_inputs.strings(pieces, tries(29, 20, 200), 50_000, 7), "\u0300\u0323" * 100_000, "[[x" * 50_000]
    for number, text in enumerate(texts):
        workers.expect(2 + SECONDS_PER_MB * len(text.encode()) / 1e6, number + 1)
        TEXT_STEPS[step](text)
    return len(texts)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("step", TEXT_STEPS)
def test_each_step_of_a_text_is_in_time_by_itself(step: str) -> None:
    def without(item: str, mark: int) -> str:
        raise AssertionError(f"{item}: text {mark} takes too long")

    assert workers.run_tasks(do_texts, [step], workers=1, without=without)[0] > 20


def test_a_number_of_no_character_is_no_crash() -> None:
    assert plain_text(f"a &#{'9' * 5000}; b &amp;#x{'f' * 5000}; c") == "a \ufffd b \ufffd c"


# ------------------------------------------------------------------------------------------------------ row 30


def hang(item: tuple[int, frozenset[int]]) -> str:
    """Foreign code that holds the interpreter for hours, unless its step is passed over."""
    number, passed_over = item
    for step in (1, 2, 3):
        if step not in passed_over:
            workers.expect(0.5, 10 * number + step)
            if number == 1 and step == 2:
                unicodedata.normalize("NFC", "\u0300\u0323" * 10_000_000)
    return f"{number} without {sorted(passed_over)}"


def test_a_worker_that_hangs_in_foreign_code_is_ended_and_does_the_rest() -> None:
    def without(item: tuple[int, frozenset[int]], mark: int) -> tuple[int, frozenset[int]]:
        assert mark == 12
        return item[0], item[1] | {mark - 10}

    items = [(number, frozenset[int]()) for number in range(3)]
    ended = workers.run_tasks(hang, items, workers=2, without=without)
    assert ended == ["0 without []", "1 without [2]", "2 without []"]


HANG = """
import sys, unicodedata
from remask import signals
with signals.catch():
    print("computes", flush=True)
    CALL
"""


@pytest.fixture
def hanging(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HANG.replace("CALL", request.param)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "computes\n"
    yield process
    process.kill()
    process.communicate()


FOREIGN = 'unicodedata.normalize("NFC", "\\u0300\\u0323" * 10_000_000)'
PYTHON = "\n    while True: pass"


@pytest.mark.parametrize("hanging", [FOREIGN, PYTHON], indirect=True, ids=["foreign", "python"])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_second_signal_ends_a_process_wherever_it_computes(hanging: subprocess.Popen[str], name: str) -> None:
    time.sleep(0.5)  # into the call
    hanging.send_signal(getattr(signal, name))
    time.sleep(0.5)
    assert hanging.poll() is None  # the first one asks
    hanging.send_signal(getattr(signal, name))
    assert hanging.wait(timeout=2) == -getattr(signal, name)


def test_prepare_ends_after_one_signal_while_a_page_is_read(tmp_path: Path) -> None:
    """The page is read by a process that can be ended, so that nobody waits for it."""
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "page.html").write_bytes(b"<p>x" * 249_000)
    words = [str(tmp_path / "inputs"), "--out", str(tmp_path / "out"), "--workers", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "remask", "prepare", *words, "--set", "text.reading.extractor=trafilatura"],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stderr is not None
    while "read and clean" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(2)
    process.terminate()
    _, said = process.communicate(timeout=20)
    assert process.returncode == 75
    assert "run the same command again" in said
