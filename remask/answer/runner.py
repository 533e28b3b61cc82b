"""Rows -> a network -> what is read of their states, in batches of like length.

In: rows of ids, and for each a `Reading` of its last states; or a `forward` that gives a batch's outputs as numpy. Out:
one result a row, in the order of the rows; nothing depends on what else is in a batch. Not here: texts, answers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from remask import signals
from remask.answer.costs import Costs, measured
from remask.answer.decoding import OnStep, take_sentences, write
from remask.model.encoder import Positions
from remask.model.network import Network
from remask.model.shapes import to_device
from remask.precision import autocast
from remask.schema import Batch
from remask.tasks.batches import collate
from remask.tasks.kind import TaskKind
from remask.tasks.rows import Rows
from remask.tasks.settings import DecodeSettings
from remask.tasks.write import Draft

Array = np.ndarray
Row = tuple[Array, Array]  # ids, segment ids
Forward = Callable[[Batch], Array]
Drafting = tuple[DecodeSettings, int]  # how a text is written, and its most tokens
Check = Callable[[], None]  # called after every batch; may raise to end the work, as at a signal

BATCH_TOKENS = 16_384  # padded tokens a forward pass without gradients
# A batch goes on while its rows are at least this share of its longest one, or while it is smaller than this: attention
# is computed on padded rows, but a small batch does not fill the machine.
_LIKE_LENGTH = 0.75
_SMALL_BATCH = 256


@dataclass(frozen=True)
class Reading:
    """How states are read, row by row. Readings with equal keys are the same function and may be done at once."""

    key: Hashable
    read: Callable[[Batch, Tensor], Sequence[Any]]
    looks_at: Callable[[Batch], Positions | None] = lambda batch: None  # flat positions; None: all of them


class Runner:
    """A network that answers, where it is and in the number format it has."""

    def __init__(
        self, network: Network, pad_id: int, *, has_segments: bool, precision: str = "fp32",
        batch_tokens: int = BATCH_TOKENS, in_training: bool = False,
    ) -> None:  # fmt: skip
        """`in_training`: the network goes on learning afterwards, so that what it keeps must not be inference's own."""
        self._in_training = in_training
        self.network, self.pad_id, self.has_segments = network, pad_id, has_segments
        self.precision, self.batch_tokens = precision, batch_tokens
        self.device = next(network.parameters()).device
        self.costs: Costs | None = None  # measured by `measure`: decides which rows share a batch
        self.num_tokens = self.num_padded = self.num_batches = 0  # of all that went through the network
        self.on_step: OnStep | None = None  # after every token that is written

    def products(self) -> contextlib.AbstractContextManager[Any]:
        """Inside, matrix products are made in the runner's number format."""
        return autocast(self.precision, self.device.type)

    def _without_gradients(self) -> contextlib.AbstractContextManager[Any]:
        return torch.no_grad() if self._in_training else torch.inference_mode()

    def batch(self, rows: Sequence[Row]) -> Batch:
        """Rows as a batch on the network's device."""
        padded = pad_rows([ids for ids, _ in rows], [s for _, s in rows] if self.has_segments else None, self.pad_id)
        return padded.sent(lambda array: to_device(array, self.device))

    def outputs(
        self, rows: Rows, kind: TaskKind, check: Check = signals.check, drafting: Drafting | None = None
    ) -> list[Any]:
        """What a task's head says about every row; an output per token is cut to the row's length. A kind that writes
        says a draft, `drafting` how, with what the row's target costs where it has one."""
        segments = rows.segments or [np.zeros_like(ids) for ids in rows.ids]
        reading = self.reading(kind, rows, drafting)
        results = self.run(list(zip(rows.ids, segments, strict=True)), [reading] * len(rows.ids), check)
        outputs = [results[i] for i in range(len(rows.ids))]
        if not kind.writes or rows.labels is None:
            return outputs
        costs = self.target_nats(rows, check)
        return [replace(draft, nats=nats) for draft, nats in zip(outputs, costs, strict=True)]

    def target_nats(self, rows: Rows, check: Check = signals.check) -> list[float]:
        """What each row's target costs, told the tokens before each of its own."""
        nats = [0.0] * len(rows.ids)
        for numbers in alike(rows.sizes.tolist(), self.batch_tokens):
            batch = collate(rows, np.array(numbers), self.pad_id)
            batch = batch.map(lambda array: torch.from_numpy(array).to(self.device))
            with self._without_gradients(), self.products():
                losses_B = self.network.write_losses(self.network.encode(batch), batch)
            for number, loss in zip(numbers, losses_B.tolist(), strict=True):
                nats[number] = loss
            check()
        return nats

    def reading(
        self, kind: TaskKind, rows: Rows, drafting: Drafting | None = None, on_step: OnStep | None = None
    ) -> Reading:
        """The head of a task, read as the kind reads it."""
        if kind.writes:
            assert drafting is not None, "a kind that writes must be told how"
            by_sentences = drafting[0].by == "sentences"
            return self.sentences(drafting, rows) if by_sentences else self.drafts(drafting, on_step)

        def read(batch: Batch, hidden_BSD: Tensor) -> list[Array]:
            outputs = kind.logits(self.network, hidden_BSD, batch).float().cpu().numpy()
            return _by_row(outputs, batch.lengths_B.tolist())

        return Reading(("task", kind), read, lambda batch: kind.positions(self.network, batch))

    def measure(self, max_length: int) -> Costs:
        """Measure here what batches cost; from now on that decides which rows go together."""

        @torch.inference_mode()
        def seconds(rows: int, length: int) -> float:
            ids = np.full(length, self.pad_id, np.int64)
            batch = self.batch([(ids, np.zeros_like(ids))] * rows)
            began = time.perf_counter()
            with self.products():
                self.network.encode(batch, wanted_M=self.network.first_positions(batch)).cpu()
            return time.perf_counter() - began

        self.costs = measured(seconds, max_length)
        return self.costs

    def drafts(self, drafting: Drafting, on_step: OnStep | None = None) -> Reading:
        """What the decoder writes about a row. `on_step`: for rows that are read alone, so that their number is 0."""
        settings, max_length = drafting

        def step(chosen: Sequence[tuple[int, int]]) -> None:
            for hear in (self.on_step, on_step):
                if hear is not None:
                    hear(chosen)

        def read(batch: Batch, hidden_BSD: Tensor) -> list[Draft]:
            drafts = write(self.network, batch, hidden_BSD, settings, max_length, step)
            self.num_tokens += sum(len(draft.ids) + 1 for draft in drafts)
            return drafts

        return Reading(("write", settings, max_length, on_step), read)

    def sentences(self, drafting: Drafting, rows: Rows) -> Reading:
        """Which sentence of a row's source the decoder takes. A row is known by its ids: the same ids are the same
        sentences."""
        settings, max_length = drafting
        origins = {ids.astype(np.int64).tobytes(): origin for ids, origin in zip(rows.ids, rows.origins, strict=True)}

        def read(batch: Batch, hidden_BSD: Tensor) -> list[Draft]:
            ids_BS, lengths = batch.input_ids_BS.cpu().numpy().astype(np.int64), batch.lengths_B.tolist()
            asked = [origins[ids[:length].tobytes()] for ids, length in zip(ids_BS, lengths, strict=True)]
            limit = min(max_length, self.network.settings.max_length)
            candidates = [origin.sentences(length, limit) for origin, length in zip(asked, lengths, strict=True)]
            self.num_tokens += sum(len(ids) for some in candidates for ids, _ in some)
            return take_sentences(self.network, batch, hidden_BSD, settings, candidates)

        return Reading(("sentences", settings, max_length, id(origins)), read)

    def run(self, rows: Sequence[Row], readings: Sequence[Reading], check: Check | None = None) -> dict[int, Any]:
        """What is read of every row, by its number."""
        results: dict[int, Any] = {}
        lengths = [len(ids) for ids, _ in rows]
        costs = self.costs
        groups = alike(lengths, self.batch_tokens) if costs is None else costs.groups(lengths, self.batch_tokens)
        for numbers in groups:
            batch = self.batch([rows[i] for i in numbers])
            places_of: dict[Hashable, list[int]] = {}
            for place, number in enumerate(numbers):
                places_of.setdefault(readings[number].key, []).append(place)
            with self._without_gradients(), self.products():
                wanted_M = readings[numbers[0]].looks_at(batch) if len(places_of) == 1 else None
                hidden_BSD = self.network.encode(batch, wanted_M=wanted_M)
                for places in places_of.values():
                    part, hidden = batch, hidden_BSD
                    if len(places_of) > 1:
                        index = torch.tensor(places, device=self.device)
                        part, hidden = batch.map(lambda x, index=index: x[index]), hidden_BSD[index]
                    read = readings[numbers[places[0]]].read(part, hidden)
                    results |= zip((numbers[place] for place in places), read, strict=True)
            self.num_batches += 1
            self.num_tokens += batch.num_tokens
            self.num_padded += batch.input_ids_BS.numel()
            if check is not None:
                check()
        return results


