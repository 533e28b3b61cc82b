"""One YAML file -> one frozen run.

In: a run file (with at most one `base:`), `--set a.b=c` words and values of command-line options. Out: a frozen,
fully typed object, or a ConfigError that names the place, the value and what is allowed. Precedence: default <
base < run file < --set and options. Every part of a run is a `Config` that lives beside the code that reads it;
a field made by `switch` is one design decision, listed by `remask switches` and turned by the policy tests.
Not here: any setting of any part.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.config import JsonDict, JsonValue

from remask.errors import ConfigError, MissingInputError

MAX_BYTES = 1_000_000
MAX_DEPTH = 30
MAX_NODES = 50_000

Effect = Literal["math", "data", "speed"]
Scalar = bool | int | float | str | None
ConfigT = TypeVar("ConfigT", bound="Config")


class Config(BaseModel):
    """A frozen part of a run: unknown keys are refused, derived values are properties."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True, protected_namespaces=()
    )


def setting(default: Any, doc: str, **bounds: Any) -> Any:
    """A field that says where, how long or how much; not a design decision of the model or its training."""
    return Field(default, description=doc, **bounds)


def switch(default: Any, doc: str, *, effect: Effect, samples: Sequence[JsonValue] = (), **bounds: Any) -> Any:
    """A design decision. `samples`: values worth trying where the type does not list them (numbers)."""
    extra: JsonDict = {"effect": effect, "samples": list(samples)}
    return Field(default, description=doc, json_schema_extra=extra, **bounds)


# ---------------------------------------------------------------------------------------------------- YAML


class _Loader(yaml.SafeLoader):
    """Scalars as YAML 1.2 reads them: `no` and dates are text, `1e-3` is a number."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"^(?:null|~|)$", ["n", "~", ""]),
    ("bool", r"^(?:true|false|True|False)$", list("tfTF")),
    ("int", r"^[-+]?[0-9]+$", list("-+0123456789")),
    ("float", r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)

_SCALARS: dict[str, Callable[[str], Scalar]] = {
    "tag:yaml.org,2002:null": lambda text: None,
    "tag:yaml.org,2002:bool": lambda text: text in ("true", "True"),
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:float": float,
    "tag:yaml.org,2002:str": str,
}


@dataclass(frozen=True)
class _Source:
    """A parsed file: its values, and where each key stands."""

    name: str
    values: Mapping[str, object]
    lines: Mapping[tuple[str | int, ...], int]

    def place(self, path: Sequence[str | int]) -> str:
        """The line of a key, or of the nearest one above it that is written there."""
        for end in range(len(path), 0, -1):
            if (line := self.lines.get(tuple(path[:end]))) is not None:
                return f"{self.name}:{line}"
        return self.name


def _parse(text: str, name: str) -> tuple[object, dict[tuple[str | int, ...], int]]:
    """(values, the line of every key) of YAML without tags, anchors or repeated keys, bounded in size and depth before
    anything is built."""
    try:
        depth = 0
        for number, event in enumerate(yaml.parse(text, Loader=_Loader)):
            place = f"{name}:{event.start_mark.line + 1}"
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise ConfigError(f"{place}: anchors and aliases are not supported; use a base: file")
            if getattr(event, "tag", None):
                raise ConfigError(f"{place}: tags such as {str(event.tag)[:40]} are not supported")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH or number > MAX_NODES:
                raise ConfigError(f"{place}: nested too deeply or too long for a run file")
        lines: dict[tuple[str | int, ...], int] = {}
        node = yaml.compose(text, Loader=_Loader)
        return None if node is None else _build(node, (), lines, name), lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{name}:{mark.line + 1}" if mark else name
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{place}: not valid YAML: {problem}") from error
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{name}: a number that cannot be read: {str(error)[:80]}") from error


def _build(node: yaml.Node, path: tuple[str | int, ...], lines: dict[tuple[str | int, ...], int], name: str) -> object:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        return _SCALARS[node.tag](node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_build(child, (*path, index), lines, name) for index, child in enumerate(node.value)]
    assert isinstance(node, yaml.MappingNode)
    values: dict[str, object] = {}
    for key_node, child in node.value:
        place = f"{name}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"{place}: a key must be a word")
        key = key_node.value
        if key in values:
            raise ConfigError(f"{place}: {key} is given twice")
        lines[(*path, key)] = key_node.start_mark.line + 1
        values[key] = _build(child, (*path, key), lines, name)
    return values


def _read(path: Path) -> _Source:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise MissingInputError(f"{path}: no such run file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: over {MAX_BYTES:,} bytes is no run file")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 (byte {error.start})") from error
    values, lines = _parse(text, str(path))
    if values is not None and not isinstance(values, dict):
        raise ConfigError(f"{path}: a run file is a mapping of keys to values")
    return _Source(str(path), values or {}, lines)


# ------------------------------------------------------------------------------------------- building a run


def runs_folder() -> Path:
    """Where the shipped run files are: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "runs"
    return inside if inside.is_dir() else package.parent / "runs"


