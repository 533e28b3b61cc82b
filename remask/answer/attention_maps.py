"""Who looks at whom: the attention probabilities of one row, for people to look at.

In: a network and a batch of one row. Out: layers x heads x queries x keys. The kernels that answer never keep these
numbers, so they are made again from what each layer's query-key-value product gave. Not here: attention itself (model).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import numpy as np
import torch
from torch import nn

from remask.answer.reader import Reader
from remask.answer.runner import Runner
from remask.errors import DataError
from remask.model.attention import Sight, rotary_angles, rotate
from remask.model.decoder import Source
from remask.model.encoder import Attention
from remask.model.hashed import attend_hashed
from remask.model.network import Network
from remask.model.settings import ModelSettings
from remask.schema import Batch
from remask.tasks.batches import collate
from remask.tasks.records import CrossLook
from remask.tasks.write import Write

# Shapes: S tokens of the row, N heads, K width of a head.
MAX_TOKENS = 128  # beyond it there is nothing to see, and layers x heads x tokens x tokens are millions of numbers


def attention_maps(network: Network, batch: Batch) -> np.ndarray:
    """probabilities_LNSS in fp32."""
    settings = network.settings
    size = batch.input_ids_BS.shape[1]
    assert batch.num_rows == 1
    assert int(batch.lengths_B[0]) == size <= MAX_TOKENS
    products: list[torch.Tensor] = []  # in the order of the layers, also where layers share their weights

    def keep(module: nn.Module, args: object, output: torch.Tensor) -> None:
        products.append(output.float().clone())  # it will be turned in place

    attentions = cast(Iterable[Attention], network.encoder.attentions)
    hooks = [attention.qkv.register_forward_hook(keep) for attention in attentions]
    try:
        network.encode(batch)
    finally:
        for hook in hooks:
            hook.remove()
    device = batch.input_ids_BS.device
    sight = Sight([size], size, device)
    positions_BS = torch.arange(size, device=device)[None]
    maps = []
    for layer, qkv_SM in enumerate(products):
        window = settings.window(layer)
        qkv_3BNSK = qkv_SM.view(1, size, 3, settings.num_heads, settings.head_size).permute(2, 0, 3, 1, 4).contiguous()
        if settings.positions == "rotary":
            base = settings.rotary_base if window is None else settings.rotary_base_local
            qkv_3BNSK = rotate(qkv_3BNSK, rotary_angles(positions_BS, settings.head_size, base))
        if settings.is_hashed(layer):
            maps.append(_hashed(qkv_3BNSK, sight, settings, layer))
            continue
        q_NSK, k_NSK = qkv_3BNSK[0, 0], qkv_3BNSK[1, 0]
        # fp32 again: under autocast the product is bf16
        scores_NSS = (q_NSK @ k_NSK.transpose(-1, -2)).float() * settings.head_size**-0.5
        assert sight.block(window) is None
        bias = sight.bias(window, scores_NSS.dtype)
        maps.append((scores_NSS if bias is None else scores_NSS + bias[0, :, 0]).softmax(-1))
    return torch.stack(maps).cpu().numpy()


def look_across(reader: Reader, runner: Runner, text: str | tuple[str, ...], written: str) -> CrossLook:
    """Where each token of `written`, and its end, was looking in the source when it was chosen."""
    network = runner.network
    if network.heads.writer is None:
        raise DataError(f"{reader.loaded.folder.name}: has no decoder that could look at a source")
    task = reader.tasks["write"]
    assert isinstance(task.kind, Write)
    passage = task.kind.passage([text] if isinstance(text, str) else list(text), (written,), "the text", task.table)
    rows = reader.encode([passage], labelled=True, task=task)
    batch = collate(rows, np.array([0]), runner.pad_id).map(lambda array: torch.from_numpy(array).to(runner.device))
    size, length = batch.input_ids_BS.shape[1], batch.labels.shape[1]  # pyrefly: ignore
    if size > MAX_TOKENS or length > MAX_TOKENS:
        raise DataError(f"{max(size, length)} tokens: attention is shown for at most {MAX_TOKENS}")
    seen: list[torch.Tensor] = []
    source = Source.of(batch, network.encode(batch), network.settings.unpad)
    network.heads.writer(network.encoder, network.targets(batch), source, None, seen)
    probs_LNTS = torch.stack([probs[0] for probs in seen]).float().cpu().numpy()
    own = reader.targets or reader.tokenizer
    return CrossLook(
        tuple(reader.tokenizer.token_text(int(token)) for token in rows.ids[0]),
        tuple(own.token_text(int(token)) for token in np.ravel(rows.labels[0] if rows.labels else [])),
        probs_LNTS,
    )


def _hashed(qkv_3BNSK: torch.Tensor, sight: Sight, settings: ModelSettings, layer: int) -> torch.Tensor:
    """probabilities_NSS: what hashed attention gives where every token's value is the token itself."""
    _, _, num_heads, size, _ = qkv_3BNSK.shape
    itself_BNSS = torch.eye(size, device=qkv_3BNSK.device).expand(1, num_heads, size, size)
    return attend_hashed(
        qkv_3BNSK[:2], itself_BNSS, sight, rounds=settings.hash_rounds, bucket_size=settings.bucket_size,
        seed=settings.hash_seed, layer=layer,
    )[0]  # fmt: skip
