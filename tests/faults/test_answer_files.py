"""FAULTS rows 27, 28 and 39 for predict and encode: an input that changes under way or between a kill and its resume
never gives a row another row's answer; what stands at --out is never overwritten; a kill leaves nothing that the same
command does not use up; one process works on a file."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remask import artifacts
from remask.answer import encode, predict
from remask.answer.model import Model
from remask.answer.stream import Asker
from remask.errors import DataError, OutputError, Stopped, UnavailableError
from remask.model.network import build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.model.store import save_model
from remask.progress import Progress
from remask.tasks.settings import RowSettings, TableSettings

from .soak import tries
from .zygote import Zygote

WORDS = "the quick brown fox jumps over lazy dog by river who wrote it mary".split()  # noqa: SIM905
NUM_ROWS, PIECE = 24, 4


@pytest.fixture(scope="module")
def model(tiny_tokenizers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of two narrow layers whose answers differ from text to text."""
    settings = ModelSettings(
        vocab_size=300, num_layers=1, hidden_size=16, num_heads=2, ffn_size=32, max_length=64, dropout=0.0,
        attention_dropout=0.0, head_dropout=0.0,
    )  # fmt: skip
    network = build_network(settings, HeadSettings(num_classes=3), seed=1)
    for parameter in network.heads.parameters():
        parameter.data *= 20
    labels = ("a", "b", "c")
    facts = {"task": "classify", "kind": "classify", "labels": labels, "table": TableSettings().model_dump(),
             "rows": RowSettings(max_length=32).model_dump()}  # fmt: skip
    folder = tmp_path_factory.mktemp("answers") / "model"
    extra = {"task.json": json.dumps(facts).encode()}
    save_model(folder, network, tiny_tokenizers["byte-bpe"], labels, extra=extra)
    return folder


def run_predict(model: Path, file: Path, out: Path) -> dict[str, Any]:
    run = predict.PredictRun(model=str(model), file=str(file), precision="fp32", device="cpu", chunk_rows=PIECE)
    return predict.main(run, out, progress=Progress(quiet=True))


def run_encode(model: Path, file: Path, out: Path) -> dict[str, Any]:
    return encode.main(encode.EncodeRun(model=model, file=file, pooled=True), out, Progress(quiet=True))


VERBS: dict[str, Callable[[Path, Path, Path], dict[str, Any]]] = {"predict": run_predict, "encode": run_encode}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "PIECE", PIECE)


def a_table(draw: random.Random) -> list[str]:
    """Lines of one length each, so that another table has the same size."""
    words = [" ".join(draw.choices(WORDS, k=6)) for _ in range(NUM_ROWS)]
    return [json.dumps({"id": number, "text": text.ljust(60)[:60]}) for number, text in enumerate(words)]


def write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n")


def changed(lines: list[str], how: str, draw: random.Random) -> list[str]:
    if how == "other texts":
        return a_table(draw)
    if how == "one row":
        place = draw.randrange(len(lines))
        return [*lines[:place], a_table(draw)[place], *lines[place + 1 :]]
    if how == "order":
        return lines[1:] + lines[:1]
    if how == "shorter":
        return lines[: draw.randrange(1, len(lines))]
    assert how == "longer"
    return [*lines, lines[0]]


CHANGES = ("other texts", "one row", "order", "shorter", "longer")


def change_in_place(path: Path, lines: list[str]) -> None:
    """Written over the same file, with the time stamp that it had."""
    before = path.stat()
    write(path, lines)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


# ---------------------------------------------------------------------------------------- 27: the input changes


