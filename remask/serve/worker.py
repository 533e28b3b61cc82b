"""The engine's process: it owns the models, does one group of pieces after the other and writes their answers as JSON.

In, through a pipe: groups of (number, model, task, inputs, options). Out: for each piece the JSON of every input, or an
error with its code; and what was measured. While it lives it keeps moving a deadline in shared memory, after every
layer of the network too; whoever started it ends it when the deadline has passed. Not here: HTTP, queues.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from ctypes import c_double
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from remask import signals
from remask.allocator import keep_few_kernels, keep_freed_memory
from remask.answer.settings import Int8Settings, shown_int8
from remask.errors import DataError, RemaskError, is_out_of_memory
from remask.schema import Json
from remask.serve import searching
from remask.serve.schemas import Input
from remask.serve.settings import ServeSettings
from remask.workers import die_with_parent

if TYPE_CHECKING:
    from remask.answer.model import Model
    from remask.answer.questions import Question
    from remask.finding.index import Index
    from remask.precision import Format
    from remask.tasks.records import Encoded, Written

LOADING_S = 600.0  # reading a large model from a slow disk is no stall
_IDLE_S = 0.5
_CHARACTERS_PER_S = 40_000  # in Python and the tokenizer, on a slow machine that is busy
_MAX_CANDIDATES = 5_000  # for the masks of one text, and of a piece: each comes with the whole text again
_MAX_NUMBERS = 4_000_000  # of hidden states in one piece

ErrorFacts = tuple[str, str]  # code and message
Counts = tuple[int, int, int]  # tokens, tokens with padding, batches
Answered = list[bytes] | ErrorFacts  # the JSON of every input of a piece, or why there is none
Work = tuple[int, str, str, list[Input], Json]  # number, model (ID or ID@STEP), task, inputs, options


@dataclass(frozen=True)
class Assignment:
    """What an engine is started with."""

    models: Mapping[str, Path]
    precision: str
    device: str
    settings: ServeSettings
    parent: int
    int8: Int8Settings
    chosen: Format | None = None  # what an engine before this one took: trying formats out again would only take time


@dataclass(frozen=True)
class Failed:
    """The models could not be opened."""

    error: type[RemaskError]
    message: str


@dataclass(frozen=True)
class Ready:
    """What there is, and tokens a second."""

    facts: dict[str, Json]
    rate: float
    notes: list[str]


@dataclass(frozen=True)
class NewText:
    """What is new of a text that is streamed: of which group, and which piece of it."""

    group: int
    number: int
    text: str


@dataclass(frozen=True)
class Done:
    """A group with its answers, and what it took; `counts` are of all models since the start."""

    group: int
    answers: dict[int, Answered]
    tokens: int
    seconds: float
    counts: Counts


Message = Failed | Ready | NewText | Done


class Life:
    """The deadline in shared memory by which this process will have moved on."""

    def __init__(self, deadline: c_double, stall_s: float) -> None:
        self._deadline, self._stall_s = deadline, stall_s

    def beat(self, seconds: float = 0.0) -> None:
        self._deadline.value = time.monotonic() + self._stall_s + seconds

    def text(self, size: int) -> None:
        """Before work on a text: until its tokens are there no layer tells of progress."""
        self.beat(size / _CHARACTERS_PER_S)


def run(link: Connection, deadline: c_double, assignment: Assignment) -> None:
    """A process's life: load, say what there is, work until the other end closes."""
    signals.ignore()
    die_with_parent(assignment.parent)
    keep_few_kernels()
    keep_freed_memory()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    life = Life(deadline, assignment.settings.stall_s)
    life.beat(LOADING_S)
    try:
        from remask.precision import choose_precision  # torch belongs into this process alone

        chosen = assignment.chosen or choose_precision(assignment.precision, assignment.device)[0]
        models = Models(assignment, life, chosen)
        facts = {name: models.facts(name) for name in assignment.models}
        rate = models.warm_up()
    except RemaskError as error:
        link.send(Failed(type(error), str(error)))
        return
    life.beat()
    link.send(Ready(facts, rate, models.notes))
    try:
        while True:
            while not link.poll(_IDLE_S):
                life.beat()
            group, work = link.recv()
            life.beat()
            began, tokens = time.perf_counter(), models.counts()[0]
            answers = models.answer(work, lambda number, text, group=group: link.send(NewText(group, number, text)))
            seconds = time.perf_counter() - began
            counts = models.counts()
            link.send(Done(group, answers, counts[0] - tokens, seconds, counts))
    except (EOFError, OSError):
        return


