"""The quickstart's task: no document on both sides, libraries not named; and sentences with a hidden word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remask import artifacts
from remask.documents import STAGE, Documents, DocumentWriter, read_documents
from remask.starter.task import make_task, sample_sentences


def documents(folder: Path, places: list[str]) -> Documents:
    """A documents folder with one document a place; every line names its place's number, so rows can be traced."""

    def fill(aside: Path) -> dict[str, object]:
        shards = []
        for split in ("train", "heldout"):
            name = f"c.{split}.00000"
            mine = [place for number, place in enumerate(places) if (number % 10 == 0) == (split == "heldout")]
            with DocumentWriter(aside, name) as writer:
                for place in mine:
                    number = places.index(place)
                    lines = [
                        f"Part {part} of text n{number}x says that the number of small things is quite large."
                        f" Another sentence of n{number}x follows here, with words."
                        for part in range(6)
                    ]
                    if number % 3 == 0:
                        lines.append(
                            f"This is {place.split('.')[0]} of n{number}x and it names its own library, at some length."
                        )
                    writer.add("\n".join(lines), [0], place)
            shards.append({"name": name, "source": "c", "split": split, "documents": len(mine), "bytes": 0})
        return {"documents": len(places), "shards": shards}

    artifacts.publish(folder, STAGE, fill)
    return read_documents(folder)


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def numbers(row: dict[str, str], *columns: str) -> set[str]:
    return {
        word
        for column in columns
        for word in row[column].replace(".", " ").split()
        if word.startswith("n") and word.endswith("x")
    }


def test_which_library_no_module_on_both_sides(tmp_path: Path) -> None:
    places = [f"{library}.module{number}" for library in ("alpha", "beta", "gamma") for number in range(30)]
    task = make_task(documents(tmp_path / "d", places), tmp_path, is_python_docs=True, most=400, labels=100, seed=0)
    assert task is not None
    assert task.kind == "classify"
    train, test = rows(task.train), rows(task.test)
    assert len(train) == 100
    assert not set().union(*(numbers(r, "text") for r in train)) & set().union(*(numbers(r, "text") for r in test))
    assert {row["label"] for row in train} == {row["label"] for row in test} == {"alpha", "beta", "gamma"}
    for row in train + test:
        assert row["label"] not in row["text"].lower()
        (number,) = numbers(row, "text")
        assert places[int(number[1:-1])].startswith(row["label"])


def test_a_library_that_is_only_tested_is_left_out_and_not_counted(tmp_path: Path) -> None:
    sizes = {"alpha": 90, "beta": 90, "gamma": 12}
    places = [f"{library}.module{number}" for library, size in sizes.items() for number in range(size)]
    found = documents(tmp_path / "d", places)
    task = make_task(found, tmp_path, is_python_docs=True, most=300, labels=40, seed=5)  # in its order gamma comes late
    assert task is not None
    train, test = rows(task.train), rows(task.test)
    assert {row["label"] for row in train} == {row["label"] for row in test} == {"alpha", "beta"}
    assert task.description.startswith(f"{len(train)} passages to learn from, {len(test)} of other modules")


def test_same_document_pairs_stay_on_their_side(tmp_path: Path) -> None:
    places = [f"file{number}.txt" for number in range(80)]
    task = make_task(documents(tmp_path / "d", places), tmp_path, is_python_docs=False, most=300, labels=100, seed=0)
    assert task is not None
    assert task.kind == "pair"
    train, test = rows(task.train), rows(task.test)
    sides = [set().union(*(numbers(row, "text", "text2") for row in part)) for part in (train, test)]
    assert not sides[0] & sides[1]
    for row in train + test:
        assert (numbers(row, "text") == numbers(row, "text2")) == (row["label"] == "same")
    share = sum(row["label"] == "same" for row in train) / len(train)
    assert 0.35 < share < 0.65


@pytest.mark.parametrize("is_python_docs", [False, True])
def test_too_few_documents_make_no_task(tmp_path: Path, is_python_docs: bool) -> None:
    found = documents(tmp_path / "d", ["a.one", "a.two", "b.one"])
    assert make_task(found, tmp_path, is_python_docs=is_python_docs, most=300, labels=100, seed=0) is None


def test_sentences_are_held_out_with_one_word_hidden(tmp_path: Path) -> None:
    found = documents(tmp_path / "d", [f"file{number}.txt" for number in range(80)])
    held = "\n".join(text for shard in found.of("heldout") for text in shard.texts())
    samples = sample_sentences(found, seed=0)
    assert len(samples) == 6
    for sample in samples:
        assert sample.masked.count("<mask>") == 1
        assert sample.masked.replace("<mask>", sample.hidden) in held
    assert samples == sample_sentences(found, seed=0)
    assert samples != sample_sentences(found, seed=1)


def test_a_chinese_sentence_hides_a_word_between_particles(tmp_path: Path) -> None:
    text = "北京是中华人民共和国的首都，也是全国的政治中心。"

    def fill(aside: Path) -> dict[str, object]:
        with DocumentWriter(aside, "c.heldout.00000") as writer:
            writer.add(text, [0], "a")
        shard = {"name": "c.heldout.00000", "source": "c", "split": "heldout", "documents": 1, "bytes": 0}
        return {"documents": 1, "shards": [shard]}

    artifacts.publish(tmp_path / "d", STAGE, fill)
    (sample,) = sample_sentences(read_documents(tmp_path / "d"), seed=0)
    assert sample.hidden in ("首都", "全国")
    assert sample.masked.replace("<mask>", sample.hidden) == text
