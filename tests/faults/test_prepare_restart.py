"""FAULTS rows 15-17 for prepare: kills, one sha256 whatever does the work, damage, and two runs in one folder.

`make soak ROWS=16` kills at 50 points instead of 10.
"""

from __future__ import annotations

import hashlib
import io
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from remask import artifacts
from remask.commands.inspect import InspectRun
from remask.commands.inspect import main as inspect_main
from remask.data.tokens import Tokens
from remask.errors import ConfigError, DataError, MissingInputError, OutputError, UnavailableError
from remask.progress import Progress

from .soak import tries

NUM_ROUNDS = tries(16, 1, 5)  # of five kills, with one worker and with two
# Small portions, so that a small corpus is many tasks, and workers even for little.
SCRIPT = """
import sys
from pathlib import Path
from remask.preparation import prepare
from remask.config import build_run
from remask.progress import Progress
from remask.text.settings import SourceSettings
from remask.tokenizer import bulk
if __name__ == "__main__":
    bulk.MIN_PORTION_BYTES = 20_000
    prepare.SMALL_MEGABYTES = 0
    out, workers, accelerator, *paths = sys.argv[1:]
    options = {
        "text.sources": [{"name": "corpus", "paths": paths}],
        "text.heldout_fraction": 0.1,
        "tokenizer.vocab_size": 400,
        "tokenizer.accelerator": accelerator,
        "workers": int(workers),
    }
    run = build_run(prepare.PrepareRun, options=options).run
    prepare.prepare(run, Path(out), progress=Progress(quiet=True))
"""
WORDS = "the of and to in water stone river light time people 山 水 house doesn't it's 1984 sea-salt (small) end."


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("corpus")
    chance = random.Random(3)
    words = WORDS.split(" ") + [f"w{number}" for number in range(400)]
    files = []
    for number in range(3):
        documents = []
        for _ in range(80):
            lines = [" ".join(chance.choices(words, k=30)) + "." for _ in range(chance.randrange(1, 9))]
            documents.append("\n".join(lines))
        files.append(folder / f"part{number}.txt")
        files[-1].write_text("\n\n".join(documents))
    return files


def _start(tmp_path: Path, out: Path, corpus: list[Path], *, workers: int = 1, accelerator: str = "auto", **env: str):
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(out), str(workers), accelerator, *map(str, corpus)]
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": root} | env, start_new_session=True)


def _finish(process: subprocess.Popen[bytes]) -> None:
    assert process.wait(timeout=120) == 0


def _digest(folder: Path) -> str:
    """One sha256 over every file, its name included."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def prepared(corpus: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made in one go by one process."""
    folder = tmp_path_factory.mktemp("whole")
    _finish(_start(folder, folder / "out", corpus))
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == [], "a work folder was left"
    return folder / "out"


def test_the_corpus_makes_many_shards_of_both_splits(prepared: Path) -> None:
    names = sorted(path.name for path in prepared.glob("*.tokens"))
    assert sum(name.startswith("corpus.train.") for name in names) > 3
    assert "corpus.heldout.00000.tokens" in names
    counts = artifacts.open_artifact(prepared, "prepared", verify=True).counts
    assert counts["documents"] + sum(counts["dropped"].values()) == counts["read"] == 240