class Models:
    """The opened models: those given for good, training steps as they are asked for (the least lately used goes)."""

    def __init__(self, assignment: Assignment, life: Life, precision: Format) -> None:
        import torch

        if assignment.settings.threads:
            torch.set_num_threads(assignment.settings.threads)
        self.precision, self._assignment, self._life = precision, assignment, life
        self.notes: list[str] = []
        self._indices = {name: searching.opened(path) for name, path in assignment.models.items()}
        folders = {  # an index is asked through the model that it was made with
            name: assignment.models[name] if index is None else searching.model_of(index)
            for name, index in self._indices.items()
        }
        self._kept = {name: self._open(path) for name, path in folders.items()}
        self._steps: OrderedDict[str, Model] = OrderedDict()
        self._gone = (0, 0, 0)  # counts of steps that were closed

    def _open(self, path: Path) -> Model:
        from remask.answer.model import load

        self._life.beat(LOADING_S)
        settings = self._assignment.settings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = load(
                path, device=self._assignment.device, batch_tokens=settings.max_batch_tokens, precision=self.precision,
                int8=self._assignment.int8,
            )  # fmt: skip
        if model.int8_report is not None:
            self.notes.append(f"{path.name}: {shown_int8(model.int8_report)}")
        encoder = model.network.encoder
        for module in (*encoder.attentions, *encoder.ffns):
            module.register_forward_hook(lambda *_: self._life.beat())
        model.questions.on_text = self._life.text
        model.runner.on_step = lambda chosen: self._life.beat()
        self.notes += [str(warning.message) for warning in caught]  # a damaged checkpoint that was passed over
        self._life.beat()
        return model

    def get(self, name: str, path: Path | None) -> Model:
        """The model, or for a path the training step there."""
        if path is None:
            return self._kept[name]
        if name not in self._steps:
            while len(self._steps) >= self._assignment.settings.max_loaded_steps:
                _, old = self._steps.popitem(last=False)
                gone, more = self._gone, _counts(old)
                self._gone = gone[0] + more[0], gone[1] + more[1], gone[2] + more[2]
            self._steps[name] = self._open(path)
        self._steps.move_to_end(name)
        return self._steps[name]

    def counts(self) -> Counts:
        """Tokens, tokens with padding, batches of all models since the start."""
        models = [*self._kept.values(), *self._steps.values()]
        rows = [self._gone, *(_counts(model) for model in models)]
        return sum(row[0] for row in rows), sum(row[1] for row in rows), sum(row[2] for row in rows)

    def warm_up(self) -> float:
        """Measure what batches cost each model; tokens a second of the slowest, in two rows of 128 or what it reads."""
        rates = []
        for model in self._kept.values():
            length = min(128, model.settings.max_length)
            costs = model.runner.measure(model.settings.max_length)
            rates.append(2 * length / max(1e-9, costs.seconds([length] * 2)))
        return min(rates)

    def facts(self, name: str) -> Json:
        """What /v1/models says about a model, but for its steps."""
        model = self._kept[name]
        settings, reader = model.settings, model.reader
        task = reader.task if reader.tasks else None
        takes = None  # a foreign model does not say
        if reader.stored is not None:
            takes = "pair" if reader.stored.table.text2 else "text"
        tasks = [method.replace("_", "-") for method in model.methods]
        if "classify" in tasks and takes != "text":
            tasks.insert(tasks.index("classify") + 1, "pairs")
        index = self._indices[name]
        if index is not None:
            tasks.insert(0, "search")
        return {
            "tasks": tasks,
            "labels": list(task.labels) or None if task else None,
            "kind": task.kind.name if task else None,
            "takes": takes,
            "decoder": model.heads.writer is not None,
            "mask_token": model.tokenizer.special_names["mask"],
            "max_length": settings.max_length,
            "num_layers": settings.num_layers,
            "num_heads": settings.num_heads,
            "hidden_size": settings.hidden_size,
            "vocab_size": settings.vocab_size,
            "parameters": model.num_parameters,
            "precision": self.precision,
            "tokenizer": model.tokenizer.kind,
            "index": None if index is None else searching.facts(index),
            "folder": model.folder.name,
        }

    # --------------------------------------------------------------------------------------------- answering

    def answer(
        self, work: list[tuple[Work, Path | None]], say: Callable[[int, str], None] = lambda number, text: None
    ) -> dict[int, Answered]:
        """For every piece the JSON of each input, or why not; pieces of one model share its batches. `say` hears of
        the tokens of texts that are asked for as they are written."""
        answers: dict[int, Answered] = {}
        by_model: dict[str, list[tuple[Work, Path | None]]] = {}
        for piece, path in work:
            by_model.setdefault(piece[1], []).append((piece, path))
        for name, pieces in by_model.items():
            try:
                model = self.get(name, pieces[0][1])
            except RemaskError:
                failed = ("unknown_model", f"{name}: this step cannot be read any more")
                answers |= {piece[0]: failed for piece, _ in pieces}
                continue
            try:
                answers |= self._answer_one(model, [piece for piece, _ in pieces], self._indices.get(name), say)
            except Exception as error:  # our own mistake must not take the others' answers along
                failed = ("internal", "the engine failed on this request")
                if is_out_of_memory(error):
                    failed = ("unavailable", "too little memory for this request; send fewer or shorter texts")
                    sys.stderr.write(f"remask: {name}: {failed[1]}\n")
                else:
                    traceback.print_exc()
                answers |= {piece[0]: failed for piece, _ in pieces}
        return answers

    def _answer_one(
        self, model: Model, pieces: list[Work], index: Index | None, say: Callable[[int, str], None]
    ) -> dict[int, Answered]:
        answers: dict[int, Answered] = {}
        asked: dict[int, list[Question[list[bytes]]]] = {}
        for number, _, task, inputs, options in pieces:
            try:
                if task == "search":
                    asked[number] = [searching.ask(index, model, list(map(str, inputs)), options, self._life.beat)]
                else:
                    asked[number] = ask(model, task, inputs, options, lambda text, number=number: say(number, text))
            except DataError as error:
                answers[number] = error_facts(error)
        every = [question.then(self._alive) for questions in asked.values() for question in questions]
        answered = iter(model.together(every))
        for number, questions in asked.items():
            texts: list[bytes] = []
            wrong: DataError | None = None
            for answer in islice(answered, len(questions)):
                if isinstance(answer, DataError):
                    wrong = wrong or answer
                else:
                    texts += answer
            answers[number] = error_facts(wrong) if wrong else texts
        return answers

    def _alive(self, answer: list[bytes]) -> list[bytes]:
        self._life.beat()
        return answer


