"""FAULTS.md row 8 and rules 3, 5, 6: one, two and four ranks, whole or divided models, give the same training.

Ranks are forked by the zygote with what torchrun would set. Numbers of masked positions differ between ranks, and
dropout is on: its masks are keyed by (seed, step, example), so they do not depend on who computes a row.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from remask.artifacts import open_artifact
from remask.model.store import open_model
from remask.precision import probe
from remask.train.slices import Stored

from .zygote import Done, Zygote

RUN = """
base: {base}
model: {{num_layers: 2, hidden_size: 32, num_heads: 2, ffn_size: 64, max_length: 32}}
data:
  {{length: 32, masking: {{count: independent}}, batch: {{num_rows: 8, micro_rows: 2}}, evaluation: {{num_rows: 8}}}}
train: {{steps: 50, learning_rate: 2e-3, precision: fp32, save_every: 10, eval_every: 25, log_every: 1, clip: 1.0}}
"""
FSDP = ("--set", "train.parallel=fsdp")
# What every rank reads goes into a file of its own; the last rank, and no other, is asked to stop at a step.
READ_AND_STOP = """
import json
import remask.train.loop as loop
from remask import signals

plain = loop.forward_backward
def read(run, micro_batches):
    if run.step == {stop} and run.world.rank == run.world.size - 1:
        signals._flag.set()
    elif run.step != {stop}:
        with open({log!r} + f"-{{run.world.size}}-{{run.world.rank}}", "a") as file:
            for batch in micro_batches:
                columns = batch.input_ids_BS.shape[1]
                for row in range(batch.num_rows):
                    own = batch.masked_positions_M // columns == row
                    length = batch.lengths_B[row]
                    words = [run.step, batch.example_ids_B[row], batch.input_ids_BS[row, :length].tolist()]
                    words += [(batch.masked_positions_M[own] % columns).tolist(), batch.masked_labels_M[own].tolist()]
                    file.write(json.dumps(words, default=int) + "\\n")
    return plain(run, micro_batches)
loop.forward_backward = read
"""


def pretrain(
    zygote: Zygote, ranks: int, out: Path, prepared: Path, *words: str, base: str = "roberta_tiny", code: str = ""
) -> list[Done]:
    file = out.parent / f"{base}.yaml"
    file.write_text(RUN.format(base=base))
    return zygote.run_ranks(ranks, "pretrain", file, "--data", prepared, "--out", out, *words, code=code)


def succeed(done: list[Done]) -> None:
    assert [one.returncode for one in done] == [0] * len(done), "\n".join(one.stderr for one in done)


def logged(folder: Path, name: str = "train/loss") -> list[Any]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


def assert_close(folder: Path, wanted: Path, steps: int) -> None:
    for name, count in (("train/loss", steps), ("train/grad_norm", steps), ("eval/loss", None)):
        found, right = logged(folder, name), logged(wanted, name)
        assert len(found) == len(right) == (count or len(right)) > 0
        # Gradients have no rule; a wrong divisor would show as a factor, a lost rank as a third.
        bound = 1e-5 if "loss" in name else 1e-3
        assert max(abs(a - b) / b for a, b in zip(found, right, strict=True)) < bound, name


def last_checkpoint(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("step-*"))


def read_by(folder: Path) -> list[str]:
    """Lines of all ranks."""
    paths = folder.parent.glob(f"{folder.name}.read-*")
    return sorted(line for path in paths for line in path.read_text().splitlines())


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, tiny_prepared: Path, zygote: Zygote) -> Path:
    folder = tmp_path_factory.mktemp("one") / "out"
    succeed(pretrain(zygote, 1, folder, tiny_prepared, code=READ_AND_STOP.format(stop=-1, log=f"{folder}.read")))
    return folder


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory, tiny_prepared: Path, zygote: Zygote) -> Path:
    """Two ranks with a divided model, averaged weights too."""
    folder = tmp_path_factory.mktemp("divided") / "out"
    succeed(pretrain(zygote, 2, folder, tiny_prepared, *FSDP, "--set", "train.ema_decay=0.9"))
    return folder


def test_two_ranks_equal_one(tmp_path: Path, tiny_prepared: Path, zygote: Zygote, one: Path) -> None:
    done = pretrain(zygote, 2, tmp_path / "out", tiny_prepared, "--json")
    succeed(done)
    assert json.loads(done[0].stdout)["step"] == 50
    assert done[1].stdout == ""  # only the first rank speaks
    assert_close(tmp_path / "out", one, 50)


# Small buckets, so that a tiny model has several; what was sent before the backward pass ended goes into a file.
SEND = """
import os
import remask.train.overlap as overlap
overlap.BUCKET_ELEMENTS = 3000
plain = overlap.GradientSums.finish
def finish(sums):
    with open({log!r} + os.environ["RANK"], "a") as file:
        file.write(f"{{sums._next}} {{len(sums._buckets)}}\\n")
    plain(sums)
