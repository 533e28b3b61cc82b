"""Which device and which number format the products use, probed where a wrong guess would kill the process.

In: the `precision` and `device` of a run. Out: a `Precision` with an autocast context and, for fp16, a loss
scale. On some virtual machines the first bf16 product ends the process with an illegal instruction, so every format
but fp32 is first tried in a child process (`probe`, also used by `remask doctor`). What `auto` takes follows from the
machine alone, never from a speed measured under its load of the moment: the same command gives the same model. Weights,
gradients and optimizer state are fp32 always.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

import torch

from remask.errors import ConfigError, UnavailableError

PROBE_SECONDS = 120
Format = Literal["fp32", "bf16", "fp16", "int8"]  # of the products; int8 only of models that answer

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_PROBE = """
import json, sys, time, torch
name, device = sys.argv[1], sys.argv[2]
dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
def seconds(dtype):
    layer = torch.nn.Linear(512, 512, dtype=dtype, device=device)
    x = torch.randn(512, 512, dtype=dtype, device=device)
    best = 1e9
    for _ in range(5):
        start = time.perf_counter()
        loss = layer(x).float().square().mean()
        loss.backward()
        value = float(loss)
        best = min(best, time.perf_counter() - start)
    assert value == value, "the product is not a number"
    return best
a = torch.randn(4, 32, 32, device=device).to(dtype)
assert torch.allclose((a @ a).float(), a.float() @ a.float(), rtol=0.1, atol=0.5), "wrong products"
print(json.dumps({"ratio": seconds(torch.float32) / seconds(dtype)}))
"""

# int8 products are right everywhere, but a build or a processor without kernels for them takes seconds instead of
# microseconds. That shows at once, and is no question of speed measured under load.
_PROBE_INT8 = """
import json, time, torch
torch.manual_seed(0)
x, w = torch.randint(0, 256, (64, 256), dtype=torch.uint8), torch.randint(-127, 128, (256, 256), dtype=torch.int8)
packed = torch.ops.onednn.qlinear_prepack(w, None)
ones, zeros = torch.ones(256), torch.zeros(256, dtype=torch.int64)
def seconds(run):
    best = 1e9
    for _ in range(5):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best
def product():
    return torch.ops.onednn.qlinear_pointwise(
        x, 1.0, 128, packed, ones, zeros, zeros.float(), 1.0, 0, torch.float32, "none", [], "")
wide, plain = x.float() - 128, w.float()
assert torch.equal(product(), wide @ plain.T), "wrong products"
ratio = seconds(lambda: wide @ plain.T) / seconds(product)
assert ratio > 0.05, f"this processor has no kernel for them, so they take {1 / ratio:.0f} times as long as fp32"
print(json.dumps({"ratio": ratio}))
"""


@functools.cache
def probe(precision: str, device: str = "cpu") -> tuple[bool, str]:
    """Whether products in this format work here, tried in a child process, and why not (or how fast)."""
    if precision == "int8" and not device.startswith("cpu"):
        return False, f"8-bit products are made for CPUs, not for {device}"
    if device.startswith("cuda") and not torch.cuda.is_available():
        return False, "no CUDA device"
    if device.startswith("mps") and not torch.backends.mps.is_available():
        return False, "no MPS device"
    if precision == "fp32":
        return True, "works"
    script = _PROBE_INT8 if precision == "int8" else _PROBE
    command = [sys.executable, "-W", "ignore", "-c", script, precision, device]
    try:
        child = subprocess.run(command, capture_output=True, timeout=PROBE_SECONDS, text=True, env=dict(os.environ))
    except subprocess.TimeoutExpired:
        return False, f"a trial product did not end within {PROBE_SECONDS} s"
    if child.returncode < 0:
        return False, f"a product ends the process with {signal.Signals(-child.returncode).name} here"
    if child.returncode:
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        return False, f"a trial product failed: {last[:200]}"
    ratio = float(json.loads(child.stdout.strip().splitlines()[-1])["ratio"])
    return True, f"works, {ratio:.1f} times the speed of fp32"


def choose_device(device: str, key: str = "device") -> torch.device:
    """The device to use. `key`: what the user's setting is called."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"{key} = {device}: must be auto, cpu, cuda, cuda:N or mps") from None
    works, reason = probe("fp32", device)
    if not works:
        raise UnavailableError(f"{key} = {device}: {reason} on this machine; device auto takes what there is")
    return chosen


