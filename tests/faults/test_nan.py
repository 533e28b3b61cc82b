"""FAULTS.md rows 12 and 13: losses and gradients that are no numbers, and losses that jump."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from remask import signals
from remask.config import build_run
from remask.errors import DataError, GaveUpError, Stopped
from remask.objectives import Pretraining
from remask.pretraining.run import pretrain as main
from remask.pretraining.settings import PretrainRun
from remask.progress import Progress
from remask.schema import Loss, LossPart
from remask.train import guard as guard_module
from remask.train.guard import FEWEST, NEW_LEVEL_AFTER, Consumed, StepGuard

from .soak import tries

RUN = """
base: roberta_tiny
model: {num_layers: 1, hidden_size: 16, num_heads: 2, ffn_size: 32, max_length: 32}
data: {length: 32, batch: {num_rows: 4, micro_rows: 2}, evaluation: {num_rows: 8}}
train: {learning_rate: 2e-3, precision: fp32, device: cpu, save_every: 5, eval_every: 0, log_every: 1}
"""


class Spoiled:
    """Makes the loss or the gradient of chosen forward passes no number. A pass is known by the tokens it reads, so a
    replay after a restart meets the same trouble."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.examples: set[tuple[int, ...]] = set()
        self.value = math.nan
        self.in_gradient_only = False
        self.seen: list[tuple[int, tuple[int, ...]]] = []
        self.stop_at_pass = -1
        plain = Pretraining.__call__

        def call(objective: Pretraining, model: Any, batch: Any, step: int | None) -> Loss:
            loss = plain(objective, model, batch, step)
            ids = tuple(batch.example_ids_B.tolist())
            self.seen.append((step or 0, ids))
            if len(self.seen) == self.stop_at_pass:
                signals._flag.set()
            if ids not in self.examples:
                return loss
            part = loss.parts["mlm"]
            if self.in_gradient_only:
                spoiled = _SpoilGradient.apply(part.sum, self.value)
            else:
                spoiled = part.sum * self.value
            return Loss({"mlm": LossPart(spoiled, part.count)}, loss.metrics)

        monkeypatch.setattr(Pretraining, "__call__", call)

    def spoil_steps(self, steps: range, num_steps: int) -> None:
        """The second micro-batch of the steps, found in a run without trouble."""
        by_step: dict[int, list[tuple[int, ...]]] = {}
        for step, ids in self.seen:
            by_step.setdefault(step, []).append(ids)
        assert len(by_step) >= num_steps
        self.examples = {by_step[step][1] for step in steps}
        self.seen.clear()


class _SpoilGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0] * ctx.factor, None


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> Spoiled:
    return Spoiled(monkeypatch)


def pretrain(folder: Path, prepared: Path, steps: int) -> dict[str, Any]:
    file = folder.parent / "run.yaml"
    file.write_text(RUN)
    run = build_run(PretrainRun, file, options={"prepared": str(prepared), "train.steps": steps}).run
    with signals.catch():
        return main(run, folder, progress=Progress(stream=StringIO()))


def state(folder: Path, step: int) -> dict[str, Any]:
    return json.loads((folder / "checkpoints" / f"step-{step:09d}" / "state.json").read_text())


def events(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "event" in line]


def tensors(folder: Path, step: int) -> Mapping[str, torch.Tensor]:
    checkpoint = folder / "checkpoints" / f"step-{step:09d}"
    return load_file(checkpoint / "model.safetensors") | load_file(checkpoint / "optimizer.safetensors")


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("in_gradient_only", [False, True])
def test_a_bad_step_is_skipped_with_all_state_unchanged(
    tmp_path: Path, tiny_prepared: Path, spoiled: Spoiled, value: float, in_gradient_only: bool
) -> None:
    pretrain(tmp_path / "plain", tiny_prepared, 6)
    spoiled.spoil_steps(range(6, 7), 6)
    spoiled.value, spoiled.in_gradient_only = value, in_gradient_only
    pretrain(tmp_path / "spoiled", tiny_prepared, 6)
    before, after = tensors(tmp_path / "spoiled", 5), tensors(tmp_path / "spoiled", 6)
    assert all(torch.equal(before[name], after[name]) for name in before)
    plain = tensors(tmp_path / "plain", 5)
    assert all(torch.equal(before[name], plain[name]) for name in before)
    (event,) = events(tmp_path / "spoiled")
    assert (event["step"], event["event"]) == (6, "skipped")
    assert "not finite" in event["reason"]
    (record,) = state(tmp_path / "spoiled", 6)["guard"]["skipped"]
    assert set(next(iter(spoiled.examples))) <= set(record["examples"])
    assert len(record["examples"]) == 4


