"""A model that answers in int8, or a refusal: what goes into its products is measured, and the answers are compared.

In: an opened model in fp32. Out: its network with 8-bit products, and what they cost: the score on a file with labels
before and after or, without one, how often both forms say the same about real sentences. Beyond the bound it is
refused. All of this happens where the model will answer, since 8-bit kernels differ between processors.
Not here: the products (model.int8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from remask.answer import agreement
from remask.answer.reader import Reader
from remask.answer.scores import Scores, scorer
from remask.answer.settings import Int8Settings
from remask.errors import DataError, UnavailableError
from remask.model.int8 import quantise, watch
from remask.model.network import Network
from remask.model.outputs import run_network
from remask.precision import FORMATS, autocast, base_format
from remask.schema import Batch, Json

_HINT = "leave the products that suffer most as they are (keep: down), or answer in bf16 or fp32"


def to_int8(reader: Reader, network: Network, settings: Int8Settings) -> tuple[Network, Json]:
    """The network, changed for good, and what the change costs; a DataError where it costs too much."""
    if next(network.parameters()).device.type != "cpu":
        raise UnavailableError("precision = int8: its products are made for CPUs; use device cpu, or bf16")
    network.eval().requires_grad_(False)
    loaded, tokenizer, base = reader.loaded, reader.tokenizer, base_format()
    rows = agreement.rows_for(tokenizer, loaded.settings, loaded.heads)

    def answer(batch: Batch) -> Mapping[str, np.ndarray]:
        with autocast(base if done else "fp32", "cpu"):
            return run_network(network, batch)

    def said() -> np.ndarray:
        return agreement.predictions(answer, rows, tokenizer, loaded.settings, loaded.heads)

    measure: Callable[[agreement.Answerer], Scores] | None = None
    if settings.eval_file is not None:
        measure = scorer(reader, settings.eval_file, settings.columns())
    done = False
    with watch(network) as ranges:
        before = said()
        scores = None if measure is None else measure(answer)
    quantise(network, ranges, FORMATS[base], settings.keep)
    done = True
    what, value = agreement.alike(before, said(), loaded.heads)
    report: Json = {"agreement": {"what": what, "value": value, "sentences": len(rows)}}
    if measure is not None:
        assert scores is not None
        report["scores"] = _checked(settings, scores, measure(answer))
    elif not value >= settings.min_agreement:
        raise DataError(
            f"int8 and fp32: {what} {value:.4f} on {len(rows)} real sentences, below the bound of "
            f"{settings.min_agreement:g}; {_HINT}; a file with labels (eval_file) is the better judge"
        )
    return network, report


def _checked(settings: Int8Settings, before: Scores, after: Scores) -> Json:
    name = before.metric
    drop = before.metrics[name] - after.metrics[name]
    assert settings.eval_file is not None
    if not drop <= settings.max_drop:
        raise DataError(
            f"int8 lowers {name} on {settings.eval_file.name} from {before.metrics[name]:.4f} to "
            f"{after.metrics[name]:.4f}, by {drop:.4f}, more than max_drop {settings.max_drop:g}; {_HINT}"
        )
    return {
        "set": settings.eval_file.name, "examples": before.examples, "metric": name,
        "before": before.metrics[name], "after": after.metrics[name], "drop": drop,
    }  # fmt: skip
