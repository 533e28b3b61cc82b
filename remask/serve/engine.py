"""A model to use: `remask.load(path)`, then `fill_mask`, `classify`, `tag`, `answer`, `choose`, `embed`, `encode`.

In: a run, checkpoint, model or Hugging Face folder, and texts. Out: the records of answers.py, in the order of the
texts. Many texts run together, sorted by length, within a budget of padded tokens; nothing here depends on what else
is in a batch. Only torch, tokenizers and safetensors are imported. Not here: HTTP (app), training, metrics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from remask.errors import DataError, UnavailableError
from remask.model.settings import Pooling
from remask.model.store import Loaded, open_model
from remask.schema import Batch
from remask.serve.answers import Answer, Choice, Encoded, Entity, Fill, Label, Ranked, Tokens
from remask.tasks.rows import Frame, frame_for
from remask.tasks.settings import RowSettings
from remask.tokenizer import Tokenizer, load_tokenizer

LongTexts = Literal["error", "cut"]
Pair = tuple[str, str]
Row = tuple[np.ndarray, np.ndarray]  # ids, segment ids
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

_WORD = re.compile(r"\w+|[^\w\s]")


def load(path: str | Path, *, device: str = "cpu", batch_tokens: int = 16_384) -> Model:
    """Open a model to use it: a run folder (its newest good checkpoint), a checkpoint, an exported or foreign folder.

    `batch_tokens`: how many padded tokens go through the network at once.

    >>> model = remask.load("runs-out/mine")                                          # doctest: +SKIP
    >>> model.fill_mask("The capital of France is <mask>.", top=1)[0].token_str       # doctest: +SKIP
    ' Paris'
    """
    loaded = open_model(Path(path))
    if loaded.tokenizer_folder is None:
        raise DataError(f"{path}: has no tokenizer beside the model")
    return Model(loaded, load_tokenizer(loaded.tokenizer_folder), device=device, batch_tokens=batch_tokens)


class Model:
    """An opened model. Methods whose head it lacks raise a DataError that names the ones it has."""

    def __init__(
        self, loaded: Loaded, tokenizer: Tokenizer, *, device: str = "cpu", batch_tokens: int = 16_384
    ) -> None:
        self.settings, self.heads, self.labels, self.folder = (
            loaded.settings,
            loaded.heads,
            loaded.labels,
            loaded.folder,
        )
        self.tokenizer = tokenizer
        self.batch_tokens = batch_tokens
        try:
            self.device = torch.device(device)
            self.network = loaded.network.to(self.device).eval().requires_grad_(False)
        except (RuntimeError, AssertionError) as error:  # torch has one of each
            raise UnavailableError(f"device = {device}: {str(error).splitlines()[0][:160]}") from error
        if tokenizer.vocab_size > self.settings.vocab_size:
            raise DataError(
                f"{loaded.folder}: the tokenizer has {tokenizer.vocab_size:,} entries, "
                f"the model only {self.settings.vocab_size:,}: they do not belong together"
            )
        self._frame: Frame = frame_for(
            tokenizer,
            RowSettings(max_length=self.settings.max_length),
            model_length=self.settings.max_length,
            num_segments=self.settings.num_segments,
        )

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.network.parameters())
        shape = f"{self.settings.num_layers} layers x {self.settings.hidden_size}, {size / 1e6:.1f}M parameters"
        return f"<remask model {self.folder.name}: {shape}; {', '.join(self.methods)}>"

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

    @overload
    def fill_mask(self, texts: str, top: int = 5) -> list[Fill]: ...

    @overload
    def fill_mask(self, texts: Sequence[str], top: int = 5) -> list[list[Fill]]: ...

    def fill_mask(self, texts: str | Sequence[str], top: int = 5) -> list[Fill] | list[list[Fill]]:
        """The likeliest tokens for the mask of a text, best first; for several texts a list each.

        A text with several masks gets the candidates of the first, then of the second, and so on; each `sequence`
        has that one filled in.
        """
        self._need("fill_mask")
        if top < 1:
            raise DataError(f"top = {top}: at least one candidate must be asked for")
        several = [texts] if isinstance(texts, str) else list(texts)
        rows = []
        for text in several:
            ids = self.tokenizer.encode_marked(text)
            if self.tokenizer.mask_id not in ids:
                mask = self.tokenizer.special_names["mask"]
                raise DataError(f"{_short(text)}: has no {mask} to fill")
            rows.append(self._joined([ids], "error", text))

        def answer(batch: Batch, hidden_BSD: Tensor) -> list[list[Fill]]:
            positions_M = (batch.input_ids_BS == self.tokenizer.mask_id).flatten().nonzero().squeeze(1)
            scores_MV = self.network.masked_lm(hidden_BSD, positions_M).float().softmax(-1)
            best = scores_MV[:, : self.tokenizer.vocab_size].topk(min(top, self.tokenizer.vocab_size), dim=-1)
            candidates = zip(positions_M.tolist(), best.values.tolist(), best.indices.tolist(), strict=True)
            found: list[list[Fill]] = [[] for _ in range(batch.num_rows)]
            width = batch.input_ids_BS.shape[1]
            for place, scores, tokens in candidates:
                row, column = divmod(place, width)
                ids = batch.input_ids_BS[row, 1 : int(batch.lengths_B[row]) - 1].cpu().numpy()
                for score, token in zip(scores, tokens, strict=True):
                    text = self._filled(ids, column - 1, token)
                    found[row].append(Fill(score, token, self._token_text(token), text))
            return found

        answers = self._run(rows, answer)
        return answers[0] if isinstance(texts, str) else answers

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

    def classify(self, texts: Sequence[str | Pair], *, long_texts: LongTexts = "error") -> list[Label]:
        """The class of each text or pair of texts (for regression its number)."""
        self._need("classify")
        rows = [self._row(text, long_texts) for text in _several(texts)]
        return self._run(rows, lambda batch, hidden: self._labels(self.network.classify(hidden, batch.lengths_B)))

    def _labels(self, logits_BC: Tensor) -> list[Label]:
        names = self._names(logits_BC.shape[1])
        if self.heads.num_classes == 1 and not self.heads.multilabel:
            return [Label(None, float(value)) for value in logits_BC[:, 0].tolist()]
        probs_BC = logits_BC.float().sigmoid() if self.heads.multilabel else logits_BC.float().softmax(-1)
        found = []
        for probs in probs_BC.tolist():
            scores = dict(zip(names, probs, strict=True))
            best = max(scores, key=scores.__getitem__)
            chosen = tuple(name for name in names if scores[name] >= 0.5) if self.heads.multilabel else (best,)
            found.append(Label(best, scores[best], scores, chosen))
        return found

    def _names(self, count: int) -> tuple[str, ...]:
        return self.labels or tuple(f"LABEL_{i}" for i in range(count))

    def tag(self, texts: Sequence[str]) -> list[list[Entity]]:
        """The entities of each text. Words are runs of letters and digits, and single other signs.

        A text beyond the model's length goes on in further rows.
        """
        from remask.tasks.conll import Sentence, encode_sentences
        from remask.tasks.entities import entities

        self._need("tag")
        words = [[(m.group(), m.start(), m.end()) for m in _WORD.finditer(text)] for text in _several(texts)]
        sentences = [
            Sentence(tuple(w for w, _, _ in found), None, _short(t)) for t, found in zip(texts, words, strict=True)
        ]
        filled = [i for i, sentence in enumerate(sentences) if sentence.words]
        if not filled:
            return [[] for _ in texts]
        assert self.heads.num_tags is not None
        names = self._names(self.heads.num_tags)
        coded = encode_sentences([sentences[i] for i in filled], self.tokenizer, self._frame, names)
        rows = [(ids, np.zeros_like(ids)) for ids in coded.ids]
        probs = self._run(rows, lambda batch, hidden: list(self.network.tag(hidden).float().softmax(-1).cpu().numpy()))
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

    def answer(self, question: str, context: str) -> Answer:
        """The piece of the context that answers the question, empty where it has none."""
        return self.answers([(question, context)])[0]

    def answers(self, pairs: Sequence[Pair]) -> list[Answer]:
        """The same for many (question, context); a long context is read in overlapping windows."""
        from remask.tasks.squad import Question, answers_from_rows, encode_questions

        self._need("answer")
        if not pairs:
            return []
        asked = [Question(str(i), q, c, (), "", _short(q)) for i, (q, c) in enumerate(pairs)]
        rows = encode_questions(asked, self.tokenizer, self._frame, stride=self._frame.room(2) // 4)

        def read(batch: Batch, hidden_BSD: Tensor) -> list[np.ndarray]:
            logits = [self.network.span(hidden_BSD)]
            if self.heads.answerable:
                sure_B = self.network.answerable(hidden_BSD, batch.lengths_B)
                logits.append(sure_B[:, None, None].expand(-1, hidden_BSD.shape[1], 1))
            rows_BSC = torch.cat(logits, dim=2).float().cpu().numpy()
            return [row[:length] for row, length in zip(rows_BSC, batch.lengths_B.tolist(), strict=True)]

        segments = rows.segments or [np.zeros_like(ids) for ids in rows.ids]
        outputs = self._run(list(zip(rows.ids, segments, strict=True)), read)
        found = []
        for number, said in enumerate(answers_from_rows(outputs, rows, asked)):
            here = [o for o, window in zip(outputs, rows.facts, strict=True) if window.question == number]
            score = max(_probability(said.score, logits_S2) for logits_S2 in here)
            text = said.text if said.null_odds <= 0 else ""
            found.append(Answer(text, said.start if text else 0, said.start + len(text) if text else 0, score))
        return found

    def choose(self, text: str, options: Sequence[str], *, long_texts: LongTexts = "error") -> Choice:
        """Which of the options goes with the text."""
        self._need("choose")
        if len(options) < 2:
            raise DataError(f"{len(options)} options: a choice needs at least two")
        rows = [self._row((text, option), long_texts) for option in options]
        scores = self._run(rows, lambda batch, hidden: self.network.choose(hidden, batch.lengths_B).float().tolist())
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
    ) -> np.ndarray:
        """One vector a text (texts x width, fp32), of length 1 unless `normalize` is off.

        `pooling`: the first token's state or the mean over the tokens; by default as the model was made.
        """
        rows = [self._row(text, long_texts) for text in _several(texts)]

        def read(batch: Batch, hidden_BSD: Tensor) -> list[np.ndarray]:
            vectors_BD = self.network.embed(hidden_BSD, batch.lengths_B, pooling).float()
            if normalize:
                vectors_BD = torch.nn.functional.normalize(vectors_BD, dim=-1)
            return list(vectors_BD.cpu().numpy())

        vectors = self._run(rows, read)
        return np.stack(vectors) if vectors else np.zeros((0, self.settings.hidden_size), np.float32)

    def rank(self, query: str, texts: Sequence[str], *, long_texts: LongTexts = "error") -> list[Ranked]:
        """The texts by closeness to the query, closest first."""
        vectors = self.embed([query, *_several(texts)], long_texts=long_texts)
        scores = vectors[1:] @ vectors[0]
        return [Ranked(int(i), float(scores[i]), texts[i]) for i in np.argsort(-scores, kind="stable")]

    def encode(self, texts: Sequence[str | Pair], *, long_texts: LongTexts = "error") -> list[Encoded]:
        """Ids and last hidden states of each text."""
        rows = [self._row(text, long_texts) for text in _several(texts)]

        def read(batch: Batch, hidden_BSD: Tensor) -> list[Encoded]:
            lengths, states = batch.lengths_B.tolist(), hidden_BSD.float().cpu().numpy()
            ids = batch.input_ids_BS.cpu().numpy().astype(np.int32)
            return [Encoded(ids[i, :n].copy(), states[i, :n].copy()) for i, n in enumerate(lengths)]

        return self._run(rows, read)

    def tokenize(self, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of each text, without special ones."""
        found = []
        for text in _several(texts):
            ids, spans = self.tokenizer.encode_with_offsets(text)
            names = tuple(self.tokenizer.token_text(int(token)) for token in ids)
            found.append(Tokens(tuple(ids.tolist()), names, tuple((int(a), int(b)) for a, b in spans)))
        return found

    # ------------------------------------------------------------------------------------------------- inside

    def _need(self, method: str) -> None:
        if method not in self.methods:
            raise DataError(f"{self.folder}: this model cannot {method}; it can {', '.join(self.methods)}")

    def _row(self, text: str | Pair, long_texts: LongTexts) -> Row:
        texts = [text] if isinstance(text, str) else list(text)
        return self._joined([self.tokenizer.encode(part) for part in texts], long_texts, texts[0])

    def _joined(self, parts: list[np.ndarray], long_texts: LongTexts, text: str) -> Row:
        room = self._frame.room(len(parts))
        size = sum(len(part) for part in parts)
        if size > room:
            if long_texts == "error":
                raise DataError(
                    f"{_short(text)}: has {size:,} tokens, this model takes {room:,}; shorten it or let it be cut"
                )
            kept = room if len(parts) == 1 else max(room - len(parts[1]), room // 2)
            parts = [parts[0][:kept], *(part[: room - min(kept, len(parts[0]))] for part in parts[1:])]
        return self._frame.join(parts)

    @torch.inference_mode()
    def _run(self, rows: Sequence[Row], read: Callable[[Batch, Tensor], Sequence[ResultT]]) -> list[ResultT]:
        """`read` on every batch; its results in the order of the rows."""
        results: dict[int, ResultT] = {}
        for numbers in self._batches([len(ids) for ids, _ in rows]):
            batch = self._batch([rows[i] for i in numbers])
            results |= zip(numbers, read(batch, self.network.encode(batch)), strict=True)
        return [results[i] for i in range(len(rows))]

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Rows of like length together, longest first, so that too large a batch shows at once."""
        numbers: list[int] = []
        for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            if numbers and (len(numbers) + 1) * lengths[numbers[0]] > self.batch_tokens:
                yield numbers
                numbers = []
            numbers.append(i)
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
        batch = Batch(ids_BS, lengths_B, segments_BS if self._frame.segments else None)
        return batch.map(lambda array: torch.from_numpy(array).to(self.device))


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
