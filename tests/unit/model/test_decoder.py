"""The decoder: its source matters, its future does not, its weights come from the encoder, its noise is its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from remask.config import switches
from remask.errors import ConfigError
from remask.model.decoder import Decoder, Source, _Across
from remask.model.loss import cross_entropy
from remask.model.network import Network, build_network, with_heads
from remask.model.noise import Noise, keep_scale
from remask.model.settings import DecoderSettings, HeadSettings, ModelSettings, WriterSettings
from remask.schema import IGNORE, Batch

SIZES: dict[str, Any] = {
    "vocab_size": 60, "num_layers": 3, "hidden_size": 32, "num_heads": 4, "ffn_size": 48, "max_length": 20,
    "init_std": 0.3,
}  # fmt: skip
MODERN = {"positions": "rotary", "norm": "pre", "first_norm": False, "attention_window": 3, "global_every": 2}
MODERN |= {"ffn": "gated", "head_form": "modern", "num_segments": 0}
FORMS: dict[str, dict[str, Any]] = {
    "roberta": {}, "modern": MODERN, "albert": {"sharing": "all", "embedding_size": 16}, "pre": {"norm": "pre"},
}  # fmt: skip


def network_of(form: dict[str, Any] | None = None, **writer: Any) -> Network:
    settings = ModelSettings.model_validate({**SIZES, **(form or {})})
    return build_network(settings, HeadSettings(writer=WriterSettings(**writer)), 0).eval()


def a_batch() -> Batch:
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(4, 60, (3, 9), generator=draw)
    labels = torch.randint(4, 60, (3, 7), generator=draw)
    lengths, target_lengths = torch.tensor([9, 4, 6]), torch.tensor([3, 7, 5])
    labels[torch.arange(7) >= target_lengths[:, None]] = IGNORE
    return Batch(ids, lengths, labels=labels, target_lengths_B=target_lengths, example_ids_B=torch.arange(3))


def states_of(network: Network, batch: Batch) -> torch.Tensor:
    """states_BLD of the targets."""
    source = Source.of(batch, network.encode(batch), network.settings.unpad)
    states_TD, rows = network.heads.writer(network.encoder, network.targets(batch), source)
    return rows.pad(states_TD)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weights", ["shared", "copied"])
def test_the_source_matters_and_the_future_does_not(form: str, weights: Any) -> None:
    network, batch = network_of(FORMS[form], weights=weights, num_layers=2), a_batch()
    before = states_of(network, batch)
    ids = batch.input_ids_BS.clone()
    ids[1, 2] = 5 if ids[1, 2] != 5 else 6
    after = states_of(network, replace(batch, input_ids_BS=ids))
    assert not torch.allclose(before[1, 0], after[1, 0], atol=1e-4)  # from the very first token on
    assert torch.equal(before[0, :3], after[0, :3])
    ids = batch.input_ids_BS.clone()
    ids[1, 4:] = 7  # padding
    torch.testing.assert_close(states_of(network, replace(batch, input_ids_BS=ids))[1], before[1])
    labels = batch.labels.clone()
    labels[1, 4] = 9
    after = states_of(network, replace(batch, labels=labels))
    torch.testing.assert_close(before[1, :5], after[1, :5])
    assert not torch.allclose(before[1, 5], after[1, 5], atol=1e-4)


def test_it_starts_from_the_encoder_and_its_masked_lm() -> None:
    settings = ModelSettings.model_validate(SIZES)
    plain = build_network(settings, HeadSettings(masked_lm=True), 3)
    for weights, layers in (("shared", None), ("copied", 2)):
        writer = WriterSettings(weights=weights, num_layers=layers)
        network = with_heads(plain, HeadSettings(writer=writer), 5)
        decoder = network.heads.writer
        assert isinstance(decoder, Decoder)
        decoder.start_from(network.encoder, plain.heads.masked_lm)
        assert torch.equal(decoder.lm.dense.weight, plain.heads.masked_lm.dense.weight)
        names = {name.split(".")[0] for name, _ in decoder.named_parameters()}
        assert names == ({"crosses", "lm"} if weights == "shared" else {"crosses", "lm", "attentions", "ffns"})
        if weights == "copied":
            assert len(decoder.attentions) == 2
            assert torch.equal(decoder.ffns[1].up.weight, network.encoder.ffns[2].up.weight)
            assert decoder.ffns[1].up.weight is not network.encoder.ffns[2].up.weight
    own = with_heads(plain, HeadSettings(writer=WriterSettings(vocab_size=33)), 5)
    own.heads.writer.start_from(own.encoder, plain.heads.masked_lm)
    assert own.heads.writer.embeddings.tokens.weight.shape[0] == 33 == len(own.heads.writer.lm.bias)
    assert torch.equal(own.heads.writer.embeddings.positions.weight, plain.encoder.embeddings.positions.weight)


@pytest.mark.parametrize("one", list(switches(DecoderSettings)), ids=lambda one: one.key)
def test_every_switch_is_live(one: Any) -> None:
    """Copies that moved apart from the encoder, or fewer layers, say something else."""
    batch = a_batch()

    def losses(**writer: Any) -> torch.Tensor:
        network = network_of(None, **writer)
        return network.write_losses(network.encode(batch), batch)

    for value in one.values:
        if value != one.default:
            assert not torch.allclose(losses(), losses(**{one.key: value}), atol=1e-3)


def test_what_it_refuses() -> None:
    with pytest.raises(ConfigError, match=r"decoder\.num_layers = 4: the encoder has 3 layers"):
        network_of(None, num_layers=4)
    with pytest.raises(ConfigError, match="attention_kind = hashed"):
        network_of({"attention_kind": "hashed"})


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_across_has_the_gradients_of_its_definition(dropout: float) -> None:
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(2, 3, 5, 4, generator=draw, requires_grad=True)
    kv = torch.randn(2, 2, 3, 6, 4, generator=draw, requires_grad=True)
    bias = torch.zeros(2, 1, 1, 6)
    bias[1, :, :, 4:] = torch.finfo(torch.float32).min / 2
    dropped = None
    if dropout:
        dropped = Noise(0, 0, [1, 2]).dropped_pairs(0, dropout, [5, 3], [6, 4], 3, (5, 6), torch.device("cpu"))
        assert 0.1 < dropped[0].float().mean() < 0.5
        assert dropped[1, :, 3:].sum() == dropped[1, :, :, 4:].sum() == 0
    weights = torch.randn(2, 3, 5, 4, generator=draw)
    grads = []
    for way in ("ours", "plain"):
        q.grad = kv.grad = None
        if way == "ours":
            out = _Across.apply(q, kv, bias, dropped, keep_scale(dropout))
        else:
            probs = (q @ kv[0].transpose(-1, -2) / 2 + bias).softmax(-1)
            if dropped is not None:
                probs = probs * (1 - dropped) * keep_scale(dropout)
            out = probs @ kv[1]
        (out * weights).sum().backward()
        grads.append((out.detach(), q.grad.clone(), kv.grad.clone()))
    for ours, plain in zip(*grads, strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_noise_does_not_depend_on_what_else_is_in_a_batch() -> None:
    network, batch = network_of({"dropout": 0.2, "attention_dropout": 0.2}), a_batch()

    def loss(part: Batch) -> float:
        noise = Noise(3, 7, part.example_ids_B)
        return float(network.write_loss(network.encode(part, noise), part, noise)[0])

    whole = loss(batch)
    alone = sum(loss(batch.map(lambda x, i=i: x[i : i + 1])) for i in range(3))
    assert whole == pytest.approx(alone, rel=1e-4)
    plain = float(network.write_loss(network.encode(batch), batch)[0])
    assert abs(whole - plain) > 1.0


def test_the_decoder_has_noise_of_its_own() -> None:
    noise = Noise(1, 2, [3, 4])
    first, second = (n.dropped(0, 0, 0.5, [400, 400], torch.device("cpu")) for n in (noise, noise.apart()))
    assert 0.4 < (first == second).float().mean() < 0.6


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_label_smoothing_is_torchs(smoothing: float) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 50, generator=draw, requires_grad=True)
    labels = torch.randint(0, 50, (6,), generator=draw)
    total, right = cross_entropy(logits, labels, smoothing)
    total.backward()
    ours = logits.grad.clone()
    logits.grad = None
    expected = F.cross_entropy(logits[:6], labels, label_smoothing=smoothing, reduction="sum")
    expected.backward()
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(ours, logits.grad)
    assert int(right) == int((logits[:6].argmax(1) == labels).sum())
