"""Which token comes next: the likeliest, the likeliest beginnings side by side (beams), or one by chance; or which of
the source's own sentences is taken.

In: a network that writes and the states of some sources. Out: a `Draft` for each. All sources of a batch are written
at once, keys and values are kept, a source that is done leaves the batch; nothing depends on what else is in it. Beams
follow the usual rules (those of transformers' `generate`): twice as many candidates as beams, those that end are
scored by length, a source is done when no beginning can beat its finished texts. What sampling draws is a pure
function of (seed, source, place). Not here: the network (model/decoder), texts (tasks/write).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from remask.model.decoder import Decoder, Memory, Source
from remask.model.network import Network
from remask.schema import IGNORE, Batch
from remask.tasks.settings import DecodeSettings
from remask.tasks.write import Draft

# Shapes: B sources, W beams of a source, R = B x W texts, L tokens of a text so far, V vocabulary, C candidates.

_CHUNK = 64  # logits whose largest is looked at first, when the largest of all are wanted
Candidates = Sequence[Sequence[tuple[np.ndarray, bool]]]  # of every source (ids, whether they are whole)
OnStep = Callable[[Sequence[tuple[int, int]]], None]  # after every step: (number of a source, token) chosen for good


class Writer:
    """A network's next tokens, for texts about one batch of sources."""

    def __init__(self, network: Network, batch: Batch, hidden_BSD: Tensor, num_beams: int, cached: bool) -> None:
        decoder = network.heads.writer
        assert isinstance(decoder, Decoder), "this network cannot write"
        self.network, self.decoder, self.num_beams = network, decoder, num_beams
        self.source = Source.of(batch, hidden_BSD, network.settings.unpad)
        self.memory: Memory | None = decoder.memory(self.source, num_beams) if cached else None
        self._batch, self._hidden_BSD = batch, hidden_BSD

    def next(self, ids_RL: Tensor) -> Tensor:
        """logits_RV after these tokens, of which all but the last have been seen before."""
        if self.memory is not None:
            return self.decoder.step(self.network.encoder, ids_RL[:, -1], self.memory).float()
        rows = len(ids_RL)
        targets = Batch(ids_RL, torch.full((rows,), ids_RL.shape[1], device=ids_RL.device))
        repeated = self._batch.map(lambda x: x.repeat_interleave(self.num_beams, 0))
        source = Source.of(repeated, self._hidden_BSD.repeat_interleave(self.num_beams, 0), self.network.settings.unpad)
        states_TD, places = self.decoder(self.network.encoder, targets, source)
        last_RD = places.pad(states_TD)[:, -1]
        return self.decoder.logits(self.network.encoder, last_RD).float()

    def choose(self, texts_R: Tensor) -> None:
        if self.memory is not None:
            self.memory.choose(texts_R)

    def keep(self, sources_B: Tensor) -> None:
        if self.memory is not None:
            self.memory.keep(sources_B)
        else:
            self._batch = self._batch.map(lambda x: x[sources_B])
            self._hidden_BSD = self._hidden_BSD[sources_B]


def write(
    network: Network,
    batch: Batch,
    hidden_BSD: Tensor,
    settings: DecodeSettings,
    max_length: int,
    on_step: OnStep | None = None,
) -> list[Draft]:
    """A draft for each source of the batch, of at most `max_length` tokens with its end."""
    max_length = min(max_length, network.settings.max_length)
    writer = Writer(network, batch, hidden_BSD, settings.num_beams, settings.cached)
    if settings.num_beams > 1:
        return _beams(writer, batch.num_rows, settings, max_length, on_step)
    return _one_by_one(writer, batch.num_rows, settings, max_length, pick_of(settings, batch), on_step)


def take_sentences(
    network: Network, batch: Batch, hidden_BSD: Tensor, settings: DecodeSettings, candidates_B: Candidates
) -> list[Draft]:
    """For each source the one of its sentences that the decoder finds likeliest, by length. Nothing is made up."""
    drafts = []
    for row, candidates in enumerate(candidates_B):
        ids = [ids for ids, _ in candidates]
        lengths_C = torch.tensor([len(one) for one in ids], device=hidden_BSD.device)
        labels_CL = torch.full((len(ids), int(lengths_C.max())), IGNORE, device=hidden_BSD.device)
        for place, one in enumerate(ids):
            labels_CL[place, : len(one)] = torch.from_numpy(one.astype(np.int64))
        same_C = torch.full((len(ids),), row, device=hidden_BSD.device)
        asked = replace(batch.map(lambda x, same_C=same_C: x[same_C]), labels=labels_CL, target_lengths_B=lengths_C)
        scores_C = -network.write_losses(hidden_BSD[same_C], asked) / lengths_C**settings.length_penalty
        best = int(scores_C.argmax())
        whole = candidates[best][1]
        drafts.append(Draft(ids[best][:-1] if whole else ids[best], float(scores_C[best]), whole))
    return drafts


# ------------------------------------------------------------------------------------------- one text a source

