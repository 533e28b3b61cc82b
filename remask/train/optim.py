"""Optimizers: AdamW (fused), LAMB, and Muon for the hidden matrices; which parameters decay; state by parameter name.

In: a model and TrainSettings. Out: an `Optimizer` with `step(learning_rate)`, `state()` and `load(state)` whose
tensors are named after the parameters, so that they go into a safetensors file. AdamW as in RoBERTa (b2 0.98, eps
1e-6, decoupled decay, none on biases and norms), LAMB as in arXiv 1904.00962 (v3), Muon as in its author's notes but
with other polynomials (`_QUINTICS`) and the scale that makes one learning rate serve both (0.2 sqrt(max side), arXiv
2502.16982). Where parameters are divided among ranks, all of this is about the own rows, and `Shards` tells what only
whole ones can. Also the schedule: linear warmup and decay is section 2.4 of RoBERTa's paper, `stable` is
warmup-stable-decay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from remask.errors import ConfigError, DataError
from remask.train.settings import TrainSettings
from remask.train.sharding import Shards, own_rows

# a x + b x^3 + c x^5, one after the other: each is the best for what those before it leave of singular values between
# 0.002 and 1 (arXiv 2505.16932), with 2 % of room at both ends for bf16. Together they end within 0.04 of 1.
_QUINTICS = (
    (8.426788, -24.936135, 18.492493),
    (4.037672, -2.889093, 0.521998),
    (3.680993, -2.651957, 0.497571),
    (2.829689, -2.051928, 0.437221),
    (2.028888, -1.395992, 0.378978),
)
_ROOM = 1.01  # of the first: a norm in bf16 may come out too small
_TINY = 1e-14


class Optimizer:
    """One or two torch optimizers behind one learning rate, with their state by parameter name."""

    def __init__(self, model: nn.Module, settings: TrainSettings, shards: Shards | None = None) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        assert named, "a model without trainable parameters"
        # The model's own parameters, or parameters of their own that share the memory of this rank's rows.
        self._divided = {nn.Parameter(own_rows(p)): p for _, p in named} if shards and shards.size > 1 else {}
        owned = list(zip([name for name, _ in named], self._divided or [p for _, p in named], strict=True))
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in owned}
        shapes = {name: tuple(p.shape) for name, p in named}
        self._parts = _build(_by_scale(model, owned, settings), shapes, settings, shards or Shards())

    def step(self, learning_rate: float) -> None:
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = learning_rate * group["scale"]
            part.step()

    def settle_precision(self, name: str) -> None:
        """The number format of the run's products, once it is known."""
        for part in self._parts:
            if isinstance(part, Muon):
                part.dtype = torch.bfloat16 if name == "bf16" else torch.float32

    def zero_grad(self) -> None:
        for part in self._parts:
            part.zero_grad(set_to_none=True)
        for whole in self._divided.values():
            whole.grad = None

    def take_gradients(self) -> None:
        """The own rows of the gradients that the backward passes have left in a divided model."""
        for own, whole in self._divided.items():
            own.grad = None if whole.grad is None else own_rows(whole.grad)

    @property
    def parameters(self) -> list[Tensor]:
        return list(self._names)

    @property
    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._names if parameter.grad is not None]

    def state(self) -> dict[str, Tensor]:
        """`{parameter name}.{moment}` -> tensor, in a fixed order; empty before the first step."""
        by_name: dict[str, Tensor] = {}
        for part in self._parts:
            for parameter, moments in part.state.items():
                for key, tensor in sorted(moments.items()):
                    by_name[f"{self._names[parameter]}.{key}"] = tensor
        return dict(sorted(by_name.items()))

    def load(self, state: Mapping[str, Tensor]) -> None:
        """The state that `state()` gave; every tensor must find its parameter."""
        by_name = {self._names[p]: (part, p) for part in self._parts for g in part.param_groups for p in g["params"]}
        for part in self._parts:
            part.state.clear()
        for name, tensor in state.items():
            owner, _, key = name.rpartition(".")
            if owner not in by_name:
                raise DataError(f"optimizer state for {owner}, which does not learn in this run")
            part, parameter = by_name[owner]
            if key not in _MOMENTS[type(part)]:
                raise ConfigError(
                    f"train.optimizer: the checkpoint's {key} of {owner} is another optimizer's; a run goes on with "
                    "its own, and a new one starts from its model (--init-from)"
                )
            part.state[parameter][key] = tensor.to(parameter.device, copy=True)


