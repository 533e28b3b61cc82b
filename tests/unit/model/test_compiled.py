"""Whole sub-layers as graphs: without a break (a break is an error), equal to the plain ones, and few of them.

The graphs are made by torch's tracer and run without a compiler behind it ("eager", "aot_eager"), so no C++ is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from remask.model import compiled, encoder, varlen
from remask.model.network import Network
from remask.model.noise import Noise
from remask.model.shapes import to_device
from remask.schema import Batch

from .test_encoder import a_batch, a_network, training_noise

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "post-norm": ("roberta", {"num_layers": 2}),
    "modern, in blocks": ("modern", {"max_length": 400}),
    "shared layers, hidden tokens": ("albert", {"num_layers": 2, "attention_mask_prob": 0.2}),
    "prefix, bottleneck, no dropout": (
        "roberta",
        {"num_layers": 2, "prefix_length": 3, "bottleneck_size": 4, "dropout": 0.0, "attention_dropout": 0.0},
    ),
}


@pytest.fixture(autouse=True)
def fresh_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counting:
    """A back end that runs graphs as they are and counts them."""

    def __init__(self) -> None:
        self.num_graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        self.num_graphs += 1
        return graph.forward


def gradients(network: Network, batch: Batch, wanted: np.ndarray | None = None) -> dict[str, torch.Tensor]:
    network.zero_grad()
    hidden_BSD = network.encode(batch, training_noise(batch), wanted_M=wanted)
    hidden_BSD.square().sum().backward()
    found = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    return found | {"hidden": hidden_BSD.detach()}


@pytest.mark.filterwarnings("ignore:.*grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_is_one_graph_that_computes_the_same(family: str) -> None:
    form, changes = FAMILIES[family]
    plain, whole = a_network(form, **changes), a_network(form, **changes)
    whole.compile_layers(whole=True, backend="aot_eager" if family == "post-norm" else "eager")
    lengths = (300, 40) if "blocks" in family else (9, 4, 7)
    for wanted in (None, np.array([0, 2])):
        expected, found = (gradients(network, a_batch(lengths), wanted) for network in (plain, whole))
        assert expected.keys() == found.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, atol=1e-4, rtol=1e-3, msg=name)


@pytest.mark.filterwarnings("ignore:.*grad attribute of a Tensor that is not a leaf")
def test_what_cannot_be_one_graph_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a break shows in the tests above."""

    def breaks(self: Any, x_TD: torch.Tensor, *_: Any) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x_TD

    monkeypatch.setattr(compiled.DrawnNoise, "drop", breaks)
    network = a_network(num_layers=1)
    network.compile_layers(whole=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported):
        gradients(network, a_batch((9, 4, 7)))


@pytest.mark.filterwarnings("ignore:.*grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(("form", "most"), [("roberta", 6), ("modern", 10)])
def test_compiling_ends(form: str, most: int) -> None:
    """Eight layers are a few kinds of parts, and batches of any lengths and numbers of rows share their graphs."""
    network, graphs = a_network(form, num_layers=8, max_length=64), Counting()
    network.compile_layers(whole=True, backend=graphs)
    draw = np.random.default_rng(0)
    counts = []
    for number in range(20):
        lengths = tuple(draw.integers(2, 60, draw.integers(2, 9)).tolist())
        gradients(network, a_batch(lengths), np.array([0]) if number % 2 else None)
        counts.append(graphs.num_graphs)
    assert counts[-1] == counts[9] <= most, counts  # all of them in the first half


@pytest.mark.filterwarnings("ignore:.*grad attribute of a Tensor that is not a leaf")
def test_a_layer_with_the_flash_kernel_is_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on a GPU, traced on torch's `meta` device, which knows the shapes of the kernel's results."""
    meta = torch.device("meta")
    for module in (compiled, encoder, varlen):
        monkeypatch.setattr(module, "has_kernel", lambda device, dtype: device.type == "meta")
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    seeds: list[int] = []
    monkeypatch.setattr(Noise, "seed_kernel", lambda self, layer: seeds.append(self.kernel_seed(layer)))
    for form in ("roberta", "modern"):
        network, graphs = a_network(form).to(meta), Counting()
        network.compile_layers(whole=True, backend=graphs)
        counts = []
        for lengths in ((9, 4, 7), (5, 12), (3, 3, 3, 8), (20, 6)):
            given = a_batch(lengths).map(lambda tensor: tensor.numpy())
            hidden = network.encode(given.sent(lambda x: to_device(x, meta)), training_noise(given))
            hidden.sum().backward()
            counts.append(graphs.num_graphs)
        assert counts[-1] == counts[1], counts
    assert (len(seeds), len(set(seeds))) == (2 * 4 * 3, 3)  # of (seed, step, first example, layer)
