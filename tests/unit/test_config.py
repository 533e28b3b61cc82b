"""The strict config: precedence, places in errors, YAML that PyYAML alone reads wrongly, hostile files."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Literal

import pytest

from remask.config import Config, Switch, build_run, differences, dump, fingerprint, setting, switch, switches, to_yaml
from remask.errors import ConfigError, MissingInputError, RemaskError


class Part(Config):
    rate: float = switch(1e-3, "how fast", effect="math", samples=[1e-4])
    kind: Literal["fast", "slow"] = switch("fast", "which way", effect="speed")
    on: bool = switch(False, "whether", effect="data")


class Item(Config):
    path: Path
    weight: float = setting(1.0, "share")


class Run(Config):
    name: str
    seed: int = setting(0, "the seed", ge=0)
    part: Part = Part()
    items: tuple[Item, ...] = ()


def write(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_precedence_default_base_file_set(tmp_path: Path) -> None:
    write(tmp_path, "part: {rate: 0.1, kind: slow}\nseed: 1\n", "base.yaml")
    file = write(tmp_path, "base: base.yaml\nname: x\nseed: 2\npart: {rate: 1e-2}\n")
    built = build_run(Run, file, ["part.on=true", "seed=3"], {"seed": 4})
    assert dump(built.run) == {
        "name": "x",
        "seed": 4,
        "part": {"rate": 0.01, "kind": "slow", "on": True},
        "items": [],
    }
    assert built.differences == [("seed", 1, 4), ("part.rate", 0.1, 0.01), ("part.on", False, True)]
    assert build_run(Run, write(tmp_path, to_yaml(built.run), "again.yaml")).run == built.run


def test_a_list_of_parts_differs_by_what_was_given(tmp_path: Path) -> None:
    built = build_run(Run, write(tmp_path, "name: x\nitems: [{path: a}, {path: b, weight: 2.0}]\n"))
    assert built.differences == [("items", [], [{"path": "a"}, {"path": "b", "weight": 2.0}])]


def test_scalars_are_read_as_people_mean_them(tmp_path: Path) -> None:
    file = write(tmp_path, "name: no\npart: {rate: 1e-3}\nitems: [{path: 2016-09-01, weight: 2}]\n")
    run = build_run(Run, file).run
    assert (run.name, run.part.rate, run.items[0].path, run.items[0].weight) == ("no", 0.001, Path("2016-09-01"), 2.0)


@pytest.mark.parametrize(
    "text, message",
    [
        ("name: x\nsead: 1", "run.yaml:2: unknown key sead; did you mean seed?"),
        ("name: x\npart:\n  rat: 1", "run.yaml:3: unknown key part.rat; did you mean rate?"),
        ("name: x\nitems:\n- path: a\n  wait: 1", "run.yaml:4: unknown key items.0.wait; did you mean weight?"),
        ("name: x\nrate: 1", "run.yaml:2: unknown key rate; did you mean part.rate?"),
        ("name: x\npart: {kind: medium}", "run.yaml:2: part.kind = \"medium\": must be one of 'fast' or 'slow'"),
        ("name: x\nseed: true", "run.yaml:2: seed = true: should be a valid integer"),
        ("name: x\nseed: 1.5", "run.yaml:2: seed = 1.5"),
        ("name: x\nseed: -1", "run.yaml:2: seed = -1: should be greater than or equal to 0"),
        ("name: x\npart: {rate: fast}", 'run.yaml:2: part.rate = "fast": should be a valid number'),
        ("seed: 1", "name is needed"),
        ("name: x\nname: y", "run.yaml:2: name is given twice"),
        ("- a\n- b", "a run file is a mapping"),
        ("name: [", "not valid YAML"),
        ("name: &a x\nbase: *a", "anchors and aliases"),
        ("name: !!python/object/apply:os.system ['true']", "tags such as"),
        ("name: x\nbase: [a]", "base must be one name"),
        ("name: x\nbase: no_such_base", "'no_such_base' is not one of"),
        ("? [a]\n: b", "a key must be a word"),
        ("name: x\nseed: " + "9" * 5000, "cannot be read"),
        ("name: x\npart: {rate: .inf}", "part.rate"),
        ("name: x\npart: {rate: 1e999}", "run.yaml:2: part.rate = Infinity: should be a finite number"),
        ("name: x\nbase: ../bases/roberta_base", "is not one of albert_base"),
        ("a: " + "[" * 100 + "]" * 100, "nested too deeply"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_run(Run, write(tmp_path, text))
    assert message in str(caught.value)
    assert caught.value.exit_code == 78


def test_mistakes_in_set_words_name_the_word(tmp_path: Path) -> None:
    for word, message in [
        ("part.rat=1", "--set part.rat=1: unknown key part.rat"),
        ("part.rate=x", "--set part.rate=x: part.rate"),
        ("seed", "write it as KEY=VALUE"),
        ("seed=[", "not valid YAML"),
    ]:
        with pytest.raises(ConfigError) as caught:
            build_run(Run, write(tmp_path, "name: x"), [word])
        assert message in str(caught.value)


def test_missing_file_and_base_of_base(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError):
        build_run(Run, tmp_path / "none.yaml")
    write(tmp_path, "base: other.yaml", "base.yaml")
    with pytest.raises(ConfigError, match=r"base\.yaml:1: a base has no base"):
        build_run(Run, write(tmp_path, "name: x\nbase: base.yaml"))


def test_frozen_and_fingerprint() -> None:
    run = build_run(Run, options={"name": "x"}).run
    with pytest.raises(ValueError, match="frozen"):
        run.seed = 3  # type: ignore[misc]
    assert fingerprint(run) == fingerprint(dump(run))
    assert fingerprint(run) != fingerprint(build_run(Run, options={"name": "y"}).run)


def test_differences_walk_to_the_leaves() -> None:
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4}) == [("a.c", 2, 3), ("d", None, 4)]


def test_switches_list_values_and_samples() -> None:
    assert list(switches(Run)) == [
        Switch("part.rate", [1e-4], 1e-3, "how fast", "math"),
        Switch("part.kind", ["fast", "slow"], "fast", "which way", "speed"),
        Switch("part.on", [False, True], False, "whether", "data"),
    ]


def test_500_mutants_of_a_run_file_never_crash(tmp_path: Path) -> None:
    """Random edits give a run or one of our errors, each well within a second."""
    good = "base: base.yaml\nname: x\nseed: 2\npart:\n  rate: 1e-2\n  kind: slow\nitems:\n- {path: a, weight: 2}\n"
    write(tmp_path, "seed: 1\n", "base.yaml")
    pieces = [
        "\x00",
        "\ufeff",
        "{",
        "}",
        "[",
        "]",
        "&a",
        "*a",
        "!!x",
        "|",
        ">",
        "%",
        "@",
        "`",
        "\t",
        ": ",
        "- ",
        "'",
        '"',
    ]
    pieces += ["1e999", "0x10", "~", "\n", "#", "---\n", "...\n", "é", "\u2028", "<<: ", "? ", "9" * 4500, "-" * 300]
    draw = random.Random(7)
    refused = 0
    for _ in range(500):
        text = good
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(text) + 1)
            text = text[:at] + draw.choice(pieces) + text[at + draw.choice([0, 0, 1, 5]) :]
        start = time.monotonic()
        try:
            build_run(Run, write(tmp_path, text))
        except RemaskError as error:
            refused += error.exit_code in (66, 78)
        assert time.monotonic() - start < 30  # a hang, not a speed
    assert refused > 300


def test_bombs_are_refused_before_they_grow(tmp_path: Path) -> None:
    laughs = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8)
    )
    for text in (laughs, "a: " + "[" * 100_000, "{" * 5_000, "- " * 100_000, "a: x\n" * 300_000):
        with pytest.raises(ConfigError):
            build_run(Run, write(tmp_path, text))
    (tmp_path / "bytes.yaml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        build_run(Run, tmp_path / "bytes.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        build_run(Run, tmp_path)
