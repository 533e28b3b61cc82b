"""Objectives on a tiny network: sums and counts against a direct computation, rows split for the causal share."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from remask.data.batches import Batches, open_batches
from remask.data.settings import BatchSettings, DataSettings, MaskingSettings
from remask.model.network import Network, build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.objectives import ObjectiveSettings, Pretraining, held_out, sentence_accuracy
from remask.schema import IGNORE, Batch, Loss
from remask.tokenizer import load_tokenizer


def source(prepared: Path, **changes: Any) -> Batches:
    settings = DataSettings(length=32, batch=BatchSettings(num_rows=12, micro_rows=12), **changes)
    return open_batches(prepared, settings, load_tokenizer(prepared / "tokenizer"), seed=1)


def pairs(prepared: Path) -> Batches:
    return source(prepared, format="segment-pair", sentence_loss="nsp", masking=MaskingSettings(count="independent"))


def first(batches: Batches) -> Batch:
    return batches.take(batches.first_cursor())[0][0]


def tensors(batch: Batch) -> Batch:
    return batch.map(torch.as_tensor)


@pytest.fixture(scope="module")
def network(tiny_prepared: Path) -> Network:
    size = load_tokenizer(tiny_prepared / "tokenizer").vocab_size
    settings = ModelSettings(
        vocab_size=size, num_layers=2, hidden_size=16, num_heads=2, ffn_size=32, max_length=32, init_std=0.2
    )
    return build_network(settings, HeadSettings(masked_lm=True, sentence=True), 3)


def objective(sentence: bool = True, **changes: float) -> Pretraining:
    return Pretraining(ObjectiveSettings(**changes), seed=5, sentence=sentence)


def test_masked_and_sentence_losses_are_sums_over_their_counts(network: Network, tiny_prepared: Path) -> None:
    batch = first(pairs(tiny_prepared))
    labels_B = np.array(batch.sentence_labels_B)
    labels_B[:3] = IGNORE
    batch = replace(batch, sentence_labels_B=labels_B)
    loss = objective()(network, tensors(batch), None)
    assert objective().counts(batch) == {"mlm": len(batch.masked_labels_M), "sentence": 9}
    assert {name: part.count for name, part in loss.parts.items()} == objective().counts(batch)
    hidden = network.encode(tensors(batch))
    logits = network.masked_lm(hidden, torch.as_tensor(batch.masked_positions_M))
    wanted = F.cross_entropy(logits, torch.as_tensor(batch.masked_labels_M), reduction="sum")
    torch.testing.assert_close(loss.parts["mlm"].sum, wanted)
    wanted = F.cross_entropy(network.sentence(hidden)[3:], torch.as_tensor(labels_B[3:]), reduction="sum")
    torch.testing.assert_close(loss.parts["sentence"].sum, wanted)
    right = (logits.argmax(1) == torch.as_tensor(batch.masked_labels_M)).sum()
    assert int(loss.metrics["accuracy"].sum) == int(right)
    assert loss.metrics["sentence_accuracy"].count == 9


def test_the_step_keys_the_noise(network: Network, tiny_prepared: Path) -> None:
    batch = tensors(first(source(tiny_prepared)))
    found = [float(objective(False)(network, batch, step).parts["mlm"].sum.detach()) for step in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    assert float(objective(False)(network, batch, None).parts["mlm"].sum.detach()) not in found


def causal_by_hand(network: Network, batch: Batch, rows: np.ndarray) -> tuple[torch.Tensor, int]:
    """Row by row: the true text, each token from those before it."""
    ids = np.array(batch.input_ids_BS)
    ids.reshape(-1)[batch.masked_positions_M] = batch.masked_labels_M
    total, count = torch.zeros(()), 0
    for row in rows:
        length = int(batch.lengths_B[row])
        text = torch.as_tensor(ids[row : row + 1, :length])
        one = Batch(text, torch.tensor([length]), example_ids_B=torch.tensor([0]))
        logits = network.masked_lm(network.encode(one, None, causal=True), torch.arange(length - 1))
        total = total + F.cross_entropy(logits, text[0, 1:], reduction="sum")
        count += length - 1
    return total, count


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_a_causal_share_reads_rows_left_to_right_unmasked(network: Network, tiny_prepared: Path, share: float) -> None:
    chosen = objective(False, causal_share=share)
    batch = first(source(tiny_prepared))
    masked, causal = chosen._split(batch)
    assert causal is not None
    rows = np.flatnonzero(np.isin(batch.example_ids_B, causal.example_ids_B))
    if share < 1:
        assert masked is not None
        assert 0 < len(rows) < batch.num_rows
    loss = chosen(network, tensors(batch), None)
    total, count = causal_by_hand(network, batch, rows)
    torch.testing.assert_close(loss.parts["causal"].sum, total, rtol=1e-4, atol=1e-3)
    counts = chosen.counts(batch)
    assert counts["causal"] == loss.parts["causal"].count == count
    if masked is not None:
        plain = objective(False)(network, tensors(masked), None)
        torch.testing.assert_close(loss.parts["mlm"].sum, plain.parts["mlm"].sum)
        assert counts["mlm"] == len(masked.masked_labels_M)
        # What the masked rows see and predict is what they did in the whole batch.
        columns = batch.input_ids_BS.shape[1]
        at = np.isin(batch.masked_positions_M // columns, rows, invert=True)
        assert masked.masked_labels_M.tolist() == batch.masked_labels_M[at].tolist()
        seen = masked.input_ids_BS.reshape(-1)[masked.masked_positions_M]
        assert seen.tolist() == batch.input_ids_BS.reshape(-1)[batch.masked_positions_M[at]].tolist()
    else:
        assert counts["mlm"] == 0
        assert "mlm" not in loss.parts


def test_the_causal_rows_are_about_the_share_and_change_with_the_mask(tiny_prepared: Path) -> None:
    chosen, batches = objective(False, causal_share=0.3), source(tiny_prepared)
    cursor = batches.first_cursor()
    picks: dict[int, list[bool]] = {}
    for _ in range(int(3 * batches.steps_per_epoch)):
        (batch,), cursor = batches.take(cursor)
        _, causal = chosen._split(batch)
        rows = set() if causal is None else set(causal.example_ids_B.tolist())
        for example in batch.example_ids_B.tolist():
            picks.setdefault(example, []).append(example in rows)
    every = [pick for row in picks.values() for pick in row]
    assert 0.25 < sum(every) / len(every) < 0.35
    assert any(len(set(row)) > 1 for row in picks.values())


def test_the_split_does_not_depend_on_the_micro_batch(tiny_prepared: Path) -> None:
    chosen = objective(False, causal_share=0.5)
    batch = first(source(tiny_prepared))
    small = source(tiny_prepared)
    small = open_batches(
        tiny_prepared,
        small.settings.model_copy(update={"batch": BatchSettings(num_rows=12, micro_rows=3)}),
        load_tokenizer(tiny_prepared / "tokenizer"),
        seed=1,
    )
    parts, _ = small.take(small.first_cursor())
    assert len(parts) == 4

    def causal_ids(of: list[Batch]) -> list[int]:
        found = [chosen._split(one)[1] for one in of]
        return [i for one in found if one is not None for i in one.example_ids_B.tolist()]

    assert causal_ids([batch]) == causal_ids(parts)
    totals = [chosen.counts(one) for one in parts]
    assert chosen.counts(batch) == {name: sum(total[name] for total in totals) for name in ("mlm", "causal")}


def test_packed_documents_do_not_predict_each_other(network: Network) -> None:
    """The last token of a document has nothing to predict."""
    ids = np.array([[5, 6, 7, 8, 9, 10, 11, 12]])
    batch = Batch(
        ids,
        np.array([7]),
        document_ids_BS=np.array([[0, 0, 0, 1, 1, 1, 1, -1]]),
        position_ids_BS=np.array([[0, 1, 2, 0, 1, 2, 3, 0]]),
        masked_positions_M=np.array([1]),
        masked_labels_M=np.array([60]),
        example_ids_B=np.array([3]),
    )
    chosen = objective(False, causal_share=1.0)
    assert chosen.counts(batch) == {"mlm": 0, "causal": 5}
    assert chosen(network, tensors(batch), None).parts["causal"].count == 5


@pytest.mark.parametrize("name", ["mlm_weight", "sentence_weight", "causal_weight"])
def test_every_weight_reaches_the_loop(name: str) -> None:
    part = name.removesuffix("_weight")
    weights = [objective(causal_share=0.5, **{name: value}).weights for value in (1.0, 0.5)]
    assert (weights[0][part], weights[1][part]) == (1.0, 0.5)
    assert "causal" not in objective().weights
    assert "sentence" not in objective(False).weights


def test_held_out_measures_are_those_of_the_definition(network: Network, tiny_prepared: Path) -> None:
    batches = source(tiny_prepared)
    cursor = batches.first_cursor()
    parts = []
    for _ in range(3):
        (batch,), cursor = batches.take(cursor)
        parts.append(batch)
    tokenizer = load_tokenizer(tiny_prepared / "tokenizer")
    with torch.no_grad():
        found = held_out(network, parts, tokenizer.token_lengths, tokenizer.token_characters)
        nats = right = tokens = num_bytes = 0.0
        for batch in parts:
            hidden = network.encode(tensors(batch))
            log_probs = network.masked_lm(hidden, torch.as_tensor(batch.masked_positions_M)).double().log_softmax(1)
            labels = torch.as_tensor(batch.masked_labels_M)
            nats -= float(log_probs.gather(1, labels[:, None]).sum())
            right += float((log_probs.argmax(1) == labels).sum())
            tokens += len(labels)
            num_bytes += sum(len(tokenizer.token_bytes[i]) for i in labels.tolist())
    assert found["loss"] == pytest.approx(nats / tokens, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-4)
    assert found["accuracy"] == pytest.approx(right / tokens)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / num_bytes, rel=1e-5)
    assert found["bits_per_character"] == found["bits_per_byte"], "this text is ASCII"


def test_sentence_accuracy_counts_labelled_pairs_only(network: Network, tiny_prepared: Path) -> None:
    batch = first(pairs(tiny_prepared))
    with torch.no_grad():
        answers = network.sentence(network.encode(tensors(batch))).argmax(1).numpy()
    labels = np.where(np.arange(12) < 5, answers, 1 - answers)
    labels[[0, 11]] = IGNORE
    with torch.no_grad():
        found = sentence_accuracy(network, [replace(batch, sentence_labels_B=labels)])
    assert found == pytest.approx(4 / 10)


def test_gradients_flow_through_every_part(network: Network, tiny_prepared: Path) -> None:
    loss: Loss = objective(causal_share=0.5)(network, tensors(first(pairs(tiny_prepared))), 1)
    assert set(loss.parts) == {"mlm", "sentence", "causal"}
    for name, part in loss.parts.items():
        network.zero_grad()
        part.sum.backward(retain_graph=True)
        assert network.encoder.embeddings.tokens.weight.grad is not None, name
        assert network.encoder.embeddings.tokens.weight.grad.abs().sum() > 0
    network.zero_grad()
