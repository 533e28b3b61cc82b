"""The command line: verb -> command, imported when it is asked for, so that help and errors come back at once.

Also here: what every failure looks like to the user (one line and an exit code). Not here: what any verb does.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import click

from remask import __version__, signals
from remask.errors import DiskError, MissingInputError, RemaskError, Stopped, is_out_of_memory
from remask.visible import visible

# verb -> its line in `remask --help`; each is commands/<verb with _>.py with a click command named `command`.
VERBS = {
    "quickstart": "From a folder of text to a pretrained, fine-tuned, exported model with a report, in one go.",
    "prepare": "Raw files -> documents, a vocabulary and token shards.",
    "inspect": "Look into prepared data: counts, samples, batches with their masks.",
    "pretrain": "Train an encoder on prepared data.",
    "adapt": "Continue somebody else's model on your own text, measured before and after.",
    "finetune": "Teach a pretrained model a task: your own table, or one of the papers'.",
    "tune": "Find the best recipe of a fine-tuning: learning rate, batch, epochs, warmup.",
    "evaluate": "Score a model on tasks (without a head it is fine-tuned first) or a labelled file.",
    "predict": "What a fine-tuned model says about every row of a file.",
    "monitor": "Texts as they come: shares of a classifier's classes over time, and an alarm on a shift.",
    "study": "The papers' tables, or your own, at your scale: which decision matters, with intervals.",
    "compare": "Training runs side by side: last values, curves, what differs.",
    "report": "One HTML page about a run: curves, answers, settings.",
    "import": "A Hugging Face folder -> a model of remask, every weight checked.",
    "export": "A finished model -> a folder for transformers, or an ONNX graph in fp32 or int8.",
    "fill-mask": "The likeliest words for a mask in a text.",
    "encode": "Token ids and last hidden states of every text of a file.",
    "index": "Texts -> passages with vectors and words, to search in.",
    "search": "Find passages of an index for a query, or score it on queries with answers.",
    "serve": "An HTTP server and a page for one or several models.",
    "describe": "Parameters by part, FLOPs, memory and time of a model or run file.",
    "runs": "The run files that come with remask, to be given by name.",
    "switches": "Every design decision that can be turned, its values and its effect.",
    "doctor": "What this machine can do, what is not installed, and how to get it.",
}


_NO_MEMORY = "out of memory; a smaller batch, length or --workers needs less"


class _Verbs(click.Group):
    """Looks a verb's module up only when that verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb for verb in VERBS if importlib.util.find_spec(_module(verb))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        return importlib.import_module(_module(cmd_name)).command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS:
            from difflib import get_close_matches

            near = get_close_matches(args[0], VERBS, n=1)
            hint = f"; did you mean {near[0]}?" if near else f" ({', '.join(VERBS)})"
            raise click.UsageError(f"no verb {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def make_context(self, *words: Any, **extra: Any) -> click.Context:
        with _visible_words():
            return super().make_context(*words, **extra)

    def invoke(self, ctx: click.Context) -> object:
        with _visible_words():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, VERBS[verb]) for verb in VERBS])


@contextlib.contextmanager
def _visible_words() -> Iterator[None]:
    """click shows the words of the command as they came."""
    try:
        yield
    except click.ClickException as error:
        error.message = visible(error.message, lines=True)  # pyrefly: ignore[read-only]
        raise


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: object = None,
) -> None:
    click.echo(f"remask: warning: {visible(str(message))}", err=True)


def _module(verb: str) -> str:
    return f"remask.commands.{verb.replace('-', '_')}"


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, message="remask %(version)s")
def cli() -> None:
    """RoBERTa as a tool: pretrain, fine-tune, measure and ship an encoder of your own.

    Every verb takes a run file (remask VERB run.yaml --set a.b=c) or the short form that its --help shows.
    """


def main() -> None:
    """Run a verb; a user's mistake ends in one line on stderr and the exit code of errors.py."""
    try:
        _run()
    except SystemExit as end:
        if "torch" in sys.modules:
            _end(end.code)
        raise


def _end(code: object) -> None:
    """End here, without taking Python apart, which takes 0.2 s with torch in it. Besides, threads of torch's process
    group can outlive it (caches of FSDP keep it): one that lets go of a tensor then aborts a process that is done."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _run() -> None:
    warnings.showwarning = _show_warning
    try:
        with signals.catch():
            cli(prog_name="remask", standalone_mode=True)
    except RemaskError as error:
        _fail(*error.args, code=error.exit_code)
    except KeyboardInterrupt:
        _fail("stopped; run the same command again to go on", code=Stopped.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # what no part foresaw
        kind = MissingInputError if isinstance(error, FileNotFoundError) else DiskError
        _fail(f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}", code=kind.exit_code)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        _fail(_NO_MEMORY, code=DiskError.exit_code)


def _fail(message: str = "", *details: str, code: int) -> None:
    if "--debug" in sys.argv:
        import traceback

        traceback.print_exc()
    for line in (message, *(f"  {detail}" for detail in details)):
        click.echo(f"remask: {visible(line)}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
