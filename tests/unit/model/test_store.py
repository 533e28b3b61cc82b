"""Models on disk: what is written is what is read, and damage is named."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from remask.artifacts import publish
from remask.errors import DataError, DiskError, MissingInputError
from remask.model.network import build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.model.store import find_model, model_files, open_model, save_model
from remask.schema import Batch

SETTINGS = ModelSettings(vocab_size=40, num_layers=2, hidden_size=16, num_heads=2, ffn_size=24, max_length=12)
HEADS = HeadSettings(masked_lm=True, num_classes=2)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "words"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "vocab.json").write_text("{}")
    return folder


def saved(folder: Path, tokenizer: Path | None = None, seed: int = 1) -> Path:
    save_model(folder, build_network(SETTINGS, HEADS, seed), tokenizer, ["no", "yes"])
    return folder


def checkpoint(run: Path, step: int, seed: int) -> Path:
    """As the training loop writes one."""
    network = build_network(SETTINGS, HEADS, seed)

    def fill(aside: Path) -> dict[str, Any]:
        for name, contents in model_files(SETTINGS, HEADS, None).items():
            assert isinstance(contents, bytes)
            (aside / name).write_bytes(contents)
        save_file(dict(network.named_parameters()), aside / "model.safetensors")
        return {}

    folder = run / "checkpoints" / f"step-{step:09d}"
    publish(folder, "checkpoint", fill)
    return folder


def test_a_model_comes_back_as_it_was(tmp_path: Path, tokenizer: Path) -> None:
    network = build_network(SETTINGS, HEADS, 1)
    artifact = save_model(tmp_path / "m", network, tokenizer, ["no", "yes"])
    loaded = open_model(tmp_path / "m")
    batch = Batch(torch.tensor([[0, 5, 2]]), torch.tensor([3]))
    assert torch.equal(loaded.network.encode(batch), network.encode(batch))
    assert (loaded.settings, loaded.heads, loaded.labels) == (SETTINGS, HEADS, ("no", "yes"))
    assert loaded.tokenizer_folder is not None
    assert sorted(p.name for p in loaded.tokenizer_folder.iterdir()) == ["tokenizer.json", "vocab.json"]
    assert artifact.counts["parameters"] == sum(p.numel() for p in network.parameters())


def test_a_disk_that_fills_up_is_said_in_one_line(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # model.json fits, the weights do not
    try:
        with pytest.raises(DiskError, match=r"model\.safetensors.*run the same command again"):
            saved(tmp_path / "m")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "m").exists()
    saved(tmp_path / "m")


def test_an_opened_model_can_learn_without_touching_the_file(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m")
    before = (folder / "model.safetensors").read_bytes()
    with torch.no_grad():
        for parameter in open_model(folder).network.parameters():
            parameter.add_(1.0)
    assert (folder / "model.safetensors").read_bytes() == before


def test_half_precision_weights_open_as_fp32_unless_told(tmp_path: Path) -> None:
    network = build_network(SETTINGS, HEADS, 1).to(torch.float16)
    save_model(tmp_path / "m", network, None)
    assert next(open_model(tmp_path / "m").network.parameters()).dtype == torch.float32
    assert next(open_model(tmp_path / "m", dtype=None).network.parameters()).dtype == torch.float16


def test_a_run_is_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    checkpoint(tmp_path, 5, seed=1)
    newest = checkpoint(tmp_path, 10, seed=2)
    assert find_model(tmp_path) == newest
    assert open_model(tmp_path).folder == newest
    data = bytearray((newest / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (newest / "model.safetensors").write_bytes(bytes(data))
    with pytest.warns(UserWarning, match="does not match its checksum"):
        assert find_model(tmp_path).name == "step-000000005"
    assert newest.is_dir()  # a reader does not move a run's files


def test_a_published_model_comes_before_checkpoints(tmp_path: Path) -> None:
    checkpoint(tmp_path, 5, seed=1)
    saved(tmp_path / "model")
    assert find_model(tmp_path) == tmp_path / "model"


def test_a_run_without_checkpoints_says_so(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(DataError, match="no whole checkpoint"):
        find_model(tmp_path)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="no such model folder"):
        open_model(tmp_path / "nowhere")
    with pytest.raises(DataError, match="is no model"):
        open_model(tmp_path)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda v: v.update(layout=2), "layout 2"),
        (lambda v: v["model"].update(num_layers="x"), "damaged"),
        (lambda v: v.pop("heads"), "damaged"),
        (lambda v: v["model"].update(hidden_size=32), r"should be \[40, 32\]"),
        (lambda v: v["heads"].update(num_tags=3), "missing: heads.tagger.weight"),
        (lambda v: v["heads"].update(masked_lm=False), "unexpected: 'heads.masked_lm.bias'"),
    ],
)
def test_settings_that_do_not_fit_the_weights(tmp_path: Path, change: Any, message: str) -> None:
    source = saved(tmp_path / "m")
    values = json.loads((source / "model.json").read_text())
    change(values)

    def fill(aside: Path) -> None:
        (aside / "model.json").write_text(json.dumps(values))
        shutil.copy(source / "model.safetensors", aside)

    publish(tmp_path / "changed", "model", fill)
    with pytest.raises(DataError, match=message):
        open_model(tmp_path / "changed")


def test_every_mismatch_is_listed(tmp_path: Path) -> None:
    source = saved(tmp_path / "m")
    weights = load_file(source / "model.safetensors")
    del weights["heads.classifier.bias"]
    weights["encoder.ffns.0.up.bias"] = torch.zeros(3)
    weights["extra"] = torch.zeros(1)

    def fill(aside: Path) -> None:
        shutil.copy(source / "model.json", aside)
        save_file(weights, aside / "model.safetensors")

    publish(tmp_path / "changed", "model", fill)
    with pytest.raises(DataError) as caught:
        open_model(tmp_path / "changed")
    message = str(caught.value)
    assert all(name in message for name in ("heads.classifier.bias", "encoder.ffns.0.up.bias", "extra"))


@pytest.mark.parametrize("damage", ["truncate", "garbage", "remove"])
def test_damaged_weights(tmp_path: Path, damage: str) -> None:
    source = saved(tmp_path / "m")

    def fill(aside: Path) -> None:
        shutil.copy(source / "model.json", aside)
        data = (source / "model.safetensors").read_bytes()
        if damage != "remove":
            (aside / "model.safetensors").write_bytes(data[:-5] if damage == "truncate" else b"\xff" * 40)

    publish(tmp_path / "changed", "model", fill)
    with pytest.raises(DataError, match=r"model\.safetensors: .*(damaged|is missing)"):
        open_model(tmp_path / "changed")


def test_an_unfinished_folder_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m")
    (folder / "manifest.json").unlink()
    with pytest.raises(DataError, match="not finished"):
        open_model(folder)
    (folder / "manifest.json").write_text("[]")
    with pytest.raises(DataError, match="damaged"):
        open_model(folder)


def test_another_stage_is_refused(tmp_path: Path) -> None:
    publish(tmp_path / "docs", "documents", lambda aside: (aside / "model.json").write_text("{}") and None)
    with pytest.raises(DataError, match="holds documents"):
        open_model(tmp_path / "docs")