@pytest.mark.parametrize(
    ("workers", "accelerator", "hash_seed", "threads"),
    [(2, "auto", "1", "1"), (1, "none", "2", "2"), (2, "none", "3", "1")],
)
def test_one_sha256_over_workers_hash_seeds_threads_and_accelerator(
    workers: int, accelerator: str, hash_seed: str, threads: str, corpus: list[Path], prepared: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    environment = {"PYTHONHASHSEED": hash_seed, "RAYON_NUM_THREADS": threads}
    _finish(_start(tmp_path, out, corpus[::-1], workers=workers, accelerator=accelerator, **environment))
    assert _digest(out) == _digest(prepared)


# Where to kill: as soon as this is seen in the work folder. Later ones are reached by going on.
POINTS: list[tuple[str, Callable[[Path], bool]]] = [
    ("started", lambda work: (work / "identity.json").is_file()),
    ("reading", lambda work: (work / ".documents.work").is_dir()),
    ("counting", lambda work: len(list((work / "counts").glob("*"))) >= 2),
    ("vocabulary", lambda work: (work / "prepared" / "tokenizer").is_dir()),
    ("shards", lambda work: len(list((work / "facts").glob("*.json"))) >= 2),
]


@pytest.mark.parametrize("round_number", range(NUM_ROUNDS))
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_at_five_points_it_ends_with_the_same_bytes(
    workers: int, round_number: int, corpus: list[Path], prepared: Path, tmp_path: Path
) -> None:
    out, work = tmp_path / "out", tmp_path / ".out.work"
    chance = random.Random(10 * round_number + workers)
    killed = []
    for name, reached in POINTS:
        process = _start(tmp_path, out, corpus, workers=workers)
        while process.poll() is None and not reached(work):
            time.sleep(0.001)
        time.sleep(chance.random() * 0.02)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            killed.append(name)
        process.wait()
        assert not (out / artifacts.MANIFEST).is_file() or process.returncode == 0
    assert killed == [name for name, _ in POINTS]
    _finish(_start(tmp_path, out, corpus, workers=workers))
    assert _digest(out) == _digest(prepared)
    assert not work.exists()


def test_going_on_does_not_do_finished_shards_again(corpus: list[Path], prepared: Path, tmp_path: Path) -> None:
    out, work = tmp_path / "out", tmp_path / ".out.work"
    process = _start(tmp_path, out, corpus)
    while process.poll() is None and len(list((work / "facts").glob("*.json"))) < 3:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in (work / "facts").glob("*.json")}
    vocabulary = (work / "vocabulary.json").stat().st_mtime_ns
    assert len(done) >= 3
    process = _start(tmp_path, out, corpus)
    seen: dict[Path, int] = {}
    while process.poll() is None:
        for path in done:
            try:
                seen[path] = path.stat().st_mtime_ns
                assert (work / "vocabulary.json").stat().st_mtime_ns == vocabulary
            except FileNotFoundError:
                break
        time.sleep(0.001)
    assert process.returncode == 0
    assert {path: done[path] for path in seen} == seen
    assert _digest(out) == _digest(prepared)


def test_sigterm_ends_with_75_and_the_same_command_goes_on(corpus: list[Path], prepared: Path, tmp_path: Path) -> None:
    out, work = tmp_path / "out", tmp_path / ".out.work"
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-m", "remask", "prepare", *map(str, corpus), "--out", str(out), "--workers", "2"]
    command += ["--vocab-size", "400", "--set", "text.heldout_fraction=0.1", "-q"]
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": root}, stderr=subprocess.PIPE)
    while process.poll() is None and not (work / ".documents.work").is_dir():
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors.decode()
    assert b"run the same command again" in errors
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": root}, check=False, timeout=120)
    assert done.returncode == 0
    # Other portions than the fixture's, so other shard files, but the same vocabulary and the same ids.
    assert _digest(out / "tokenizer") == _digest(prepared / "tokenizer")
    ours, theirs = (Tokens.open(folder, "train").sources["corpus"].ids.tolist() for folder in (out, prepared))
    assert ours == theirs


def test_the_second_run_in_a_folder_is_refused(corpus: list[Path], tmp_path: Path) -> None:
    from remask.preparation.prepare import prepare as main
    from remask.preparation.settings import PrepareRun
    from remask.text.settings import SourceSettings, TextSettings

    run = PrepareRun(text=TextSettings(sources=(SourceSettings(paths=(str(corpus[0]),)),)))
    with artifacts.lock(tmp_path / ".out.work"), pytest.raises(UnavailableError, match="another remask"):
        main(run, tmp_path / "out", progress=Progress(quiet=True))


def test_changed_settings_are_refused_unless_named(corpus: list[Path], tmp_path: Path) -> None:
    from remask.config import build_run
    from remask.preparation.prepare import prepare as main
    from remask.preparation.settings import PrepareRun

    def run(vocab_size: int) -> PrepareRun:
        sources = [{"name": "corpus", "paths": [str(corpus[0])]}]
        options = {"text.sources": sources, "tokenizer.vocab_size": vocab_size, "workers": 1}
        return build_run(PrepareRun, options=options).run

    quiet = Progress(quiet=True)
    out, work = tmp_path / "out", tmp_path / ".out.work"
    work.mkdir()
    from remask.preparation import prepare

    artifacts.write_json(work / "identity.json", prepare._config(run(300)))
    (work / "counts").mkdir()
    (work / "counts" / "stale").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"tokenizer.vocab_size = 300, not 400"):
        main(run(400), out, progress=quiet)
    assert (work / "counts" / "stale").is_file()
    assert main(run(400), out, progress=quiet, allow_change=["tokenizer"])["vocab_size"] == 400
    with pytest.raises(ConfigError, match="was prepared with"):
        main(run(300), out, progress=quiet)
    before = _digest(out)
    assert main(run(400), out, progress=quiet)["vocab_size"] == 400
    assert _digest(out) == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match="not of remask"):
        main(run(400), tmp_path / "other", progress=quiet)
    assert (tmp_path / "other" / "thesis.txt").read_text() == "mine"


