"""Steps of thousands of pairs: micro-batches with cached gradients are one big batch, dropout included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from remask.model.network import Network, build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.task_objectives import PairObjective
from remask.tasks.pair_batches import PairBatches
from remask.tasks.retrieve import PairTable, Retrieve, TextPair, pair_table
from remask.tasks.rows import Rows
from remask.tasks.settings import RetrieveSettings, TaskBatchSettings
from remask.train.distributed import World
from remask.train.job import Job
from remask.train.session import Session, forward_backward
from remask.train.settings import TrainSettings

SETTINGS = RetrieveSettings(symmetric=True, learned_temperature=True, widths=(8,), num_negatives=1)


@pytest.fixture(scope="module")
def table() -> PairTable:
    pairs = [TextPair(f"q{i % 20}", f"text {i % 17}", "", (f"not {i}",)) for i in range(24)]
    return pair_table(pairs)


def network() -> Network:
    sizes = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "ffn_size": 32, "max_length": 32, "init_std": 0.2}
    settings = ModelSettings.model_validate({"vocab_size": 60, "dropout": 0.2, "attention_dropout": 0.2, **sizes})
    return build_network(settings, HeadSettings(pooling="mean", temperature=True), seed=1)


def source(table: PairTable, micro_tokens: int) -> PairBatches:
    rng = np.random.default_rng(0)
    count = table.num_pairs + len(table.documents)
    rows = Rows([rng.integers(4, 60, rng.integers(3, 30)) for _ in range(count)], None, None, np.arange(count))
    settings = TaskBatchSettings(num_rows=24, micro_tokens=micro_tokens)
    return PairBatches(table, rows, 1, settings, num_negatives=1, seed=2)


def gradients(table: PairTable, micro_tokens: int, folder: Path) -> tuple[int, float, dict[str, Tensor]]:
    """(micro-batches, loss, gradients by name) of one step of the loop."""
    model, batches = network(), source(table, micro_tokens)
    job = Job(
        model, batches, PairObjective(Retrieve(SETTINGS), 5, table), TrainSettings(steps=1, precision="fp32"), folder,
        seed=5, identity={}, carried={},
    )  # fmt: skip
    session = Session(job, World())
    micro_batches, _ = batches.take(batches.first_cursor())
    step = forward_backward(session, micro_batches)
    assert step is not None
    return len(micro_batches), step.loss, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def test_many_micro_batches_have_the_gradients_of_one(table: PairTable, tmp_path: Path) -> None:
    one, loss, expected = gradients(table, 1 << 20, tmp_path)
    assert one == 1
    assert expected["heads.temperature"].abs() > 0
    for micro_tokens in (256, 48):
        many, other_loss, found = gradients(table, micro_tokens, tmp_path)
        assert many > 3
        assert other_loss == pytest.approx(loss, rel=1e-6)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_accumulation_alone_would_have_others(table: PairTable, tmp_path: Path) -> None:
    """What the caching is for: rows that do not meet are no negatives of each other."""
    _, _, expected = gradients(table, 1 << 20, tmp_path)
    model, objective = network().train(), PairObjective(Retrieve(SETTINGS), 5, table)
    batches = source(table, 1 << 20)
    (whole,), _ = batches.take(batches.first_cursor())
    by_torch = whole.map(torch.as_tensor)
    loss = objective(model, by_torch, 1)
    (loss.parts["task"].sum / table.num_pairs).backward()
    same = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for name, gradient in expected.items():
        torch.testing.assert_close(same[name], gradient, rtol=1e-4, atol=1e-6, msg=name)
    # Half of the pairs at a time, with their documents.
    model.zero_grad()
    ids = whole.example_ids_B
    for half in (range(12), range(12, 24)):
        brought = {int(d) for pair in half for d in (table.positive_of_pair[pair], *table.negatives_of_pair[pair])}
        keep = torch.tensor([int(i) in half or int(i) - table.num_pairs in brought for i in ids])
        part = by_torch.map(lambda array, keep=keep: array[keep])
        (objective(model, part, 1).parts["task"].sum / table.num_pairs).backward()
    apart = model.encoder.embeddings.tokens.weight.grad
    assert apart is not None
    assert (apart - expected["encoder.embeddings.tokens.weight"]).abs().max() > 1e-3
