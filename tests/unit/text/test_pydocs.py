"""The Python documentation as a corpus: parsed, never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from remask.errors import MissingInputError
from remask.text.pydocs import documentation, find_modules, library_of, paragraphs, passages

MODULE = '''
"""A module about boats.

It has a long first paragraph that was wrapped by hand at the margin of the
page, as docstrings are, and goes on here.
"""

raise SystemExit("this must never run")


class Boat:
    """Something that floats."""

    def sail(self, to, *places, speed=1, **more):
        """Sail away.

        >>> boat.sail("home")
        1

        - first item
        - second item
        """

        def inner():
            """Nobody's business."""


async def row(boat):
    """Row the boat."""


def undocumented():
    pass
'''


def test_docstrings_with_their_names_in_source_order() -> None:
    text = documentation(MODULE.encode())
    assert text.split("\n")[0] == "A module about boats."
    assert "wrapped by hand at the margin of the page, as docstrings are, and goes on here." in text
    order = [
        "A module",
        "Boat\nSomething that floats.",
        "Boat.sail(to, *places, speed, **more)\nSail away.",
        "row(boat)\nRow",
    ]
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    assert "Nobody" not in text
    assert "undocumented" not in text


def test_paragraphs_leave_lists_code_and_short_lines_alone() -> None:
    text = "Short line\nanother short line\n\n- item one that is quite long, longer than forty-five characters\n- two\n"
    assert paragraphs(text) == text.rstrip("\n") + "\n"
    code = ">>> a_long_prompt_line_with_more_than_forty_five_characters()\nresult"
    assert paragraphs(code) == code


def modules(folder: Path, texts) -> Path:
    for name in ("alpha/__init__.py", "alpha/one.py", "beta/two.py", "alpha/tests/test_one.py"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('"""' + "\n\n".join(next(texts) for _ in range(3)) + '"""\n')
    (folder / "broken.py").write_text('"""x"""\ndef (:')
    (folder / "bare.py").write_text("x = 1\n")
    return folder


def test_one_document_a_module_and_passages_by_library(tmp_path: Path, texts, build) -> None:
    documents = build(f"pydocs:{modules(tmp_path / 'site', texts)}")
    shard = documents.shards[0]
    assert [shard.place(index) for index in range(len(shard))] == ["alpha", "alpha.one", "beta.two"]
    assert documents.counts["dropped"] == {"no documentation": 1, "not Python": 1}
    found = list(passages(documents))
    assert {(p.module, p.library) for p in found} == {("alpha", "alpha"), ("alpha.one", "alpha"), ("beta.two", "beta")}
    assert all(120 <= len(p.text) <= 400 for p in found)
    assert library_of("json.decoder") == "python"


def test_the_standard_library_is_there(build, monkeypatch) -> None:
    import sysconfig

    paths = sysconfig.get_paths()
    folder = f"{paths['stdlib']}/json"
    documents = build(f"pydocs:{folder}")
    places = [documents.shards[0].place(index) for index in range(len(documents.shards[0]))]
    assert "decoder" in places


def test_a_missing_folder_is_said(build) -> None:
    with pytest.raises(MissingInputError, match="no such folder"):
        build("pydocs:/nowhere/at/all")


def test_a_size_cap_samples_the_modules_before_parsing_them(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"module_{number}.py").write_text(f'"""Documentation of module {number}."""\n' + "x = 1\n" * 100)
    every = find_modules(str(tmp_path))
    few = find_modules(str(tmp_path), max_bytes=1000)
    assert len(every) == 200
    assert 8 * 1000 <= sum(module.size for module in few) < 8 * 1000 + 2 * every[0].size
    assert few == find_modules(str(tmp_path), max_bytes=1000)
    assert {module.place for module in few} < {module.place for module in every}
