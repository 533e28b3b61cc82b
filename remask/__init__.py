"""remask: RoBERTa as a tool.

`remask.load(path)` gives a model to use from Python; everything else is a verb of the command line
(`remask --help`). Nothing heavy is imported here: torch comes with the first thing that needs it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remask.answer.model import load

__all__ = ["load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "load":
        from remask.answer.model import load

        return load
    raise AttributeError(f"module 'remask' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), "load"])  # so that a notebook's completion finds it
