"""remask: RoBERTa as a tool.

`remask.load(path)` gives a model to use. `remask.prepare`, `pretrain`, `adapt`, `finetune`, `tune_recipe`, `evaluate`,
`predict`, `encode`, `export`, `index`, `search`, `monitor` and `study` do what the verbs of the command line do
(`remask --help`, docs/python.md). Nothing heavy is imported here: torch comes with the first thing that needs it.
"""

from typing import TYPE_CHECKING, Any

from remask import errors
from remask.progress import Progress

if TYPE_CHECKING:
    from remask.answer.model import load
    from remask.api import (
        adapt,
        encode,
        evaluate,
        export,
        finetune,
        index,
        monitor,
        predict,
        prepare,
        pretrain,
        search,
        study,
        tune_recipe,
    )

__all__ = [
    "Progress",
    "adapt",
    "encode",
    "errors",
    "evaluate",
    "export",
    "finetune",
    "index",
    "load",
    "monitor",
    "predict",
    "prepare",
    "pretrain",
    "search",
    "study",
    "tune_recipe",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'remask' has no attribute {name!r}")
    if name == "load":
        from remask.allocator import no_collecting

        with no_collecting():
            from remask.answer.model import load
        return load
    from remask import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])  # so that a notebook's completion finds them
