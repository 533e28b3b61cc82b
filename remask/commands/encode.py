"""`remask encode MODEL FILE --out FILE`: token ids and last hidden states of every text. Not here: computing them."""

from __future__ import annotations

from pathlib import Path

import click

from remask.answer.encode import ENDINGS, EncodeRun, main
from remask.answer.settings import PRECISIONS, shown_int8
from remask.commands import Common, common_options, run_file
from remask.errors import UsageError


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="RUN.yaml | MODEL FILE")
@click.option("--out", type=click.Path(path_type=Path), required=True, help=f"The file to make: {', '.join(ENDINGS)}.")
@click.option("--text", "column", help="Of a table: the column with the text.")
@click.option("--encoding", "table__encoding", help="Of FILE, where it is not UTF-8.")
@click.option("--delimiter", "table__delimiter", help="Between the cells of FILE: one character, or tab.")
@click.option("--header/--no-header", "table__header", default=None, help="Whether FILE's first line names columns.")
@click.option("--pooled", is_flag=True, default=None, help="One vector a text instead of one state a token.")
@click.option("--pooling", type=click.Choice(["first", "mean"]), help="With --pooled: what stands for a text.")
@click.option("--prompt", help="With --pooled: what the model was taught to read before a text: query, document, ...")
@click.option("--long", "long_texts", type=click.Choice(["error", "cut"]), help="Texts beyond the model's length.")
@click.option("--precision", type=click.Choice(PRECISIONS), help="Number format (fp32); int8 is checked first.")
@common_options
def command(words: tuple[str, ...], out: Path, common: Common, **options: object) -> None:
    """Token ids and last hidden states of every text of FILE: a table's text column, or the lines of another file.

    Killed, the same command goes on.
    """
    file, model, texts = run_file(words)
    if len(texts) > 1:
        raise UsageError(f"encode takes one MODEL and one FILE, not {len(words)} paths")
    source = texts[0] if texts else None
    built = common.build(EncodeRun, file, model=model, file=source, **options)
    if out.suffix not in ENDINGS:
        raise UsageError(f"--out {out}: must end in {', '.join(ENDINGS)}")
    if common.dry_run:
        return
    result = main(built.run, out, common.progress)
    if "int8" in result:
        common.progress.say(f"  {shown_int8(result['int8'])}")
    common.result(result, f"{out}: {result['texts']:,} texts, {result['tokens']:,} tokens")
