"""What clients send and get: one strict, bounded model for each path; the OpenAPI document is made from these.

Out of a checked request come plain inputs (texts, tuples) and options for the engine. The answers' models only
document: the engine's process writes the JSON itself. Not here: routes (app), what the answers mean (answers.py).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from remask.schema import Json
from remask.tasks.settings import DecodeBy

MAX_BODY_BYTES = 2_000_000
MAX_INPUTS = 256
MAX_HITS = 1_000
MAX_CHARACTERS = 200_000

Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
Word = Annotated[str, Field(min_length=1, max_length=200)]
Pattern = Annotated[
    str, Field(min_length=1, max_length=2_000, description="a sentence with {text}, perhaps {text2}, and one <mask>")
]
LongTexts = Annotated[
    Literal["error", "cut"], Field(description="a text beyond the model's length: refuse it or cut it")
]
TaskLongTexts = Annotated[
    Literal["model", "error", "cut", "windows"],
    Field(description="beyond its rows: as the model was taught, refuse it, cut it, or read windows of it"),
]


# One input as the engine gets it: a text, or its parts: two texts, a query and its texts, a text and its options.
Input = str | tuple[str | list[str], ...]


def _whole(value: object) -> object:
    """JSON has one kind of number: 5.0 is the integer 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class TextPair(Strict):
    text: Text
    text2: Text


class QuestionContext(Strict):
    question: Annotated[Text, Field(min_length=1)]
    context: Annotated[Text, Field(min_length=1)]


class TextOptions(Strict):
    text: Text
    options: list[Text] = Field(min_length=2, max_length=32)
    question: Text = Field("", description="about the text; where it has a `_`, the option is put there")


class QueryTexts(Strict):
    query: Text
    texts: list[Text] = Field(min_length=1, max_length=MAX_INPUTS)


ListPair = Annotated[list[Text], Field(min_length=2, max_length=2)]
Texts = Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS)]


_PAIR = '[text, text2] or {"text": ..., "text2": ...}'


class Asked(Strict):
    """What every request has. `one_input`: what an input is, for whoever sent something else."""

    one_input: ClassVar[str] = "a text"
    most_inputs: ClassVar[int] = MAX_INPUTS
    model: Annotated[str, Field(min_length=1, max_length=120, description="an id of /v1/models, or ID@STEP")] | None = (
        None
    )

    def items(self) -> list[Input]:
        """The inputs as a list, whether one or several were sent."""
        inputs = self.model_dump(include={"inputs"})["inputs"]
        return [_plain(item) for item in (inputs if isinstance(inputs, list) else [inputs])]

    def options(self) -> Json:
        return self.model_dump(exclude={"model", "inputs"})


def _plain(item: str | list[str] | dict[str, str | list[str]]) -> Input:
    if isinstance(item, str):
        return item
    return tuple(item.values()) if isinstance(item, dict) else tuple(item)


class FillMask(Asked):
    inputs: Texts
    top_k: Annotated[int, BeforeValidator(_whole), Field(ge=1, le=100)] = 5
    targets: Annotated[list[Word], Field(min_length=1, max_length=1_000)] | None = None


class Prompt(Asked):
    one_input = f"a text, or {_PAIR} in a list"
    inputs: Text | TextPair | Annotated[list[Text | TextPair | ListPair], Field(min_length=1, max_length=MAX_INPUTS)]
    patterns: Annotated[list[Pattern], Field(min_length=1, max_length=8)]
    words: Annotated[
        dict[Word, Annotated[list[Word], Field(min_length=1, max_length=32)]], Field(min_length=2, max_length=64)
    ] = Field(description="for each label the words that mean it")
    calibrate: bool = Field(True, description="score words against what they score around an empty text")
    long_texts: LongTexts = "error"


class Classify(Asked):
    inputs: Texts
    long_texts: TaskLongTexts = "model"


class _Pairs(Asked):
    """One pair sent as a list of two texts looks like a list: it is told from a list of pairs by what it holds."""

    one_input = _PAIR

    def items(self) -> list[Input]:
        inputs = self.model_dump(include={"inputs"})["inputs"]
        several = isinstance(inputs, list) and not isinstance(inputs[0], str)
        return [_plain(item) for item in (inputs if several else [inputs])]


