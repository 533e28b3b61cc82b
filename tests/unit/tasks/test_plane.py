"""Vectors on a plane: the widest directions, the same map whatever the sign, and the share that it shows."""

from __future__ import annotations

import numpy as np
import pytest

from remask.tasks.plane import plane


def test_a_plane_inside_a_space_is_found_again() -> None:
    generator = np.random.default_rng(0)
    flat = generator.normal(size=(50, 2)) * [5.0, 1.0]
    turned = flat @ np.linalg.qr(generator.normal(size=(8, 8)))[0][:2]
    places, share = plane(turned + 100.0)
    assert share == pytest.approx(1.0)
    gaps = [np.linalg.norm(points[:, None] - points[None], axis=-1) for points in (flat, places)]
    assert gaps[0] == pytest.approx(gaps[1])
    assert places[:, 0].std() > places[:, 1].std()


def test_texts_that_are_all_alike_and_single_texts_have_a_place() -> None:
    places, share = plane(np.ones((3, 4)))
    assert share == 0.0
    assert not places.any()
    assert plane(np.ones((1, 4)))[0].shape == (1, 2)
    assert plane(np.arange(3.0)[:, None])[0].shape == (3, 2)
