"""The folder around an ONNX graph: files, card, bounds; what is refused leaves nothing behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

import remask
from remask.__main__ import cli
from remask.answer import agreement
from remask.answer.scores import Scores
from remask.errors import ConfigError, DataError, OutputError, UnavailableError
from remask.exports import graph
from remask.exports import onnx as onnx_folder
from remask.exports.card import snippet
from remask.exports.onnx import Bound, export_onnx
from remask.model.network import build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.model.store import save_model
from remask.schema import Batch
from remask.tokenizer import load_tokenizer

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SMALL: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 16, "num_heads": 2, "num_layers": 1, "ffn_size": 24, "max_length": 60,
    "init_std": 0.2,
}  # fmt: skip


def make(folder: Path, tokenizer: Path, heads: HeadSettings, labels: Any = None, **changes: Any) -> Path:
    save_model(folder, build_network(ModelSettings(**(SMALL | changes)), heads, seed=1), tokenizer, labels)
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizers: dict[str, Path]) -> Path:
    folder = tmp_path_factory.mktemp("classifier") / "model"
    return make(folder, tiny_tokenizers["byte-bpe"], HeadSettings(num_classes=2), ("bad", "good"))


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, classifier: Path) -> Path:
    """The classifier as an ONNX folder."""
    folder = tmp_path_factory.mktemp("traced") / "onnx"
    export_onnx(classifier, folder, card={"title": "Mine", "license": "mit"})
    return folder


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, traced: Path) -> None:
    """Tracing takes seconds and is tested elsewhere: the classifier's graph is taken as it is."""

    def copy(path: Path, *_: Any) -> list[str]:
        path.write_bytes((traced / "onnx/model.onnx").read_bytes())
        return ["logits"]

    monkeypatch.setattr(onnx_folder, "write_graph", copy)


