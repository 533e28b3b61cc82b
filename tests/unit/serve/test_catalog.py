"""Ids of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from remask.errors import MissingInputError, UsageError
from remask.serve.catalog import entries, split_id


def made(folder: Path, *names: str) -> list[str]:
    paths = [folder / name for name in names]
    for path in paths:
        path.mkdir(parents=True, exist_ok=True)
    return [str(path) for path in paths]


def test_ids_are_names_of_folders(tmp_path: Path) -> None:
    words = made(tmp_path, "runs/mine", "runs/mine/model", "other/mine/checkpoints/step-000000400", "a b,c", "hf")
    assert [entry.id for entry in entries(words)] == ["mine", "mine-2", "mine-3", "a-b-c", tmp_path.name]


def test_ids_may_be_given(tmp_path: Path) -> None:
    (path,) = made(tmp_path, "x=y")
    assert [entry.id for entry in entries([path, f"small={path}"])] == ["x-y", "small"]
    with pytest.raises(UsageError, match="given twice"):
        entries([f"a={path}", f"a={path}"])
    with pytest.raises(UsageError, match="is no id"):
        entries([f"a b={path}"])
    with pytest.raises(MissingInputError):
        entries([str(tmp_path / "absent")])
    with pytest.raises(UsageError):
        entries([])


def test_steps_are_finished_checkpoints(tmp_path: Path) -> None:
    for name in ("step-000000010", "step-000000200", "step-000000300", "step-x"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        if "300" not in name:
            (tmp_path / "checkpoints" / name / "manifest.json").touch()
    (entry,) = entries([str(tmp_path)])
    assert list(entry.steps()) == [10, 200]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("mine", ("mine", None)),
        ("mine@400", ("mine", 400)),
        ("mine@0", ("mine", 0)),
        ("mine@0400", None),
        ("mine@060", None),
        ("mine@", None),
        ("mine@-1", None),
        ("mine@١", None),
        ("../mine", None),
        (".mine", None),
        ("mine\n", None),
        ("", None),
    ],
)
def test_what_can_be_an_id(text: str, found: tuple[str, int | None] | None) -> None:
    assert split_id(text) == found
