"""Weights that start from counts instead of at random: embeddings, attention over neighbours, head, bias, new tokens.

In: a fresh network, vectors of tokens, log frequencies. Out: the same network, changed in place. Attention starts as a
mean over the neighbours: values and output near the identity (after arXiv 2305.09828). A window alone makes that a mean
over near tokens; learned positions get waves in columns of their own, which queries and keys start to compare. Two
heads can start with the token on the left and that on the right instead, and with what each says about the one between.
Not here: the counting (data/counting.py), the vectors (factors.py), which parts a run wants (start.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from remask.model.encoder import Attention
from remask.model.factors import one_thread
from remask.model.heads import MaskedLm
from remask.model.network import Network
from remask.model.settings import ModelSettings

# Shapes: V vocabulary, E width of the embeddings, C counted columns, P columns of the waves, D width of a state,
# T tokens that a map is fitted to, X columns that it reads.

SIDES = (-1, 1)  # where the tokens stand that the first heads start with
_CONSTANT = 4.0  # the constant that rotary positions turn, in deviations of the other columns
_WAVES = 8  # rotary ones, the fastest, that tell the two sides apart
MIN_TEACHERS = 100  # known tokens, below which no map is fitted
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of the map, in means of its diagonal


def num_place_columns(settings: ModelSettings, sides: bool) -> int:
    """Columns of the embeddings that attention over the neighbours starts to read instead of tokens: waves for learned
    positions, or a constant that rotary ones turn."""
    if sides and settings.positions == "rotary":
        return 1
    return _num_wave_columns(settings)


def _num_wave_columns(settings: ModelSettings) -> int:
    every_layer_has_window = all(settings.window(layer) is not None for layer in range(settings.num_layers))
    if settings.positions != "learned" or every_layer_has_window or settings.embedding_width > settings.hidden_size:
        return 0
    return min(settings.head_size, settings.embedding_width // 4) // 2 * 2


def even_scale(vectors_VC: np.ndarray, is_counted_V: np.ndarray, flatten: float, std: float) -> np.ndarray:
    """Columns centred over the counted tokens, made more alike by a power of their deviation, all scaled to `std`."""
    chosen = vectors_VC[is_counted_V].astype(np.float64)
    centred = chosen - chosen.mean(axis=0)
    centred /= np.maximum(centred.std(axis=0), 1e-12) ** flatten
    scaled_VC = np.zeros(vectors_VC.shape, np.float32)
    scaled_VC[is_counted_V] = centred * (std / max(float(centred.std()), 1e-12))
    return scaled_VC


@torch.no_grad()
def start_embeddings(network: Network, vectors_VC: np.ndarray, is_counted_V: np.ndarray, std: float) -> None:
    """Token embeddings, and a free output matrix, at these vectors. Other tokens and columns beyond them stay random,
    with the same deviation."""
    masked_lm = network.heads.masked_lm
    matrices = [network.encoder.embeddings.tokens.weight]
    if masked_lm is not None and masked_lm.decoder is not None:
        matrices.append(masked_lm.decoder.weight)
    counted_V = torch.from_numpy(np.flatnonzero(is_counted_V))
    rows_VC = torch.from_numpy(vectors_VC)[counted_V]
    for weight_VE in matrices:
        weight_VE *= std / network.settings.init_std
        weight_VE[counted_V, : vectors_VC.shape[1]] = rows_VC


@torch.no_grad()
def start_head(network: Network, share: float, noise: float) -> None:
    """A masked-LM head that hands a state on nearly as it is, back in the space of the embeddings: with counted ones a
    mean over neighbours then answers with tokens that stand near them, before anything is learned."""
    masked_lm, project = network.heads.masked_lm, network.encoder.embeddings.project
    assert masked_lm is not None, "pretraining has the masked-LM head"
    masked_lm.dense.weight.mul_(noise)
    if project is None:
        masked_lm.dense.weight.diagonal().add_(share)
    else:  # down again by what took it up, of whatever length its columns are
        up_DE = project.weight
        masked_lm.dense.weight.add_(up_DE.T / up_DE.square().sum(dim=0).mean(), alpha=share)


@torch.no_grad()
def start_bias(network: Network, log_frequencies_V: np.ndarray, chosen: Sequence[int] | None = None) -> None:
    """What a model learns first, and slowly, is how frequent each token is. `chosen`: only of these tokens."""
    assert network.heads.masked_lm is not None, "pretraining has the masked-LM head"
    bias_V = network.heads.masked_lm.bias
    at = torch.arange(len(bias_V)) if chosen is None else torch.tensor(chosen, dtype=torch.int64)
    bias_V[at] = torch.from_numpy(log_frequencies_V).to(bias_V.dtype)[at]


@torch.no_grad()
def start_attention(
    network: Network, share: float, noise: float, reach: float, peak: float, sides: bool = False
) -> None:
    """Every layer adds `share` of the mean of what it sees; `noise` of the usual random start is kept. With learned
    positions, a layer without a window sees mostly `reach` tokens to either side, by a logit of `peak`. `sides`: two
    heads are left for `start_sides`, and the others begin with the first columns, which tell tokens apart best."""
    settings = network.settings
    size = settings.hidden_size
    layers = [layer for layer in range(settings.num_layers) if sides and has_sides(settings, layer)]
    with_sides = {settings.attention_index(layer) for layer in layers}
    for number, attention in enumerate(network.encoder.attentions):
        assert isinstance(attention, Attention)
        value_DD, output_DD = attention.qkv.weight[2 * size :], attention.output.weight
        left_out = len(SIDES) * settings.head_size if number in with_sides else 0
        value_DD.mul_(noise).diagonal(-left_out).add_(1.0)
        output_DD.mul_(noise).diagonal(left_out).add_(share)
    if num_columns := _num_wave_columns(settings):
        directions_DP = _start_waves(network, num_columns, reach)
        gain = math.sqrt(peak * math.sqrt(settings.head_size) / num_columns)
        for layer in range(settings.num_layers):
            if settings.window(layer) is None:
                attention = network.encoder.attentions[settings.attention_index(layer)]
                assert isinstance(attention, Attention)
                _compare(attention.qkv.weight, directions_DP * gain, settings.head_size)


def _start_waves(network: Network, num_columns: int, reach: float) -> Tensor:
    """Sines and cosines in the last columns of the position table, where tokens have nothing. Gives the directions of
    a state that read them. Two positions' waves have the product exp(-(distance / reach)^2 / 2), nearly: frequencies
    are spread as a normal distribution, whose characteristic function that is."""
    settings, embeddings = network.settings, network.encoder.embeddings
    assert embeddings.positions is not None
    tokens_VE = embeddings.tokens.weight
    masked_lm = network.heads.masked_lm
    deviation = float(tokens_VE[:, :-num_columns].std())
    tokens_VE[:, -num_columns:] = 0.0
    if masked_lm is not None and masked_lm.decoder is not None:
        masked_lm.decoder.weight[:, -num_columns:] = 0.0
    angles_SF = torch.arange(settings.max_length, dtype=torch.float64)[:, None] * _frequencies(num_columns, reach)
    waves_SP = math.sqrt(2) * deviation * torch.cat([angles_SF.cos(), angles_SF.sin()], dim=1)
    table_SE = embeddings.positions.weight[settings.position_offset :]
    table_SE[:, -num_columns:] = waves_SP.float()
    if embeddings.project is None:
        return torch.eye(settings.hidden_size)[:, -num_columns:]
    # An isometry, times what gives states the size that norms give them later: all layers read the same directions.
    with one_thread():
        turned_DE = torch.linalg.qr(embeddings.project.weight.double())[0].float()
    scale = math.sqrt(settings.hidden_size / settings.embedding_width)
    embeddings.project.weight.copy_(turned_DE * scale)
    return turned_DE[:, -num_columns:] / scale


def _frequencies(num_columns: int, reach: float) -> Tensor:
    """Of the waves: half of their columns are cosines, half sines."""
    quantiles = (torch.arange(num_columns // 2, dtype=torch.float64) + 0.5) / (num_columns // 2)
    return math.sqrt(2) * torch.erfinv(quantiles) / reach


def _compare(qkv_MD: Tensor, directions_DP: Tensor, head_size: int) -> None:
    """Queries and keys of every head read these directions, in their first rows."""
    size, num_columns = directions_DP.shape
    for start in range(0, 2 * size, head_size):
        qkv_MD[start : start + num_columns] = directions_DP.T


def has_sides(settings: ModelSettings, layer: int) -> bool:
    """Whether two heads of a layer can start with the left and the right token: it must tell where a near token is."""
    is_near = settings.window(layer) is not None if settings.positions == "rotary" else _num_wave_columns(settings) > 0
    return is_near and settings.num_heads > len(SIDES) and not settings.is_hashed(layer)


@torch.no_grad()
def start_sides(
    network: Network, map_CC: Tensor, vectors_VC: Tensor, frequencies_V: Tensor, share: float, reach: float, peak: float
) -> None:
    """The first two heads of every layer that can see the token on the left and that on the right, and add what these
    say about the one between, `share` of a state's size. `map_CC`: vector_left @ map @ vector_right is how much two
    tokens go together in that order; `vectors_VC`: as the first norm makes them."""
    settings, project = network.settings, network.encoder.embeddings.project
    num_columns, size = len(map_CC), settings.hidden_size
    with one_thread():
        up_DE = torch.eye(size, dtype=torch.float64) if project is None else project.weight.double()
        down_ED = torch.linalg.pinv(up_DE)
        left_CC, _, right_CC = torch.linalg.svd(map_CC)
        heads = []
        for side, read_CC, across_CC in ((-1, left_CC, map_CC.T), (1, right_CC.T, map_CC)):
            read_CK = read_CC[:, : settings.head_size]
            write_CK = across_CC @ read_CK
            said_VC = vectors_VC @ read_CK @ write_CK.T
            scale = share / float((frequencies_V[:, None] * said_VC.square()).sum() / num_columns) ** 0.5
            value_KD, output_DK = read_CK.T @ down_ED[:num_columns], up_DE[:, :num_columns] @ write_CK * scale
            heads.append((side, value_KD.float(), output_DK.float()))
    constant_D = _start_constant(network, down_ED) if settings.positions == "rotary" else None
    indices = {settings.attention_index(layer) for layer in range(settings.num_layers) if has_sides(settings, layer)}
    for index in sorted(indices):
        attention = network.encoder.attentions[index]
        assert isinstance(attention, Attention)
        for head, (side, value_KD, output_DK) in enumerate(heads):
            rows = slice(head * settings.head_size, (head + 1) * settings.head_size)
            queries_KD, keys_KD, values_KD = (part[rows] for part in attention.qkv.weight.split(size))
            values_KD.zero_()[: len(value_KD)] = value_KD
            attention.output.weight[:, rows].zero_()[:, : len(value_KD)] = output_DK
            if constant_D is None:
                _look_aside(keys_KD, _num_wave_columns(settings), side, reach)
            else:
                _turn_aside(queries_KD, keys_KD, constant_D, side, peak, settings.rotary_base_local)


def _start_constant(network: Network, down_ED: Tensor) -> Tensor:
    """The last column of the embeddings is the same for all tokens. Gives the direction of a state that reads it as 1.
    As an output it moves all logits alike, which changes no probability."""
    tokens_VE, masked_lm = network.encoder.embeddings.tokens.weight, network.heads.masked_lm
    value = _CONSTANT * float(tokens_VE[:, :-1].std())
    tokens_VE[:, -1] = value
    if masked_lm is not None and masked_lm.decoder is not None:
        masked_lm.decoder.weight[:, -1] = value
    normed = _CONSTANT / math.sqrt(1 + _CONSTANT**2 / tokens_VE.shape[1])  # what the embeddings' norm makes of it
    return (down_ED[-1] / normed).float()


def _turn_aside(queries_KD: Tensor, keys_KD: Tensor, constant_D: Tensor, side: int, peak: float, base: float) -> None:
    """Queries and keys that are the same for all tokens, and turned so far apart that rotary positions bring them
    together where the key stands at `side` of the query: fast waves, so that only that place is near."""
    half = len(queries_KD) // 2
    number = min(_WAVES, half)
    turns_H = side * base ** (-torch.arange(number, dtype=torch.float32) / half)
    gain = math.sqrt(peak * math.sqrt(len(queries_KD)) / number)
    queries_KD[:number] += gain * constant_D
    keys_KD[:number] += gain * turns_H.cos()[:, None] * constant_D
    keys_KD[half : half + number] -= gain * turns_H.sin()[:, None] * constant_D


def _look_aside(keys_KD: Tensor, num_columns: int, side: int, reach: float) -> None:
    """Keys read the waves of learned positions as if their token stood where the query stands."""
    frequencies_F = _frequencies(num_columns, reach).float()[:, None]
    half = num_columns // 2
    cos_FD, sin_FD = keys_KD[:half].clone(), keys_KD[half:num_columns].clone()
    turn = side * frequencies_F
    keys_KD[:half] = cos_FD * turn.cos() + sin_FD * turn.sin()
    keys_KD[half:num_columns] = sin_FD * turn.cos() - cos_FD * turn.sin()


@torch.no_grad()
def quiet_head(masked_lm: MaskedLm, log_frequencies_V: np.ndarray) -> None:
    """A head over the vocabulary that a trained encoder did not have: it starts by answering the frequencies, whatever
    the state. Trained embeddings can be long (rows of 5.7 in a real model): under a random head they would answer with
    certainty, and wrongly. The last norm grows as it learns which directions help."""
    masked_lm.norm.weight.fill_(0.0)  # its own gradient is not 0, so that the rest of the head learns a step later
    masked_lm.bias.copy_(torch.from_numpy(log_frequencies_V))


@torch.no_grad()
def fit_new_rows(
    network: Network,
    counted: tuple[np.ndarray, np.ndarray],
    old_ids_V: Sequence[int],
    log_frequencies_V: np.ndarray,
    pieces_V: Sequence[Sequence[int]] | None = None,
) -> float | None:
    """Vectors of tokens that a trained model did not know, from counts and from `pieces_V`, the known tokens that each
    is made of: the linear map that is best on the tokens it knew. Their output bias: the log frequency, moved as those
    of known tokens are. Gives the share of the variance that the map explains on known tokens that it was not fitted
    to; None, and nothing changed: too few are known."""
    vectors_VC, is_counted_V = counted
    known_V = torch.tensor(old_ids_V) >= 0
    seen_V = torch.from_numpy(is_counted_V)
    if pieces_V is not None:
        seen_V = seen_V & torch.tensor([len(pieces) > 0 for pieces in pieces_V])
    teachers, pupils = (known_V & seen_V).nonzero().squeeze(1), (~known_V).nonzero().squeeze(1)
    if len(teachers) < MIN_TEACHERS:
        return None
    masked_lm = network.heads.masked_lm
    assert masked_lm is not None, "pretraining has the masked-LM head"
    counted_VC = torch.from_numpy(vectors_VC).double()
    explained = 0.0
    with one_thread():
        for weight_VE in _matrices(network):
            parts = [counted_VC] if pieces_V is None else [counted_VC, _means(weight_VE, pieces_V).double()]
            inputs_VX = torch.nn.functional.pad(torch.cat(parts, dim=1), (0, 1), value=1.0)
            map_XE, explained = _ridge(inputs_VX[teachers], weight_VE[teachers].double())
            weight_VE[pupils] = (inputs_VX[pupils] @ map_XE).to(weight_VE.dtype)
    frequencies_V = torch.from_numpy(log_frequencies_V).to(masked_lm.bias.dtype)
    masked_lm.bias[pupils] = frequencies_V[pupils] + (masked_lm.bias - frequencies_V)[teachers].mean()
    return explained


@torch.no_grad()
def mean_new_rows(network: Network, old_ids_V: Sequence[int], pieces_V: Sequence[Sequence[int]]) -> None:
    """Vectors of new tokens at the mean of the known ones that they are made of."""
    pupils = torch.tensor([token for token, was in enumerate(old_ids_V) if was < 0 and pieces_V[token]])
    for weight_VE in _matrices(network):
        weight_VE[pupils] = _means(weight_VE, pieces_V)[pupils]


def _matrices(network: Network) -> list[Tensor]:
    """The token embeddings, and a free output matrix."""
    masked_lm = network.heads.masked_lm
    assert masked_lm is not None, "pretraining has the masked-LM head"
    embeddings_VE = network.encoder.embeddings.tokens.weight
    return [embeddings_VE] if masked_lm.decoder is None else [embeddings_VE, masked_lm.decoder.weight]


def _means(weight_VE: Tensor, pieces_V: Sequence[Sequence[int]]) -> Tensor:
    """For every token the mean of its pieces' rows; zeros where it has none."""
    flat_P = torch.tensor([piece for pieces in pieces_V for piece in pieces], dtype=torch.int64)
    starts_V = torch.tensor([0, *(len(pieces) for pieces in pieces_V)]).cumsum(0)[:-1]
    return torch.nn.functional.embedding_bag(flat_P, weight_VE, starts_V, mode="mean")


def _ridge(x_TX: Tensor, y_TE: Tensor) -> tuple[Tensor, float]:
    """(map, share of the variance explained on every tenth row): the penalty is the one that is best on these."""
    apart_T = torch.arange(len(x_TX)) % 10 == 0

    def fit(x: Tensor, y: Tensor, penalty: float) -> Tensor:
        gram_XX = x.T @ x
        scale = penalty * float(gram_XX.diagonal()[:-1].mean())
        gram_XX.diagonal()[:-1] += scale  # the last column is the constant
        return torch.linalg.solve(gram_XX, x.T @ y)

    def explained(penalty: float) -> float:
        rest = y_TE[apart_T] - x_TX[apart_T] @ fit(x_TX[~apart_T], y_TE[~apart_T], penalty)
        centred = y_TE[apart_T] - y_TE[~apart_T].mean(dim=0)
        return 1.0 - float(rest.square().sum() / centred.square().sum().clamp(min=1e-12))

    best = max(PENALTIES, key=explained)
    return fit(x_TX, y_TE, best), explained(best)
