"""Row 19: hostile and damaged checkpoints. Nothing runs, nothing outside the folder is opened, nothing crashes,
and every mismatch is listed."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from remask.errors import DataError, MissingInputError, RemaskError
from remask.model.foreign import ForeignFolder, checked, read_header

NOTHING = re.compile(r"(?!)")


def write_raw(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """A safetensors file with exactly this header, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def fact(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HEADERS: dict[str, tuple[Any, bytes, int | None]] = {
    "empty header": (b"", b"", None),
    "giant header length": (b"{}", b"", 1 << 62),
    "header longer than the file": (b"{}", b"", 3),
    "header over the limit": (b" " * 10, b"", 17_000_000),
    "not JSON": (b"not json", b"", None),
    "not UTF-8": (b'{"\xff": 1}', b"", None),
    "a list": (b"[]", b"", None),
    "deep nesting": (b'{"a":' * 5000 + b"1" + b"}" * 5000, b"", None),
    "long number": (b'{"a": {"dtype": "F32", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 4]}}', b"1234", None),
    "same name twice": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"1",
        None,
    ),
    "facts missing": ({"a": {"dtype": "F32"}}, b"", None),
    "facts no object": ({"a": 5}, b"", None),
    "unknown dtype": ({"a": fact([1], 0, 4, "F33")}, b"1234", None),
    "dtype no text": ({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}, b"1234", None),
    "negative shape": ({"a": fact([-1], 0, 4)}, b"1234", None),
    "fraction in shape": ({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}, b"1234", None),
    "bool in shape": ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, b"1234", None),
    "shape too large for its bytes": ({"a": fact([1 << 40, 1 << 40], 0, 4)}, b"1234", None),
    "shape that wraps round": ({"a": fact([1 << 47, 1 << 17], 0, 0)}, b"", None),
    "too many dimensions": ({"a": fact([1] * 9, 0, 4)}, b"1234", None),
    "offsets backwards": ({"a": fact([1], 4, 0)}, b"1234", None),
    "three offsets": ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 2, 4]}}, b"1234", None),
    "offsets past the end": ({"a": fact([2], 0, 8)}, b"1234", None),
    "data left over": ({"a": fact([1], 0, 4)}, b"12345678", None),
    "overlap": ({"a": fact([2], 0, 8), "b": fact([1], 4, 8)}, b"12345678", None),
    "same bytes twice": ({"a": fact([1], 0, 4), "b": fact([1], 0, 4)}, b"1234", None),
    "gap": ({"a": fact([1], 0, 4), "b": fact([1], 8, 12)}, b"123456789012", None),
    "too many tensors": ({str(i): fact([0], 0, 0) for i in range(100_001)}, b"", None),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_a_bad_safetensors_header_is_refused_before_mapping(tmp_path: Path, name: str) -> None:
    header, data, length = HEADERS[name]
    path = write_raw(tmp_path / "model.safetensors", header, data, length)
    with pytest.raises(DataError, match=r"model\.safetensors"):
        read_header(path)


def test_a_good_header_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.float16)}, tmp_path / "model.safetensors")
    entries = read_header(tmp_path / "model.safetensors")
    assert {name: (entry.dtype, entry.shape) for name, entry in entries.items()} == {
        "a": ("F32", (2, 3)),
        "b": ("F16", (4,)),
    }


def test_every_truncation_and_many_flips_of_the_header_are_refused_or_equal(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, 3), "b": torch.ones(4)}, tmp_path / "good.safetensors")
    good = (tmp_path / "good.safetensors").read_bytes()
    path = tmp_path / "model.safetensors"
    for end in range(len(good)):
        path.write_bytes(good[:end])
        with pytest.raises(DataError):
            read_header(path)
    header_end = 8 + struct.unpack("<Q", good[:8])[0]
    for place in range(header_end):
        for bit in range(8):
            damaged = bytearray(good)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            # A flip inside a name only gives another name, which the comparison with the config finds.
            with contextlib.suppress(DataError):
                read_header(path)


@pytest.mark.parametrize(
    "shard",
    [
        "../secret.safetensors", "/etc/passwd", "..", "a/b.safetensors", "a\\b.safetensors", "", ".hidden.safetensors",
        "model.bin", "x\x00.safetensors", "x.safetensors\n", 5, None, ["x.safetensors"], "x" * 300 + ".safetensors",
    ],
)  # fmt: skip
def test_an_index_cannot_name_anything_but_a_plain_file(tmp_path: Path, shard: Any) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": torch.ones(1)}, tmp_path / "secret.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(DataError, match="names files that are not"):
        ForeignFolder(folder).weights()


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": ["a"]}, {"weight_map": 5}])
def test_an_index_without_a_map_is_refused(tmp_path: Path, index: Any) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="weight_map"):
        ForeignFolder(tmp_path).weights()


