"""`evaluate` from the command line: trained once by fingerprint, scored alone, shared minutes, MNLI first, ensembles,
the leaderboard's files, and what needs no training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from remask.__main__ import cli
from remask.config import runs_folder
from remask.errors import ConfigError, DataError, MissingInputError, RemaskError, UsageError
from remask.evaluation import models
from remask.evaluation.evaluate import evaluate
from remask.evaluation.settings import EvaluateRun
from remask.evaluation.table import render
from remask.progress import Progress
from remask.tune import single
from remask.tune.settings import FinetuneRun
from remask.tune.single import prepare

WORDS = ["red", "green", "blue", "cold", "warm", "big", "small", "old", "new", "fast"]
FAST = ("--epochs", 1, "--precision", "fp32", "--device", "cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is left in the user's cache, and no hash of a file that a test has changed since."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    models.file_hash.cache_clear()
    models.model_hash.cache_clear()
    return tmp_path / "cache" / "remask" / "evaluate"


def invoke(*words: Any) -> dict[str, Any]:
    """Run a verb with --json; errors come through as exceptions."""
    result = CliRunner().invoke(cli, [str(word) for word in (*words, "--json", "-q")], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def write_lines(path: Path, lines: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines))
    return path


def write_cola(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    for name, count in (("train.tsv", 160), ("dev.tsv", 40)):
        texts = [list(rng.choice(WORDS, 3)) for _ in range(count)]
        write_lines(folder / "CoLA" / name, [f"x\t{int('red' in words)}\t\t{' '.join(words)}" for words in texts])
    return folder


def write_inference(folder: Path) -> Path:
    """MNLI with both dev files and all three test files, and RTE."""
    rng = np.random.default_rng(1)
    labels = ("entailment", "neutral", "contradiction")

    def pairs(count: int) -> list[tuple[str, str, str]]:
        return [(*rng.choice(WORDS, 2), labels[i % 3]) for i in range(count)]

    for name, count in (("train", 48), ("dev_matched", 24), ("dev_mismatched", 18)):
        rows = [f"{i}\t{a}\t{b}\t{label}" for i, (a, b, label) in enumerate(pairs(count))]
        write_lines(folder / f"MNLI/{name}.tsv", ["index\tsentence1\tsentence2\tgold_label", *rows])
    for name in ("MNLI/test_matched", "MNLI/test_mismatched", "diagnostic/diagnostic"):
        rows = [f"{i}\t{a}\t{b}" for i, (a, b, _) in enumerate(pairs(5))]
        write_lines(folder / f"{name}.tsv", ["index\tsentence1\tsentence2", *rows])
    for name in ("train", "dev"):
        rows = [f"{i}\t{a}\t{b}\t{('entailment', 'not_entailment')[i % 2]}" for i, (a, b, _) in enumerate(pairs(32))]
        write_lines(folder / f"RTE/{name}.tsv", ["index\tsentence1\tsentence2\tlabel", *rows])
    return folder


def trainings(monkeypatch: pytest.MonkeyPatch) -> list[FinetuneRun]:
    """The fine-tunings from here on."""
    seen: list[FinetuneRun] = []
    train = single.tune_single

    def noted(run: FinetuneRun, *rest: Any, **named: Any) -> Any:
        seen.append(run)
        return train(run, *rest, **named)

    monkeypatch.setattr(single, "tune_single", noted)
    return seen


def test_fine_tuned_once_and_then_only_scored(
    task_model: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_cola(tmp_path / "data" / "glue").parent
    seen = trainings(monkeypatch)
    words = ("--tasks", "glue", "--data", data, *FAST, "--max-train", 64)
    values = invoke("evaluate", task_model, *words, "--out", tmp_path / "out")
    assert set(values["tasks"]) == {"glue:cola"}
    assert "glue:rte" in values["skipped"]
    assert "glue:cola.matthews" in values["metrics"]
    assert [run.task for run in seen] == ["glue:cola"]
    assert (seen[0].patience, seen[0].batch.num_rows) == (4, 16)
    # The same question again trains nothing; another one gets its own folder beside it.
    assert invoke("evaluate", task_model, *words, "--out", tmp_path / "out") == values
    assert len(seen) == 1
    invoke("evaluate", task_model, *words[:-1], 32, "--out", tmp_path / "out")
    assert [run.max_train for run in seen] == [64, 32]
    assert len(list((tmp_path / "out").glob("glue-cola-*"))) == 2
    # A changed file is another question, too.
    with (data / "glue/CoLA/train.tsv").open("a") as file:
        file.write("x\t0\t\tgreen blue old\n")
    models.file_hash.cache_clear()
    invoke("evaluate", task_model, *words, "--out", tmp_path / "out")
    assert len(seen) == 3
    # The model that was made is scored as it is, without --out, and leaves nothing behind.
    scored = invoke("evaluate", values["tasks"]["glue:cola"]["model"], "--tasks", "glue:cola", "--data", data)
    assert scored["metrics"] == pytest.approx(values["metrics"], abs=0.05)  # in this machine's own precision
    assert len(seen) == 3
    assert not cache.exists()
    assert "glue:cola" in render(scored)


def test_without_out_models_go_to_the_users_cache_and_more_seeds_join(
    task_model: Path, tmp_path: Path, cache: Path
) -> None:
    data = write_cola(tmp_path / "glue").parent
    words = ("evaluate", task_model, "--tasks", "glue:cola", "--data", data, *FAST)
    first = invoke(*words)
    assert "ensemble" not in first["tasks"]["glue:cola"]
    folder = next(cache.glob("glue-cola-*"))
    before = (folder / "seed-0/result.json").stat().st_mtime_ns
    both = invoke(*words, "--seeds", 2)
    assert (folder / "seed-0/result.json").stat().st_mtime_ns == before
    assert len(both["tasks"]["glue:cola"]["spread"]["matthews"]["seeds"]) == 2
    assert both["tasks"]["glue:cola"]["ensemble"]["models"] == 2
    assert "matthews" in both["tasks"]["glue:cola"]["ensemble"]["metrics"]
    assert "ensemble of 2" in render(both)


def test_from_scratch_is_kept_apart_and_marked(
    task_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_cola(tmp_path / "glue").parent
    words = ("--tasks", "glue:cola", "--data", data, *FAST, "--out", tmp_path / "out", "--max-train", 32, "--seed", 5)
    first = invoke("evaluate", task_model, *words)
    seen = trainings(monkeypatch)
    scratch = invoke("evaluate", task_model, *words, "--from-scratch")
    assert [run.init_weights for run in seen] == [False]
    assert (first["init_weights"], scratch["init_weights"]) == (True, False)
    assert len(list((tmp_path / "out").glob("glue-cola-*"))) == 2
    assert "glue:cola (from scratch)  matthews" in render(scratch)
    assert "from scratch" not in render(first)
    weights = [
        (Path(one["tasks"]["glue:cola"]["model"]) / "model.safetensors").read_bytes() for one in (first, scratch)
    ]
    assert weights[0] != weights[1]
    # Either is trained once; a model that has the head already has to begin anew, too.
    assert invoke("evaluate", task_model, *words)["metrics"] == first["metrics"]
    assert invoke("evaluate", task_model, *words, "--from-scratch") == scratch
    assert len(seen) == 1
    invoke("evaluate", first["tasks"]["glue:cola"]["model"], *words, "--from-scratch")
    assert [run.init_weights for run in seen] == [False, False]
    for word, message in (("--grid", "grid: is made for"), ("--from-mnli", "from_mnli: is made for")):
        with pytest.raises(ConfigError, match=message):
            invoke("evaluate", task_model, *words, "--from-scratch", word)
    with pytest.raises(ConfigError, match="tasks: blimp trains nothing"):
        invoke("evaluate", task_model, "--tasks", "blimp", "--data", data, "--from-scratch")


def test_mnli_first_its_second_dev_file_and_the_leaderboard(
    task_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_inference(tmp_path / "glue").parent
    seen = trainings(monkeypatch)
    values = invoke(
        "evaluate", task_model, "--tasks", "glue", "--data", data, *FAST, "--out", tmp_path / "out", "--from-mnli",
        "--submission", tmp_path / "sent", "--minutes", 1,
    )  # fmt: skip
    assert list(values["tasks"]) == ["glue:mnli", "glue:mnli-mm", "glue:rte"]
    assert [run.task for run in seen] == ["glue:mnli", "glue:rte"]
    # One minute for two runs; RTE starts from MNLI's model.
    assert {run.train.minutes for run in seen} == {0.5}
    made = json.loads((Path(values["tasks"]["glue:rte"]["model"]).parent / "results.json").read_bytes())
    assert [entry["step"] for entry in made["runs"][0]["history"]] == [2]  # the untrained network's score is none
    assert Path(seen[1].init) == Path(values["tasks"]["glue:mnli"]["model"]).resolve()
    assert "started from the model of glue:mnli" in values["tasks"]["glue:rte"]["notes"]
    mnli = (values["metrics"]["glue:mnli.accuracy"] + values["metrics"]["glue:mnli-mm.accuracy"]) / 2
    assert values["metrics"]["glue.mean"] == pytest.approx((mnli + values["metrics"]["glue:rte.accuracy"]) / 2)
    assert values["submission"] == {"MNLI-m.tsv": 5, "MNLI-mm.tsv": 5, "AX.tsv": 5}
    lines = (tmp_path / "sent/AX.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    assert {line.split("\t")[1] for line in lines[1:]} <= {"entailment", "neutral", "contradiction"}


@pytest.mark.parametrize("task", ["glue:rte", "glue:cola"])
def test_another_tasks_encoder_is_kept_and_its_head_is_not(task_model: Path, tmp_path: Path, task: str) -> None:
    """RTE has other classes than MNLI; CoLA has the same, 0 and 1, as MRPC."""
    from remask.model.store import open_model
    from remask.tune.part import fresh_network

    data = write_inference(write_cola(tmp_path / "glue"))
    before = "glue:mnli" if task == "glue:rte" else "glue:mrpc"
    rows = [f"{i % 2}\t1\t2\t{a}\t{b}" for i, (a, b) in enumerate(zip(WORDS, reversed(WORDS), strict=True))]
    for name in ("train", "test"):
        write_lines(data / f"MRPC/msr_paraphrase_{name}.txt", ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *rows])
    values = invoke("evaluate", task_model, "--tasks", before, "--data", data, *FAST, "--out", tmp_path / "out")
    first = open_model(Path(values["tasks"][before]["model"]))
    options = {"task": task, "init": str(first.folder), "data": str(data)}
    setup = prepare(FinetuneRun.model_validate(options), Progress(quiet=True))
    theirs = first.network.state_dict()
    ours = fresh_network(setup.run, setup.start, setup.part, 3).state_dict()
    assert all((ours[name] == theirs[name]).all() for name in theirs if name.startswith("encoder."))
    assert ours["heads.classifier.weight"].shape[0] == 2
    assert (
        ours["heads.classifier.weight"].shape != theirs["heads.classifier.weight"].shape
        or not (ours["heads.classifier.weight"] == theirs["heads.classifier.weight"]).any()
    )


def test_the_papers_grid_at_this_width(task_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_cola(tmp_path / "glue").parent
    seen = trainings(monkeypatch)
    words = ("--tasks", "glue:cola", "--data", data, *FAST, "--out", tmp_path / "out", "--max-train", 16)
    values = invoke("evaluate", task_model, *words, "--grid")
    scale = 3e-4 / 2e-5  # the most that a narrow network gets
    rates = sorted({run.train.learning_rate for run in seen})
    assert rates == pytest.approx([1e-5 * scale, 2e-5 * scale, 3e-5 * scale], rel=1e-3)
    assert sorted({run.batch.num_rows for run in seen}) == [16, 32]
    tried = values["tasks"]["glue:cola"]["grid"]
    assert len(tried) == len(seen) == 6
    assert values["metrics"]["glue:cola.matthews"] == max(one["score"] for one in tried)
    assert [one["best"] for one in tried].count(True) == 1
    best = next(one for one in tried if one["best"])
    (folder,) = (tmp_path / "out").glob("glue-cola-*")
    made = json.loads((folder / "results.json").read_bytes())
    assert made["variant"] == f"grid/lr={best['lr']:g},batch={best['batch']}"
    # With more seeds the ensemble is of the best variant's.
    both = invoke("evaluate", task_model, *words, "--grid", "--seeds", 2)["tasks"]["glue:cola"]
    assert both["ensemble"]["models"] == len(both["spread"]["matthews"]["seeds"]) == 2


# ------------------------------------------------------------------------------------------------ zero-shot


def test_blimp_and_claims_without_training(task_model: Path, tmp_path: Path, cache: Path) -> None:
    for name in ("one", "two"):
        pair = {"sentence_good": "red blue", "sentence_bad": "blue red old", "UID": name, "linguistics_term": "order"}
        write_lines(tmp_path / f"data/blimp/{name}.jsonl", [json.dumps(pair)] * 2)
    claim = {"claim": "red blue old", "counter": ["old", "blue"]}
    write_lines(tmp_path / "data/claims.jsonl", [json.dumps(claim)])
    words = ("evaluate", task_model, "--tasks", "blimp,claims", "--data", tmp_path / "data", "--precision", "fp32")
    values = invoke(*words)
    # The untrained network finds every token about equally likely: the shorter text wins.
    assert values["metrics"]["blimp.accuracy"] == 1.0
    assert values["tasks"]["blimp"]["categories"] == {"order": 1.0}
    assert values["metrics"]["claims.accuracy"] == 0.0
    assert values["tasks"]["claims"]["claims"][0]["place"].endswith("claims.jsonl:1")
    assert (values["precision"], values["device"]) == ("fp32", "cpu")
    kept = sorted(path.name.partition("-")[0] for path in cache.iterdir())
    assert kept == ["blimp", "claims"]
    assert invoke(*words) == values
    assert invoke("evaluate", task_model, "--tasks", "claims", "--data", tmp_path / "data/claims.jsonl")["metrics"]


@pytest.fixture(scope="module")
def reader(tiny_prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model with the prepared data's vocabulary."""
    from remask.model.network import build_network
    from remask.model.settings import HeadSettings, ModelSettings
    from remask.model.store import save_model
    from remask.tokenizer import load_tokenizer

    size = load_tokenizer(tiny_prepared / "tokenizer").vocab_size
    small = ModelSettings(vocab_size=size, num_layers=1, hidden_size=16, num_heads=2, ffn_size=32, max_length=32)
    folder = tmp_path_factory.mktemp("reader") / "model"
    save_model(folder, build_network(small, HeadSettings(masked_lm=True), 0), tiny_prepared / "tokenizer")
    return folder


