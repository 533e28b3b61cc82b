"""The stage as a whole: same bytes however it ran, goes on after a stop, refuses what it must."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from remask.documents import read_documents
from remask.errors import ConfigError, DataError, MissingInputError, OutputError, UnavailableError
from remask.text import build as stage
from remask.text import sources
from remask.text.settings import DedupSettings, SourceSettings, TextSettings


@pytest.fixture(autouse=True)
def _workers_even_for_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "SMALL_BYTES", 0)


def many_files(folder: Path, texts, count: int = 6) -> Path:
    folder.mkdir()
    for number in range(count):
        parts = [next(texts) for _ in range(8)]
        (folder / f"{number}.txt").write_text("\n\n".join([*parts, parts[0]]))
    return folder


def settings_for(*paths: Path, **changes) -> TextSettings:
    source = SourceSettings(paths=tuple(map(str, paths)), layout="blank")
    return TextSettings(sources=(source,), **{"heldout_fraction": 0.2, "shard_bytes": 4000, **changes})


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_same_bytes_for_workers_and_order_of_paths(tmp_path: Path, texts, monkeypatch) -> None:
    monkeypatch.setattr(sources, "PORTION_BYTES", 5000)
    folder = many_files(tmp_path / "data", texts)
    paths = sorted(folder.iterdir())
    one = stage.build_documents(settings_for(*paths), tmp_path / "one").folder
    two = stage.build_documents(settings_for(*reversed(paths)), tmp_path / "two", workers=2).folder
    assert files_of(one) == files_of(two)
    documents = read_documents(one, verify=True)
    assert len(documents.of("train")) > 2
    assert documents.counts["documents"] == 48
    assert sum(shard["documents"] for shard in documents.counts["shards"]) == 48
    for shard in documents.shards:
        for index in range(len(shard)):
            assert shard.sentence_starts(index)[0] == 0


def test_same_bytes_for_every_hash_seed(tmp_path: Path, texts) -> None:
    folder = many_files(tmp_path / "data", texts)
    code = (
        "import sys; from pathlib import Path; from remask.text.build import build_documents;"
        "from remask.text.settings import TextSettings;"
        "build_documents(TextSettings.model_validate_json(sys.argv[1]), Path(sys.argv[2]))"
    )
    found = []
    for seed in ("0", "1"):
        out = tmp_path / f"out{seed}"
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        words = [sys.executable, "-c", code, settings_for(folder).model_dump_json(), str(out)]
        subprocess.run(words, check=True, env=env, timeout=120)
        found.append(files_of(out))
    assert found[0] == found[1]


@pytest.mark.parametrize("function, calls", [("make_part", 2), ("make_part", 4), ("choose", 0), ("_write_shard", 2)])
def test_a_run_that_was_stopped_goes_on_and_ends_the_same(
    function: str, calls: int, tmp_path: Path, texts, monkeypatch
) -> None:
    monkeypatch.setattr(sources, "PORTION_BYTES", 5000)
    folder = many_files(tmp_path / "data", texts)
    whole = stage.build_documents(settings_for(folder), tmp_path / "whole").folder
    real, count = getattr(stage, function), 0

    def stopping(*values):
        nonlocal count
        count += 1
        if count > calls:
            raise KeyboardInterrupt
        return real(*values)

    monkeypatch.setattr(stage, function, stopping)
    with pytest.raises(KeyboardInterrupt):
        stage.build_documents(settings_for(folder), tmp_path / "stopped")
    assert not (tmp_path / "stopped").exists()
    assert (tmp_path / ".stopped.work").is_dir()
    done: list[object] = []
    monkeypatch.setattr(stage, function, lambda *values: done.append(values) or real(*values))
    again = stage.build_documents(settings_for(folder), tmp_path / "stopped").folder
    assert done
    assert files_of(again) == files_of(whole)
    assert not (tmp_path / ".stopped.work").exists()


def test_finished_parts_are_not_made_again(tmp_path: Path, texts, monkeypatch) -> None:
    monkeypatch.setattr(sources, "PORTION_BYTES", 5000)
    folder = many_files(tmp_path / "data", texts)
    monkeypatch.setattr(stage, "choose", lambda *values: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        stage.build_documents(settings_for(folder), tmp_path / "out")
    monkeypatch.undo()
    monkeypatch.setattr(sources, "PORTION_BYTES", 5000)
    import remask.text.part as part

    monkeypatch.setattr(part, "_fill", lambda *values: pytest.fail("a finished part was made again"))
    stage.build_documents(settings_for(folder), tmp_path / "out")


def test_other_settings_do_not_use_what_was_left(tmp_path: Path, texts, monkeypatch) -> None:
    folder = many_files(tmp_path / "data", texts)
    monkeypatch.setattr(stage, "choose", lambda *values: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        stage.build_documents(settings_for(folder), tmp_path / "out")
    monkeypatch.undo()
    off = DedupSettings(exact=False, near="off")
    assert stage.build_documents(settings_for(folder, dedup=off), tmp_path / "out").counts["documents"] == 54


def test_a_finished_folder_is_given_back_or_refused(tmp_path: Path, texts) -> None:
    folder = many_files(tmp_path / "data", texts)
    first = stage.build_documents(settings_for(folder), tmp_path / "out")
    assert stage.build_documents(settings_for(folder), tmp_path / "out").fingerprint == first.fingerprint
    with pytest.raises(OutputError, match=r"heldout_fraction = 0.2, not 0.1"):
        stage.build_documents(settings_for(folder, heldout_fraction=0.1), tmp_path / "out")
    (folder / "0.txt").write_text(next(texts))
    with pytest.raises(OutputError, match="other contents"):
        stage.build_documents(settings_for(folder), tmp_path / "out")


def test_one_large_compressed_file_is_unpacked_for_many_workers(tmp_path: Path, texts, monkeypatch) -> None:
    import gzip

    monkeypatch.setattr(stage, "UNPACK_BYTES", 100)
    monkeypatch.setattr(sources, "PORTION_BYTES", 3000)
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress("\n\n".join(next(texts) for _ in range(60)).encode()))
    one = stage.build_documents(settings_for(path), tmp_path / "one").folder
    two = stage.build_documents(settings_for(path), tmp_path / "two", workers=2).folder
    assert files_of(one) == files_of(two)


def test_user_mistakes(tmp_path: Path, texts) -> None:
    with pytest.raises(MissingInputError, match="none given"):
        stage.build_documents(TextSettings(), tmp_path / "out")
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(DataError, match="no document is left of 1 read; dropped: 1 empty file"):
        stage.build_documents(settings_for(tmp_path / "empty.txt"), tmp_path / "out")
    (tmp_path / "a.txt").write_text(next(texts))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(OutputError, match="not ours"):
        stage.build_documents(settings_for(tmp_path / "a.txt"), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    from remask.artifacts import lock

    with lock(tmp_path / ".busy.work"), pytest.raises(UnavailableError, match="another remask"):
        stage.build_documents(settings_for(tmp_path / "a.txt"), tmp_path / "busy")


def test_wishes_that_cannot_be_fulfilled_are_refused(tmp_path: Path, texts, build) -> None:
    (tmp_path / "a.txt").write_text(next(texts))
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": next(texts)}))
    (tmp_path / "c.txt").write_text("#")
    for name, changes, message in (
        ("a.txt", {"date_from": "2017-01-01"}, "need date_column for text"),
        ("a.txt", {"date_column": "day", "date_to": "2017-01-01"}, "text has no column day"),
        ("b.jsonl", {"date_to": "2017-01-01"}, "need date_column for jsonl"),
        ("a.txt", {"languages": ("english",)}, "'english' is not one of .*en, "),
    ):
        with pytest.raises(ConfigError, match=message):
            build(SourceSettings(paths=(str(tmp_path / name),), **changes))
    one = SourceSettings(name="one", paths=(str(tmp_path / "a.txt"),), weight=1.0)
    with pytest.raises(DataError, match="none gave no text"):
        build(one, SourceSettings(name="none", paths=(str(tmp_path / "c.txt"),), weight=1.0))


def test_drops_are_sampled_and_counted(tmp_path: Path, build) -> None:
    (tmp_path / "a.txt").write_text("A good document of some length.\n" + "#\n" * 150)
    documents = build(SourceSettings(paths=(str(tmp_path / "a.txt"),), layout="line"))
    assert documents.counts["dropped"] == {"too many symbols": 150}
    lines = (documents.artifact.folder / "drops.jsonl").read_text().splitlines()
    assert len(lines) == 100
    first = json.loads(lines[0])
    assert first == {"source": "corpus", "reason": "too many symbols", "place": f"{tmp_path / 'a.txt'}:byte 32"}


def test_the_wiki_format(shared_data: Path, build) -> None:
    documents = build(shared_data / "wiki" / "wiki.valid.txt")
    text = (shared_data / "wiki" / "wiki.valid.txt").read_text(encoding="utf-8")
    assert documents.counts["documents"] == len([part for part in text.split("\n\n") if part.strip()])
    assert documents.counts["bytes"] == pytest.approx(len(text.encode()), rel=0.01)


def test_a_signal_stops_within_a_part(tmp_path: Path, texts, monkeypatch) -> None:
    from remask import signals
    from remask.errors import Stopped

    folder = many_files(tmp_path / "data", texts)
    whole = stage.build_documents(settings_for(folder), tmp_path / "whole").folder
    monkeypatch.setattr(signals, "requested", iter([False] * 10 + [True]).__next__)
    with pytest.raises(Stopped, match="run the same command again"):
        stage.build_documents(settings_for(folder), tmp_path / "out")
    monkeypatch.undo()
    again = stage.build_documents(settings_for(folder), tmp_path / "out").folder
    assert files_of(again) == files_of(whole)


def test_relative_paths_are_called_as_the_user_did(tmp_path: Path, texts, monkeypatch) -> None:
    many_files(tmp_path / "data", texts)
    monkeypatch.chdir(tmp_path)
    documents = read_documents(stage.build_documents(settings_for(Path("data")), tmp_path / "out").folder)
    assert documents.shards[0].place(0) == "data/0.txt:byte 0"
