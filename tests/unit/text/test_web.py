"""Web pages: main text by each extractor, encodings, WARC."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from remask.text.settings import DedupSettings, LanguageSettings, ReadSettings, SourceSettings

PARAGRAPH = (
    "The harbour was quiet when the captain came home from the island. Nobody had waited for him, and the windows of "
    "the market were dark; only the doctor's dog lay on the bridge and looked at the river, as it did every evening."
)
GERMAN = "Der Hafen war still, als der Kapitän von der Insel nach Hause kam. Niemand hatte auf ihn gewartet. " * 3


def page(body: str) -> str:
    return (
        "<html><head><title>News</title><script>var x = 1;</script></head><body><nav><ul><li><a href='/'>Start</a>"
        f"</li><li><a href='/b'>Sport</a></li></ul></nav><article><h1>Headline</h1><p>{body}</p><p>{PARAGRAPH}</p>"
        "</article><footer>Imprint and cookies</footer></body></html>"
    )


@pytest.mark.parametrize("extractor", ["resiliparse", "trafilatura", "all"])
def test_extractors(extractor: str, tmp_path: Path, build, all_texts) -> None:
    if extractor == "trafilatura":
        pytest.importorskip("trafilatura", reason="the html extra is not installed")
    (tmp_path / "a.html").write_text(page("The first paragraph says something of its own about the garden."))
    (text,) = all_texts(build(tmp_path / "a.html", reading=ReadSettings(extractor=extractor)))
    assert "something of its own" in text
    assert PARAGRAPH in text
    assert "var x" not in text
    assert ("Imprint" in text) == (extractor == "all")


def test_encodings(tmp_path: Path, build, all_texts) -> None:
    html = page("Die Bäume am Fluß blühten früher als sonst.").replace("<head>", "<head><meta charset='iso-8859-1'>")
    (tmp_path / "a.html").write_bytes(html.encode("latin-1"))
    assert "Bäume am Fluß" in all_texts(build(tmp_path / "a.html"))[0]


def record(body: str, *, day: str = "2017-05-01", kind: str = "text/html", status: str = "200 OK") -> bytes:
    http = f"HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\n\r\n{body}".encode()
    head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Date: {day}T01:02:03Z\r\nWARC-Target-URI: http://example.org/\r\n"
    head += "WARC-Record-ID: <urn:uuid:1>\r\nContent-Type: application/http; msgtype=response\r\n"
    head += f"Content-Length: {len(http)}"
    return head.encode() + b"\r\n\r\n" + http + b"\r\n\r\n"


@pytest.mark.parametrize("packed", [False, True])
def test_warc_with_dates_and_language(packed: bool, tmp_path: Path, build, all_texts) -> None:
    records = [
        record(page("First story.")),
        record(page("Too early."), day="2016-08-31"),
        record(f"<html><body><article><p>{GERMAN}</p></article></body></html>"),
        record("%PDF", kind="application/pdf"),
        record(page("Gone."), status="404 Not Found"),
        record(page("Second story, which tells of quite another day in the village by the forest.")),
    ]
    path = tmp_path / ("a.warc.gz" if packed else "a.warc")
    path.write_bytes(b"".join(gzip.compress(r) if packed else r for r in records))
    source = SourceSettings(paths=(str(path),), date_from="2016-09-01", date_to="2019-02-28", languages=("en",))
    documents = build(source)
    assert ["First story" in text or "Second story" in text for text in all_texts(documents)] == [True, True]
    assert documents.counts["dropped"] == {"language": 1, "not a page": 2, "outside the dates": 1}
    assert documents.shards[0].place(0).endswith("byte 0 http://example.org/")


def test_garbage_between_records_costs_only_itself(tmp_path: Path, build, all_texts) -> None:
    stories = [record(page(f"Story {n}: {word} in the village.")) for n, word in enumerate(["rain", "snow", "storm"])]
    header_only = b"WARC/1.0\r\nno header at all\r\n\r\n"
    path = tmp_path / "a.warc"
    path.write_bytes(stories[0] + b"\0garbage\n" * 50_000 + stories[1] + header_only + stories[2])
    documents = build(path, dedup=DedupSettings(near="off"))
    assert [text.count("Story") for text in all_texts(documents)] == [1, 1, 1]
    assert set(documents.counts["dropped"]) == {"damaged record"}
    places = [documents.shards[0].place(index).split("byte ")[1].split()[0] for index in range(3)]
    data = path.read_bytes()
    assert [data[int(place) :][:8] for place in places] == [b"WARC/1.0"] * 3


def test_nothing_but_marks_ends(tmp_path: Path, build) -> None:
    (tmp_path / "a.warc").write_bytes(record(page("A story.")) + b"WARC/1.0 x " * 50_000)
    counts = build(tmp_path / "a.warc").counts
    assert counts["documents"] == 1
    assert counts["dropped"] == {"damaged record": 100, "damaged file": 1}


def test_language_of_all_sources(tmp_path: Path, build, all_texts) -> None:
    (tmp_path / "a.txt").write_text(f"{GERMAN}\n\n{PARAGRAPH}")
    assert all_texts(build(tmp_path / "a.txt", language=LanguageSettings(keep=("en",)))) == [PARAGRAPH]
    assert len(all_texts(build(tmp_path / "a.txt"))) == 2
    own = SourceSettings(paths=(str(tmp_path / "a.txt"),), languages=("de",))
    assert all_texts(build(own, language=LanguageSettings(keep=("en",)))) == [GERMAN.strip()]
