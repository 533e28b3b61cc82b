"""`remask predict`: every format in and out, every kind of task, bad rows, and a kill at any moment."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from remask import artifacts
from remask.__main__ import cli
from remask.answer import predict
from remask.errors import (
    ConfigError,
    DataError,
    MissingInputError,
    OutputError,
    RemaskError,
    Stopped,
    UnavailableError,
    UsageError,
)
from remask.model.network import with_heads
from remask.model.settings import HeadSettings
from remask.model.store import open_model, save_model
from remask.progress import Progress
from remask.tasks.settings import RowSettings, TableSettings

from ..faults.zygote import Zygote

WORDS = ["red", "green", "blue", "cold", "warm", "big", "small", "old", "new", "fast"]
TASKS: dict[str, tuple[HeadSettings, tuple[str, ...]]] = {
    "classify": (HeadSettings(num_classes=3), ("no", "yes", "may|be")),
    "regress": (HeadSettings(num_classes=1), ()),
    "multilabel": (HeadSettings(num_classes=3, multilabel=True), ("a", "b", "c")),
    "tags": (HeadSettings(num_tags=3), ("O", "B-X", "I-X")),
    "spans": (HeadSettings(span=True), ()),
    "choice": (HeadSettings(choice=True), ()),
}


@pytest.fixture(scope="module")
def models(task_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each kind, with weights as they were drawn: what it says does not matter here, only what becomes of
    it. `pair` is a classifier of two texts."""
    folder = tmp_path_factory.mktemp("models")
    loaded = open_model(task_model)
    found = {}
    for name in (*TASKS, "pair"):
        kind = "classify" if name == "pair" else name
        heads, labels = TASKS[kind]
        table = TableSettings(text="body", text2="more" if name == "pair" else None)
        facts = {"task": name, "kind": kind, "labels": labels, "table": table.model_dump(),
                 "rows": RowSettings(max_length=32).model_dump()}  # fmt: skip
        network = with_heads(loaded.network, heads, seed=5)
        for parameter in network.heads.parameters():
            parameter.data *= 20  # so that answers differ
        extra = {"task.json": json.dumps(facts).encode()}
        save_model(folder / name, network, loaded.tokenizer_folder, labels or None, extra=extra)
        found[name] = folder / name
    return found


def ask(model: Path, file: Path, out: Path, **values: Any) -> dict[str, Any]:
    run = predict.PredictRun(**{"model": str(model), "file": str(file), "precision": "fp32", **values})
    return predict.main(run, out, progress=Progress(quiet=True))


def texts(count: int, seed: int = 0) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(1, 12))) for _ in range(count)]


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ----------------------------------------------------------------------------------------------------- formats