class Pairs(_Pairs):
    inputs: TextPair | ListPair | Annotated[list[TextPair | ListPair], Field(min_length=1, max_length=MAX_INPUTS)]
    long_texts: TaskLongTexts = "model"


class Tag(Asked):
    inputs: Texts


class Answer(Asked):
    one_input = '{"question": ..., "context": ...}'
    inputs: QuestionContext | Annotated[list[QuestionContext], Field(min_length=1, max_length=MAX_INPUTS)]


class Choose(Asked):
    one_input = '{"text": ..., "options": [...]}'
    inputs: TextOptions | Annotated[list[TextOptions], Field(min_length=1, max_length=MAX_INPUTS)]
    long_texts: Literal["model", "error", "cut"] = "model"


class Embed(Asked):
    inputs: Texts
    prompt: Annotated[Word, Field(description="the name of what the model reads before each text")] | None = None
    pooling: Literal["first", "mean"] | None = None
    normalize: bool = True
    long_texts: LongTexts = "error"


class Rank(Asked):
    one_input = '{"query": ..., "texts": [...]}'
    inputs: QueryTexts | Annotated[list[QueryTexts], Field(min_length=1, max_length=MAX_INPUTS)]
    top_k: Annotated[int, BeforeValidator(_whole), Field(ge=1, le=MAX_INPUTS)] | None = None
    long_texts: LongTexts = "error"


class Search(Asked):
    one_input = "a query"
    inputs: Texts
    top_k: Annotated[int, BeforeValidator(_whole), Field(ge=1, le=MAX_HITS)] = 10
    by: Literal["vectors", "words", "both"] = "both"
    lists: bool = Field(False, description="also what vectors alone and words alone find")
    point: bool = Field(False, description="also where the query and each passage stand on the map of /v1/map")


class Encode(Asked):
    one_input = f"a text, or {_PAIR} in a list"
    inputs: Text | TextPair | Annotated[list[Text | TextPair | ListPair], Field(min_length=1, max_length=MAX_INPUTS)]
    states: bool = True
    attentions: bool = False
    marked: bool = False
    long_texts: LongTexts = "error"


class Tokenize(Asked):
    inputs: Texts


MAX_WRITTEN = 32  # texts of a request: each token of each is a pass of its own


class Write(Asked):
    most_inputs = MAX_WRITTEN
    inputs: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_WRITTEN)]
    by: DecodeBy | None = None
    beams: Annotated[int, BeforeValidator(_whole), Field(ge=1, le=16)] | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None
    no_repeat: Annotated[int, BeforeValidator(_whole), Field(ge=0, le=16)] | None = None
    temperature: Annotated[float, Field(gt=0, le=100)] | None = None
    top_k: Annotated[int, BeforeValidator(_whole), Field(ge=0, le=1_000_000)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, BeforeValidator(_whole), Field(ge=0, lt=2**63)] | None = None
    max_length: Annotated[int, BeforeValidator(_whole), Field(ge=1, le=512)] | None = None
    order: Literal["left", "certainty"] | None = Field(None, description="of masks, where there is no decoder")
    attentions: bool = Field(False, description="with a decoder: where each token looks in the source")
    stream: bool = Field(False, description="of one text: its tokens as server-sent events, as they are chosen")
    long_texts: Literal["model", "error", "cut"] = "model"


# ------------------------------------------------------------------------------------------------- answers


class FillOut(BaseModel):
    score: float
    token: int
    token_str: str
    sequence: str


class LabelOut(BaseModel):
    label: str | None
    score: float
    scores: dict[str, float]
    labels: list[str]


class EntityOut(BaseModel):
    label: str
    text: str
    start: int
    end: int
    score: float


class AnswerOut(BaseModel):
    text: str
    start: int
    end: int
    score: float


class ChoiceOut(BaseModel):
    index: int
    scores: list[float]


class LookOut(BaseModel):
    source: list[str]
    written: list[str]
    attentions: list[list[list[list[float]]]] = Field(description="layers x heads x tokens written x tokens read")


class WrittenOut(BaseModel):
    text: str
    score: float
    tokens: int
    finished: bool
    how: str = Field(description="by a `decoder`, or by filling `masks`")
    look: LookOut | None = Field(default=None, description="only where `attentions` is asked for")


