"""Texts -> answers: the one path that evaluate, predict, encode, export's scores, `remask.load` and the server take.

`reader` opens a model with its tokenizer and with the task as it was taught; `runner` puts rows through a network;
`questions` says what can be asked; `model` is all of that behind one object. Nothing is imported here before it is
asked for: the names below need torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remask.answer.model import Model as Model
    from remask.answer.model import load as load
    from remask.answer.reader import Reader as Reader
    from remask.answer.reader import open_reader as open_reader

_HOMES = {"Model": "model", "load": "model", "Reader": "reader", "open_reader": "reader"}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'remask.answer' has no attribute {name!r}")
    return getattr(importlib.import_module(f"remask.answer.{_HOMES[name]}"), name)
