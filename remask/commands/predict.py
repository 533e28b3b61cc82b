"""`remask predict`: what a fine-tuned model says about every row of a file, or about a text. Not here: answering it."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from remask.answer.predict import PredictRun, answer_texts, main, open_asked
from remask.answer.settings import PRECISIONS, shown_int8
from remask.commands import PATTERN_HELP, WORDS_HELP, Common, common_options, prompt_options, run_file
from remask.errors import DataError, UsageError
from remask.progress import counted
from remask.schema import Json, Values
from remask.streams import split_name
from remask.tables import TABLE_KINDS
from remask.tasks.answer_files import check_name, shown_cell

STDIN = "-"
_ENDING = re.compile(r"\.[A-Za-z0-9]{1,8}$")


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="RUN.yaml | MODEL FILE | MODEL TEXT | MODEL -")
@click.option("--out", type=click.Path(path_type=Path), help="For a FILE: a .csv, .tsv, .jsonl or .parquet file.")
@click.option("--task", help="Of a model with several tasks: which one.")
@click.option("--text", help="Column with the text, where it differs from the training file's.")
@click.option("--text2", help="Column with the second text.")
@click.option("--pattern", "prompt__patterns", multiple=True, help=PATTERN_HELP)
@click.option("--words", "label_words", multiple=True, metavar="LABEL=WORD,WORD…", help=WORDS_HELP)
@click.option("--encoding", "table__encoding", help="Of FILE, where it is not UTF-8.")
@click.option("--delimiter", "table__delimiter", help="Between the cells of FILE: one character, or tab.")
@click.option("--header/--no-header", "table__header", default=None, help="Whether FILE's first line names columns.")
@click.option("--scores", is_flag=True, default=None, help="Also the score of every class.")
@click.option("--prefix", help="Put before the names of the answer's columns.")
@click.option("--escape-formulas", is_flag=True, default=None, help="Cells that begin with = + - @ stay text in Excel.")
@click.option("--precision", type=click.Choice(PRECISIONS), help="Number format; int8 is checked against fp32 first.")
@click.option("--int8-eval", "int8__eval_file", metavar="FILE", help="int8: a file with labels to score both forms on.")
@click.option("--device", help="auto, cpu, cuda, cuda:N or mps.")
@common_options
def command(
    common: Common,
    words: tuple[str, ...],
    out: Path | None,
    prompt__patterns: tuple[str, ...],
    label_words: tuple[str, ...],
    **options: object,
) -> None:
    """Answer every row of FILE with the fine-tuned MODEL, or one TEXT, or the lines of stdin (-).

    A MODEL that fills masks needs no fine-tuning: --pattern "{text} All in all it was <mask>." --words "positive=great
    negative=bad".

    FILE's own columns stay; killed, the same command goes on. Rows that cannot be answered are in OUT.bad.jsonl. A
    TEXT is answered at once; of a pair, or a question and its passage, give both texts.
    """
    file, model, rest = run_file(words)
    texts = rest if rest and all(is_text(word) for word in rest) else ()
    if len(rest) > 1 and not texts:
        raise UsageError(f"predict takes one MODEL and one FILE, not {len(words)} paths")
    options |= prompt_options(prompt__patterns, label_words)
    built = common.build(PredictRun, file, model=model, file=rest[0] if rest and not texts else None, **options)
    run = built.run
    if not run.model or not (run.file or texts):
        raise UsageError("predict needs a MODEL and a FILE or a text")
    if out is None and not texts:
        raise UsageError(f"{run.file}: predict writes the answers to a file's rows into another: --out FILE")
    if out is not None:
        if texts:
            raise UsageError("--out is for the rows of a file; the answer to a text is printed")
        check_name(out)
    if common.dry_run:
        assert open_asked(run).task
        return
    if out is None:
        _answer_texts(common, run, texts)
        return
    values = main(run, out, progress=common.progress)
    _say_int8(common, values)
    if values["bad"]:
        common.progress.warn(f"{counted(values['bad'], 'row')} could not be answered: {values['bad_file']}")
    _say_cut(common, values)
    common.result(values, f"{counted(values['rows'], 'answer')}: {out}")


def is_text(word: str) -> bool:
    """Whether a word of the command line is a text: there is no file of that name, nor does it look like one."""
    if word == STDIN:
        return True
    try:
        if Path(word).exists():
            return False
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return True
    if any(character.isspace() for character in word):
        return split_name(word)[0] not in TABLE_KINDS
    return "/" not in word and not _ENDING.search(word)


def _answer_texts(common: Common, run: PredictRun, words: Sequence[str]) -> None:
    asked, places = [tuple(words)], ["command line"]
    if STDIN in words:
        if len(words) > 1:
            raise UsageError("- is stdin, one text a line, and stands alone")
        try:
            lines = sys.stdin.buffer.read().decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise DataError(f"stdin: not UTF-8 (byte {error.start})") from error
        numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        if not numbered:
            raise DataError("stdin: no text there")
        asked, places = [tuple(line.split("\t")) for _, line in numbered], [f"stdin:{number}" for number, _ in numbered]
    values = answer_texts(run, asked, places)
    _say_int8(common, values)
    _say_cut(common, values)
    common.result(values, "\n".join(_line(answer) for answer in values["answers"]))


def _line(answer: Values) -> str:
    """An answer for a person: what is neither the prediction nor its score has its name before it."""
    shown = {name: shown_cell(value) for name, value in answer.items()}
    bare = ("prediction", "score")
    return "  ".join(value or '""' if name in bare else f"{name} {value}" for name, value in shown.items())


def _say_int8(common: Common, values: Json) -> None:
    if "int8" in values:
        common.progress.say(f"  {shown_int8(values['int8'])}")


def _say_cut(common: Common, values: Json) -> None:
    if values["cut"]:
        common.progress.say(f"  cut to what the model reads: {counted(values['cut'], 'text')}")
