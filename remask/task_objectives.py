"""What fine-tuning learns: the loss of one task, or of several over one encoder.

In: a network with the task's head and a Batch with labels. Out: a Loss with the part `task` (and `answerable` for SQuAD
2.0, which RoBERTa trains jointly, section 5.2), as sums with their counts. More passes over the same rows make it
robust: with other dropout (R-Drop: the part `consistency`), over embeddings moved to raise the loss (as FreeLB);
`task` is then the mean over the passes. No torch at import. Not here: what a kind's loss is (tasks), pretraining
(objectives), batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from remask.schema import Batch, Json, Loss, LossPart, Objective
from remask.tasks.kind import Sums, TaskKind, TaskLoss
from remask.tasks.retrieve import PairTable, Retrieve, compare_pairs
from remask.tasks.settings import LossSettings
from remask.tasks.write import Write

if TYPE_CHECKING:
    import torch
    from torch import nn

    from remask.model.multitask import TaskNetworks
    from remask.model.network import Network
    from remask.model.noise import Noise


def task_logits(model: Network, kind: TaskKind, batch: Batch, noise: Noise | None = None) -> torch.Tensor:
    """What the task's head says about a batch of tensors."""
    hidden_BSD = model.encode(batch, noise, wanted_M=kind.positions(model, batch))
    return kind.logits(model, hidden_BSD, batch, noise)


class TaskObjective:
    """schema.Objective for one task."""

    def __init__(
        self, kind: TaskKind, seed: int, plan: TaskLoss | None = None, settings: LossSettings | None = None,
        orthogonality: float = 0.0,
    ) -> None:  # fmt: skip
        """`orthogonality`: weight of what AdaLoRA's updates add."""
        self.kind, self.seed, self.plan = kind, seed, plan or TaskLoss()
        self.settings = settings or LossSettings()
        weights = {"task": 1.0, **({"answerable": 1.0} if self.plan.answerable else {})}
        weights |= {"consistency": self.settings.consistency, "orthogonality": orthogonality}
        self.weights: Mapping[str, float] = {name: weight for name, weight in weights.items() if weight}

    def counts(self, batch: Batch) -> Mapping[str, float]:
        counts = self.kind.counts(batch, self.plan)
        counts |= {"consistency": counts["task"], "orthogonality": 1}
        return {name: counts[name] for name in self.weights}

    def __call__(self, model: Network, batch: Batch, step: int | None) -> Loss:
        counts = self.counts(batch.known)
        noise = _noise(self.seed, step, batch)
        logits, right, passes = self._passes(model, batch, noise)
        sums: Json = {}
        if step is not None and "consistency" in self.weights:
            second = _noise(self.seed + _SECOND_PASS, step, batch)
            other = task_logits(model, self.kind, batch, second).float()
            passes.append(self.kind.loss(other, batch, self.plan)[0])
            sums["consistency"] = self.kind.difference(logits, other, batch)
        for name in passes[0]:
            sums[name] = sum(losses[name] for losses in passes) / len(passes)
        if step is not None and "orthogonality" in self.weights:
            assert model.encoder.ration is not None, "only AdaLoRA's updates are kept orthogonal"
            sums["orthogonality"] = model.encoder.ration.tangle()
        parts = {name: LossPart(total, counts[name]) for name, total in sums.items()}
        return Loss(parts, {} if right is None else {"accuracy": LossPart(right, counts["task"])})

    def _passes(
        self, model: Network, batch: Batch, noise: Noise | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, list[Sums]]:
        """Logits of the texts as they are, how many were right, and the loss of every pass: of those texts, then of
        embeddings that follow the gradient. Dropout is the same in all of them."""

        if isinstance(self.kind, Write):  # which has no logits to compare, and a decoder that reads embeddings too
            sums, right = self.kind.losses(model, batch, noise, self.plan)
            return sums["task"], right, [sums]

        def loss(moved_TE: torch.Tensor | None = None) -> tuple[torch.Tensor, Sums, torch.Tensor | None]:
            with _moved(model, moved_TE):
                logits = task_logits(model, self.kind, batch, noise).float()
            return logits, *self.kind.loss(logits, batch, self.plan)

        if noise is None or not self.settings.adversarial:
            logits, sums, right = loss()
            return logits, right, [sums]
        moves = Moves(model, batch, self.settings.adversarial_step)
        logits, sums, right = loss(moves.by_TE)
        passes = [sums]
        for _ in range(self.settings.adversarial):
            parts = [total * self.weights[name] for name, total in passes[-1].items()]
            moves.climb(sum(parts[1:], parts[0]))
            passes.append(loss(moves.by_TE)[1])
        return logits, right, passes


_SECOND_PASS = 0x5EC0_0D00_0000  # added to the seed: no run has such a one