def _prepare(out: Path, progress: Progress, *paths: Path, **options: object) -> dict[str, object]:
    from remask.config import build_run
    from remask.preparation.prepare import prepare as main
    from remask.preparation.settings import PrepareRun

    sources = [{"name": "corpus", "paths": [str(path) for path in paths]}]
    names = {key.replace("__", "."): value for key, value in options.items()}
    plain = {"text.sources": sources, "tokenizer.vocab_size": 300, "workers": 1}
    return main(build_run(PrepareRun, options=plain | names).run, out, progress=progress)


@pytest.mark.parametrize("mistake", ["mistyped path", "empty corpus", "wrong column", "nothing to train on"])
def test_a_refused_run_does_not_claim_the_folder(mistake: str, corpus: list[Path], tmp_path: Path) -> None:
    """The corrected command works as if the mistake had not been made, and nothing lies about in between."""
    quiet, out, work = Progress(quiet=True), tmp_path / "out", tmp_path / ".out.work"
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "table.csv").write_text("number,body\n1,Some text to read.\n")
    if mistake == "mistyped path":
        with pytest.raises(MissingInputError):
            _prepare(out, quiet, tmp_path / "mistyped")
    elif mistake == "nothing to train on":
        (tmp_path / "short.txt").write_text("One short text.")
        with pytest.raises(DataError, match="no words"):
            _prepare(out, quiet, tmp_path / "short.txt", text__heldout_fraction=0.999999999)
    else:
        with pytest.raises(DataError):
            _prepare(out, quiet, tmp_path / ("empty.txt" if mistake == "empty corpus" else "table.csv"))
    assert not out.exists()
    assert mistake == "nothing to train on" or not work.exists()
    assert _prepare(out, quiet, corpus[0])["vocab_size"] == 300
    assert not work.exists()


def test_a_refusal_does_not_take_the_work_of_an_unfinished_run(corpus: list[Path], tmp_path: Path) -> None:
    file, out, work = tmp_path / "text.txt", tmp_path / "out", tmp_path / ".out.work"
    file.write_bytes(corpus[0].read_bytes())
    process = _start(tmp_path, out, [file])
    while process.poll() is None and len(list((work / "facts").glob("*.json"))) < 1:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(ConfigError, match="an unfinished run stands here"):
        _prepare(out, Progress(quiet=True), file)
    file.rename(tmp_path / "away.txt")
    assert _start(tmp_path, out, [file]).wait(timeout=60) != 0  # say the disk is not mounted
    (tmp_path / "away.txt").rename(file)
    assert len(list((work / "facts").glob("*.json"))) >= 1
    _finish(_start(tmp_path, out, [file]))


def test_a_finished_folder_says_when_its_files_have_changed(corpus: list[Path], tmp_path: Path) -> None:
    file, out = tmp_path / "text.txt", tmp_path / "out"
    file.write_bytes(corpus[0].read_bytes())
    before = _prepare(out, Progress(quiet=True), file)["fingerprint"]
    said = io.StringIO()
    os.utime(file, ns=(1, 1))  # a copy has other times and the same contents
    assert _prepare(out, Progress(stream=said), file)["fingerprint"] == before
    assert "already prepared" in said.getvalue()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    said = io.StringIO()
    assert _prepare(out, Progress(stream=said), file)["fingerprint"] == before
    assert "other contents of the files of corpus" in said.getvalue()
    assert "remove it or choose another --out" in said.getvalue()
    assert "already prepared" not in said.getvalue()
    file.unlink()
    assert _prepare(out, Progress(quiet=True), file)["fingerprint"] == before
    assert not (tmp_path / ".out.work").exists()


