"""GLUE's leaderboard: test files without labels -> the file of answers that the site takes.

In: a task's spec, the folder with its test files and a function that answers examples. Out: TSV files of the official
names (CoLA.tsv, MNLI-m.tsv, AX.tsv, …) with the columns index and prediction, in the order of the test file: class
names as the training files spell them, STS-B's numbers within 0 and 5. Not here: the models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from remask import artifacts
from remask.errors import DataError
from remask.schema import Values
from remask.tables import TableForm, read_cells
from remask.tasks.tables import Example

Answer = Callable[[Sequence[Example]], Sequence[Values]]


def find_tests(spec: Values, folder: Path) -> dict[str, Path]:
    """Official name of the answers -> the test file, for those that are there."""
    files = {}
    for name, places in spec.get("tests", {}).items():
        if path := next((folder / place for place in places if (folder / place).is_file()), None):
            files[name] = path
    return files


def read_test_file(name: str, spec: Values, path: Path) -> tuple[list[str], list[Example]]:
    """(index, example) of every row. The first column is the index, whatever its name."""
    choices = [spec["test_columns"]] if "test_columns" in spec else spec["columns"]
    indices: list[str] = []
    examples: list[Example] = []
    for cells in read_cells(path, TableForm(quoted=False)):
        columns = next((c for c in choices if all(c[k] in cells.values for k in c if k != "label")), None)
        if columns is None:
            raise DataError(f"{cells.place}: not a test file of {name}: its columns are {', '.join(cells.values)}")
        texts = tuple(str(cells.values[columns[key]]) for key in ("text", "text2") if key in columns)
        if not all(text.strip() for text in texts):
            raise DataError(f"{cells.place}: an empty text; every row must be answered")
        indices.append(str(next(iter(cells.values.values()))))
        examples.append(Example(texts, None, cells.place))
    if not examples:
        raise DataError(f"{path}: no rows")
    if len(set(indices)) < len(indices):
        twice = next(index for index in indices if indices.count(index) > 1)
        raise DataError(f"{path}: the index {twice!r} is there twice")
    return indices, examples


def write_answers(name: str, spec: Values, test: Path, out: Path, answer: Answer) -> int:
    """Answer a test file into `out`; gives the number of rows."""
    indices, examples = read_test_file(name, spec, test)
    lines = ["index\tprediction"]
    for index, label in zip(indices, answer(examples), strict=True):
        value = label["prediction"]
        if spec["kind"] == "regress":
            low, high = spec["range"]
            value = f"{min(high, max(low, value)):.3f}"
        lines.append(f"{index}\t{value}")
    artifacts.write_bytes(out, ("\n".join(lines) + "\n").encode())
    return len(indices)
