"""Fine-tuning that is killed or runs on several ranks, with whole or divided models, ends as one that was not: several
tasks, grids, searches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from .zygote import Zygote

TASKS = """
seeds: 1
batch: {num_rows: 8, micro_tokens: 64}
train: {epochs: 3.0, precision: fp32, learning_rate: 3e-3, log_every: 1}
temperature: 2.0
tasks:
  - {name: topic, train_file: FOLDER/a.jsonl, dev_file: FOLDER/a.jsonl}
  - {name: size, task: regress, train_file: FOLDER/b.jsonl, dev_file: FOLDER/b.jsonl}
"""
PAIRS = """
task: retrieve
batch: {num_rows: 16, micro_tokens: 64}
train: {epochs: 3.0, precision: fp32, learning_rate: 3e-3, log_every: 1}
retrieve: {symmetric: true, learned_temperature: true, negatives: model, below: 1.0}
train_file: FOLDER/pairs.jsonl
dev_file: FOLDER/pairs.jsonl
"""
SINGLE = """
batch: {num_rows: 8, micro_tokens: 64}
train: {epochs: 2.0, precision: fp32, learning_rate: 3e-3, log_every: 1}
train_file: FOLDER/a.jsonl
dev_file: FOLDER/a.jsonl
"""
SEARCH = """
batch: {micro_tokens: 64}
train: {precision: fp32, log_every: 1}
train_file: FOLDER/a.jsonl
dev_file: FOLDER/a.jsonl
search: {trials: 3, batch: [4, 8], epochs: [1.0, 2.0], lr: [1e-4, 1e-2]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizers: dict[str, Path]) -> Path:
    """A tiny model with dropout, and two tables."""
    from remask.model.network import build_network
    from remask.model.settings import HeadSettings, ModelSettings
    from remask.model.store import save_model
    from remask.tokenizer import load_tokenizer

    made = tmp_path_factory.mktemp("kills")
    size = load_tokenizer(tiny_tokenizers["byte-bpe"]).vocab_size
    settings = ModelSettings(vocab_size=size, num_layers=2, hidden_size=16, num_heads=2, ffn_size=32, max_length=32)
    save_model(made / "model", build_network(settings, HeadSettings(masked_lm=True), 1), tiny_tokenizers["byte-bpe"])
    rows: list[dict[str, Any]] = [
        {"text": f"the {'fox' if i % 3 else 'dog'} {i}", "label": "ab"[i % 2]} for i in range(48)
    ]
    (made / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    numbers = [{"text": row["text"] + " river", "label": float(i % 5)} for i, row in enumerate(rows[:20])]
    (made / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in numbers))
    pairs = [{"query": f"who is {i}", "positive": f"{i} is the {'fox' if i % 3 else 'dog'}"} for i in range(48)]
    (made / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    drafts = [{"source": row["text"], "target": f"a {row['label']}"} for row in rows[:12]]
    (made / "drafts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in drafts))
    for name, text in (("tasks", TASKS), ("tune", SEARCH), ("pairs", PAIRS), ("single", SINGLE)):
        (made / f"{name}.yaml").write_text(text.replace("FOLDER", str(made)))
    return made


def command(verb: str, folder: Path, out: Path) -> list[str | Path]:
    name = "tasks" if verb == "finetune" else verb
    return [verb, folder / f"{name}.yaml", "--init", folder / "model", "--out", out, "--json"]


@pytest.fixture(scope="module")
def one(folder: Path, zygote: Zygote) -> Path:
    """Several tasks on one rank, to the end."""
    assert zygote.run(*command("finetune", folder, folder / "one")).returncode == 0
    return folder / "one"


@pytest.mark.usefixtures("one")
def test_two_ranks_equal_one_and_a_kill_equals_none_with_several_tasks(folder: Path, zygote: Zygote) -> None:
    """A head rests while it is another task's turn: on many ranks, too, where gradients are added up."""
    both = zygote.run_ranks(2, *command("finetune", folder, folder / "two"))
    assert [one.returncode for one in both] == [0, 0], both[0].stderr
    assert (both[1].stdout, both[1].stderr) == ("", "")  # one rank speaks for all
    results = [json.loads((folder / name / "results.json").read_bytes()) for name in ("one", "two")]
    assert results[0]["metrics"] == pytest.approx(results[1]["metrics"], abs=0.03)
    logs = [(folder / name / "seed-0/metrics.jsonl").read_text().splitlines() for name in ("one", "two")]
    losses = [[json.loads(line)["train/loss"] for line in log if "train/loss" in line] for log in logs]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)

    log = folder / "cut/seed-0/metrics.jsonl"
    killed = zygote.run(*command("finetune", folder, folder / "cut"), signals=[(0, "SIGKILL")], wait_for=log, size=1500)
    assert killed.returncode == -9
    assert zygote.run(*command("finetune", folder, folder / "cut")).returncode == 0
    for task in ("topic", "size"):
        weights = [load_file(folder / name / "tasks" / task / "model.safetensors") for name in ("one", "cut")]
        assert all((weights[0][key] == weights[1][key]).all() for key in weights[0])


def test_pairs_on_two_ranks_equal_one_and_a_kill_equals_none(folder: Path, zygote: Zygote) -> None:
    """All rows of a step are compared, those of other ranks too, in micro-batches with cached gradients."""

    def words(name: str) -> list[str | Path]:
        return ["finetune", folder / "pairs.yaml", "--init", folder / "model", "--out", folder / name, "--json"]

    whole = zygote.run(*words("pairs-one"))
    assert whole.returncode == 0, whole.stderr
    both = zygote.run_ranks(2, *words("pairs-two"))
    assert [one.returncode for one in both] == [0, 0], both[0].stderr
    logs = [(folder / name / "seed-0/metrics.jsonl").read_text().splitlines() for name in ("pairs-one", "pairs-two")]
    losses = [[json.loads(line)["train/loss"] for line in log if "train/loss" in line] for log in logs]
    assert len(losses[0]) == 9
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)

    log = folder / "pairs-cut/seed-0/metrics.jsonl"
    killed = zygote.run(*words("pairs-cut"), signals=[(0, "SIGKILL")], wait_for=log, size=1200)
    assert killed.returncode == -9
    assert zygote.run(*words("pairs-cut")).returncode == 0
    weights = [load_file(folder / name / "model/model.safetensors") for name in ("pairs-one", "pairs-cut")]
    assert weights[0].keys() == weights[1].keys()
    assert all((weights[0][key] == weights[1][key]).all() for key in weights[0])


