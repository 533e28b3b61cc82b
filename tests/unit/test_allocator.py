"""glibc's limits are raised once, unless someone chose otherwise. What that does depends on where the heap lies."""

from __future__ import annotations

import gc
import os
import platform

import pytest

from remask import allocator


class Library:
    """A C library that notes what it is told."""

    def __init__(self, name: str | None) -> None:
        self.told: dict[int, int] = {}
        self.mallopt = self.told.__setitem__


def told(monkeypatch: pytest.MonkeyPatch, **environment: str) -> dict[int, int]:
    library = Library(None)
    for name in [name for name in os.environ if name.startswith("MALLOC_") or name == "LD_PRELOAD"]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: library)
    allocator.keep_freed_memory()
    return library.told


def test_large_blocks_stay_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    limits = told(monkeypatch)
    assert limits[-3] == 2**30  # M_MMAP_THRESHOLD of malloc.h
    assert max(limits.values()) < 2**31, "mallopt takes an int"


@pytest.mark.parametrize("environment", [{"MALLOC_TOP_PAD_": "0"}, {"LD_PRELOAD": "/usr/lib/libtcmalloc.so"}])
def test_a_choice_of_the_user_stays(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    assert told(monkeypatch, **environment) == {}


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    assert told(monkeypatch) == {}


def test_collecting_stops_for_an_import_and_goes_on_as_it_was() -> None:
    assert gc.isenabled()
    with allocator.no_collecting():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with allocator.no_collecting():
            pass
        assert not gc.isenabled()  # somebody else's choice
    finally:
        gc.enable()
