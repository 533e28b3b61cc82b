"""Batches: every example once a pass, the same rows and masks for any ranks, micro-batches and resume point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remask.config import dump
from remask.data.batches import Batches, open_batches
from remask.data.ramp import Ramp
from remask.data.settings import BatchSettings, DataSettings
from remask.errors import ConfigError, DataError
from remask.schema import Batch


def settings_of(**changes: Any) -> DataSettings:
    """DataSettings with dotted changes, small by default."""
    values: dict[str, Any] = {"length": 32, "batch": {"num_rows": 8, "micro_rows": 4}}
    for key, value in changes.items():
        place = values
        *path, last = key.split("__")
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return DataSettings.model_validate(values)


def run(batches: Batches, steps: int) -> list[list[Batch]]:
    cursor, found = batches.first_cursor(), []
    for _ in range(steps):
        taken, cursor = batches.take(cursor)
        found.append(taken)
    return found


def rows_of(batches: list[Batch]) -> list[tuple[int, bytes, tuple[tuple[int, int], ...]]]:
    """Per row: its id, its ids without padding, and what is predicted where."""
    found = []
    for batch in batches:
        width = batch.input_ids_BS.shape[1]
        predicted: dict[int, list[tuple[int, int]]] = {}
        for position, label in zip(batch.masked_positions_M.tolist(), batch.masked_labels_M.tolist(), strict=True):
            predicted.setdefault(position // width, []).append((position % width, label))
        for row, (number, length) in enumerate(
            zip(batch.example_ids_B.tolist(), batch.lengths_B.tolist(), strict=True)
        ):
            ids = batch.input_ids_BS[row, :length].tobytes()
            found.append((number, ids, tuple(predicted.get(row, ()))))
    return found


def originals(batch: Batch) -> list[list[int]]:
    ids = batch.input_ids_BS.copy().reshape(-1)
    ids[batch.masked_positions_M] = batch.masked_labels_M
    rows = ids.reshape(batch.input_ids_BS.shape)
    return [row[:length].tolist() for row, length in zip(rows, batch.lengths_B, strict=True)]


FORMATS = [
    {},
    {"format": "doc-sentences"},
    {"format": "doc-sentences", "pack_documents": True},
    {"format": "segment-pair", "sentence_loss": "nsp"},
    {"format": "sentence-pair", "sentence_loss": "sop"},
    {"format": "fixed-blocks"},
]


@pytest.mark.parametrize("changes", FORMATS, ids=str)
def test_every_example_once_a_pass_and_source(prepared: Path, vocabulary: Any, changes: dict[str, Any]) -> None:
    batches = open_batches(prepared, settings_of(**changes), vocabulary, seed=1)
    per_source = [len(examples) for examples in batches.phases[0].examples]
    seen: dict[tuple[int, int], list[int]] = {}
    cursor = batches.first_cursor()
    for _ in range(3 * batches.num_examples // 8 + 1):
        chosen, cursor = batches.plan(cursor)
        for source, one_pass, row in zip(chosen.sources, chosen.passes, chosen.rows, strict=True):
            seen.setdefault((int(source), int(one_pass)), []).append(int(row))
    for source, count in enumerate(per_source):
        for one_pass in range(3):
            assert sorted(seen[source, one_pass]) == list(range(count))
        assert seen[source, 0] != seen[source, 1]


RAMP = {"batch__num_rows": 16, "batch__ramp_from": 4, "batch__ramp_steps": 0.5}
TOKEN_BATCHES = {"batch__num_tokens": 300, "format": "doc-sentences"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch__bucket_steps": 4},
        TOKEN_BATCHES,
        {**TOKEN_BATCHES, "batch__bucket_steps": 4},
        {"masking__unit": "span"},
        RAMP,
        {**RAMP, "batch__bucket_steps": 4, "format": "doc-sentences"},
    ],
    ids=str,
)
def test_ranks_and_micro_batches_change_nothing(prepared: Path, vocabulary: Any, changes: dict[str, Any]) -> None:
    plain = run(open_batches(prepared, settings_of(**changes), vocabulary, seed=1, total_steps=12), 12)
    wanted = [sorted(rows_of(step)) for step in plain]
    for world_size, micro_rows, pad_multiple in ((1, 1, 1), (2, 1, 8), (2, 3, 8), (4, 2, 32), (4, 1, 8)):
        changed = settings_of(**changes, batch__micro_rows=micro_rows, batch__pad_multiple=pad_multiple)
        world = {"world_size": world_size, "total_steps": 12}
        ranks = [
            run(open_batches(prepared, changed, vocabulary, seed=1, rank=rank, **world), 12)
            for rank in range(world_size)
        ]
        for step in range(12):
            assert sorted(row for rank in ranks for row in rows_of(rank[step])) == wanted[step]
            assert len({len(rank[step]) for rank in ranks}) == 1
            assert all(batch.num_rows for rank in ranks for batch in rank[step])


def test_every_rank_reads_its_share_of_every_source(prepared: Path, vocabulary: Any) -> None:
    """Weights of one to three come as a pattern of four, the number of ranks here."""
    settings = settings_of(source_weights={"wiki": 1.0, "novels": 3.0})
    for rank in range(4):
        batches = open_batches(prepared, settings, vocabulary, seed=1, rank=rank, world_size=4)
        taken = [number for step in run(batches, 80) for batch in step for number in batch.example_ids_B.tolist()]
        assert Counter(number >> 48 for number in taken) == {0: 40, 1: 120}


@pytest.mark.parametrize("changes", [{}, TOKEN_BATCHES, {"batch__bucket_steps": 3}], ids=str)
def test_resume_anywhere(prepared: Path, vocabulary: Any, changes: dict[str, Any]) -> None:
    batches = open_batches(prepared, settings_of(**changes), vocabulary, seed=1)
    cursors, cursor = [], batches.first_cursor()
    wanted = []
    for _ in range(40):
        cursors.append(cursor)
        taken, cursor = batches.take(cursor)
        wanted.append(rows_of(taken))
    for step in (39, 7, 23, 0):
        again = open_batches(prepared, settings_of(**changes), vocabulary, seed=1)
        assert rows_of(again.take(cursors[step])[0]) == wanted[step]


@pytest.mark.parametrize("changes", [{}, TOKEN_BATCHES, {"batch__bucket_steps": 3}], ids=str)
def test_threads_may_ask_together(prepared: Path, vocabulary: Any, changes: dict[str, Any]) -> None:
    """The loop fetches ahead in a thread of its own."""
    settings = settings_of(**changes, batch__num_rows=512, batch__micro_rows=64)
    batches = open_batches(prepared, settings, vocabulary, seed=1)
    cursors = [batches.first_cursor()]
    for _ in range(20):
        cursors.append(batches.plan(cursors[-1])[1])
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda cursor: rows_of(batches.take(cursor)[0]), cursors * 2))
    alone = [rows_of(open_batches(prepared, settings, vocabulary, seed=1).take(cursor)[0]) for cursor in cursors]
    assert together == alone * 2


def test_a_step_far_out_is_found_at_once(prepared: Path, vocabulary: Any) -> None:
    """No state is walked through: what a step needs does not grow with its number."""
    batches = open_batches(prepared, settings_of(), vocabulary, seed=1)
    far = 10**12
    chosen, following = batches.plan({"step": far})
    assert following == {"step": far + 1}
    assert abs(int(chosen.passes[0]) - far * 8 // batches.num_examples) <= 1
    (first, second), _ = batches.take({"step": far})
    assert first.num_rows == second.num_rows == 4


def test_token_batches_are_of_one_size(prepared: Path, vocabulary: Any) -> None:
    changes = {"format": "doc-sentences", "shorten_prob": 1.0, "shorten_to": 8, "length": 64}
    for bucket_steps in (1, 8):
        settings = settings_of(**changes, batch__num_tokens=600, batch__bucket_steps=bucket_steps)
        sizes = [
            sum(b.num_tokens for b in step) for step in run(open_batches(prepared, settings, vocabulary, seed=1), 60)
        ]
        assert 0.8 * 600 < min(sizes) <= max(sizes) < 1.2 * 600
        assert 0.95 * 600 < np.mean(sizes) < 1.05 * 600


def test_a_token_batch_with_a_row_more_than_micro_rows_is_one_pass(prepared: Path, vocabulary: Any) -> None:
    settings = settings_of(format="full-sentences", length=256, batch__num_tokens=8 * 256, batch__micro_rows=8)
    batches = open_batches(prepared, settings, vocabulary, seed=1)
    steps = run(batches, 60)
    assert any(step[0].num_rows == 9 for step in steps if len(step) == 1)
    assert max(batch.input_ids_BS.size for step in steps for batch in step) <= batches.pass_tokens == 9 * 256


def test_the_smallest_token_batches_still_have_a_row_for_every_rank(prepared: Path, vocabulary: Any) -> None:
    for bucket_steps in (1, 2, 3):
        settings = settings_of(format="sentence-pair", batch__num_tokens=137, batch__bucket_steps=bucket_steps)
        ranks = [open_batches(prepared, settings, vocabulary, seed=1, rank=rank, world_size=4) for rank in range(4)]
        seen = 0
        for steps in zip(*(run(rank, 60) for rank in ranks), strict=True):
            assert all(batch.num_rows for step in steps for batch in step)
            seen += sum(batch.num_tokens for step in steps for batch in step)
        assert abs(seen / (60 * 137) - 1) < 0.1


def test_buckets_waste_less_padding(prepared: Path, vocabulary: Any) -> None:
    def padded(bucket_steps: int) -> int:
        settings = settings_of(
            format="doc-sentences", length=64, batch__bucket_steps=bucket_steps, batch__pad_multiple=1
        )
        steps = run(open_batches(prepared, settings, vocabulary, seed=1), 32)
        return sum(batch.input_ids_BS.size - batch.num_tokens for step in steps for batch in step)

    assert padded(16) < 0.4 * padded(1)


def test_padding(prepared: Path, vocabulary: Any) -> None:
    for multiple, pad in ((1, "longest"), (8, "longest"), (1, "length")):
        settings = settings_of(format="doc-sentences", length=30, batch__pad_multiple=multiple, batch__pad=pad)
        for step in run(open_batches(prepared, settings, vocabulary, seed=1), 5):
            for batch in step:
                width, longest = batch.input_ids_BS.shape[1], int(batch.lengths_B.max())
                assert width == (30 if pad == "length" else min(-(-longest // multiple) * multiple, 30))
                at = np.arange(width) >= batch.lengths_B[:, None]
                assert (batch.input_ids_BS[at] == vocabulary.pad_id).all()


def test_source_weights(prepared: Path, vocabulary: Any) -> None:
    settings = settings_of(source_weights={"wiki": 1.0, "novels": 3.0}, length=64)
    batches = open_batches(prepared, settings, vocabulary, seed=1)
    cursor, sources, seen = batches.first_cursor(), Counter(), {}
    for _ in range(100):
        chosen, cursor = batches.plan(cursor)
        sources.update(chosen.sources.tolist())
        for source, one_pass, row in zip(chosen.sources, chosen.passes, chosen.rows, strict=True):
            seen.setdefault((int(source), int(one_pass)), []).append(int(row))
    assert sources == {0: 200, 1: 600}
    assert all(len(set(rows)) == len(rows) for rows in seen.values())
    last_novels = max(one_pass for source, one_pass in seen if source == 1)
    assert last_novels >= 1, "the smaller source must come round more often"
    with pytest.raises(ConfigError, match="no source 'books'"):
        open_batches(prepared, settings_of(source_weights={"books": 1.0}), vocabulary, seed=1)


def test_short_rows_first(prepared: Path, vocabulary: Any) -> None:
    settings = settings_of(short_steps=0.9, short_length=16, length=64, batch__pad="length")
    batches = open_batches(prepared, settings, vocabulary, seed=1, total_steps=20)
    widths = [step[0].input_ids_BS.shape[1] for step in run(batches, 20)]
    assert widths == [16] * 18 + [64] * 2
    ids = {number for step in run(batches, 20) for batch in step for number in batch.example_ids_B.tolist()}
    for number in ids:
        assert batches.example(number, 0).example_ids_B.tolist() == [number]
    tokens = settings_of(short_steps=0.5, short_length=16, length=64, batch__num_tokens=200)
    batches = open_batches(prepared, tokens, vocabulary, seed=1, total_steps=10)
    assert [max(b.lengths_B.max() for b in step) <= 16 for step in run(batches, 10)] == [True] * 5 + [False] * 5
    unknown = open_batches(prepared, settings, vocabulary, seed=1)
    assert unknown.take({"step": 19})[0][0].input_ids_BS.shape[1] == 16, "until the end is known, as at the start"
    assert unknown.with_steps(20).take({"step": 19})[0][0].input_ids_BS.shape[1] == 64
    # A run by the clock learns its end when short rows should be over already: the long ones start with their first.
    short = open_batches(prepared, tokens, vocabulary, seed=1)
    cursor = short.first_cursor()
    for _ in range(47):
        cursor = short.plan(cursor)[1]
    rows, following = short.with_steps(50).plan(cursor)
    long = open_batches(prepared, tokens, vocabulary, seed=1, total_steps=50)
    assert rows.keys.tolist() == long.plan({"step": 47, "window": 0, "batch": 0})[0].keys.tolist()
    assert following == {"step": 48, "window": 0, "batch": 1, "short": False}


GROWING = [
    {},
    {"batch__bucket_steps": 3, "format": "doc-sentences"},
    {"short_steps": 0.6, "short_length": 16},
    {"short_steps": 0.3, "short_length": 16, "batch__bucket_steps": 4},
]


@pytest.mark.parametrize("changes", GROWING, ids=str)
def test_a_growing_batch_reads_every_example_once_a_pass(
    prepared: Path, vocabulary: Any, changes: dict[str, Any]
) -> None:
    """In each row length by itself, and the same from any cursor."""
    steps = 150
    settings = settings_of(**{**RAMP, **changes})
    batches = open_batches(prepared, settings, vocabulary, seed=1, total_steps=steps)
    cursor, cursors, taken = batches.first_cursor(), [], []
    for _ in range(steps):
        cursors.append(cursor)
        chosen, cursor = batches.plan(cursor)
        taken.append(chosen)
    sizes = [len(chosen.rows) for chosen in taken]
    assert sizes == [4] * 25 + [8] * 25 + [12] * 25 + [16] * 75
    short = round(settings.short_steps * steps)
    for phase, part in ((batches.phases[0], taken[:short]), (batches.phases[-1], taken[short:])):
        seen = Counter((s, p, r) for one in part for s, p, r in zip(one.sources.tolist(), one.passes.tolist(),
                                                                    one.rows.tolist(), strict=True))  # fmt: skip
        assert not seen or max(seen.values()) == 1
        for source, examples in enumerate(phase.examples):
            passes = {p for s, p, _ in seen if s == source}
            for done in range(max(passes, default=0)):  # all but the last, which is open
                bucketed_over_the_end = settings.batch.bucket_steps > 1 and done == max(passes) - 1
                whole = sum(1 for s, p, _ in seen if (s, p) == (source, done)) == len(examples)
                assert whole or bucketed_over_the_end
    for step in (149, 3, 26, 77):
        again = open_batches(prepared, settings, vocabulary, seed=1, total_steps=steps).plan(cursors[step])[0]
        assert again.keys.tolist() == taken[step].keys.tolist()
    rows = sum(sizes)
    assert sum(number for _, number in batches._rows_in(steps)) == rows
    mean = {True: batches.phases[0].mean_size, False: batches.phases[-1].mean_size}
    tokens = sum(size * mean[step < short] for step, size in enumerate(sizes))
    assert batches.tokens_in(steps) == pytest.approx(tokens)
    read = sum(size / batches.phases[0 if step < short else -1].num_examples for step, size in enumerate(sizes))
    assert batches.passes_in(steps) == pytest.approx(read)


def test_the_staircase_in_closed_form_is_its_sum() -> None:
    for num_rows, first, share, steps in (
        (8192, 256, 0.1, 5000),
        (12, 4, 0.33, 100),
        (8, 8, 0.5, 10),
        (100, 1, 1.0, 7),
    ):
        settings = BatchSettings(num_rows=num_rows, ramp_from=first, ramp_steps=share)
        ramp = Ramp(settings, steps)
        rows = [ramp.rows(step) for step in range(steps)]
        assert [ramp.before(step) for step in range(steps + 1)] == [0, *np.cumsum(rows).tolist()]
        assert rows == sorted(rows)
        assert all(number % first == 0 for number in rows)
        assert ramp.rows(steps) == num_rows
    assert Ramp(settings, None).rows(10**9) == 1, "until the end is known, as at the start"


def test_stretches_are_what_the_steps_are(prepared: Path, vocabulary: Any) -> None:
    plain = open_batches(prepared, settings_of(), vocabulary, seed=1)
    ((share, first, last),) = plain.stretches()
    assert (share, first is last) == (1.0, True)
    both = settings_of(**RAMP, short_steps=0.9, short_length=16, length=64, batch__pad="length")
    found = open_batches(prepared, both, vocabulary, seed=1).stretches()
    kinds = []
    for share, *ends in found:
        shapes = [[np.concatenate([b.input_ids_BS for b in one.take({"step": s})[0]]).shape for s in (0, 5)]
                  for one in ends]  # fmt: skip
        assert all(a == b for a, b in shapes)
        kinds.append((share, shapes[0][0], shapes[1][0]))
    assert [kind[0] for kind in kinds] == pytest.approx([0.5, 0.4, 0.1])
    assert [kind[1:] for kind in kinds] == [((4, 16), (12, 16)), ((16, 16), (16, 16)), ((16, 64), (16, 64))]
    assert found[1][1] is found[1][2]


def test_rate_schedule_follows_the_steps(prepared: Path, vocabulary: Any) -> None:
    for schedule, middle in (("linear", 0.3), ("cosine", 0.3)):
        settings = settings_of(
            masking__rate=0.5,
            masking__final_rate=0.1,
            masking__schedule=schedule,
            batch__num_rows=400,
            batch__micro_rows=400,
        )
        batches = open_batches(prepared, settings, vocabulary, seed=1, total_steps=11)
        rates = []
        for (batch,) in run(batches, 11):
            special = np.isin(np.array([i for row in originals(batch) for i in row]), vocabulary.special_ids).sum()
            rates.append(len(batch.masked_positions_M) / (batch.num_tokens - special))
        assert np.allclose([rates[0], rates[5], rates[10]], [0.5, middle, 0.1], atol=0.01)
        assert all(np.diff(rates) < 0)
        quarter = 0.4 if schedule == "linear" else 0.1 + 0.4 * (1 + np.cos(np.pi * 0.25)) / 2
        assert abs(np.interp(2.5, range(11), rates) - quarter) < 0.01
    batches = open_batches(prepared, settings, vocabulary, seed=1)
    at_start = len(batches.take({"step": 10})[0][0].masked_positions_M)
    assert len(batches.with_steps(11).take({"step": 10})[0][0].masked_positions_M) < 0.3 * at_start


@pytest.mark.parametrize("repeat,same", [("static", {1, 2, 3, 4}), ("copies", {2, 4}), ("dynamic", set())])
def test_masks_repeat_as_asked(prepared: Path, vocabulary: Any, repeat: str, same: set[int]) -> None:
    settings = settings_of(masking__repeat=repeat, masking__num_copies=2)
    batches = open_batches(prepared, settings, vocabulary, seed=1)
    number = int(batches.batch_of_epoch(0, 0).example_ids_B[0])
    masks = [rows_of([batches.example(number, epoch)]) for epoch in range(5)]
    assert {epoch for epoch in range(1, 5) if masks[epoch] == masks[0]} == same


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch__bucket_steps": 4, "format": "doc-sentences"},
        {"batch__num_tokens": 300},
        {"batch__num_tokens": 300, "batch__bucket_steps": 4, "format": "doc-sentences"},
        {"source_weights": {"wiki": 1.0, "novels": 3.0}},
        {"source_weights": {"wiki": 1.0}, "batch__num_tokens": 300},
        {"masking__final_rate": 0.5, "masking__schedule": "linear", "batch__num_tokens": 300},
        {"short_steps": 0.5, "short_length": 16},
        {"short_steps": 0.5, "short_length": 16, "batch__num_tokens": 300},
        {"batch__ramp_from": 2, "batch__ramp_steps": 0.9},
        {"batch__ramp_from": 2, "batch__ramp_steps": 0.9, "short_steps": 0.3, "short_length": 16},
    ],
    ids=str,
)
def test_an_epoch_in_batches_is_what_training_takes(prepared: Path, vocabulary: Any, changes: dict[str, Any]) -> None:
    batches = open_batches(prepared, settings_of(**changes), vocabulary, seed=1, total_steps=120)
    taken: dict[int, list[Any]] = {0: [], 1: [], 2: [], 3: []}
    cursor, read = batches.first_cursor(), 0.0
    assert batches.num_examples % 8, "passes must end inside a step"
    while read < 2.999999:
        epoch = int(read + 1e-9)
        size = batches.phases[0 if batches.take(cursor)[0][0].example_ids_B[0] >> 47 & 1 else -1].num_examples
        step, cursor = batches.take(cursor)
        taken[epoch].append(rows_of(step))
        read += sum(batch.num_rows for batch in step) / size
    for epoch in range(3):
        for number in (0, 1, len(taken[epoch]) - 1):
            assert rows_of([batches.batch_of_epoch(number, epoch)]) == taken[epoch][number], (epoch, number)
        with pytest.raises(DataError, match=f"0 to {len(taken[epoch]) - 1}$"):
            batches.batch_of_epoch(len(taken[epoch]), epoch)


def test_an_epoch_of_less_than_a_step(prepared: Path, vocabulary: Any) -> None:
    settings = settings_of(batch__num_rows=2000, batch__micro_rows=2000)
    batches = open_batches(prepared, settings, vocabulary, seed=1)
    assert 3 < 2000 / batches.num_examples < 10
    assert rows_of([batches.batch_of_epoch(0, 0)]) == rows_of(batches.take({"step": 0})[0])
    (third,) = [batches.batch_of_epoch(0, 2)]
    assert sorted(third.example_ids_B.tolist()) == sorted(set(third.example_ids_B.tolist()))
    assert third.num_rows == batches.num_examples
    assert set(rows_of([third])) <= set(rows_of(batches.take({"step": 0})[0]))
    with pytest.raises(DataError, match="0 to 0"):
        batches.batch_of_epoch(1, 2)


def test_one_example_and_a_few(prepared: Path, vocabulary: Any) -> None:
    batches = open_batches(prepared, settings_of(), vocabulary, seed=1)
    for epoch in (0, 3):
        for row in rows_of([batches.batch_of_epoch(1, epoch)]):
            assert rows_of([batches.example(row[0], epoch)]) == [row]
    assert batches.batch_of_epoch(0, 0, max_rows=3).num_rows == 3
    for bad in (-1, 1 << 47, 9 << 48, batches.num_examples):
        with pytest.raises(DataError, match="no such example"):
            batches.example(bad, 0)


def test_the_seed_changes_order_and_masks(prepared: Path, vocabulary: Any) -> None:
    one, two = (open_batches(prepared, settings_of(), vocabulary, seed=seed) for seed in (1, 2))
    assert one.batch_of_epoch(0, 0).example_ids_B.tolist() != two.batch_of_epoch(0, 0).example_ids_B.tolist()
    number = int(one.batch_of_epoch(0, 0).example_ids_B[0])
    assert originals(one.example(number, 0)) == originals(two.example(number, 0))
    assert rows_of([one.example(number, 0)]) != rows_of([two.example(number, 0)])


def test_refusals(prepared: Path, vocabulary: Any, prepare: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="evenly to 3 ranks"):
        open_batches(prepared, settings_of(), vocabulary, seed=1, world_size=3)
    with pytest.raises(ConfigError, match="ramp_from = 2: cannot be dealt evenly to 4"):
        open_batches(prepared, settings_of(batch__ramp_from=2), vocabulary, seed=1, world_size=4)
    for changes, words in (({"ramp_from": 3}, "must divide num_rows 8"), ({"ramp_from": 2, "num_tokens": 99}, "rows")):
        with pytest.raises(ValueError, match=words):
            settings_of(**{f"batch__{key}": value for key, value in changes.items()})
    with pytest.raises(ConfigError, match="at least 69"):
        open_batches(prepared, settings_of(batch__num_tokens=40), vocabulary, seed=1, world_size=2)
    with pytest.raises(DataError, match="no text"):
        open_batches(prepare({"a.train.00000": [[]]}), settings_of(), vocabulary, seed=1)
    one = prepare({"a.train.00000": [[[7, 8], [9]]]})
    both = prepare({"a.train.00000": [[[7, 8]]], "b.train.00000": []})
    with pytest.raises(DataError, match="two documents"):
        open_batches(one, settings_of(format="segment-pair", sentence_loss="nsp"), vocabulary, seed=1)
    with pytest.raises(DataError, match="weight"):
        open_batches(both, settings_of(source_weights={"b": 1.0}), vocabulary, seed=1)


def test_describe_and_estimates(prepared: Path, vocabulary: Any) -> None:
    batches = open_batches(prepared, settings_of(length=16), vocabulary, seed=1)
    facts = batches.describe()
    assert facts["examples"] == batches.num_examples == sum(s["examples"] for s in facts["sources"].values())
    assert facts["sources"]["wiki"]["cut_sentences"] > 0
    assert facts["cut_sentences"] == sum(s["cut_sentences"] for s in facts["sources"].values())
    assert facts["length"] == 16
    assert "short_rows" not in facts
    both = open_batches(prepared, settings_of(short_steps=0.5, short_length=16), vocabulary, seed=1).describe()
    assert (both["length"], both["cut_sentences"]) == (32, 0)
    assert both["short_rows"] == {key: facts[key] for key in ("length", "cut_sentences", "sources")}
    tokens = np.mean([sum(batch.num_tokens for batch in step) for step in run(batches, 50)])
    assert abs(batches.tokens_per_step / tokens - 1) < 0.05
    assert abs(batches.steps_per_epoch - batches.num_examples / 8) < 1e-6


BACKGROUND: dict[str, dict[str, Any]] = {
    "sentence_loss": {"format": "segment-pair"},
    "layout": {"format": "segment-pair"},
    "pack_documents": {"format": "doc-sentences"},
    "short_steps": {"short_length": 16},
    "short_length": {"short_steps": 0.5, "length": 160},
    "shorten_to": {"shorten_prob": 0.5},
    "masking.num_copies": {"masking__repeat": "copies"},
    "masking.repeat": {"masking__num_copies": 2},
    "masking.schedule": {"masking__final_rate": 0.4},
    "masking.final_rate": {"masking__schedule": "linear"},
    "masking.random_share": {"masking__mask_share": 0.5},
    "masking.mask_share": {"masking__random_share": 0.0},
    "masking.max_ngram": {"masking__unit": "ngram"},
    "masking.span_stop_prob": {"masking__unit": "span"},
    "masking.max_span": {"masking__unit": "span"},
    "batch.num_tokens": {"format": "doc-sentences"},
    "batch.ramp_steps": {"batch__ramp_from": 2},
    "batch.bucket_steps": {"format": "doc-sentences"},
    "batch.pad": {"format": "doc-sentences"},
    "batch.pad_multiple": {"format": "doc-sentences"},
}


def _all_switches() -> list[Any]:
    from remask.config import switches

    return list(switches(DataSettings))


@pytest.mark.parametrize("one", _all_switches(), ids=lambda one: one.key)
def test_every_switch_is_live(prepared: Path, vocabulary: Any, one: Any) -> None:
    """A data switch changes what a run sees; a speed switch changes nothing but the padding."""
    outcomes = []
    for value in dict.fromkeys([one.default, *one.values]):
        changes = {**BACKGROUND.get(one.key, {}), one.key.replace(".", "__"): value}
        if value in ("nsp", "sop"):
            changes["format"] = "segment-pair"
        if (one.key == "length" and value > 64) or value == "auto":
            continue
        try:
            settings = settings_of(**changes)
        except ValueError as error:
            raise AssertionError(f"{dump(DataSettings())}: {error}") from error
        batches = open_batches(prepared, settings, vocabulary, seed=1, total_steps=180)
        seen = []
        cursor = batches.first_cursor()
        for step in range(170):
            keep = step in (0, 60, 115, 165)
            if keep:
                taken, cursor = batches.take(cursor)
                seen.append(sorted((*row, labels) for batch in taken for row, labels in _with_extras(batch)))
            else:
                _, cursor = batches.plan(cursor)
        outcomes.append(seen)
    if one.effect == "speed":
        assert all(outcome == outcomes[0] for outcome in outcomes)
    else:
        assert all(a != b for i, a in enumerate(outcomes) for b in outcomes[:i]), "two values give the same batches"


def _with_extras(batch: Batch) -> list[tuple[Any, tuple[Any, ...]]]:
    """Rows with their pair labels, segments and documents."""
    extras = []
    for row in range(batch.num_rows):
        length = int(batch.lengths_B[row])
        arrays = (batch.segment_ids_BS, batch.document_ids_BS)
        found = tuple(() if array is None else tuple(array[row, :length].tolist()) for array in arrays)
        label = None if batch.sentence_labels_B is None else int(batch.sentence_labels_B[row])
        extras.append((-1 if label is None else label, *found))
    return list(zip(rows_of([batch]), extras, strict=True))
