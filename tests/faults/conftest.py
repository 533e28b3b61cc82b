"""Fixtures for tests that kill things."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .zygote import Zygote


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Runs remask in forked children that can be killed."""
    made = Zygote(tmp_path_factory.mktemp("zygote"))
    yield made
    made.close()
