"""What is asked of a network and how its states are read: one generator for each kind of answer.

A question yields the rows that must go through the network and a `Reading` of their states, is sent what was read of
each row (in order), and returns its answer. So the rows of many questions, also of different kinds, can share batches
(`engine.Model.together`). Not here: batches and the network's forward pass (engine), HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from remask.errors import DataError
from remask.model.settings import Pooling
from remask.model.store import Loaded
from remask.schema import Batch
from remask.serve.answers import Answer, Choice, Encoded, Entity, Fill, Label, Ranked, Tokens
from remask.tasks.rows import Frame, frame_for
from remask.tasks.settings import RowSettings
from remask.tokenizer import Tokenizer

LongTexts = Literal["error", "cut"]
Pair = tuple[str, str]
Row = tuple[np.ndarray, np.ndarray]  # ids, segment ids
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

_MASKS_AT_ONCE = 128  # scores over a whole vocabulary are large


class TooLongError(DataError):
    """A text beyond the model's length that may not be cut."""


class NoMaskError(DataError):
    """A text to fill in without a mask."""


class TargetError(DataError):
    """A word that is not one token of the vocabulary, so that it has no score."""


class CannotError(DataError):
    """The model has no head for that."""


@dataclass(frozen=True)
class Reading:
    """How states are read, row by row. Readings with equal keys are the same function and may be done at once."""

    key: Hashable
    read: Callable[[Batch, Tensor], Sequence[Any]]
    looks_at: Callable[[Batch], Tensor | None] = lambda batch: None  # flat positions; None: all of them


Question = Generator[tuple[list[Row], Reading], list[Any], ResultT]


