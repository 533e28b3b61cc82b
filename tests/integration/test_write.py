"""Writing from a file of pairs to texts: learning, resume, predict, evaluate, export, HTTP, and what is refused."""

from __future__ import annotations

import http.client
import json
import math
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import remask
from remask.answer.predict import PredictRun
from remask.answer.predict import main as predict
from remask.config import build_run
from remask.errors import ConfigError, DataError
from remask.exports.hf import export_hf
from remask.progress import Progress
from remask.tokenizer import load_tokenizer
from remask.tune.finetune import finetune
from remask.tune.settings import FinetuneRun

from ..serving import Served
from .conftest import TASK_WORDS

PAIRS = {"red": "cold", "green": "warm", "blue": "big", "small": "old", "new": "fast", "slow": "dark"}


def quiet() -> Progress:
    return Progress(quiet=True)


def write_pairs(path: Path, count: int, seed: int, **more: Any) -> Path:
    """A little language: every word has another, and the order turns around."""
    draw = random.Random(seed)
    with path.open("w") as file:
        for _ in range(count):
            words = draw.choices(list(PAIRS), k=draw.randint(1, 3))
            target = " ".join(PAIRS[word] for word in reversed(words))
            file.write(json.dumps({"source": " " + " ".join(words), "target": " " + target, **more}) + "\n")
    return path


def run_for(init: Path, train: Path, dev: Path | None, **options: Any) -> FinetuneRun:
    given: dict[str, Any] = {
        "task": "write", "init": str(init), "train_file": str(train), "dev_file": None if dev is None else str(dev),
        "batch.num_tokens": 256, "train.precision": "fp32", "train.learning_rate": 4e-3, "train.epochs": 3.0,
        "rows.target_length": 8, "loss.label_smoothing": 0.0,
    }  # fmt: skip
    return build_run(FinetuneRun, options={**given, **options}).run


