"""What settings refuse, and what follows from them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from remask.model.settings import ModelSettings


@pytest.mark.parametrize(
    "values, message",
    [
        ({"hidden_size": 10, "num_heads": 3}, "multiple of num_heads"),
        ({"hidden_size": 6, "num_heads": 2, "positions": "rotary"}, "even width"),
        ({"num_layers": 2, "num_groups": 3}, "more than num_layers"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"attention_dropout": -0.1}, "attention_dropout must be"),
        ({"attention_window": 0}, "attention_window must be at least 1"),
        ({"embedding_size": 0}, "embedding_size must be at least 1"),
        ({"num_segments": -1}, "num_segments must be at least 0"),
        ({"num_heads": 0}, "multiple of num_heads"),
        ({"num_layers": 1_001}, "less than or equal to 1000"),
        ({"hidden_size": 1 << 60, "num_heads": 1}, "less than or equal to 16777216"),
        ({"vocab_size": 1 << 25}, "less than or equal to 16777216"),
        ({"init_std": float("inf")}, "finite number"),
    ],
)
def test_what_cannot_be(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelSettings(**values)


def test_groups_of_layers_share() -> None:
    settings = ModelSettings(num_layers=6, num_groups=2, sharing="attention")
    assert [settings.attention_index(i) for i in range(6)] == [0, 0, 0, 1, 1, 1]
    assert [settings.ffn_index(i) for i in range(6)] == list(range(6))


def test_groups_that_do_not_divide_the_layers_fall_as_in_alberts_code() -> None:
    settings = ModelSettings(num_layers=18, num_groups=14, sharing="all")
    theirs = [int(i / (18 / 14)) for i in range(18)]  # transformers' AlbertTransformer
    assert [settings.attention_index(i) for i in range(18)] == theirs != [i * 14 // 18 for i in range(18)]


def test_layers_alternate_between_local_and_global() -> None:
    settings = ModelSettings(num_layers=5, attention_window=7, global_every=3)
    assert [settings.window(i) for i in range(5)] == [None, 7, 7, None, 7]
    everywhere = ModelSettings(attention_window=12)
    assert {everywhere.window(i) for i in range(12)} == {12}


def test_the_position_table_has_robertas_two_extra_rows() -> None:
    assert ModelSettings().num_positions == 514
    assert ModelSettings(position_offset=0).num_positions == 512