class Questions:
    """Everything that can be asked of one model."""

    def __init__(self, loaded: Loaded, tokenizer: Tokenizer) -> None:
        self.network, self.settings, self.heads = loaded.network, loaded.settings, loaded.heads
        self.labels, self.folder = loaded.labels, loaded.folder
        self.tokenizer = tokenizer
        self.on_text: Callable[[int], object] = lambda size: None  # before work on a text of so many characters
        if tokenizer.vocab_size > self.settings.vocab_size:
            raise DataError(
                f"{loaded.folder}: the tokenizer has {tokenizer.vocab_size:,} entries, "
                f"the model only {self.settings.vocab_size:,}: they do not belong together"
            )
        self.frame: Frame = frame_for(
            tokenizer,
            RowSettings(max_length=self.settings.max_length),
            model_length=self.settings.max_length,
            num_segments=self.settings.num_segments,
        )

    @property
    def methods(self) -> tuple[str, ...]:
        """What this model can do."""
        heads = self.heads
        has = {
            "fill_mask": heads.masked_lm,
            "classify": heads.num_classes is not None,
            "tag": heads.num_tags is not None,
            "answer": heads.span,
            "choose": heads.choice,
        }
        return (*(name for name, present in has.items() if present), "embed", "rank", "encode", "tokenize")

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
            found: list[list[Fill]] = [[] for _ in range(batch.num_rows)]
            width = batch.input_ids_BS.shape[1]
            for some_M in self._masks(batch).split(_MASKS_AT_ONCE):
                scores_MV = self.network.masked_lm(hidden_BSD, some_M).float().softmax(-1)
                for place, scores, tokens in zip(some_M.tolist(), *self._best(scores_MV, top, wanted), strict=True):
                    self.on_text(0)
                    row, column = divmod(place, width)
                    ids = batch.input_ids_BS[row, 1 : int(batch.lengths_B[row]) - 1].cpu().numpy()
                    for score, token in zip(scores, tokens, strict=True):
                        text = self._filled(ids, column - 1, token)
                        found[row].append(Fill(score, token, self._token_text(token), text))
            return found

        key = None if wanted is None else tuple(map(tuple, wanted))
        return (yield rows, Reading(("fill_mask", top, key), read, self._masks))

    def _masks(self, batch: Batch) -> Tensor:
        """Their flat positions."""
        return (batch.input_ids_BS == self.tokenizer.mask_id).flatten().nonzero().squeeze(1)

    def _targets(self, words: Sequence[str]) -> list[list[int]]:
        """The tokens that each word may be: with and without the space before it, where they are one token."""
        found = []
        for word in words:
            forms = dict.fromkeys(
                int(ids[0]) for form in (word, f" {word}") if len(ids := self.tokenizer.encode(form)) == 1
            )
            if not forms:
                raise TargetError(f"targets: {_short(word)} is not one token of this vocabulary")
            found.append(list(forms))
        return found

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

    # ------------------------------------------------------------------------------------------------ classes

    def classify(self, texts: Sequence[str | Pair], *, long_texts: LongTexts = "error") -> Question[list[Label]]:
        self._need("classify")
        rows = [self.row(text, long_texts) for text in _several(texts)]
        read = Reading(
            "classify", lambda batch, hidden: self._labels(self.network.classify(hidden, batch.lengths_B).float()),
            self.network.first_positions,
        )  # fmt: skip
        return (yield rows, read)

    def _labels(self, logits_BC: Tensor) -> list[Label]:
        names = self._names(logits_BC.shape[1])
        if self.heads.num_classes == 1 and not self.heads.multilabel:
            return [Label(None, float(value)) for value in logits_BC[:, 0].tolist()]
        probs_BC = logits_BC.sigmoid() if self.heads.multilabel else logits_BC.softmax(-1)
        found = []
        for probs in probs_BC.tolist():
            scores = dict(zip(names, probs, strict=True))
            best = max(scores, key=scores.__getitem__)
            chosen = tuple(name for name in names if scores[name] >= 0.5) if self.heads.multilabel else (best,)
            found.append(Label(best, scores[best], scores, chosen))
        return found

    def _names(self, count: int) -> tuple[str, ...]:
        return self.labels or tuple(f"LABEL_{i}" for i in range(count))

    def tag(self, texts: Sequence[str]) -> Question[list[list[Entity]]]:
        from remask.tasks.conll import Sentence, encode_sentences
        from remask.tasks.entities import entities
        from remask.tasks.stream import WORD

        self._need("tag")
        size = sum(map(len, _several(texts)))
        self.on_text(size)
        words = [[(m.group(), m.start(), m.end()) for m in WORD.finditer(text)] for text in texts]
        sentences = [
            Sentence(tuple(w for w, _, _ in found), None, _short(t)) for t, found in zip(texts, words, strict=True)
        ]
        filled = [i for i, sentence in enumerate(sentences) if sentence.words]
        if not filled:
            return [[] for _ in texts]
        assert self.heads.num_tags is not None
        names = self._names(self.heads.num_tags)
        coded = encode_sentences([sentences[i] for i in filled], self.tokenizer, self.frame, names)
        rows = [(ids, np.zeros_like(ids)) for ids in coded.ids]
        probs = yield (
            rows,
            Reading("tag", lambda batch, hidden: list(self.network.tag(hidden).float().softmax(-1).cpu().numpy())),
        )
        self.on_text(size)
        tags = [["O"] * len(sentence.words) for sentence in sentences]
        scores = [[0.0] * len(sentence.words) for sentence in sentences]
        for probs_SC, (number, first, starts) in zip(probs, coded.facts, strict=True):
            for offset, place in enumerate(starts):
                best = int(probs_SC[place].argmax())
                tags[filled[number]][first + offset] = names[best]
                scores[filled[number]][first + offset] = float(probs_SC[place, best])
        return [
            [
                Entity(kind, text[found[a][1] : found[b][2]], found[a][1], found[b][2], min(score[a : b + 1]))
                for kind, a, b in entities(said)
            ]
            for text, found, said, score in zip(texts, words, tags, scores, strict=True)
        ]

    # ------------------------------------------------------------------------------------- answers and choices

    def answers(self, pairs: Sequence[Pair]) -> Question[list[Answer]]:
        from remask.tasks.squad import Question as Asked
        from remask.tasks.squad import answers_from_rows, encode_questions

        self._need("answer")
        if not pairs:
            return []
        size = sum(len(q) + len(c) for q, c in pairs)
        self.on_text(size)
        asked = [Asked(str(i), q, c, (), "", _short(q)) for i, (q, c) in enumerate(pairs)]
        rows = encode_questions(asked, self.tokenizer, self.frame, stride=self.frame.room(2) // 4)

        def read(batch: Batch, hidden_BSD: Tensor) -> list[np.ndarray]:
            logits = [self.network.span(hidden_BSD)]
            if self.heads.answerable:
                sure_B = self.network.answerable(hidden_BSD, batch.lengths_B)
                logits.append(sure_B[:, None, None].expand(-1, hidden_BSD.shape[1], 1))
            rows_BSC = torch.cat(logits, dim=2).float().cpu().numpy()
            return [row[:length] for row, length in zip(rows_BSC, batch.lengths_B.tolist(), strict=True)]

        segments = rows.segments or [np.zeros_like(ids) for ids in rows.ids]
        outputs = yield list(zip(rows.ids, segments, strict=True)), Reading("answer", read)
        self.on_text(size)
        found = []
        for number, said in enumerate(answers_from_rows(outputs, rows, asked)):
            here = [o for o, window in zip(outputs, rows.facts, strict=True) if window.question == number]
            score = max(_probability(said.score, logits_S2) for logits_S2 in here)
            text = said.text if said.null_odds <= 0 else ""
            found.append(Answer(text, said.start if text else 0, said.start + len(text) if text else 0, score))
        return found

    def choose(
        self, text: str, options: Sequence[str], question: str = "", *, long_texts: LongTexts = "error"
    ) -> Question[Choice]:
        from remask.tasks.race import ChoiceQuestion, parts_of

        self._need("choose")
        if len(options) < 2:
            raise DataError(f"{len(options)} options: a choice needs at least two")
        passage, said = (text, question) if question else ("", text)
        asked = ChoiceQuestion(passage, said, tuple(options), 0, "", _short(text))
        rows = [self.row(parts_of(asked, option), long_texts) for option in options]  # as in training
        scores = yield (
            rows,
            Reading(
                "choose", lambda batch, hidden: self.network.choose(hidden, batch.lengths_B).float().tolist(),
                self.network.first_positions,
            ),
        )  # fmt: skip
        probs = torch.tensor(scores).softmax(0)
        return Choice(int(probs.argmax()), tuple(probs.tolist()))

    # ------------------------------------------------------------------------------------------------ vectors

    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        long_texts: LongTexts = "error",
    ) -> Question[np.ndarray]:
        rows = [self.row(text, long_texts) for text in _several(texts)]

        def read(batch: Batch, hidden_BSD: Tensor) -> list[np.ndarray]:
            vectors_BD = self.network.embed(hidden_BSD, batch.lengths_B, pooling).float()
            if normalize:
                vectors_BD = torch.nn.functional.normalize(vectors_BD, dim=-1)
            return list(vectors_BD.cpu().numpy())

        vectors = yield rows, Reading(("embed", pooling, normalize), read)
        return np.stack(vectors) if vectors else np.zeros((0, self.settings.hidden_size), np.float32)

    def rank(self, query: str, texts: Sequence[str], *, long_texts: LongTexts = "error") -> Question[list[Ranked]]:
        vectors = yield from self.embed([query, *_several(texts)], long_texts=long_texts)
        scores = vectors[1:] @ vectors[0]
        return [Ranked(int(i), float(scores[i]), texts[i]) for i in np.argsort(-scores, kind="stable")]

    def encode(
        self, texts: Sequence[str | Pair], *, long_texts: LongTexts = "error", marked: bool = False
    ) -> Question[list[Encoded]]:
        rows = [self.row(text, long_texts, marked) for text in _several(texts)]

        def read(batch: Batch, hidden_BSD: Tensor) -> list[Encoded]:
            lengths, states = batch.lengths_B.tolist(), hidden_BSD.float().cpu().numpy()
            ids = batch.input_ids_BS.cpu().numpy().astype(np.int32)
            return [Encoded(ids[i, :n].copy(), states[i, :n].copy()) for i, n in enumerate(lengths)]

        return (yield rows, Reading("encode", read))

    def tokenize(self, texts: Sequence[str]) -> list[Tokens]:
        found = []
        for text in _several(texts):
            self.on_text(len(text))
            ids, spans = self.tokenizer.encode_with_offsets(text)
            names = tuple(self.tokenizer.token_text(int(token)) for token in ids)
            found.append(Tokens(tuple(ids.tolist()), names, tuple((int(a), int(b)) for a, b in spans)))
        return found

    # ------------------------------------------------------------------------------------------------- inside

    def _need(self, method: str) -> None:
        if method not in self.methods:
            raise CannotError(f"{self.folder.name}: this model cannot {method}; it can {', '.join(self.methods)}")

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
            kept = room if len(parts) == 1 else max(room - len(parts[1]), room // 2)
            parts = [parts[0][:kept], *(part[: room - min(kept, len(parts[0]))] for part in parts[1:])]
        return self.frame.join(parts)


def _probability(score: float, logits_S2: np.ndarray) -> float:
    """How likely a span with this score is in a window: its start's times its end's probability."""
    total = np.logaddexp.reduce(logits_S2[:, :2].astype(np.float64), axis=0).sum()
    return float(min(1.0, np.exp(score - total)))


def _several(texts: Sequence[ItemT]) -> Sequence[ItemT]:
    """A lone text would be taken letter by letter, silently."""
    if isinstance(texts, str):
        raise DataError(f"{_short(texts)}: give a list of texts, also for one: [{_short(texts)}]")
    return texts


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
