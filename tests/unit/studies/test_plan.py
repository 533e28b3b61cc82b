"""Rows become runs: what is multiplied, what a fingerprint holds, which mistakes show before anything is run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from remask.config import build_values
from remask.errors import ConfigError
from remask.studies.plan import PLAIN, cell_fingerprint, make_plan, numbered
from remask.studies.settings import StudyRun


def a_study(**changes: Any) -> StudyRun:
    rows = {"one": {}, "two": {"settings": {"data": {"masking": {"rate": 0.3}}}}}
    values = {"name": "mine", "scale": "smoke", "evaluations": ["heldout"], "rows": rows, "seeds": 2} | changes
    return build_values(StudyRun, values, place="mine.yaml")


def test_a_row_is_a_difference_from_what_all_share() -> None:
    plan = make_plan(a_study(settings={"train": {"beta2": 0.9}}))
    one, two = plan.cell("one", 0).run, plan.cell("two", 1).run
    assert (one.data.masking.rate, two.data.masking.rate) == (0.15, 0.3)
    assert (one.train.beta2, two.train.beta2, one.seed, two.seed) == (0.9, 0.9, 0, 1)


def test_times_multiplies_what_the_scale_says() -> None:
    times = {
        "train.steps": 0.5, "train.learning_rate": 3.0, "model.embedding_size": 0.5, "data.short_length": 0.25,
        "data.max_tokens": 0.1,
    }  # fmt: skip
    rows = {"one": {}, "two": {"times": times, "settings": {"data": {"short_steps": 0.9}}}}
    run = make_plan(a_study(rows=rows)).cell("two", 0).run
    assert (run.train.steps, run.train.learning_rate) == (20, pytest.approx(0.015))
    assert (run.model.embedding_size, run.data.short_length) == (16, 8)
    assert run.data.max_tokens == 1024  # a tenth of 40 steps of 256 tokens


def test_a_fingerprint_is_of_contents_not_of_names_and_places(tiny_prepared: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(tiny_prepared, moved)
    marks = set()
    for name, label, folder in (("a", "one", tiny_prepared), ("b", "three", moved)):
        rows = {label: {}, "two": {"settings": {"data": {"masking": {"rate": 0.3}}}}}
        plan = make_plan(a_study(name=name, rows=rows))
        marks.add(cell_fingerprint(plan, plan.cell(label, 0), {PLAIN: folder}))
    assert len(marks) == 1
    plan = make_plan(a_study())
    others = {cell_fingerprint(plan, cell, {PLAIN: tiny_prepared}) for cell in plan.cells}
    assert len(others) == 4
    assert marks <= others


def test_a_model_without_a_sentence_loss_is_one_cell_whether_sentences_are_asked_about_or_not(
    tiny_prepared: Path,
) -> None:
    rows = {"plain": {}, "pairs": {"settings": {"data": {"format": "segment-pair", "sentence_loss": "nsp"}}}}
    marks = []
    for evaluations in (["heldout"], ["heldout", "sentence"]):
        plan = make_plan(a_study(rows=rows, evaluations=evaluations, seeds=1))
        marks.append([cell_fingerprint(plan, cell, {PLAIN: tiny_prepared}) for cell in plan.cells])
    assert marks[0][0] == marks[1][0]
    assert marks[0][1] != marks[1][1]


def test_a_row_that_takes_a_model_comes_after_it_and_has_its_run() -> None:
    rows = {
        "later": {"model_of": "first", "tune": {"train": {"epochs": 1.0}}},
        "further": {"start_from": "first", "times": {"train.steps": 0.25}},
        "first": {},
    }
    plan = make_plan(a_study(rows=rows, reference="first"))
    assert [cell.label for cell in plan.cells[:2]] == ["first", "first"]
    assert plan.cell("later", 1).run == plan.cell("first", 1).run
    assert plan.cell("further", 0).run.train.steps == 10
    # What goes on does not read again what was read, under the masks it was read with.
    assert {plan.cell("further", seed).run.seed for seed in (0, 1)}.isdisjoint({0, 1})


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"rows": {"one": {}, "two": {"settings": {"data": {"masking": {"rat": 0.3}}}}}}, "did you mean rate"),
        ({"rows": {"one": {}, "two": {"times": {"model.norm": 2.0}}}}, "no number that could be multiplied"),
        ({"rows": {"one": {}, "two": {"settings": {"seed": 3}}}}, "is the study's to say"),
        ({"rows": {"one": {}, "two": {"start_from": "three"}}}, "there is no row 'three'"),
        ({"rows": {"one": {}, "two": {"model_of": "one", "times": {"train.steps": 2.0}}}}, "only tune may differ"),
        ({"expect": {"three": "better"}}, "there is no row 'three'"),
        ({"evaluations": ["heldout", "blip"]}, "'blip' is not one of"),
        ({"decide": {"metric": "blimp"}}, "'blimp' is not one of bits_per_byte"),
        ({"rows": {"one": {}}}, "at least 2"),
        ({"tune": {"learn": "nothing"}, "evaluations": ["heldout", "glue:sst2"]}, "learn"),
    ],
)
def test_mistakes_show_before_anything_is_run(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_plan(a_study(**changes))


def test_rows_go_by_number_or_label() -> None:
    study = a_study()
    assert [numbered(study, word) for word in ("1", "two")] == ["one", "two"]
    with pytest.raises(ConfigError, match="number from 1 to 2: one, two"):
        numbered(study, "3")


def test_the_api_takes_a_name_a_file_or_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import remask
    from remask.studies import runner

    done: list[StudyRun] = []
    monkeypatch.setattr(runner, "study", lambda run, out, progress: done.append(run) or {})
    (tmp_path / "own.yaml").write_text("rows: {one: {}, two: {settings: {seed: 1}}}\n")
    remask.study("table1", data="prepared", tasks="tasks", scale="smoke", seeds=5, out=tmp_path)
    remask.study(tmp_path / "own.yaml", out=tmp_path)
    remask.study(a_study(), out=tmp_path)
    assert [run.name for run in done] == ["table1", "own", "mine"]
    assert (done[0].prepared, done[0].scale, done[0].seeds) == ("prepared", "smoke", 5)
    with pytest.raises(ConfigError, match="table1"):
        remask.study("table9", out=tmp_path)
