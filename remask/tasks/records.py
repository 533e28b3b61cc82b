"""What a model answers, as plain frozen records; `dataclasses.asdict` of each is what the command line and HTTP say."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Fill:
    """One candidate for a mask; the keys are those that fill-mask has everywhere."""

    score: float
    token: int
    token_str: str
    sequence: str


@dataclass(frozen=True)
class Label:
    """What a text is. Regression: `label` is None and `score` the number. Several labels: those of at least 0.5."""

    label: str | None
    score: float
    scores: dict[str, float] = field(default_factory=dict)
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entity:
    """A tagged piece of a text: characters [start, end)."""

    label: str
    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Tagging:
    """The tag of every word, and the entities that they make: of a text with its characters, of words with theirs."""

    tags: tuple[str, ...]
    entities: tuple[Entity, ...]


@dataclass(frozen=True)
class Answer:
    """A piece of the context, characters [start, end); empty where the context has no answer.

    `score`: how likely its start and its end are, taken together. `null_odds`: log odds that there is no answer."""

    text: str
    start: int
    end: int
    score: float
    null_odds: float = 0.0


@dataclass(frozen=True)
class Choice:
    """Which option, and how likely each is."""

    index: int
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Written:
    """A text that was written. `score`: its log probability by its length, or of each token on average; `finished`: it
    came to its own end before the longest length. `how`: by a `decoder`, or by an encoder alone that filled `masks`."""

    text: str
    score: float
    tokens: int
    finished: bool
    how: str = "decoder"


Record = Label | Tagging | Answer | Choice | Written


@dataclass(frozen=True)
class Ranked:
    """A text by its closeness to a query (cosine)."""

    index: int
    score: float
    text: str


@dataclass(frozen=True)
class Encoded:
    """Token ids with the special ones, and the last hidden state of each (tokens x width, fp32)."""

    ids: np.ndarray
    states: np.ndarray


@dataclass(frozen=True)
class CrossLook:
    """Where the tokens of a written text look in its source: layers x heads x tokens written x tokens read."""

    source: tuple[str, ...]
    written: tuple[str, ...]
    attentions: np.ndarray


@dataclass(frozen=True)
class Tokenized:
    """The tokens of a text without special ones, and the characters [start, end) that each stands for."""

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
