"""How much of the network learns, and how robustly; what rests is not touched by a bit, what stops goes on exactly."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from remask.config import build_run
from remask.errors import ConfigError
from remask.model.store import open_model
from remask.progress import Progress
from remask.tune.finetune import finetune
from remask.tune.settings import FinetuneRun
from remask.tune.single import prepare

WORDS = ("red green blue cold warm big small old new fast").split()  # noqa: SIM905


def write_rows(path: Path, count: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        for _ in range(count):
            words = list(rng.choice(WORDS, rng.integers(3, 6)))
            file.write(json.dumps({"text": " ".join(words), "label": "yes" if "red" in words else "no"}) + "\n")
    return path


def run_for(model: Path, train: Path, **options: Any) -> FinetuneRun:
    values = {
        "init": str(model), "train_file": str(train), "dev_file": str(train), "train.precision": "fp32",
        "train.device": "cpu", "batch.num_rows": 16, "train.epochs": 2.0, "train.learning_rate": 1e-2, **options,
    }  # fmt: skip
    return build_run(FinetuneRun, options=values).run


def tuned(run: FinetuneRun, out: Path) -> dict[str, torch.Tensor]:
    finetune(run, out, progress=Progress(quiet=True))
    return open_model(out).network.state_dict()


NORMS = ("embeddings.norm.", "attentions.0.norm.", "attentions.1.norm.", "ffns.0.norm.", "ffns.1.norm.", "norm.")


@pytest.mark.parametrize(
    "options, moved",
    [
        ({"learn": "heads"}, ()),
        ({"train.trainable_top_layers": 1}, ("encoder.attentions.1.", "encoder.ffns.1.", "encoder.norm.")),
        ({"learn": "lora"}, ("encoder.attentions.0.qkv.weight", "encoder.attentions.1.qkv.weight")),
        (
            {"learn": "lora", "lora.modules": ["down"], "lora.dropout": 0.1},
            ("encoder.ffns.0.down.weight", "encoder.ffns.1.down.weight"),
        ),
        (
            {"learn": "adalora", "adalora.modules": ["output"], "adalora.every": 1},
            ("encoder.attentions.0.output.weight", "encoder.attentions.1.output.weight"),
        ),
        ({"learn": "ia3", "ia3.modules": ["down"]}, ("encoder.ffns.0.down.weight", "encoder.ffns.1.down.weight")),
        ({"learn": "prefix"}, ()),
        ({"learn": "bottleneck"}, tuple(f"encoder.{name}" for name in NORMS)),
    ],
)
def test_what_rests_stays_as_it_was_bit_for_bit(task_model: Path, tmp_path: Path, options: Any, moved: Any) -> None:
    before = open_model(task_model).network.state_dict()
    run = run_for(task_model, write_rows(tmp_path / "t.jsonl", 64, 1), **options)
    after = tuned(run, tmp_path / "out")
    changed = {n for n in before if n.startswith("encoder.") and not torch.equal(before[n], after[n])}
    assert changed == {n for n in before if moved and n.startswith(moved)}
    fresh = prepare(run, Progress(quiet=True)).build(0).state_dict()
    assert not torch.equal(after["heads.classifier.weight"], fresh["heads.classifier.weight"])


def test_lora_without_an_adapter_folder_is_said(task_model: Path, tmp_path: Path) -> None:
    """transformers' classifier for this network reads the first state, not the mean of all."""
    train = write_rows(tmp_path / "t.jsonl", 32, 1)
    said = io.StringIO()
    run = run_for(task_model, train, learn="lora", pooling="mean", **{"train.epochs": 1.0})
    values = finetune(run, tmp_path / "out", progress=Progress(stream=said))
    line = "no adapter folder for peft: transformers has no class for this network (classes on the mean state)"
    assert line in said.getvalue()
    assert [line in note for note in values["notes"][-1:]] == [True]
    assert not (tmp_path / "out/model/adapter").exists()
    with_folder = prepare(run_for(task_model, train, learn="lora"), Progress(quiet=True))
    assert not any("adapter" in note for note in with_folder.problem.notes)


