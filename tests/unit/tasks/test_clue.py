"""FewCLUE's tasks from small files in its layout, CMRC 2018's measure, and characters as words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remask.errors import DataError
from remask.tasks import characters
from remask.tasks.kind import Problem, TaskSource
from remask.tasks.kinds import kind_of, open_problem
from remask.tasks.race import parts_of
from remask.tasks.settings import TableSettings
from remask.tasks.tags import in_words, joined

WSC = {
    "target": {"span1_index": 0, "span1_text": "小明", "span2_index": 7, "span2_text": "他"},
    "idx": 1, "label": "true", "text": "小明跌倒了，但他没有哭。",
}  # fmt: skip
LINES: dict[str, list[dict[str, Any]]] = {
    "eprstmt": [{"id": i, "sentence": "物流很快", "label": ("Negative", "Positive")[i % 2]} for i in range(4)],
    "tnews": [{"label": 100, "label_desc": "news_story", "sentence": "故事", "keywords": "", "id": 1}],
    "ocnli": [
        {"level": "easy", "sentence1": "下雨了", "sentence2": "天晴", "label": label, "genre": "g", "id": i}
        for i, label in enumerate(("contradiction", "-", "neutral"))
    ],
    "bustm": [{"id": 1, "sentence1": "你好吗", "sentence2": "你怎么样", "label": "1"}],
    "csl": [{"id": 1, "abst": "本文研究了。", "keyword": ["语言", "模型"], "label": "0"}],
    "cluewsc": [WSC],
    "chid": [
        {"id": 1, "candidates": ["一心一意", "三心二意", "四面八方"], "content": "他_#idiom#地学习。", "answer": 0}
    ],
}


def opened(name: str, folder: Path, lines: list[dict[str, Any]] | None = None) -> Problem:
    home = folder / name
    home.mkdir(exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines or LINES[name])
    for part in ("train_few_all", "dev_few_all"):
        (home / f"{part}.json").write_text(text, encoding="utf-8")
    return open_problem(TaskSource(f"clue:{name}", TableSettings(), folder=folder))


@pytest.mark.parametrize("name", list(LINES))
def test_every_task_is_read_from_its_own_layout(name: str, tmp_path: Path) -> None:
    problem = opened(name, tmp_path)
    assert problem.metric == "accuracy"
    assert len(problem.dev) == len(LINES[name]) - (name == "ocnli")
    (tmp_path / name / "test_public.json").write_text((tmp_path / name / "dev_few_all.json").read_text() * 2)
    again = open_problem(TaskSource(f"clue:{name}", TableSettings(), folder=tmp_path))
    assert len(again.dev) == 2 * len(problem.dev)


def test_what_a_line_becomes(tmp_path: Path) -> None:
    assert opened("cluewsc", tmp_path).train[0].texts == ("_小明_跌倒了，但[他]没有哭。",)
    assert opened("csl", tmp_path).train[0].texts == ("语言，模型", "本文研究了。")
    assert opened("bustm", tmp_path).train[0].label == "1"
    chid = opened("chid", tmp_path).train[0]
    assert parts_of(chid, chid.options[0]) == ("他＿一心一意地学习。",)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("cluewsc", {"target": {**WSC["target"], "span2_index": 8}}, "'他' does not stand at character 8"),
        ("csl", {"keyword": "语言"}, "`keyword` must be a list"),
        ("chid", {"answer": 3}, "none of the 3 candidates"),
        ("chid", {"content": "没有"}, "one #idiom#"),
        ("tnews", {"label_desc": "news_absent"}, "news_absent"),
    ],
)
def test_damaged_lines_are_refused_with_their_place(
    name: str, change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as error:
        opened(name, tmp_path, [LINES[name][0] | change])
    assert said in str(error.value)
    assert "train_few_all.json" in str(error.value)


def test_fewclue_and_cmrc_as_published(shared_data: Path) -> None:
    for name, train, dev in (("eprstmt", 160, 160), ("tnews", 1185, 1185)):
        problem = open_problem(TaskSource(f"clue:{name}", TableSettings(), folder=shared_data / "apps" / "fewclue"))
        assert abs(len(problem.train) - train) < 100
        assert abs(len(problem.dev) - dev) < 200
    cmrc = open_problem(TaskSource("cmrc2018", TableSettings(), folder=shared_data / "apps"))
    assert len(cmrc.train) + len(cmrc.dev) > 900
    for question in cmrc.train[:50]:
        text, start = question.answers[0]
        assert question.context[start : start + len(text)] == text
    assert 0 < cmrc.facts["baseline"]["f1"] < 0.5


# ------------------------------------------------------------------------------------------------- characters


def test_pieces_are_characters_and_whole_other_words() -> None:
    assert characters.pieces("《跑跑卡丁车》2004年, by Nexon!") == [*"跑跑卡丁车", "2004", "年", "by", "nexon"]


@pytest.mark.parametrize(
    ("said", "gold", "exact", "f1"),
    [
        ("北京。", "北京", 1.0, 1.0),
        ("在北京", "北京", 0.0, 0.8),
        ("北方的京", "北京", 0.0, 2 * 0.25 * 0.5 / 0.75),  # one stretch only: not both characters
        ("上海", "北京", 0.0, 0.0),
        ("Windows 95", "windows95", 1.0, 0.0),
        ("", "北京", 0.0, 0.0),
    ],
)
def test_answers_are_compared_by_characters(said: str, gold: str, exact: float, f1: float) -> None:
    assert characters.exact(said, gold) == exact
    assert characters.f1(said, gold) == pytest.approx(f1)


def test_the_best_gold_answer_counts() -> None:
    kind = kind_of("cmrc2018")
    assert kind.name == "character_spans"
    assert kind.measures["f1"] is characters.f1


def test_letters_of_scripts_without_spaces_are_words_and_join_without_them() -> None:
    sentence = in_words("王小明在IBM工作 since 1999年。", "here")
    assert sentence.words == (*"王小明在", "IBM", *"工作", "since", "1999", "年", "。")
    assert all(sentence.text[a:b] == word for (a, b), word in zip(sentence.spans, sentence.words, strict=True))
    assert joined(["王", "小", "明"]) == "王小明"
    assert joined(["Mary", "Shelley"]) == "Mary Shelley"
    assert joined(["在", "IBM", "工", "作"]) == "在IBM工作"
