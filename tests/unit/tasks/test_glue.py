"""GLUE's layouts: official files, the original MRPC, JSONL, one file for both parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from remask.errors import DataError, MissingInputError
from remask.tasks.glue import cut_by_hash, find_file, read_glue, read_glue_file
from remask.tasks.specs import TASKS
from remask.tasks.tables import Example, Table


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_cola_has_no_header_and_quotes_are_text(tmp_path: Path) -> None:
    write(tmp_path / "CoLA/train.tsv", 'gj04\t1\t\tThe "sailors rode.\ngj04\t0\t*\tNo.\n')
    write(tmp_path / "CoLA/dev.tsv", "gj04\t1\t\tYes.\n")
    for folder in (tmp_path, tmp_path / "CoLA"):
        data = read_glue("glue:cola", TASKS["glue:cola"], folder)
        assert [(e.texts, e.label) for e in data.train.examples] == [(('The "sailors rode.',), "1"), (("No.",), "0")]
        assert data.labels == ("0", "1")
        assert data.note == ""


def test_original_mrpc_with_byte_order_mark(tmp_path: Path) -> None:
    head = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    write(tmp_path / "MRPC/msr_paraphrase_train.txt", head + '1\t2\t3\ta "b\tc\n')
    write(tmp_path / "MRPC/msr_paraphrase_test.txt", head + "0\t2\t3\td\te\n")
    data = read_glue("glue:mrpc", TASKS["glue:mrpc"], tmp_path)
    assert data.train.examples[0].texts == ('a "b', "c")
    assert "test file" in data.note


def test_stsb_scores_and_mnli_jsonl(tmp_path: Path) -> None:
    head = "index\tsentence1\tsentence2\tscore\n"
    write(tmp_path / "STS-B/train.tsv", head + "0\ta\tb\t4.250\n")
    write(tmp_path / "STS-B/dev.tsv", head + "0\ta\tb\t0.0\n")
    assert read_glue("glue:stsb", TASKS["glue:stsb"], tmp_path).train.examples[0].label == 4.25
    lines = "".join(f'{{"premise": "p{i}", "hypothesis": "h", "label": "neutral"}}\n' for i in range(50))
    write(tmp_path / "MNLI/dev_matched.jsonl", lines)
    data = read_glue("glue:mnli", TASKS["glue:mnli"], tmp_path)
    assert len(data.train.examples) + len(data.dev.examples) == 50
    assert "80/20" in data.note


def test_official_mnli_goes_before_the_cut(tmp_path: Path) -> None:
    row = "index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tentailment\n"
    for name in ("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv"):
        write(tmp_path / "MNLI" / name, row)
    write(tmp_path / "MNLI/dev_matched.jsonl", "{}\n")
    assert read_glue("glue:mnli", TASKS["glue:mnli"], tmp_path).note == ""
    assert read_glue("glue:mnli-mm", TASKS["glue:mnli-mm"], tmp_path).dev.path.name == "dev_mismatched.tsv"


def test_broken_lines_are_dropped_only_where_it_is_the_practice(tmp_path: Path) -> None:
    head = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    path = write(tmp_path / "q.tsv", head + "1\t2\t3\ta\tb\t0\n4\tbroken\n5\t6\t7\tc\td\t1\n")
    table = read_glue_file("glue:qqp", TASKS["glue:qqp"], path)
    assert len(table.examples) == 2
    assert table.dropped == {"ragged line": 1}
    path = write(tmp_path / "r.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n1\ta\n")
    with pytest.raises(DataError, match=r"r\.tsv:3: 2 cells"):
        read_glue_file("glue:rte", TASKS["glue:rte"], path)


def test_another_tasks_file_wrong_labels_and_missing_files(tmp_path: Path) -> None:
    path = write(tmp_path / "s.tsv", "sentence\tlabel\nx\t1\n")
    with pytest.raises(
        DataError, match="not a file of glue:rte: its columns are sentence, label, needed are sentence1"
    ):
        read_glue_file("glue:rte", TASKS["glue:rte"], path)
    path = write(tmp_path / "t.tsv", "sentence\tlabel\nx\t1\ny\t7\n")
    with pytest.raises(DataError, match=r"labels glue:sst2 does not have: '7' \(.*t\.tsv:3\)"):
        read_glue_file("glue:sst2", TASKS["glue:sst2"], path)
    with pytest.raises(MissingInputError, match=r"none of train\.tsv is there or in RTE/"):
        find_file(TASKS["glue:rte"], "train", tmp_path)
    with pytest.raises(DataError, match="no rows"):
        read_glue_file("glue:rte", TASKS["glue:rte"], write(tmp_path / "e.tsv", ""))


def test_cut_keeps_equal_first_texts_together() -> None:
    table = Table(Path("f"), [Example((f"t{i % 40}", str(i)), "0", "f:1") for i in range(400)], {})
    train, dev = cut_by_hash(table)
    assert not {e.texts[0] for e in train.examples} & {e.texts[0] for e in dev.examples}
    assert 0 < len(dev.examples) < len(train.examples)
    with pytest.raises(DataError, match="too few to cut"):
        cut_by_hash(Table(Path("f"), table.examples[:1], {}))


GLUE_COUNTS = {
    "glue:cola": (8551, 1043), "glue:sst2": (67349, 872), "glue:stsb": (5749, 1500), "glue:rte": (2490, 277),
    "glue:wnli": (635, 71), "glue:mrpc": (4076, 1725), "glue:qnli": 5463, "glue:mnli": 9815, "glue:qqp": 23496,
}  # fmt: skip


@pytest.mark.parametrize("name", GLUE_COUNTS)
def test_real_files(shared_data: Path, name: str) -> None:
    data = read_glue(name, TASKS[name], shared_data / "glue")
    counts = len(data.train.examples), len(data.dev.examples)
    expected = GLUE_COUNTS[name]
    if isinstance(expected, tuple):
        assert counts == expected
    else:
        assert sum(counts) == expected
        assert 0.15 < counts[1] / expected < 0.25
        assert "80/20" in data.note