def find_base(name: str, beside: Path | None = None) -> Path:
    """A base by its name (a file of runs/bases) or by a path relative to the run file."""
    if name.endswith((".yaml", ".yml")):
        return (beside.parent if beside else Path()) / name
    folder = runs_folder() / "bases"
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise ConfigError(f"base: {name!r} is not one of {', '.join(known)}{_nearest(name, known)}")
    return folder / f"{name}.yaml"


# verb -> the folders of runs/ with its run files. Where a name is in two of them, the first has it.
NAMED_RUNS = {
    "prepare": ("prepare",),
    "pretrain": ("pretrain", "bases", "ablations"),
    "finetune": ("finetune",),
    "tune": ("tune",),
    "evaluate": ("evaluate",),
    "study": ("studies",),
}


def named_runs(verb: str) -> dict[str, Path]:
    """The run files that come with remask for a verb, by name."""
    known: dict[str, Path] = {}
    for folder in NAMED_RUNS[verb]:
        for file in sorted((runs_folder() / folder).glob("*.yaml")):
            known.setdefault(file.stem, file)
    return known


def is_run(verb: str, word: str | os.PathLike[str]) -> bool:
    """Whether a word means a run file: a YAML file, or a name of named_runs that no file or folder here has."""
    return Path(word).suffix in (".yaml", ".yml") or (os.fspath(word) in named_runs(verb) and not Path(word).exists())


def find_run(verb: str, word: str | os.PathLike[str]) -> Path:
    """A run file by its path or its name."""
    path, name, known = Path(word), os.fspath(word), named_runs(verb)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return path
    if name not in known:
        names = ", ".join(known)
        raise ConfigError(f"{name!r} is neither a run file nor one of {names}{_nearest(name, list(known))}")
    return known[name]