def test_perplexity_on_prepared_data(tiny_prepared: Path, reader: Path, task_model: Path, tmp_path: Path) -> None:
    from remask.tokenizer import load_tokenizer

    size = load_tokenizer(tiny_prepared / "tokenizer").vocab_size
    values = invoke("evaluate", reader, "--tasks", "perplexity", "--data", tiny_prepared, "--max-dev", 32)
    # An untrained network is about as unsure as a die with one side for each entry.
    assert values["metrics"]["perplexity.perplexity"] == pytest.approx(size, rel=0.1)
    assert values["metrics"]["perplexity.pseudo_perplexity"] == pytest.approx(size, rel=0.1)
    for name in ("bits_per_byte", "word_bits_per_byte", "pseudo_bits_per_byte"):
        assert 0 < values["metrics"][f"perplexity.{name}"] < 20
    with pytest.raises(DataError, match="prepared with another vocabulary"):
        invoke("evaluate", task_model, "--tasks", "perplexity", "--data", tiny_prepared)
    with pytest.raises(MissingInputError, match="is no prepared data"):
        invoke("evaluate", task_model, "--tasks", "perplexity", "--data", tmp_path)


def test_perplexity_of_plain_text(reader: Path, tmp_path: Path, cache: Path) -> None:
    text = "\n\n".join(f"The cat sleeps in the house {i}. The dog barks by the river." for i in range(30))
    write_lines(tmp_path / "data/story/story.valid.txt", [text])
    write_lines(tmp_path / "mine.txt", [text])
    found = invoke("evaluate", reader, "--tasks", "perplexity", "--data", tmp_path / "data")
    named = invoke("evaluate", reader, "--tasks", "perplexity", "--text", tmp_path / "mine.txt")  # needs no --data
    assert list(found["tasks"]) == ["perplexity:story.valid"]
    assert list(named["tasks"]) == ["perplexity:mine"]
    ours, theirs = found["tasks"]["perplexity:story.valid"], named["tasks"]["perplexity:mine"]
    assert ours["metrics"] == theirs["metrics"]
    assert len(list(cache.glob("text-*/manifest.json"))) == 2