DIVIDED = ("--set", "train.parallel=fsdp", "--allow-change", "train.parallel")
STOP = """
import remask.train.loop as loop
from remask import signals
plain = loop.forward_backward
def stop(run, micro_batches):
    if run.step == {step} and run.world.rank == run.world.size - 1:
        signals._flag.set()
    return plain(run, micro_batches)
loop.forward_backward = stop
"""


def logged(folder: Path, name: str = "train/loss") -> list[float]:
    lines = (folder / "seed-0/metrics.jsonl").read_text().splitlines()
    return [json.loads(line)[name] for line in lines if name in json.loads(line)]


def assert_same_training(folder: Path, wanted: Path) -> None:
    for name in ("train/loss", "train/grad_norm"):
        assert logged(folder, name) == pytest.approx(logged(wanted, name), rel=1e-5 if "loss" in name else 1e-3)
        assert logged(folder, name)
    for model in (path.relative_to(wanted) for path in wanted.glob("**/model.safetensors")):
        whole, found = load_file(wanted / model), load_file(folder / model)
        assert whole.keys() == found.keys()
        assert all((whole[key] - found[key]).abs().max() < 1e-4 for key in whole), model


def test_a_divided_model_is_tuned_as_a_whole_one(folder: Path, zygote: Zygote, one: Path) -> None:
    """Several tasks, of which some rest in a step; of the embeddings only the rows in use learn; ranks have different
    numbers of micro-batches. Stopped twice, and taken up once by another number of ranks: the same training; by as
    many: the same bits."""
    words = command("finetune", folder, folder / "divided")
    done = zygote.run_ranks(2, *words, *DIVIDED)
    assert [end.returncode for end in done] == [0, 0], done[0].stderr
    assert_same_training(folder / "divided", one)

    for name, layouts in (("same", [2, 2]), ("other", [2, 1])):
        words = command("finetune", folder, folder / name)
        stopped = zygote.run_ranks(layouts[0], *words, *DIVIDED, code=STOP.format(step=11))
        assert [end.returncode for end in stopped] == [75, 75], stopped[0].stderr
        again = zygote.run_ranks(layouts[1], *words, *(DIVIDED if layouts[1] > 1 else DIVIDED[2:]))
        assert {end.returncode for end in again} == {0}, again[0].stderr
        assert "going on after step 11" in again[0].stderr
    assert_same_training(folder / "other", one)
    assert logged(folder / "same") == logged(folder / "divided")
    for task in ("topic", "size"):
        weights = [load_file(folder / name / "tasks" / task / "model.safetensors") for name in ("same", "divided")]
        assert all((weights[0][key] == weights[1][key]).all() for key in weights[0])


