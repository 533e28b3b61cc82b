"""`remask serve MODEL…`: an HTTP server and a page for one or several models.

MODEL is a run, checkpoint, model or Hugging Face folder, or ID=FOLDER; a run's training steps can be asked for as
ID@STEP. Needs the extra `serve`. Not here: everything that serves (remask/serve).
"""

from __future__ import annotations

from typing import Literal

import click

from remask.answer.settings import Int8Settings
from remask.commands import Common, common_options, run_file
from remask.config import Config, setting
from remask.errors import UnavailableError, UsageError, install_command
from remask.progress import Progress
from remask.schema import Json
from remask.serve.catalog import entries
from remask.serve.settings import ServeSettings


class ServeRun(Config):
    """What is served, and where. A token is no part of it: run files are kept and shared."""

    models: tuple[str, ...] = setting(..., "run, checkpoint, model or Hugging Face folders, or ID=FOLDER", min_length=1)
    host: str = setting("127.0.0.1", "the address to listen at; beyond loopback only with a token")
    port: int = setting(8000, "the port; 0: a free one", ge=0, le=65_535)
    precision: Literal["auto", "fp32", "bf16", "int8"] = setting(
        "auto", "of matrix products; auto: bf16 where the machine has it; int8: checked against fp32 first"
    )
    int8: Int8Settings = setting(Int8Settings(), "precision int8: what it may cost")
    device: str = setting("cpu", "cpu, cuda, ...")
    request_log: str | None = setting(None, "a file that gets one JSON line a request; -: stdout")
    log_texts: bool = setting(False, "the request log has the texts, too")
    limits: ServeSettings = setting(ServeSettings(), "how much the server takes on")


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="RUN.yaml | MODEL…")
@click.option("--host", help="The address to listen at (127.0.0.1); beyond loopback only with a token.")
@click.option("--port", type=int, help="The port (8000); 0: a free one.")
@click.option("--token", envvar="REMASK_TOKEN", help="What clients must send as Authorization: Bearer TOKEN.")
@click.option("--precision", type=click.Choice(["auto", "fp32", "bf16", "int8"]), help="Of matrix products.")
@click.option("--int8-eval", "int8__eval_file", metavar="FILE", help="int8: a file with labels to score both forms on.")
@click.option("--request-log", metavar="FILE", help="One JSON line a request: id, model, task, status, ms; -: stdout.")
@click.option("--log-texts", is_flag=True, default=None, help="The texts, too. Without it none is written.")
@common_options
def command(words: tuple[str, ...], token: str | None, common: Common, **options: object) -> None:
    """Serve MODELs over HTTP, with a page at /. Stops after a signal when all requests are answered."""
    file, first, rest = run_file(words)
    models = None if first is None else [first, *rest]
    built = common.build(ServeRun, file, models=models, **options)
    main(built.run, token, common=common)


def main(run: ServeRun, token: str | None, *, common: Common) -> None:
    """Check the address, load the models, serve."""
    try:
        from remask.serve.server import Address, check_address, serve
    except ImportError as error:
        raise UnavailableError(f"{error.name or error} is not installed: {install_command('serve')}") from None
    address = Address(run.host, run.port, token)
    check_address(address)
    found = entries(run.models)
    if run.int8.eval_file is not None and len(found) > 1:
        raise UsageError("--int8-eval is a file of one model's task; serve one model with it")
    if common.dry_run:
        return
    progress: Progress = common.progress
    progress.say(f"loading {', '.join(entry.id for entry in found)} ...")

    def on_ready(url: str, models: list[Json]) -> None:
        lines = [f"serving at {url}"]
        for model in models:
            lines.append(f"  {model['id']} ({model['precision']}): {', '.join(model['tasks'])}")
        common.result({"url": url, "models": models}, "\n".join(lines))

    serve(
        found,
        address,
        run.limits,
        precision=run.precision,
        int8=run.int8,
        device=run.device,
        on_ready=on_ready,
        say=progress.warn,
        request_log=run.request_log,
        log_texts=run.log_texts,
    )
