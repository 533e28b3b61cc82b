"""Text continued by an encoder alone: masks are put after it and filled one by one.

In: rows that end in masks, and a network with a masked LM. Out: a `Draft` for each: the tokens that the masks became.
An encoder has no order in which to write, so one is chosen: from left to right, or the surest mask first. Every token
needs a pass over the whole row. This is what an encoder can do without a decoder, not what a decoder would write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from remask.answer.decoding import OnStep, ban_repeats, pick_of
from remask.model.network import Network
from remask.schema import Batch
from remask.tasks.settings import DecodeSettings, MaskOrder
from remask.tasks.write import Draft

# Shapes: B rows, S positions, M masks that are left, V vocabulary.


def fill_masks(
    network: Network,
    batch: Batch,
    hidden_BSD: Tensor,
    mask_id: int,
    never: Sequence[int],
    settings: DecodeSettings,
    order: MaskOrder,
    on_step: OnStep | None = None,
) -> list[Draft]:
    """Fill every mask. `never`: tokens that are no text. `hidden_BSD`: the states of the rows as they come."""
    pick = pick_of(settings, batch)
    where = [(batch.input_ids_BS[row] == mask_id).nonzero().squeeze(1).tolist() for row in range(batch.num_rows)]
    left = [list(places) for places in where]
    totals = [0.0] * batch.num_rows
    ids_BS, size = batch.input_ids_BS.clone(), batch.input_ids_BS.shape[1]
    step = 0
    while any(left):
        if step:
            hidden_BSD = network.encode(replace(batch, input_ids_BS=ids_BS))
        rows = [row for row in range(batch.num_rows) if left[row]]
        asked = [(row, place) for row in rows for place in (left[row] if order == "certainty" else left[row][:1])]
        positions_M = torch.tensor([row * size + place for row, place in asked], device=ids_BS.device)
        logits_MV = network.masked_lm(hidden_BSD, positions_M).float()
        logits_MV[:, list(never)] = -torch.inf
        chosen = _chosen(asked, logits_MV)
        places = [asked[i][1] for i in chosen]
        logits_RV = logits_MV[chosen]
        sums_R1 = logits_RV.logsumexp(1, keepdim=True)
        for number, (row, place) in enumerate(zip(rows, places, strict=True)):
            if order == "left":
                ban_repeats(logits_RV[number : number + 1], ids_BS[row : row + 1, 1:place], settings.no_repeat)
        tokens_R = pick(logits_RV, rows, step)
        gained = (logits_RV.gather(1, tokens_R[:, None]) - sums_R1)[:, 0].tolist()
        for number, (row, place, token) in enumerate(zip(rows, places, tokens_R.tolist(), strict=True)):
            ids_BS[row, place] = token
            left[row].remove(place)
            totals[row] += gained[number]
        if on_step is not None:
            on_step(list(zip(rows, tokens_R.tolist(), strict=True)) if order == "left" else [])
        step += 1
    return [
        Draft(ids_BS[row, where[row]].cpu().numpy(), totals[row] / max(1, len(where[row])), True)
        for row in range(batch.num_rows)
    ]


def _chosen(asked: Sequence[tuple[int, int]], logits_MV: Tensor) -> list[int]:
    """Of each row's masks the one whose likeliest token is the surest; of equals the first."""
    sure_M = (logits_MV.amax(1) - logits_MV.logsumexp(1)).tolist()
    best: dict[int, int] = {}
    for number, (row, _) in enumerate(asked):
        if row not in best or sure_M[number] > sure_M[best[row]]:
            best[row] = number
    return list(best.values())
