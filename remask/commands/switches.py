"""`remask switches`: every design decision that can be turned, straight from the run models."""

from __future__ import annotations

import importlib
import json

import click

from remask.commands import Common, common_options
from remask.config import Config, switches
from remask.schema import Json

# verb -> the run model whose switches it reads, by name so that nothing is imported before it is asked for.
RUN_MODELS = {
    "quickstart": "remask.starter.settings:QuickstartRun",
    "prepare": "remask.preparation.settings:PrepareRun",
    "inspect": "remask.commands.inspect:InspectRun",
    "pretrain": "remask.pretraining.settings:PretrainRun",
    "adapt": "remask.adaptation.settings:AdaptRun",
    "finetune": "remask.commands.finetune:FinetuneRun",
    "tune": "remask.tune.settings:TuneRun",
    "evaluate": "remask.commands.evaluate:EvaluateRun",
    "predict": "remask.answer.predict:PredictRun",
    "fill-mask": "remask.commands.fill_mask:FillMaskRun",
    "encode": "remask.answer.encode:EncodeRun",
    "index": "remask.finding.settings:IndexRun",
    "search": "remask.finding.settings:SearchRun",
    "serve": "remask.commands.serve:ServeRun",
    "import": "remask.commands.import:ImportRun",
    "export": "remask.commands.export:ExportRun",
    "monitor": "remask.monitoring.settings:MonitorRun",
    "study": "remask.studies.settings:StudyRun",
    "describe": "remask.commands.describe:DescribeRun",
}


def run_model(verb: str) -> type[Config]:
    module, name = RUN_MODELS[verb].split(":")
    return getattr(importlib.import_module(module), name)


@click.command()
@click.argument("verb", required=False, type=click.Choice(list(RUN_MODELS)))
@common_options
def command(verb: str | None, common: Common) -> None:
    """Every design decision that can be turned, its values and its effect.

    Effects: math changes what the model computes, data changes what it reads, speed changes neither.
    """
    verbs = [name for name in RUN_MODELS if verb in (None, name)]
    chosen = [(name, setting) for name in verbs for setting in switches(run_model(name))]
    rows: list[Json] = [
        {
            "verb": name,
            "key": setting.key,
            "default": setting.default,
            "values": setting.values,
            "effect": setting.effect,
            "doc": setting.doc,
        }
        for name, setting in chosen
    ]
    common.result({"switches": rows}, _table(rows))


def _table(rows: list[Json]) -> str:
    lines = []
    for verb in dict.fromkeys(row["verb"] for row in rows):
        lines += ["", f"remask {verb} --set KEY=VALUE"]
        for row in (row for row in rows if row["verb"] == verb):
            values = " | ".join(json.dumps(value, ensure_ascii=False) for value in row["values"])
            lines += [f"  {row['key']} = {json.dumps(row['default'], default=str)}    [{row['effect']}]"]
            lines += [f"      {row['doc']}" + (f" ({values})" if values else "")]
    return "\n".join(lines[1:])
