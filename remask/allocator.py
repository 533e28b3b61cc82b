"""Freed memory stays with a process that computes, instead of being given back and zeroed anew for every batch.

In: nothing. Out: glibc's limits raised for this process, unless the environment sets them or another allocator is
loaded. A batch frees and asks for the same large blocks again and again; glibc maps each of them fresh from the kernel,
which fills it with zeros page by page. Making and adding two tensors of 77 MB took 0.3 to 0.4 of the time. Also here:
how many prepared kernels a process keeps that lives long, and an import of torch that is not held up.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
from collections.abc import Iterator

# mallopt's number of a limit -> its value: blocks below it come from the heap, the free end that is kept, the growth.
_LIMITS = {-3: 1 << 30, -1: (1 << 31) - 1, -2: 1 << 28}

_KERNEL_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
# A process that answers texts of any length meets some 600 shapes; 128 kernels are enough for those it meets most.
_NUM_KERNELS = 128


def is_settable() -> bool:
    """Whether glibc's allocator is in charge, with limits that nobody has set."""
    chosen = "malloc" in os.environ.get("LD_PRELOAD", "") or any(name.startswith("MALLOC_") for name in os.environ)
    return platform.libc_ver()[0] == "glibc" and not chosen


def keep_few_kernels() -> None:
    """Bound what oneDNN and torch's layer over it keep of kernels that they prepared for a shape; each would keep
    1,024 of about 0.7 MB. To be called before torch is loaded: they look once."""
    for name in _KERNEL_CACHES:
        os.environ.setdefault(name, str(_NUM_KERNELS))


def keep_freed_memory() -> None:
    if is_settable():
        mallopt = ctypes.CDLL(None).mallopt
        for limit, value in _LIMITS.items():
            mallopt(limit, value)


@contextlib.contextmanager
def no_collecting() -> Iterator[None]:
    """For the import of torch: it makes hundreds of thousands of objects, none of them garbage, and looking for some
    takes 0.25 of 1.8 seconds."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
