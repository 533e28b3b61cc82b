"""Optimizers against their formulas, which parameters decay, and state by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from remask.errors import DataError
from remask.precision import probe
from remask.train.optim import Average, Optimizer, orthogonalised
from remask.train.settings import TrainSettings


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(7, 4)
        self.blocks = nn.ModuleList([nn.Linear(4, 6), nn.Linear(6, 4)])
        self.norm = nn.LayerNorm(4)


def made(**changes: Any) -> tuple[Net, Optimizer]:
    net = Net()
    return net, Optimizer(net, TrainSettings(**changes))


def give_gradients(net: Net, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_adamw_is_the_formula_with_decoupled_decay_on_matrices_only() -> None:
    net, optimizer = made(beta1=0.9, beta2=0.98, epsilon=1e-6, weight_decay=0.1)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    means = {name: torch.zeros_like(p) for name, p in before.items()}
    squares = {name: torch.zeros_like(p) for name, p in before.items()}
    for step in (1, 2, 3):
        give_gradients(net, step)
        for name, parameter in net.named_parameters():
            assert parameter.grad is not None
            means[name] = 0.9 * means[name] + 0.1 * parameter.grad
            squares[name] = 0.98 * squares[name] + 0.02 * parameter.grad**2
            scale = (squares[name] / (1 - 0.98**step)).sqrt() + 1e-6
            decay = 0.1 if parameter.ndim == 2 else 0.0
            before[name] = before[name] * (1 - 0.01 * decay) - 0.01 * (means[name] / (1 - 0.9**step)) / scale
        optimizer.step(0.01)
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.detach(), before[name], rtol=1e-5, atol=1e-6)


def test_lamb_moves_every_matrix_by_its_own_size() -> None:
    net, optimizer = made(optimizer="lamb", weight_decay=0.0)
    give_gradients(net, 1)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    optimizer.step(0.01)
    for name, parameter in net.named_parameters():
        moved = (parameter.detach() - before[name]).norm()
        if parameter.ndim == 2:  # |step| = learning rate x |weight|, whatever the gradient
            torch.testing.assert_close(moved, 0.01 * before[name].norm(), rtol=1e-4, atol=0.0)
        else:  # plain Adam: its first step is the sign of the gradient
            assert parameter.grad is not None
            torch.testing.assert_close(
                parameter.detach(), before[name] - 0.01 * parameter.grad.sign(), rtol=1e-3, atol=1e-5
            )


def test_lamb_decay_is_inside_the_trust_ratio() -> None:
    net, optimizer = made(optimizer="lamb", weight_decay=0.5)
    give_gradients(net, 1)
    weight = net.blocks[0].weight
    assert weight.grad is not None
    old = weight.detach().clone()
    direction = weight.grad.sign() + 0.5 * old
    optimizer.step(0.01)
    torch.testing.assert_close(
        weight.detach(), old - 0.01 * direction * old.norm() / direction.norm(), rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 8, 5), (2, 5, 8), (1, 6, 6)])
def test_orthogonalised_has_singular_values_near_one_and_the_same_directions(
    shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    if dtype == torch.bfloat16 and not (tried := probe("bf16"))[0]:
        pytest.skip(f"bf16: {tried[1]}")
    torch.manual_seed(1)
    matrices = torch.randn(shape)
    found = orthogonalised(matrices.to(dtype))
    assert found.dtype == dtype
    found = found.float()
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.8
    assert values.max() < 1.2
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    exact = left @ right
    cosine = (found * exact).sum(dim=(1, 2)) / found.flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1)
    assert cosine.min() > 0.95


@pytest.mark.parametrize("shape", [(96, 24), (24, 96), (24, 24)])
def test_orthogonalised_reaches_small_singular_values(shape: tuple[int, int]) -> None:
    """Down to 1/500 of the largest; smaller ones grow in proportion, none beyond 1.1, and nothing becomes something."""
    torch.manual_seed(2)
    left = torch.linalg.qr(torch.randn(shape[0], 24, dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(shape[1], 24, dtype=torch.float64))[0]
    values = torch.logspace(0, -5, 24, dtype=torch.float64)
    matrices = torch.stack([(left * values * size) @ right.T for size in (1e-5, 1.0, 1e5)]).float()
    found = orthogonalised(matrices).double()
    of_each = (left.T @ found @ right).diagonal(dim1=-2, dim2=-1)
    assert (of_each[:, values > 0.0021] - 1).abs().max() < 0.05
    assert of_each.max() < 1.1
    assert of_each[:, values < 1e-4].max() < 0.1
    torch.testing.assert_close(of_each[0], of_each[1], atol=2e-2, rtol=0)
    assert orthogonalised(torch.zeros(1, *shape)).abs().max() == 0


def test_orthogonalised_in_bf16_is_as_good_as_newton_schulz_was() -> None:
    """The five like steps of Muon's author, in fp32, against which the mean error is held."""
    if not (tried := probe("bf16"))[0]:
        pytest.skip(f"bf16: {tried[1]}")
    torch.manual_seed(3)
    left = torch.linalg.qr(torch.randn(64, 64))[0]
    right = torch.linalg.qr(torch.randn(256, 64))[0]
    for values in (torch.ones(64), torch.logspace(0, -2, 64), torch.logspace(0, -3, 64), torch.logspace(0, -4, 64)):
        x = (left * values) @ right.T
        found = orthogonalised(x.bfloat16()[None])[0].float()
        x = x / x.norm()
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        exact = left @ right.T
        assert (found - exact).norm() < (x - exact).norm()