overlap.GradientSums.finish = finish
"""


@pytest.mark.parametrize("weights", ["fp32", "bf16-master"])
def test_gradients_that_are_sent_on_their_way_have_the_same_sums(
    weights: str, tmp_path: Path, tiny_prepared: Path, zygote: Zygote
) -> None:
    if weights == "bf16-master" and not (tried := probe("bf16"))[0]:
        pytest.skip(f"bf16: {tried[1]}")
    found, sent = {}, {}
    words = ["train.steps=6", f"train.weights={weights}"] + ["train.precision=bf16"] * (weights == "bf16-master")
    for overlap in ("true", "false"):
        log = f"{tmp_path / overlap}.sent"
        settings = [word for one in [*words, f"train.overlap={overlap}"] for word in ("--set", one)]
        succeed(pretrain(zygote, 2, tmp_path / overlap, tiny_prepared, *settings, code=SEND.format(log=log)))
        found[overlap] = load_file(last_checkpoint(tmp_path / overlap) / "model.safetensors")
        sent[overlap] = [tuple(map(int, line.split())) for line in Path(f"{log}0").read_text().splitlines()]
    assert all((found["true"][name] == tensor).all() for name, tensor in found["false"].items())
    assert all(early == 0 < several for early, several in sent["false"])
    # All but the part without a gradient in this objective are on their way when the backward pass ends.
    assert all(early >= several - 1 > 2 for early, several in sent["true"][1:])


def test_a_divided_model_learns_as_a_whole_one(one: Path, divided: Path) -> None:
    """Averaged weights do not change how it learns, only what is evaluated and saved."""
    assert max(abs(a - b) / b for a, b in zip(logged(divided), logged(one), strict=True)) < 1e-5


# Each with what is particular about dividing it: shared layers and a borrowed matrix with trust ratios; whole matrices
# for Muon, with layers that are computed twice; parts that do not learn; micro-batches without rows of one kind;
# sizes that three ranks do not divide.
KINDS = {
    "albert": ("albert_tiny", 2, ["train.optimizer=lamb", "train.ema_decay=0.9", "model.pooler_tied=true"]),
    "modern": ("modern_tiny", 2, ["train.optimizer=muon", "train.activation_checkpointing=true"]),
    "bert": ("bert_tiny", 2, ["train.trainable_top_layers=1", "train.optimizer=lamb"]),
    "causal": ("roberta_tiny", 2, ["objective.causal_share=0.3"]),
    "uneven": ("roberta_tiny", 3, ["train.optimizer=muon", "data.batch.num_rows=6", "train.ema_decay=0.9"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_and_optimizer_can_be_divided(
    kind: str, tmp_path: Path, tiny_prepared: Path, zygote: Zygote
) -> None:
    base, ranks, assignments = KINDS[kind]
    words = [word for one in [*assignments, "train.steps=14"] for word in ("--set", one)]
    succeed(pretrain(zygote, 1, tmp_path / "one", tiny_prepared, *words, base=base))
    succeed(pretrain(zygote, ranks, tmp_path / "many", tiny_prepared, *words, *FSDP, base=base))
    assert_close(tmp_path / "many", tmp_path / "one", 14)
    whole = load_file(last_checkpoint(tmp_path / "one") / "model.safetensors")
    joined = load_file(last_checkpoint(tmp_path / "many") / "model.safetensors")
    assert whole.keys() == joined.keys()
    assert all((whole[name] - joined[name]).abs().max() < 1e-4 for name in whole)


def test_layouts_may_change_at_every_resume(tmp_path: Path, tiny_prepared: Path, zygote: Zygote, one: Path) -> None:
    """1 -> 2 -> 4 -> 2 divided -> 4 divided -> 1, each asked to stop by its last rank: the same examples with the same
    masks, each once, and the losses of a run that was never stopped."""
    layouts = [(1, "ddp"), (2, "ddp"), (4, "ddp"), (2, "fsdp"), (4, "fsdp"), (1, "ddp")]
    for stop, (ranks, parallel) in zip((8, 16, 24, 32, 40, -1), layouts, strict=True):
        code = READ_AND_STOP.format(stop=stop, log=f"{tmp_path / 'out'}.read")
        words = ("--set", f"train.parallel={parallel}", "--allow-change", "train.parallel")
        done = pretrain(zygote, ranks, tmp_path / "out", tiny_prepared, *words, code=code)
        assert [end.returncode for end in done] == [75 if stop > 0 else 0] * ranks, done[0].stderr
        assert stop < 0 or f"stopped after step {stop}, saved" in done[0].stderr
    assert_close(tmp_path / "out", one, 50)
    assert read_by(tmp_path / "out") == read_by(one)


def test_a_divided_run_that_was_stopped_is_bitwise_the_whole_one(
    tmp_path: Path, tiny_prepared: Path, zygote: Zygote, divided: Path
) -> None:
    """Stopped by one rank in the middle of the first evaluation, where averaged weights are in use and gathered."""
    words = (*FSDP, "--set", "train.ema_decay=0.9")
    code = """
import os
import remask.objectives as objectives
from remask import signals
plain = objectives.held_out
def held_out(*given):
    if os.environ["RANK"] == "1":
        signals._flag.set()
    return plain(*given)