class Moves:
    """How far the embeddings of every text were moved: nowhere at first, then up the gradient of its loss.

    A text's move has the same length whatever stands beside it: a share of the norm of its own embeddings."""

    def __init__(self, model: Network, batch: Batch, share: float) -> None:
        import torch

        from remask.model.encoder import Rows

        rows = Rows.of(batch, model.settings.unpad)
        embeddings = model.encoder.embeddings.tokens
        device = batch.input_ids_BS.device
        computed_B = torch.tensor(rows.computed, device=device)
        self._row_T = torch.repeat_interleave(torch.arange(len(computed_B), device=device), computed_B)
        starts_B = computed_B.cumsum(0) - computed_B
        column_T = torch.arange(len(self._row_T), device=device) - starts_B[self._row_T]
        with torch.no_grad():
            x_TE = embeddings(rows.take(batch.input_ids_BS)).float()
            is_real_T = column_T < batch.lengths_B[self._row_T]
            self._length_B = share * self._norms(x_TE * is_real_T[:, None], len(computed_B))
        self.by_TE = torch.zeros_like(x_TE).requires_grad_()

    def _norms(self, x_TE: torch.Tensor, num_rows: int) -> torch.Tensor:
        """Of every text: norm_B."""
        return x_TE.new_zeros(num_rows).index_add(0, self._row_T, x_TE.square().sum(1)).sqrt()

    def climb(self, loss: torch.Tensor) -> None:
        """One step further up from where `loss` was computed, whose graph stays for the parameters' gradients."""
        import torch

        (grad_TE,) = torch.autograd.grad(loss, self.by_TE, retain_graph=True)
        with torch.no_grad():
            norms_B = self._norms(grad_TE, len(self._length_B)).clamp(min=1e-30)
            by_TE = self.by_TE + grad_TE * (self._length_B / norms_B)[self._row_T][:, None]
        self.by_TE = by_TE.detach().requires_grad_()


@contextmanager
def _moved(model: Network, by_TE: torch.Tensor | None) -> Iterator[None]:
    """While this is open, the token embeddings are those of the vocabulary plus `by_TE`."""
    if by_TE is None:
        yield
        return

    def move(module: nn.Module, args: object, x_TE: torch.Tensor) -> torch.Tensor:
        return x_TE + by_TE

    handle = model.encoder.embeddings.tokens.register_forward_hook(move)
    try:
        yield
    finally:
        handle.remove()


class PairObjective:
    """schema.JointObjective of task retrieve: every query of a step chooses among all documents of the step."""

    def __init__(self, kind: Retrieve, seed: int, table: PairTable) -> None:
        self.kind, self.seed, self.table = kind, seed, table
        margin = {} if table.margins_of_pair is None else {"margin": kind.settings.distil_weight}
        self.weights: Mapping[str, float] = {"task": 1.0, **margin}

    def counts(self, batch: Batch) -> Mapping[str, float]:
        """Queries: rows below the number of pairs, see pair_batches."""
        assert batch.example_ids_B is not None
        return dict.fromkeys(self.weights, float((batch.example_ids_B < self.table.num_pairs).sum()))

    def outputs(self, model: Network, batch: Batch, step: int | None) -> torch.Tensor:
        return task_logits(model, self.kind, batch, _noise(self.seed, step, batch))

    def compare(
        self, model: Network, outputs_ND: torch.Tensor, example_ids_N: torch.Tensor, rank: int, num_ranks: int
    ) -> Loss:
        settings = self.kind.settings
        scale = model.scale(settings.temperature)
        ids_N = example_ids_N.cpu().numpy()
        sums, right = compare_pairs(outputs_ND, ids_N, self.table, settings, scale, rank, num_ranks)
        num_queries = int((ids_N < self.table.num_pairs).sum())
        count = float(len(range(rank, num_queries, num_ranks)))
        return Loss(
            {name: LossPart(total, count) for name, total in sums.items()}, {"accuracy": LossPart(right, count)}
        )

    def __call__(self, model: Network, batch: Batch, step: int | None) -> Loss:
        """One batch as a step of its own."""
        assert batch.example_ids_B is not None
        return self.compare(model, self.outputs(model, batch, step).float(), batch.example_ids_B, 0, 1)


def _noise(seed: int, step: int | None, batch: Batch) -> Noise | None:
    """Dropout of a training step; None in evaluation."""
    from remask.model.noise import Noise

    return None if step is None else Noise(seed, step, batch.known.example_ids_B)


class MixedObjective:
    """schema.Objective for several tasks over one encoder: every batch is of one task, whose loss it has.

    A part is named after its task, so that each is divided by its own count and shown by itself."""

    def __init__(self, objectives: Mapping[str, Objective[Network]]) -> None:
        self._objectives = objectives
        self.weights: Mapping[str, float] = {
            _named(task, part): weight
            for task, objective in objectives.items()
            for part, weight in objective.weights.items()
        }

    def counts(self, batch: Batch) -> Mapping[str, float]:
        assert batch.task is not None
        counts = self._objectives[batch.task].counts(batch)
        return {_named(batch.task, part): count for part, count in counts.items()}

    def __call__(self, model: TaskNetworks, batch: Batch, step: int | None) -> Loss:
        """`model.of(task)` is the network with that task's head."""
        task = batch.task
        assert task is not None
        loss = self._objectives[task](model.of(task), batch, step)
        return Loss(
            {_named(task, part): value for part, value in loss.parts.items()},
            {f"{task}.{name}": value for name, value in loss.metrics.items()},
        )


def _named(task: str, part: str) -> str:
    return task if part == "task" else f"{task}.{part}"