@pytest.mark.parametrize("point", ["documents", "facts"])
def test_an_edit_in_the_middle_of_a_large_file_between_kill_and_resume_is_noticed(
    point: str, corpus: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size and its ends are as before, which is all that a fingerprint of a large file looks at."""
    from remask.preparation import prepare
    from remask.text import build, files

    monkeypatch.setattr(files, "WHOLE_BYTES", 100)
    monkeypatch.setattr(files, "END_BYTES", 10)
    file, out, quiet = tmp_path / "text.txt", tmp_path / "out", Progress(quiet=True)
    file.write_bytes(corpus[0].read_bytes())

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*((build, "choose") if point == "documents" else (prepare, "_make_shards")), killed)
        with pytest.raises(KeyboardInterrupt):
            _prepare(out, quiet, file)
    content = file.read_bytes()
    place = content.index(b" ", len(content) // 2)
    file.write_bytes(content[: place + 1] + b"@" + content[place + 2 :])
    _prepare(out, quiet, file)
    _prepare(tmp_path / "fresh", quiet, file)
    assert _digest(out) == _digest(tmp_path / "fresh")


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_damaged_counts_are_made_again(
    damage: str, corpus: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from remask.preparation import prepare

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    out, quiet = tmp_path / "out", Progress(quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr("remask.tokenizer.training.merge_counts", killed)
        with pytest.raises(KeyboardInterrupt):
            _prepare(out, quiet, corpus[0])
    (counts,) = (tmp_path / ".out.work" / "counts").glob("*")
    content = bytearray(counts.read_bytes())
    content[-50] ^= 4
    counts.write_bytes({"cut": content[:-100], "flipped": bytes(content), "empty": b""}[damage])
    made = []
    run_tasks = prepare.run_tasks
    monkeypatch.setattr(
        prepare, "run_tasks", lambda task, items, **k: made.append(len(items)) or run_tasks(task, items, **k)
    )
    _prepare(out, quiet, corpus[0])
    assert made[0] == 1
    _prepare(tmp_path / "fresh", quiet, corpus[0])
    assert _digest(out) == _digest(tmp_path / "fresh")


def test_files_that_changed_after_a_kill_start_the_work_over(corpus: list[Path], tmp_path: Path) -> None:
    """What was read before the change must not be mixed with what is read after it."""
    file = tmp_path / "text.txt"
    file.write_bytes(corpus[0].read_bytes())
    out, work = tmp_path / "out", tmp_path / ".out.work"
    process = _start(tmp_path, out, [file])
    while process.poll() is None and len(list((work / "facts").glob("*.json"))) < 1:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    file.write_bytes(corpus[1].read_bytes())
    _finish(_start(tmp_path, out, [file]))
    _finish(_start(tmp_path, tmp_path / "fresh", [file]))
    assert _digest(out) == _digest(tmp_path / "fresh")


def test_killed_between_the_manifest_and_the_rename(tmp_path: Path) -> None:
    """The manifest that the killed attempt wrote is not one of the files that the next attempt publishes."""
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data").write_bytes(b"data")
    (tmp_path / "killed" / artifacts.MANIFEST).write_text("{}")
    made = [artifacts.publish_filled(tmp_path / n, tmp_path / f"{n}-out", "x", counts={}) for n in ("killed", "whole")]
    assert made[0].manifest == made[1].manifest


# ------------------------------------------------------------------------------------------------------- damage


def _copy(prepared: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(prepared, tmp_path / "copy"))


@pytest.mark.parametrize("suffix", ["tokens", "offsets", "sentences", "words"])
def test_cut_grown_and_missing_shard_files_are_refused_at_open(suffix: str, prepared: Path, tmp_path: Path) -> None:
    folder = _copy(prepared, tmp_path)
    file = folder / f"corpus.train.00001.{suffix}"
    content = file.read_bytes()
    for damaged in (content[:-1], content[: len(content) // 2], b"", content + b"\0" * 8):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=file.name):
            inspect_main(InspectRun(prepared=folder), progress=Progress(quiet=True))
    file.unlink()
    with pytest.raises(DataError, match="is missing"):
        inspect_main(InspectRun(prepared=folder), progress=Progress(quiet=True))


def test_flipped_bits_are_found_by_verify(prepared: Path, tmp_path: Path) -> None:
    folder = _copy(prepared, tmp_path)
    inspect_main(InspectRun(prepared=folder, verify=True), progress=Progress(quiet=True))
    chance = random.Random(15)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
    for _ in range(40):
        file = chance.choice(files)
        content = bytearray(file.read_bytes())
        place = chance.randrange(len(content))
        content[place] ^= 1 << chance.randrange(8)
        right = file.read_bytes()
        file.write_bytes(bytes(content))
        with pytest.raises(DataError):
            inspect_main(InspectRun(prepared=folder, verify=True), progress=Progress(quiet=True))
        file.write_bytes(right)
    inspect_main(InspectRun(prepared=folder, verify=True), progress=Progress(quiet=True))


def test_swapped_shards_are_found_by_verify(prepared: Path, tmp_path: Path) -> None:
    folder = _copy(prepared, tmp_path)
    one, two = (folder / f"corpus.train.{number:05d}.tokens" for number in (0, 1))
    data = one.read_bytes(), two.read_bytes()
    one.write_bytes(data[1])
    two.write_bytes(data[0])
    with pytest.raises(DataError):
        inspect_main(InspectRun(prepared=folder, verify=True), progress=Progress(quiet=True))