def run_card(folder: Path) -> str:
    """What the code of a card prints, in its folder, as it stands there."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), flags=re.S)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_folder_holds_what_tools_look_for_and_its_card_runs(traced: Path, classifier: Path) -> None:
    names = {path.relative_to(traced).as_posix() for path in traced.rglob("*") if path.is_file()}
    assert {"onnx/model.onnx", "config.json", "tokenizer.json", "tokenizer_config.json", "README.md"} <= names
    config = json.loads((traced / "config.json").read_text())
    assert config["architectures"] == ["RobertaForSequenceClassification"]
    results = json.loads((traced / "results.json").read_text())
    assert results["largest_difference"] <= 1e-4 == results["tolerance"]
    assert (results["inputs"], results["outputs"]) == (["input_ids", "attention_mask"], ["logits"])
    text = (traced / "README.md").read_text()
    front = yaml.safe_load(text.split("---")[1])
    assert (front["library_name"], front["pipeline_tag"], front["license"]) == (
        "onnxruntime",
        "text-classification",
        "mit",
    )
    assert "# Mine" in text
    transformers = pytest.importorskip("transformers")
    assert transformers.AutoConfig.from_pretrained(traced).id2label == {0: "bad", 1: "good"}
    assert len(transformers.AutoTokenizer.from_pretrained(traced)("A text.")["input_ids"]) > 2
    said = [label.label for label in remask.load(classifier).classify(["A text.", "Another, longer text."])]
    assert run_card(traced).strip() == str(said)


def test_remask_itself_says_how_to_run_it(traced: Path) -> None:
    with pytest.raises(DataError, match=r"holds an ONNX graph.*README\.md shows how to run it"):
        remask.load(traced)


@pytest.mark.parametrize("pooling", ["mean"])
def test_an_encoder_alone_in_a_form_without_a_class(
    tmp_path: Path, tiny_tokenizers: dict[str, Path], pooling: Any
) -> None:
    heads = HeadSettings(masked_lm=True, pooling=pooling)
    model = make(tmp_path / "own", tiny_tokenizers["wordpiece"], heads, vocab_size=80, num_segments=2, sharing="ffn")
    artifact = export_onnx(model, tmp_path / "out", embedding=True)
    assert artifact.counts["outputs"] == ["last_hidden_state"]
    assert artifact.counts["class"] is None
    assert json.loads((tmp_path / "out/config.json").read_text())["model_type"] == "remask"
    assert (tmp_path / "out/modules.json").is_file()
    vectors = remask.load(model).embed(["A text.", "Another, longer text."])
    printed = np.array([float(word) for word in re.findall(r"-?\d\.\d*(?:e-\d+)?", run_card(tmp_path / "out"))])
    np.testing.assert_allclose(printed.reshape(2, 2), vectors @ vectors.T, atol=1e-4)


@pytest.mark.parametrize(
    ("heads", "shape"),
    [
        (HeadSettings(num_classes=3, multilabel=True), (2, 3)),
        (HeadSettings(num_classes=1), (2, 1)),
        (HeadSettings(num_tags=3), None),
        (HeadSettings(span=True), None),
        (HeadSettings(choice=True), (1, 2)),
        (HeadSettings(masked_lm=True), None),
        (HeadSettings(), None),
    ],
    ids=["multilabel", "regress", "tags", "spans", "choice", "masked", "states"],
)
def test_the_code_of_every_card_runs(
    tmp_path: Path, tiny_tokenizers: dict[str, Path], monkeypatch: pytest.MonkeyPatch, heads: HeadSettings, shape: Any
) -> None:
    """With a session in place of ONNX Runtime's that gives outputs of the right shapes."""
    import onnxruntime

    tokenizer = load_tokenizer(tiny_tokenizers["wordpiece"])
    tokenizer.save(tmp_path / "tokenizer")
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {str(i): f"label {i}" for i in range(3)}}))

    class Session:
        def __init__(self, path: str, providers: list[str]) -> None:
            assert path == "the/file.onnx"

        def run(self, names: list[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
            size = inputs["input_ids"].shape
            assert inputs["attention_mask"].shape == size == inputs["token_type_ids"].shape
            widths = {"start_logits": (), "end_logits": (), "last_hidden_state": (4,)}
            outer = (80,) if heads.masked_lm else (3,)
            return [np.ones(shape or (*size, *widths.get(name, outer)), np.float32) for name in names]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((tmp_path / "tokenizer/tokenizer.json").read_bytes())
    results = {"file": "the/file.onnx", "inputs": ["input_ids", "attention_mask", "token_type_ids"]}
    code = "\n".join(snippet(ModelSettings(**SMALL), heads, tokenizer, results))
    exec(compile(code, "card", "exec"), {})


# ------------------------------------------------------------------------------------------------------ refusals


def test_a_graph_that_differs_is_refused_and_leaves_nothing(
    tmp_path: Path, classifier: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(graph.Graph):
        def __call__(self, batch: Batch) -> dict[str, np.ndarray]:
            said = super().__call__(batch)
            return {name: values + (2e-4 if batch.input_ids_BS.shape[0] == 3 else 0) for name, values in said.items()}

    monkeypatch.setattr(onnx_folder, "Graph", Wrong)
    with pytest.raises(DataError, match=r"differs from its source by 0\.0002 on real sentences, more than 0\.0001"):
        export_onnx(classifier, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_nan_is_no_small_difference(classifier: Path, tiny_tokenizers: dict[str, Path]) -> None:
    batch = Batch(np.zeros((1, 4), np.int64), np.array([4]))

    def source(_: Batch) -> dict[str, np.ndarray]:
        return {"logits": np.zeros((1, 2))}

    def broken(_: Batch) -> dict[str, np.ndarray]:
        return {"logits": np.array([[0.0, np.nan]])}

    with pytest.raises(DataError, match="differs from its source by nan"):
        agreement.check(source, broken, iter([batch, batch]))
    with pytest.raises(DataError, match="shape"):
        agreement.check(source, lambda _: {"logits": np.zeros((1, 3))}, iter([batch]))


def test_int8_is_bound_by_a_given_set_or_by_agreement(tmp_path: Path, classifier: Path, quick: None) -> None:
    artifact = export_onnx(classifier, tmp_path / "plain", to="int8", bound=Bound(min_agreement=0.5))
    counts = artifact.counts
    assert counts["agreement"]["what"] == "equal predictions"
    assert 0.5 <= counts["agreement"]["value"] <= 1
    assert counts["int8_difference"] > counts["largest_difference"]
    assert counts["bytes"] < counts["fp32_bytes"]
    assert not (tmp_path / "plain/onnx/model.onnx").exists()
    text = (tmp_path / "plain/README.md").read_text()
    assert "no accuracy was measured" in text
    assert "label" not in run_card(tmp_path / "plain")
    with pytest.raises(DataError, match=r"equal predictions .* below the bound of 2"):
        export_onnx(classifier, tmp_path / "no", to="int8", bound=Bound(min_agreement=2))
    scores = iter([0.9, 0.8, 0.9, 0.895])

    def measure(answer: agreement.Answerer) -> Scores:
        return Scores("accuracy", {"accuracy": next(scores), "f1": 0.5}, 40)

    with pytest.raises(DataError, match=r"lowers accuracy on dev.csv from 0.9000 to 0.8000, by 0.1000, more than"):
        export_onnx(classifier, tmp_path / "no", to="int8", bound=Bound(measure, "dev.csv"))
    assert {path.name for path in tmp_path.iterdir()} == {"plain"}
    export_onnx(classifier, tmp_path / "yes", to="int8", bound=Bound(measure, "dev.csv", keep=("down",)))
    assert "| accuracy | 0.9000 | 0.8950 |" in (tmp_path / "yes/README.md").read_text()
    assert "Kept in fp32: down." in (tmp_path / "yes/README.md").read_text()
    assert json.loads((tmp_path / "yes/results.json").read_text())["scores"]["drop"] == pytest.approx(0.005)
    with pytest.raises(ConfigError, match="keep = dwon: no weight"):
        export_onnx(classifier, tmp_path / "no", to="int8", bound=Bound(keep=("dwon",)))
    with pytest.raises(OutputError, match="exists already"):
        export_onnx(classifier, tmp_path / "yes", to="int8")


def test_the_command_scores_before_and_after(tmp_path: Path, classifier: Path, quick: None) -> None:
    lines = [f"The {word} dog,{label}" for word in ("quick", "lazy", "brown") for label in ("bad", "good")]
    (tmp_path / "dev.csv").write_text("\n".join(["what,is", *lines]) + "\n")

    def invoke(*words: str) -> Any:
        out = ["export", str(classifier), "--out", str(tmp_path / "out"), *words]
        return CliRunner().invoke(cli, out)

    words = ("--to", "int8", "--eval", str(tmp_path / "dev.csv"), "--text", "what", "--label", "is", "--json")
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    scores = json.loads(done.stdout)["scores"]
    assert (scores["examples"], scores["metric"], scores["set"]) == (6, "accuracy", "dev.csv")
    assert scores["before"]["accuracy"] == 0.5  # every text is there with both labels
    assert isinstance(invoke("--to", "onnx", "--eval", "x").exception, ConfigError)
    assert isinstance(invoke("--to", "int8", "--eval", "x", "--embedding").exception, ConfigError)


def test_a_masked_lm_is_scored_by_masked_words(tmp_path: Path, tiny_tokenizers: dict[str, Path]) -> None:
    from remask.answer.scores import scorer

    model = make(tmp_path / "own", tiny_tokenizers["byte-bpe"], HeadSettings(masked_lm=True))
    (tmp_path / "texts.jsonl").write_text('{"text": "The quick brown fox"}\n{"text": "jumps over"}\n')
    score = scorer(model, tmp_path / "texts.jsonl", {})
    tokenizer = load_tokenizer(tiny_tokenizers["byte-bpe"])
    first = [int(tokenizer.encode(text)[0]) for text in ("The quick brown fox", "jumps over")]

    def says(token: int) -> Any:
        def answer(batch: Batch) -> dict[str, np.ndarray]:
            logits = np.zeros((*batch.input_ids_BS.shape, 300), np.float32)
            logits[..., token] = 1
            return {"logits": logits}

        return answer

    found = [score(says(token)).metrics["masked_accuracy"] for token in {*first, 299}]
    assert max(found) > 0
    assert min(found) == 0


def test_without_the_extra_there_is_a_line_that_says_so(
    tmp_path: Path, classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UnavailableError, match=r"onnxruntime is not installed: .*\[onnx\]"):
        export_onnx(classifier, tmp_path / "out")
