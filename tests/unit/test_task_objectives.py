"""Each task's loss by hand, on a fake network; micro-batches add up; padding and ignored labels do not count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from remask.model.settings import HeadSettings
from remask.schema import IGNORE, Batch
from remask.task_objectives import TaskObjective
from remask.tasks.kind import TaskLoss
from remask.tasks.kinds import KINDS


class Fake:
    """A network whose heads give fixed logits; remembers whether noise was handed in."""

    def __init__(self, logits: torch.Tensor, answerable: torch.Tensor | None = None) -> None:
        self.logits, self.answerable_logits, self.noises = logits, answerable, []
        self.head_settings = HeadSettings(span=True, answerable=answerable is not None)

    def first_positions(self, batch):
        return None

    def encode(self, batch, noise, wanted_M):
        self.noises.append(noise)
        return torch.zeros(batch.num_rows, batch.input_ids_BS.shape[1], 4)

    def classify(self, hidden, lengths, noise):
        return self.logits

    def choose(self, hidden, lengths, noise):
        return self.logits

    def answerable(self, hidden, lengths, noise):
        return self.answerable_logits

    def tag(self, hidden, noise):
        return self.logits

    def span(self, hidden, noise):
        return self.logits


def batch_of(labels, rows: int, width: int = 3, lengths: list[int] | None = None) -> Batch:
    return Batch(
        torch.zeros(rows, width, dtype=torch.int64),
        torch.tensor(lengths or [width] * rows),
        labels=torch.as_tensor(labels),
        example_ids_B=torch.arange(rows),
    )


def test_classification() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]))
    fake, batch = Fake(logits), batch_of([1, 1], 2)
    loss = TaskObjective(KINDS["classify"], 0)(fake, batch, None)
    assert float(loss.parts["task"].sum) == pytest.approx(-np.log(0.25) - np.log(0.8), rel=1e-5)
    assert loss.parts["task"].count == 2
    assert int(loss.metrics["accuracy"].sum) == 1
    assert fake.noises == [None]
    objective = TaskObjective(KINDS["classify"], 0)
    objective(fake, batch, 5)
    assert fake.noises[-1] is not None


def test_regression_and_several_labels() -> None:
    loss = TaskObjective(KINDS["regress"], 0)(Fake(torch.tensor([[1.0], [3.0]])), batch_of([0.5, 5.0], 2), None)
    assert float(loss.parts["task"].sum) == pytest.approx(0.25 + 4.0)
    assert loss.metrics == {}
    logits, labels = torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 1.0]])
    loss = TaskObjective(KINDS["multilabel"], 0)(Fake(logits), batch_of(labels, 1), None)
    assert float(loss.parts["task"].sum) == pytest.approx(np.log1p(np.exp(-2)) + np.log1p(np.exp(1)), rel=1e-5)
    assert loss.parts["task"].count == 2
    assert int(loss.metrics["accuracy"].sum) == 1


def test_tags_ignore_what_is_no_first_token() -> None:
    logits = torch.log(torch.tensor([[[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]]]))
    objective, batch = TaskObjective(KINDS["tags"], 0), batch_of([[IGNORE, 0, 1]], 1)
    loss = objective(Fake(logits), batch, None)
    assert float(loss.parts["task"].sum) == pytest.approx(-np.log(0.9) - np.log(0.8), rel=1e-5)
    assert objective.counts(batch) == {"task": 2}
    assert int(loss.metrics["accuracy"].sum) == 2


def test_spans_never_fall_on_padding() -> None:
    logits = torch.zeros(1, 4, 2)
    logits[0, 3] = 100.0  # padding that shouts
    loss = TaskObjective(KINDS["spans"], 0)(Fake(logits), batch_of([[1, 2]], 1, width=4, lengths=[3]), None)
    assert float(loss.parts["task"].sum) == pytest.approx(2 * np.log(3), rel=1e-5)
    assert loss.parts["task"].count == 2


def test_answerable_is_a_second_loss_on_one_pass() -> None:
    fake = Fake(torch.zeros(2, 3, 2), torch.tensor([3.0, 3.0]))
    objective = TaskObjective(KINDS["spans"], 0, TaskLoss(answerable=True))
    loss = objective(fake, batch_of([[1, 2], [0, 0]], 2), None)
    expected = np.log1p(np.exp(-3)) + np.log1p(np.exp(3))
    assert float(loss.parts["answerable"].sum) == pytest.approx(expected, rel=1e-5)
    assert {name: part.count for name, part in loss.parts.items()} == {"task": 4, "answerable": 2}
    assert set(objective.weights) == {"task", "answerable"}
    assert len(fake.noises) == 1


def test_choices_compete_within_their_question() -> None:
    scores = torch.log(torch.tensor([0.7, 0.3, 0.4, 0.6]))
    loss = TaskObjective(KINDS["choice"], 0)(Fake(scores), batch_of([0, 0], 4), None)
    assert float(loss.parts["task"].sum) == pytest.approx(-np.log(0.7) - np.log(0.4), rel=1e-5)
    assert int(loss.metrics["accuracy"].sum) == 1


def test_counts_work_on_numpy_before_the_batch_moves() -> None:
    batch = Batch(np.zeros((2, 3), np.int64), np.array([3, 3]), labels=np.array([[IGNORE, 1, 1], [0, IGNORE, 1]]))
    assert TaskObjective(KINDS["tags"], 0).counts(batch) == {"task": 4}


def test_rare_classes_may_count_more() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.5], [0.2, 0.8]]))
    loss = TaskObjective(KINDS["classify"], 0, TaskLoss(class_weights=(0.5, 3.0)))(
        Fake(logits), batch_of([0, 1], 2), None
    )
    assert float(loss.parts["task"].sum) == pytest.approx(-0.5 * np.log(0.5) - 3 * np.log(0.8), rel=1e-5)
    assert loss.parts["task"].count == 2


def test_choices_ranked_by_a_margin() -> None:
    # First question: ahead by 3 and by 0.5, so 0.5 is missing; second: behind by 1, so 2 are, and nothing elsewhere.
    logits = torch.tensor([3.0, 0.0, 2.5, 1.0, 2.0, -5.0])
    loss = TaskObjective(KINDS["choice"], 0, TaskLoss(margin=True))(Fake(logits), batch_of([0, 0], 6), None)
    assert float(loss.parts["task"].sum) == pytest.approx(2.5)
    assert loss.parts["task"].count == 2
    assert int(loss.metrics["accuracy"].sum) == 1


@pytest.mark.parametrize("kind, labels", [("classify", [1, 1, 0]), ("regress", [0.5, 0.5, 2.0])])
def test_windows_of_one_text_count_as_one(kind: str, labels: list[float]) -> None:
    logits = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])[:, : 1 if kind == "regress" else 2]
    objective = TaskObjective(KINDS[kind], 0)
    rows = [objective(Fake(logits[i : i + 1]), batch_of(labels[i : i + 1], 1), None).parts["task"] for i in range(3)]
    # The first text has two windows, the second one: each text is worth one, whatever its windows.
    batch = replace(batch_of(labels, 3), weights_B=torch.tensor([0.5, 0.5, 1.0]))
    loss = objective(Fake(logits), batch, None)
    expected = (rows[0].sum + rows[1].sum) / 2 + rows[2].sum
    assert float(loss.parts["task"].sum) == pytest.approx(float(expected), rel=1e-6)
    assert loss.parts["task"].count == 2
    if kind == "classify":
        assert float(loss.metrics["accuracy"].sum) == 1.5  # one window of the first is right, and the second text


def test_windows_with_several_labels_count_as_one() -> None:
    objective = TaskObjective(KINDS["multilabel"], 0)
    logits, labels = torch.tensor([[2.0, -1.0], [0.0, 1.0]]), torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    rows = [objective(Fake(logits[i : i + 1]), batch_of(labels[i : i + 1], 1), None).parts["task"] for i in range(2)]
    loss = objective(Fake(logits), replace(batch_of(labels, 2), weights_B=torch.tensor([0.5, 0.5])), None)
    assert float(loss.parts["task"].sum) == pytest.approx(float((rows[0].sum + rows[1].sum) / 2), rel=1e-6)
    assert loss.parts["task"].count == rows[0].count


# ----------------------------------------------------------------------------------------- more than one pass


def tiny_network(dropout: float = 0.1, *, unpad: bool = True):
    from remask.model.network import build_network
    from remask.model.settings import ModelSettings

    settings = ModelSettings(
        vocab_size=50, num_layers=2, hidden_size=16, num_heads=2, ffn_size=24, max_length=12, init_std=0.2,
        dropout=dropout, attention_dropout=dropout, head_dropout=dropout, unpad=unpad,
    )  # fmt: skip
    return build_network(settings, HeadSettings(num_classes=3), 1)


ROWS = Batch(
    torch.tensor([[0, 7, 8, 9, 2], [0, 9, 2, 1, 1]]), torch.tensor([5, 3]), labels=torch.tensor([1, 2]),
    example_ids_B=torch.tensor([5, 6]),
)  # fmt: skip


def test_consistency_is_the_divergence_of_two_dropouts() -> None:
    from remask.model.noise import Noise
    from remask.task_objectives import _SECOND_PASS, task_logits
    from remask.tasks.settings import LossSettings

    network, kind = tiny_network(), KINDS["classify"]
    objective = TaskObjective(kind, 3, settings=LossSettings(consistency=2.0))
    loss = objective(network, ROWS, 4)
    one, other = (
        task_logits(network, kind, ROWS, Noise(seed, 4, ROWS.example_ids_B)).log_softmax(-1)
        for seed in (3, 3 + _SECOND_PASS)
    )
    assert not torch.allclose(one, other, atol=1e-3)
    kl = torch.nn.functional.kl_div
    both = 0.5 * (kl(one, other, log_target=True, reduction="sum") + kl(other, one, log_target=True, reduction="sum"))
    torch.testing.assert_close(loss.parts["consistency"].sum, both)
    nll = torch.nn.functional.nll_loss
    mean = 0.5 * sum(nll(logs, ROWS.labels, reduction="sum") for logs in (one, other))
    torch.testing.assert_close(loss.parts["task"].sum, mean)
    assert objective.weights == {"task": 1.0, "consistency": 2.0}
    assert objective.counts(ROWS) == {"task": 2, "consistency": 2}
    # Without dropout both passes are one, and in evaluation there is but one.
    assert TaskObjective(kind, 3, settings=objective.settings)(tiny_network(0.0), ROWS, 4).parts["consistency"].sum == 0
    assert set(objective(network, ROWS, None).parts) == {"task"}


@pytest.mark.parametrize("name", ["classify", "regress", "multilabel", "tags", "spans", "choice"])
def test_every_kind_measures_how_far_two_passes_are_apart(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"regress": (4, 1), "tags": (2, 3, 5), "spans": (2, 3, 2), "choice": (4,)}
    one, other = (torch.randn(shapes.get(name, (4, 3)), generator=generator) for _ in range(2))
    labels = {"tags": [[1, IGNORE, 2], [0, 1, IGNORE]], "spans": [[0, 1], [1, 1]], "choice": [0, 1]}.get(
        name, [0, 1, 2, 0]
    )
    batch = batch_of(
        labels, 2 if name in ("tags", "spans") else 4, lengths=[3, 2] if name in ("tags", "spans") else None
    )
    kind = KINDS[name]
    assert kind.difference(one, one, batch) == 0
    apart = kind.difference(one, other, batch)
    assert apart > 0
    torch.testing.assert_close(apart, kind.difference(other, one, batch))
    if name in ("tags", "spans"):  # what stands at padding, or has no label, does not count
        changed = other.clone()
        changed[1, 2] += 5.0
        torch.testing.assert_close(kind.difference(one, changed, batch), apart)


def test_adversarial_passes_raise_the_loss_by_moves_of_the_stated_length() -> None:
    from remask.model.noise import Noise
    from remask.task_objectives import Moves, _moved, task_logits
    from remask.tasks.settings import LossSettings

    network, kind = tiny_network(unpad=False), KINDS["classify"]
    noise = Noise(0, 1, ROWS.example_ids_B)

    def loss_of(moves: Moves, batch: Batch = ROWS, noise=noise) -> torch.Tensor:
        with _moved(network, moves.by_TE):
            return kind.loss(task_logits(network, kind, batch, noise), batch, TaskLoss())[0]["task"]

    moves = Moves(network, ROWS, 0.1)
    clean = loss_of(moves)
    moves.climb(clean)
    assert loss_of(moves) > clean
    tokens = network.encoder.embeddings.tokens.weight
    for row, length in enumerate((5, 3)):
        own = moves.by_TE.view(2, 5, 16)[row]
        norm = tokens[ROWS.input_ids_BS[row, :length]].norm()
        torch.testing.assert_close(own.norm(), 0.1 * norm, rtol=1e-4, atol=1e-5)
        assert (own[length:] == 0).all()  # padding stays where it is

    # A text's move does not depend on what stands beside it.
    alone = Batch(
        ROWS.input_ids_BS[1:, :3], ROWS.lengths_B[1:], labels=ROWS.labels[1:], example_ids_B=torch.tensor([6])
    )
    one = Moves(network, alone, 0.1)
    one.climb(loss_of(one, alone, Noise(0, 1, [6])))
    torch.testing.assert_close(one.by_TE, moves.by_TE.view(2, 5, 16)[1, :3], rtol=1e-3, atol=1e-5)

    # The loss is the mean over the passes, and so are its gradients: moves are constants to them.
    objective = TaskObjective(kind, 0, settings=LossSettings(adversarial=1, adversarial_step=0.1))
    total = objective(network, ROWS, 1).parts["task"].sum
    total.backward()
    found = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    network.zero_grad()
    (0.5 * (loss_of(Moves(network, ROWS, 0.1)) + loss_of(moves))).backward()
    expected = [p.grad for p in network.parameters() if p.grad is not None]
    for grad, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(grad, wanted, rtol=1e-4, atol=1e-5)


def test_adalora_rations_ranks_and_adds_its_loss() -> None:
    from remask.model.adapters import add_updates
    from remask.model.settings import AdaLoraSettings

    network = tiny_network()
    settings = AdaLoraSettings(start_rank=4, rank=2, every=1, begin=0.2, settle=0.4, modules=("query", "output"))
    add_updates(network.encoder, settings, 0)
    ration = network.encoder.ration
    assert ration is not None
    objective = TaskObjective(KINDS["classify"], 0, orthogonality=0.5)
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.5)
    ranks = []
    for step in range(1, 11):
        optimizer.zero_grad()
        loss = objective(network, ROWS, step)
        (loss.parts["task"].sum + 0.5 * loss.parts["orthogonality"].sum).backward()
        optimizer.step()
        ration.after_update(step, 10)
        ranks.append(sum(ration.ranks))
    assert ranks[0] == ranks[1] == 16  # 2 layers x 2 matrices x 4
    assert sorted(ranks, reverse=True) == ranks
    assert set(ranks[5:]) == {8}
    assert loss.parts["orthogonality"].sum.detach() < 2.0  # it was near sqrt(4)
    for update in ration._updates:
        assert (update.E[update.kept_R == 0] == 0).all()
        assert int((update.E != 0).sum()) == int(update.kept_R.sum())
