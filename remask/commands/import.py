"""`remask import HF_DIR --out DIR`: a Hugging Face folder -> our own layout, after every weight was checked."""

from __future__ import annotations

from pathlib import Path

import click

from remask.artifacts import publish
from remask.commands import Common, common_options, run_file
from remask.config import Config, dump, setting
from remask.errors import DataError
from remask.schema import Json
from remask.tokenizer import load_tokenizer


class ImportRun(Config):
    """Which folder."""

    source: Path = setting(..., "a Hugging Face folder: config.json with safetensors or .bin weights")


@click.command()
@click.argument("words", nargs=1, required=True, metavar="RUN.yaml | HF_DIR")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder to make.")
@common_options
def command(words: str, out: Path, common: Common) -> None:
    """Read a RoBERTa, BERT, ALBERT or ModernBERT folder (also XLM-R, CamemBERT) and write it in remask's layout.

    Nothing in the folder is run, and nothing outside it is opened.
    """
    file, source, _ = run_file((words,))
    built = common.build(ImportRun, file, source=source)
    result = main(built.run, None if common.dry_run else out)
    text = f"{out}: {result['family']}, {result['parameters']:,} parameters, {result['dtype']}"
    common.result(result, text)


def main(run: ImportRun, out: Path | None) -> Json:
    """Check everything; write unless `out` is None."""
    from remask.exports.hf import open_foreign, write_own
    from remask.model.foreign import TOKENIZER_FILES, ForeignFolder
    from remask.model.interop_config import family_for

    source = open_foreign(run.source)
    if source.tokenizer_folder is not None:
        ForeignFolder(source.tokenizer_folder).present(TOKENIZER_FILES)  # refuses links that lead out of the folder
        tokenizer = load_tokenizer(source.tokenizer_folder)
        if tokenizer.vocab_size > source.settings.vocab_size:
            raise DataError(
                f"{run.source}: its tokenizer has {tokenizer.vocab_size:,} entries, its weights have room for "
                f"{source.settings.vocab_size:,}"
            )
    parameters = sum(tensor.numel() for tensor in source.state.values())
    if out is not None:

        def fill(aside: Path) -> Json:
            write_own(aside, source)
            return {"parameters": parameters}

        publish(out, "model", fill, config=dump(source.settings))
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in source.state.values()})
    return {
        "family": family_for(source.settings),
        "parameters": parameters,
        "dtype": "/".join(dtypes),
        "heads": {name: value for name, value in dump(source.heads).items() if value and name != "pooling"},
        "labels": source.labels,
        "carried": sorted(source.carried),
        "model": str(out) if out else None,
    }