def test_muon_takes_the_layers_matrices_and_adamw_the_rest() -> None:
    net, optimizer = made(optimizer="muon", weight_decay=0.1)
    give_gradients(net, 1)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    optimizer.step(0.01)
    assert {name for name in optimizer.state() if name.endswith(".momentum")} == {
        "blocks.0.weight.momentum",
        "blocks.1.weight.momentum",
    }
    assert "tokens.weight.exp_avg" in optimizer.state()
    assert "blocks.0.bias.exp_avg" in optimizer.state()
    change = net.blocks[0].weight.detach() - before["blocks.0.weight"] * (1 - 0.01 * 0.1)
    values = torch.linalg.svdvals(change) / (0.01 * 0.2 * 6**0.5)
    assert values.min() > 0.5
    assert values.max() < 1.3


@pytest.mark.parametrize("name", ["adamw", "lamb", "muon"])
def test_state_by_name_goes_on_exactly(name: str) -> None:
    net, optimizer = made(optimizer=name)
    for step in (1, 2):
        give_gradients(net, step)
        optimizer.step(0.01)
    other, resumed = made(optimizer=name)
    other.load_state_dict(net.state_dict())
    resumed.load({key: tensor.clone() for key, tensor in optimizer.state().items()})
    for model, its in ((net, optimizer), (other, resumed)):
        give_gradients(model, 3)
        its.step(0.02)
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    assert optimizer.state().keys() == resumed.state().keys()
    with pytest.raises(DataError, match="stranger"):
        resumed.load({"stranger.exp_avg": torch.zeros(1)})


def test_frozen_parameters_have_no_state_and_do_not_move() -> None:
    net = Net()
    net.tokens.requires_grad_(False)
    optimizer = Optimizer(net, TrainSettings())
    give_gradients(net, 1)
    before = net.tokens.weight.detach().clone()
    optimizer.step(0.1)
    assert torch.equal(net.tokens.weight, before)
    assert not any(name.startswith("tokens") for name in optimizer.state())


def test_the_average_follows_and_swaps_back_bit_for_bit() -> None:
    net = Net()
    average = Average(net, 0.5)
    start = net.norm.weight.detach().clone()
    with torch.no_grad():
        net.norm.weight.add_(1.0)
    average.update(net, 1000)
    torch.testing.assert_close(average.weights["norm.weight"], start + 0.5)
    held = {name: p.detach().clone() for name, p in net.named_parameters()}
    average.swap(net)
    torch.testing.assert_close(net.norm.weight.detach(), start + 0.5)
    average.swap(net)
    assert all(torch.equal(p, held[name]) for name, p in net.named_parameters())
    early = Average(Net(), 0.999)
    early.update(net, 1)  # (1 + 1) / (10 + 1): the start fades soon
    torch.testing.assert_close(early.weights["norm.weight"], start + 9 / 11)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "muon"])
def test_layer_decay_scales_the_rate_of_a_layer_by_what_stands_above_it(optimizer: str) -> None:
    """The same gradients move a parameter k layers down by 0.5 ** k as much, and resume as ever."""

    class Deep(Net):
        def layers_above(self, name: str) -> int:
            return {"tokens": 3, "blocks.0": 2, "blocks.1": 1, "norm": 0}[name.rpartition(".")[0]]

    moved = []
    for layer_decay in (1.0, 0.5):
        net = Deep()
        made = Optimizer(net, TrainSettings(optimizer=optimizer, layer_decay=layer_decay))  # type: ignore[arg-type]
        before = {name: p.detach().clone() for name, p in net.named_parameters()}
        give_gradients(net, 1)
        made.step(0.01)
        moved.append({name: p.detach() - before[name] for name, p in net.named_parameters()})
        made.load({name: tensor.clone() for name, tensor in made.state().items()})
    for name, whole in moved[0].items():
        torch.testing.assert_close(moved[1][name], whole * 0.5 ** net.layers_above(name), rtol=1e-3, atol=1e-7)
