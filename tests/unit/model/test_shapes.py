"""Few sizes: close above what is needed, and few of them."""

from __future__ import annotations

from remask.model.shapes import round_size


def test_sizes_are_few_and_close_above_what_is_needed() -> None:
    sizes = {round_size(size) for size in range(1024, 2049)}
    assert len(sizes) <= 17
    for size in range(5000):
        rounded = round_size(size)
        assert size <= rounded <= size * 17 / 16
        assert round_size(rounded) == rounded
    assert [round_size(size) for size in (0, 1, 31, 33, 1025)] == [0, 1, 31, 34, 1088]
