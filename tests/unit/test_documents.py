"""Documents on disk: what is written is read, damage is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remask.artifacts import publish
from remask.documents import DocumentShard, DocumentWriter, byte_positions, read_documents
from remask.errors import DataError

TEXTS = ["Plain text. Two sentences.", "Zwölf Bäume. Übrig.", "你好吗？我很好。", "😀 one. 😀 two."]
STARTS = [[0, 12], [0, 13], [0, 4], [0, 7]]


def shard_of(folder: Path, texts: list[str], starts: list[list[int]]) -> DocumentShard:
    with DocumentWriter(folder, "a.b.train.00000") as writer:
        for number, (text, start) in enumerate(zip(texts, starts, strict=True)):
            writer.add(text, start, f"file\n{number}")
        counts = writer.close()
    assert counts["documents"] == len(texts)
    assert counts["bytes"] == sum(len(text.encode()) for text in texts)
    return DocumentShard(folder, "a.b.train.00000")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, TEXTS, STARTS)
    assert (len(shard), shard.source, shard.split) == (4, "a.b", "train")
    assert list(shard.texts()) == TEXTS
    for index, (text, starts) in enumerate(zip(TEXTS, STARTS, strict=True)):
        assert shard.raw(index) == text.encode()
        pieces = [shard.raw(index)[start:].decode() for start in shard.sentence_starts(index)]
        assert pieces == [text[start:] for start in starts]
        assert shard.place(index) == f"file\\n{index}"
    assert pickle.loads(pickle.dumps(shard)).text(2) == TEXTS[2]


@given(st.text(max_size=50), st.data())
def test_byte_positions_are_those_of_the_characters(text: str, data: st.DataObject) -> None:
    encoded = text.encode("utf-8", "replace")
    text = encoded.decode()
    places = data.draw(st.lists(st.integers(0, max(0, len(text) - 1)), unique=True, max_size=5)) if text else []
    found = byte_positions(encoded, np.array(sorted(places), np.int64))
    assert found.tolist() == [len(text[:place].encode()) for place in sorted(places)]


def published(folder: Path, texts: list[str], starts: list[list[int]]) -> Path:
    def fill(aside: Path) -> dict:
        shard_of(aside, texts, starts)
        return {"shards": [{"name": "a.b.train.00000"}], "documents": len(texts)}

    publish(folder, "documents", fill)
    return folder


def test_a_published_folder_opens_and_a_damaged_one_does_not(tmp_path: Path) -> None:
    folder = published(tmp_path / "documents", TEXTS, STARTS)
    documents = read_documents(folder)
    assert [len(shard) for shard in documents.of("train")] == [4]
    assert documents.of("heldout") == []
    data = bytearray((folder / "a.b.train.00000.text").read_bytes())
    data[3] ^= 1
    (folder / "a.b.train.00000.text").write_bytes(data)
    with pytest.raises(DataError, match="checksum"):
        read_documents(folder, verify=True)


def test_offsets_that_do_not_fit_the_text_are_refused(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, TEXTS, STARTS)
    (tmp_path / "a.b.train.00000.documents").write_bytes(np.array([0, 5], "<i8").tobytes())
    with pytest.raises(DataError, match="does not match"):
        len(shard)


def test_no_documents_is_a_shard_too(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, [], [])
    assert len(shard) == 0
    assert shard.num_bytes == 0