def merge(under: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """Nested values, those of `over` winning."""
    merged = dict(under)
    for key, value in over.items():
        below = under.get(key)
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def parse_assignment(word: str) -> tuple[list[str], object]:
    """`train.learning_rate=1e-3` -> the key's parts and the value as the run file would read it."""
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {word}: write it as KEY=VALUE, for instance train.learning_rate=1e-3")
    return key.split("."), _parse(text, f"--set {word}")[0]


def nest(parts: Sequence[str], value: object) -> dict[str, object]:
    """A value under the parts of its key."""
    first, *rest = parts
    return {first: nest(rest, value) if rest else value}


def value_at(values: object, key: str) -> object:
    """The value under a dotted key; None where there is none."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


Difference = tuple[str, object, object]  # a key, its old value and its new one


@dataclass(frozen=True)
class Built(typing.Generic[ConfigT]):
    """A run, and how it differs from its base (or, without one, from the defaults)."""

    run: ConfigT
    base_name: str
    differences: list[Difference]


def build_run(
    model: type[ConfigT],
    file: Path | None = None,
    assignments: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    base: str | None = None,
) -> Built[ConfigT]:
    """Put a run together. `options` are values of command-line options by dotted key; None means not given."""
    source = _read(file) if file else _Source("command line", {}, {})
    values = dict(source.values)
    # A model with a field of that name means something of its own by it (a study: its rows').
    written_base = None if "base" in model.model_fields else values.pop("base", None)
    if written_base is not None and not isinstance(written_base, str):
        raise ConfigError(f"{source.place(['base'])}: base must be one name, not {written_base!r}")
    base = base or written_base
    under, sources = _under(base, file, source)
    merged = merge(under, values)
    for word in assignments:
        parts, value = parse_assignment(word)
        merged = merge(merged, nest(parts, value))
        sources.insert(0, _Source(f"--set {word}", {}, {tuple(parts[: i + 1]): 0 for i in range(len(parts))}))
    for key, value in (options or {}).items():
        if value is not None:
            merged = merge(merged, nest(key.split("."), value))
    run = _validate(model, merged, sources)
    reference = _validate(model, _fill_required(under, merged, model), sources)
    return Built(run, base or "defaults", [_brief(run, *change) for change in differences(dump(reference), dump(run))])


def _brief(run: Config, key: str, old: object, new: object) -> Difference:
    """A list of parts (sources, tasks) with what was given of each part; the rest are its defaults."""
    if isinstance(new, list) and new and isinstance(new[0], dict):
        given = run.model_dump(mode="json", exclude_defaults=True)
        for name in key.split("."):
            given = given[name]
        return key, old, given
    return key, old, new


def build_values(model: type[ConfigT], values: Mapping[str, object], *, place: str, base: str | None = None) -> ConfigT:
    """A run from plain nested values over a base, as a part of another file holds them; errors name `place`."""
    source = _Source(place, values, {})
    under, sources = _under(base, None, source)
    return _validate(model, merge(under, values), [source, *sources[1:]])


def _under(base: str | None, beside: Path | None, source: _Source) -> tuple[Mapping[str, object], list[_Source]]:
    """(a base's values, the files that a key may stand in)."""
    if base is None:
        return {}, [source]
    base_source = _read(find_base(base, beside))
    if "base" in base_source.values:
        raise ConfigError(f"{base_source.place(['base'])}: a base has no base of its own")
    return base_source.values, [source, base_source]


def _fill_required(under: object, merged: Mapping[str, object], model: type[Config]) -> dict[str, object]:
    """The base alone may lack what every run must say; take that from the run, so that it shows no difference."""
    filled = dict(under) if isinstance(under, Mapping) else {}
    for name, field in model.model_fields.items():
        if name not in merged:
            continue
        kind, value = _config_type(field.annotation), merged[name]
        if kind is not None and isinstance(value, Mapping):
            filled[name] = _fill_required(filled.get(name, {}), value, kind)
        elif field.is_required() and name not in filled:
            filled[name] = value
    return filled


def _config_type(annotation: object) -> type[Config] | None:
    """The Config inside `X` or `X | None`."""
    inside = (
        typing.get_args(annotation) if typing.get_origin(annotation) in (UnionType, typing.Union) else (annotation,)
    )
    return next((kind for kind in inside if isinstance(kind, type) and issubclass(kind, Config)), None)


def _item_type(annotation: object) -> type[Config] | None:
    """The Config inside `tuple[X, ...]`."""
    inside = typing.get_args(annotation) if typing.get_origin(annotation) is tuple else ()
    return _config_type(inside[0]) if inside else None


def _validate(model: type[ConfigT], values: object, sources: Sequence[_Source]) -> ConfigT:
    try:
        # Through JSON: strict types, yet lists become tuples and text becomes paths.
        return model.model_validate_json(json.dumps(values))
    except ValidationError as error:
        messages = [_explain(model, dict(problem), sources) for problem in error.errors()]
        raise ConfigError(*dict.fromkeys(messages)) from error
    except ValueError as error:
        raise ConfigError(f"{sources[-1].name}: {error}") from error


def _explain(model: type[Config], problem: dict[str, Any], sources: Sequence[_Source]) -> str:
    path: tuple[str | int, ...] = tuple(problem["loc"])
    key = ".".join(str(part) for part in path)
    place = _place(path, sources)
    if problem["type"] == "extra_forbidden":
        owner = _owner(model, path)
        known = sorted(owner.model_fields) if owner else []
        near = _named_so(model, str(path[-1])) or _nearest(str(path[-1]), known)
        return f"{place}: unknown key {key}{near or ' (known: ' + ', '.join(known) + ')'}"
    if problem["type"] == "missing":
        return f"{place}: {key} is needed"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if problem["type"] == "literal_error":
        message = f"must be one of {problem['ctx']['expected']}"
    if isinstance(problem.get("input"), (dict, list)):
        return f"{place}: {key}: {message}" if key else f"{place}: {message}"
    return f"{place}: {key} = {_short(problem.get('input'))}: {message}"


def _place(path: Sequence[str | int], sources: Sequence[_Source]) -> str:
    for source in sources:
        if tuple(path) in source.lines:
            return source.name if source.name.startswith("--set") else source.place(path)
    for source in sources:
        if not source.name.startswith("--set"):
            return source.place(path)
    return sources[0].name


def _owner(model: type[Config], path: Sequence[str | int]) -> type[Config] | None:
    """The part of the run that the last word of `path` was meant for."""
    kind: type[Config] | None = model
    for part in path[:-1]:
        if isinstance(part, int):
            continue
        if kind is None or part not in kind.model_fields:
            return None
        annotation = kind.model_fields[part].annotation
        kind = _config_type(annotation) or _item_type(annotation)
    return kind


def _nearest(word: str, known: Sequence[str]) -> str:
    match = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {match[0]}?" if match else ""


# What people type -> the name of the setting.
_SHORT_NAMES = {"lr": "learning_rate", "wd": "weight_decay", "bs": "num_rows", "batch_size": "num_rows"}


def _named_so(model: type[Config], word: str) -> str:
    """The settings of this name anywhere in the run: `learning_rate` and `lr` are train.learning_rate."""
    keys = [key for key in _keys(model) if key.rpartition(".")[2] == _SHORT_NAMES.get(word, word)]
    return f"; did you mean {' or '.join(keys)}?" if 0 < len(keys) <= 3 else ""


def _keys(model: type[Config], prefix: str = "") -> Iterator[str]:
    """The dotted name of every setting that is not a part of its own."""
    for name, field in model.model_fields.items():
        part = _config_type(field.annotation)
        if part is None:
            yield f"{prefix}{name}"
        else:
            yield from _keys(part, f"{prefix}{name}.")


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


# -------------------------------------------------------------------------------------- reading a run back


def dump(config: Config) -> dict[str, Any]:
    """Plain values, as a run file would hold them."""
    return config.model_dump(mode="json")


def to_yaml(config: Config) -> str:
    return yaml.safe_dump(dump(config), sort_keys=False, allow_unicode=True)


def fingerprint(value: object) -> str:
    """sha256 of a config's or plain value's canonical JSON."""
    plain = dump(value) if isinstance(value, Config) else value
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def differences(old: object, new: object, prefix: str = "") -> list[Difference]:
    """(key, old value, new value) for every leaf that differs."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        changes: list[Difference] = []
        for key in [*old, *(k for k in new if k not in old)]:
            changes += differences(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else str(key))
        return changes
    return [] if old == new else [(prefix, old, new)]


# ------------------------------------------------------------------------------------------------ switches


@dataclass(frozen=True)
class Switch:
    """One design decision: its key, its values (or sample values), default, line of text and effect."""

    key: str
    values: list[object]
    default: object
    doc: str
    effect: Effect


def switches(model: type[Config], prefix: str = "") -> Iterator[Switch]:
    """Every switch of a run model, in order."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        part = _config_type(field.annotation)
        if part is not None:
            yield from switches(part, f"{key}.")
            continue
        extra = field.json_schema_extra
        if isinstance(extra, dict) and "effect" in extra:
            values = [*_literal_values(field.annotation), *typing.cast(list[object], extra["samples"])]
            default = field.get_default(call_default_factory=True)
            doc = field.description or ""
            yield Switch(key, values, default, doc, typing.cast(Effect, extra["effect"]))


def _literal_values(annotation: object) -> list[object]:
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return list(typing.get_args(annotation))
    if annotation is bool:
        return [False, True]
    if annotation is NoneType:
        return [None]
    if origin in (UnionType, typing.Union):
        return [value for kind in typing.get_args(annotation) for value in _literal_values(kind)]
    return []
