"""Hashed attention: a token sees those that fall into its bucket (Reformer, arXiv 2001.04451, section 2).

In: queries, keys and values of padded rows, and a Sight. Out: one vector per head and token. In every round tokens are
hashed by random rotations, sorted by bucket and cut into blocks; a block sees itself and its two neighbours, there
only tokens of the same bucket. Rounds are joined by their sums of exponentials, keys that several rounds share count
once. Rows of at most one bucket are seen whole, which is full attention. Unlike Reformer queries and keys stay two: a
token is hashed by the sum of both directions, which is Reformer's hash where they are the same. Rotations are a pure
function of (seed, layer, round). Not here: which layers do so (settings), weights (encoder).
"""

from __future__ import annotations

import functools
import hashlib

import torch
import torch.nn.functional as F

from remask.model.attention import Sight
from remask.model.noise import Noise, keep_scale

# Shapes: B rows, S positions, N heads, K width of a head, R rounds, X blocks of a row, Q queries and L keys of a block.


def attend_hashed(
    qk_2BNSK: torch.Tensor,
    v_BNSK: torch.Tensor,
    sight: Sight,
    *,
    rounds: int,
    bucket_size: int,
    seed: int,
    layer: int,
    noise: Noise | None = None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """attended_BNSK. `noise` None: no dropout."""
    size = qk_2BNSK.shape[3]
    block = min(bucket_size, size)
    with torch.autocast(qk_2BNSK.device.type, enabled=False):
        buckets_RBNS = token_buckets(qk_2BNSK, sight, rounds, bucket_size, seed, layer)
        dropped_RBNSL: torch.Tensor | None = None
        if noise is not None and dropout > 0.0:
            # Decisions belong to (token, place of the key around its block), which padding does not change.
            dropped = noise.dropped_square(
                layer, dropout, sight.lengths, qk_2BNSK.shape[2], rounds * 3 * bucket_size, size, sight.device
            )
            dropped_RBNSL = dropped.unflatten(3, (rounds, -1)).movedim(3, 0)
            if size <= block:  # one block without neighbours
                dropped_RBNSL = dropped_RBNSL[..., bucket_size : bucket_size + block]
        attended, sums = [], []
        for number in range(rounds):
            dropped_BNSL = None if dropped_RBNSL is None else dropped_RBNSL[number]
            attended_BNSK, sum_BNS = _round(qk_2BNSK, v_BNSK, sight, buckets_RBNS, number, block, dropped_BNSL, dropout)
            attended.append(attended_BNSK)
            sums.append(sum_BNS)
        if rounds == 1:
            return attended[0]
        share_RBNS = torch.stack(sums).softmax(0).to(v_BNSK.dtype)
        return (torch.stack(attended) * share_RBNS[..., None]).sum(0)


def token_buckets(
    qk_2BNSK: torch.Tensor, sight: Sight, rounds: int, bucket_size: int, seed: int, layer: int
) -> torch.Tensor:
    """buckets_RBNS: of every token in every round; padding has one of its own. How many there are follows from the
    length of a row, not from its padding."""
    with torch.no_grad():
        way_BNSK = F.normalize(qk_2BNSK.detach().float(), dim=-1).sum(0)
        device = way_BNSK.device
        length_B = torch.tensor(list(sight.lengths), device=device)
        half_B = torch.where(length_B > bucket_size, -(-length_B // (2 * bucket_size)), 0)
        half = max(1, int(half_B.max()))
        column_H = torch.arange(half, device=device)
        is_none_B11H = (column_H >= half_B.clamp(min=1)[:, None])[:, None, None]
        rounds_of_buckets = []
        for number in range(rounds):
            turned_BNSH = way_BNSK @ rotation(seed, layer, number, way_BNSK.shape[3], half).to(device)
            both = [x.masked_fill(is_none_B11H, -torch.inf) for x in (turned_BNSH, -turned_BNSH)]
            bucket_BNS = torch.cat(both, dim=-1).argmax(-1)
            rounds_of_buckets.append(bucket_BNS.masked_fill((half_B == 0)[:, None, None], 0))  # short rows: one
        is_padding_B1S = torch.arange(way_BNSK.shape[2], device=device) >= length_B[:, None, None]
        return torch.stack(rounds_of_buckets).masked_fill(is_padding_B1S, 2 * half)


@functools.lru_cache(maxsize=4096)
def rotation(seed: int, layer: int, number: int, width: int, half: int) -> torch.Tensor:
    """rotation_KH: directions that stand for buckets, each with its opposite; fewer are the first of more."""
    words = hashlib.sha256(f"{seed} {layer} {number}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(words[:8], "little") >> 1)
    return torch.stack([torch.randn(width, generator=generator) for _ in range(half)], dim=1)


def _round(
    qk_2BNSK: torch.Tensor,
    v_BNSK: torch.Tensor,
    sight: Sight,
    buckets_RBNS: torch.Tensor,
    number: int,
    block: int,
    dropped_BNSL: torch.Tensor | None,
    dropout: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(attended_BNSK, log of the sum of exponentials_BNS) of one round, in the order of the row."""
    order_BNS = buckets_RBNS[number].argsort(dim=-1, stable=True)  # within a bucket by position
    size = order_BNS.shape[2]
    spare = -size % block
    # Padding beyond the row repeats its last token as a key that nobody may see.
    place_BNP = F.pad(order_BNS, (0, spare), value=0)
    is_spare_P = torch.arange(size + spare, device=order_BNS.device) >= size
    q, k, v = (_taken(x_BNSK, place_BNP) for x_BNSK in (*qk_2BNSK, v_BNSK))
    q_BNXQK, query_BNXQ = q.unflatten(2, (-1, block)), place_BNP.unflatten(2, (-1, block))
    k_BNXLK, v_BNXLK, key_BNXL = (_around(x, block) for x in (k, v, place_BNP))
    is_spare_XL = _around(is_spare_P[None, None], block, beyond=True)[0, 0]
    scores_BNXQL = torch.matmul(q_BNXQK * q.shape[-1] ** -0.5, k_BNXLK.transpose(-1, -2)).float()
    hidden, common = _seen(sight, buckets_RBNS, number, query_BNXQ, key_BNXL)
    hidden = hidden | is_spare_XL[None, None, :, None, :]
    if common is not None:
        scores_BNXQL = scores_BNXQL - common.clamp(min=1).log()
    scores_BNXQL = scores_BNXQL.masked_fill(hidden, torch.finfo(torch.float32).min / 2)
    sum_BNXQ = scores_BNXQL.logsumexp(-1)
    probs_BNXQL = (scores_BNXQL - sum_BNXQ[..., None]).exp()
    if dropped_BNSL is not None:
        taken = dropped_BNSL.gather(2, place_BNP[..., None].expand(-1, -1, -1, dropped_BNSL.shape[3]))
        probs_BNXQL = probs_BNXQL.masked_fill(taken.unflatten(2, (-1, block)) == 1, 0.0) * keep_scale(dropout)
    attended_BNPK = torch.matmul(probs_BNXQL.to(v.dtype), v_BNXLK).flatten(2, 3)
    back_BNS = order_BNS.argsort(dim=-1)
    return _taken(attended_BNPK, back_BNS), sum_BNXQ.flatten(2, 3).gather(2, back_BNS)


def _taken(x_BNSK: torch.Tensor, place_BNP: torch.Tensor) -> torch.Tensor:
    return x_BNSK.gather(2, place_BNP[..., None].expand(-1, -1, -1, x_BNSK.shape[3]))


def _around(x: torch.Tensor, block: int, beyond: bool = False) -> torch.Tensor:
    """Each block with its two neighbours along dimension 2; one alone has none. `beyond` marks what is outside."""
    blocks = x.unflatten(2, (-1, block))
    if blocks.shape[2] == 1:
        return blocks
    outside = torch.full_like(blocks[:, :, :1], True) if beyond else torch.zeros_like(blocks[:, :, :1])
    before = torch.cat([outside, blocks[:, :, :-1]], dim=2)
    after = torch.cat([blocks[:, :, 1:], outside], dim=2)
    return torch.cat([before, blocks, after], dim=3)


def _seen(
    sight: Sight, buckets_RBNS: torch.Tensor, number: int, query_BNXQ: torch.Tensor, key_BNXL: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(hidden_BNXQL, in how many rounds query and key share a bucket; None: there is one round)."""
    own, other = query_BNXQ[..., :, None], key_BNXL[..., None, :]

    def at(values_BNS: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        values_BNS = values_BNS.expand(places.shape[0], places.shape[1], -1)
        return values_BNS.gather(2, places.flatten(2)).view(places.shape)

    def same(values_BNS: torch.Tensor) -> torch.Tensor:
        return at(values_BNS, query_BNXQ)[..., :, None] == at(values_BNS, key_BNXL)[..., None, :]

    hidden = ~same(buckets_RBNS[number])
    if sight.document_ids_BS is not None:
        hidden = hidden | ~same(sight.document_ids_BS[:, None])
    if sight.hidden_tokens_BS is not None:
        hidden = hidden | (at(sight.hidden_tokens_BS[:, None], key_BNXL)[..., None, :] & (own != other))
    if sight.causal:
        hidden = hidden | (other > own)
    if len(buckets_RBNS) == 1:
        return hidden, None
    common = torch.stack([same(buckets_BNS) for buckets_BNS in buckets_RBNS]).sum(0)
    return hidden, common.float()
