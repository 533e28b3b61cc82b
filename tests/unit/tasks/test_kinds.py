"""What a task's files become: which rows are skipped and reported, weights of classes, and files of another task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remask.errors import ConfigError, DataError, MissingInputError
from remask.model.settings import HeadSettings
from remask.tasks.kind import Problem, TaskLoss, TaskSource
from remask.tasks.kinds import KINDS, StoredTask, open_problem
from remask.tasks.settings import LossSettings, RowSettings, TableSettings


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def squad(path: Path, *questions: tuple[str, str, int]) -> Path:
    """(article, answer, place) each about the same passage."""
    data = [
        {
            "title": title,
            "paragraphs": [
                {
                    "context": "red green blue",
                    "qas": [
                        {"id": f"{path.stem}{n}", "question": "?", "answers": [{"text": text, "answer_start": at}]}
                    ],
                }
            ],
        }
        for n, (title, text, at) in enumerate(questions)
    ]
    return write(path, json.dumps({"version": "1.1", "data": data}))


def opened(task: str, train: Path, dev: Path | None, **table: Any) -> Problem:
    return open_problem(TaskSource(task, TableSettings.model_validate(table), train, dev))


def planned(problem: Problem, **loss: Any) -> TaskLoss:
    heads = HeadSettings.model_validate(problem.kind.head(problem))
    return problem.kind.plan_loss(problem, LossSettings(**loss), heads)


def test_articles_that_corpora_hold_are_not_scored(tmp_path: Path) -> None:
    train = squad(tmp_path / "t.json", ("Oxygen", "red", 0), ("Normans", "green", 4))
    dev = squad(tmp_path / "d.json", ("Oxygen", "red", 0), ("Oxygen", "green", 4), ("Rhine", "red", 0))
    problem = opened("squad1", train, dev)
    assert [q.article for q in problem.train] == ["Oxygen", "Normans"]
    assert [q.article for q in problem.dev] == ["Rhine"]
    assert problem.facts["skipped_articles"] == {"Oxygen": 2}
    assert any("Oxygen (2 questions)" in note for note in problem.notes)
    assert len(opened("squad1", train, dev, skip_articles=()).dev) == 3
    assert [q.article for q in opened("squad1", train, dev, skip_articles=("Rhine",)).dev] == ["Oxygen", "Oxygen"]


def test_answers_that_are_not_in_their_place(tmp_path: Path) -> None:
    good = squad(tmp_path / "d.json", ("B", "red", 0))
    some = squad(tmp_path / "t.json", ("A", "red", 0), ("A", "red", 3))
    problem = opened("squad1", some, good)
    assert problem.facts["dropped"] == {"answer not in its place": 1}
    assert any("1 question not trained on" in n and "article 'A', paragraph 1" in n for n in problem.notes)
    with pytest.raises(DataError, match=r"n\.json: article 'A', .*question n0: the answer does not stand where"):
        opened("squad1", squad(tmp_path / "n.json", ("A", "yellow", 0)), good)


# -------------------------------------------------------------------------------------------- without a dev file


def test_choices_without_a_dev_file_are_cut_by_passage(tmp_path: Path) -> None:
    lines = [
        {"article": f"passage {n}", "questions": ["a", "b"], "options": [["x", "y"]] * 2, "answers": ["A", "B"]}
        for n in range(10)
    ]
    path = write(tmp_path / "t.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    for task in ("choice", "race"):
        problem = opened(task, path, None)
        assert (len(problem.train), len(problem.dev)) == (16, 4)
        assert not {q.article for q in problem.train} & {q.article for q in problem.dev}
        assert problem.notes == ("no dev file: a fifth of t.jsonl was set aside, by passage",)
    # Without passages a question and its copies are one.
    asked = [{"question": f"q{n // 2}", "options": ["x", "y"], "answer": 0} for n in range(20)]
    problem = opened("choice", write(tmp_path / "q.jsonl", "".join(json.dumps(q) + "\n" for q in asked)), None)
    assert (len(problem.train), len(problem.dev)) == (16, 4)
    assert not {q.question for q in problem.train} & {q.question for q in problem.dev}
    one = write(tmp_path / "one.jsonl", json.dumps(lines[0]) + "\n")
    with pytest.raises(DataError, match=r"one.jsonl: one passage or sentence cannot be cut in two; give a dev file"):
        opened("choice", one, None)


def test_sentences_without_a_dev_file(tmp_path: Path) -> None:
    many = [f"word{n} B-X\nother O\n\n" * 2 for n in range(20)]
    problem = opened("ner", write(tmp_path / "t.txt", "".join(many)), None)
    assert (len(problem.train), len(problem.dev)) == (32, 8)
    assert not {s.words for s in problem.train} & {s.words for s in problem.dev}
    assert problem.notes == ("no dev file: a fifth of t.txt was set aside, by sentence",)
    rare = problem.dev[0].words[0]
    path = write(tmp_path / "rare.txt", "".join(many).replace(f"{rare} B-X", f"{rare} B-RARE"))
    with pytest.raises(DataError, match=r"types that only the rows set aside have, .*give one: 'RARE'"):
        opened("ner", path, None)


@pytest.mark.parametrize("titles, how", [(10, "by article"), (1, "by passage")])
def test_passages_with_questions_without_a_dev_file(tmp_path: Path, titles: int, how: str) -> None:
    data: dict[str, Any] = {f"t{n}": {"title": f"t{n}", "paragraphs": []} for n in range(titles)}
    for n in range(20):
        qas = [{"id": f"{n}-{i}", "question": "?", "answers": [{"text": "red", "answer_start": 0}]} for i in range(2)]
        data[f"t{n % titles}"]["paragraphs"].append({"context": f"red number {n}", "qas": qas})
    path = write(tmp_path / "t.json", json.dumps({"data": list(data.values())}))
    problem = opened("qa", path, None)
    assert (len(problem.train), len(problem.dev)) == (32, 8)
    assert not {q.context for q in problem.train} & {q.context for q in problem.dev}
    assert bool({q.article for q in problem.train} & {q.article for q in problem.dev}) == (titles == 1)
    assert problem.notes == (f"no dev file: a fifth of t.json was set aside, {how}",)


def test_named_tasks_without_a_dev_file(tmp_path: Path) -> None:
    rows = [f"{n}\tred {n}\tblue\t{('entailment', 'not_entailment')[n % 2]}\n" for n in range(40)]
    path = write(tmp_path / "t.tsv", "".join(["index\tsentence1\tsentence2\tlabel\n", *rows]))
    problem = opened("glue:rte", path, None)
    assert len(problem.train) + len(problem.dev) == 40
    assert 0 < len(problem.dev) < 20
    assert problem.notes == ("no dev file: a fifth of t.tsv was set aside, by hash",)
    with pytest.raises(ConfigError, match="task wsc needs both of its files"):
        opened("wsc", path, None)


def test_rare_classes_weigh_more(tmp_path: Path) -> None:
    rows = "text,label\n" + "".join(f"t{i},{'a' if i % 4 else 'b'}\n" for i in range(40))
    path = write(tmp_path / "t.csv", rows)
    problem = opened("classify", path, path)
    assert problem.facts["classes"] == {"a": 30, "b": 10}
    fewer = open_problem(TaskSource("classify", TableSettings(), path, path), max_train=12, max_dev=8)
    assert sum(fewer.facts["classes"].values()) == 12  # of what is trained on and scored
    assert fewer.facts["baseline"]["accuracy"] == sum(e.label == "a" for e in fewer.dev) / 8
    assert planned(problem) == TaskLoss()
    weights = planned(problem, class_weights="balanced").class_weights
    assert weights is not None
    assert weights == pytest.approx([40 / (2 * 30), 40 / (2 * 10)])
    # Over the training data the mean is one: the learning rate means the same as without.
    assert (30 * weights[0] + 10 * weights[1]) / 40 == pytest.approx(1.0)
    numbers = write(tmp_path / "n.csv", "text,label\na,1\nb,2\nc,3\n")
    with pytest.raises(ConfigError, match=r"loss\.class_weights = balanced: is for classes, not for regress"):
        planned(opened("regress", numbers, numbers), class_weights="balanced")
    with pytest.raises(ConfigError, match=r"loss\.choice = margin: is for tasks with several choices"):
        planned(problem, choice="margin")


def test_texts_with_two_labels_and_ids_that_are_there_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "id,text,label\n1,a,x\n2,a,y\n3,b,x\n3,c,y\n")
    problem = opened("classify", path, path)
    assert "1 training text with different labels at different places" in problem.notes
    with pytest.raises(DataError, match=r"t\.csv:5: the id '3' is also at .*t\.csv:4"):
        opened("classify", path, path, id="id")
    line = {"id": "p1", "article": "abc", "question": "?", "options": ["a", "b"], "answer": 0}
    choices = write(tmp_path / "c.jsonl", f"{json.dumps(line)}\n" * 2)
    with pytest.raises(DataError, match=r"c\.jsonl:2: the id 'p1' is also at .*c\.jsonl:1"):
        opened("choice", choices, choices)


def asked(path: Path, *questions: str) -> Path:
    lines = [{"article": "", "question": q, "options": ["x", "y"], "answer": 0} for q in questions]
    return write(path, "".join(json.dumps(line) + "\n" for line in lines))


def test_what_stands_in_both_files_is_said_for_every_kind(tmp_path: Path) -> None:
    def noted(task: str, train: Path, dev: Path) -> list[str]:
        return [note for note in opened(task, train, dev).notes if "also in the training data" in note]

    files = {
        "classify": ["text,label\na,x\nb,y\n", "text,label\na,y\nc,x\n"],
        "regress": ["text,label\na,1\nb,2\n", "text,label\na,5\nc,2\n"],
        "multilabel": ["text,label\na,x|y\nb,y\n", "text,label\na,y\nc,x\n"],
        "ner": ["EU B-ORG\nsays O\n\nRome B-LOC\n", "EU O\nsays O\n\nParis B-LOC\n"],
    }
    for task, texts in files.items():
        train, dev = (
            write(tmp_path / f"{task}{i}.{'txt' if task == 'ner' else 'csv'}", t) for i, t in enumerate(texts)
        )
        assert noted(task, train, dev) == ["1 of 2 dev texts are also in the training data"], task
    train, dev = squad(tmp_path / "t.json", ("A", "red", 0)), squad(tmp_path / "d.json", ("B", "green", 4))
    assert noted("qa", train, dev) == ["1 of 1 dev texts are also in the training data"]
    train, dev = asked(tmp_path / "t.jsonl", "who?", "what?"), asked(tmp_path / "d.jsonl", "who?", "where?", "why?")
    assert noted("choice", train, dev) == ["1 of 3 dev texts are also in the training data"]
    apart = write(tmp_path / "apart.txt", "Bonn B-LOC\n")
    assert noted("ner", tmp_path / "ner0.txt", apart) == []


def test_tags_scored_on_their_training_file_are_said(tmp_path: Path) -> None:
    path = write(tmp_path / "t.txt", "EU B-ORG\nsays O\n\nRome B-LOC\n")
    assert opened("ner", path, path).notes == ("2 of 2 dev texts are also in the training data",)


def test_a_constant_number_has_nothing_to_learn(tmp_path: Path) -> None:
    path = write(tmp_path / "n.csv", "text,label\na,3\nb,3\nc,3\n")
    assert "all 3 training rows have the number 3: there is nothing to learn from them" in (
        opened("regress", path, write(tmp_path / "d.csv", "text,label\nd,1\n")).notes
    )


@pytest.mark.parametrize(
    "task, name, train, dev, expected",
    [
        ("classify", "f.csv", "text,label\na,x\nb,x\nc,y\n", "text,label\nd,x\ne,y\n", {"accuracy": 0.5}),
        ("ner", "f.txt", "EU B-ORG\n", "a B-ORG\n", {"f1": 0.0}),
        ("qa", "f.json", None, None, {"exact": 0.0, "f1": 0.5}),  # of the passage's three words one is the answer
    ],
)
def test_the_baseline_stands_beside_the_counts(
    tmp_path: Path, task: str, name: str, train: str | None, dev: str | None, expected: dict[str, float]
) -> None:
    if train is None or dev is None:
        files = squad(tmp_path / "t.json", ("A", "red", 0)), squad(tmp_path / "d.json", ("B", "green", 4))
    else:
        files = write(tmp_path / f"t{name}", train), write(tmp_path / f"d{name}", dev)
    baseline = opened(task, *files).facts["baseline"]
    assert {key: baseline[key] for key in expected} == pytest.approx(expected)


def test_a_stored_task_comes_back_and_reads_a_labelled_file(tmp_path: Path) -> None:
    rows = RowSettings(max_length=64, long_texts="windows", overlap=4)
    stored = StoredTask("classify", KINDS["classify"], ("x", "y"), "macro_f1", TableSettings(text="body"), rows)
    (tmp_path / "task.json").write_bytes(stored.to_json())
    assert StoredTask.read(tmp_path) == stored
    path = write(tmp_path / "new.csv", "body,label\na,x\nb,y\nc,x\n")
    problem = stored.labelled(path, stored.table, named=True)
    assert (problem.train, len(problem.dev), problem.metric) == ((), 3, "macro_f1")
    assert problem.facts["test"] == 3
    assert problem.facts["baseline"]["accuracy"] == pytest.approx(2 / 3)
    with pytest.raises(DataError, match=r"labels that the model does not have \(it has x, y\): 'z'"):
        stored.labelled(write(tmp_path / "z.csv", "body,label\na,z\n"), stored.table, named=True)
    with pytest.raises(MissingInputError):
        stored.labelled(tmp_path / "none.csv", stored.table, named=True)
    write(tmp_path / "bad" / "task.json", '{"kind": "dance"}')
    with pytest.raises(DataError, match=r"task\.json: damaged"):
        StoredTask.read(tmp_path / "bad")


TABLE = "text,label\na,x\nb,y\n"
COLA = "gj04\t1\t\tThe sailors rode.\ngj04\t0\t\tThe rode.\n"
PASSAGE = '{"article": "a", "question": "b", "options": ["c", "d"], "answer": 0}\n'
SQUAD = '{"version": "1.1", "data": []}'
CONLL = "EU B-ORG\nsays O\n"
PAIR = "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n"


@pytest.mark.parametrize(
    "task, name, text, message",
    [
        ("glue:sst2", "f.tsv", COLA, "not a file of glue:sst2: its columns are gj04"),
        ("glue:rte", "f.tsv", PAIR, r"labels glue:rte does not have: '1' \(.*f\.tsv:2\)"),
        ("glue:stsb", "f.tsv", PAIR, "not a file of glue:stsb"),
        ("ner", "f.csv", TABLE, r"f\.csv:1: a word without a tag"),
        ("ner", "f.json", SQUAD, r"f\.json: row 1: no column 'text'; there are version, data"),
        ("squad1", "f.jsonl", PASSAGE * 2, r"f\.jsonl:1: no column 'context'"),
        ("squad1", "f.txt", CONLL, "not a SQuAD file"),
        ("race", "f.json", SQUAD, r"f\.json: row 1: not a file of questions with choices"),
        ("race", "f.jsonl", '{"sentence_good": "a"}\n', r"f\.jsonl:1: not a file of questions with choices"),
        ("wsc", "f.jsonl", PASSAGE, r"f\.jsonl:1: a WSC line has"),
        ("classify", "f.json", SQUAD, r"f\.json: row 1: no column 'text'"),
        ("classify", "f.xlsx", SQUAD, "a table is one of"),
    ],
)
def test_a_file_of_another_task(tmp_path: Path, task: str, name: str, text: str, message: str) -> None:
    path = write(tmp_path / name, text)
    with pytest.raises((DataError, ConfigError), match=message):
        opened(task, path, path)
