"""The whole way in seconds: on the Python documentation, on a user's own text, stopped and gone on, with bad input."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from remask.model.store import find_model

from ..faults.zygote import Done, Zygote

ROOT = Path(__file__).resolve().parents[2]
TINY = ["--set", "steps=3", "--set", "vocab_size=500", "--set", "preset=roberta_tiny", "--set", "seeds=1"]
TINY += ["--set", "task_epochs=1", "--set", "task_passages=160", "--set", "heldout_fraction=0.2"]
Quickstart = Callable[..., Done]

FEW = """The river froze early that year.
Nobody had repaired the mill since spring.
Trains were late because of snow.
My sister plays the cello badly.
An orange costs more than bread.
Three boats came back without nets.
"""


@pytest.fixture(scope="module")
def quickstart(zygote: Zygote) -> Quickstart:
    def run(*words: str | Path, **how: Any) -> Done:
        return zygote.run("quickstart", *words, **how)

    return run


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ninety small files, each about things of its own."""
    folder = tmp_path_factory.mktemp("texts")
    draw = random.Random(3)
    starts, ends = ("riv", "eng", "gard", "lett", "wind", "capt", "mark"), ("er", "ine", "en", "ow")
    things = [start + end for start in starts for end in ends]
    for number in range(90):
        mine = draw.sample(things, 5)
        sentences = [
            f"The {draw.choice(mine)} near {draw.choice(mine)} {i} was seen by {draw.choice(things)} in {number}."
            f" Nobody knew why the {draw.choice(mine)} stood there, or who had brought the {draw.choice(things)}."
            for i in range(14)
        ]
        (folder / f"{number:02d}.txt").write_text("\n".join(sentences))
    return folder


@pytest.fixture(scope="module")
def finished(texts: Path, quickstart: Quickstart, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "out"
    assert quickstart(f"{texts}-typo", "--out", out, *TINY).returncode == 66  # which does not claim the folder
    done = quickstart(texts, "--out", out, *TINY, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((out / "quickstart.json").read_text())
    return out


def test_the_python_documentation_all_the_way(tmp_path: Path) -> None:
    run = ROOT / "runs" / "smoke" / "quickstart.yaml"
    command = [sys.executable, "-m", "remask", "quickstart", str(run), "--out", "out", "--set", "steps=4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # two threads crawl beside another test
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    for words in ("What it fills in", "Held-out loss", "which library is this passage from?", "Try next:"):
        assert words in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    facts = json.loads((tmp_path / "out/quickstart.json").read_text())
    assert "remask serve out/model" in done.stdout
    assert find_model(tmp_path / "out") == tmp_path / "out/model"  # the folder that --out named is a MODEL, too
    assert facts["samples"]
    assert set(facts["task"]["starts"]) == {"pretrained", "counted", "scratch"}
    for start, name in facts["task"]["starts"].items():
        assert 0 < facts["task"][start]["median"] <= 1
        assert name in done.stdout
    train, test = (
        [json.loads(line) for line in (tmp_path / f"out/finetune/{name}.jsonl").read_text().splitlines()]
        for name in ("train", "test")
    )
    assert not {row["text"] for row in train} & {row["text"] for row in test}
    for row in train + test:
        assert row["label"].lower() not in row["text"].lower()


def test_the_report_is_one_file_with_the_numbers(finished: Path) -> None:
    html = (finished / "report.html").read_text()
    facts = json.loads((finished / "quickstart.json").read_text())
    assert f"{facts['evaluation']['loss']:.2f}" in html
    assert f"{facts['corpus']['unigram_nats']:.2f}" in html
    # Nothing is fetched; the one link is to the page of `remask serve` on the reader's own machine.
    for word in ("<script", "http://", "https://", " src="):
        assert word not in html.replace("http://127.0.0.1:8000", "")


def test_the_model_loads_in_transformers_and_answers_alike(finished: Path) -> None:
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    import remask

    tokenizer = AutoTokenizer.from_pretrained(finished / "model")
    model, info = AutoModelForMaskedLM.from_pretrained(finished / "model", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    text = "The <mask> of house 7 was seen by many people."
    ours = remask.load(finished / "model").fill_mask(text, top=3)
    batch = tokenizer(text, return_tensors="pt")
    place = int((batch["input_ids"][0] == tokenizer.mask_token_id).nonzero()[0])
    with torch.no_grad():
        probs = model(**batch).logits[0, place].softmax(-1)
    assert [a.token for a in ours] == probs.topk(3).indices.tolist()
    assert [a.score for a in ours] == pytest.approx(probs.topk(3).values.tolist(), abs=1e-4)


def test_the_same_command_again_trains_nothing(finished: Path, texts: Path, quickstart: Quickstart) -> None:
    before = (finished / "pretrain/metrics.jsonl").read_bytes()
    done = quickstart(texts, "--out", finished, *TINY)
    assert done.returncode == 0, done.stderr
    assert (finished / "pretrain/metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "stage, how, code",
    [
        ("count words", "SIGKILL", -9),
        ("pretrain", "SIGINT", 75),
        ("pretrain", "SIGKILL", -9),
        ("fine-tune (", "SIGINT", 75),
    ],
)
def test_stopped_anywhere_the_same_command_ends_with_the_same_model(
    finished: Path, texts: Path, tmp_path: Path, quickstart: Quickstart, stage: str, how: str, code: int
) -> None:
    stopped = quickstart(texts, "--out", tmp_path / "out", *TINY, signals=[(0.0, how)], line=stage)
    assert stopped.returncode == code, stopped.stderr
    assert not (tmp_path / "out" / "quickstart.json").exists()
    done = quickstart(texts, "--out", tmp_path / "out", *TINY)
    assert done.returncode == 0, done.stderr
    one, two = (load_file(folder / "model/model.safetensors") for folder in (finished, tmp_path / "out"))
    assert one.keys() == two.keys()
    assert all((one[name] == two[name]).all() for name in one)
    first, second = (json.loads((f / "quickstart.json").read_text())["task"] for f in (finished, tmp_path / "out"))
    assert first == second


@pytest.mark.parametrize(
    "make, code, message",
    [
        (lambda folder: None, 66, "no files there"),
        (lambda folder: (folder / "a.txt").write_text(""), 65, "no document is left"),
        (lambda folder: (folder / "a.txt").write_text(FEW), 65, "bytes in many documents"),
    ],
)
def test_a_corpus_that_is_too_small_says_so(
    make, code: int, message: str, tmp_path: Path, quickstart: Quickstart
) -> None:
    (tmp_path / "texts").mkdir()
    make(tmp_path / "texts")
    done = quickstart("texts", "--out", "out", *TINY, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out/model").exists()


def test_refusals(finished: Path, texts: Path, tmp_path: Path, quickstart: Quickstart) -> None:
    changed = quickstart(str(texts), "--out", str(finished), *TINY, "--minutes", "3")
    assert changed.returncode == 78
    assert "minutes 5.0 -> 3.0" in changed.stderr
    (tmp_path / "file").write_text("")
    unwritable = quickstart(str(texts), "--out", str(tmp_path / "file" / "out"), *TINY)
    assert unwritable.returncode == 73
    unknown = quickstart(str(texts), "--out", str(tmp_path / "x"), "--preset", "robeta_tiny")
    assert unknown.returncode == 78
    assert "did you mean roberta_tiny?" in unknown.stderr