Pick = Callable[[Tensor, Sequence[int], int], Tensor]  # (log probabilities_RV, sources, place) -> ids_R


def _one_by_one(
    writer: Writer, count: int, settings: DecodeSettings, max_length: int, pick: Pick, on_step: OnStep | None
) -> list[Draft]:
    ids = writer.decoder.writer
    device = writer.source.states_UD.device
    open_ = list(range(count))  # numbers of the sources that are not done
    ids_RL = torch.full((count, 1), ids.start_id, device=device)
    totals = np.zeros(count)
    drafts: list[Draft | None] = [None] * count
    for place in range(max_length):
        logs_RV = writer.next(ids_RL).log_softmax(1)
        ban_repeats(logs_RV, ids_RL, settings.no_repeat)
        chosen_R = pick(logs_RV, open_, place)
        gained_R = logs_RV.gather(1, chosen_R[:, None])[:, 0].tolist()
        ids_RL = torch.cat([ids_RL, chosen_R[:, None]], dim=1)
        staying = []
        if on_step is not None:
            chosen = zip(open_, chosen_R.tolist(), strict=True)
            on_step([(number, token) for number, token in chosen if token != ids.end_id])
        for row, (number, token) in enumerate(zip(open_, chosen_R.tolist(), strict=True)):
            totals[number] += gained_R[row]
            ended = token == ids.end_id
            if ended or place + 1 == max_length:
                text = ids_RL[row, 1 : -1 if ended else None].cpu().numpy()
                drafts[number] = Draft(text, totals[number] / (place + 1), ended)
            else:
                staying.append(row)
        if not staying:
            break
        if len(staying) < len(open_):
            kept = torch.tensor(staying, device=device)
            writer.keep(kept)
            ids_RL, open_ = ids_RL[kept], [open_[row] for row in staying]
    assert all(drafts)
    return [draft for draft in drafts if draft is not None]


def pick_of(settings: DecodeSettings, batch: Batch) -> Pick:
    """How one token is chosen."""
    return _likeliest if settings.by == "beams" else _Chance(settings, batch)


def _likeliest(logits_RV: Tensor, sources: Sequence[int], place: int) -> Tensor:
    return logits_RV.argmax(1)


class _Chance:
    """Draws a token by its probability."""

    def __init__(self, settings: DecodeSettings, batch: Batch) -> None:
        self._settings = settings
        ids, lengths = batch.input_ids_BS.cpu().numpy(), batch.lengths_B.tolist()
        rows = zip(ids, lengths, strict=True)
        self._keys = [hashlib.sha256(row[:n].astype(np.int64).tobytes()).digest() for row, n in rows]

    def __call__(self, logits_RV: Tensor, sources: Sequence[int], place: int) -> Tensor:
        settings = self._settings
        logits_RV = logits_RV / settings.temperature
        ids_RC: Tensor | None = None
        if settings.top_k or settings.top_p < 1.0:
            count = min(settings.top_k or logits_RV.shape[1], logits_RV.shape[1])
            logits_RV, ids_RC = logits_RV.topk(count, dim=1)
        probs_RC = logits_RV.double().softmax(1)
        if settings.top_p < 1.0:  # the likeliest one always stays
            before_RC = probs_RC.cumsum(1) - probs_RC
            probs_RC = probs_RC.masked_fill(before_RC >= settings.top_p, 0.0)
        sums_RC = probs_RC.cumsum(1)
        draws = [_uniform(settings.seed, self._keys[number], place) for number in sources]
        draws_R1 = torch.tensor(draws, dtype=torch.float64, device=logits_RV.device)[:, None] * sums_RC[:, -1:]
        places_R1 = torch.searchsorted(sums_RC, draws_R1, right=True).clamp(max=sums_RC.shape[1] - 1)
        return places_R1[:, 0] if ids_RC is None else ids_RC.gather(1, places_R1)[:, 0]


def _uniform(seed: int, key: bytes, place: int) -> float:
    """A number of [0, 1) that follows from its arguments alone."""
    digest = hashlib.sha256(f"{seed} {place} ".encode() + key).digest()
    return int.from_bytes(digest[:7], "little") / 2**56


# ------------------------------------------------------------------------------------------------------- beams


@dataclass
class _Finished:
    """The best finished texts about one source: (score, ids), best first."""

    num_beams: int
    texts: list[tuple[float, np.ndarray, bool]]

    def add(self, score: float, ids: np.ndarray, ended: bool) -> None:
        self.texts.append((score, ids, ended))
        self.texts.sort(key=lambda text: -text[0])  # stable: of equals the earlier one stays ahead
        del self.texts[self.num_beams :]

    def is_done(self, best_running: float) -> bool:
        """As many as there are beams, and no running one can enter by its score so far."""
        return len(self.texts) == self.num_beams and best_running <= self.texts[-1][0]