def test_lora_learns_and_its_adapter_answers_the_same_in_peft(task_model: Path, tmp_path: Path) -> None:
    """The merged model, the exported one, and the adapter in peft over the exported start say the same."""
    peft = pytest.importorskip("peft")
    import transformers

    import remask
    from remask.exports.hf import export_hf

    train = write_rows(tmp_path / "t.jsonl", 200, 1)
    run = run_for(task_model, train, **{"learn": "lora", "train.epochs": 6.0})
    values = finetune(run, tmp_path / "out", progress=Progress(quiet=True))
    assert values["metrics"]["accuracy"] > 0.9
    assert values["learn"] == "lora"
    texts = ["red big", "old new fast", "cold red warm"]
    ours = [answer.scores["yes"] for answer in remask.load(tmp_path / "out").classify(texts)]
    assert [score > 0.5 for score in ours] == [True, False, True]

    export_hf(tmp_path / "out", tmp_path / "hf")
    assert sorted(p.name for p in (tmp_path / "hf/adapter").iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors",
    ]  # fmt: skip
    merged = [answer.scores["yes"] for answer in remask.load(tmp_path / "hf").classify(texts)]
    assert merged == pytest.approx(ours, abs=1e-5)

    export_hf(task_model, tmp_path / "start")
    names = {"num_labels": 2, "attn_implementation": "eager"}
    kind: Any = transformers.AutoModelForSequenceClassification
    base = kind.from_pretrained(tmp_path / "start", **names)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "hf/adapter").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "start")
    with torch.inference_mode():
        logits = theirs(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    assert logits.softmax(1)[:, 1].tolist() == pytest.approx(ours, abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"learn": "lora", "lora.dropout": 0.2},
        {"learn": "adalora", "adalora.every": 1, "adalora.rank": 3, "adalora.modules": ["query", "output"]},
        {"learn": "prefix", "loss.consistency": 1.0, "loss.adversarial": 1},
    ],
    ids=["lora", "adalora", "prefix, robust"],
)
def test_a_stopped_run_goes_on_to_the_same_result(
    options: Any, task_model: Path, tmp_path: Path,
    stopped_in_evaluation: Callable[[], AbstractContextManager[None]],
) -> None:  # fmt: skip
    run = run_for(task_model, write_rows(tmp_path / "t.jsonl", 64, 1), dropout=0.1, **options)
    whole = tuned(run, tmp_path / "whole")
    with stopped_in_evaluation():
        finetune(run, tmp_path / "cut", progress=Progress(quiet=True))
    # A checkpoint in the middle of such a run is a model, too: merged.
    assert open_model(tmp_path / "cut/seed-0").network.state_dict().keys() == whole.keys()
    gone_on = tuned(run, tmp_path / "cut")
    assert all(torch.equal(whole[name], gone_on[name]) for name in whole)
    adapters = [tmp_path / name / "model/adapter/adapter_model.safetensors" for name in ("whole", "cut")]
    if options["learn"] != "prefix":  # which transformers' class for norms before the sub-layers does not take
        assert adapters[0].read_bytes() == adapters[1].read_bytes()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"learn": "lora", "train.trainable_top_layers": 1}, "already says what learns"),
        ({"learn": "heads", "init_weights": False}, "random ones would stay frozen"),
        ({"learn": "lora", "lora.dropout": 0.1, "train.compile": True}, "cannot be compiled"),
        ({"learn": "lora", "lora.modules": ["quer"]}, r"lora\.modules.*'query'"),
        ({"learn": "lor"}, "must be one of 'all', 'heads', .*'prefix'"),
    ],
)
def test_what_cannot_go_together_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_for(tmp_path, tmp_path, **options)


def test_a_prefix_and_its_exports_answer_alike(task_model: Path, tmp_path: Path) -> None:
    """What stays beside the model goes with it: into our own layout, ONNX, and a further fine-tuning."""
    import remask
    from remask.exports.hf import export_hf

    train = write_rows(tmp_path / "t.jsonl", 64, 1)
    for learn in ("prefix", "bottleneck"):
        run = run_for(task_model, train, learn=learn)
        finetune(run, tmp_path / learn, progress=Progress(quiet=True))
        texts = ["red big", "old new fast and cold red warm"]
        scores = [answer.scores["yes"] for answer in remask.load(tmp_path / learn).classify(texts)]
        folder = export_hf(tmp_path / learn, tmp_path / f"{learn}-hf").folder
        assert (folder / "model.json").is_file()  # transformers has no class for it
        assert not (folder / "adapter").exists()  # nor a prefix, with norms before the sub-layers
        again = [answer.scores["yes"] for answer in remask.load(folder).classify(texts)]
        assert again == pytest.approx(scores, abs=1e-5)
        with pytest.raises(ConfigError, match="already has a bottleneck or a prefix; learn: all goes on"):
            prepare(run_for(tmp_path / learn, train, learn="prefix"), Progress(quiet=True))
        assert tuned(run_for(tmp_path / learn, train, **{"train.epochs": 1.0}), tmp_path / f"{learn}-on")


@pytest.mark.parametrize("learn", ["prefix", "bottleneck"])
def test_a_graph_holds_what_is_beside_the_model(learn: str, task_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    from remask.exports.graph import Graph, write_graph
    from remask.model.outputs import run_network
    from remask.schema import Batch

    pytest.importorskip("onnxruntime")
    task = prepare(run_for(task_model, write_rows(tmp_path / "t.jsonl", 16, 1), learn=learn), Progress(quiet=True))
    network = task.build(0)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "bottleneck" in name or "prefix" in name:
                parameter.mul_(20)
    write_graph(tmp_path / "m.onnx", network.settings, network.head_settings, network.state_dict())
    batch = Batch(np.array([[0, 7, 8, 9, 2], [0, 9, 2, 1, 1]]), np.array([5, 3]))
    theirs = Graph(tmp_path / "m.onnx", num_threads=1)(batch)["logits"]
    np.testing.assert_allclose(theirs, run_network(network, batch)["logits"], rtol=1e-3, atol=1e-5)


def test_a_prefix_takes_positions_and_needs_full_attention(task_model: Path, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "t.jsonl", 16, 1)
    length = open_model(task_model).settings.max_length
    with pytest.raises(ConfigError, match=rf"prefix\.length = {length}: the model has {length} positions"):
        prepare(run_for(task_model, train, learn="prefix", **{"prefix.length": length}), Progress(quiet=True))
    task = prepare(run_for(task_model, train, learn="prefix", **{"prefix.length": 5}), Progress(quiet=True))
    settings = task.build(0).settings
    assert (settings.max_length, settings.num_positions) == (length - 5, open_model(task_model).settings.num_positions)


def test_two_dropouts_need_a_dropout(task_model: Path, tmp_path: Path) -> None:
    run = run_for(task_model, write_rows(tmp_path / "t.jsonl", 16, 1), dropout=0.0, **{"loss.consistency": 1.0})
    with pytest.raises(ConfigError, match=r"loss\.consistency = 1: compares two dropouts, and this model has none"):
        finetune(run, tmp_path / "out", progress=Progress(quiet=True))
