"""The run files of the papers' corpora, run as they stand on small files of each kind in the places they name."""

from __future__ import annotations

import bz2
import gzip
import random
from pathlib import Path

import pytest

from remask.config import build_run, runs_folder
from remask.data.tokens import Tokens
from remask.preparation.prepare import prepare as main
from remask.preparation.settings import PrepareRun
from remask.progress import Progress

TEXT = (
    "river stone window garden letter winter morning silver engine harbour village doctor the of and to in that "
    "because he she they was had box table door when after gave looked"
)
WORDS = TEXT.split()
DAYS = ("2016-08-31", "2016-09-01", "2017-05-05", "2019-02-28", "2019-03-01")


class Maker:
    """Text that is never the same twice."""

    def __init__(self) -> None:
        self.random = random.Random(4)

    def text(self, num_words: int = 150) -> str:
        return " ".join(self.random.choice(WORDS) for _ in range(num_words)) + "."


def warc_record(number: int, day: str, text: str) -> bytes:
    page = f"<html><body><main><p>The man said that the day was good. {text}</p></main></body></html>"
    http = f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n{page}".encode()
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://news/{number}\r\nWARC-Date: {day}T12:00:00Z\r\n"
        f"WARC-Record-ID: <urn:uuid:{number}>\r\nContent-Type: application/http; msgtype=response\r\n"
        f"Content-Length: {len(http)}\r\n\r\n"
    )
    return gzip.compress(head.encode() + http + b"\r\n\r\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, make = tmp_path_factory.mktemp("corpora"), Maker()
    for name in ("wikipedia", "books", "cc-news", "openwebtext", "common-crawl"):
        (folder / "data" / name).mkdir(parents=True)
    pages = "".join(
        f"<page><title>Page {n}</title><ns>0</ns><id>{n}</id><revision><text>{make.text()} [[a|b]]</text></revision>"
        "</page>"
        for n in range(40)
    )
    dump = f"<mediawiki>{pages}</mediawiki>".encode()
    (folder / "data/wikipedia/dump.xml.bz2").write_bytes(bz2.compress(dump))
    for n in range(20):
        (folder / f"data/books/{n}.txt").write_text("\n\n".join([make.text(), make.text()]))
    records = [warc_record(n, DAYS[n % 5], make.text(200)) for n in range(100)]
    (folder / "data/cc-news/CC-NEWS-1.warc.gz").write_bytes(b"".join(records))
    (folder / "data/openwebtext/one.txt").write_text("\n\n".join(make.text() for _ in range(60)))
    (folder / "data/common-crawl/one.txt").write_text("\n\n".join(make.text() for _ in range(2000)))
    return folder


def prepare(name: str, out: Path) -> dict:
    changes = ("tokenizer.vocab_size=400", "workers=1")
    run = build_run(PrepareRun, runs_folder() / "prepare" / f"{name}.yaml", changes).run
    return main(run, out, progress=Progress(quiet=True))


def test_books_and_wikipedia(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    counts = prepare("books_wikipedia", tmp_path / "out")["sources"]
    assert {name: found["documents"] for name, found in counts.items()} == {"wikipedia": 40, "books": 20}


def test_news_of_the_papers_months(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    result = prepare("cc_news", tmp_path / "out")
    assert (result["documents"], result["dropped"]) == (60, {"outside the dates": 40})


def test_stories_are_the_best_thousandth(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    result = prepare("stories", tmp_path / "out")
    assert (result["documents"], result["dropped"]) == (2, {"not story-like": 1998})


def test_the_mix_has_its_proportions_at_any_size(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    weights = {"wikipedia": 12, "books": 4, "cc-news": 76, "openwebtext": 38, "stories": 31}
    # More stories than one in a thousand: at this size that would be none.
    run = build_run(PrepareRun, runs_folder() / "prepare" / "roberta_mix.yaml").run
    sources = [source.model_dump(mode="json") for source in run.text.sources]
    for source in sources:
        if source["stories"]:
            source["stories"]["keep_fraction"] = 0.02
    options = {"text.sources": sources, "tokenizer.vocab_size": 400, "workers": 1}
    kept = {}
    for size in (35_000, 70_000):
        options["text.max_bytes"] = size
        built = build_run(PrepareRun, runs_folder() / "prepare" / "roberta_mix.yaml", options=options).run
        counts = main(built, tmp_path / str(size), progress=Progress(quiet=True))["sources"]
        for name, weight in weights.items():
            share = size * weight / sum(weights.values())
            assert share - 2500 < counts[name]["bytes"] <= share, name
        kept[size] = Tokens.open(tmp_path / str(size)).num_tokens
    assert 1.7 < kept[70_000] / kept[35_000] < 2.3