def warmup_steps(settings: TrainSettings, num_steps: int) -> int:
    return round(settings.warmup * num_steps) if settings.warmup < 1 else int(settings.warmup)


def lr_fraction(settings: TrainSettings, step: int, num_steps: int) -> float:
    """The share of the peak for update number `step` (the first is 1, the last is `num_steps`).

    The first update of a warmup already moves (1/warmup), and the last one of a decay still does.
    """
    warmup = warmup_steps(settings, num_steps)
    if step <= warmup:
        return step / warmup
    left = (num_steps - step + 1) / (num_steps - warmup + 1)  # just under 1 after the warmup, near 0 at the end
    if settings.schedule == "linear":
        share = left
    elif settings.schedule == "cosine":
        share = 0.5 * (1 + math.cos(math.pi * (1 - left)))
    else:
        decay_steps = max(1, round(settings.decay * num_steps))
        share = min(1.0, (num_steps - step + 1) / (decay_steps + 1))
    return settings.final_lr_fraction + (1 - settings.final_lr_fraction) * share


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Matrices decay; biases, norms and other vectors do not."""
    return parameter.ndim >= 2


def _is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Inside one of several numbered layers, as opposed to embeddings, position tables and heads."""
    return parameter.ndim == 2 and any(part.isdigit() for part in name.split("."))


# Parameters with their names, by the share of the learning rate that they take.
Scaled = Mapping[float, list[tuple[str, nn.Parameter]]]


