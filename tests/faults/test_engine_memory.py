"""FAULTS row 34: texts of odd lengths, one after the other. The engine keeps a bounded number of prepared kernels, so
its memory levels off; in full counts (`make soak ROWS=34`) the curve is printed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from remask.model.network import build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.model.store import save_model

from ..serving import SMALL, resident_bytes, serving
from .soak import tries

LONGEST = 500
MOST_GROWTH = 1.6  # of the memory after the start, where the engine has answered its first texts


@pytest.mark.timeout(7200)
def test_odd_lengths_do_not_grow_the_engine(tiny_tokenizers: dict[str, Path], tmp_path: Path) -> None:
    settings = ModelSettings(**{**SMALL, "max_length": LONGEST + 12})
    network = build_network(settings, HeadSettings(num_classes=2), seed=1)
    save_model(tmp_path / "model", network, tiny_tokenizers["byte-bpe"], ("a", "b"))
    draw, count = random.Random(34), tries(34, 200, 50_000)
    curve: list[tuple[int, int]] = []
    with serving(tmp_path / "model") as served:
        engine = served.engine()
        for number in range(count + 1):
            texts = ["a " * draw.randrange(1, LONGEST // 2) for _ in range(draw.choice((1, 1, 2, 3, 5)))]
            assert len(served.outputs("classify", texts)) == len(texts)
            if number in (1, 10, 100, 200, 500, 1_000) or number % 5_000 == 0:
                curve.append((number, resident_bytes(engine) >> 20))
    print("requests, MB:", curve)
    started = curve[1][1]
    assert max(size for _, size in curve) < MOST_GROWTH * started, curve