def test_what_is_missing_is_said_before_anything_is_trained(task_model: Path, tmp_path: Path) -> None:
    def run(expected: type[RemaskError], message: str, model: Path = task_model, **values: Any) -> None:
        with pytest.raises(expected, match=message):
            evaluate(EvaluateRun(model=str(model), **values), tmp_path / "o", progress=Progress(quiet=True))

    data = write_cola(tmp_path / "glue").parent
    run(ConfigError, "'glu' is not one of glue, clue, glue:cola", tasks=("glu",), data=str(tmp_path))
    run(UsageError, "--tasks is needed", data=str(tmp_path))
    run(MissingInputError, "none of train.tsv", tasks=("glue:cola", "glue:rte"), data=str(data))
    run(MissingInputError, "no BLiMP files", tasks=("glue:cola", "blimp"), data=str(data))
    run(MissingInputError, "claims.jsonl: no such file", tasks=("claims",), data=str(data))
    run(MissingInputError, "absent: no such folder", tasks=("glue",), data=str(tmp_path / "absent"))
    (tmp_path / "empty").mkdir()
    run(DataError, "has the files of none of these tasks: glue", tasks=("glue",), data=str(tmp_path / "empty"))
    assert not (tmp_path / "o").exists()
    values = invoke("evaluate", task_model, "--tasks", "glue:cola", "--data", data, *FAST, "--out", tmp_path / "p")
    run(DataError, "no masked-LM head", Path(values["tasks"]["glue:cola"]["model"]), tasks=("blimp",), data=str(data))


