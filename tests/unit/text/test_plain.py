"""Plain text: layouts, guesses, long records, newlines of every kind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remask.text import sources
from remask.text.plain import BLANK_LINE, LINE_END, WIKITEXT_TITLE, is_wrapped, split_records
from remask.text.settings import ReadSettings, SourceSettings

LONG = "\n".join(["A first line that is long enough to fill the margin of a page, as books", "have it,"] * 3)


def pieces(data: bytes, block: int, limit: int = 100, dropping: bool = False, separator=BLANK_LINE) -> list:
    blocks = [data[start : start + block] for start in range(0, len(data), block)]
    return list(split_records(blocks, separator, limit, dropping, Counter()))


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_blank_lines_end_documents_with_every_newline(newline: str) -> None:
    data = newline.join(["title", "text", "", " \t", "second", "", "", ""]).encode()
    found = [part for _, part in pieces(data, 1000)]
    assert [part.split() for part in found] == [[b"title", b"text"], [b"second"]]


TOKENS = st.lists(st.sampled_from(["aaa", "b ", "\n", "\r", "\r\n", "\n \n", "ccccc"]), max_size=20)


@given(TOKENS, st.integers(1, 20), st.integers(20, 40), st.booleans())
def test_blocks_do_not_matter(tokens: list[str], block: int, limit: int, dropping: bool) -> None:
    data = "".join(tokens).encode()
    for separator in (BLANK_LINE, LINE_END):
        whole = pieces(data, 1000, limit, dropping, separator)
        assert [p for _, p in pieces(data, block, limit, dropping, separator)] == [p for _, p in whole]
        for offset, part in whole:
            assert part is None or data[offset : offset + len(part)] == part


def test_long_records_are_cut_at_spaces_or_dropped_once() -> None:
    data = b"x" * 95 + b" " + b"y" * 200 + b"\n\nshort"
    cut = [part for _, part in pieces(data, 50)]
    assert b"".join(cut) == data.replace(b"\n\n", b"")
    assert cut[0] == b"x" * 95 + b" "
    assert all(len(part) <= 100 for part in cut)
    assert [part for _, part in pieces(data, 50, dropping=True)] == [None, b"short"]


def test_cuts_keep_characters_whole() -> None:
    data = ("好" * 100).encode()
    assert "".join(part.decode() for _, part in pieces(data, 7)) == "好" * 100


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("layout, count", [("blank", 2), ("line", 3), ("file", 1)])
def test_every_layout(layout: str, count: int, tmp_path: Path, texts, build) -> None:
    path = write(tmp_path, "a.txt", f"{next(texts)}\n{next(texts)}\n\n{next(texts)}\n")
    assert build(path, reading=ReadSettings(layout=layout)).counts["documents"] == count
    assert build(SourceSettings(paths=(str(path),), layout=layout)).counts["documents"] == count


def test_guesses(tmp_path: Path, texts, build) -> None:
    lines = write(tmp_path, "lines.txt", "\n".join(next(texts) for _ in range(5)))
    assert build(lines).counts["documents"] == 5
    blank = write(tmp_path, "blank.txt", "\n\n".join(next(texts) for _ in range(4)))
    assert build(blank).counts["documents"] == 4
    ended = write(tmp_path, "ended.txt", "\n".join(next(texts) for _ in range(4)) + "\n\n")
    assert build(ended).counts["documents"] == 1
    for number in range(20):
        write(tmp_path, f"many/{number}.txt", f"{next(texts)}\n\n{next(texts)}")
    assert build(tmp_path / "many").counts["documents"] == 20
    import textwrap

    book = "\n\n".join(textwrap.fill(" ".join(next(texts) for _ in range(3)), 70) for _ in range(20))
    assert is_wrapped(book)
    assert build(write(tmp_path, "book.txt", book)).counts["documents"] == 1


def test_a_guess_is_said(tmp_path: Path, texts) -> None:
    import io

    from remask.progress import Progress
    from remask.text.build import build_documents
    from remask.text.settings import TextSettings

    path = write(tmp_path, "a.txt", "\n\n".join(next(texts) for _ in range(4)))
    said = io.StringIO()
    settings = TextSettings(sources=(SourceSettings(paths=(str(path),)),))
    build_documents(settings, tmp_path / "out", progress=Progress(stream=said))
    assert "a blank line ends a document (guessed" in said.getvalue()


def test_invalid_utf8_is_replaced_or_dropped(tmp_path: Path, texts, build, all_texts) -> None:
    good = next(texts)
    (tmp_path / "a.txt").write_bytes(next(texts).encode() + b"\xff\n\n" + good.encode())
    replaced = build(tmp_path / "a.txt")
    assert all_texts(replaced)[0].endswith("\ufffd")
    assert replaced.counts["changed"] == {"invalid UTF-8 replaced": 1}
    dropped = build(tmp_path / "a.txt", reading=ReadSettings(invalid_utf8="drop"))
    assert all_texts(dropped) == [good]
    assert dropped.counts["dropped"] == {"invalid UTF-8": 1}


def test_long_documents_by_the_settings(tmp_path: Path, texts, build) -> None:
    path = write(tmp_path, "a.txt", " ".join(next(texts) for _ in range(20)) + "\n\n" + next(texts))
    cut = build(path, reading=ReadSettings(max_document_bytes=4000))
    assert cut.counts["documents"] > 2
    assert cut.counts["changed"] == {"too long: cut": 1}
    drop = build(path, reading=ReadSettings(max_document_bytes=4000, long_documents="drop"))
    assert (drop.counts["documents"], drop.counts["dropped"]) == (1, {"too long": 1})


@pytest.mark.parametrize("layout", ["blank", "line"])
def test_a_split_file_gives_the_same_documents_and_places(
    layout: str, tmp_path: Path, texts, build, all_texts, monkeypatch
) -> None:
    write(tmp_path, "a.txt", "\r\n\r\n".join(next(texts) + "\r\n" + next(texts) for _ in range(60)))
    whole = build(tmp_path / "a.txt", reading=ReadSettings(layout=layout))
    monkeypatch.setattr(sources, "PORTION_BYTES", 3000)
    split = build(tmp_path / "a.txt", reading=ReadSettings(layout=layout))
    assert all_texts(split) == all_texts(whole)
    assert split.artifact.fingerprint == whole.artifact.fingerprint


WIKITEXT = (
    " \n = First article = \n \n Some text of it . \n \n = = A section = = \n \n Where a = b and c = d . \n \n"
    " = Second = \n \n More text here . \n"
)


def test_wikitext_articles_begin_at_titles(tmp_path: Path, build, all_texts) -> None:
    (tmp_path / "wiki.train.tokens").write_text(WIKITEXT)
    documents = build(tmp_path / "wiki.train.tokens")
    assert all_texts(documents) == [
        "First article\n\n Some text of it .\n\nA section\n\n Where a = b and c = d .",
        "Second\n\n More text here .",
    ]
    (tmp_path / "plain.txt").write_text("No title here.\n\n= Title =\n\nText.")
    assert build(tmp_path / "plain.txt").counts["documents"] == 3


@pytest.mark.parametrize("block", [1, 2, 3, 7, 20])
def test_wikitext_titles_are_found_across_blocks(block: int) -> None:
    data = WIKITEXT.encode()
    blocks = [data[start : start + block] for start in range(0, len(data), block)]
    records = list(split_records(blocks, WIKITEXT_TITLE, 1000, False, Counter()))
    assert [bytes(record or b"").split(b"=")[1].strip() for _, record in records] == [b"First article", b"Second"]
