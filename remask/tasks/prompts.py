"""Classes asked of the masked-LM head: a pattern puts the text into a sentence with a mask, and words stand for labels.

In: patterns such as "{text} It was <mask>." and words such as {positive: [great], negative: [bad]}. A word of several
tokens gets as many masks, in a row of its own for each length; its score is the mean of its tokens' log
probabilities. A label's score is the mean over its words, less what they score around an empty text (calibration:
arXiv 2102.09690); several patterns are averaged. With labels, head and encoder learn at the mask (arXiv 2001.07676).
Not here: finding words (tune.words), measuring the empty text (answer.prompting).

Shapes: N examples, F rows of an example, S spellings, P patterns, W words, C classes, M masks, B rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from remask.errors import ConfigError, DataError
from remask.schema import Batch, Json, Values
from remask.tasks.kind import Heads, NoiseT, Problem, Sums, TaskLoss, TaskNetwork, TaskSource
from remask.tasks.numbers import softmax
from remask.tasks.patterns import TEXT2, Piece, Spelled, spell
from remask.tasks.rows import Frame, Rows, cut
from remask.tasks.settings import PromptSettings, RowSettings
from remask.tasks.tables import Example, Table, label_names
from remask.tasks.texts import Classify
from remask.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

Array = np.ndarray
_MASKS_AT_ONCE = 128  # scores over a whole vocabulary are large


@dataclass(frozen=True, eq=False)
class Prompt(Classify):
    """One class of several, by the words that the masked-LM head puts in the place of a mask."""

    name, metric = "prompt", "accuracy"

    settings: PromptSettings = field(default_factory=PromptSettings)
    spelled: Spelled | None = None
    priors_PW: Array | None = None  # the words' scores around an empty text; None: not calibrated

    # ------------------------------------------------------------------------------------------------ reading

    def open(self, source: TaskSource) -> Problem[Example]:
        settings = source.prompt
        if not settings.patterns:
            raise ConfigError('task prompt needs a pattern: --pattern "{text} It was <mask>."')
        settings.check_pair(source.table.text2)
        problem = replace(self, settings=settings).read(source)
        if not settings.words and not settings.search_words:
            raise ConfigError(
                f"task prompt needs words for the labels {', '.join(problem.labels)}: --words LABEL=WORD,WORD…, or "
                "--search-words N to look for some in the training data"
            )
        return problem

    def read(self, source: TaskSource) -> Problem[Example]:
        return super().open(source)

    def _label_names(self, table: Table) -> tuple[str, ...]:
        """Those that have words, in their order: a label that few examples lack can still be answered."""
        if not self.settings.words:
            return label_names(table, self.form)
        labels = tuple(self.settings.words)
        self._check_labels(table, labels, f"that have no words (--words has {', '.join(labels)})")
        return labels

    # ---------------------------------------------------------------------------------------- bound and stored

    def bound(self, tokenizer: Tokenizer, labels: Sequence[str]) -> Prompt:
        return replace(self, spelled=spell(self.settings, labels, tokenizer))

    def stored(self) -> Json:
        settings = {"patterns": self.settings.patterns, "words": self.settings.words}
        priors = None if self.priors_PW is None else self.priors_PW.tolist()
        return {**settings, "calibrate": self.settings.calibrate, "priors": priors}

    def restored(self, values: Values) -> Prompt:
        settings = PromptSettings(
            patterns=tuple(values["patterns"]),
            words={label: tuple(words) for label, words in values["words"].items()},
            calibrate=values["calibrate"],
        )
        priors = None if values["priors"] is None else np.array(values["priors"])
        return replace(self, settings=settings, priors_PW=priors)

    # ------------------------------------------------------------------------------------------------ network

    def head(self, problem: Problem[Example]) -> dict[str, int | bool]:
        return {"masked_lm": True}

    def fits(self, heads: Heads) -> bool:
        return False  # a masked-LM head alone does not say which patterns and words

    @property
    def _ready(self) -> Spelled:
        assert self.spelled is not None, "patterns and words are bound to a vocabulary first"
        return self.spelled

    def positions(self, network: TaskNetwork[NoiseT], batch: Batch) -> torch.Tensor:
        return self._masks(batch)

    def _masks(self, batch: Batch) -> torch.Tensor:
        """Their flat positions."""
        return (batch.input_ids_BS == self._ready.mask_id).flatten().nonzero().squeeze(1)

    def logits(
        self, network: TaskNetwork[NoiseT], hidden_BSD: torch.Tensor, batch: Batch, noise: NoiseT | None = None
    ) -> torch.Tensor:
        """scores_BS of the spellings that have as many tokens as a row has masks; 0 for the others."""
        return self._spelling_scores(lambda places_M: network.masked_lm(hidden_BSD, places_M), batch)

    def graph_outputs(self, named: Mapping[str, Array], batch: Batch) -> Array:
        """From the scores of the whole vocabulary at every position, which a graph of a masked LM gives."""
        import torch

        logits_TV = torch.as_tensor(named["logits"]).flatten(0, 1)
        return self._spelling_scores(lambda places_M: logits_TV[places_M], batch.map(torch.as_tensor)).numpy()

    def _spelling_scores(self, logits_at: Callable[[torch.Tensor], torch.Tensor], batch: Batch) -> torch.Tensor:
        """scores_BS, from the logits of the vocabulary at flat positions."""
        import torch

        places_M = self._masks(batch)
        device = places_M.device
        scores_BS = torch.zeros(batch.num_rows, len(self._ready.spellings), device=device)
        counts_B = (batch.input_ids_BS == self._ready.mask_id).sum(1)
        row_M = torch.arange(batch.num_rows, device=device).repeat_interleave(counts_B)
        nth_M = torch.arange(len(places_M), device=device) - (counts_B.cumsum(0) - counts_B)[row_M]
        for part in torch.arange(len(places_M), device=device).split(_MASKS_AT_ONCE):
            log_probs_MV = logits_at(places_M[part]).float().log_softmax(-1)
            ids_MS, counts_MS = self._tokens_at(nth_M[part], counts_B[row_M[part]])
            scores_BS = scores_BS.index_add(0, row_M[part], log_probs_MV.gather(1, ids_MS) * counts_MS)
        return scores_BS

    def _tokens_at(self, nth_M: torch.Tensor, counts_M: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The token of each spelling at each mask of its row, and how much it counts: 1 / its length, or nothing."""
        import torch

        spellings = self._ready.spellings
        longest = max(map(len, spellings))
        table_SL = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in spellings], device=nth_M.device)
        lengths_S = torch.tensor([len(ids) for ids in spellings], device=nth_M.device)
        fits_MS = counts_M[:, None] == lengths_S
        return table_SL[:, nth_M.clamp(max=longest - 1)].T, fits_MS / lengths_S

    def loss(self, logits: torch.Tensor, batch: Batch, plan: TaskLoss) -> tuple[Sums, torch.Tensor]:
        """Cross entropy over the labels, pattern by pattern; their mean."""
        import torch.nn.functional as F

        labels = batch.labels
        assert labels is not None
        scores_NPC = self.label_scores(logits.view(labels.shape[0], len(self._ready.forms), -1))
        patterns = scores_NPC.shape[1]
        weights = None if plan.class_weights is None else logits.new_tensor(plan.class_weights)
        total = F.cross_entropy(scores_NPC.flatten(0, 1), labels.repeat_interleave(patterns), weights, reduction="sum")
        right = scores_NPC.softmax(-1).mean(1).argmax(-1) == labels
        return {"task": total / patterns}, right.sum()

    # ------------------------------------------------------------------------------------------- rows, answers

    def word_scores(self, outputs_NFS: Any) -> Any:
        """scores_NPW, of numpy arrays as of tensors."""
        return outputs_NFS[:, self._ready.form_PW, self._ready.spelling_PW]

    def label_scores(self, outputs_NFS: Any) -> Any:
        """scores_NPC: calibrated, the mean over the words of each label; of numpy arrays as of tensors."""
        scores_NPW, share_WC = self.word_scores(outputs_NFS), self._ready.share_WC
        priors_PW = np.zeros(scores_NPW.shape[1:]) if self.priors_PW is None else self.priors_PW
        if not isinstance(scores_NPW, np.ndarray):
            priors_PW, share_WC = scores_NPW.new_tensor(priors_PW), scores_NPW.new_tensor(share_WC)
        return (scores_NPW - priors_PW) @ share_WC

    @cached_property
    def _fixed(self) -> list[int]:
        """Tokens of each form that are not the texts'."""
        patterns = self._ready.patterns
        sizes = [sum(len(piece.ids) for piece in pieces if piece.ids is not None) for pieces in patterns]
        return [sizes[pattern] + masks for pattern, masks in self._ready.forms]

    def encode(
        self, items: Sequence[Example], labels: Sequence[str], tokenizer: Tokenizer, frame: Frame,
        settings: RowSettings, *, labelled: bool = True,
    ) -> Rows:  # fmt: skip
        """`group_size` rows an example: for every pattern one for each length that its words have."""
        if settings.long_texts == "windows":
            raise DataError("long_texts = windows: a prompt reads one window of a text; long ones can only be cut")
        if max(self._fixed) + 8 > frame.room(1):
            raise DataError(f"pattern: leaves no room for a text in rows of {frame.max_length} tokens")
        parts = {(number, spaced): _encoded(items, number, spaced, tokenizer) for number, spaced in self._slots}
        ids: list[Array] = []
        cut_texts: set[int] = set()
        for number in range(len(items)):
            for (pattern, masks), fixed in zip(self._ready.forms, self._fixed, strict=True):
                pieces = self._ready.patterns[pattern]
                whole = [parts[piece.text, piece.after_space][number] for piece in pieces if piece.text is not None]
                room = frame.room(1) - fixed
                if sum(map(len, whole)) > room:
                    cut_texts.add(number)
                ids.append(frame.join([self._filled(pieces, masks, cut(whole, room))])[0])
        return Rows(
            ids,
            [np.zeros_like(row) for row in ids] if frame.segments else None,
            self.label_values(items, labels) if labelled else None,
            np.repeat(np.arange(len(items)), len(self._ready.forms)),
            group_size=len(self._ready.forms),
            num_cut=len(cut_texts),
        )

    def _filled(self, pieces: Sequence[Piece], masks: int, texts: Sequence[Array]) -> Array:
        """A pattern with its texts, in their order, and so many masks."""
        rest = iter(texts)
        row: list[Array] = []
        for piece in pieces:
            if piece.ids is not None:
                row.append(piece.ids)
            elif piece.text is not None:
                row.append(next(rest))
            else:
                row.append(np.full(masks, self._ready.mask_id, np.int32))
        return np.concatenate(row)

    @property
    def _slots(self) -> set[tuple[int, bool]]:
        """Which texts are needed, and whether a space stands before them."""
        pieces = (piece for pieces in self._ready.patterns for piece in pieces)
        return {(piece.text, piece.after_space) for piece in pieces if piece.text is not None}

    def values(self, outputs: Sequence[Array], rows: Rows) -> Array:
        outputs_NFS = np.stack(outputs).reshape(-1, len(self._ready.forms), len(self._ready.spellings))
        return softmax(self.label_scores(outputs_NFS)).mean(1)

    def _mean(self, outputs: Sequence[Array]) -> Array:
        return np.mean(outputs, axis=0)


def _encoded(items: Sequence[Example], number: int, spaced: bool, tokenizer: Tokenizer) -> list[Array]:
    """The first or second text of every item; an empty one, for calibration, has no tokens."""
    texts = []
    for item in items:
        if number >= len(item.texts):
            raise DataError(f"{item.place}: the pattern has {TEXT2}, but there is only one text")
        texts.append(item.texts[number])
    return tokenizer.encode_batch([f" {text}" if spaced and text else text for text in texts])
