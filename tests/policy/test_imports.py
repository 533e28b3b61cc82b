"""Imports go one way (ARCHITECTURE.md has the same table), and help, config and errors need no torch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "remask"

BASE = {"errors", "config", "schema"}
GROUND = BASE | {"artifacts", "signals", "progress", "documents", "workers", "allocator", "visible"}
GROUND |= {"streams", "tables"}
ANSWERING = {"tokenizer", "data", "tasks", "model", "precision", "answer"}
# package -> what it may import of remask, besides itself
MAY_IMPORT = {
    "errors": set(),
    "config": {"errors"},
    "schema": set(),
    "signals": {"errors"},
    "visible": set(),
    "progress": {"visible"},
    "artifacts": BASE,
    "documents": BASE | {"artifacts", "visible"},
    "workers": {"errors", "signals"},
    "allocator": set(),
    "streams": set(),
    "tables": BASE | {"streams"},
    "precision": {"errors"},
    "text": GROUND,
    "tokenizer": GROUND,
    "data": GROUND | {"tokenizer"},
    "model": BASE | {"artifacts"},
    "start": GROUND | {"data", "model"},
    "objectives": BASE | {"model"},
    "train": GROUND | {"precision"},
    "tasks": GROUND | {"tokenizer", "data"},
    "task_objectives": BASE | {"model", "tasks"},
    "reports": GROUND | {"tasks"},
    "exports": GROUND | {"tokenizer", "model", "tasks", "answer"},
    "answer": GROUND | {"tokenizer", "tasks", "model", "precision"},
    "tune": GROUND
    | {"text", "tokenizer", "data", "model", "task_objectives", "train", "tasks", "reports", "answer", "precision"},
    "evaluation": GROUND | ANSWERING | {"objectives", "train", "reports", "exports", "tune", "preparation"},
    "preparation": GROUND | {"text", "tokenizer", "data"},
    "pretraining": GROUND | {"tokenizer", "data", "model", "start", "objectives", "precision", "train", "reports"},
    "starter": GROUND | {"text", "preparation", "pretraining", "tune", "exports", "answer", "reports"},
    "adaptation": GROUND
    | ANSWERING
    | {"text", "start", "objectives", "train", "preparation", "pretraining", "tune", "reports"},
    "finding": GROUND | ANSWERING | {"text", "reports"},
    "serve": GROUND | ANSWERING | {"finding"},
    "monitoring": GROUND | ANSWERING | {"reports"},
    "studies": GROUND | ANSWERING | {"preparation", "pretraining", "tune", "evaluation", "reports"},
    "api": GROUND
    | ANSWERING
    | {"adaptation", "preparation", "pretraining", "tune", "evaluation", "exports", "finding", "studies", "monitoring"},
}


def files_of(part: str) -> list[Path]:
    single = PACKAGE / f"{part}.py"
    return [single] if single.exists() else sorted((PACKAGE / part).rglob("*.py"))


def imported_parts(path: Path) -> dict[str, int]:
    """First-level names of remask that a file imports anywhere, lazily too -> line."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative imports hide the direction"
            names = [node.module] if node.module != "remask" else [f"remask.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = (name or "").split(".")
            if parts[0] == "remask" and len(parts) > 1:
                found[parts[1]] = node.lineno
    return found


def test_the_table_covers_the_package() -> None:
    parts = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p.is_dir() and any(p.glob("*.py")))}
    assert parts - {"__init__", "__main__", "commands"} <= set(MAY_IMPORT)


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_imports_go_one_way(part: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in files_of(part)
        for name, line in imported_parts(path).items()
        if name not in MAY_IMPORT[part] | {part}
    ]
    assert not wrong


def test_the_table_is_that_of_the_document() -> None:
    (section,) = re.findall(r"## Who may import whom.*?(?=\n## )", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.S)
    rows = re.findall(r"^\| ([a-z_, ]+) \| (.+) \|$", section, flags=re.M)
    groups = {"ground": GROUND, "answering": ANSWERING, "nothing of remask": set[str]()}
    table: dict[str, set[str]] = {}
    for names, allowed in rows:
        words = (
            re.sub(r": all of the above but precision| \(tokenizer, .*?\)", "", allowed).replace('"', "").split(", ")
        )
        for name in names.split(", "):
            table[name] = set().union(*(groups.get(word, {word}) for word in words))
    assert {name: table.get(name) for name in MAY_IMPORT} == MAY_IMPORT


def test_a_verb_imports_no_other_verb() -> None:
    """But for `tune`, which takes what `finetune` takes."""
    pairs = {
        (path.stem, node.module.rpartition(".")[2])
        for path in (PACKAGE / "commands").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("remask.commands.")
    }
    assert pairs <= {("tune", "finetune")}


def _names(module: str) -> set[str]:
    """What a module of remask defines or imports at its top level; of a package also its modules."""
    path = ROOT.joinpath(*module.split("."))
    names = {entry.stem for entry in path.iterdir()} if path.is_dir() else set()
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    return names


def test_scripts_import_what_is_there() -> None:
    """Scripts import inside functions and are run by hand, so a moved name would be found months later."""
    scripts = [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("docs/**/*.py")]
    assert len(scripts) > 20
    missing = []
    for script in scripts:
        for node in ast.walk(ast.parse(script.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("remask."):
                there = _names(str(node.module))
                missing += [f"{script.name}: {node.module}.{a.name}" for a in node.names if a.name not in there]
    assert not missing


def test_nothing_imports_commands_but_the_command_line() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "commands" and path.name != "__main__.py":
            assert "commands" not in imported_parts(path), path


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers"):
            raise ImportError(f"{name} is blocked here")
sys.meta_path.insert(0, Block())
"""


def test_help_of_every_verb_and_every_run_model_come_without_torch() -> None:
    code = BLOCKED + (
        "import click\nfrom remask.__main__ import VERBS, cli\n"
        "from remask.commands.switches import RUN_MODELS, run_model\n"
        "for verb in VERBS:\n    cli.get_command(None, verb).get_help(click.Context(cli.get_command(None, verb)))\n"
        "for verb in RUN_MODELS:\n    run_model(verb)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