def test_formats_in_and_out_say_the_same(models: dict[str, Path], tmp_path: Path) -> None:
    rows = [{"id": str(i), "body": text} for i, text in enumerate(texts(50))]
    files = {"jsonl": write_jsonl(tmp_path / "in.jsonl", rows), "parquet": tmp_path / "in.parquet"}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), files["parquet"])
    for name, mark in (("csv", ","), ("tsv", "\t")):
        files[name] = tmp_path / f"in.{name}"
        files[name].write_text(
            "".join(mark.join(cells) + "\n" for cells in [["id", "body"], *(r.values() for r in rows)])
        )
    files["gz"] = tmp_path / "packed.jsonl.gz"
    files["gz"].write_bytes(gzip.compress(files["jsonl"].read_bytes()))
    ask(models["classify"], files["jsonl"], tmp_path / "first.jsonl", chunk_rows=7)
    first = read_jsonl(tmp_path / "first.jsonl")
    assert [row["id"] for row in first] == [row["id"] for row in rows]
    assert list(first[0]) == ["id", "body", "prediction", "score"]
    assert len({row["score"] for row in first}) > 20
    for name, file in files.items():
        out = tmp_path / f"{name}.jsonl"
        assert ask(models["classify"], file, out)["rows"] == 50
        assert read_jsonl(out) == first, name
    for ending in ("csv", "tsv", "csv.gz", "jsonl.zst", "parquet"):
        ask(models["classify"], files["jsonl"], tmp_path / f"out.{ending}")
    with (tmp_path / "out.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["prediction"] for row in found] == [row["prediction"] for row in first]
    assert [float(row["score"]) for row in found] == [row["score"] for row in first]
    assert (tmp_path / "out.tsv").read_text().replace("\t", ",") == (tmp_path / "out.csv").read_text()
    assert gzip.decompress((tmp_path / "out.csv.gz").read_bytes()) == (tmp_path / "out.csv").read_bytes()
    packed = pyarrow.input_stream(str(tmp_path / "out.jsonl.zst"), compression="zstd").read()
    assert packed == (tmp_path / "first.jsonl").read_bytes()
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist() == first
    assert not list(tmp_path.glob(".*")), "nothing is left beside the files"


def test_parquet_keeps_its_types_and_tsv_its_lines(models: dict[str, Path], tmp_path: Path) -> None:
    import datetime
    import decimal

    table = pyarrow.table(
        {
            "when": pyarrow.array([datetime.date(2020, 1, 1), None], pyarrow.date32()),
            "cost": pyarrow.array([decimal.Decimal("1.50"), decimal.Decimal("2.25")], pyarrow.decimal128(9, 2)),
            "body": ["red\tbig", "old\nnew"],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet")
    ask(models["regress"], tmp_path / "in.parquet", tmp_path / "out.parquet")
    found = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert found.select(table.column_names).equals(table)
    assert found.schema.field("prediction").type == pyarrow.float64()
    ask(models["regress"], tmp_path / "in.parquet", tmp_path / "out.tsv")
    lines = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    assert [line[:3] for line in lines] == [
        ["when", "cost", "body"],
        ["2020-01-01", "1.50", "red big"],
        ["", "2.25", "old new"],
    ]


def test_integers_of_any_size_come_out_as_they_were(models: dict[str, Path], tmp_path: Path) -> None:
    numbers = [2**53 + 1, -(2**63), 2**64 - 1, 2**64, -(10**40)]
    rows = [{"body": "red", "id": number, "more": {"ids": [number], "share": 0.5}} for number in numbers]
    file = write_jsonl(tmp_path / "in.jsonl", rows)
    ask(models["classify"], file, tmp_path / "out.jsonl")
    assert [{name: row[name] for name in rows[0]} for row in read_jsonl(tmp_path / "out.jsonl")] == rows
    assert '"id":-10000000000000000000000000000000000000000,' in (tmp_path / "out.jsonl").read_text()
    ask(models["classify"], file, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as table:
        assert [int(row["id"]) for row in csv.DictReader(table)] == numbers
    with pytest.raises(DataError, match="integers beyond 64 bit"):
        ask(models["classify"], file, tmp_path / "out.parquet")


def test_scores_are_a_choice_and_names_do_not_collide(models: dict[str, Path], tmp_path: Path) -> None:
    file = write_jsonl(
        tmp_path / "in.jsonl", [{"body": "red", "score": 1, "extra": [1]}, {"body": "blue", "late": {"a": 2}}]
    )
    with pytest.raises(UsageError, match="has a column 'score' already; --prefix"):
        ask(models["classify"], file, tmp_path / "a.jsonl")
    ask(models["classify"], file, tmp_path / "b.jsonl", prefix="said_", scores=True)
    first, second = read_jsonl(tmp_path / "b.jsonl")
    assert list(first) == ["body", "score", "extra", "said_prediction", "said_score", "said_scores"]
    assert list(first["said_scores"]) == ["no", "yes", "may|be"]
    assert max(first["said_scores"].values()) == first["said_score"]
    assert sum(first["said_scores"].values()) == pytest.approx(1, abs=1e-5)
    ask(models["classify"], file, tmp_path / "c.csv", prefix="said_", scores=True)
    with (tmp_path / "c.csv").open(newline="") as table:
        cells = list(csv.reader(table))
    names = ["said_scores no", "said_scores yes", "said_scores may|be"]
    assert cells[0] == ["body", "score", "extra", "late", "said_prediction", "said_score", *names]
    assert cells[1][2:4] == ["[1]", ""]
    assert cells[2][1:4] == ["", "", '{"a":2}']
    assert [float(cell) for cell in cells[2][6:]] == list(second["said_scores"].values())


# ------------------------------------------------------------------------------------------------------- kinds


def test_pairs_numbers_and_several_labels(models: dict[str, Path], tmp_path: Path) -> None:
    rows = [{"body": a, "more": b} for a, b in zip(texts(30, 1), texts(30, 2), strict=True)]
    file = write_jsonl(tmp_path / "in.jsonl", rows)
    ask(models["pair"], file, tmp_path / "pair.jsonl")
    ask(models["pair"], file, tmp_path / "turned.jsonl", text="more", text2="body")
    said, turned = read_jsonl(tmp_path / "pair.jsonl"), read_jsonl(tmp_path / "turned.jsonl")
    assert [row["score"] for row in said] != [row["score"] for row in turned]
    ask(models["regress"], file, tmp_path / "number.jsonl")
    assert all(isinstance(row["prediction"], float) for row in read_jsonl(tmp_path / "number.jsonl"))
    ask(models["multilabel"], file, tmp_path / "labels.jsonl")
    ask(models["multilabel"], file, tmp_path / "labels.csv")
    labels = [row["prediction"] for row in read_jsonl(tmp_path / "labels.jsonl")]
    assert {len(names) for names in labels} & {1, 2, 3}
    with (tmp_path / "labels.csv").open(newline="") as table:
        assert [row["prediction"] for row in csv.DictReader(table)] == ["|".join(names) for names in labels]


def test_words_get_tags_and_texts_get_entities(models: dict[str, Path], tmp_path: Path) -> None:
    sentence = "red, green; blue cold (warm) big small old new"
    file = write_jsonl(tmp_path / "in.jsonl", [{"body": sentence}, {"body": sentence.replace(",", " ,").split()}])
    ask(models["tags"], file, tmp_path / "out.jsonl")
    text, words = read_jsonl(tmp_path / "out.jsonl")
    assert list(text) == ["body", "entities"]
    assert text["entities"]
    assert all(sentence[one["start"] : one["end"]] == one["text"] for one in text["entities"])
    assert list(words) == ["body", "tags"]
    assert len(words["tags"]) == len(words["body"])
    (tmp_path / "in.conll").write_text("red\nbig\n\nold\n")
    assert ask(models["tags"], tmp_path / "in.conll", tmp_path / "conll.jsonl")["rows"] == 2
    found = read_jsonl(tmp_path / "conll.jsonl")
    assert [(row["body"], len(row["tags"])) for row in found] == [(["red", "big"], 2), (["old"], 1)]


def test_questions_and_choices(models: dict[str, Path], tmp_path: Path) -> None:
    context = "The big red bird was old and the small blue one was new."
    rows: list[dict[str, Any]] = [{"question": f"What is {word}?", "context": context} for word in WORDS]
    ask(models["spans"], write_jsonl(tmp_path / "qa.jsonl", rows), tmp_path / "answers.jsonl")
    for row in read_jsonl(tmp_path / "answers.jsonl"):
        assert row["prediction"] == (context[row["start"] : row["end"]] if row["null_odds"] <= 0 else "")
    squad = {"data": [{"title": "t", "paragraphs": [{"context": context, "qas": [
        {"id": "7", "question": "What is red?", "answers": []}]}]}]}  # fmt: skip
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    ask(models["spans"], tmp_path / "squad.json", tmp_path / "squad.jsonl")
    (one,) = read_jsonl(tmp_path / "squad.jsonl")
    alone = read_jsonl(tmp_path / "answers.jsonl")[0]
    assert (one["id"], one["prediction"], one["null_odds"]) == ("7", alone["prediction"], alone["null_odds"])
    rows = [{"article": "The bird was red.", "question": "It was", "options": WORDS[:n]} for n in (2, 4, 2, 3)]
    rows += [{"question": "It was", "options": "red|old"}, {"question": "It was", "options": ["red"]}]
    done = ask(models["choice"], write_jsonl(tmp_path / "choice.jsonl", rows), tmp_path / "chosen.jsonl")
    assert (done["rows"], done["bad"]) == (5, 1)
    found = read_jsonl(tmp_path / "chosen.jsonl")
    assert [row["options"][row["choice"]] for row in found[:4]] == [row["prediction"] for row in found[:4]]
    assert found[0] == found[2]
    assert 1 / 3 < found[3]["score"] <= 1


def test_bf16_says_nearly_the_same(models: dict[str, Path], tmp_path: Path) -> None:
    from remask.precision import probe

    works, reason = probe("bf16")
    if not works:
        pytest.skip(f"no bf16 here: {reason}")
    file = write_jsonl(tmp_path / "in.jsonl", [{"body": text} for text in texts(40)])
    for precision in ("fp32", "bf16"):
        done = ask(models["classify"], file, tmp_path / f"{precision}.jsonl", precision=precision, scores=True)
        assert done["precision"] == precision
    exact, near = ([row["scores"]["yes"] for row in read_jsonl(tmp_path / f"{p}.jsonl")] for p in ("fp32", "bf16"))
    assert exact != near
    assert near == pytest.approx(exact, abs=0.05)


# ---------------------------------------------------------------------------------------------------- bad rows


def test_bad_rows_are_set_aside_by_line(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(
        b'{"body": "red"}\n{"body": ""}\nnot json\n{"body": "\xff"}\n[1]\n\n'
        b'{"other": 1}\n{"body": 7}\n{"body": "old"}\n'
    )
    done = ask(models["classify"], tmp_path / "in.jsonl", tmp_path / "out.jsonl", chunk_rows=2)
    assert (done["rows"], done["bad"]) == (2, 6)
    assert done["bad_file"] == str(tmp_path / "out.jsonl.bad.jsonl")
    assert [row["body"] for row in read_jsonl(tmp_path / "out.jsonl")] == ["red", "old"]
    bad = read_jsonl(tmp_path / "out.jsonl.bad.jsonl")
    assert [one["line"] for one in bad] == [2, 3, 4, 5, 7, 8]
    for one, word in zip(bad, ("no text", "not JSON", "not UTF-8", "JSON object", "no text", "not text"), strict=True):
        assert word in one["reason"]
    with pytest.raises(DataError, match=r"in.jsonl:3: not JSON|in.jsonl:2: column 'body' has no text"):
        ask(models["classify"], tmp_path / "in.jsonl", tmp_path / "strict.jsonl", bad_rows="error")
    (tmp_path / "in.csv").write_text('body,id\nred,1\nold\n"big"x,3\n"new\nfast",4\nblue,5,6\ncold,7\n')
    done = ask(models["classify"], tmp_path / "in.csv", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [row["id"] for row in csv.DictReader(file)] == ["1", "4", "7"]
    assert [one["line"] for one in read_jsonl(tmp_path / "out.csv.bad.jsonl")] == [3, 4, 7]


def test_what_cannot_be_done_is_said_first(models: dict[str, Path], task_model: Path, tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [{"other": "red"}])
    with pytest.raises(ConfigError, match="no column 'body'; there are other"):
        ask(models["classify"], file, tmp_path / "o.jsonl")
    with pytest.raises(DataError, match="has no task's head"):
        ask(task_model, file, tmp_path / "p.jsonl")
    with pytest.raises(MissingInputError):
        ask(models["classify"], tmp_path / "none.csv", tmp_path / "q.jsonl")
    with pytest.raises(UsageError, match="must end in one of"):
        ask(models["classify"], file, tmp_path / "o.txt")
    with pytest.raises(DataError, match="no usable rows"):
        ask(models["classify"], write_jsonl(tmp_path / "bad.jsonl", [{"body": ""}]), tmp_path / "r.jsonl")
    mixed = write_jsonl(tmp_path / "mixed.jsonl", [{"body": "red", "x": 1}, {"body": "old", "x": "one"}])
    with pytest.raises(DataError, match=r"write \.jsonl instead"):
        ask(models["classify"], mixed, tmp_path / "s.parquet")
    assert not list(tmp_path.glob("?.jsonl")) + list(tmp_path.glob("?.parquet"))


# ------------------------------------------------------------------------------------------------ going on


def test_a_mistake_put_right_is_no_other_command(models: dict[str, Path], tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [{"body": text} for text in texts(3)])
    with pytest.raises(RemaskError, match="no column 'absent'"):
        ask(models["classify"], file, tmp_path / "out.jsonl", text="absent")
    assert ask(models["classify"], file, tmp_path / "out.jsonl")["rows"] == 3


def test_two_runs_into_one_file(models: dict[str, Path], tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [{"body": text} for text in texts(5)])
    out = tmp_path / "out.jsonl"
    with artifacts.lock(tmp_path / ".out.jsonl.work"), pytest.raises(UnavailableError, match="another remask"):
        ask(models["classify"], file, out)
    ask(models["classify"], file, out)
    before = out.read_bytes()
    with pytest.raises(OutputError, match="exists already"):
        ask(models["classify"], file, out)
    assert out.read_bytes() == before
    assert not (tmp_path / ".out.jsonl.work").exists()


def test_a_stop_at_every_piece_ends_in_the_same_bytes(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"body": text} for text in texts(40)]
    rows[13] = {"body": ""}
    file = write_jsonl(tmp_path / "in.jsonl", rows)
    ask(models["classify"], file, tmp_path / "whole.jsonl", chunk_rows=8)
    out = tmp_path / "out.jsonl"
    left = iter([*range(5), None])
    real, written = artifacts.write_bytes, 0

    def stop_after_one(path: Path, data: bytes) -> None:
        nonlocal written
        real(path, data)
        if path.name.startswith("part-"):
            written += 1
            raise Stopped("stopped")

    monkeypatch.setattr(artifacts, "write_bytes", stop_after_one)
    for _ in range(5):
        next(left)
        with pytest.raises(Stopped):
            ask(models["classify"], file, out, chunk_rows=8)
        assert not out.exists()
    with pytest.raises(ConfigError, match="another command began this file"):
        ask(models["classify"], file, out, chunk_rows=9)
    with pytest.raises(ConfigError, match="another command began this file"):
        ask(models["pair"], file, out, chunk_rows=8)
    ask(models["classify"], file, out, chunk_rows=8)
    assert written == 5, "the sixth command had nothing left to answer"
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert read_jsonl(tmp_path / "out.jsonl.bad.jsonl") == [{"line": 14, "reason": "column 'body' has no text"}]


def test_a_kill_after_publishing_only_leaves_cleaning_up(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [{"body": text} for text in texts(5)])
    out = tmp_path / "out.jsonl"

    class Killed(Exception):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", die)
        with pytest.raises(Killed):
            ask(models["classify"], file, out)
    before = out.read_bytes()
    assert ask(models["classify"], file, out)["rows"] == 5
    assert out.read_bytes() == before
    assert not (tmp_path / ".out.jsonl.work").exists()


def test_a_killed_process_goes_on(models: dict[str, Path], tmp_path: Path, zygote: Zygote) -> None:
    """SIGKILL in the middle, then SIGTERM (exit code 75), then to the end; the bytes are those of one go."""
    file = write_jsonl(tmp_path / "in.jsonl", [{"body": text} for text in texts(1200)])
    out = tmp_path / "out.jsonl"
    words = ["predict", models["classify"], file, "--out", out, "-q", "--precision", "fp32", "--set", "chunk_rows=20"]
    for name, code in (("SIGKILL", -9), ("SIGTERM", Stopped.exit_code)):
        next_part = tmp_path / ".out.jsonl.work" / f"part-{len(parts_of(out)):06d}"
        assert zygote.run(*words, signals=[(0.0, name)], wait_for=next_part).returncode == code
        assert not out.exists()
        assert 0 < len(parts_of(out)) < 60
    assert CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False).exit_code == 0
    ask(models["classify"], file, tmp_path / "whole.jsonl", chunk_rows=20)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def parts_of(out: Path) -> list[Path]:
    return sorted(out.with_name(f".{out.name}.work").glob("part-*"))


# ------------------------------------------------------------------------------------------------ command line


def test_the_command_line(models: dict[str, Path], tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "in.jsonl", [{"body": "red"}, {"body": " "}])
    (tmp_path / "run.yaml").write_text(f"model: {models['classify']}\nfile: {file}\nprecision: fp32\nscores: true\n")

    def invoke(*words: Any) -> Any:
        return CliRunner().invoke(cli, ["predict", *map(str, words)])

    done = invoke(tmp_path / "run.yaml", "--out", tmp_path / "a.jsonl", "--json")
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)
    assert (values["rows"], values["bad"], values["kind"], values["precision"]) == (1, 1, "classify", "fp32")
    assert "1 row could not be answered" in done.stderr
    assert "scores" in read_jsonl(tmp_path / "a.jsonl")[0]
    done = invoke(models["classify"], file, "--out", tmp_path / "b.jsonl", "--dry-run")
    assert done.exit_code == 0
    assert not (tmp_path / "b.jsonl").exists()
    for words in ((models["classify"],), (models["classify"], file, file)):
        assert isinstance(invoke(*words, "--out", tmp_path / "c.jsonl").exception, RemaskError)


def test_a_text_on_the_command_line_or_on_stdin(models: dict[str, Path], tmp_path: Path) -> None:
    def invoke(*words: Any, stdin: bytes | None = None) -> Any:
        return CliRunner().invoke(cli, ["predict", *map(str, words), "--precision", "fp32"], input=stdin)

    file = write_jsonl(tmp_path / "in.jsonl", [{"body": "red big"}, {"body": "old"}])
    ask(models["classify"], file, tmp_path / "out.jsonl")
    first, second = read_jsonl(tmp_path / "out.jsonl")
    said = invoke(models["classify"], "red big")
    assert said.exit_code == 0, said.output
    label, score = said.stdout.rstrip("\n").split("  ")
    assert (label, float(score)) == (first["prediction"], first["score"])
    values = json.loads(invoke(models["classify"], "red big", "--json", "--scores").stdout)
    assert values["kind"] == "classify"
    assert list(values["answers"][0]) == ["prediction", "score", "scores"]
    lines = invoke(models["classify"], "-", stdin=b"red big\n\nold\n").stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == [first["prediction"], second["prediction"]]
    pair = invoke(models["pair"], "red big", "old", "--json")
    assert json.loads(pair.stdout)["answers"][0]["prediction"] in ("no", "yes", "may|be")
    assert " choice " in invoke(models["choice"], "It was", "red|old").stdout  # what is no score has its name
    chosen = invoke(models["choice"], "It was", "red|old", "--json")
    assert json.loads(chosen.stdout)["answers"][0]["prediction"] in ("red", "old")
    for words, error in (
        ((models["pair"], "red big"), UsageError),
        ((models["classify"], "red big", "old"), UsageError),
        ((models["classify"], "red big", "--out", tmp_path / "x.csv"), UsageError),
        ((models["classify"], file), UsageError),
        ((models["classify"], "absent.csv", "--out", tmp_path / "x.csv"), MissingInputError),
        ((models["classify"], "my absent.csv", "--out", tmp_path / "x.csv"), MissingInputError),
    ):
        assert isinstance(invoke(*words).exception, error), words
    assert isinstance(invoke(models["classify"], "-", stdin=b"caf\xe9\n").exception, DataError)


def test_files_as_they_come(models: dict[str, Path], tmp_path: Path) -> None:
    """Other encodings and delimiters, no header, JSON arrays: the one reader of tables, and options that say so."""

    def invoke(name: str, *words: Any) -> Any:
        model, out = models["classify"], tmp_path / f"{name}.out.jsonl"
        done = CliRunner().invoke(cli, ["predict", str(model), str(tmp_path / name), "--out", str(out), *words])
        return done, read_jsonl(out) if out.exists() else None

    rows = [{"id": str(n), "body": f"{text} caf\u00e9"} for n, text in enumerate(texts(4))]
    (tmp_path / "a.json").write_text(json.dumps({"rows": rows}))
    done, wanted = invoke("a.json")
    assert done.exit_code == 0, done.output
    assert wanted is not None
    lines = [";".join(row.values()) for row in rows]
    (tmp_path / "b.csv").write_bytes("\n".join(["id;body", *lines]).encode("cp1252"))
    done, answered = invoke("b.csv")
    assert isinstance(done.exception, DataError)
    assert answered is None
    done, answered = invoke("b.csv", "--encoding", "cp1252")
    assert "divided by semicolons (guessed" in done.stderr
    assert answered == wanted
    (tmp_path / "c.csv").write_text("\n".join(lines))
    done, answered = invoke("c.csv", "--no-header", "--text", "2", "--delimiter", ";")
    assert [row["score"] for row in answered or []] == [row["score"] for row in wanted]
    assert list((answered or [{}])[0]) == ["1", "2", "prediction", "score"]


def test_cells_that_a_spreadsheet_would_compute(models: dict[str, Path], tmp_path: Path) -> None:
    cells = ["=cmd|' /C calc'!A0", "+1+1", "-2", "-2+3", "@SUM(A1)", "plain", "1e-5", "\uff1d1"]
    file = write_jsonl(tmp_path / "in.jsonl", [{"body": "red", "=x": cell} for cell in cells])
    for out, is_escaped in ((tmp_path / "plain.csv", False), (tmp_path / "safe.csv", True), (tmp_path / "t.tsv", True)):
        ask(models["classify"], file, out, escape_formulas=is_escaped)
        with out.open(newline="") as table:
            names, *found = csv.reader(table, delimiter="\t" if out.suffix == ".tsv" else ",")
        guarded = {"=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\uff1d1"}
        wanted = [f"'{cell}" if is_escaped and cell in guarded else cell for cell in cells]
        assert [row[1] for row in found] == wanted
        assert names[1] == ("'=x" if is_escaped else "=x")
