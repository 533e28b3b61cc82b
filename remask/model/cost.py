"""What a network costs before it is trained: parameters by part, arithmetic per token, memory of a step.

In: settings and heads. Out: counts (exact), FLOPs of the matrix products (exact, a multiply-add is 2), and the memory
of what autograd keeps, measured on one and two rows, since kernels decide it and it grows by the row. Not here: time
(`remask describe` measures it).
"""

from __future__ import annotations

import math

import torch

from remask.model.interop_weights import our_shapes
from remask.model.network import Network
from remask.model.noise import Noise
from remask.model.settings import HeadSettings, ModelSettings
from remask.schema import Batch

MASKED_SHARE = 0.15  # of the tokens is predicted, as in the papers
TRAINING_FACTOR = 3  # the backward pass has twice the products of the forward pass

# part -> the names it begins with
_PARTS = (
    ("token embeddings", ("encoder.embeddings.tokens.",)),
    ("position embeddings", ("encoder.embeddings.positions.",)),
    ("segment embeddings", ("encoder.embeddings.segments.",)),
    ("embedding norm and projection", ("encoder.embeddings.",)),
    ("attention", ("encoder.attentions.",)),
    ("FFN", ("encoder.ffns.",)),
    ("last norm", ("encoder.norm.",)),
    ("masked-LM head", ("heads.masked_lm.",)),
    ("decoder", ("heads.writer.",)),
    ("other heads", ("heads.",)),
)


def parameters_by_part(settings: ModelSettings, heads: HeadSettings) -> dict[str, int]:
    """Every parameter once, shared and tied ones too."""
    counts = {part: 0 for part, _ in _PARTS}
    for name, shape in our_shapes(settings, heads).items():
        part = next(part for part, starts in _PARTS if name.startswith(starts))
        counts[part] += math.prod(shape)
    return {part: count for part, count in counts.items() if count}


def flops_per_token(settings: ModelSettings, heads: HeadSettings, length: int) -> dict[str, float]:
    """Forward pass, averaged over the tokens of a full row; a shared layer is computed as often as it is used. Where
    the masked tokens are all that is asked for, the last layer goes on with them alone after its attention."""
    size, ffn = settings.hidden_size, settings.ffn_size
    whole = settings.num_layers - 1
    last = MASKED_SHARE if heads.masked_lm and not heads.sentence else 1.0
    seen = [_compared(settings, layer, length) for layer in range(settings.num_layers)]
    flops = {
        "attention projections": 2.0 * (4 * whole + 3 + last) * size * size,
        "attention": sum(2.0 * 2 * size * keys for keys in seen),
        "FFN": 2.0 * (whole + last) * size * ffn * (3 if settings.ffn == "gated" else 2),
    }
    if settings.embedding_width != size:
        flops["embedding projection"] = 2.0 * settings.embedding_width * size
    if heads.masked_lm:
        width = settings.embedding_width
        flops["masked-LM head"] = MASKED_SHARE * 2.0 * width * (size + settings.vocab_size)
    return flops


def _compared(settings: ModelSettings, layer: int, length: int) -> float:
    """Keys that a query is compared with; hashed: those of a block and its neighbours in every round."""
    if not settings.is_hashed(layer):
        return _seen(settings.window(layer), length)
    blocks = 1 if length <= settings.bucket_size else 3
    return float(settings.hash_rounds * blocks * min(settings.bucket_size, length))


def _seen(window: int | None, length: int) -> float:
    """Keys that a query sees, on average over a row."""
    if window is None or window >= length:
        return float(length)
    return sum(min(length, i + window + 1) - max(0, i - window) for i in range(length)) / length


def state_bytes(num_parameters: int) -> dict[str, int]:
    """What training holds whatever the batch: fp32 weights, gradients and Adam's two moments."""
    return {"weights": 4 * num_parameters, "gradients": 4 * num_parameters, "optimizer": 8 * num_parameters}


def probe_batch(settings: ModelSettings, num_rows: int, length: int, device: torch.device) -> Batch:
    """Full rows of random tokens with 15 % to predict."""
    generator = torch.Generator().manual_seed(0)
    ids_BS = torch.randint(0, settings.vocab_size, (num_rows, length), generator=generator)
    count = max(1, round(MASKED_SHARE * num_rows * length))
    positions_M = torch.randperm(num_rows * length, generator=generator)[:count].sort().values
    batch = Batch(
        input_ids_BS=ids_BS,
        lengths_B=torch.full((num_rows,), length),
        masked_positions_M=positions_M,
        masked_labels_M=ids_BS.flatten()[positions_M],
        example_ids_B=torch.arange(num_rows),
    )
    return batch.map(lambda array: array.to(device))


def training_loss(network: Network, batch: Batch) -> torch.Tensor:
    """The masked-LM loss with dropout, as a step of training computes it."""
    assert batch.masked_positions_M is not None
    assert batch.masked_labels_M is not None
    noise = Noise(0, 0, batch.example_ids_B)
    hidden_BSD = network.encode(batch, noise, wanted_M=batch.masked_positions_M)
    return network.masked_lm_loss(hidden_BSD, batch.masked_positions_M, batch.masked_labels_M)[0]


def activation_bytes(network: Network, num_rows: int, length: int) -> int:
    """What autograd keeps for the backward pass of `num_rows` full rows in one piece."""
    single, two = (_kept_bytes(network, rows, length) for rows in (1, 2))
    return single + (num_rows - 1) * (two - single)


def _kept_bytes(network: Network, num_rows: int, length: int) -> int:
    own = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}  # held, so that no address is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    device = next(network.parameters()).device
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        training_loss(network, probe_batch(network.settings, num_rows, length, device))
    return sum(storage.nbytes() for storage in kept.values())