def _beams(
    writer: Writer, count: int, settings: DecodeSettings, max_length: int, on_step: OnStep | None
) -> list[Draft]:
    ids, width = writer.decoder.writer, settings.beams
    device = writer.source.states_UD.device
    open_ = list(range(count))
    finished = [_Finished(width, []) for _ in range(count)]
    ids_RL = torch.full((count * width, 1), ids.start_id, device=device)
    scores_BW = torch.full((count, width), -1e9, device=device)
    scores_BW[:, 0] = 0.0  # the beams of a source are all alike at first: one of them counts
    for place in range(max_length):
        logs_RV = writer.next(ids_RL).log_softmax(1)
        ban_repeats(logs_RV, ids_RL, settings.no_repeat)
        values_RC, tokens_RC = _largest(logs_RV, 2 * width)
        totals_BC = values_RC.view(len(open_), width, -1) + scores_BW[:, :, None]
        best_BC = totals_BC.flatten(1).topk(2 * width, dim=1)
        beams_BC = best_BC.indices // values_RC.shape[1]
        tokens_BC = tokens_RC.view(len(open_), -1).gather(1, best_BC.indices)
        last = place + 1 == max_length
        running_BW, staying = _continue(
            finished, open_, ids_RL, best_BC.values, beams_BC, tokens_BC, width, place + 1, last, ids.end_id, settings
        )
        if on_step is not None:
            on_step([])  # beams may still change places: nothing is chosen for good
        if not staying:
            break
        rows_B = torch.tensor(staying, device=device)
        chosen_BW = torch.tensor([running_BW[row] for row in staying], device=device)
        scores_BW = best_BC.values[rows_B].gather(1, chosen_BW)
        beams_BW = beams_BC[rows_B].gather(1, chosen_BW)
        if len(staying) < len(open_):
            writer.keep(rows_B)
            open_ = [open_[row] for row in staying]
        own_B1 = torch.arange(len(open_), device=device)[:, None] * width
        before_R = (rows_B[:, None] * width + beams_BW).flatten()
        ids_RL = torch.cat([ids_RL[before_R], tokens_BC[rows_B].gather(1, chosen_BW).view(-1, 1)], dim=1)
        writer.choose((own_B1 + beams_BW).flatten())
    return [Draft(best.texts[0][1], best.texts[0][0], best.texts[0][2]) for best in finished]


def _continue(
    finished: Sequence[_Finished], open_: Sequence[int], ids_RL: Tensor, totals_BC: Tensor, beams_BC: Tensor,
    tokens_BC: Tensor, width: int, length: int, last: bool, end_id: int, settings: DecodeSettings,
) -> tuple[list[list[int]], list[int]]:  # fmt: skip
    """(Of every source, the candidates that its next beams are; the sources that go on). Candidates that end are put
    among the finished texts if they are as good as a beam."""
    running, staying = [], []
    totals, beams, tokens = totals_BC.tolist(), beams_BC.tolist(), tokens_BC.tolist()
    divisor = length**settings.length_penalty
    for row, number in enumerate(open_):
        going_on = []
        for place, token in enumerate(tokens[row]):
            if token != end_id and not last:
                going_on.append(place)
            elif place < width:
                before = ids_RL[row * width + beams[row][place], 1:].cpu().numpy()
                ended = token == end_id
                finished[number].add(totals[row][place] / divisor, before if ended else np.append(before, token), ended)
        running.append(going_on[:width])
        if not last and not finished[number].is_done(totals[row][going_on[0]] / divisor):
            staying.append(row)
    return running, staying


def _largest(logits_RV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest logits of every row and their tokens: topk, but by the largest of each chunk first, which is several
    times faster over a large vocabulary."""
    rows, size = logits_RV.shape
    if size < 2 * _CHUNK * count:
        return logits_RV.topk(min(count, size), dim=1)
    whole = size // _CHUNK * _CHUNK
    chunks_RXC = logits_RV[:, :whole].view(rows, -1, _CHUNK)
    best_RX = chunks_RXC.amax(2).topk(count, dim=1).indices
    tokens_RX = best_RX[:, :, None] * _CHUNK + torch.arange(_CHUNK, device=logits_RV.device)
    rest = torch.arange(whole, size, device=logits_RV.device).expand(rows, -1)
    tokens_RY = torch.cat([tokens_RX.flatten(1), rest], dim=1)
    values, places = logits_RV.gather(1, tokens_RY).topk(count, dim=1)
    return values, tokens_RY.gather(1, places)


def ban_repeats(logits_RV: Tensor, ids_RL: Tensor, size: int) -> None:
    """Make it impossible, in place, that a sequence of `size` tokens comes a second time (the start counts as one)."""
    length = ids_RL.shape[1]
    if size == 0 or length < size:
        return
    for row, ids in enumerate(ids_RL.tolist()):
        if size == 1:
            banned = ids
        else:
            tail = ids[length - size + 1 :]
            starts = range(length - size + 1)
            banned = [ids[start + size - 1] for start in starts if ids[start : start + size - 1] == tail]
        if banned:
            logits_RV[row, banned] = -torch.inf