def forward_outputs(
    forward: Forward, rows: Rows, pad_id: int, *, batch_tokens: int = BATCH_TOKENS, check: Check = signals.check
) -> list[Array]:
    """What `forward` says about every row, for answerers that are no network of ours; batches are numpy."""
    outputs: list[Array] = [np.empty(0)] * len(rows.ids)
    for numbers in alike([len(ids) for ids in rows.ids], batch_tokens):
        segments = None if rows.segments is None else [rows.segments[i] for i in numbers]
        batch = pad_rows([rows.ids[i] for i in numbers], segments, pad_id)
        named = _by_row(np.asarray(forward(batch), np.float32), batch.lengths_B.tolist())
        for number, output in zip(numbers, named, strict=True):
            outputs[number] = output
        check()
    return outputs


def _by_row(outputs: Array, lengths: Sequence[int]) -> list[Array]:
    if outputs.ndim < 3:
        return list(outputs)
    return [output[:length] for output, length in zip(outputs, lengths, strict=True)]


def alike(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of rows of like length, longest first, so that too large a batch shows at once."""
    numbers: list[int] = []
    size = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if numbers:
            longest = lengths[numbers[0]]
            unlike = lengths[i] < _LIKE_LENGTH * longest and size >= _SMALL_BATCH
            if unlike or (len(numbers) + 1) * longest > batch_tokens:
                yield numbers
                numbers, size = [], 0
        numbers.append(i)
        size += lengths[i]
    if numbers:
        yield numbers


def pad_rows(rows: Sequence[Array], segments: Sequence[Array] | None, pad_id: int) -> Batch:
    """Rows of ids as one batch of numpy arrays."""
    lengths_B = np.array([len(ids) for ids in rows], np.int64)
    ids_BS = np.full((len(rows), int(lengths_B.max())), pad_id, np.int64)
    segments_BS = None if segments is None else np.zeros_like(ids_BS)
    for number, ids in enumerate(rows):
        ids_BS[number, : len(ids)] = ids
        if segments is not None and segments_BS is not None:
            segments_BS[number, : len(ids)] = segments[number]
    return Batch(ids_BS, lengths_B, segments_BS)
