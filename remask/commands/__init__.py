"""What every verb shares: the common options, building the run, and printing the result.

A verb's file has its frozen run model, a click `command` whose function turns options into dotted keys, and
`main(run, ...)`, which reads like a table of contents.
"""

from __future__ import annotations

import functools
import io
import json
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from remask.config import Built, ConfigT, build_run, find_run, is_run, to_yaml
from remask.progress import Progress
from remask.schema import Json, Values
from remask.visible import visible, visible_json
from remask.workers import is_first_rank as is_first_rank


@dataclass(frozen=True)
class Common:
    """The options that every verb takes."""

    assignments: tuple[str, ...]
    seed: int | None
    dry_run: bool
    print_config: bool
    allow_change: tuple[str, ...]
    json: bool
    progress: Progress

    def build(
        self, model: type[ConfigT], file: Path | None, base: str | None = None, /, **options: object
    ) -> Built[ConfigT]:
        """The run from its file, --set and options (dots written as `__`); ends the command for --print-config."""
        dotted = {key.replace("__", "."): value for key, value in options.items()}
        if "seed" in model.model_fields:
            dotted["seed"] = self.seed
        built = build_run(model, file, self.assignments, dotted, base=base)
        if self.print_config:
            click.echo(visible(to_yaml(built.run), lines=True), nl=False)
            raise click.exceptions.Exit(0)
        return built

    def of_rank(self) -> Common:
        """The same on torchrun's first process; the others say nothing, for all would say the same."""
        return self if is_first_rank() else replace(self, progress=Progress(stream=io.StringIO()))

    def show_differences(self, built: Built[ConfigT]) -> None:
        for key, old, new in built.differences:
            self.progress.say(f"  {key}: {json.dumps(new)} ({built.base_name}: {json.dumps(old)})")

    def result(self, values: Values, text: str | None = None) -> None:
        """The result on stdout: one JSON object with --json, the text for a person otherwise."""
        if self.json:
            click.echo(visible_json(json.dumps(values, ensure_ascii=False, default=str)))
        elif text:
            click.echo(visible(text, lines=True))


def program() -> str:
    """How this very remask is called from a shell here: its plain name where the PATH leads to it."""
    script = Path(sys.argv[0])
    if script.name != "remask" or not script.is_file():
        return f"{shlex.quote(sys.executable)} -m remask"
    on_path = shutil.which("remask")
    if on_path is not None and Path(on_path).resolve() == script.resolve():
        return "remask"
    here = Path.cwd()
    absolute = script.absolute()
    return shlex.quote(str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute))


PATTERN_HELP = "A sentence with {text}, perhaps {text2}, and <mask>; several are averaged."
WORDS_HELP = "The words that mean a label in the place of <mask>; all labels in one, or one each."


def prompt_options(patterns: Sequence[str], words: Sequence[str]) -> Json:
    """--pattern and --words as settings; None where they are not given."""
    from remask.tasks.patterns import read_words

    return {"prompt__patterns": list(patterns) or None, "prompt__words": read_words(words) or None}


def run_file(words: Sequence[str], verb: str | None = None) -> tuple[Path | None, str | None, tuple[str, ...]]:
    """The words of a verb's short form: (run file or None, the first other word, the rest). `verb`: also by name."""
    if words and (words[0].endswith((".yaml", ".yml")) or (verb is not None and is_run(verb, words[0]))):
        file = Path(words[0]) if verb is None else find_run(verb, words[0])
        return file, words[1] if len(words) > 1 else None, tuple(words[2:])
    return None, words[0] if words else None, tuple(words[1:])


def common_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options above to a click command; its function gets them as `common`."""

    @click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Change a setting of the run.")
    @click.option("--seed", type=int, help="The one seed that everything random follows from.")
    @click.option("--dry-run", is_flag=True, help="Check everything, do nothing.")
    @click.option("--print-config", is_flag=True, help="Print the whole run as YAML and stop.")
    @click.option("--allow-change", default="", metavar="KEY,…", help="Settings that may differ from the run resumed.")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
    @click.option("-q", "--quiet", is_flag=True, help="Say only what goes wrong.")
    @click.option("-v", "--verbose", is_flag=True, help="Say more.")
    @click.option("--debug", is_flag=True, help="Show the traceback of an error.")
    @functools.wraps(function)
    def wrapped(
        *args: object,
        assignments: tuple[str, ...],
        seed: int | None,
        dry_run: bool,
        print_config: bool,
        allow_change: str,
        as_json: bool,
        quiet: bool,
        verbose: bool,
        debug: bool,
        **options: object,
    ) -> None:
        progress = Progress(quiet=quiet, verbose=verbose)
        allowed = tuple(key for key in allow_change.split(",") if key)
        common = Common(assignments, seed, dry_run, print_config, allowed, as_json, progress)
        function(*args, common=common, **options)

    return wrapped