def _counts(model: Model) -> Counts:
    return model.runner.num_tokens, model.runner.num_padded, model.runner.num_batches


def ask(
    model: Model, task: str, inputs: list[Any], options: Json, say: Callable[[str], None] = lambda text: None
) -> list[Question[list[bytes]]]:
    """The questions that a piece is, in the order of its inputs; each answers with JSON. `say` hears of the tokens of
    a text that is streamed."""
    from remask.answer.questions import without_rows

    questions = model.questions
    cut = {"long_texts": options["long_texts"]} if "long_texts" in options else {}
    if task == "fill-mask":
        mask = model.tokenizer.special_names["mask"]
        counts = [text.count(mask) * options["top_k"] for text in inputs]
        if max(counts) > _MAX_CANDIDATES or sum(counts) > 10 * _MAX_CANDIDATES:
            raise DataError(f"{max(counts):,} candidates for one text; ask for fewer (top_k), or send it in parts")
        return [questions.fill_mask(inputs, options["top_k"], options["targets"]).then(_each)]
    if task == "prompt":
        asked = (options["patterns"], options["words"])
        return [questions.prompt(inputs, *asked, calibrate=options["calibrate"], **cut).then(_each)]
    if task in ("classify", "pairs"):
        return [questions.classify(inputs, **cut).then(_each)]
    if task == "tag":
        return [questions.tag([text]).then(_each) for text in inputs]
    if task == "answer":
        return [questions.answers([pair]).then(_each) for pair in inputs]
    if task == "choose":
        choices = [questions.choose(text, offered, question, **cut) for text, offered, question in inputs]
        return [choice.then(lambda chosen: [_json(chosen)]) for choice in choices]
    if task == "write":
        written = _ask_to_write(model, inputs, options, say)
        return [written.then(lambda drafts: _drafts(model, inputs, options, drafts))]
    if task == "embed":
        how = {name: options[name] for name in ("prompt", "pooling", "normalize")}
        vectors = questions.embed(inputs, **how, **cut)
        counted = options.get("count")
        return [vectors.then(lambda rows: _counted(model, inputs, options, rows)) if counted else vectors.then(_each)]
    if task == "rank":
        rankings = [questions.rank(query, texts, **cut) for query, texts in inputs]
        return [ranking.then(lambda ranked: [_json(ranked[: options["top_k"]])]) for ranking in rankings]
    if task == "encode":
        states = questions.encode(inputs, marked=options["marked"], **cut)
        return [states.then(lambda encoded: _each(_encoded(model, inputs, options, encoded)))]
    assert task == "tokenize"
    return [without_rows(lambda: [_tokens(model, text) for text in inputs])]