def test_an_index_and_shards_that_disagree_are_listed(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1), "c": torch.ones(1)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(1)}, tmp_path / "two.safetensors")
    index = {"a": "one.safetensors", "b": "one.safetensors", "d": "two.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(DataError) as caught:
        ForeignFolder(tmp_path).weights()
    for name in ("b (one.safetensors)", "b (two.safetensors)", "c (one.safetensors)", "d (two.safetensors)"):
        assert name in str(caught.value)


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    save_file({"a": torch.full((2,), 3.0)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": torch.full((1,), 4.0)}, tmp_path / "model-00002-of-00002.safetensors")
    index = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    tensors = checked(ForeignFolder(tmp_path).weights(), {"a": (2,), "b": (1,)}, NOTHING)
    assert tensors["a"].tolist() == [3.0, 3.0]
    assert tensors["b"].tolist() == [4.0]


# ------------------------------------------------------------------------------------------- links and odd files


def test_links_that_lead_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": torch.ones(1)}, tmp_path / "outside.safetensors")
    (folder / "model.safetensors").symlink_to(tmp_path / "outside.safetensors")
    (folder / "config.json").symlink_to("/etc/passwd")
    with pytest.raises(DataError, match="outside the folder"):
        ForeignFolder(folder).weights()
    with pytest.raises(DataError, match="outside the folder"):
        ForeignFolder(folder).json("config.json")


def test_links_inside_the_folder_and_the_hub_cache_are_followed(tmp_path: Path) -> None:
    blobs = tmp_path / "models--me--mine" / "blobs"
    folder = tmp_path / "models--me--mine" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    folder.mkdir(parents=True)
    save_file({"a": torch.ones(1)}, blobs / "123")
    (blobs / "456").write_text('{"k": 1}')
    (folder / "model.safetensors").symlink_to(Path("..") / ".." / "blobs" / "123")
    (folder / "config.json").symlink_to(Path("..") / ".." / "blobs" / "456")
    assert ForeignFolder(folder).weights().entries.keys() == {"a"}
    assert ForeignFolder(folder).json("config.json") == {"k": 1}
    (folder / "other.json").symlink_to(tmp_path / "models--me--mine" / "refs")
    (tmp_path / "models--me--mine" / "refs").write_text("{}")
    with pytest.raises(DataError, match="outside the folder"):
        ForeignFolder(folder).json("other.json")


def test_a_loop_of_links_a_pipe_a_folder_and_a_missing_file_are_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to(tmp_path / "config.json")
    os.mkfifo(tmp_path / "model.safetensors")  # opening it would wait for ever
    (tmp_path / "folder.json").mkdir()
    folder = ForeignFolder(tmp_path)
    with pytest.raises(DataError):
        folder.json("config.json")
    with pytest.raises(DataError, match="no regular file"):
        folder.weights()
    with pytest.raises(DataError, match="no regular file"):
        folder.json("folder.json")
    with pytest.raises(MissingInputError):
        folder.json("absent.json")
    with pytest.raises(MissingInputError):
        ForeignFolder(tmp_path / "absent")


@pytest.mark.parametrize("data", [b"", b"[]", b"nan", b"{" * 100_000, b'{"a": 1, "a": 2}', b"\xff\xfe{}", b'{"a": 1'])
def test_a_bad_json_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(DataError, match=r"config\.json"):
        ForeignFolder(tmp_path).json("config.json")


def test_an_endless_json_file_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 40)  # a sparse terabyte
    with pytest.raises(DataError, match="over"):
        ForeignFolder(tmp_path).json("config.json")


# ---------------------------------------------------------------------------------------------------------- .bin


class Payload:
    """What runs when it is unpickled, if anything lets it."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


def payloads(mark: Path) -> dict[str, Any]:
    return {
        "os.system": Payload(os.system, f"touch {mark}"),
        "eval": Payload(eval, f"open({str(mark)!r}, 'w')"),
        "open": Payload(open, str(mark), "w"),
        "inside a dict": {"a": torch.ones(1), "b": Payload(os.mkdir, str(mark))},
        "torch.load": Payload(torch.load, str(mark)),
        "exec": Payload(exec, f"import os; os.mkdir({str(mark)!r})"),
        "a module": torch.nn.Linear(1, 1),
    }


@pytest.mark.parametrize("name", payloads(Path()))
@pytest.mark.parametrize("form", ["plain pickle", "torch zip", "torch legacy"])
def test_no_payload_of_a_bin_file_runs(tmp_path: Path, name: str, form: str) -> None:
    mark = tmp_path / "it-ran"
    payload = payloads(mark)[name]
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "pytorch_model.bin"
    if form == "plain pickle":
        path.write_bytes(pickle.dumps(payload))
    else:
        torch.save(payload, path, _use_new_zipfile_serialization=form == "torch zip")
    with pytest.raises(DataError, match="refused"):
        ForeignFolder(folder).weights()
    assert not mark.exists()


@pytest.mark.parametrize(
    "value",
    [
        [torch.ones(1)], {"a": 5}, {5: torch.ones(1)}, torch.ones(1), {"a": {"b": torch.ones(1)}},
        {"a": torch.ones(1).expand(1 << 40)}, {"a": torch.eye(3).to_sparse()},
        {"a": torch.empty(1 << 40, device="meta")},
    ],
    ids=["list", "number", "number as a name", "bare tensor", "nested", "expanded", "sparse", "meta"],
)  # fmt: skip
def test_a_bin_file_of_anything_but_named_plain_tensors_is_refused(tmp_path: Path, value: Any) -> None:
    torch.save(value, tmp_path / "pytorch_model.bin")
    with pytest.raises(DataError, match="refused"):
        ForeignFolder(tmp_path).weights()


def test_a_compressed_bin_file_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(100_000)}, tmp_path / "plain.bin")
    with (
        zipfile.ZipFile(tmp_path / "plain.bin") as plain,
        zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for entry in plain.infolist():
            packed.writestr(entry.filename, plain.read(entry))
    with pytest.raises(DataError, match="compressed"):
        ForeignFolder(tmp_path).weights()


def test_truncated_and_random_bin_files_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(64)}, tmp_path / "good.bin")
    good = (tmp_path / "good.bin").read_bytes()
    path = tmp_path / "pytorch_model.bin"
    for data in [good[: len(good) * i // 20] for i in range(20)] + [os.urandom(300), b"PK\x05\x06" + b"\0" * 18]:
        path.write_bytes(data)
        with pytest.raises(RemaskError):
            ForeignFolder(tmp_path).weights()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_good_bin_file_is_read(tmp_path: Path, zipped: bool) -> None:
    torch.save({"a": torch.arange(3.0)}, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    tensors = checked(ForeignFolder(tmp_path).weights(), {"a": (3,)}, NOTHING)
    assert tensors["a"].tolist() == [0.0, 1.0, 2.0]


def test_bin_files_in_shards_are_read_and_their_index_is_not_trusted(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "one.bin")
    torch.save({"b": torch.ones(3)}, tmp_path / "two.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.bin", "b": "two.bin"}}))
    assert ForeignFolder(tmp_path).weights().entries.keys() == {"a", "b"}
    index.write_text(json.dumps({"weight_map": {"a": "../one.bin"}}))
    with pytest.raises(DataError, match="names files that are not"):
        ForeignFolder(tmp_path).weights()
    torch.save({"a": torch.ones(3)}, tmp_path / "two.bin")
    index.write_text(json.dumps({"weight_map": {"a": "one.bin", "b": "two.bin"}}))
    with pytest.raises(DataError, match=r"'a' is also in one\.bin"):
        ForeignFolder(tmp_path).weights()


# ------------------------------------------------------------------------------------------------- the comparison


def test_every_mismatch_is_listed(tmp_path: Path) -> None:
    save_file(
        {"kept": torch.ones(2), "buffer": torch.ones(1), "extra.one": torch.ones(1), "extra.two": torch.ones(1),
         "wrong": torch.ones(3, 2), "whole": torch.ones(2, dtype=torch.int64)},
        tmp_path / "model.safetensors",
    )  # fmt: skip
    expected = {"kept": (2,), "wrong": (2, 3), "whole": (2,), "gone.one": (1,), "gone.two": (1,)}
    with pytest.raises(DataError) as caught:
        checked(ForeignFolder(tmp_path).weights(), expected, re.compile("^buffer$"))
    text = str(caught.value)
    for part in ("missing: gone.one", "missing: gone.two", "extra.one", "extra.two", "wrong is [3, 2]", "whole is I64"):
        assert part in text
    assert "(6 problems)" in text
    assert "kept" not in text
    assert "buffer" not in text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_not_finite_are_listed(tmp_path: Path, value: float, dtype: torch.dtype) -> None:
    tensors = {name: torch.ones(1000, dtype=dtype) for name in ("one", "two", "three")}
    tensors["two"][500] = value
    tensors["three"][0] = value
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(DataError) as caught:
        checked(ForeignFolder(tmp_path).weights(), {name: (1000,) for name in tensors}, NOTHING)
    assert "not finite: two" in str(caught.value)
    assert "not finite: three" in str(caught.value)
    assert "one" not in str(caught.value).split(":", 1)[1]


def test_a_number_that_fp32_does_not_hold_is_not_finite(tmp_path: Path) -> None:
    save_file({"a": torch.full((3,), 1e300, dtype=torch.float64)}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match="not finite: a"):
        checked(ForeignFolder(tmp_path).weights(), {"a": (3,)}, NOTHING)


def test_large_but_finite_weights_pass(tmp_path: Path) -> None:
    save_file({"a": torch.full((100,), 3e38)}, tmp_path / "model.safetensors")
    assert checked(ForeignFolder(tmp_path).weights(), {"a": (100,)}, NOTHING)["a"].numel() == 100