def choose_precision(
    precision: str, device: torch.device | str, used: str | None = None, key: str = "precision"
) -> tuple[Format, str]:
    """The format to use and a word on why. A format asked for by name is used or refused, never replaced.

    `used`: what this run has used so far. `auto` keeps it wherever it works: a run that moved to another machine must
    not change its format half-way.
    """
    if precision == "fp32":
        return "fp32", "as asked"
    if precision != "auto":
        works, reason = probe(precision, str(device))
        if not works:
            raise UnavailableError(f"{key} = {precision}: {reason}; use fp32 or auto")
        return cast(Format, precision), "as asked"
    if used is not None and probe(used, str(device))[0]:
        return cast(Format, used), "as this run began"
    device = torch.device(device)
    if not _has_bf16(device):
        return "fp32", f"bf16 products are not made for {'this processor' if device.type == 'cpu' else 'this device'}"
    works, reason = probe("bf16", str(device))
    return ("bf16", f"bf16 {reason}") if works else ("fp32", f"bf16 does not work here: {reason}")


def _has_bf16(device: torch.device) -> bool:
    """Whether the hardware itself multiplies bf16; emulated products would be slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return True
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return "bf16" in file.read(1 << 16)
    except OSError:
        return False


def base_format() -> Format:
    """What a CPU model in int8 computes in outside of its 8-bit products: bf16 where the processor multiplies it."""
    return "bf16" if _has_bf16(torch.device("cpu")) and probe("bf16")[0] else "fp32"


def autocast(name: str, device_type: str) -> contextlib.AbstractContextManager[object]:
    """Inside, matrix products are made in this format; everything else stays fp32."""
    return contextlib.nullcontext() if name == "fp32" else torch.autocast(device_type, dtype=FORMATS[name])


@dataclass
class Precision:
    """The format in use. fp16 needs its gradients scaled: the scale halves on overflow, doubles after calm."""

    name: str
    device: torch.device
    scale: float = field(default=1.0)
    calm_steps: int = 0

    GROW_AFTER = 1000
    FIRST_SCALE = 65536.0

    def __post_init__(self) -> None:
        if self.name == "fp16":
            self.scale = self.FIRST_SCALE

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        return autocast(self.name, self.device.type)

    def finite(self) -> None:
        """A step went through: after enough of them the scale doubles (fp16 only)."""
        if self.name == "fp16":
            self.calm_steps += 1
            if self.calm_steps >= self.GROW_AFTER:
                self.scale, self.calm_steps = min(self.scale * 2, self.FIRST_SCALE * 256), 0

    def overflowed(self) -> bool:
        """Gradients were not finite: whether a smaller scale may be the answer (fp16 only)."""
        if self.scale <= 1:
            return False
        self.scale, self.calm_steps = self.scale / 2, 0
        return True

    def state(self) -> dict[str, str | float]:
        return {"name": self.name, "scale": self.scale, "calm_steps": self.calm_steps}

    def load(self, state: Mapping[str, str | float]) -> None:
        self.scale, self.calm_steps = float(state["scale"]), int(state["calm_steps"])


def memory_of(device: torch.device) -> float | None:
    """Bytes that a process may take there: all of a GPU's; of the machine's, its share of the ranks that run here."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    if device.type != "cpu" or not hasattr(os, "sysconf"):
        return None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@functools.cache
def products_per_second(device: torch.device, precision: str = "fp32") -> float:
    """Floating-point operations a second in matrix products: what time estimates and shares of the peak refer to.
    Measured once a process: a run asks twice, and a study or a search has many."""
    size = 1024
    matrix = torch.ones(size, size, device=device, dtype=FORMATS[precision])
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        float((matrix @ matrix)[0, 0])
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
