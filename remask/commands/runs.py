"""`remask runs`: the run files that come with remask, one line each. Not here: reading one (remask/config.py)."""

from __future__ import annotations

import textwrap
from pathlib import Path

import click
import yaml

from remask.commands import Common, common_options
from remask.config import NAMED_RUNS, named_runs
from remask.schema import Json

WIDTH = 110


def about(file: Path) -> str:
    """What a study's `title:` says, or the comment at the top: its first sentence, without the command."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            if line.startswith("title:"):
                return str(yaml.safe_load(line)["title"])
            break
        text = line.lstrip("# ")
        if not text.startswith("remask "):
            lines.append(text)
    return " ".join(lines).split(". ")[0].rstrip(".")


@click.command()
@click.argument("verb", required=False, type=click.Choice(list(NAMED_RUNS)))
@common_options
def command(verb: str | None, common: Common) -> None:
    """The run files that come with remask. Give the name in place of a path: remask pretrain wiki_small …"""
    rows: list[Json] = [
        {"verb": reader, "name": name, "file": str(file), "about": about(file)}
        for reader in NAMED_RUNS
        if verb in (None, reader)
        for name, file in named_runs(reader).items()
    ]
    common.result({"runs": rows}, _table(rows))


def _table(rows: list[Json]) -> str:
    width = max(len(row["name"]) for row in rows)
    lines = []
    for verb in dict.fromkeys(row["verb"] for row in rows):
        lines += ["", f"remask {verb} NAME"]
        for row in (row for row in rows if row["verb"] == verb):
            shown = textwrap.shorten(row["about"], WIDTH - width - 4, placeholder=" …")
            lines.append(f"  {row['name']:{width}}  {shown}")
    return "\n".join(lines[1:])