def _by_scale(model: Any, named: list[tuple[str, nn.Parameter]], settings: TrainSettings) -> Scaled:
    """Layer-wise decay (ULMFiT, ELECTRA): every layer takes a share of the rate of the one above it."""
    if settings.layer_decay == 1.0:
        return {1.0: named}
    scaled: dict[float, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in named:
        scaled.setdefault(settings.layer_decay ** model.layers_above(name), []).append((name, parameter))
    return scaled


def _build(
    scaled: Scaled, shapes: Mapping[str, tuple[int, ...]], settings: TrainSettings, shards: Shards
) -> list[torch.optim.Optimizer]:
    """`shapes`: of whole parameters, of which `scaled` may have only some rows."""
    if settings.optimizer == "muon":
        hidden: dict[tuple[float, tuple[int, ...]], list[nn.Parameter]] = {}
        for scale, named in scaled.items():
            for name, parameter in named:
                if _is_hidden_matrix(name, parameter):
                    hidden.setdefault((scale, shapes[name]), []).append(parameter)
        rest = {s: [(n, p) for n, p in named if not _is_hidden_matrix(n, p)] for s, named in scaled.items()}
        parts: list[torch.optim.Optimizer] = []
        if hidden:
            groups = [{"params": same, "scale": scale, "shape": shape} for (scale, shape), same in hidden.items()]
            parts.append(Muon(groups, momentum=settings.beta1, weight_decay=settings.weight_decay, shards=shards))
        if any(rest.values()):
            parts.append(_adamw(rest, settings))
        return parts
    if settings.optimizer == "lamb":
        betas = (settings.beta1, settings.beta2)
        return [Lamb(_groups(scaled, settings), betas=betas, epsilon=settings.epsilon, shards=shards)]
    return [_adamw(scaled, settings)]


def _groups(scaled: Scaled, settings: TrainSettings) -> list[dict]:
    groups: list[dict] = []
    for scale, named in scaled.items():
        decayed = [p for name, p in named if decays(name, p)]
        free = [p for name, p in named if not decays(name, p)]
        groups += [
            {"params": decayed, "weight_decay": settings.weight_decay, "scale": scale},
            {"params": free, "weight_decay": 0.0, "scale": scale},
        ]
    return [group for group in groups if group["params"]]


def _adamw(scaled: Scaled, settings: TrainSettings) -> torch.optim.Optimizer:
    groups = _groups(scaled, settings)
    fused = groups[0]["params"][0].device.type in ("cpu", "cuda")
    return torch.optim.AdamW(groups, betas=(settings.beta1, settings.beta2), eps=settings.epsilon, fused=fused)


class Lamb(torch.optim.Optimizer):
    """Adam's direction, each tensor's step scaled by |weight| / |direction| (1 for vectors, which have no decay)."""

    def __init__(self, groups: list[dict], *, betas: tuple[float, float], epsilon: float, shards: Shards) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": betas, "epsilon": epsilon})
        self._shards = shards

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.float32)
                    state["mean"] = torch.zeros_like(parameter)
                    state["square"] = torch.zeros_like(parameter)
                state["step"] += 1
                count = float(state["step"])
                state["mean"].lerp_(parameter.grad, 1 - beta1)
                state["square"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
                scale = (state["square"] / (1 - beta2**count)).sqrt_().add_(group["epsilon"])
                direction = (state["mean"] / (1 - beta1**count)).div_(scale)
                trust = 1.0
                if group["weight_decay"] > 0:
                    direction.add_(parameter, alpha=group["weight_decay"])
                if parameter.ndim >= 2:
                    weight_norm, direction_norm = self._shards.norms([parameter, direction])
                    if weight_norm > 0 and direction_norm > 0:
                        trust = weight_norm / direction_norm
                parameter.add_(direction, alpha=-group["lr"] * trust)


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal by polynomials, matrices of one shape (a group) at a time as one batch."""

    def __init__(self, groups: list[dict], *, momentum: float, weight_decay: float, shards: Shards) -> None:
        super().__init__(groups, {"lr": 0.0, "momentum": momentum, "weight_decay": weight_decay})
        self._shards = shards
        self.dtype = torch.float32  # of the products

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            momentum, num_rows = group["momentum"], group["shape"][0]
            moving = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not moving:
                continue
            nesterov = []
            for parameter in moving:
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                state["momentum"].lerp_(parameter.grad, 1 - momentum)
                nesterov.append(torch.lerp(parameter.grad, state["momentum"], momentum).to(self.dtype))
            updates = orthogonalised(self._shards.whole(nesterov, num_rows))
            own, scale = self._shards.rows(num_rows), 0.2 * max(group["shape"]) ** 0.5
            for parameter, update in zip(moving, updates, strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update[own].to(parameter.dtype), alpha=-group["lr"] * scale)


def orthogonalised(matrices_NRC: Tensor) -> Tensor:
    """The nearest half-orthogonal matrices, roughly: singular values all near 1, same singular vectors. Products are
    made in the format of the matrices; bf16 has bits enough, since the result is a rough one anyway.

    Polynomials of the Gram matrix X X' (of the shorter side) times X. For long matrices several quintics become one
    factor, computed on the short side alone. In exact numbers that would do for all five, but the Gram matrix has the
    squares of the singular values, of which bf16 loses the small ones: so it is made anew after the first two."""
    x = matrices_NRC
    short, long = sorted(x.shape[-2:])
    wide = x.shape[-2] == short
    stages = (_QUINTICS[:2], _QUINTICS[2:]) if 2 * long > 3 * short else [(quintic,) for quintic in _QUINTICS]
    for number, quintics in enumerate(stages):
        gram = x @ x.mT if wide else x.mT @ x
        if number > 0:
            factor = _factor(gram, quintics)
        else:
            # The norm of X X' is at least the largest squared singular value, and nearer to it than that of X.
            gram = gram.float()
            largest = _ROOM * gram.flatten(1).norm(dim=1)[:, None, None] + _TINY
            factor = _factor((gram / largest).to(x.dtype), quintics)
            factor = (factor.float() / largest.sqrt()).to(x.dtype)
        x = factor @ x if wide else x @ factor
    return x


def _factor(gram: Tensor, quintics: Sequence[tuple[float, float, float]]) -> Tensor:
    """What X is multiplied with to apply these odd polynomials to its singular values, one after the other."""
    whole: Tensor | None = None
    for number, (a, b, c) in enumerate(quintics):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=-2, dim2=-1).add_(a)
        whole = factor if whole is None else factor @ whole
        if number + 1 < len(quintics):
            gram = factor @ gram @ factor
    assert whole is not None
    return whole


# What each keeps for a parameter.
_MOMENTS: Mapping[type, set[str]] = {
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
    Lamb: {"step", "mean", "square"},
    Muon: {"momentum"},
}


class Average:
    """The exponential moving average of the weights; the first steps weigh alike, so that the start fades soon."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: own_rows(p).detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, parameter in model.named_parameters():
            self.weights[name].lerp_(own_rows(parameter), 1 - decay)

    @torch.no_grad()
    def swap(self, model: nn.Module) -> None:
        """Exchange the model's weights and the averages; twice gives the first state back, bit for bit."""
        for name, parameter in model.named_parameters():
            rows = own_rows(parameter)
            held = rows.detach().clone()
            rows.copy_(self.weights[name])
            self.weights[name].copy_(held)