@pytest.mark.parametrize("verb", VERBS)
def test_a_file_that_changes_under_way_is_refused_with_the_place(
    verb: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(27)
    real_answer, real_embed = Asker.answer, Model.embed
    for number in range(tries(27, 6, 120)):
        how = CHANGES[number % len(CHANGES)]
        file, out = tmp_path / f"{number}.jsonl", tmp_path / f"{number}.out.jsonl"
        lines = a_table(draw)
        write(file, lines)
        pieces_left = draw.randrange(NUM_ROWS // PIECE)

        def then_change(real: Any, *words: Any, **options: Any) -> Any:
            nonlocal pieces_left
            answers = real(*words, **options)
            if pieces_left == 0:
                change_in_place(file, changed(lines, how, draw))  # noqa: B023
            pieces_left -= 1
            return answers

        with monkeypatch.context() as patch:
            patch.setattr(Asker, "answer", lambda *a, **k: then_change(real_answer, *a, **k))
            patch.setattr(Model, "embed", lambda *a, **k: then_change(real_embed, *a, **k))
            with pytest.raises(DataError, match=rf"{number}\.jsonl:\d+: .*(changed|ends here now|rows from here on)"):
                VERBS[verb](model, file, out)
        assert not out.exists(), how


@pytest.mark.parametrize("verb", VERBS)
def test_a_file_that_changes_between_a_stop_and_its_resume_is_refused(
    verb: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at the same size and time stamp."""
    draw = random.Random(28)
    for number in range(tries(27, 4, 60)):
        how = ("other texts", "order")[number % 2]
        file, out = tmp_path / f"{number}.jsonl", tmp_path / f"{number}.out.jsonl"
        lines = a_table(draw)
        write(file, lines)
        stop_after(monkeypatch, lambda: VERBS[verb](model, file, out), draw.randrange(1, NUM_ROWS // PIECE))  # noqa: B023
        size = file.stat().st_size
        change_in_place(file, changed(lines, how, draw))
        assert file.stat().st_size == size
        with pytest.raises(DataError, match=rf"{number}\.jsonl:1: this is not the row that was answered"):
            VERBS[verb](model, file, out)
        assert not out.exists()
        change_in_place(file, lines)
        VERBS[verb](model, file, out)
        whole = tmp_path / f"{number}.whole.jsonl"
        VERBS[verb](model, file, whole)
        assert out.read_bytes() == whole.read_bytes()


def stop_after(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any], num_pieces: int) -> None:
    """Let a command keep so many pieces, then stop it."""
    real = artifacts.Work.keep

    def keep(self: artifacts.Work, number: int, data: bytes) -> None:
        real(self, number, data)
        if number + 1 == num_pieces:
            raise Stopped("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(artifacts.Work, "keep", keep)
        with pytest.raises(Stopped):
            work()


# ---------------------------------------------------------------------------------------------- 28: --out is kept


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("there", ["file", "folder", "link", "dangling link", "input"])
def test_what_stands_at_out_is_never_overwritten(verb: str, there: str, model: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(file, a_table(random.Random(1)))
    (tmp_path / "precious").write_text("precious")
    if there == "file":
        out.write_text("precious")
    elif there == "folder":
        out.mkdir()
        (out / "x").write_text("precious")
    elif there == "input":
        out = file
    else:
        out.symlink_to(tmp_path / ("precious" if there == "link" else "nowhere"))
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    with pytest.raises(OutputError, match="exists already") as raised:
        VERBS[verb](model, file, out)
    assert raised.value.exit_code == 73
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before
    assert not (tmp_path / "nowhere").exists()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("verb", VERBS)
def test_what_appears_at_out_under_way_is_not_overwritten(
    verb: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(file, a_table(random.Random(1)))
    real = artifacts.put_new

    def late(whole: Path, target: Path) -> None:
        target.write_text("precious")
        real(whole, target)

    with monkeypatch.context() as patch:
        patch.setattr(artifacts, "put_new", late)
        with pytest.raises(OutputError, match="exists already"):
            VERBS[verb](model, file, out)
    assert out.read_text() == "precious"
    with pytest.raises(OutputError, match="exists already"):  # it is not this work's, whatever that says
        VERBS[verb](model, file, out)
    assert out.read_text() == "precious"
    out.unlink()
    VERBS[verb](model, file, out)
    assert not list(tmp_path.glob(".*"))


def test_an_old_list_of_bad_rows_does_not_stay_beside_new_answers(model: Path, tmp_path: Path) -> None:
    file, out, bad = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "out.jsonl.bad.jsonl"))
    lines = a_table(random.Random(1))
    write(file, [*lines, "no json"])
    assert run_predict(model, file, out)["bad"] == 1
    assert bad.exists()
    out.unlink()
    write(file, lines)
    assert run_predict(model, file, out)["bad"] == 0
    assert not bad.exists()
    out.unlink()
    bad.write_text("notes of mine\n")
    with pytest.raises(OutputError, match="is no list of rows without an answer"):
        run_predict(model, file, out)
    assert bad.read_text() == "notes of mine\n"


# ------------------------------------------------------------------------------- kills, and three processes at once


def words_of(verb: str, model: Path, file: Path, out: Path) -> list[str]:
    more = {"predict": ["--precision", "fp32", "--set", f"chunk_rows={PIECE}"], "encode": ["--pooled"]}[verb]
    return [verb, str(model), str(file), "--out", str(out), "-q", *more]


def test_encode_killed_goes_on_and_leaves_nothing(model: Path, tmp_path: Path, zygote: Zygote) -> None:
    """SIGKILL once some pieces are there; the bytes are those of one go."""
    file, out = tmp_path / "in.txt", tmp_path / "out.safetensors"
    file.write_text("".join(f"{' '.join(random.Random(i).choices(WORDS, k=9))}\n" for i in range(9_000)))
    words = words_of("encode", model, file, out)
    work = tmp_path / ".out.safetensors.work"
    assert zygote.run(*words, signals=[(0.0, "SIGKILL")], wait_for=work / "part-000001").returncode == -9
    assert not out.exists()
    assert len(list(work.glob("part-*"))) >= 2
    assert zygote.run(*words).returncode == 0
    whole = tmp_path / "whole.safetensors"
    assert zygote.run(*words_of("encode", model, file, whole)).returncode == 0
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.safetensors", "whole.safetensors"]


def test_three_processes_on_one_file(model: Path, tmp_path: Path, zygote: Zygote) -> None:
    """One works; the others are refused while it does, or afterwards because the file is there."""
    file = tmp_path / "in.jsonl"
    write(file, [line for seed in range(20) for line in a_table(random.Random(seed))])
    for number in range(tries(39, 1, 20)):
        out = tmp_path / f"{number}.jsonl"
        ends = zygote.run_together(3, *words_of("predict", model, file, out))
        errors, codes = [end.stderr for end in ends], sorted(end.returncode for end in ends)
        assert codes[0] == 0, errors
        assert set(codes[1:]) <= {UnavailableError.exit_code, OutputError.exit_code}, errors
        assert not any("Traceback" in error for error in errors)
        assert len(out.read_text().splitlines()) == 20 * NUM_ROWS
        assert not list(tmp_path.glob(".*"))


def test_three_processes_on_the_cache_of_evaluate(
    tiny_tokenizers: dict[str, Path], tmp_path: Path, zygote: Zygote
) -> None:
    """All ask the same at once: each ends with the same result, and one whole file of it is kept."""
    settings = ModelSettings(vocab_size=300, num_layers=1, hidden_size=16, num_heads=2, ffn_size=32, max_length=64)
    network = build_network(settings, HeadSettings(masked_lm=True), seed=1)
    save_model(tmp_path / "lm", network, tiny_tokenizers["byte-bpe"])
    claims = tmp_path / "claims.jsonl"
    claims.write_text("".join(json.dumps({"claim": f"The {w} fox.", "counter": f"The {w}."}) + "\n" for w in WORDS))
    words = ["evaluate", str(tmp_path / "lm"), "--tasks", "claims", "--data", str(claims), "--precision", "fp32"]
    for _ in range(tries(39, 1, 20)):
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        ends = zygote.run_together(3, *words, "--json", "-q", environ=environ)
        assert [end.returncode for end in ends] == [0, 0, 0], ends
        assert len({json.dumps(json.loads(end.stdout)["metrics"]) for end in ends}) == 1
        kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
        assert len(kept) == 1
        assert json.loads(kept[0].read_bytes())["metrics"]
