"""The documentation inside the Python libraries of this machine: a corpus that needs no download.

In: .py files of the standard library and of the installed packages (or of given folders). Out: one document a module,
its docstring and those of its classes and functions with their names, in source order. Files are parsed with `ast`;
nothing is imported or executed. Also here: passages with the library they are from, for a task on the same text.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from remask.documents import Documents
from remask.errors import MissingInputError
from remask.text.files import InputFile
from remask.text.records import Document, Drop, Portion, Reading

# Folders of tests, examples and bundled copies repeat what is documented elsewhere.
_SKIPPED = {"test", "tests", "testing", "__pycache__", "site-packages", "dist-packages", "_vendor", "vendor", "idlelib"}
_MAX_FILE_BYTES = 2_000_000
_MIN_CHARS = 200
_SOURCE_PER_TEXT = 8  # bytes of source to a byte of documentation that is kept, with some to spare (seen: 5 to 6)
STANDARD_LIBRARY = "python"
# Lines that stand for themselves: prompts, list items, directives, field lists, tables, underlines.
_OWN_LINE = re.compile(r"(?:>>>|\.\.\.|\.\. |[-*+] |\d+[.)] |[:@|+\\]|[-=~^]{3,}|\w+ : )")
_MIN_WRAPPED = 45  # a shorter line was not ended by the margin
_GOES_ON = re.compile(r"[A-Za-z`*\"'(]")


def find_modules(place: str, max_bytes: int | None = None) -> list[InputFile]:
    """The modules under a folder, or of this Python's standard library and packages where none is given.

    Where no more than `max_bytes` of documentation are wanted, a sample of the modules is enough, drawn by the hash
    of their names: parsing all of a large installation takes minutes.
    """
    if place:
        if not os.path.isdir(place):
            raise MissingInputError(f"pydocs:{place}: no such folder")
        roots = [place]
    else:
        paths = sysconfig.get_paths()
        roots = list(dict.fromkeys((paths["stdlib"], paths["purelib"], paths["platlib"])))
    modules: dict[str, InputFile] = {}
    for root in roots:
        for parent, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if name.isidentifier() and name not in _SKIPPED)
            for name in names:
                path = os.path.join(parent, name)
                if name.endswith(".py") and os.path.isfile(path):
                    module = _module_name(os.path.relpath(path, root))
                    modules.setdefault(module, InputFile(path, module, "pydocs", "", os.stat(path).st_size))
    return _sampled([modules[module] for module in sorted(modules)], max_bytes)


def _sampled(modules: list[InputFile], max_bytes: int | None) -> list[InputFile]:
    if max_bytes is None:
        return modules
    room = max_bytes * _SOURCE_PER_TEXT
    chosen: set[str] = set()
    for module in sorted(modules, key=lambda m: hashlib.blake2b(m.place.encode(), digest_size=8).digest()):
        if room <= 0:
            break
        room -= module.size
        chosen.add(module.place)
    return [module for module in modules if module.place in chosen]


def _module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix(f"{os.sep}__init__").replace(os.sep, ".")


def read_module(portion: Portion, reading: Reading) -> Iterator[Document | Drop]:
    """One module as one document."""
    if portion.size > _MAX_FILE_BYTES:
        yield Drop("too long", portion.place, f"source of {portion.size:,} bytes")
        return
    try:
        with open(portion.path, "rb") as file:
            text = documentation(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        yield Drop("not Python", portion.place, f"{type(error).__name__}: {error}"[:200])
        return
    if len(text) < _MIN_CHARS:
        yield Drop("no documentation", portion.place)
        return
    yield Document(text, portion.place)


def documentation(source: bytes) -> str:
    """Docstrings with the names of what they document; paragraphs as lines."""
    if b'"""' not in source and b"'''" not in source:
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the parsed code: invalid escapes and the like
        tree = ast.parse(source)
    parts: list[str] = []
    _collect(tree, "", parts)
    return "\n\n".join(parts)


def _collect(node: ast.AST, name: str, parts: list[str]) -> None:
    text = ast.get_docstring(node, clean=False)  # pyrefly: ignore[bad-argument-type]
    if text and text.strip():
        text = paragraphs(inspect.cleandoc(text))
        parts.append(f"{name}\n{text}" if name else text)
    for child in getattr(node, "body", ()):
        if isinstance(child, ast.ClassDef):
            _collect(child, f"{name}.{child.name}" if name else child.name, parts)
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            signature = f"{child.name}({', '.join(_arguments(child.args))})"
            _collect_function(child, f"{name}.{signature}" if name else signature, parts)


def _collect_function(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, parts: list[str]) -> None:
    text = ast.get_docstring(node, clean=False)
    # What is inside a function is nobody's documentation.
    if text and text.strip():
        parts.append(f"{name}\n{paragraphs(inspect.cleandoc(text))}")


def _arguments(arguments: ast.arguments) -> list[str]:
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    names += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    names += [argument.arg for argument in arguments.kwonlyargs]
    names += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return [name for name in names if name not in ("self", "cls")]


def paragraphs(text: str) -> str:
    """Docstrings are wrapped by hand; a wrapped line that goes on at the same depth joins the line before it."""
    lines: list[str] = []
    depth, width = -1, 0  # of the open paragraph (-1: none is open) and of its last line
    for line in text.expandtabs().split("\n"):
        words = line.strip()
        indent = len(line) - len(line.lstrip())
        if not words:
            depth = -1
            lines.append("")
        elif indent == depth and width > _MIN_WRAPPED and _GOES_ON.match(words) and not _OWN_LINE.match(words):
            lines[-1] += f" {words}"
        else:
            lines.append(words if indent == 0 else " " * min(indent, 8) + words)
            depth = -1 if words.startswith((">>>", "...", "|", "+", "---", "===")) else indent
        width = len(words)
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------- passages


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a module's documentation and the library that the module belongs to."""

    module: str
    library: str
    text: str


def library_of(module: str) -> str:
    """The top-level package; all of the standard library is one."""
    top = module.partition(".")[0]
    return STANDARD_LIBRARY if top in sys.stdlib_module_names else top


def passages(documents: Documents, *, min_chars: int = 120, max_chars: int = 400) -> Iterator[Passage]:
    """Passages of a documents folder made from `pydocs:`, in its order; a module's passages come one after another.

    A passage is made of whole lines, so its text is as it stands in the document but for line ends.
    """
    for shard in documents.shards:
        for index in range(len(shard)):
            module = shard.place(index)
            held = ""
            for line in shard.text(index).split("\n"):
                line = " ".join(line.split())
                if held and len(held) + 1 + len(line) > max_chars:
                    if len(held) >= min_chars:
                        yield Passage(module, library_of(module), held)
                    held = ""
                held = f"{held} {line}".strip()[:max_chars]
            if len(held) >= min_chars:
                yield Passage(module, library_of(module), held)