def test_the_card_tells_what_was_measured(task_model: Path, tmp_path: Path) -> None:
    data = write_cola(tmp_path / "glue").parent
    values = invoke("evaluate", task_model, "--tasks", "glue:cola", "--data", data, *FAST, "--out", tmp_path / "out")
    model = values["tasks"]["glue:cola"]["model"]
    invoke("export", model, "--to", "hf", "--out", tmp_path / "hf")
    card = (tmp_path / "hf/README.md").read_text()
    assert card.splitlines()[0] == "---"
    assert "# A model for glue:cola" in card
    assert f"| matthews | {values['metrics']['glue:cola.matthews']:.4f} |" in card
    for heading in ("## Data", "## Metrics", "## Training", "## Limits", "## Use"):
        assert heading in card
    assert str(tmp_path) not in card
    invoke("export", model, "--to", "hf", "--out", tmp_path / "mine", "--title", "Mine")
    assert "# Mine" in (tmp_path / "mine/README.md").read_text()


def test_a_run_file(task_model: Path, tmp_path: Path) -> None:
    data = write_cola(tmp_path / "glue").parent
    words = ("evaluate", runs_folder() / "smoke/evaluate.yaml", "--set", f"model={task_model}", "--data", data)
    values = invoke(*words, "--out", tmp_path / "out")
    assert (values["tasks"]["glue:cola"]["data"]["train"], values["precision"]) == (32, "fp32")
    with pytest.raises(UsageError, match="data is needed: remask evaluate MODEL --tasks glue"):
        invoke(*words[:-2])


def test_pronouns_ranked_by_a_margin(task_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = trainings(monkeypatch)
    for name, count in (("train", 24), ("val", 8)):
        lines = []
        for number in range(count):
            text = f"The {WORDS[number % 5]} saw the {WORDS[5 + number % 5]} when it was new ."
            target = {"span1_text": f"The {WORDS[number % 5]}", "span1_index": 0, "span2_text": "it", "span2_index": 6}
            lines.append(json.dumps({"text": text, "target": target, "label": number % 2 == 0, "idx": number}))
        write_lines(tmp_path / f"WSC/{name}.jsonl", lines)
    values = invoke("evaluate", task_model, "--tasks", "wsc", "--data", tmp_path, *FAST, "--out", tmp_path / "out")
    assert seen[0].loss.choice == "margin"
    result = values["tasks"]["wsc"]
    assert set(result["metrics"]) == {"accuracy", "pair_accuracy"}
    assert result["data"]["train"] == 12
    assert "12 examples are false or have one candidate only: not trained on" in result["notes"]
