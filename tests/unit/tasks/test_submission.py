"""Answers for GLUE's leaderboard: official names and columns, the test files' order, numbers within their range."""

from __future__ import annotations

from pathlib import Path

import pytest

from remask.errors import DataError
from remask.tasks.specs import TASKS
from remask.tasks.submission import find_tests, read_test_file, write_answers

OFFICIAL = {
    "CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv", "RTE.tsv",
    "WNLI.tsv", "AX.tsv",
}  # fmt: skip


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_every_file_of_the_leaderboard_has_its_task() -> None:
    assert {name for spec in TASKS.values() for name in spec.get("tests", {})} == OFFICIAL


def test_test_files_are_found_and_answered_in_order(tmp_path: Path) -> None:
    spec = TASKS["glue:mnli"]
    header = "index\tpromptID\tsentence1\tsentence2\n"
    matched = write(tmp_path / "MNLI/test_matched.tsv", f'{header}0\tx\tA "b\tC\n1\tx\tD\tE\n')
    write(tmp_path / "diagnostic/diagnostic.tsv", "index\tsentence1\tsentence2\n0\tA\tB\n")
    found = find_tests(spec, tmp_path)
    assert list(found) == ["MNLI-m.tsv", "AX.tsv"]
    said = {'A "b': "neutral", "D": "entailment"}
    count = write_answers(
        "glue:mnli",
        spec,
        matched,
        tmp_path / "out.tsv",
        lambda items: [{"prediction": said[e.texts[0]]} for e in items],
    )
    assert count == 2
    assert (tmp_path / "out.tsv").read_text() == "index\tprediction\n0\tneutral\n1\tentailment\n"


def test_cola_has_a_header_here_and_numbers_stay_in_range(tmp_path: Path) -> None:
    cola = write(tmp_path / "CoLA/test.tsv", "index\tsentence\n0\tBill slept.\n")
    assert read_test_file("glue:cola", TASKS["glue:cola"], cola)[1][0].texts == ("Bill slept.",)
    stsb = write(tmp_path / "STS-B/test.tsv", "index\tsentence1\tsentence2\n7\tA\tB\n8\tA\tC\n9\tA\tD\n")
    numbers = iter([-0.5, 2.34567, 7.0])
    write_answers(
        "glue:stsb",
        TASKS["glue:stsb"],
        stsb,
        tmp_path / "o.tsv",
        lambda items: [{"prediction": next(numbers)} for _ in items],
    )
    assert (tmp_path / "o.tsv").read_text().splitlines()[1:] == ["7\t0.000", "8\t2.346", "9\t5.000"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("index\tsentence\n", "no rows"),
        ("index\twords\n0\ta\n", r"test\.tsv:2: not a test file of glue:sst2: its columns are index, words"),
        ("index\tsentence\n0\ta\n0\tb\n", "the index '0' is there twice"),
        ("index\tsentence\n0\t \n", r"test\.tsv:2: an empty text"),
        ("index\tsentence\n0\ta\tb\n", r"test\.tsv:2: 3 cells"),
    ],
)
def test_faults(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_test_file("glue:sst2", TASKS["glue:sst2"], write(tmp_path / "test.tsv", text))


def test_the_real_test_file(shared_data: Path) -> None:
    path = find_tests(TASKS["glue:sst2"], shared_data / "glue")["SST-2.tsv"]
    indices, examples = read_test_file("glue:sst2", TASKS["glue:sst2"], path)
    assert indices[:2] == ["0", "1"]
    assert len(examples) == 1821
