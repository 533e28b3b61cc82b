"""Noise is a pure function of its keys and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from remask.model import noise as module
from remask.model.noise import Noise, Site, keep_scale

CPU = torch.device("cpu")


def dropped(noise: Noise, counts: list[int], layer: int = 1, site: Site = Site.FFN, prob: float = 0.3) -> torch.Tensor:
    return noise.dropped(layer, site, prob, counts, CPU) == 1


def test_the_same_keys_give_the_same_noise() -> None:
    assert torch.equal(dropped(Noise(1, 2, [3]), [999]), dropped(Noise(1, 2, [3]), [999]))


@pytest.mark.parametrize(
    "other",
    [
        dropped(Noise(2, 2, [3]), [999]),
        dropped(Noise(1, 3, [3]), [999]),
        dropped(Noise(1, 2, [4]), [999]),
        dropped(Noise(1, 2, [3]), [999], layer=2),
        dropped(Noise(1, 2, [3]), [999], site=Site.ATTENTION),
        dropped(Noise(2, 1, [3]), [999]),
    ],
    ids=["seed", "step", "example", "layer", "site", "seed and step swapped"],
)
def test_every_key_matters(other: torch.Tensor) -> None:
    same = (dropped(Noise(1, 2, [3]), [999]) == other).float().mean()
    assert 0.5 < same < 0.67  # independent decisions agree in 0.3² + 0.7² = 0.58 of the cases


def test_a_row_does_not_depend_on_its_batch_nor_on_padding() -> None:
    together = dropped(Noise(1, 2, [7, 8, 9]), [10, 400, 33])
    assert torch.equal(together[10:410], dropped(Noise(1, 2, [8]), [400]))
    assert torch.equal(together[10:210], dropped(Noise(1, 2, [8]), [200]))


def test_an_order_of_two_calls_does_not_matter() -> None:
    first, second = Noise(1, 2, [3]), Noise(1, 2, [3])
    a = dropped(first, [64], layer=0)
    dropped(second, [64], layer=5)
    assert torch.equal(a, dropped(second, [64], layer=0))


@pytest.mark.parametrize("prob", [0.1, 0.5, 0.9])
def test_the_chance_is_as_asked_and_the_mean_stays(prob: float) -> None:
    count = 400_000
    rate = dropped(Noise(5, 6, [0]), [count], prob=prob).float().mean().item()
    assert abs(rate - prob) < 5 * (prob * (1 - prob) / count) ** 0.5
    kept = Noise(5, 6, [0]).drop(torch.ones(count // 10, 10), prob, 0, Site.FFN, [count // 10])
    assert abs(kept.mean().item() - 1.0) < 0.02
    assert kept.max().item() == pytest.approx(keep_scale(prob))
    assert keep_scale(prob) == pytest.approx(1 / (1 - prob), rel=2e-4)


def test_values_and_gradients_are_dropped_alike() -> None:
    x = torch.ones(6, 5, requires_grad=True)
    y = Noise(1, 1, [4, 5]).drop(x, 0.5, 0, Site.EMBEDDING, [2, 4])
    y.sum().backward()
    assert 0 < (y == 0).sum() < 30
    assert torch.equal(x.grad, y.detach())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_masked_is_exact_in_every_precision(dtype: torch.dtype) -> None:
    x = torch.tensor([1.5, -2.0, float("inf"), -0.0, float("nan")], dtype=dtype)
    kept = torch.tensor([-1, 0, 0, -1, 0], dtype=torch.int16)
    assert module.masked(x, kept).tolist() == [1.5, 0.0, 0.0, -0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_mark_keeps_value_and_mask(dtype: torch.dtype) -> None:
    probs = torch.tensor([0.25, 0.0, 0.0, 1.0], dtype=dtype)
    values = module.marked(probs, torch.tensor([0, 1, 0, 1], dtype=torch.int8))
    assert torch.equal(values.abs(), probs)
    assert values.signbit().tolist() == [False, True, False, True]
    assert torch.relu(values).tolist() == [0.25, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("num_threads", [2, 3])
def test_any_number_of_threads_draws_the_same(monkeypatch: pytest.MonkeyPatch, num_threads: int) -> None:
    counts = [70, 1, 33, 400, 5]
    alone = dropped(Noise(1, 2, range(5)), counts)
    monkeypatch.setattr(module, "_WORTH_A_THREAD", 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    assert torch.equal(dropped(Noise(1, 2, range(5)), counts), alone)


def test_no_dropout_is_the_input_itself() -> None:
    x = torch.ones(2, 2)
    assert Noise(1, 1, [1, 2]).drop(x, 0.0, 0, Site.FFN, [1, 1]) is x


def test_torchs_and_numpys_global_states_stay() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    before = np.random.get_state()[1].copy()  # type: ignore[index]
    dropped(Noise(1, 2, torch.tensor([3, 4])), [99, 99])
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], before)  # type: ignore[index]


def test_squares_draw_for_real_tokens_only() -> None:
    short = Noise(1, 2, [8]).dropped_square(0, 0.5, [5], 2, None, 5, CPU)
    padded = Noise(1, 2, [7, 8]).dropped_square(0, 0.5, [9, 5], 2, None, 9, CPU)
    assert torch.equal(padded[1, :, :5, :5], short[0])
    assert (padded[1, :, 5:] == 0).all()
    band = Noise(1, 2, [7, 8]).dropped_square(0, 0.5, [9, 5], 2, 3, 9, CPU)
    assert torch.equal(band[1, :, :5], Noise(1, 2, [8]).dropped_square(0, 0.5, [5], 2, 3, 5, CPU)[0])


def test_the_hash_for_other_devices_keeps_the_promises() -> None:
    """Run on the CPU here: only integer operations that every device has."""
    keys = np.array([12345, 2**63 + 99], dtype=np.uint64)
    together = module._dropped_hashed(keys, 6554, [100_001, 50_000], CPU) == 1
    alone = module._dropped_hashed(keys[1:], 6554, [20_000], CPU) == 1
    assert torch.equal(together[100_001:120_001], alone)
    assert abs(together.float().mean().item() - 0.1) < 0.004
    values = module._hashed(np.array([7], dtype=np.uint64), 4, CPU)[0]
    with np.errstate(over="ignore"):
        word = module._mix(np.array([7 + module._GOLDEN], dtype=np.uint64))
    assert values.tolist() == word.view(np.uint16).tolist()
