"""Decoding: the same cached or not, together or alone; beams, bans, chance and lengths do what they say."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from remask.answer.decoding import _largest, take_sentences, write
from remask.answer.mask_writing import fill_masks
from remask.errors import ConfigError
from remask.model.network import Network, build_network
from remask.model.packed import for_answers
from remask.model.settings import HeadSettings, ModelSettings, WriterSettings
from remask.schema import Batch
from remask.tasks.settings import DecodeChanges, DecodeSettings
from remask.tasks.write import Draft

SIZES: dict[str, Any] = {
    "vocab_size": 400, "num_layers": 3, "hidden_size": 32, "num_heads": 4, "ffn_size": 48, "max_length": 40,
    "init_std": 0.3,
}  # fmt: skip
MODERN = {"positions": "rotary", "norm": "pre", "first_norm": False, "attention_window": 3, "global_every": 2}
MODERN |= {"ffn": "gated", "head_form": "modern", "num_segments": 0}
FORMS: dict[str, dict[str, Any]] = {
    "roberta": {}, "modern": MODERN, "albert": {"sharing": "all", "embedding_size": 16},
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"beams": 4},
    "beams, no repeats": {"beams": 3, "no_repeat": 2, "length_penalty": 0.5},
    "sampling": {"by": "sampling"},
    "sampling, few": {"by": "sampling", "top_k": 20, "top_p": 0.9, "temperature": 1.3, "no_repeat": 1},
}
LENGTHS = (7, 3, 9, 5)


def network_of(form: str = "roberta", **more: Any) -> Network:
    settings = ModelSettings.model_validate({**SIZES, **FORMS[form]})
    writer = WriterSettings.model_validate({"num_layers": 2, **more})
    return build_network(settings, HeadSettings(writer=writer), 0).eval()


def batch_of(numbers: tuple[int, ...] = (0, 1, 2, 3)) -> Batch:
    rng = np.random.default_rng(0)
    rows = [rng.integers(4, 400, length) for length in LENGTHS]
    width = max(LENGTHS[i] for i in numbers)
    ids = np.stack([np.pad(rows[i], (0, width - LENGTHS[i]), constant_values=1) for i in numbers])
    return Batch(torch.from_numpy(ids), torch.tensor([LENGTHS[i] for i in numbers]))


@torch.inference_mode()
def drafts(network: Network, batch: Batch, max_length: int = 15, **how: Any) -> list[Draft]:
    return write(network, batch, network.encode(batch), DecodeSettings.model_validate(how), max_length)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", WAYS)
def test_cached_or_not_together_or_alone(form: str, way: str) -> None:
    network, how = network_of(form), WAYS[way]
    together = drafts(network, batch_of(), **how)
    anew = drafts(network, batch_of(), **how, cached=False)
    alone = [drafts(network, batch_of((i,)), **how)[0] for i in range(4)]
    assert len({tuple(draft.ids) for draft in together}) > 1  # the sources matter
    for first, *others in zip(together, anew, alone, strict=True):
        for other in others:
            assert first.ids.tolist() == other.ids.tolist()
            assert first.score == pytest.approx(other.score, abs=1e-4)
            assert first.finished == other.finished


def test_packed_weights_write_the_same() -> None:
    before = drafts(network_of(weights="copied"), batch_of(), beams=3)
    after = drafts(for_answers(network_of(weights="copied"), "fp32"), batch_of(), beams=3)
    assert [draft.ids.tolist() for draft in before] == [draft.ids.tolist() for draft in after]


def test_many_beams_find_the_likeliest_text() -> None:
    """A vocabulary of few tokens and texts of two: all of them can be tried."""
    settings = ModelSettings.model_validate({**SIZES, "vocab_size": 12})
    network = build_network(settings, HeadSettings(writer=WriterSettings(start_id=0, end_id=2)), 4).eval()
    batch = Batch(torch.tensor([[0, 5, 6, 2]]), torch.tensor([4]))
    (best,) = drafts(network, batch, max_length=3, beams=60, length_penalty=0.0)
    texts = [*itertools.product(range(12), repeat=3), *((*pair, 2) for pair in itertools.product(range(12), repeat=2))]
    likeliest, most = None, -np.inf
    for text in dict.fromkeys(text[: text.index(2) + 1] if 2 in text else text for text in (*texts, (2,))):
        labels = torch.tensor([text])
        asked = Batch(batch.input_ids_BS, batch.lengths_B, labels=labels, target_lengths_B=torch.tensor([len(text)]))
        with torch.inference_mode():
            score = -float(network.write_losses(network.encode(asked), asked)[0])
        if score > most:
            likeliest, most = text, score
    assert likeliest is not None
    assert best.score == pytest.approx(most, abs=1e-4)
    assert best.ids.tolist() == [token for token in likeliest if token != 2]


def test_no_sequence_comes_twice() -> None:
    network = network_of()
    for size, beams in ((1, 1), (2, 1), (2, 3)):
        for draft in drafts(network, batch_of(), 30, no_repeat=size, beams=beams):
            grams = [tuple(draft.ids[i : i + size]) for i in range(len(draft.ids) - size + 1)]
            assert len(grams) == len(set(grams))


def test_chance_follows_its_seed_and_temperature() -> None:
    network = network_of()
    said = {seed: drafts(network, batch_of(), by="sampling", seed=seed) for seed in (0, 1)}
    again = drafts(network, batch_of(), by="sampling", seed=0)
    assert [d.ids.tolist() for d in said[0]] == [d.ids.tolist() for d in again]
    assert [d.ids.tolist() for d in said[0]] != [d.ids.tolist() for d in said[1]]
    greedy = [d.ids.tolist() for d in drafts(network, batch_of())]
    for cold in ({"temperature": 1e-7}, {"top_k": 1}, {"top_p": 1e-6}):
        assert [d.ids.tolist() for d in drafts(network, batch_of(), by="sampling", **cold)] == greedy


def test_texts_end_at_their_length_or_their_end() -> None:
    network = network_of()
    for how in ({}, {"beams": 3}):
        short = drafts(network, batch_of(), 4, **how)
        assert all(len(draft.ids) <= 4 for draft in short)
        assert not all(draft.finished for draft in short)
    token = int(drafts(network, batch_of(), 4)[0].ids[1])  # a token that comes second is the end from now on
    ending = build_network(network.settings, HeadSettings(writer=WriterSettings(num_layers=2, end_id=token)), 0).eval()
    first = drafts(ending, batch_of(), 9)[0]
    assert first.finished
    assert token not in first.ids
    assert len(drafts(network, batch_of(), 400)[0].ids) <= SIZES["max_length"]


def test_the_largest_are_topks() -> None:
    logits = torch.randn(5, 3000, generator=torch.Generator().manual_seed(0))
    values, tokens = _largest(logits, 8)
    expected = logits.topk(8, dim=1)
    assert torch.equal(values, expected.values)
    assert torch.equal(tokens, expected.indices)


@pytest.mark.parametrize("order", ["left", "certainty"])
def test_an_encoder_fills_masks_one_by_one(order: Any) -> None:
    settings = ModelSettings.model_validate(SIZES)
    network = build_network(settings, HeadSettings(masked_lm=True), 0).eval()
    mask, never = 399, (0, 1, 2, 3, 399)

    def filled(numbers: tuple[int, ...]) -> list[Draft]:
        batch = batch_of(numbers)
        ids = batch.input_ids_BS.clone()
        for row, length in enumerate(batch.lengths_B.tolist()):
            ids[row, length - 2 : length] = mask
        masked = Batch(ids, batch.lengths_B)
        with torch.inference_mode():
            hidden = network.encode(masked)
            return fill_masks(network, masked, hidden, mask, never, DecodeSettings(), order)

    together = filled((0, 1, 2, 3))
    assert all(len(draft.ids) == 2 and not set(draft.ids) & set(never) for draft in together)
    assert [draft.ids.tolist() for draft in together] == [filled((i,))[0].ids.tolist() for i in range(4)]


@torch.inference_mode()
def test_the_likeliest_sentence_is_taken() -> None:
    """By its log probability over its length, each sentence scored alone; a cut one keeps all its tokens."""
    network, batch = network_of(), batch_of()
    rng = np.random.default_rng(1)
    candidates = [[(np.append(rng.integers(4, 400, n), 2), True) for n in (3, 6, 2)] for _ in LENGTHS]
    candidates[1] = [(rng.integers(4, 400, 7), False)]

    def cost(row: int, ids: np.ndarray) -> float:
        alone = batch_of((row,))
        asked = replace(alone, labels=torch.from_numpy(ids)[None], target_lengths_B=torch.tensor([len(ids)]))
        return float(network.write_losses(network.encode(alone), asked))

    for penalty in (1.0, 0.0):
        settings = DecodeSettings(by="sentences", length_penalty=penalty)
        taken = take_sentences(network, batch, network.encode(batch), settings, candidates)
        for row, (draft, some) in enumerate(zip(taken, candidates, strict=True)):
            scores = [-cost(row, ids) / len(ids) ** penalty for ids, _ in some]
            ids, whole = some[int(np.argmax(scores))]
            assert draft.ids.tolist() == ids[: -1 if whole else None].tolist()
            assert draft.score == pytest.approx(max(scores), abs=1e-4)
            assert draft.finished == whole
        lengths = [len(draft.ids) for draft in taken]
        assert penalty == 1.0 or lengths == [2, 7, 2, 2]  # not divided by its length, the shortest wins


def test_settings_that_contradict_each_other() -> None:
    assert DecodeChanges(by="sampling").over(DecodeSettings(beams=4)).num_beams == 1
    assert DecodeChanges(by="sentences").over(DecodeSettings(beams=4)).num_beams == 1
    assert DecodeChanges(by="beams").over(DecodeSettings(by="sampling", beams=4)).num_beams == 4
    with pytest.raises(ConfigError, match="there are none with sentences"):
        DecodeChanges(beams=2).over(DecodeSettings(by="sentences"))
    with pytest.raises(ConfigError, match="there are none with sampling"):
        DecodeChanges(by="sampling", beams=2).over(DecodeSettings())
