"""What a task's files become: what is left out and said, weights of classes, and files of another task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remask.errors import ConfigError, DataError
from remask.tasks import problems
from remask.tasks.settings import LossSettings, TableSettings


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


def opened(task: str, train: Path, dev: Path | None, **table: Any) -> problems.Problem:
    return problems.open_problem(task, TableSettings.model_validate(table), train=train, dev=dev, folder=None)


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
    fewer = problems.open_problem(
        "classify", TableSettings(), train=path, dev=path, folder=None, max_train=12, max_dev=8
    )
    assert sum(fewer.facts["classes"].values()) == 12  # of what is trained on and scored
    assert fewer.facts["majority_accuracy"] == sum(e.label == "a" for e in fewer.dev) / 8
    assert problems.class_weights(problem, LossSettings()) is None
    weights = problems.class_weights(problem, LossSettings(class_weights="balanced"))
    assert weights == pytest.approx([40 / (2 * 30), 40 / (2 * 10)])
    # Over the training data the mean is one: the learning rate means the same as without.
    assert (30 * weights[0] + 10 * weights[1]) / 40 == pytest.approx(1.0)
    numbers = write(tmp_path / "n.csv", "text,label\na,1\nb,2\nc,3\n")
    with pytest.raises(ConfigError, match=r"loss\.class_weights = balanced: is for classes, not for regress"):
        problems.class_weights(opened("regress", numbers, numbers), LossSettings(class_weights="balanced"))
    with pytest.raises(ConfigError, match=r"loss\.choice = margin: is for tasks with several choices"):
        problems.ranks_by_margin(problem, LossSettings(choice="margin"))


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
        ("ner", "f.json", SQUAD, r"f\.json:1: '\[\]}' is no tag"),
        ("squad1", "f.jsonl", PASSAGE * 2, "not a SQuAD file"),
        ("squad1", "f.txt", CONLL, "not a SQuAD file"),
        ("race", "f.json", SQUAD, "questions with choices are JSONL"),
        ("race", "f.jsonl", '{"sentence_good": "a"}\n', r"f\.jsonl:1: not a file of questions with choices"),
        ("wsc", "f.jsonl", PASSAGE, r"f\.jsonl:1: a WSC line has"),
        ("classify", "f.json", SQUAD, "a table is one of"),
    ],
)
def test_a_file_of_another_task(tmp_path: Path, task: str, name: str, text: str, message: str) -> None:
    path = write(tmp_path / name, text)
    with pytest.raises(DataError, match=message):
        opened(task, path, path)
