"""Every kernel and the block form against attention written out with loops over what each token sees."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from remask.model import attention
from remask.model.attention import Sight, attend, hidden_tokens, rotary_angles, rotate
from remask.model.noise import Noise, keep_scale

CPU = torch.device("cpu")
SIZE, HEADS, WIDTH = 10, 2, 4


def an_input(rows: int, size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, rows, HEADS, size, WIDTH, generator=generator).requires_grad_()


def written_out(qkv: torch.Tensor, sees: Any, dropped: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
    """`sees(row, query, key)`; dropped_BNSS."""
    rows, size = qkv.shape[1], qkv.shape[3]
    out = torch.zeros(rows, HEADS, size, WIDTH)
    parts = []
    for row, query in itertools.product(range(rows), range(size)):
        keys = [key for key in range(size) if sees(row, query, key)]
        if not keys:
            parts.append(out[row, :, query])
            continue
        q, k, v = qkv[0, row, :, query], qkv[1, row][:, keys], qkv[2, row][:, keys]
        probs = torch.softmax(torch.einsum("nk,nlk->nl", q, k) / WIDTH**0.5, dim=-1)
        if dropped is not None:
            probs = probs * scale * ~dropped[row, :, query][:, keys]
        parts.append(torch.einsum("nl,nlk->nk", probs, v))
    return torch.stack(parts).view(rows, size, HEADS, WIDTH).transpose(1, 2)


def compare(sight: Sight, window: int | None, sees: Any, kernel: str, qkv: torch.Tensor) -> None:
    """At real tokens, outputs and gradients."""
    real = torch.tensor([[p < length for p in range(sight.num_positions)] for length in sight.lengths])
    real = real[:, None, :, None]
    expected = written_out(qkv, sees) * real
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(5))
    (wanted,) = torch.autograd.grad((expected * weights).sum(), qkv)
    found = attend(qkv, sight, window, kernel, None, 0.1, layer=0) * real
    (gradient,) = torch.autograd.grad((found * weights).sum(), qkv)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradient, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kernel", ["products", "sdpa", "auto"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("lengths", [(10, 10), (10, 3)])
def test_what_a_token_sees(lengths: tuple[int, int], window: int | None, causal: bool, kernel: str) -> None:
    sight = Sight(lengths, SIZE, CPU, causal)

    def sees(row: int, query: int, key: int) -> bool:
        near = window is None or abs(query - key) <= window
        return key < lengths[row] and near and (not causal or key <= query)

    compare(sight, window, sees, kernel, an_input(2, SIZE))


@pytest.mark.parametrize("kernel", ["products", "sdpa"])
def test_documents_and_hidden_tokens(kernel: str) -> None:
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2, 2], [0, 0, 1, 1, 1, 1, -1, -1, -1, -1]])
    hidden = torch.zeros(2, SIZE, dtype=torch.bool)
    hidden[0, 1] = hidden[1, 3] = True
    lengths = (10, 6)
    sight = Sight(lengths, SIZE, CPU, False, documents, hidden)

    def sees(row: int, query: int, key: int) -> bool:
        same = documents[row, query] == documents[row, key]
        return bool(key < lengths[row] and same and (not hidden[row, key] or key == query))

    compare(sight, None, sees, kernel, an_input(2, SIZE))


@pytest.mark.parametrize("kernel", ["products", "sdpa"])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_see_the_same(causal: bool, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remask.model.attention._BLOCK", 4)
    documents = torch.tensor([[0] * 9 + [1] * 10, [0] * 3 + [1] * 11 + [-1] * 5])
    lengths = (19, 14)
    sight = Sight(lengths, 19, CPU, causal, documents)
    assert sight.block(3) == 4

    def sees(row: int, query: int, key: int) -> bool:
        same = documents[row, query] == documents[row, key]
        return bool(key < lengths[row] and same and abs(query - key) <= 3 and (not causal or key <= query))

    compare(sight, 3, sees, kernel, an_input(2, 19))


def test_blocks_do_work_linear_in_the_length() -> None:
    sight = Sight([4096], 4096, CPU)
    mask = sight.hidden(64)
    assert mask is not None
    assert mask.shape == (1, 1, 64, 64, 192)


@pytest.mark.parametrize("kernel", ["products", "sdpa"])
def test_dropout_on_probabilities(kernel: str) -> None:
    """sdpa too: it hands over to the products, whose noise has no global state."""
    noise = Noise(1, 2, [3, 4])
    lengths = (10, 7)
    qkv = an_input(2, SIZE)
    dropped = noise.dropped_square(5, 0.4, lengths, HEADS, None, SIZE, CPU) == 1
    expected = written_out(qkv, lambda row, query, key: key < lengths[row], dropped, keep_scale(0.4))
    found = attend(qkv, Sight(lengths, SIZE, CPU), None, kernel, noise, 0.4, layer=5)
    real = torch.tensor([[p < length for p in range(SIZE)] for length in lengths])[:, None, :, None]
    torch.testing.assert_close(found * real, expected * real, atol=1e-5, rtol=1e-5)
    weights = torch.randn(found.shape) * real
    (wanted,) = torch.autograd.grad((expected * weights).sum(), qkv)
    (gradient,) = torch.autograd.grad((found * weights).sum(), qkv)
    torch.testing.assert_close(gradient, wanted, atol=1e-5, rtol=1e-5)


def test_dropout_with_a_window_does_not_depend_on_blocks_or_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remask.model.attention._BLOCK", 4)
    qkv = an_input(1, 30)
    sight = Sight([27], 30, CPU)
    assert sight.block(3) == 4
    blocks = attend(qkv, sight, 3, "products", Noise(1, 2, [3]), 0.4, layer=0)[:, :, :27]
    whole_sight = Sight([27], 27, CPU)
    monkeypatch.setattr(Sight, "block", lambda self, window: None)
    whole = attend(qkv[:, :, :, :27], whole_sight, 3, "products", Noise(1, 2, [3]), 0.4, layer=0)
    clean = attend(qkv[:, :, :, :27], whole_sight, 3, "products", None, 0.4, layer=0)
    torch.testing.assert_close(blocks, whole, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(whole, clean, atol=1e-2)


def test_rotation_depends_on_distances_only() -> None:
    qkv = an_input(1, 6)
    angles = [rotary_angles(torch.arange(6)[None] + shift, WIDTH, 100.0) for shift in (0, 17)]
    near, far = (attend(rotate(qkv, a), Sight([6], 6, CPU), None, "products", None, 0.0, 0) for a in angles)
    torch.testing.assert_close(near, far, atol=1e-5, rtol=1e-5)
    plain = attend(qkv, Sight([6], 6, CPU), None, "products", None, 0.0, 0)
    assert not torch.allclose(near, plain, atol=1e-2)


def test_rotation_has_the_right_gradient() -> None:
    qkv = an_input(1, 3).detach().double().requires_grad_()
    angles = rotary_angles(torch.arange(3)[None], WIDTH, 100.0)
    assert torch.autograd.gradcheck(lambda x: rotate(x, (angles[0].double(), angles[1].double())), (qkv,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("learning", [True, False])
def test_rotary_positions_of_every_row_whatever_is_turned_at_a_time(
    dtype: torch.dtype, learning: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven rows with positions of their own, two at a time; queries and keys are turned, values are not."""
    monkeypatch.setattr(attention, "_TURNED", 2 * 2 * 3 * 5 * WIDTH)
    cos, sin = rotary_angles(torch.randint(0, 100, (7, 5)), WIDTH, 100.0)
    qkv = torch.randn(7, 5, 3, 3, WIDTH).to(dtype).permute(2, 0, 3, 1, 4)  # as a layer has it: not in order
    first, second = qkv[:2].float().chunk(2, dim=-1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    expected = torch.cat([turned, qkv[2:].float()])
    with torch.set_grad_enabled(learning):
        given = qkv.clone()
        result = rotate(given, (cos, sin))
    assert result.dtype == dtype
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    torch.testing.assert_close(result.float(), expected, **close)
    assert torch.equal(given, qkv) is learning  # where nothing learns, in place


def test_hidden_tokens_spare_the_first_and_follow_the_row() -> None:
    hidden = hidden_tokens(Noise(1, 2, [3, 4]), 0.5, [40, 30], 40, CPU)
    assert not hidden[:, 0].any()
    assert 8 < hidden[0].sum() < 32
    assert torch.equal(hidden_tokens(Noise(1, 2, [4]), 0.5, [30], 30, CPU)[0], hidden[1, :30])
