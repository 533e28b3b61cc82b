"""`remask prepare`: raw files -> a PREPARED folder. Not here: the work itself (remask/preparation)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from remask import api
from remask.commands import Common, common_options
from remask.config import find_run, is_run, parse_assignment
from remask.errors import UsageError
from remask.preparation.settings import PrepareRun
from remask.schema import Json


@click.command(short_help="Raw files -> documents, a vocabulary and token shards.")
@click.argument("paths", nargs=-1, metavar="RUN.yaml | NAME | PATH…")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder to make.")
@click.option("--vocab-size", type=int, help="Train a vocabulary of this many entries.")
@click.option("--tokenizer", "existing", type=click.Path(), help="Use this vocabulary: a folder or file.")
@click.option("--workers", type=int, help="Processes; 0: one for each core.")
@click.option("--engine", type=click.Choice(["local", "ray"]), help="This machine, or a Ray cluster.")
@common_options
def command(
    paths: tuple[str, ...],
    out: Path,
    vocab_size: int | None,
    existing: str | None,
    workers: int | None,
    engine: str | None,
    common: Common,
) -> None:
    """Prepare RUN.yaml, or the files, folders and globs PATH… (also - for stdin, hf:NAME, pydocs:), into --out.

    NAME is one of the run files that come with remask: remask runs prepare
    """
    file = find_run("prepare", paths[0]) if len(paths) == 1 and is_run("prepare", paths[0]) else None
    if vocab_size is not None and existing is not None:
        raise UsageError("--vocab-size trains a vocabulary and --tokenizer brings one: give one of them")
    sources, common = (None, common) if file or not paths else _named(paths, common)
    built = common.build(
        PrepareRun,
        file,
        text__sources=sources,
        tokenizer__vocab_size=vocab_size,
        tokenizer__path=existing,
        workers=workers,
        engine=engine,
    )
    told = [change for change in built.differences if sources is None or change[0] != "text.sources"]
    common.show_differences(replace(built, differences=told))
    if common.dry_run:
        from remask.preparation.prepare import check_vocabulary

        check_vocabulary(built.run)
        return
    result = api.prepare(built.run, out=out, progress=common.progress, allow_change=common.allow_change)
    common.result(
        result, f"{out}: {result['documents']:,} documents, {result['tokens']:,} tokens; remask inspect {out}"
    )


def _named(paths: Sequence[str], common: Common) -> tuple[list[Json], Common]:
    """The one source of the short form; what --set says of it goes into it, and the rest of --set stays."""
    source: Json = {"name": "corpus", "paths": list(paths)}
    rest = []
    for word in common.assignments:
        parts, value = parse_assignment(word)
        if parts[:2] != ["text", "sources"]:
            rest.append(word)
        elif len(parts) == 3:
            source[parts[2]] = value
        else:
            raise UsageError(f"--set {word}: beside PATH… write text.sources.KEY=VALUE; for several sources a run file")
    return [source], replace(common, assignments=tuple(rest))