def _ask_to_write(
    model: Model, inputs: list[Any], options: Json, say: Callable[[str], None]
) -> Question[list[Written]]:
    from remask.answer.questions import StreamedError, tell_text
    from remask.tasks.settings import DecodeChanges, DecodeSettings

    known = {name: options[name] for name in DecodeChanges.model_fields if options[name] is not None}
    changes = DecodeChanges.model_validate(known)
    on_step = None
    if options["stream"]:
        decode = model.reader.tasks["write"].decode if "write" in model.reader.tasks else DecodeSettings()
        decode = changes.over(decode)
        if decode.num_beams > 1:
            raise StreamedError(f"stream: with {decode.beams} beams no token is certain before the end; send beams = 1")
        if decode.by == "sentences":
            raise StreamedError("stream: a sentence of the source is taken as a whole; send by = sampling or beams = 1")
        if options["order"] == "certainty":
            raise StreamedError("stream: masks filled by certainty have no order to read in; send order = left")
        on_step = tell_text(model.reader.targets or model.tokenizer, say)
    return model.questions.write(inputs, changes, options["order"], options["long_texts"], on_step)


def _drafts(model: Model, inputs: list[Any], options: Json, drafts: list[Written]) -> list[bytes]:
    texts = []
    for source, draft in zip(inputs, drafts, strict=True):
        shown: Json = {**vars(draft)}
        if options["attentions"] and draft.how == "decoder" and draft.text:
            look = model.look_across(source, draft.text)
            shown["look"] = {**vars(look), "attentions": np.round(look.attentions, 4)}
        texts.append(_json(shown))
    return texts


def _counted(model: Model, inputs: list[str], options: Json, vectors: np.ndarray) -> list[bytes]:
    sizes = [len(model.questions.row(text, options["long_texts"])[0]) for text in inputs]
    return [_json({"vector": vector, "tokens": size}) for vector, size in zip(vectors, sizes, strict=True)]


def _tokens(model: Model, text: str) -> bytes:
    (tokenized,) = model.tokenize([text])
    model.questions.on_text(len(text))
    return _json({**vars(tokenized), "bytes": _bytes(model, tokenized.ids)})


def _encoded(model: Model, inputs: list[Any], options: Json, encoded: list[Encoded]) -> list[Json]:
    from remask.answer.attention_maps import MAX_TOKENS
    from remask.answer.questions import TooLongError

    size = sum(len(text.ids) for text in encoded)
    if options["attentions"] and size > MAX_TOKENS:
        raise TooLongError(f"{size} tokens: attention is shown for at most {MAX_TOKENS} in one request")
    if options["states"] and size * model.settings.hidden_size > _MAX_NUMBERS:
        raise TooLongError(f"{size} tokens of {model.settings.hidden_size} numbers are too many for one answer")
    answers = []
    for item, text in zip(inputs, encoded, strict=True):
        names = [model.tokenizer.token_text(int(token)) for token in text.ids]
        answer: Json = {"ids": text.ids, "tokens": names, "bytes": _bytes(model, text.ids)}
        if options["states"]:
            answer["states"] = text.states
        if options["attentions"]:
            row = model.questions.row(item, options["long_texts"], options["marked"])
            answer["attentions"] = np.round(model.attentions(*row), 4)
        answers.append(answer)
    return answers


def _bytes(model: Model, ids: Iterable[int]) -> list[str]:
    """What each token stands for, in hexadecimal: a part of a character is no text."""
    return [model.tokenizer.token_bytes[int(token)].hex() for token in ids]


def _json(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _each(answers: Iterable[object]) -> list[bytes]:
    return [_json(answer) for answer in answers]


def error_facts(error: DataError) -> ErrorFacts:
    from remask.answer.questions import CannotError, NoMaskError, PromptError, TargetError, TooLongError

    codes: dict[type[DataError], str] = {
        TooLongError: "text_too_long",
        NoMaskError: "no_mask",
        TargetError: "bad_target",
        PromptError: "bad_prompt",
        CannotError: "cannot",
    }
    return codes.get(type(error), "bad_input"), str(error)
