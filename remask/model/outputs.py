"""What a network says about a batch, by the names that transformers gives such outputs.

In: a network, and the states or the batch. Out: logits by name, or the last states where there is no head for a task.
Exported graphs have the same outputs, so that any two forms of a model can be compared.
"""

from __future__ import annotations

import numpy as np
import torch

from remask.model.network import Network
from remask.schema import Batch

# Shapes: B rows, S positions, D width of a state.

Array = np.ndarray


def named_outputs(network: Network, hidden_BSD: torch.Tensor, lengths_B: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a network says about rows, by the names of its outputs; without a head for a task: the states."""
    heads = network.head_settings
    if heads.num_classes is not None:
        return {"logits": network.classify(hidden_BSD, lengths_B)}
    if heads.num_tags is not None:
        return {"logits": network.tag(hidden_BSD)}
    if heads.span:
        start_BS, end_BS = network.span(hidden_BSD).unbind(-1)
        said = {"start_logits": start_BS, "end_logits": end_BS}
        return said | ({"answerable_logits": network.answerable(hidden_BSD, lengths_B)} if heads.answerable else {})
    if heads.choice:
        return {"logits": network.choose(hidden_BSD, lengths_B)}
    if heads.masked_lm:
        assert network.heads.masked_lm is not None
        return {"logits": network.heads.masked_lm(hidden_BSD, network.encoder.embeddings.tokens.weight)}
    return {"last_hidden_state": hidden_BSD}


def run_network(network: Network, batch: Batch) -> dict[str, Array]:
    """What a network itself says about a batch of numpy arrays."""
    tensors = batch.map(torch.as_tensor)
    with torch.inference_mode():
        said = named_outputs(network, network.encode(tensors), tensors.lengths_B)
    return {name: tensor.float().numpy() for name, tensor in said.items()}
