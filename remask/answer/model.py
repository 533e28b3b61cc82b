"""A model to use: `remask.load(path)`, then `fill_mask`, `prompt`, `classify`, `tag`, `answer`, `choose`, `embed`, ….

In: a run, checkpoint, model or Hugging Face folder, and texts. Out: the records of answers.py, in the order of the
texts. The rows of all texts (`together`: of all questions) run in batches of like length within a budget of padded
tokens; nothing here depends on what else is in a batch. Only torch, tokenizers and safetensors are imported.
Not here: what is asked and how it is read (questions), HTTP (app), training, metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from remask import signals
from remask.answer.attention_maps import attention_maps, look_across
from remask.answer.int8 import to_int8
from remask.answer.questions import AnswerT, LongTexts, Pair, Question, Questions
from remask.answer.reader import Reader, open_reader
from remask.answer.runner import BATCH_TOKENS, Check, Runner
from remask.answer.settings import Int8Settings
from remask.config import build_values
from remask.errors import DataError, UnavailableError
from remask.model.packed import for_answers
from remask.model.settings import Pooling
from remask.precision import Format, base_format
from remask.tasks.records import Answer, Choice, CrossLook, Encoded, Entity, Fill, Label, Ranked, Tokenized, Written
from remask.tasks.rows import Rows
from remask.tasks.settings import DecodeChanges, MaskOrder


def load(
    path: str | Path,
    *,
    device: str = "cpu",
    batch_tokens: int = BATCH_TOKENS,
    precision: Format = "fp32",
    packed: bool = True,
    int8: Int8Settings | None = None,
) -> Model:
    """Open a model to use it: a run folder (its newest good checkpoint), a checkpoint, an exported or foreign folder.

    `batch_tokens`: how many padded tokens go through the network at once. `precision` bf16: the products are made in
    that format, which the machine must have (`remask doctor`). int8: 8-bit products on a CPU, compared with fp32 first
    and refused (DataError) where they cost too much; `int8` says how much that is, `Model.int8_report` what it was.
    `packed`: on CPUs, matrices are laid out anew for their
    products; that makes answers faster and takes longer than a few answers do.

    >>> model = remask.load("runs-out/mine")                                          # doctest: +SKIP
    >>> model.fill_mask("The capital of France is <mask>.", top=1)[0].token_str       # doctest: +SKIP
    ' Paris'
    """
    reader = open_reader(Path(path))
    return Model(reader, device=device, batch_tokens=batch_tokens, precision=precision, packed=packed, int8=int8)


class Model:
    """An opened model. Methods whose head it lacks raise a DataError that names the ones it has."""

    def __init__(
        self,
        reader: Reader,
        *,
        device: str | torch.device = "cpu",
        batch_tokens: int = BATCH_TOKENS,
        precision: Format = "fp32",
        packed: bool = True,
        int8: Int8Settings | None = None,
    ) -> None:
        loaded = reader.loaded
        self.settings, self.heads, self.labels, self.folder = (
            loaded.settings,
            loaded.heads,
            loaded.labels,
            loaded.folder,
        )
        self.reader, self.tokenizer = reader, reader.tokenizer
        try:
            network = loaded.network.to(torch.device(device))
        except (RuntimeError, AssertionError) as error:  # torch has one of each
            raise UnavailableError(f"device = {device}: {str(error).splitlines()[0][:160]}") from error
        self.num_parameters = sum(parameter.numel() for parameter in network.parameters())
        self.precision, self.int8_report = precision, None
        """The number format of its products; what int8 costs, where they are that."""
        base = precision
        if precision == "int8":
            network, self.int8_report = to_int8(reader, network, int8 or Int8Settings())
            base = base_format()
        self.network = for_answers(network, base, packed=packed)
        self.runner = Runner(
            self.network, self.tokenizer.pad_id, has_segments=reader.frame().segments, precision=base,
            batch_tokens=batch_tokens,
        )  # fmt: skip
        self.questions = Questions(reader, self.runner)

    def __repr__(self) -> str:
        shape = f"{self.settings.num_layers} layers x {self.settings.hidden_size}"
        size = f"{self.num_parameters / 1e6:.1f}M parameters"
        return f"<remask model {self.folder.name}: {shape}, {size}; {', '.join(self.methods)}>"

    @property
    def prompts(self) -> Mapping[str, str]:
        """What can be put before texts to embed, by name."""
        return self.reader.prompts

    @property
    def methods(self) -> tuple[str, ...]:
        """What this model can do."""
        return self.questions.methods

    # ------------------------------------------------------------------------------------------------- answers

    @overload
    def fill_mask(self, texts: str, top: int = 5, targets: Sequence[str] | None = None) -> list[Fill]: ...

    @overload
    def fill_mask(
        self, texts: Sequence[str], top: int = 5, targets: Sequence[str] | None = None
    ) -> list[list[Fill]]: ...

    def fill_mask(
        self, texts: str | Sequence[str], top: int = 5, targets: Sequence[str] | None = None
    ) -> list[Fill] | list[list[Fill]]:
        """The likeliest tokens for the mask of a text, best first; for several texts a list each.

        A text with several masks gets the candidates of the first, then of the second, and so on; each `sequence`
        has that one filled in. `targets`: only these words are scored, each as one token, with or without the space
        before it (the likelier of the two).
        """
        several = [texts] if isinstance(texts, str) else list(texts)
        answers = self._now(self.questions.fill_mask(several, top, targets))
        return answers[0] if isinstance(texts, str) else answers

    def prompt(
        self,
        texts: Sequence[str | Pair],
        pattern: str | Sequence[str],
        words: Mapping[str, Sequence[str]],
        *,
        calibrate: bool = True,
        long_texts: LongTexts = "error",
    ) -> list[Label]:
        """The class of each text or pair without fine-tuning, by the words that fit into a pattern's mask.

        `pattern`: one or several sentences with {text}, for pairs also {text2}, and one <mask>. `words`: for each label
        the words that mean it. `calibrate`: words are scored against what they score around an empty text.

        >>> words = {"positive": ["great", "good"], "negative": ["bad", "terrible"]}             # doctest: +SKIP
        >>> model.prompt(["It broke after a day."], "{text} It was <mask>.", words)[0].label     # doctest: +SKIP
        'negative'
        """
        return self._now(self.questions.prompt(texts, pattern, words, calibrate=calibrate, long_texts=long_texts))

    def classify(self, texts: Sequence[str | Pair], *, long_texts: LongTexts = "model") -> list[Label]:
        """The class of each text or pair of texts (for regression its number).

        `long_texts`: what to do with texts beyond the model's rows: as it was taught, refuse them, cut them, or read
        them in windows and take the mean. A foreign model, which does not say what it was taught, refuses them.
        """
        return self._now(self.questions.classify(texts, long_texts=long_texts))

    def tag(self, texts: Sequence[str]) -> list[list[Entity]]:
        """The entities of each text. Words are runs of letters and digits, and single other signs.

        A text beyond the model's length goes on in further rows.
        """
        return self._now(self.questions.tag(texts))

    def answer(self, question: str, context: str) -> Answer:
        """The piece of the context that answers the question, empty where it has none."""
        return self.answers([(question, context)])[0]

    def answers(self, pairs: Sequence[Pair]) -> list[Answer]:
        """The same for many (question, context); a long context is read in overlapping windows."""
        return self._now(self.questions.answers(pairs))

    def choose(
        self, text: str, options: Sequence[str], question: str = "", *, long_texts: LongTexts = "model"
    ) -> Choice:
        """Which of the options goes with the text, or answers the `question` about it.

        A `_` in the question (without one: in the text) is where the option belongs.
        """
        return self._now(self.questions.choose(text, options, question, long_texts=long_texts))

    @overload
    def write(
        self, texts: str, *, order: MaskOrder | None = None, long_texts: LongTexts = "model", **decode: Any
    ) -> Written: ...

    @overload
    def write(
        self,
        texts: Sequence[str | tuple[str, ...]],
        *,
        order: MaskOrder | None = None,
        long_texts: LongTexts = "model",
        **decode: Any,
    ) -> list[Written]: ...

    def write(
        self,
        texts: str | Sequence[str | tuple[str, ...]],
        *,
        order: MaskOrder | None = None,
        long_texts: LongTexts = "model",
        **decode: Any,
    ) -> Written | list[Written]:
        """What the model writes about each text (a tuple: its sentences or turns); for one text its own record.

        `decode`: beams, length_penalty, no_repeat, max_length, by ("beams", "sampling", "sentences"), temperature,
        top_k, top_p, seed; what is not said is as the model was scored. A model without a decoder continues a text by
        filling masks after it, in the `order` "left" (to right) or "certainty" (the surest first).
        """
        several = [texts] if isinstance(texts, str) else list(texts)
        changes = build_values(DecodeChanges, decode, place="write")
        answers = self._now(self.questions.write(several, changes, order, long_texts))
        return answers[0] if isinstance(texts, str) else answers

    def look_across(self, text: str | tuple[str, ...], written: str) -> CrossLook:
        """Where each token of a text that was written looks in its source: the decoder's attention."""
        with torch.inference_mode(), self.runner.products():
            return look_across(self.reader, self.runner, text, written)

    def embed(
        self,
        texts: Sequence[str],
        *,
        prompt: str | None = None,
        pooling: Pooling | None = None,
        normalize: bool = True,
        long_texts: LongTexts = "error",
    ) -> np.ndarray:
        """One vector a text (texts x width, fp32), of length 1 unless `normalize` is off.

        `prompt`: the name of a text that the model was taught to read before these ("query", "document"); None: they
        are read as they are. `pooling`: the first token's state or the mean over the tokens; by default as the model
        was made.
        """
        asked = self.questions.embed(texts, prompt=prompt, pooling=pooling, normalize=normalize, long_texts=long_texts)
        return self._now(asked)

    def rank(self, query: str, texts: Sequence[str], *, long_texts: LongTexts = "error") -> list[Ranked]:
        """The texts by closeness to the query, closest first."""
        return self._now(self.questions.rank(query, texts, long_texts=long_texts))

    def encode(
        self, texts: Sequence[str | Pair], *, long_texts: LongTexts = "error", marked: bool = False
    ) -> list[Encoded]:
        """Ids and last hidden states of each text. `marked`: the mask's name in a text is the mask, not its letters."""
        return self._now(self.questions.encode(texts, long_texts=long_texts, marked=marked))

    def attentions(self, ids: np.ndarray, segments: np.ndarray | None = None) -> np.ndarray:
        """Who looks at whom in one row of ids: layers x heads x tokens x tokens, every line a distribution."""
        batch = self.runner.batch([(ids, np.zeros_like(ids) if segments is None else segments)])
        with torch.inference_mode(), self.runner.products():
            return attention_maps(self.network, batch)

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """The tokens of each text, without special ones."""
        return self.questions.tokenize(texts)

    # ------------------------------------------------------------------------------------------------- running

    def _now(self, question: Question[AnswerT]) -> AnswerT:
        results = self.runner.run(question.rows, [question.reading] * len(question.rows))
        return question.answer([results[i] for i in range(len(question.rows))])

    def together(self, questions: Sequence[Question[AnswerT]]) -> list[AnswerT | DataError]:
        """What each question answers, their rows in shared batches; in place of an answer the DataError it met."""
        rows = [row for question in questions for row in question.rows]
        readings = [question.reading for question in questions for _ in question.rows]
        results = self.runner.run(rows, readings)
        answers: list[AnswerT | DataError] = []
        first = 0
        for question in questions:
            outputs = [results[first + i] for i in range(len(question.rows))]
            first += len(outputs)
            try:
                answers.append(question.answer(outputs))
            except DataError as error:
                answers.append(error)
        return answers

    def outputs(self, rows: Rows, check: Check = signals.check) -> list[np.ndarray]:
        """What the head of its task says about encoded rows; `check` is called after every batch."""
        task = self.reader.task
        return self.runner.outputs(rows, task.kind, check, task.drafting)
