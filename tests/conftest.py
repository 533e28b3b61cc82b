"""Fixtures that every test folder shares."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora and checkpoints that some machines have beside the checkout; never needed."""
    if not SHARED_DATA.is_dir():
        pytest.skip("real data is not beside this checkout (../shared/data)")
    return SHARED_DATA
