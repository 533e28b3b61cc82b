"""The encoder's promises: padding, micro-batches, packing and layouts do not change a token's state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from remask.errors import DataError
from remask.model.network import Network, build_network
from remask.model.noise import Noise
from remask.model.settings import HeadSettings, ModelSettings
from remask.schema import Batch

VOCAB = 50
FORMS: dict[str, dict[str, Any]] = {
    "roberta": {},
    "albert": {"embedding_size": 8, "sharing": "all", "num_segments": 2, "activation": "gelu_tanh"},
    "modern": {
        "positions": "rotary", "norm": "pre", "first_norm": False, "bias": False, "norm_bias": False, "ffn": "gated",
        "attention_window": 2, "global_every": 2,
    },
}  # fmt: skip


def settings_of(form: str = "roberta", **changes: Any) -> ModelSettings:
    small: dict[str, Any] = {"num_layers": 3, "hidden_size": 16, "num_heads": 2, "ffn_size": 24, "max_length": 30}
    values = {"vocab_size": VOCAB, **small, "init_std": 0.3, **FORMS[form], **changes}
    return ModelSettings(**values)


def a_network(form: str = "roberta", **changes: Any) -> Network:
    return build_network(settings_of(form, **changes), HeadSettings(masked_lm=True), seed=3)


def a_batch(lengths: tuple[int, ...], size: int | None = None, first_id: int = 100) -> Batch:
    """Rows that depend on their example id only."""
    size = size or max(lengths)
    ids = torch.ones(len(lengths), size, dtype=torch.int64)
    for row, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(first_id + row)
        ids[row, :length] = torch.randint(4, VOCAB, (size,), generator=generator)[:length]
    examples = torch.arange(first_id, first_id + len(lengths))
    return Batch(ids, torch.tensor(lengths), example_ids_B=examples)


def training_noise(batch: Batch) -> Noise:
    return Noise(11, 22, batch.example_ids_B)


@pytest.mark.parametrize("unpad", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_padding_and_batch_mates_change_nothing_even_in_training(form: str, unpad: bool) -> None:
    network = a_network(form, unpad=unpad, attention_mask_prob=0.2)
    together = a_batch((9, 4, 7), size=13)
    hidden = network.encode(together, training_noise(together))
    for row, length in enumerate((9, 4, 7)):
        alone = Batch(
            together.input_ids_BS[row : row + 1, :length],
            together.lengths_B[row : row + 1],
            example_ids_B=together.example_ids_B[row : row + 1],
        )
        expected = network.encode(alone, training_noise(alone))
        torch.testing.assert_close(hidden[row, :length], expected[0], atol=1e-5, rtol=1e-4)
        assert hidden[row, length:].abs().sum() == 0


@pytest.mark.parametrize("form", FORMS)
def test_unpadding_and_kernels_give_the_same_gradients(form: str) -> None:
    batch = a_batch((9, 4, 7))
    gradients = []
    for unpad, kernel in ((True, "products"), (False, "products"), (True, "sdpa"), (False, "sdpa")):
        network = a_network(form, unpad=unpad, attention_kernel=kernel)
        network.encode(batch, training_noise(batch)).square().sum().backward()
        gradients.append({name: p.grad for name, p in network.encoder.named_parameters()})
    for other in gradients[1:]:
        for name, gradient in gradients[0].items():
            torch.testing.assert_close(other[name], gradient, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("wanted", [None, np.array([1, 16, 30])])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_rows_laid_end_to_end_attend_as_padded_ones(form: str, causal: bool, wanted: np.ndarray | None) -> None:
    """Packed documents and padding included; what the flash kernel computes on a GPU, run by run."""
    batch = a_batch((14, 4, 9))
    documents_BS = torch.tensor([[0] * 5 + [1] * 9, [0] * 4 + [-1] * 10, [0] * 2 + [1] * 3 + [2] * 4 + [-1] * 5])
    packed = replace(batch, document_ids_BS=documents_BS)
    for one in (batch, packed):
        found = []
        for kernel in ("products", "varlen"):
            network = a_network(form, attention_kernel=kernel)
            hidden_BSD = network.encode(one, causal=causal, wanted_M=wanted)
            hidden_BSD.square().sum().backward()
            found.append([hidden_BSD.detach(), *(p.grad for p in network.encoder.parameters())])
        for expected, other in zip(*found, strict=True):
            torch.testing.assert_close(other, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_an_ffn_that_forgets_its_gelu_has_the_same_gradients(activation: str, bias: bool) -> None:
    ffn = a_network(activation=activation, bias=bias).encoder.ffns[0]
    generator = torch.Generator().manual_seed(0)
    found = []
    for plain in (True, False):
        x_TD = torch.randn(7, 16, generator=generator.manual_seed(0)).requires_grad_()
        form = {"gelu": "none", "gelu_tanh": "tanh"}[activation]
        y_TD = ffn.down(torch.nn.functional.gelu(ffn.up(x_TD), approximate=form)) if plain else ffn.both(x_TD)
        ffn.zero_grad()
        y_TD.square().sum().backward()
        learning = [p.grad for name, p in ffn.named_parameters() if not name.startswith("norm")]
        found.append([y_TD.detach(), x_TD.grad, *learning])
    for expected, other in zip(*found, strict=True):
        assert torch.equal(expected, other)


WANTED = torch.tensor([12, 2, 3, 14 * 2 + 5])  # of rows of 14: in any order, and not of every row


@pytest.mark.parametrize("unpad", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_wanted_states_are_the_same_with_the_same_gradients_and_the_others_zero(form: str, unpad: bool) -> None:
    batch = a_batch((14, 4, 9))
    found, grads = [], []
    for wanted in (None, WANTED):
        network = a_network(form, unpad=unpad)
        hidden_BSD = network.encode(batch, wanted_M=wanted)
        found.append(hidden_BSD.detach().flatten(0, 1))
        network.masked_lm(hidden_BSD, WANTED).square().sum().backward()
        grads.append({name: p.grad for name, p in network.named_parameters() if p.grad is not None})
    torch.testing.assert_close(found[1][WANTED], found[0][WANTED], atol=1e-6, rtol=1e-5)
    rest = torch.ones(len(found[1]), dtype=torch.bool)
    rest[WANTED] = False
    assert (found[1][rest] == 0.0).all()
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, atol=1e-5 * float(grad.abs().max() + 1), rtol=1e-4)


def test_wanted_states_do_not_depend_on_batch_mates_in_training() -> None:
    network = a_network()
    together = a_batch((14, 9, 12))
    both = network.encode(together, training_noise(together), wanted_M=torch.tensor([3, 14 + 2, 14 + 7, 30]))
    alone = Batch(together.input_ids_BS[1:2, :9], torch.tensor([9]), example_ids_B=together.example_ids_B[1:2])
    one = network.encode(alone, training_noise(alone), wanted_M=torch.tensor([2, 7]))
    torch.testing.assert_close(one[0], both[1, :9], atol=1e-6, rtol=1e-5)


def test_recomputed_wanted_states_are_the_same() -> None:
    batch = a_batch((14, 4, 9))
    grads = []
    for recompute in (False, True):
        network = a_network()
        network.encoder.recompute = recompute
        network.encode(batch, training_noise(batch), wanted_M=WANTED).square().sum().backward()
        grads.append([p.grad for p in network.encoder.parameters()])
    for first, second in zip(*grads, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("form", FORMS)
def test_packed_documents_are_as_if_alone(form: str) -> None:
    network = a_network(form)
    apart = a_batch((5, 8))
    ids = torch.cat([apart.input_ids_BS[0, :5], apart.input_ids_BS[1, :8], torch.ones(2, dtype=torch.int64)])[None]
    documents = torch.tensor([[0] * 5 + [1] * 8 + [-1] * 2])
    positions = torch.tensor([[*range(5), *range(8), 0, 0]])
    packed = network.encode(Batch(ids, torch.tensor([13]), document_ids_BS=documents, position_ids_BS=positions))
    expected = network.encode(apart)
    torch.testing.assert_close(packed[0, :5], expected[0, :5], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(packed[0, 5:13], expected[1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_recomputed_layers_have_the_same_gradients(form: str) -> None:
    batch = a_batch((9, 4))
    plain, recomputed = a_network(form), a_network(form)
    recomputed.checkpoint_layers()
    for network in (plain, recomputed):
        network.encode(batch, training_noise(batch)).square().sum().backward()
    for (name, one), two in zip(plain.encoder.named_parameters(), recomputed.encoder.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad), name


@pytest.mark.filterwarnings("ignore:.*grad attribute of a Tensor that is not a leaf")
def test_compiled_layers_give_the_same() -> None:
    batch = a_batch((9, 4))
    plain, compiled = a_network(), a_network()
    compiled.compile_layers(whole=False, backend="eager")
    torch.testing.assert_close(plain.encode(batch), compiled.encode(batch))


@pytest.mark.parametrize("form", FORMS)
def test_causal_states_do_not_know_what_follows(form: str) -> None:
    network = a_network(form)
    batch = a_batch((9,))
    changed = batch.map(lambda x: x.clone())
    changed.input_ids_BS[0, 6] = 4 + (changed.input_ids_BS[0, 6] - 3) % (VOCAB - 4)
    assert batch.input_ids_BS[0, 6] != changed.input_ids_BS[0, 6]
    one, two = network.encode(batch, causal=True), network.encode(changed, causal=True)
    assert torch.equal(one[0, :6], two[0, :6])
    assert not torch.allclose(one[0, 7], two[0, 7])
    assert not torch.equal(network.encode(batch)[0, 0], network.encode(changed)[0, 0])


def test_a_window_reaches_layers_times_window() -> None:
    network = a_network(attention_window=2, num_layers=2)
    batch = a_batch((20,))
    changed = batch.map(lambda x: x.clone())
    changed.input_ids_BS[0, 10] = 4 + (changed.input_ids_BS[0, 10] - 3) % (VOCAB - 4)
    differs = (network.encode(batch) != network.encode(changed)).any(-1)[0]
    assert differs.nonzero().flatten().tolist() == list(range(6, 15))


def test_an_input_may_have_512_tokens_and_not_513() -> None:
    network = a_network(max_length=512, num_layers=1)
    assert network.state_dict()["encoder.embeddings.positions.weight"].shape == (514, 16)
    network.encode(a_batch((512,)))
    with pytest.raises(DataError, match="513 tokens is longer than the 512 positions"):
        network.encode(a_batch((513,)))


def test_padding_may_go_beyond_the_last_position() -> None:
    network = a_network(max_length=8, unpad=False)
    narrow, wide = a_batch((8, 3)), a_batch((8, 3), size=16)
    torch.testing.assert_close(network.encode(narrow), network.encode(wide)[:, :8], atol=1e-5, rtol=1e-4)


def test_roberta_reads_no_segments_and_bert_does() -> None:
    batch = a_batch((6,))
    with_segments = Batch(batch.input_ids_BS, batch.lengths_B, segment_ids_BS=torch.tensor([[0, 0, 0, 1, 1, 1]]))
    for num_segments, same in ((0, True), (1, True), (2, False)):
        network = a_network(num_segments=num_segments)
        assert torch.equal(network.encode(batch), network.encode(with_segments)) is same


def test_sharing_uses_the_modules_it_says() -> None:
    counts = {
        sharing: (len(network.encoder.attentions), len(network.encoder.ffns))
        for sharing in ("none", "attention", "ffn", "all")
        if (network := a_network(sharing=sharing, num_layers=6, num_groups=2))
    }
    assert counts == {"none": (6, 6), "attention": (2, 6), "ffn": (6, 2), "all": (2, 2)}


def test_autocast_keeps_attention_in_one_precision() -> None:
    """fp16 stands in for bf16, whose products do not run on every machine of ours."""
    network = a_network()
    batch = a_batch((9, 4))
    with torch.autocast("cpu", dtype=torch.float16):
        hidden = network.encode(batch, training_noise(batch))
        loss = network.masked_lm(hidden, torch.tensor([1, 10])).float().square().sum()
    loss.backward()
    full = network.encode(batch, training_noise(batch))
    torch.testing.assert_close(hidden.float(), full, atol=0.05, rtol=0.05)
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in network.parameters())
