"""A model to use: `remask.load(path)`, then `fill_mask`, `classify`, `tag`, `answer`, `choose`, `embed`, `encode`.

In: a run, checkpoint, model or Hugging Face folder, and texts. Out: the records of answers.py, in the order of the
texts. The rows of all texts (`together`: of all questions) run in batches of like length within a budget of padded
tokens; nothing here depends on what else is in a batch. Only torch, tokenizers and safetensors are imported.
Not here: what is asked and how it is read (questions), HTTP (app), training, metrics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast, overload

import numpy as np
import torch

from remask.errors import DataError, UnavailableError
from remask.model.packed import for_answers
from remask.model.settings import Pooling
from remask.model.store import Loaded, open_model
from remask.schema import Batch
from remask.serve.answers import Answer, Choice, Encoded, Entity, Fill, Label, Ranked, Tokens
from remask.serve.attention_maps import attention_maps
from remask.serve.questions import LongTexts, Pair, Question, Questions, Reading, ResultT, Row
from remask.tokenizer import Tokenizer, load_tokenizer

Format = Literal["fp32", "bf16"]
# A batch goes on while its rows are at least this share of its longest one, or while it is smaller than this: attention
# is computed on padded rows, but a small batch does not fill the machine.
_LIKE_LENGTH = 0.75
_SMALL_BATCH = 256


def load(
    path: str | Path,
    *,
    device: str = "cpu",
    batch_tokens: int = 16_384,
    precision: Format = "fp32",
    packed: bool = True,
) -> Model:
    """Open a model to use it: a run folder (its newest good checkpoint), a checkpoint, an exported or foreign folder.

    `batch_tokens`: how many padded tokens go through the network at once. `precision` bf16: the products are made in
    that format, which the machine must have (`remask doctor`). `packed`: on CPUs, matrices are laid out anew for their
    products; that makes answers faster and takes longer than a few answers do.

    >>> model = remask.load("runs-out/mine")                                          # doctest: +SKIP
    >>> model.fill_mask("The capital of France is <mask>.", top=1)[0].token_str       # doctest: +SKIP
    ' Paris'
    """
    loaded = open_model(Path(path))
    if loaded.tokenizer_folder is None:
        raise DataError(f"{path}: has no tokenizer beside the model")
    tokenizer = load_tokenizer(loaded.tokenizer_folder)
    return Model(loaded, tokenizer, device=device, batch_tokens=batch_tokens, precision=precision, packed=packed)


class Model:
    """An opened model. Methods whose head it lacks raise a DataError that names the ones it has."""

    def __init__(
        self,
        loaded: Loaded,
        tokenizer: Tokenizer,
        *,
        device: str = "cpu",
        batch_tokens: int = 16_384,
        precision: Format = "fp32",
        packed: bool = True,
    ) -> None:
        self.settings, self.heads, self.labels, self.folder = (
            loaded.settings,
            loaded.heads,
            loaded.labels,
            loaded.folder,
        )
        self.tokenizer = tokenizer
        self.batch_tokens, self.precision = batch_tokens, precision
        try:
            self.device = torch.device(device)
            network = loaded.network.to(self.device)
        except (RuntimeError, AssertionError) as error:  # torch has one of each
            raise UnavailableError(f"device = {device}: {str(error).splitlines()[0][:160]}") from error
        self.questions = Questions(loaded, tokenizer)
        self.num_tokens = self.num_padded = self.num_batches = 0  # of all that went through the network
        self.num_parameters = sum(parameter.numel() for parameter in network.parameters())
        self.network = for_answers(network, precision, packed=packed)

    def __repr__(self) -> str:
        shape = f"{self.settings.num_layers} layers x {self.settings.hidden_size}"
        size = f"{self.num_parameters / 1e6:.1f}M parameters"
        return f"<remask model {self.folder.name}: {shape}, {size}; {', '.join(self.methods)}>"

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

    def classify(self, texts: Sequence[str | Pair], *, long_texts: LongTexts = "error") -> list[Label]:
        """The class of each text or pair of texts (for regression its number)."""
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
        self, text: str, options: Sequence[str], question: str = "", *, long_texts: LongTexts = "error"
    ) -> Choice:
        """Which of the options goes with the text, or answers the `question` about it.

        A `_` in the question (without one: in the text) is where the option belongs.
        """
        return self._now(self.questions.choose(text, options, question, long_texts=long_texts))

    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        long_texts: LongTexts = "error",
    ) -> np.ndarray:
        """One vector a text (texts x width, fp32), of length 1 unless `normalize` is off.

        `pooling`: the first token's state or the mean over the tokens; by default as the model was made.
        """
        return self._now(self.questions.embed(texts, pooling=pooling, normalize=normalize, long_texts=long_texts))

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
        batch = self._batch([(ids, np.zeros_like(ids) if segments is None else segments)])
        with torch.inference_mode(), self._products():
            return attention_maps(self.network, batch)

    def tokenize(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of each text, without special ones."""
        return self.questions.tokenize(texts)

    # ------------------------------------------------------------------------------------------------- running

    def _now(self, question: Question[ResultT]) -> ResultT:
        (answer,) = self.together([question])
        if isinstance(answer, DataError):
            raise answer
        return cast(ResultT, answer)

    def together(self, asked: Sequence[Question[Any]]) -> list[Any]:
        """What each question answers, their rows in shared batches; in place of an answer the DataError it met."""
        answers: list[Any] = [None] * len(asked)
        rows: list[Row] = []
        readings: list[Reading] = []
        mine: dict[int, range] = {}
        for number, question in enumerate(asked):
            try:
                wanted, reading = next(question)
            except StopIteration as done:
                answers[number] = done.value
            except DataError as error:
                answers[number] = error
            else:
                mine[number] = range(len(rows), len(rows) + len(wanted))
                rows += wanted
                readings += [reading] * len(wanted)
        results = self._run(rows, readings)
        for number, numbers in mine.items():
            try:
                asked[number].send([results[i] for i in numbers])
            except StopIteration as done:
                answers[number] = done.value
            except DataError as error:
                answers[number] = error
            else:
                raise AssertionError("a question yields once")
        return answers

    @torch.inference_mode()
    def _run(self, rows: Sequence[Row], readings: Sequence[Reading]) -> dict[int, Any]:
        """What is read of every row."""
        results: dict[int, Any] = {}
        for numbers in self._batches([len(ids) for ids, _ in rows]):
            batch = self._batch([rows[i] for i in numbers])
            kinds: dict[Any, list[int]] = {}
            for place, number in enumerate(numbers):
                kinds.setdefault(readings[number].key, []).append(place)
            with self._products():
                wanted_M = readings[numbers[0]].looks_at(batch) if len(kinds) == 1 else None
                hidden_BSD = self.network.encode(batch, wanted_M=wanted_M)
                for places in kinds.values():
                    part, hidden = batch, hidden_BSD
                    if len(kinds) > 1:
                        index = torch.tensor(places, device=self.device)
                        part, hidden = batch.map(lambda x, index=index: x[index]), hidden_BSD[index]
                    read = readings[numbers[places[0]]].read(part, hidden)
                    results |= zip((numbers[place] for place in places), read, strict=True)
            self.num_batches += 1
            self.num_tokens += batch.num_tokens
            self.num_padded += batch.input_ids_BS.numel()
        return results

    def _products(self) -> contextlib.AbstractContextManager[Any]:
        if self.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Rows of like length together, longest first, so that too large a batch shows at once."""
        numbers: list[int] = []
        size = 0
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            if numbers:
                longest = lengths[numbers[0]]
                unlike = lengths[i] < _LIKE_LENGTH * longest and size >= _SMALL_BATCH
                if unlike or (len(numbers) + 1) * longest > self.batch_tokens:
                    yield numbers
                    numbers, size = [], 0
            numbers.append(i)
            size += lengths[i]
        if numbers:
            yield numbers

    def _batch(self, rows: Sequence[Row]) -> Batch:
        width = max(len(ids) for ids, _ in rows)
        ids_BS = np.full((len(rows), width), self.tokenizer.pad_id, np.int64)
        segments_BS = np.zeros((len(rows), width), np.int64)
        for i, (ids, segments) in enumerate(rows):
            ids_BS[i, : len(ids)] = ids
            segments_BS[i, : len(segments)] = segments
        lengths_B = np.array([len(ids) for ids, _ in rows], np.int64)
        batch = Batch(ids_BS, lengths_B, segments_BS if self.questions.frame.segments else None)
        return batch.map(lambda array: torch.from_numpy(array).to(self.device))
