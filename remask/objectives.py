"""What pretraining learns: masked tokens, the sentence loss (NSP or SOP) and a left-to-right share, in any mix.

In: a network and a Batch of tensors. Out: Loss(parts, metrics): sums by name with their counts, which the loop divides
by the global counts. Masked LM is BERT's and RoBERTa's section 2.3, SOP ALBERT's 3.1. Also here: the held-out measures
(loss, perplexity, accuracy, bits per byte). torch is imported where it is used, so that the settings can be read
without it. Not here: which tokens are masked (data), the tasks' objectives, the loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from remask.config import Config, switch
from remask.schema import IGNORE, Array, Batch, Loss, LossPart

if TYPE_CHECKING:
    import torch

    from remask.model.network import Network
    from remask.model.noise import Noise

# Shapes: B rows of a batch, S positions of a row, M predicted positions, D width, V vocabulary.


class ObjectiveSettings(Config):
    """How much each part of the loss counts."""

    mlm_weight: float = switch(1.0, "weight of the masked-token loss", effect="math", samples=[0.5], ge=0)
    sentence_weight: float = switch(
        1.0, "weight of the sentence loss, where data.sentence_loss gives one", effect="math", samples=[0.5], ge=0
    )
    causal_weight: float = switch(
        1.0, "weight of the left-to-right loss, where causal_share gives one", effect="math", samples=[0.5], ge=0
    )
    causal_share: float = switch(
        0.0, "share of the rows that is read left to right, unmasked", effect="math", samples=[0.25], ge=0, le=1
    )


class Pretraining:
    """Masked LM with what the settings add. `sentence`: the batches have pairs with labels. `every_pass`: the masked
    and the left-to-right pass are both computed, even where a micro-batch has no rows for one: ranks that divide a
    model must compute the same passes."""

    def __init__(
        self, settings: ObjectiveSettings, *, seed: int, sentence: bool, every_pass: bool = False
    ) -> None:  # fmt: skip
        self._seed, self._causal_share = seed, settings.causal_share
        self._every_pass = every_pass and settings.causal_share > 0
        self.weights: Mapping[str, float] = {"mlm": settings.mlm_weight}
        if sentence:
            self.weights = {**self.weights, "sentence": settings.sentence_weight}
        if settings.causal_share:
            self.weights = {**self.weights, "causal": settings.causal_weight}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Of a batch of numpy arrays or tensors, before anything is computed."""
        masked, causal = self._split(batch)
        counts = {"mlm": 0, "sentence": 0, "causal": 0}
        if masked is not None:
            counts["mlm"] = len(_given(masked.masked_labels_M))
            if masked.sentence_labels_B is not None:
                counts["sentence"] = int((masked.sentence_labels_B != IGNORE).sum())
        if causal is not None:
            counts["causal"] = int(_predicts_next(causal).sum())
        return {name: counts[name] for name in self.weights}

    def __call__(self, model: Network, batch: Batch, step: int | None) -> Loss:
        parts: dict[str, LossPart] = {}
        metrics: dict[str, LossPart] = {}
        masked, causal = self._split(batch)
        if masked is not None:
            self._masked(model, masked, step, parts, metrics)
        if causal is not None:
            self._causal(model, causal, step, parts)
        if self._every_pass and (masked is None or causal is None):
            self._stand_in(model, masked or causal, step, parts, is_masked=masked is None)
        return Loss(parts, metrics)

    def _stand_in(
        self, model: Network, batch: Batch | None, step: int | None, parts: dict[str, LossPart], is_masked: bool
    ) -> None:
        """The pass that has no rows here, on rows of the other kind, for nothing."""
        assert batch is not None
        spare: dict[str, LossPart] = {}
        if is_masked:
            self._masked(model, batch, step, spare, {})
        else:
            self._causal(model, batch, step, spare)
        parts |= {name: LossPart(part.sum * 0.0, 0) for name, part in spare.items()}

    def _noise(self, batch: Batch, step: int | None) -> Noise | None:
        from remask.model.noise import Noise

        return None if step is None else Noise(self._seed, step, batch.known.example_ids_B)

    def _masked(
        self, model: Network, batch: Batch, step: int | None, parts: dict[str, LossPart], metrics: dict[str, LossPart]
    ) -> None:
        from remask.model.loss import cross_entropy
        from remask.model.shapes import to_device

        noise = self._noise(batch, step)
        pairs_B = batch.sentence_labels_B if "sentence" in self.weights else None
        wanted_M = batch.known.masked_positions_M if pairs_B is None else None  # the sentence loss may look at all
        hidden_BSD = model.encode(batch, noise, wanted_M=wanted_M)
        labels_M = _given(batch.masked_labels_M)
        loss, correct = model.masked_lm_loss(hidden_BSD, _given(batch.masked_positions_M), labels_M)
        parts["mlm"] = LossPart(loss, len(labels_M))
        metrics["accuracy"] = LossPart(correct, len(labels_M))
        if pairs_B is not None:
            pairs = _on_cpu(_given(batch.known.sentence_labels_B))
            rows_R = to_device(np.flatnonzero(pairs != IGNORE), pairs_B.device)
            logits_B2 = model.sentence(hidden_BSD, batch.lengths_B, noise)
            loss, correct = cross_entropy(logits_B2[rows_R], pairs_B[rows_R])
            parts["sentence"] = LossPart(loss, len(rows_R))
            metrics["sentence_accuracy"] = LossPart(correct, len(rows_R))

    def _causal(self, model: Network, batch: Batch, step: int | None, parts: dict[str, LossPart]) -> None:
        """Every token from those to its left, on the text as it stood before masking."""
        from remask.model.shapes import to_device

        hidden_BSD = model.encode(batch, self._noise(batch, step), causal=True)
        follows_BS = _on_cpu(_predicts_next(batch.known))
        positions_M = to_device(np.flatnonzero(follows_BS), batch.input_ids_BS.device)
        labels_M = batch.input_ids_BS.flatten()[positions_M + 1]
        loss, _ = model.masked_lm_loss(hidden_BSD, positions_M, labels_M)
        parts["causal"] = LossPart(loss, len(positions_M))

    def _split(self, batch: Batch) -> tuple[Batch | None, Batch | None]:
        """The rows for the masked and for the left-to-right loss (those with their text put back)."""
        if not self._causal_share:
            return batch, None
        if batch.host is not None:  # rows are chosen where nobody waits, and sent once more
            from remask.model.shapes import to_device

            device = batch.input_ids_BS.device
            parts = [part and part.sent(lambda x: to_device(x, device)) for part in self._split(batch.host)]
            return parts[0], parts[1]
        is_causal_B = _draws(self._seed, batch) < self._causal_share
        masked = _rows_of(batch, np.flatnonzero(~is_causal_B)) if not is_causal_B.all() else None
        causal = _rows_of(_unmasked(batch), np.flatnonzero(is_causal_B)) if is_causal_B.any() else None
        return masked, causal


