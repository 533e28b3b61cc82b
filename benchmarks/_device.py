"""Where a speed script computes: how long and how much memory it takes there, and which attention the peer gets.

A GPU computes while the host goes on, so a clock is read only after `settle`; its memory is what torch's allocator
held at most, that of a CPU the process's own. The peer has its best form: flash attention on GPUs where it is
installed and made for the number format, else torch's fused attention; on CPUs both forms that it has.
"""

from __future__ import annotations

import argparse
import importlib.util

from _rig import forget_peak, memory_mb


def device_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="of both sides")


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def peer_attentions(device: str, precision: str) -> list[str]:
    """transformers' names of what is tried; the fastest counts."""
    if device == "cpu":
        return ["sdpa", "eager"]
    has_flash = importlib.util.find_spec("flash_attn") is not None
    return ["flash_attention_2"] if has_flash and precision == "bf16" else ["sdpa"]


def where(device: str) -> str:
    """What a figure's name ends with: figures of a GPU are no claims about CPUs."""
    return "" if device == "cpu" else f", {device}"


def settle(device: str) -> None:
    """Wait until everything that was asked for is computed."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def begin_memory(device: str) -> float:
    """MB that are held now; the peak is counted anew from here on."""
    if device == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 2**20
    held = memory_mb("VmRSS")
    forget_peak()
    return held


def peak_memory(device: str) -> float:
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    return memory_mb("VmHWM")
