"""What is asked of a network and how its states are read: one method for each kind of answer.

A `Question` holds the rows that must go through the network, a `Reading` of their states, and what makes the answer of
what was read. So the rows of many questions, also of different kinds, can share batches (`model.Model.together`).
Not here: batches and the network's forward pass (runner), HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from remask.answer.decoding import OnStep
from remask.answer.mask_writing import fill_masks
from remask.answer.prompting import empty_example, prompt_kind, with_priors
from remask.answer.reader import Reader
from remask.answer.runner import Reading, Row, Runner
from remask.errors import DataError
from remask.model.settings import Pooling
from remask.progress import counted
from remask.schema import Batch
from remask.tasks.kind import Item
from remask.tasks.kinds import StoredTask
from remask.tasks.race import ChoiceQuestion
from remask.tasks.records import Answer, Choice, Encoded, Entity, Fill, Label, Ranked, Tagging, Tokenized, Written
from remask.tasks.rows import Rows, cut
from remask.tasks.settings import DecodeChanges, DecodeSettings, MaskOrder, PromptSettings, RowSettings
from remask.tasks.squad import Question as Asked
from remask.tasks.tables import Example
from remask.tasks.tags import in_words
from remask.tasks.write import Draft, Write, text_from
from remask.tokenizer import Tokenizer

LongTexts = Literal["model", "error", "cut", "windows"]
Pair = tuple[str, str]
ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")
OtherT = TypeVar("OtherT")

_NEW_TOKENS = 20  # that an encoder alone adds to a text, unless told
_MASKS_AT_ONCE = 128  # scores over a whole vocabulary are large


class TooLongError(DataError):
    """A text beyond the model's length that may not be cut."""


class NoMaskError(DataError):
    """A text to fill in without a mask."""


class TargetError(DataError):
    """A word that is not one token of the vocabulary, so that it has no score."""


class PromptError(DataError):
    """A pattern or a word that cannot be asked."""


class CannotError(DataError):
    """The model has no head for that."""


class StreamedError(DataError):
    """A text that cannot be shown while it is written."""


def tell_text(tokenizer: Tokenizer, say: Callable[[str], None]) -> OnStep:
    """Hears tokens, says text: what is new whenever the characters so far are whole."""
    ids: list[int] = []
    told = 0

    def step(chosen: Sequence[tuple[int, int]]) -> None:
        nonlocal told
        ids.extend(token for _, token in chosen)
        text = tokenizer.decode(ids)
        if len(text) > told and not text.endswith("\ufffd"):
            say(text[told:])
            told = len(text)

    return step


@dataclass(frozen=True)
class Question(Generic[AnswerT]):
    """Rows for the network, how their states are read, and the answer as a function of what was read of each row."""

    rows: Sequence[Row]
    reading: Reading
    answer: Callable[[list[Any]], AnswerT]

    def then(self, change: Callable[[AnswerT], OtherT]) -> Question[OtherT]:
        """The same rows, with another answer made of this one."""
        return Question(self.rows, self.reading, lambda outputs: change(self.answer(outputs)))


def without_rows(answer: Callable[[], AnswerT]) -> Question[AnswerT]:
    """What needs nothing of the network."""
    return Question((), Reading("nothing", lambda batch, hidden_BSD: ()), lambda outputs: answer())