def test_three_in_a_row_go_back_and_pass_over_the_examples_by_name(
    tmp_path: Path, tiny_prepared: Path, spoiled: Spoiled
) -> None:
    pretrain(tmp_path / "plain", tiny_prepared, 20)
    spoiled.spoil_steps(range(7, 10), 20)
    pretrain(tmp_path / "spoiled", tiny_prepared, 12)
    (event,) = events(tmp_path / "spoiled")  # what was skipped on the way did not happen, and stands in the record
    assert (event["event"], event["step"], event["from_step"]) == ("rollback", 5, 9)
    guard = state(tmp_path / "spoiled", 12)["guard"]
    (record,) = guard["rollbacks"]
    passed = [i for step, ids in spoiled.seen[10:18] for i in ids]  # steps 6 to 9, two micro-batches each
    assert (record["examples"], record["count"]) == (passed, len(passed))
    assert (record["from_cursor"], record["to_cursor"]) == ({"step": 5}, {"step": 9})
    assert {s["step"] for s in guard["skipped"]} == {7, 8, 9}
    # Step 6 was made again, with the examples after the bad ones.
    again = [ids for step, ids in spoiled.seen if step == 6]
    assert len(again) == 4
    assert not set(again[2] + again[3]) & set(passed)
    steps = [json.loads(line)["step"] for line in (tmp_path / "spoiled" / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)


@pytest.mark.timeout(1800)
def test_a_stop_around_a_rollback_changes_nothing(tmp_path: Path, tiny_prepared: Path, spoiled: Spoiled) -> None:
    pretrain(tmp_path / "plain", tiny_prepared, 20)
    spoiled.spoil_steps(range(7, 10), 20)
    pretrain(tmp_path / "whole", tiny_prepared, 14)
    # In the third bad step, right after going back, one step later; or anywhere.
    for stop in sorted({17, 19, 21, *range(2, 2 + tries(12, 0, 34))}):
        spoiled.seen.clear()
        spoiled.stop_at_pass = stop
        folder = tmp_path / f"stop{stop}"
        with pytest.raises(Stopped):
            pretrain(folder, tiny_prepared, 14)
        spoiled.stop_at_pass = -1
        pretrain(folder, tiny_prepared, 14)
        whole, parts = tensors(tmp_path / "whole", 14), tensors(folder, 14)
        assert all(torch.equal(whole[name], parts[name]) for name in whole)
        assert state(tmp_path / "whole", 14)["guard"] == state(folder, 14)["guard"]


def test_after_three_rollbacks_the_run_gives_up_and_names_them(
    tmp_path: Path, tiny_prepared: Path, spoiled: Spoiled
) -> None:
    pretrain(tmp_path / "plain", tiny_prepared, 20)
    spoiled.spoil_steps(range(7, 20), 20)
    with pytest.raises(GaveUpError, match=r"3 rollbacks \(step 9 -> 5; step 8 -> 5; step 8 -> 5\)") as error:
        pretrain(tmp_path / "spoiled", tiny_prepared, 20)
    assert error.value.exit_code == 70


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_over_in_silence(
    tmp_path: Path, tiny_prepared: Path
) -> None:
    pretrain(tmp_path / "run", tiny_prepared, 5)
    for path in (tmp_path / "run" / "checkpoints").glob("step-*/model.safetensors"):
        path.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(DataError, match="every checkpoint is damaged"):
            pretrain(tmp_path / "run", tiny_prepared, 5)
    shutil.rmtree(tmp_path / "run")


def test_beyond_many_examples_the_cursors_name_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "MOST_NAMED", 5)
    consumed = Consumed({"step": 3})
    consumed.add([1, 2, 3])
    assert consumed.state() == {"from_cursor": {"step": 3}, "examples": [1, 2, 3], "count": 3}
    again = Consumed(**json.loads(json.dumps(consumed.state())))
    for one in (consumed, again):
        one.add([4, 5])
        one.add([6])
        one = Consumed(**json.loads(json.dumps(one.state())))
        one.add([7])
        assert one.state() == {"from_cursor": {"step": 3}, "examples": None, "count": 7}


# ------------------------------------------------------------------------------------------------- spikes


def falling(steps: int, sigma: float, seed: int) -> np.ndarray:
    """A loss curve as runs have them: a fall, a long slow slope, and noise (a mean over many tokens: normal)."""
    draw = np.random.default_rng(seed)
    at = np.arange(steps)
    trend = 3.0 + 5.0 * np.exp(-at / 300) + 1.5 * np.exp(-at / 4000)
    return trend + sigma * draw.normal(size=steps)


def skipped(losses: np.ndarray) -> list[int]:
    guard = StepGuard(4.5)
    return [step for step, loss in enumerate(losses.tolist()) if guard.judge(loss, 1.0)]


@pytest.mark.parametrize("sigma", [0.02, 0.2])
def test_spikes_of_six_sigma_are_caught(sigma: float) -> None:
    draw = np.random.default_rng(5)
    caught = 0
    for seed in range(20):
        at = int(draw.integers(500, 900))
        losses = falling(at + 1, sigma, seed)
        trend = falling(at + 1, 0.0, seed)
        losses[at] = trend[at] + 6 * sigma
        caught += at in skipped(losses)
    assert caught == 20


@pytest.mark.parametrize("sigma", [0.02, 0.2])
def test_false_alarms_are_rare(sigma: float) -> None:
    """Over 10,000 steps, the fall at the start included."""
    alarms = [len(skipped(falling(10_000, sigma, seed))) for seed in range(tries(13, 2, 10))]
    assert max(alarms) <= 1, alarms


def test_a_new_level_is_accepted_after_three_spikes() -> None:
    losses = np.concatenate([falling(1000, 0.05, 1), falling(1000, 0.05, 2) + 3.0])
    assert skipped(losses) == [1000, 1001, 1002][:NEW_LEVEL_AFTER]


def test_nothing_is_a_spike_before_enough_is_known_or_when_off() -> None:
    losses = np.array([3.0 + 0.01 * (i % 2) for i in range(FEWEST)] + [30.0])
    assert skipped(losses) == [FEWEST]
    assert skipped(losses[2:]) == []
    off = StepGuard(0.0)
    assert not any(off.judge(loss, 1.0) for loss in losses.tolist())
    assert off.losses == []


def test_the_guard_goes_on_from_its_state() -> None:
    losses = falling(800, 0.1, 9).tolist()
    whole, parts = StepGuard(4.5), StepGuard(4.5)
    for loss in losses[:500]:
        parts.judge(loss, 1.0)
    again = StepGuard(4.5)
    again.load(json.loads(json.dumps(parts.state())))
    for loss in losses[500:]:
        again.judge(loss, 1.0)
    for loss in losses:
        whole.judge(loss, 1.0)
    assert whole.state() == again.state()
