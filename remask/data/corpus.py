"""One row length's examples of all sources: in which order they come, and reading and masking chosen ones.

In: Tokens, Examples, a seed. Out: for slots of an endless stream what stands there (closed form), and Batches of
chosen rows. Slots are dealt to sources by weight; a source's serials run through keyed permutations of its examples,
one permutation a pass. Not here: which slots a step takes (batches.py), the fixed rows of evaluation (evaluation.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remask.data import order
from remask.data.examples import Examples, Recipe
from remask.data.masking import Masked, Masker, mask_pass
from remask.data.rows import BatchRows, Block, Vocabulary, assemble
from remask.data.settings import DataSettings
from remask.data.tokens import SourceTokens, Tokens
from remask.errors import ConfigError, DataError
from remask.schema import IGNORE, Batch

_SOURCE_BITS, _SHORT_BIT = 48, 47  # an example id is source << 48 | short << 47 | row


@dataclass(frozen=True)
class Chosen:
    """Rows before they are read: for each its source, pass, example, length with marks, and the key of its mask."""

    sources: np.ndarray
    passes: np.ndarray
    rows: np.ndarray
    sizes: np.ndarray
    keys: np.ndarray

    def take(self, at: np.ndarray | slice) -> Chosen:
        return Chosen(self.sources[at], self.passes[at], self.rows[at], self.sizes[at], self.keys[at])


def uses_bert_layout(settings: DataSettings, vocabulary: Vocabulary) -> bool:
    """Whether pairs are [CLS] A [SEP] B [SEP] with segment ids."""
    return settings.layout == "bert" or (settings.layout == "auto" and vocabulary.kind == "wordpiece")


class Corpus:
    """Examples of one row length (`is_short`: the short rows of the first steps) in their order."""

    def __init__(
        self,
        recipe: Recipe,
        tokens: Tokens,
        examples: dict[str, Examples],
        masker: Masker,
        *,
        weights: dict[str, float],
        seed: int,
        is_short: bool = False,
    ) -> None:
        self.recipe, self.masker, self.seed, self.is_short = recipe, masker, seed, is_short
        self.names = list(tokens.sources)
        self.sources: list[SourceTokens] = list(tokens.sources.values())
        self.examples: list[Examples] = [examples[name] for name in self.names]
        self.num_examples = sum(len(of_source) for of_source in self.examples)
        if not self.num_examples:
            raise DataError(f"{tokens.folder}: the {tokens.split} split has no text to make a row of")
        whole = self._whole_weights(weights)
        self.mixture = order.Mixture(whole)
        weighted = zip(whole, self.examples, strict=True)
        sizes = sum(weight * float(of_source.sizes.mean()) for weight, of_source in weighted if weight)
        self.mean_size = sizes / sum(whole)

    def _whole_weights(self, weights: dict[str, float]) -> list[int]:
        """By weight, or else by number of examples: then all sources end their passes together."""
        if not weights:
            return [len(examples) for examples in self.examples]
        if unknown := sorted(set(weights) - set(self.names)):
            raise ConfigError(f"data.source_weights: no source {unknown[0]!r}; there are {', '.join(self.names)}")
        shares = [weights.get(name, 0.0) for name in self.names]
        for name, share, examples in zip(self.names, shares, self.examples, strict=True):
            if share > 0 and not len(examples):
                raise DataError(f"source {name} has a weight of {share} but no text to make a row of")
        return order.whole_weights(shares)

    def choose(self, slots: np.ndarray) -> Chosen:
        """What stands in these slots of the endless stream."""
        sources, serials = self.mixture.locate(slots)
        passes, rows = np.zeros_like(serials), np.zeros_like(serials)
        for number in np.unique(sources):
            at = np.flatnonzero(sources == number)
            size = len(self.examples[number])
            passes[at], index = np.divmod(serials[at], size)
            for pass_number in np.unique(passes[at]):
                now = passes[at] == pass_number
                key = order.key_of("order", self.seed, self.names[number], self.is_short, int(pass_number))
                rows[at[now]] = order.permute(index[now], size, key)
        return self.rows_of(sources, passes, rows)

    def rows_of(self, sources: np.ndarray, passes: np.ndarray, rows: np.ndarray) -> Chosen:
        """These examples, each in a pass of its source."""
        sizes, keys = np.zeros_like(rows), np.zeros(len(rows), np.uint64)
        copies = mask_pass(self.masker.settings, passes)
        for number in np.unique(sources):
            at = sources == number
            sizes[at] = self.examples[number].sizes[rows[at]]
            # (seed, source, pass or copy, example): a row's mask, wherever and whenever it is read.
            base = order.key_of("mask", self.seed, self.names[number], self.is_short)
            keys[at] = order.draw(order.draw(base, copies[at]), rows[at])
        return Chosen(sources, passes, rows, sizes, keys)

    def layout(self, chosen: Chosen, width: int, vocabulary: Vocabulary) -> tuple[BatchRows, list[Block]]:
        """Chosen rows with their marks, unmasked."""
        if len(self.sources) == 1:
            blocks = [Block(self.sources[0], self.examples[0], chosen.rows, np.arange(len(chosen.rows)))]
            return assemble(blocks, len(chosen.rows), width, self.recipe, vocabulary), blocks
        blocks = []
        for number in np.unique(chosen.sources):
            places = np.flatnonzero(chosen.sources == number)
            blocks.append(Block(self.sources[number], self.examples[number], chosen.rows[places], places))
        return assemble(blocks, len(chosen.rows), width, self.recipe, vocabulary), blocks

    def read(self, chosen: Chosen, width: int, rate: float, vocabulary: Vocabulary) -> Batch:
        """Chosen rows laid out and masked."""
        rows, blocks = self.layout(chosen, width, vocabulary)
        starts_word = None
        if self.masker.settings.unit != "token":
            starts_word = np.zeros(len(rows.text_T), bool)
            for number, block in enumerate(blocks):
                at = rows.source_T == number
                starts_word[at] = block.source.starts_word(rows.token_T[at])
        masked = self.masker(rows, chosen.keys, rate, starts_word)
        return self.batch(chosen, rows, masked)

    def batch(self, chosen: Chosen, rows: BatchRows, masked: Masked) -> Batch:
        labels = None
        if self.recipe.sentence_loss != "none":
            labels = np.full(len(chosen.rows), IGNORE, np.int64)
            for number in np.unique(chosen.sources):
                at, known = chosen.sources == number, self.examples[number].labels
                assert known is not None
                labels[at] = known[chosen.rows[at]]
        return Batch(
            masked.ids_BS,
            rows.lengths_B,
            segment_ids_BS=rows.segment_ids_BS,
            document_ids_BS=rows.document_ids_BS,
            position_ids_BS=rows.position_ids_BS,
            masked_positions_M=masked.positions_M,
            masked_labels_M=masked.labels_M,
            sentence_labels_B=labels,
            example_ids_B=(chosen.sources << _SOURCE_BITS) | (int(self.is_short) << _SHORT_BIT) | chosen.rows,
        )

    def find(self, example_id: int, epoch: int) -> Chosen | None:
        """The example with this id in the given pass, if it is one of these."""
        number, row = example_id >> _SOURCE_BITS, example_id & ((1 << _SHORT_BIT) - 1)
        if bool(example_id >> _SHORT_BIT & 1) != self.is_short or not 0 <= number < len(self.names):
            return None
        if row >= len(self.examples[number]):
            return None
        return self.rows_of(np.array([number]), np.array([epoch]), np.array([row]))