objectives.held_out = held_out
"""
    done = pretrain(zygote, 2, tmp_path / "out", tiny_prepared, *words, code=code)
    assert [end.returncode for end in done] == [75, 75], done[0].stderr
    assert "stopped in the evaluation after step 25" in done[0].stderr
    succeed(pretrain(zygote, 2, tmp_path / "out", tiny_prepared, *words))
    ours, whole = last_checkpoint(tmp_path / "out"), last_checkpoint(divided)
    tensors = [path.name for path in sorted(whole.glob("*.safetensors"))]
    assert tensors == ["model.safetensors", "rank-00000.safetensors", "rank-00001.safetensors"]
    for name in tensors:
        assert (ours / name).read_bytes() == (whole / name).read_bytes(), name
    for name in ("train/loss", "eval/loss", "train/grad_norm"):
        assert logged(tmp_path / "out", name) == logged(divided, name)


def test_a_checkpoint_of_many_ranks_is_a_model(divided: Path) -> None:
    """Each rank's own rows, with names, whole shapes and offsets; joined for readers that know nothing of ranks."""
    folder = last_checkpoint(divided)
    stored = Stored.of(open_artifact(folder, "checkpoint", verify=True))
    opened = dict(open_model(folder).network.named_parameters())
    assert set(opened) == set(stored.names("average")) == set(stored.names("weights"))
    for name, parameter in opened.items():
        assert parameter.detach().equal(stored.read("average", name)), name
    assert any(not stored.read("weights", name).equal(stored.read("average", name)) for name in opened)
    facts = json.loads((folder / "rank-00001.json").read_text())
    rows = load_file(folder / "rank-00001.safetensors")
    name = "weights/encoder.ffns.0.up.weight"
    assert facts[name] == {"shape": [64, 32], "offset": [32, 0]}
    assert rows[name].equal(stored.read("weights", name.partition("/")[2])[32:])
    assert {one.partition("/")[0] for one in facts} == {"weights", "optimizer", "average"}


def test_nan_on_one_rank_skips_the_step_on_all(tmp_path: Path, tiny_prepared: Path, zygote: Zygote) -> None:
    code = """
import remask.objectives as objectives
plain = objectives.Pretraining.__call__
def spoiled(self, model, batch, step):
    import os
    from dataclasses import replace
    loss = plain(self, model, batch, step)
    if step == 5 and os.environ["RANK"] == "1":
        part = loss.parts["mlm"]
        loss = replace(loss, parts={"mlm": replace(part, sum=part.sum * float("nan"))})
    return loss
objectives.Pretraining.__call__ = spoiled
"""
    succeed(pretrain(zygote, 2, tmp_path / "out", tiny_prepared, *FSDP, "--set", "train.steps=8", code=code))
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line.get("event") == "skipped"] == [5]
    (skipped,) = json.loads((last_checkpoint(tmp_path / "out") / "state.json").read_text())["guard"]["skipped"]
    assert len(set(skipped["examples"])) == 8  # those of all ranks
    weights = load_file(last_checkpoint(tmp_path / "out") / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values())


def test_a_rank_whose_disk_is_full_ends_all_and_loses_nothing(
    tmp_path: Path, tiny_prepared: Path, zygote: Zygote
) -> None:
    code = """
import errno, os
from remask.train import slices
plain = slices.write_rank
def full(folder, rank, kinds):
    if rank == 1 and "step-000000020" in folder.name:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    plain(folder, rank, kinds)
slices.write_rank = full
"""
    done = pretrain(zygote, 2, tmp_path / "out", tiny_prepared, *FSDP, code=code)
    assert [end.returncode for end in done] == [69, 74], done[0].stderr
    assert "another process of this job failed" in done[0].stderr
    assert "No space left on device" in done[1].stderr
    assert "Traceback" not in done[0].stderr + done[1].stderr
    assert last_checkpoint(tmp_path / "out").name == "step-000000010"
    open_artifact(last_checkpoint(tmp_path / "out"), "checkpoint", verify=True)


REFUSED = {
    "cannot be dealt evenly to 2 ranks": ["data.batch.num_rows=9"],
    "train.weights = bf16-master: goes with train.parallel = ddp": ["train.weights=bf16-master", *FSDP[1:]],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_ranks_cannot_do_is_refused(message: str, tmp_path: Path, tiny_prepared: Path, zygote: Zygote) -> None:
    words = [word for one in REFUSED[message] for word in ("--set", one)]
    done = pretrain(zygote, 2, tmp_path / "out", tiny_prepared, *words)
    assert [end.returncode for end in done] == [78, 78]
    assert message in done[0].stderr
    if "evenly" in message:  # it is the ranks, not the batch
        assert zygote.run_ranks(1, *_dry(tmp_path, tiny_prepared, words))[0].returncode == 0


def _dry(folder: Path, prepared: Path, words: list[str]) -> list[str | Path]:
    return ["pretrain", folder / "roberta_tiny.yaml", "--data", prepared, "--out", folder / "dry", "--dry-run", *words]