class Questions:
    """Everything that can be asked of one model."""

    def __init__(self, reader: Reader, runner: Runner) -> None:
        self.reader, self.runner = reader, runner
        self.network, self.tokenizer = runner.network, reader.tokenizer
        self.settings, self.folder = reader.loaded.settings, reader.loaded.folder
        self.frame = reader.frame()  # as long as the model reads: what is asked of no task
        self.on_text: Callable[[int], object] = lambda size: None  # before work on a text of so many characters

    @property
    def methods(self) -> tuple[str, ...]:
        """What this model can do."""
        fills = ("fill_mask", "prompt") if self.reader.loaded.heads.masked_lm else ()
        by_masks = ("write",) if fills else ()  # where there is no decoder
        every = (*fills, *self.reader.tasks, *by_masks, "embed", "rank", "encode", "tokenize")
        return tuple(dict.fromkeys(every))

    # ---------------------------------------------------------------------------------------------- fill-mask

    def fill_mask(
        self, texts: Sequence[str], top: int = 5, targets: Sequence[str] | None = None
    ) -> Question[list[list[Fill]]]:
        self._need("fill_mask")
        if top < 1:
            raise DataError(f"top = {top}: at least one candidate must be asked for")
        wanted = None if targets is None else self._targets(targets)
        rows = []
        for text in texts:
            self.on_text(len(text))
            ids = self.tokenizer.encode_marked(text)
            if self.tokenizer.mask_id not in ids:
                raise NoMaskError(f"{_short(text)}: has no {self.tokenizer.special_names['mask']} to fill")
            rows.append(self._joined([ids], None, text))

        def read(batch: Batch, hidden_BSD: Tensor) -> list[list[Fill]]:
            fills: list[list[Fill]] = [[] for _ in range(batch.num_rows)]
            width = batch.input_ids_BS.shape[1]
            for some_M in self._masks(batch).split(_MASKS_AT_ONCE):
                scores_MV = self.network.masked_lm(hidden_BSD, some_M).float().softmax(-1)
                for place, scores, tokens in zip(some_M.tolist(), *self._best(scores_MV, top, wanted), strict=True):
                    self.on_text(0)
                    row, column = divmod(place, width)
                    ids = batch.input_ids_BS[row, 1 : int(batch.lengths_B[row]) - 1].cpu().numpy()
                    for score, token in zip(scores, tokens, strict=True):
                        text = self._filled(ids, column - 1, token)
                        fills[row].append(Fill(score, token, self._token_text(token), text))
            return fills

        key = None if wanted is None else tuple(map(tuple, wanted))
        return Question(rows, Reading(("fill_mask", top, key), read, self._masks), list)

    def _masks(self, batch: Batch) -> Tensor:
        """Their flat positions."""
        return (batch.input_ids_BS == self.tokenizer.mask_id).flatten().nonzero().squeeze(1)

    def _targets(self, words: Sequence[str]) -> list[list[int]]:
        """The tokens that each word may be: with and without the space before it, where they are one token."""
        targets = []
        for word in words:
            forms = dict.fromkeys(
                int(ids[0]) for form in (word, f" {word}") if len(ids := self.tokenizer.encode(form)) == 1
            )
            if not forms:
                raise TargetError(f"targets: {_short(word)} is not one token of this vocabulary")
            targets.append(list(forms))
        return targets

    def _best(
        self, scores_MV: Tensor, top: int, wanted: list[list[int]] | None
    ) -> tuple[list[list[float]], list[list[int]]]:
        """The best tokens of each mask with their scores: of all, or of the wanted words, each in its likelier form."""
        if wanted is None:
            best = scores_MV[:, : self.tokenizer.vocab_size].topk(min(top, self.tokenizer.vocab_size), dim=-1)
            return best.values.tolist(), best.indices.tolist()
        forms = sorted({token for word in wanted for token in word})
        scores, tokens = [], []
        for row in scores_MV[:, forms].tolist():
            score = dict(zip(forms, row, strict=True))
            chosen = dict.fromkeys(max(word, key=score.__getitem__) for word in wanted)
            best = sorted(chosen, key=lambda token: -score[token])[:top]
            scores.append([score[token] for token in best])
            tokens.append(best)
        return scores, tokens

    def _token_text(self, token: int) -> str:
        if self.tokenizer.kind == "other" and token not in self.tokenizer.special_ids:
            return self.tokenizer.decode([token])  # without the signs that such vocabularies put for spaces
        return self.tokenizer.token_text(token)

    def _filled(self, ids: np.ndarray, place: int, token: int) -> str:
        """The text with one mask filled; the other masks keep their name."""
        others = np.setdiff1d(np.flatnonzero(ids == self.tokenizer.mask_id), [place])
        ids = ids.copy()
        ids[place] = token
        pieces = np.split(ids, np.stack([others, others + 1], 1).reshape(-1))
        mask = self.tokenizer.special_names["mask"]
        return "".join(mask if i % 2 else self.tokenizer.decode(piece) for i, piece in enumerate(pieces))

    def prompt(
        self,
        texts: Sequence[str | Pair],
        patterns: str | Sequence[str],
        words: Mapping[str, Sequence[str]],
        *,
        calibrate: bool = True,
        long_texts: LongTexts = "error",
    ) -> Question[list[Label]]:
        """Calibration asks about an empty text besides, in the same batch."""
        self._need("prompt")
        items = _examples(texts)
        try:
            settings = PromptSettings(
                patterns=(patterns,) if isinstance(patterns, str) else tuple(patterns),
                words={label: (one,) if isinstance(one, str) else tuple(one) for label, one in words.items()},
                calibrate=calibrate,
            )
        except ValidationError as error:
            raise PromptError(str(error.errors()[0]["ctx"]["error"])) from None
        if not settings.patterns or not settings.words:
            raise PromptError("a prompt needs a pattern and words")
        if any((len(item.texts) == 2) != settings.takes_pairs for item in items):
            raise PromptError("patterns with {text2} take pairs of texts, and others single ones")
        labels = tuple(settings.words)
        kind = prompt_kind(self.reader, settings, labels)
        asked = [*items, *([empty_example(kind)] if calibrate else [])]
        self.on_text(len(kind.settings.patterns) * sum(len(text) for item in items for text in item.texts))
        rows_settings = RowSettings(max_length=self.settings.max_length)
        rows = kind.encode(asked, labels, self.tokenizer, self.frame, rows_settings, labelled=False)
        if rows.num_cut and long_texts != "cut":
            raise TooLongError(f'{counted(rows.num_cut, "text")}: too long for the pattern; cut (long_texts = "cut")')

        def answer(outputs: list[np.ndarray]) -> list[Label]:
            count = len(items) * rows.group_size
            scored = with_priors(kind, outputs[count:]) if calibrate else kind
            return scored.answers(outputs[:count], rows, items, labels, refuses=False) if items else []

        return Question(_pairs(rows), self.runner.reading(kind, rows), answer)

    # -------------------------------------------------------------------------------------------------- tasks

    def _ask(
        self,
        method: str,
        items: Sequence[Item],
        size: int,
        long_texts: LongTexts = "model",
        task: StoredTask | None = None,
        on_step: OnStep | None = None,
    ) -> Question[list[Any]]:
        """The task behind `method` about items, encoded as in training. `size`: their characters in all. `task`: the
        same with other settings."""
        self._need(method)
        if not items:
            return without_rows(list)
        self.on_text(size)
        task = task or self.reader.tasks[method]
        settings = task.rows
        if long_texts != "model":
            settings = settings.model_copy(update={"long_texts": "windows" if long_texts == "windows" else "cut"})
        rows = self.reader.encode(items, task=task, rows=settings)
        # A foreign model does not say what it was taught to do with long texts, so none is cut without a word.
        refuse = long_texts == "error" or (long_texts == "model" and self.reader.stored is None)
        if refuse and rows.num_cut:
            self._refuse_long(items, task, settings)

        def answer(outputs: list[Any]) -> list[Any]:
            self.on_text(size)
            return self.reader.read(outputs, rows, items, task)

        return Question(_pairs(rows), self.runner.reading(task.kind, rows, task.drafting, on_step), answer)

    def _refuse_long(self, items: Sequence[Item], task: StoredTask, settings: RowSettings) -> None:
        longest = next(item for item in items if self.reader.encode([item], task=task, rows=settings).num_cut)
        length = self.reader.frame(settings).max_length
        raise TooLongError(
            f"{longest.place}: does not fit into the {length:,} tokens that this model reads; shorten it, "
            'or have it cut (long_texts = "cut")'
        )

    def classify(self, texts: Sequence[str | Pair], *, long_texts: LongTexts = "model") -> Question[list[Label]]:
        items = _examples(texts)
        size = sum(len(part) for item in items for part in item.texts)
        return self._ask("classify", items, size, long_texts)

    def tag(self, texts: Sequence[str]) -> Question[list[list[Entity]]]:
        items = [in_words(text, _short(text)) for text in _several(texts)]
        with_words = [item for item in items if item.words]

        def entities(tagged: list[Tagging]) -> list[list[Entity]]:
            answers = iter(tagged)
            return [list(next(answers).entities) if item.words else [] for item in items]

        return self._ask("tag", with_words, sum(map(len, texts)), "cut").then(entities)  # a giant word is cut

    def answers(self, pairs: Sequence[Pair]) -> Question[list[Answer]]:
        items = [Asked(str(number), q, c, (), "", _short(q)) for number, (q, c) in enumerate(pairs)]
        # Long contexts are read in windows whatever is said; a question beyond its 64 tokens is cut, as in training.
        return self._ask("answer", items, sum(len(q) + len(c) for q, c in pairs), "cut")

    def choose(
        self, text: str, options: Sequence[str], question: str = "", *, long_texts: LongTexts = "model"
    ) -> Question[Choice]:
        self._need("choose")
        if len(options) < 2:
            raise DataError(f"{len(options)} options: a choice needs at least two")
        passage, asked = (text, question) if question else ("", text)
        item = ChoiceQuestion(passage, asked, tuple(options), 0, "", _short(text))
        size = len(text) + len(question) + sum(map(len, options))
        return self._ask("choose", [item], size, long_texts).then(lambda answers: answers[0])

    def write(
        self,
        texts: Sequence[str | tuple[str, ...]],
        changes: DecodeChanges | None = None,
        order: MaskOrder | None = None,
        long_texts: LongTexts = "model",
        on_step: OnStep | None = None,
    ) -> Question[list[Written]]:
        """`on_step` hears of the tokens of a text that is asked about alone."""
        self._need("write")
        changes = changes or DecodeChanges()
        if "write" not in self.reader.tasks:
            several = [text if isinstance(text, str) else " ".join(text) for text in _several(texts)]
            return self._continue(several, changes, order or "left", on_step)
        if order is not None:
            raise DataError(f"order = {order}: is for an encoder without a decoder, which fills masks")
        task = self.reader.tasks["write"]
        task = replace(task, decode=changes.over(task.decode))
        assert isinstance(task.kind, Write)
        parts = [[text] if isinstance(text, str) else list(text) for text in _several(texts)]
        items = [task.kind.passage(some, (), _short(" ".join(some)), task.table) for some in parts]
        size = sum(len(item.source) for item in items)
        return self._ask("write", items, size, long_texts, task, on_step)

    def _continue(
        self, texts: Sequence[str], changes: DecodeChanges, order: MaskOrder, on_step: OnStep | None
    ) -> Question[list[Written]]:
        """An encoder alone: masks after each text, filled one by one."""
        if (changes.beams or 1) > 1 or changes.by == "sentences":
            asked = "by = sentences" if changes.by == "sentences" else f"beams = {changes.beams}"
            raise CannotError(
                f"{self.folder.name}: {asked}: this model has no decoder; it continues a text by "
                "filling masks, one after the other (fine-tune it with --task write for a decoder)"
            )
        settings = changes.over(DecodeSettings(no_repeat=3))
        count = settings.max_length or _NEW_TOKENS
        mask_id = self.tokenizer.mask_id
        rows = []
        for text in texts:
            self.on_text(len(text))
            ids = self.tokenizer.encode(text)
            rows.append(self._joined([np.concatenate([ids, np.full(count, mask_id, ids.dtype)])], None, text))
        never = self.tokenizer.special_ids

        def step(chosen: Sequence[tuple[int, int]]) -> None:
            for hear in (self.runner.on_step, on_step):
                if hear is not None:
                    hear(chosen)

        def read(batch: Batch, hidden_BSD: Tensor) -> list[Draft]:
            return fill_masks(self.network, batch, hidden_BSD, mask_id, never, settings, order, step)

        def answer(drafts: list[Draft]) -> list[Written]:
            added = [text_from(draft, self.tokenizer, strip=False) for draft in drafts]
            return [
                Written(text + more, draft.score, len(draft.ids), draft.finished, "masks")
                for text, more, draft in zip(texts, added, drafts, strict=True)
            ]

        return Question(rows, Reading(("masks", settings, order, on_step), read), answer)

    # ------------------------------------------------------------------------------------------------ vectors

    def embed(
        self,
        texts: Sequence[str],
        *,
        prompt: str | None = None,
        pooling: Pooling | None = None,
        normalize: bool = True,
        long_texts: LongTexts = "error",
    ) -> Question[np.ndarray]:
        before = "" if prompt is None else self._prompt(prompt)
        rows = [self.row(before + text, long_texts) for text in _several(texts)]

        def read(batch: Batch, hidden_BSD: Tensor) -> list[np.ndarray]:
            vectors_BD = self.network.embed(hidden_BSD, batch.lengths_B, pooling).float()
            if normalize:
                vectors_BD = torch.nn.functional.normalize(vectors_BD, dim=-1)
            return list(vectors_BD.cpu().numpy())

        def answer(vectors: list[np.ndarray]) -> np.ndarray:
            broken = sum(not np.isfinite(vector).all() for vector in vectors)
            if broken:
                raise DataError(f"the vectors of {broken:,} of {len(vectors):,} texts are no numbers (NaN)")
            return np.stack(vectors) if vectors else np.zeros((0, self.settings.hidden_size), np.float32)

        return Question(rows, Reading(("embed", pooling, normalize), read), answer)

    def rank(self, query: str, texts: Sequence[str], *, long_texts: LongTexts = "error") -> Question[list[Ranked]]:
        # A model that was taught with prompts has one for each side; one without them reads both sides alike.
        asked, offered = (self.reader.prompts.get(name, "") for name in ("query", "document"))
        both = [asked + query, *(offered + text for text in _several(texts))]

        def ranked(vectors: np.ndarray) -> list[Ranked]:
            scores = vectors[1:] @ vectors[0]
            return [Ranked(int(i), float(scores[i]), texts[i]) for i in np.argsort(-scores, kind="stable")]

        return self.embed(both, long_texts=long_texts).then(ranked)

    def encode(
        self, texts: Sequence[str | Pair], *, long_texts: LongTexts = "error", marked: bool = False
    ) -> Question[list[Encoded]]:
        rows = [self.row(text, long_texts, marked) for text in _several(texts)]

        def read(batch: Batch, hidden_BSD: Tensor) -> list[Encoded]:
            lengths, states = batch.lengths_B.tolist(), hidden_BSD.float().cpu().numpy()
            ids = batch.input_ids_BS.cpu().numpy().astype(np.int32)
            return [Encoded(ids[i, :n].copy(), states[i, :n].copy()) for i, n in enumerate(lengths)]

        return Question(rows, Reading("encode", read), list)

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        tokenized = []
        for text in _several(texts):
            self.on_text(len(text))
            ids, spans = self.tokenizer.encode_with_offsets(text)
            names = tuple(self.tokenizer.token_text(int(token)) for token in ids)
            tokenized.append(Tokenized(tuple(ids.tolist()), names, tuple((int(a), int(b)) for a, b in spans)))
        return tokenized

    # ------------------------------------------------------------------------------------------------- inside

    def _need(self, method: str) -> None:
        if method not in self.methods:
            raise CannotError(f"{self.folder.name}: this model cannot {method}; it can {', '.join(self.methods)}")

    def _prompt(self, name: str) -> str:
        known = self.reader.prompts
        if name not in known:
            has = f"has {', '.join(map(repr, known))}" if known else "has none"
            raise DataError(f"prompt = {name!r}: {self.folder.name} {has}; leave it out to embed texts as they are")
        return known[name]

    def row(self, text: str | tuple[str, ...], long_texts: LongTexts, marked: bool = False) -> Row:
        """A text or pair with its special tokens. `marked`: the mask's name in it is the mask."""
        texts = [text] if isinstance(text, str) else list(text)
        self.on_text(sum(map(len, texts)))
        encode = self.tokenizer.encode_marked if marked else self.tokenizer.encode
        return self._joined([encode(part) for part in texts], long_texts, texts[0])

    def _joined(self, parts: list[np.ndarray], long_texts: LongTexts | None, text: str) -> Row:
        """`long_texts` None: they can only be refused."""
        room = self.frame.room(len(parts))
        size = sum(len(part) for part in parts)
        if size > room:
            if long_texts != "cut":
                hint = "" if long_texts is None else ', or have it cut (long_texts = "cut")'
                raise TooLongError(f"{_short(text)}: has {size:,} tokens, this model takes {room:,}; shorten it{hint}")
            parts = cut(parts, room)
        return self.frame.join(parts)


def _pairs(rows: Rows) -> list[Row]:
    """Rows as the runner takes them: each with its segments, which are 0 where the model has none."""
    segments = rows.segments or [np.zeros_like(ids) for ids in rows.ids]
    return list(zip(rows.ids, segments, strict=True))


def _examples(texts: Sequence[str | Pair]) -> list[Example]:
    several = [(text,) if isinstance(text, str) else tuple(text) for text in _several(texts)]
    return [Example(parts, None, _short(parts[0])) for parts in several]


def _several(texts: Sequence[ItemT]) -> Sequence[ItemT]:
    """A lone text would be taken letter by letter, silently."""
    if isinstance(texts, str):
        raise DataError(f"{_short(texts)}: give a list of texts, also for one: [{_short(texts)}]")
    return texts


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
