"""Tensors of a checkpoint by rows: what any ranks wrote, any other number of them reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from remask.errors import DataError
from remask.train.distributed import World
from remask.train.sharding import Shards
from remask.train.slices import Slice, Stored, join, load_model, load_state, state_slices, write_rank


def shares(size: int) -> list[Shards]:
    """Of worlds that exist on paper only."""
    return [Shards(World(rank, size)) for rank in range(size)]


def tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"table.weight": torch.randn(11, 3), "table.bias": torch.randn(5), "last.weight": torch.randn(1, 4)}


def written(folder: Path, size: int) -> Stored:
    """Weights and a moment of each with a counter, by so many ranks."""
    whole = tensors()
    shapes = {name: tuple(tensor.shape) for name, tensor in whole.items()}
    for shards in shares(size):
        own = {name: tensor[shards.rows(len(tensor))] for name, tensor in whole.items()}
        state = {f"{name}.mean": 2 * rows for name, rows in own.items()}
        state |= {f"{name}.step": torch.tensor(7.0) for name in own}
        moments = state_slices(state, shapes, shards)
        weights = {
            name: Slice(rows, shapes[name], shards.rows(shapes[name][0]).start)
            for name, rows in own.items()
            if len(rows)
        }
        write_rank(folder, shards.rank, {"weights": weights, "optimizer": moments})
    return Stored(folder, [path.name for path in folder.iterdir()])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 12])
def test_every_row_is_somebody_s_once(size: int) -> None:
    for num_rows in (1, 2, 5, 11, 12):
        slices = [shards.rows(num_rows) for shards in shares(size)]
        assert [row for one in slices for row in range(num_rows)[one]] == list(range(num_rows))


@pytest.mark.parametrize(("writers", "readers"), [(1, 3), (3, 1), (2, 4), (4, 3), (8, 2)])
def test_any_number_of_ranks_reads_what_any_other_wrote(tmp_path: Path, writers: int, readers: int) -> None:
    stored, whole = written(tmp_path, writers), tensors()
    assert stored.names("weights") == sorted(whole)
    for shards in shares(readers):
        state = load_state(stored, "optimizer", shards)
        assert len(state) == 6
        for name, tensor in whole.items():
            rows = shards.rows(len(tensor))
            assert stored.read("weights", name, rows).equal(tensor[rows])
            assert state[f"{name}.mean"].equal(2 * tensor[rows])
            assert state[f"{name}.step"].equal(torch.tensor(7.0))
    join(tmp_path, writers, "weights")
    joined = load_file(tmp_path / "model.safetensors")
    assert joined.keys() == whole.keys()
    assert all(joined[name].equal(whole[name]) for name in whole)


def test_counters_are_written_once(tmp_path: Path) -> None:
    written(tmp_path, 2)
    assert "optimizer/table.bias.step" in json.loads((tmp_path / "rank-00000.json").read_text())
    assert "optimizer/table.bias.step" not in json.loads((tmp_path / "rank-00001.json").read_text())


def test_whole_files_are_read_alike(tmp_path: Path) -> None:
    whole = tensors()
    save_file(whole, tmp_path / "model.safetensors")
    save_file({f"{name}.mean": tensor for name, tensor in whole.items()}, tmp_path / "optimizer.safetensors")
    stored = Stored(tmp_path, ["model.safetensors", "optimizer.safetensors", "state.json"])
    rows = shares(2)[1].rows(11)
    assert stored.read("weights", "table.weight", rows).equal(whole["table.weight"][6:])
    assert load_state(stored, "optimizer", shares(2)[1])["table.weight.mean"].equal(whole["table.weight"][6:])


def test_what_is_missing_or_wrong_is_said(tmp_path: Path) -> None:
    written(tmp_path, 3)
    for name in ("rank-00001.json", "rank-00001.safetensors"):
        (tmp_path / name).unlink()
    stored = Stored(tmp_path, [path.name for path in tmp_path.iterdir()])
    with pytest.raises(DataError, match=r"rows 4 to 11 of weights table\.weight are in no file"):
        stored.read("weights", "table.weight")
    model = nn.ModuleDict({"table": nn.Linear(3, 11), "other": nn.Linear(2, 2)})
    with pytest.raises(DataError, match=r"other\.weight is missing.*last\.weight is not part.*table\.bias is \(5,\)"):
        load_model(model, stored, "weights", Shards())


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"weights/x": {"shape": [1], "offset": [0]}}', '{"weights/table.bias": {"shape": [9]}}']
)
def test_a_damaged_table_is_refused(tmp_path: Path, text: str) -> None:
    written(tmp_path, 2)
    (tmp_path / "rank-00001.json").write_text(text)
    with pytest.raises(DataError, match="damaged"):
        Stored(tmp_path, [path.name for path in tmp_path.iterdir()])