def _given(array: Array | None) -> Array:
    assert array is not None, "a batch for masked LM has masked positions and labels"
    return array


def _on_cpu(array: Array) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def _draws(seed: int, batch: Batch) -> np.ndarray:
    """A number in [0, 1) per row from (seed, example, mask): another one in every pass with a new mask, the same one
    in any micro-batch, on any rank and after any restart."""
    columns = batch.input_ids_BS.shape[1]
    positions_M = _on_cpu(_given(batch.masked_positions_M))
    weights_M = (positions_M % columns + 1) * 2_654_435_761
    masks_B = np.bincount(positions_M // columns, weights_M % 1_000_003, minlength=batch.num_rows).astype(np.int64)
    examples_B = _on_cpu(_given(batch.example_ids_B))
    return np.array(
        [
            np.random.SeedSequence((seed, int(example) & (2**63 - 1), int(mask))).generate_state(1)[0] / 2**32
            for example, mask in zip(examples_B, masks_B, strict=True)
        ]
    )


def _unmasked(batch: Batch) -> Batch:
    """The text as it stood, and nothing to predict by masks."""
    ids = batch.input_ids_BS.copy() if isinstance(batch.input_ids_BS, np.ndarray) else batch.input_ids_BS.clone()
    ids.reshape(-1)[batch.masked_positions_M] = batch.masked_labels_M
    return replace(batch, input_ids_BS=ids)


def _rows_of(batch: Batch, rows_R: np.ndarray) -> Batch:
    """Some rows of a batch, with the masked positions that lie in them."""
    columns = batch.input_ids_BS.shape[1]
    positions_M = _on_cpu(_given(batch.masked_positions_M))
    new_row_B = np.full(batch.num_rows, -1, np.int64)
    new_row_B[rows_R] = np.arange(len(rows_R))
    moved_M = new_row_B[positions_M // columns]
    kept_M = np.flatnonzero(moved_M >= 0)
    positions = moved_M[kept_M] * columns + positions_M[kept_M] % columns

    def pick(array: Array, index: np.ndarray) -> Array:
        return array[index] if isinstance(array, np.ndarray) else array[_tensor_like(array, index)]

    labels = pick(_given(batch.masked_labels_M), kept_M)
    rest = replace(batch, masked_positions_M=None, masked_labels_M=None)
    chosen = rest.map(lambda array: pick(array, rows_R))
    if not isinstance(labels, np.ndarray):
        positions = _tensor_like(labels, positions)
    return replace(chosen, masked_positions_M=positions, masked_labels_M=labels)


def _tensor_like(array: torch.Tensor, index: np.ndarray) -> torch.Tensor:
    import torch

    return torch.from_numpy(index).to(array.device)


def _predicts_next(batch: Batch) -> Array:
    """bool_BS: whether the next position is a token of the same document."""
    ids_BS, lengths_B = batch.input_ids_BS, batch.lengths_B
    if isinstance(ids_BS, np.ndarray):
        columns_S = np.arange(ids_BS.shape[1])
    else:
        import torch

        columns_S = torch.arange(ids_BS.shape[1], device=ids_BS.device)
    follows_BS = columns_S[None, :] + 1 < lengths_B[:, None]
    if batch.document_ids_BS is not None:
        follows_BS[:, :-1] &= batch.document_ids_BS[:, 1:] == batch.document_ids_BS[:, :-1]
    return follows_BS


def held_out(
    model: Network, batches: Iterable[Batch], token_lengths_V: np.ndarray, token_characters_V: np.ndarray | None = None
) -> dict[str, float]:
    """Masked LM on fixed batches of numpy arrays: loss in nats per masked token, perplexity, accuracy, bits per byte.

    Bits per byte: the sum of -log2 p over the masked tokens by the bytes of those tokens; bits per character, where
    the characters of every token are given: by those."""
    import torch

    device = next(model.parameters()).device
    nats = right = 0.0
    tokens = num_bytes = num_characters = 0
    for batch in batches:
        labels_M = _given(batch.masked_labels_M)
        tokens += len(labels_M)
        num_bytes += int(token_lengths_V[labels_M].sum())
        num_characters += 0 if token_characters_V is None else int(token_characters_V[labels_M].sum())
        on_device = batch.map(lambda array: torch.as_tensor(array).to(device))
        positions_M = _given(on_device.masked_positions_M)
        hidden_BSD = model.encode(on_device, None, wanted_M=positions_M)
        loss, correct = model.masked_lm_loss(hidden_BSD, positions_M, _given(on_device.masked_labels_M))
        nats += float(loss)
        right += float(correct)
    loss_per_token = nats / max(1, tokens)
    by_character = {"bits_per_character": nats / math.log(2) / max(1, num_characters)}
    return {
        "loss": loss_per_token,
        "perplexity": math.exp(min(loss_per_token, 700.0)),
        "accuracy": right / max(1, tokens),
        "bits_per_byte": nats / math.log(2) / max(1, num_bytes),
        **({} if token_characters_V is None else by_character),
    }


def sentence_accuracy(model: Network, batches: Iterable[Batch]) -> float:
    """Share of held-out pairs whose relation (NSP or SOP, as the batches have it) is told rightly."""
    import torch

    device = next(model.parameters()).device
    right = pairs = 0
    for batch in batches:
        labels_B = torch.as_tensor(_given(batch.sentence_labels_B)).to(device)
        on_device = batch.map(lambda array: torch.as_tensor(array).to(device))
        logits_B2 = model.sentence(model.encode(on_device, None), on_device.lengths_B)
        right += int(((logits_B2.argmax(1) == labels_B) & (labels_B != IGNORE)).sum())
        pairs += int((labels_B != IGNORE).sum())
    return right / max(1, pairs)