# Each with what is particular about dividing it: steps with fewer rows than ranks; layers that a decoder uses piece by
# piece; adapters beside weights that rest, and two passes in one; averaged weights, norms of whole tensors.
KINDS = {
    "few": ["batch.num_rows=1", "train.steps=5", "train.eval_every=2"],
    "writes": ["task=write", "train_file=FOLDER/drafts.jsonl", "dev_file=FOLDER/drafts.jsonl", "train.steps=3"],
    "adapters": ["learn=bottleneck", "loss.consistency=1.0", "train.steps=4"],
    "averaged": ["train.ema_decay=0.9", "train.optimizer=lamb", "train.trainable_top_layers=1", "train.steps=6"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_can_be_tuned_can_be_divided(kind: str, folder: Path, zygote: Zygote) -> None:
    words: list[str | Path] = ["finetune", folder / "single.yaml", "--init", folder / "model"]
    for assignment in KINDS[kind]:
        words += ["--set", assignment.replace("FOLDER", str(folder))]
    runs = [(1, ()), (2, DIVIDED), *([(2, ())] if kind == "few" else [])]
    for number, (ranks, more) in enumerate(runs):
        done = zygote.run_ranks(ranks, *words, *more, "--out", folder / f"{kind}-{number}")
        assert {end.returncode for end in done} == {0}, done[0].stderr
        assert_same_training(folder / f"{kind}-{number}", folder / f"{kind}-0")


REFUSED = {
    "learn: lora learns so little": ["learn=lora"],
    "task retrieve compares the rows of all ranks": ["task=retrieve"],
    "loss.adversarial takes gradients in the middle of a pass": ["loss.adversarial=1"],
    "train.weights = bf16-master: goes with train.parallel = ddp": ["train.weights=bf16-master"],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_divided_is_refused(message: str, folder: Path, tmp_path: Path, zygote: Zygote) -> None:
    sets = [word for one in REFUSED[message] for word in ("--set", one)]
    words = ["finetune", folder / "single.yaml", "--init", folder / "model", "--out", tmp_path / "out", *sets]
    done = zygote.run_ranks(2, *words, *DIVIDED)
    assert [end.returncode for end in done] == [78, 78], done[0].stderr
    assert message in done[0].stderr


@pytest.mark.usefixtures("one")
def test_a_signal_in_an_evaluation_does_not_wait_for_its_end(folder: Path, zygote: Zygote) -> None:
    """It comes again when the run goes on, as that of the step after which it was cut short."""
    words = [str(word) for word in command("finetune", folder, folder / "stopped")]
    code = f"""
import sys, time
from remask.answer.runner import Runner
make_batch, begin = Runner.batch, Runner.__init__
def slow(self, rows):
    with open({str(folder / "scores")!r}, "a") as file:
        file.write("x")
    time.sleep(0.1)
    return make_batch(self, rows)
def small(self, *given, **named):
    begin(self, *given, **{{**named, "batch_tokens": 16}})
Runner.batch, Runner.__init__ = slow, small
sys.argv = ["remask", *{words!r}]
from remask.__main__ import main
main()
"""
    done = zygote.execute(code, signals=[(0.0, "SIGTERM")], wait_for=folder / "scores", size=1)
    assert done.returncode == 75, done.stderr
    assert "stopped in the evaluation after step" in done.stderr
    assert (folder / "scores").stat().st_size < 15  # of 34 batches or so
    again = zygote.run(*command("finetune", folder, folder / "stopped"))
    assert again.returncode == 0, again.stderr
    one, other = (json.loads((folder / name / "results.json").read_bytes()) for name in ("one", "stopped"))
    assert one["metrics"] == other["metrics"]
    histories = [json.loads((folder / name / "seed-0/history.json").read_bytes()) for name in ("one", "stopped")]
    assert histories[0]["history"] == histories[1]["history"]


def test_trackers_may_change_and_what_is_learned_from_may_not(folder: Path, zygote: Zygote, one: Path) -> None:
    again = zygote.run(*command("finetune", folder, one), "--set", "train.trackers=[tensorboard]")
    assert again.returncode == 0, again.stderr
    assert "finished already" in again.stderr
    changed = zygote.run(*command("finetune", folder, one), "--set", "temperature=3.0")
    assert changed.returncode == 78
    assert "run.temperature: 2.0 -> 3.0" in changed.stderr


def test_a_killed_search_ends_like_one_that_was_not(folder: Path, zygote: Zygote) -> None:
    pytest.importorskip("optuna")
    whole = zygote.run(*command("tune", folder, folder / "tune"))
    assert whole.returncode == 0, whole.stderr
    log = folder / "tune-cut/trials/1/seed-0/metrics.jsonl"
    killed = zygote.run(*command("tune", folder, folder / "tune-cut"), signals=[(0, "SIGKILL")], wait_for=log, size=1)
    assert killed.returncode == -9
    again = zygote.run(*command("tune", folder, folder / "tune-cut"))
    assert again.returncode == 0, again.stderr
    found = [json.loads(done.stdout) for done in (whole, again)]
    for values in found:
        for trial in values["trials"]:
            del trial["seconds"]
    assert found[0]["trials"] == found[1]["trials"]
    assert found[0]["best"] == found[1]["best"]
