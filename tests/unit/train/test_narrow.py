"""bf16 copies of fp32 masters: the same numbers as casting for every micro-batch, and state in fp32 throughout."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from remask import signals
from remask.config import build_run
from remask.errors import ConfigError, Stopped
from remask.precision import probe
from remask.pretraining.run import pretrain
from remask.pretraining.settings import PretrainRun
from remask.progress import Progress
from remask.train.narrow import NarrowWeights

from .test_loop import StopAt, lines, run, same, weights
from .toy import ToyModel

bf16 = pytest.mark.skipif(not probe("bf16")[0], reason="bf16 products do not work on this machine")
BOTH = ("fp32", "bf16-master")


@bf16
@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "muon"])
@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_the_copies_change_no_bit(tmp_path: Path, optimizer: str, ema_decay: float) -> None:
    changes: dict[str, Any] = {"optimizer": optimizer, "ema_decay": ema_decay, "clip": 0.5, "precision": "bf16"}
    cast, copied = (run(tmp_path / kind, weights=kind, **changes) for kind in BOTH)
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert same(load_file(cast.checkpoint / name), load_file(copied.checkpoint / name)), name
    assert all(tensor.dtype == torch.float32 for tensor in weights(copied).values())
    assert lines(tmp_path / "fp32") == lines(tmp_path / "bf16-master")


@bf16
def test_stopped_and_gone_on_is_bitwise_equal(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"precision": "bf16", "weights": "bf16-master", "ema_decay": 0.9, "clip": 0.5}
    whole = run(tmp_path / "whole", **changes)
    for stop in (13, 5):
        with pytest.raises(Stopped):
            run(tmp_path / "parts", batches=StopAt(stop), **changes)
    parts = run(tmp_path / "parts", **changes)
    for name in ("model.safetensors", "weights.safetensors", "optimizer.safetensors"):
        assert same(load_file(whole.checkpoint / name), load_file(parts.checkpoint / name)), name


@bf16
def test_the_passes_see_bf16_and_everything_else_fp32(tmp_path: Path) -> None:
    model = ToyModel()
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    seen: dict[str, torch.dtype] = {}

    def look(name: str) -> Any:
        return lambda module, inputs: seen.update({name: module.weight.dtype})

    with pytest.raises(ConfigError, match="goes with precision bf16, and this run has fp32"):
        run(tmp_path, model=model, weights="bf16-master", precision="fp32")
    narrow = NarrowWeights(model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for name in linears:
        model.get_submodule(name).register_forward_pre_hook(look(name))
    with narrow.in_use(), torch.autocast("cpu", torch.bfloat16):
        model.dropout.eval()
        for _ in range(3):
            model(torch.tensor([[1, 2, 3]])).float().sum().backward()
            assert all(model.get_submodule(name).weight.grad is None for name in linears)
    assert seen == dict.fromkeys(linears, torch.bfloat16)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, before[name])
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
    assert not narrow._sums


@bf16
def test_small_gradients_of_many_micro_batches_are_not_lost() -> None:
    """1 + 1/512 is 1 in bf16: sums in that format would stop growing."""
    model = nn.Linear(1, 1, bias=False)
    narrow = NarrowWeights(model)
    with narrow.in_use():
        for size in (1.0, *[1 / 512] * 256):
            (model(torch.tensor([[size]], dtype=torch.bfloat16))).sum().backward()
    assert model.weight.grad is not None
    assert float(model.weight.grad) == 1.5


@bf16
@pytest.mark.filterwarnings("default")
def test_a_real_network_learns_the_same(tmp_path: Path, tiny_prepared: Path) -> None:
    """Shared layers use a matrix several times in one pass."""
    tiny = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "ffn_size": 32, "max_length": 32, "sharing": "all"}
    options: dict[str, Any] = {f"model.{key}": value for key, value in tiny.items()}
    options |= {"data.length": 32, "data.batch.num_rows": 8, "data.batch.micro_rows": 2, "data.evaluation.num_rows": 4}
    options |= {"train.steps": 4, "train.learning_rate": 0.01, "train.precision": "bf16", "train.eval_every": 2}
    found = {}
    for kind in BOTH:
        values = {**options, "prepared": str(tiny_prepared), "train.weights": kind}
        with signals.catch():
            made = pretrain(
                build_run(PretrainRun, options=values).run,
                tmp_path / kind,
                progress=Progress(stream=StringIO()),
            )
        found[kind] = load_file(Path(made["checkpoint"]) / "model.safetensors"), made["loss"]
    assert same(found["fp32"][0], found["bf16-master"][0])
    assert found["fp32"][1] == found["bf16-master"][1]
