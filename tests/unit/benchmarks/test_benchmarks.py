"""The speed scripts at a tiny size: what they count and compare, and that both sides run; never how fast."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from remask.config import build_run
from remask.pretraining.settings import PretrainRun

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of benchmarks/, imported as the scripts import each other."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def run(name: str, *words: str) -> dict[str, Any]:
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--json", *words]
    env = {**os.environ, "PYTHONPATH": str(FOLDER.parent), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


TINY = ("--size", "tiny", "--length", "32", "--batch", "4")


def test_both_sides_pretrain_and_are_compared_on_equal_tokens() -> None:
    pytest.importorskip("accelerate")
    found = run("pretrain", *TINY, "--rounds", "1", "--steps", "1", "--warm", "1", "--peers", "eager", "--precision", "fp32")  # fmt: skip  # noqa: E501
    assert found["ratio"] == pytest.approx(found["ours"] / found["peer"], rel=1e-2)
    assert {words["dtype"] for words in found["sides"].values()} == {"float32"}
    losses = [words["first_loss"] for words in found["sides"].values()]
    assert losses == pytest.approx([6.93, 6.93], abs=0.2)  # log of the vocabulary of 1,024: nobody has learned yet
    assert found["unit"] == "tokens/s"


def test_curves_of_both_sides_agree() -> None:
    pytest.importorskip("accelerate")
    found = run("curves", *TINY, "--steps", "4")
    assert found["agree"]
    assert len(found["our_losses"]) == len(found["peer_losses"]) == 4
    assert found["clipped_steps"] > 0  # so that clipping is compared too


def test_the_ceiling_counts_the_products_that_the_cost_table_counts(script: Any) -> None:
    from remask.model.cost import flops_per_token
    from remask.model.settings import HeadSettings, ModelSettings

    ceiling = script("ceiling")
    options = SimpleNamespace(size="small", length=128, batch=32)
    layers, width, heads, ffn, vocab_size = script("_pretraining").SIZES["small"]
    settings = ModelSettings(
        vocab_size=vocab_size, num_layers=layers, hidden_size=width, num_heads=heads, ffn_size=ffn, max_length=128
    )
    expected = 3 * 128 * 32 * sum(flops_per_token(settings, HeadSettings(masked_lm=True), 128).values())
    assert sum(shape.flops for shape in ceiling.shapes(options)) == pytest.approx(expected, rel=1e-3)


def test_the_peer_gets_our_rows_without_their_masks(script: Any, tmp_path: Path) -> None:
    sides = script("_pretraining")
    options = SimpleNamespace(size="tiny", length=32, batch=4, warm=1, rounds=1, steps=2)
    sides.write_tokens(tmp_path / "prepared", 1024, 4_000)
    batches = sides.our_batches(options, tmp_path)
    rows = sides.plain_rows(batches, 8, sides.Vocabulary(1024).special_ids)
    (batch,), _ = batches.take(batches.first_cursor())
    assert len(rows) == 8
    assert all(len(row["input_ids"]) == 32 for row in rows)
    assert not any(1023 in row["input_ids"] for row in rows)
    assert 1023 in batch.input_ids_BS
    flat = [i for row in rows[:4] for i in row["input_ids"]]
    hidden = set(batch.masked_positions_M.tolist())
    assert all(
        a == b for n, (a, b) in enumerate(zip(flat, batch.input_ids_BS.reshape(-1), strict=True)) if n not in hidden
    )
    assert [flat[n] for n in batch.masked_positions_M] == batch.masked_labels_M.tolist()
    marks = [[int(i in (0, 1, 2, 3, 1023)) for i in row["input_ids"]] for row in rows]
    assert [row["special_tokens_mask"] for row in rows] == marks
    assert any(map(any, marks))


def test_ratios_are_above_one_where_ours_is_better(script: Any) -> None:
    rig = script("_rig")
    assert rig.compared("speed", "tokens/s", [4.0, 8.0, 9.0], [2.0, 2.0, 3.0])["ratio"] == 3.0
    assert rig.compared("time", "s", [2.0], [4.0], less_is_better=True)["ratio"] == 2.0
    assert rig.fastest({"a": [1.0, 9.0, 2.0], "b": [3.0, 3.0, 3.0]}) == "b"
    assert rig.fastest({"a": [1.0, 9.0, 2.0], "b": [3.0, 3.0, 3.0]}, less_is_better=True) == "a"


def test_verdicts_and_the_table(script: Any) -> None:
    claims = script("_claims")
    assert claims.Claim(2.0, 4.0).verdict(1.9) == "below the floor"
    assert claims.Claim(2.0, 4.0).verdict(4.0) == "aim reached"
    assert claims.Claim(0.6, 0.3, more=False).verdict(0.5) == "floor reached"
    name = "start of fill-mask, base"
    rows = [{"benchmark": "start", "name": name, "ratio": 3.0, "ours": 1.0, "peer": 3.0, "unit": "s"}]
    assert f"| {name} | 1 | 3 | s | 3 | 2.5 | 4 | floor reached |  |" in claims.table(rows, missing=False)
    assert claims.table(rows, missing=True).count("not measured yet") == len(claims.CLAIMS) - 1
    cells = {line.count("|") for line in claims.table([*rows, {**rows[0], "name": "other"}], missing=True).splitlines()}
    assert cells == {10}


def test_the_page_has_the_newest_figure_of_every_row(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script("_claims")  # puts the folder on the path
    spec = importlib.util.spec_from_file_location("bench_main", FOLDER / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)
    monkeypatch.setattr(main, "HERE", tmp_path)
    (tmp_path / "results").mkdir()
    row = {"benchmark": "start", "name": "a", "ratio": 1.0}
    days = {"2026-01-01": ("X", [row, {**row, "name": "b"}]), "2026-01-02": ("X", [{**row, "ratio": 2.0}])}
    days |= {"2026-01-03": ("Y", [{**row, "ratio": 9.0}])}
    for date, (hardware, rows) in days.items():
        kept = {"hardware": hardware, "date": date, "rows": rows}
        (tmp_path / "results" / f"{date}.json").write_text(json.dumps(kept))
    newest = {row["name"]: (row["ratio"], row["date"]) for row in main.newest("X")["rows"]}
    assert newest == {"a": (2.0, "2026-01-02"), "b": (1.0, "2026-01-01")}


def test_every_command_has_its_script_and_every_script_its_command(script: Any) -> None:
    scripts = {path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_")}
    without_peer = {"quality", "monitor", "overlap", "ways"}
    assert {command.script for command in script("_claims").COMMANDS} == scripts - without_peer


def test_every_change_of_the_study_is_a_run(script: Any) -> None:
    quality = script("quality")
    recipe = FOLDER.parent / "runs" / "bases" / "quickstart.yaml"
    seen = set()
    for name, change in quality.CHANGES.items():
        words = quality.settings(change)
        vocabulary = words.pop("vocabulary")
        run = build_run(PretrainRun, recipe, [f"{key}={value}" for key, value in words.items()], {"prepared": "x"}).run
        seen.add((vocabulary, run.model_dump_json()))
        has_window = any(word in name for word in ("window", "near", "counted")) and "see-everything" not in name
        assert (run.model.attention_window is not None) == has_window, name
        assert (run.start.embeddings == "counted") == name.startswith("counted"), name
    assert len(seen) == len(quality.CHANGES), "two changes are the same run"


def test_the_study_s_table_has_the_best_first(script: Any) -> None:
    def ended(bits: float) -> dict[str, float]:
        return {"bits_per_byte": bits, "loss": 3 * bits, "step": 10, "tokens": 1_000_000}

    found = {"start": [ended(2.0), ended(2.3), ended(2.1)], "rate-2e-3": [ended(1.9)]}
    rows = script("quality").table(found).splitlines()[2:]
    assert rows[0] == "| rate-2e-3: `train.learning_rate=2e-3` | 1.900 | one seed | 5.700 | 10 | 1.00M |"
    assert rows[1] == "| start: `` | 2.100 | 2.000 to 2.300 | 6.300 | 10 | 1.00M |"


def test_a_folder_of_kept_runs_is_refused_for_other_facts(script: Any, tmp_path: Path) -> None:
    claim = script("_rig").claim_work
    claim(tmp_path / "work", {"minutes": 3.0})
    claim(tmp_path / "work", {"minutes": 3.0})
    with pytest.raises(SystemExit, match="give another folder"):
        claim(tmp_path / "work", {"minutes": 4.0})


# ------------------------------------------------------------------------------------------ on a GPU, without one


def test_the_peer_has_its_best_attention_on_every_device(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = script("_device")
    installed: set[str] = set()
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: name if name in installed else None)
    assert device.peer_attentions("cpu", "bf16") == ["sdpa", "eager"]
    assert device.peer_attentions("cuda", "bf16") == ["sdpa"]
    installed.add("flash_attn")
    assert device.peer_attentions("cuda", "bf16") == ["flash_attention_2"]
    assert device.peer_attentions("cuda", "fp32") == ["sdpa"]  # flash attention has no fp32
    assert device.peer_attentions("cpu", "bf16") == ["sdpa", "eager"]


def test_a_round_begins_and_ends_with_an_idle_device(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = script("_rig")
    done: list[str] = []
    monkeypatch.setattr(rig.time, "perf_counter", lambda: float(len(done.append("clock") or done)))
    monkeypatch.setattr(sys, "stdin", io.StringIO("go\ngo\nstop\n"))
    turns = rig.Turns(3, 2, settle=lambda: done.append("settle"))
    while turns.done():
        done.append("step")
    turns.last({})
    one_round = ["clock", "step", "step", "step", "settle", "clock"]
    assert done == ["step", "settle", *one_round, *one_round]
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_fine_tuning_s_clock_waits_for_the_device_at_both_ends(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    finetune = script("finetune")
    waited: list[int] = []
    clock = finetune.Clock(SimpleNamespace(device="cuda", steps=4))
    monkeypatch.setattr(finetune, "settle", lambda device: waited.append(len(clock.times)))
    for _ in range(5):
        clock.tick()
    assert waited == [0, 4]


def test_a_gpu_s_time_and_memory_are_its_own(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    device, asked = script("_device"), []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: asked.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: asked.append("reset"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 3 * 2**20)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 7 * 2**20)
    device.settle("cpu")
    assert asked == []
    device.settle("cuda")
    assert device.begin_memory("cuda") == 3.0
    assert device.peak_memory("cuda") == 7.0
    assert asked == ["synchronize", "reset"]
    assert device.peak_memory("cpu") >= device.begin_memory("cpu") > 10


def test_where_there_is_a_gpu_it_is_measured_first(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    script("_claims")  # beside which it is imported
    main, ran = importlib.import_module("benchmarks.__main__"), []
    figure = {"benchmark": "x", "name": "x", "ratio": 1.0, "ours": 1.0, "peer": 1.0, "unit": "s"}
    monkeypatch.setattr(main, "run", lambda name, words, threads: ran.append((name, words)) or ([figure], 0))
    monkeypatch.setattr(main, "keep", lambda rows: None)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "pretrain", "finetune", "memory"])
    main.main()
    assert not any("cuda" in words for _, words in ran)
    num_commands = len(ran)
    ran.clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    main.main()
    on_gpu = [name for name, words in ran if "cuda" in words]
    assert [name for name, _ in ran][: len(on_gpu)] == on_gpu
    assert set(on_gpu) == {"pretrain", "finetune", "memory"}
    assert len(ran) == num_commands + len(on_gpu)


def test_the_words_of_a_side_name_its_device(script: Any) -> None:
    sides = script("_pretraining")
    common = {"size": "tiny", "length": 8, "batch": 2, "precision": "bf16", "dropout": 0.1, "steps": 1, "warm": 1}
    options = argparse.Namespace(**common, rounds=1, threads=1)
    assert "--device" not in sides.words_for(options, Path("work"))
    assert sides.device_of(options) == "cpu"
    words = sides.words_for(argparse.Namespace(**vars(options), device="cuda"), Path("work"))
    assert words[words.index("--device") + 1] == "cuda"


def test_text_that_is_made_while_it_is_read(script: Any) -> None:
    texts = script("_synthetic")
    for kind in texts.KINDS:
        streams = texts.portions(kind, 70_000_000)
        assert [stream.num_bytes for stream in streams] == [32_000_000, 32_000_000, 6_000_000]
        block, again = (next(iter(streams[1]))[0] for _ in range(2))
        assert block == again != next(iter(streams[0]))[0]
        assert 0.95e6 < len(block) <= 1e6
        text = block.decode()
        assert (" " in text) == (kind == "spaces")
    found = run("prepare", "--parts", "vocabulary", "--gigabytes", "0.002", "--text", "none", "--vocab-size", "600")
    assert found["share_of_the_text"] == 1.0
    assert found["entries"] == 600
    assert found["ours"] == max(found["parent_mb"], found["worker_mb"])