class RankedOut(BaseModel):
    index: int
    score: float
    text: str


class HitOut(BaseModel):
    id: str
    passage: int
    score: float
    text: str
    start: int
    place: str
    fields: Json
    row: int
    before: str
    after: str
    rank_by: dict[str, int]
    point: list[float] = Field(default=[], description="on the map of /v1/map, only where `point` is asked for")


class SearchOut(BaseModel):
    hits: list[HitOut]
    vectors: list[HitOut] = Field(default=[], description="only where `lists` is asked for")
    words: list[HitOut] = Field(default=[], description="only where `lists` is asked for")
    point: list[float] = Field(default=[], description="only where `point` is asked for")


class PointOut(BaseModel):
    row: int
    id: str
    x: float
    y: float
    text: str


class MapOut(BaseModel):
    points: list[PointOut]
    passages: int


Hex = Annotated[str, Field(description="the bytes that a token stands for; empty for special ones")]


class EncodedOut(BaseModel):
    ids: list[int]
    tokens: list[str]
    bytes: list[Hex]
    states: list[list[float]] = Field(default=[], description="only where `states` is asked for")
    attentions: list[list[list[list[float]]]] = Field(default=[], description="only where `attentions` is asked for")


class TokensOut(BaseModel):
    ids: list[int]
    tokens: list[str]
    spans: list[list[int]] = Field(description="code points [start, end) of each, without the space before a word")
    bytes: list[Hex]


def _outputs(name: str, item: Any) -> type[BaseModel]:
    return create_model(name, model=(str, ...), outputs=(list[item], ...))


# task -> (what is sent, what comes back, one line)
TASKS: dict[str, tuple[type[Asked], type[BaseModel], str]] = {
    "fill-mask": (FillMask, _outputs("FillMaskOutputs", list[FillOut]), "The likeliest tokens for each mask."),
    "prompt": (Prompt, _outputs("PromptOutputs", LabelOut), "The class of each text by words for a mask, untrained."),
    "classify": (Classify, _outputs("ClassifyOutputs", LabelOut), "The class of each text, or its number."),
    "pairs": (Pairs, _outputs("PairsOutputs", LabelOut), "The class of each pair of texts."),
    "tag": (Tag, _outputs("TagOutputs", list[EntityOut]), "The entities of each text."),
    "answer": (Answer, _outputs("AnswerOutputs", AnswerOut), "The piece of a context that answers a question."),
    "choose": (Choose, _outputs("ChooseOutputs", ChoiceOut), "Which option goes with a text."),
    "write": (Write, _outputs("WriteOutputs", WrittenOut), "A text about each text, by a decoder or by filling masks."),
    "embed": (Embed, _outputs("EmbedOutputs", list[float]), "One vector for each text."),
    "rank": (Rank, _outputs("RankOutputs", list[RankedOut]), "Texts by their closeness to a query."),
    "search": (Search, _outputs("SearchOutputs", SearchOut), "The passages of an index that a query asks for."),
    "encode": (Encode, _outputs("EncodeOutputs", EncodedOut), "Token ids, last hidden states, attention."),
    "tokenize": (Tokenize, _outputs("TokenizeOutputs", TokensOut), "The tokens of each text."),
}


class ModelOut(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    id: str
    default: bool
    tasks: list[str]
    labels: list[str] | None
    kind: str | None
    takes: str | None
    decoder: bool
    mask_token: str
    max_length: int
    num_layers: int
    num_heads: int
    hidden_size: int
    vocab_size: int
    parameters: int
    precision: str
    tokenizer: str
    index: dict[str, int] | None = Field(description="of an index: its `passages` and `documents`")
    step: int | None
    steps: list[int]


class ListedOut(BaseModel):
    """A model as OpenAI's client lists it."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "remask"


class ModelsOut(BaseModel):
    models: list[ModelOut]
    object: Literal["list"] = "list"
    data: list[ListedOut] = Field(description="the same ids, as OpenAI's client reads them")


class StateOut(BaseModel):
    status: str
    restarts: int


class ErrorDetails(BaseModel):
    code: str
    message: str
    field: str | None = None


class ErrorOut(BaseModel):
    error: ErrorDetails