@pytest.fixture(scope="module")
def encoder(task_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RoBERTa's form, with weights large enough for so narrow a network to learn soon."""
    from remask.model.network import build_network
    from remask.model.settings import HeadSettings
    from remask.model.store import open_model, save_model

    known = open_model(task_model)
    settings = known.settings.model_copy(update={"norm": "post", "init_std": 0.1})
    folder = tmp_path_factory.mktemp("encoder") / "model"
    save_model(folder, build_network(settings, HeadSettings(masked_lm=True), 0), known.tokenizer_folder)
    return folder


@pytest.fixture(scope="module")
def taught(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned the little language."""
    folder = tmp_path_factory.mktemp("write")
    train = write_pairs(folder / "train.jsonl", 1200, 1)
    dev = write_pairs(folder / "dev.jsonl", 60, 2)
    values = finetune(run_for(encoder, train, dev, **{"train.epochs": 9.0}), folder / "out", progress=quiet())
    assert values["metric"] == "likelihood"
    assert values["metrics"]["chrf"] > 70, values["metrics"]
    assert values["metrics"]["perplexity"] < 1.6
    assert values["data"]["baseline"]["chrf"] < 40  # the source itself
    assert values["data"]["baseline_words"] == "the source itself"
    assert values["runs"][0]["signatures"]["bleu"].startswith("nrefs:1|case:mixed")
    return folder


def test_it_writes_about_its_source(taught: Path) -> None:
    model = remask.load(taught / "out")
    assert "write" in model.methods
    one = model.write(" red green")
    assert (one.text, one.finished, one.how) == ("warm cold", True, "decoder")
    several = model.write([" red green", " blue"], beams=3)
    assert [written.text for written in several] == ["warm cold", "big"]
    assert model.write(" red green", by="sampling", top_k=1).text == "warm cold"
    source, other = " slow red new. red green red. warm cold.", " blue"
    taken = model.write([source, other], by="sentences", max_length=6)
    assert taken[0].text in ("slow red new.", "red green red.", "warm cold.")  # the source's own, word for word
    assert [taken[1].text, taken[1].finished] == ["blue", True]
    assert taken[0] == model.write(source, by="sentences", max_length=6)
    with pytest.raises(ConfigError, match="beam_size"):
        model.write(" red", beam_size=3)
    with pytest.raises(DataError, match="fills masks"):
        model.write(" red", order="left")
    look = model.look_across(" red green", "warm cold")
    assert look.attentions.shape == (2, 2, len(look.written), len(look.source))
    np.testing.assert_allclose(look.attentions.sum(-1), 1.0, atol=1e-4)


def test_a_model_without_a_masked_lm_starts_at_the_frequencies(encoder: Path, tmp_path: Path) -> None:
    """Its long vectors under a fresh head would write with certainty, and wrongly."""
    from remask.model.network import with_heads
    from remask.model.settings import HeadSettings
    from remask.model.store import open_model, save_model

    known = open_model(encoder)
    network = with_heads(known.network, HeadSettings(), 0)
    with torch.no_grad():
        network.encoder.embeddings.tokens.weight.mul_(20.0)
    save_model(tmp_path / "vectors", network, known.tokenizer_folder)
    rows = [{"source": f" {word}", "target": " red" if number % 4 else " blue"} for number, word in enumerate(PAIRS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 4))
    options = {"train.epochs": 1.0, "train.learning_rate": 1e-9}
    run = run_for(tmp_path / "vectors", tmp_path / "rows.jsonl", tmp_path / "rows.jsonl", **options)
    values = finetune(run, tmp_path / "out", progress=quiet())
    tokenizer = load_tokenizer(known.tokenizer_folder)
    ids = np.concatenate([np.append(tokenizer.encode(row["target"]), tokenizer.eos_id) for row in rows * 4])
    counts_V = np.bincount(ids, minlength=tokenizer.vocab_size) + 1
    by_frequency = -np.log(counts_V / counts_V.sum())[ids].mean()
    assert math.log(values["metrics"]["perplexity"]) == pytest.approx(by_frequency, abs=1e-3)


def test_a_stopped_run_goes_on_to_the_same_bits(
    encoder: Path, tmp_path: Path, stopped_in_evaluation: Callable[[], AbstractContextManager[None]]
) -> None:
    train, dev = write_pairs(tmp_path / "train.jsonl", 150, 1), write_pairs(tmp_path / "dev.jsonl", 12, 2)
    for form in ("shared", "copied"):
        options = {"decoder.weights": form, "dropout": 0.1, "train.epochs": 2.0}
        run = run_for(encoder, train, dev, **options)
        whole = finetune(run, tmp_path / f"{form}-whole", progress=quiet())
        with stopped_in_evaluation():
            finetune(run, tmp_path / f"{form}-cut", progress=quiet())
        gone_on = finetune(run, tmp_path / f"{form}-cut", progress=quiet())
        assert gone_on["runs"][0]["history"] == whole["runs"][0]["history"]
        weights = [(tmp_path / f"{form}-{name}" / "model/model.safetensors").read_bytes() for name in ("whole", "cut")]
        assert weights[0] == weights[1]


def test_predict_evaluate_and_export_say_the_same(taught: Path, tmp_path: Path) -> None:
    from remask.evaluation.file import open_both, score_file
    from remask.evaluation.models import Scorer
    from remask.evaluation.settings import FileTable

    run = build_run(PredictRun, options={"model": str(taught / "out"), "file": str(taught / "dev.jsonl")}).run
    facts = predict(run, tmp_path / "said.jsonl", progress=quiet())
    assert facts["rows"] == 60
    said = [json.loads(line)["written"] for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    export_hf(taught / "out", tmp_path / "hf")
    texts = [json.loads(line)["source"] for line in (taught / "dev.jsonl").read_text().splitlines()]
    assert [written.text for written in remask.load(tmp_path / "hf").write(texts)] == said

    reader, problem = open_both(taught / "out", None, taught / "dev.jsonl", FileTable(), None)
    values = score_file(
        reader, problem, taught / "dev.jsonl", tmp_path / "scored", Scorer(torch.device("cpu"), "fp32", None)
    )
    kept = json.loads((taught / "out/results.json").read_bytes())
    assert values["metrics"]["chrf"] == pytest.approx(kept["metrics"]["chrf"])
    assert values["p_against_simple"]["chrf"] < 0.05

    beams = build_run(PredictRun, options={**json.loads(run.model_dump_json()), "decode.beams": 3}).run
    predict(beams, tmp_path / "beams.jsonl", progress=quiet())


def test_a_second_vocabulary(encoder: Path, tiny_tokenizers: dict[str, Path], tmp_path: Path) -> None:
    train, dev = write_pairs(tmp_path / "train.jsonl", 60, 1), write_pairs(tmp_path / "dev.jsonl", 8, 2)
    options = {"target_tokenizer": str(tiny_tokenizers["byte-bpe"]), "train.epochs": 1.0, "rows.target_length": 40}
    finetune(run_for(encoder, train, dev, **options), tmp_path / "out", progress=quiet())
    model = remask.load(tmp_path / "out")
    assert model.reader.targets is not None
    assert model.heads.writer.vocab_size == model.reader.targets.vocab_size != model.tokenizer.vocab_size
    assert len(model.write([" red", " blue green"])) == 2
    unable = run_for(encoder, train, dev, **{**options, "target_tokenizer": str(tiny_tokenizers["wordpiece"])})
    (tmp_path / "train.jsonl").write_text('{"source": " red", "target": "\\u732b"}\n' * 9)
    with pytest.raises(DataError, match="the vocabulary cannot spell"):
        finetune(unable, tmp_path / "unable", progress=quiet())


def test_an_encoder_alone_fills_masks(task_model: Path) -> None:
    model = remask.load(task_model)
    for order in ("left", "certainty"):
        written = model.write(" red green", order=order, max_length=5)
        assert written.how == "masks"
        assert written.text.startswith(" red green")
        assert written.tokens == 5
    assert model.write([" red green", " blue"], max_length=5)[0].text == model.write(" red green", max_length=5).text
    with pytest.raises(DataError, match=r"beams = 4: this model has no decoder"):
        model.write(" red", beams=4)


def test_bad_input(encoder: Path, taught: Path, tmp_path: Path) -> None:
    def tried(rows: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        return finetune(run_for(encoder, path, path, **{"train.epochs": 1.0, **options}), out, progress=quiet())

    good = [{"source": f" {word}", "target": " red"} for word in TASK_WORDS]
    with pytest.raises(DataError, match=r"rows.jsonl:17: column 'target' has no text; mend it, or leave such rows out"):
        tried([*good, {"source": " red", "target": " "}])
    assert tried([*good, {"source": " red", "target": " "}], **{"table.bad_rows": "drop"})["data"]["dropped"] == {
        "empty text": 2  # the same file trains and scores
    }
    long = {"source": " red" * 80, "target": " red" * 30}
    assert tried([*good, long])["texts_cut"] == 4  # source and target, in both files
    with pytest.raises(ConfigError, match="windows"):
        tried(good, **{"rows.long_texts": "windows"})
    with pytest.raises(ConfigError, match=r"decoder\.num_layers = 5: the encoder has 2 layers"):
        tried(good, **{"decoder.num_layers": 5})
    with pytest.raises(ConfigError, match="learn: lora is not for a task that writes"):
        tried(good, learn="lora")
    with pytest.raises(ConfigError, match="no column 'target'"):
        tried([{"source": " red"}])
    classes = build_run(PredictRun, options={"model": str(encoder), "file": str(taught / "dev.jsonl")}).run
    with pytest.raises(DataError, match="has no task's head"):
        predict(classes, tmp_path / "said.jsonl", progress=quiet())


def test_over_http(taught: Path, task_model: Path) -> None:
    server = Served([f"plain={task_model}", f"lang={taught / 'out'}"])  # without a name, the one with a decoder writes
    try:
        status, body, _ = server.ask("/v1/write", {"inputs": [" red green", " blue"], "attentions": True})
        assert status == 200, body
        assert [one["text"] for one in body["outputs"]] == ["warm cold", "big"]
        look = body["outputs"][0]["look"]
        assert len(look["attentions"][0][0]) == len(look["written"])
        status, body, _ = server.ask("/v1/write", {"model": "plain", "inputs": " red", "max_length": 3})
        assert (status, body["outputs"][0]["how"]) == (200, "masks")
        status, body, _ = server.ask("/v1/write", {"model": "plain", "inputs": " red", "beams": 3})
        assert (status, body["error"]["code"]) == (422, "cannot")
        events = streamed(server, {"inputs": " red green", "beams": 1, "stream": True})
        assert [name for name, _ in events] == ["text"] * (len(events) - 1) + ["done"]
        assert "".join(data["text"] for name, data in events if name == "text").strip() == "warm cold"
        assert events[-1][1]["outputs"][0]["text"] == "warm cold"
        status, body, _ = server.ask("/v1/write", {"inputs": [" warm. red.", " blue"], "by": "sentences"})
        assert (status, body["outputs"][1]["text"]) == (200, "blue")
        status, body, _ = server.ask("/v1/write", {"inputs": " red. blue", "by": "sentences", "stream": True})
        assert (status, "as a whole" in body["error"]["message"]) == (422, True)
        status, body, _ = server.ask("/v1/write", {"model": "plain", "inputs": " red", "by": "sentences"})
        assert (status, "by = sentences" in body["error"]["message"]) == (422, True)
        status, body, _ = server.ask("/v1/write", {"inputs": " red green", "beams": 3, "stream": True})
        assert (status, "beams" in body["error"]["message"]) == (422, True)
        assert server.ask("/v1/write", {"model": "none", "inputs": " red", "stream": True})[0] == 404
        assert server.ask("/v1/write", {"inputs": [" red", " blue"], "stream": True})[0] == 422
        assert server.ask("/v1/classify", {"inputs": " red"})[0] == 422
    finally:
        server.close()


def streamed(server: Any, body: dict[str, Any]) -> list[tuple[str, Any]]:
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    link.request("POST", "/v1/write", json.dumps(body), {"Content-Type": "application/json"})
    response = link.getresponse()
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/event-stream")
    found = []
    for block in response.read().decode().strip().split("\n\n"):
        name, data = block.split("\n", 1)
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    link.close()
    return found
