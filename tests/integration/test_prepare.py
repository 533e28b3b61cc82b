"""prepare and inspect from the command line, and prepare on a Ray cluster, on small real files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from io import StringIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers

from remask import artifacts
from remask.artifacts import open_artifact
from remask.commands.inspect import InspectRun, rows_of, show_batch
from remask.commands.inspect import main as inspect
from remask.config import build_run
from remask.data.batches import open_batches
from remask.data.tokens import Tokens
from remask.documents import read_documents
from remask.pretraining.settings import PretrainRun
from remask.progress import Progress
from remask.tokenizer import load_tokenizer
from remask.train.budget import planned_steps

from ..faults.zygote import Zygote

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    f"Title {number}\nThe fox number {number} doesn't jump over the dog. It rests by the river {number * 7}!\n"
    f"狐狸{number}在河边休息。它不跳。\nA last line, with </s> and <mask> in it ({number})."
    for number in range(60)
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "one.txt").write_text("\n\n".join(DOCUMENTS[:40]))
    (folder / "two.txt").write_text("\n\n".join([*DOCUMENTS[40:], DOCUMENTS[0]]))
    return folder


@pytest.fixture(scope="module")
def prepared(corpus: Path, tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> tuple[Path, dict]:
    out = tmp_path_factory.mktemp("prepared") / "out"
    words = ["prepare", str(corpus / "one.txt"), str(corpus / "two.txt"), "--out", str(out), "--vocab-size", "450"]
    # The documents are alike but for numbers, so near duplicates stay; the exact one goes.
    done = zygote.run(*words, "--set", "text.heldout_fraction=0.2", "--set", "text.dedup.near=off", "--json")
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout)


def test_counts_add_up_and_come_as_json(prepared: tuple[Path, dict]) -> None:
    out, result = prepared
    assert result["out"] == str(out)
    assert result["read"] == 61
    assert result["documents"] + sum(result["dropped"].values()) == 61
    assert sum(result["dropped"].values()) == 1
    assert result["vocab_size"] == 450
    assert result["tokens"] == sum(shard["tokens"] for shard in result["shards"])
    assert set(result["seconds"]) == {"documents", "vocabulary", "tokens"}
    assert 0 < result["unigram_nats"] < np.log(450)


def test_shards_hold_the_documents(prepared: tuple[Path, dict]) -> None:
    """Every document comes back from its tokens, lines joined, with a sentence at every line and full stop."""
    out, result = prepared
    tokenizer = load_tokenizer(out / "tokenizer")
    found = []
    for split in ("train", "heldout"):
        source = Tokens.open(out, split, verify=True).sources["corpus"]
        offsets, starts = source.document_offsets, source.sentence_starts
        for low, high in pairwise(offsets):
            found.append(tokenizer.decode(source.ids[low:high]))
            inside = starts[(starts >= low) & (starts < high)].tolist()
            sentences = [tokenizer.decode(source.ids[a:b]) for a, b in zip(inside, [*inside[1:], high], strict=True)]
            assert "".join(sentences) == found[-1]
            assert any(sentence.startswith(" It rests") for sentence in sentences)
            assert any(sentence.startswith("它不跳") for sentence in sentences)
            assert sentences[0].startswith("Title")
            assert sentences[-1].startswith("A last line")
        words = source.starts_word(np.arange(source.num_tokens))
        assert words[offsets[:-1]].all()
    assert sorted(found) == sorted(text.replace("\n", "") for text in DOCUMENTS)
    heldout = [s for s in result["shards"] if s["split"] == "heldout"]
    assert 3 <= sum(shard["documents"] for shard in heldout) <= 25


def test_unigram_nats_is_the_cross_entropy_of_smoothed_frequencies(prepared: tuple[Path, dict]) -> None:
    out, result = prepared
    train, heldout = (Tokens.open(out, split).sources["corpus"].ids for split in ("train", "heldout"))
    counts = np.bincount(train, minlength=450) + 1.0
    expected = -np.mean(np.log(counts / counts.sum())[heldout])
    assert result["unigram_nats"] == pytest.approx(expected, abs=1e-5)


def test_inspect_shows_what_is_there(prepared: tuple[Path, dict], zygote: Zygote) -> None:
    out, result = prepared
    facts = json.loads(zygote.run("inspect", str(out), "--verify", "--json").stdout)
    for key in ("documents", "sentences", "tokens", "bytes", "dropped"):
        assert facts[key] == result[key]
    assert facts["bytes_per_token"] == pytest.approx(result["bytes"] / result["tokens"], abs=1e-3)
    assert sum(bar["count"] for bar in facts["document_tokens"]["histogram"]) == result["documents"]
    assert sum(bar["count"] for bar in facts["sentence_tokens"]["histogram"]) == result["sentences"]
    shown = zygote.run("inspect", str(out))
    assert shown.returncode == 0
    assert "█" in shown.stdout
    assert f"{result['tokens']:,}" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert "Title" in shown.stdout


def test_inspect_shows_batches_with_their_masks(prepared: tuple[Path, dict], tmp_path: Path, zygote: Zygote) -> None:
    out, _ = prepared
    run = tmp_path / "run.yaml"
    run.write_text("base: roberta_tiny\ndata:\n  length: 64\n  batch: {num_rows: 4}\n")
    words = ["inspect", str(out), "--run", str(run), "--batch", "1", "--epoch", "3"]
    batch = json.loads(zygote.run(*words, "--json").stdout)
    again = json.loads(zygote.run(*words, "--json").stdout)
    other = json.loads(zygote.run(*words[:-1], "4", "--json").stdout)
    assert batch == again
    assert other["examples"] != batch["examples"]
    tokenizer = load_tokenizer(out / "tokenizer")
    for row in batch["examples"]:
        assert len(row["input_ids"]) == len(row["labels"]) <= 64
        masked = [(i, label) for i, label in enumerate(row["labels"]) if label != -100]
        assert masked
        assert all(label not in tokenizer.special_ids for _, label in masked)
        assert any(row["input_ids"][i] == tokenizer.mask_id for i, _ in masked)
    row = batch["examples"][0]
    one = zygote.run("inspect", str(out), "--run", str(run), "--example", str(row["id"]), "--epoch", "3", "--json")
    assert json.loads(one.stdout)["examples"][0] == row
    shown = zygote.run(*words)
    assert "<mask>→" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert " cut (" not in shown.stdout
    default = json.loads(zygote.run("inspect", str(out), "--batch", "0", "--epoch", "0", "--json").stdout)
    assert max(len(row["input_ids"]) for row in default["examples"]) > 64
    assert len({row["id"] for row in default["examples"]}) == len(default["examples"]), "no row twice in a pass"
    later = json.loads(zygote.run("inspect", str(out), "--batch", "0", "--epoch", "3", "--json").stdout)
    assert {row["id"] for row in later["examples"]} == {row["id"] for row in default["examples"]}
    assert later["examples"] != default["examples"]


def test_inspect_says_how_many_sentences_were_cut(prepared: tuple[Path, dict], tmp_path: Path, zygote: Zygote) -> None:
    out, _ = prepared
    run = tmp_path / "run.yaml"
    run.write_text("base: roberta_tiny\ndata:\n  length: 16\n  batch: {num_rows: 4}\n")
    words = ["inspect", str(out), "--run", str(run), "--batch", "0"]
    data = json.loads(zygote.run(*words, "--json").stdout)["data"]
    source = Tokens.open(out, "train").sources["corpus"]
    lengths = np.diff(np.append(source.sentence_starts, source.num_tokens))
    assert data["cut_sentences"] == (lengths > 14).sum() > 1
    line = f"{data['cut_sentences']} sentences are longer than rows of 16 tokens allow and cut (corpus "
    assert zygote.run(*words).stdout.startswith(line)
    pairs = ["--set", "data.format=segment-pair", "--set", "data.sentence_loss=nsp"]
    data = json.loads(zygote.run(*words, *pairs, "--json").stdout)["data"]
    assert data["cut_sentences"] == (lengths > (16 - 4) // 2).sum(), "each part of a pair has half of the row"
    line = f"{data['cut_sentences']} sentences are longer than halves of rows of 16 tokens allow and cut (corpus "
    assert zygote.run(*words, *pairs).stdout.startswith(line)


def test_inspect_shows_a_run_with_changes(prepared: tuple[Path, dict], tmp_path: Path, zygote: Zygote) -> None:
    out, _ = prepared
    run = tmp_path / "run.yaml"
    run.write_text("base: roberta_tiny\ndata:\n  length: 64\n  batch: {num_rows: 4}\n")
    words = ["inspect", str(out), "--run", str(run), "--batch", "0", "--set", "data.length=16"]
    rows = json.loads(zygote.run(*words, "--set", "data.batch.num_rows=3", "--json").stdout)["examples"]
    assert len(rows) == 3
    assert max(len(row["input_ids"]) for row in rows) <= 16
    refused = zygote.run("inspect", str(out), "--set", "data.length=16")
    assert refused.returncode == 2
    assert "goes with --batch or --example" in refused.stderr
    unknown = zygote.run("inspect", str(out), "--set", "sampels=1")
    assert unknown.returncode == 78
    assert "samples" in unknown.stderr


def test_inspect_shows_the_very_steps_of_a_run(prepared: tuple[Path, dict], tmp_path: Path) -> None:
    """Short rows end at half of the steps, whose number follows from the passes asked for."""
    out, _ = prepared
    run = tmp_path / "run.yaml"
    run.write_text(
        "base: roberta_tiny\nseed: 5\ntrain: {steps: null, epochs: 1}\n"
        "data: {length: 64, short_steps: 0.5, short_length: 16, batch: {num_tokens: 300, bucket_steps: 2}}\n"
    )
    built = build_run(PretrainRun, run).run
    batches = open_batches(out, built.data, load_tokenizer(out / "tokenizer"), seed=5)
    num_steps = planned_steps(built.train, batches)
    assert num_steps is not None
    batches = batches.with_steps(num_steps)
    cursor, longest = batches.first_cursor(), []
    for step in range(round(0.8 * num_steps)):
        micro_batches, cursor = batches.take(cursor)
        rows = [row for batch in micro_batches for row in rows_of(batch)]
        longest.append(max(len(row["input_ids"]) for row in rows))
        asked = InspectRun(prepared=out, run=run, batch=step)
        found = inspect(asked, progress=Progress(stream=StringIO()))["examples"]
        assert [{key: row[key] for key in ("id", "input_ids", "labels")} for row in found] == rows
    assert max(longest[: num_steps // 2]) <= 16 < min(longest[num_steps // 2 + 1 :])


def test_masks_are_coloured_in_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"id": 7, "input_ids": [5, 6, 7], "tokens": ["The", "<mask>", "."], "targets": [None, " fox", "."]}
    result = {"examples": [row]}
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "The[<mask>→ fox][.→.]" in show_batch(result)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    coloured = show_batch(result)
    assert "The\x1b[7m<mask>\x1b[0m\x1b[32m fox\x1b[0m\x1b[4m.\x1b[0m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in show_batch(result)


def test_an_existing_vocabulary_and_a_run_file(
    prepared: tuple[Path, dict], corpus: Path, tmp_path: Path, zygote: Zygote
) -> None:
    out, result = prepared
    run = tmp_path / "run.yaml"
    run.write_text(
        "text:\n  sources:\n    - {name: fox, paths: [one.txt]}\n  dedup: {near: 'off'}\n"
        f"tokenizer:\n  path: {out / 'tokenizer'}\n  newlines: token\nworkers: 1\n"
    )
    done = zygote.run("prepare", str(run), "--out", str(tmp_path / "two"), "--json", cwd=corpus)
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert again["tokenizer"] == result["tokenizer"]
    assert Tokens.open(tmp_path / "two").sources.keys() == {"fox"}
    tokenizer = load_tokenizer(tmp_path / "two" / "tokenizer")
    ids = Tokens.open(tmp_path / "two").sources["fox"].ids
    assert "\nThe fox number" in tokenizer.decode(ids[:100])


def test_special_words_of_a_corpus_do_not_enter_shards_through_a_model_that_holds_them(
    corpus: Path, tmp_path: Path, zygote: Zygote
) -> None:
    """The corpus says `</s>` and `<mask>` in every document; a Unigram vocabulary has both among its pieces."""
    letters = sorted({letter for text in DOCUMENTS for letter in text} - {" ", "\n"} | {"▁"})
    pieces = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")]
    library = Library(models.Unigram([*pieces, *((letter, -4.0) for letter in letters)], 3))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.save(str(tmp_path / "tokenizer.json"))
    words = ["prepare", str(corpus / "one.txt"), "--tokenizer", str(tmp_path / "tokenizer.json")]
    done = zygote.run(*words, "--set", "text.dedup.near=off", "--out", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["documents"] == 40
    ids = Tokens.open(tmp_path / "out").sources["corpus"].ids
    assert len(ids) > 1000
    assert ids.min() > 4, "every character is known, so no special id has any business here"


def test_documents_are_kept_where_asked(corpus: Path, tmp_path: Path, zygote: Zygote) -> None:
    words = ["prepare", str(corpus / "one.txt"), "--vocab-size", "300", "--set", "text.dedup.near=off"]
    done = zygote.run(*words, "--set", "keep_documents=true", "--out", str(tmp_path / "kept"))
    assert done.returncode == 0, done.stderr
    assert zygote.run(*words, "--out", str(tmp_path / "not")).returncode == 0
    kept = read_documents(tmp_path / "kept" / "documents", verify=True)
    assert sum(len(shard) for shard in kept.shards) == 40
    assert {text for shard in kept.shards for text in shard.texts()} == set(DOCUMENTS[:40])
    assert not (tmp_path / "not" / "documents").exists()
    open_artifact(tmp_path / "kept", "prepared", verify=True)


def test_wordpiece_for_the_baseline(corpus: Path, tmp_path: Path, zygote: Zygote) -> None:
    out = tmp_path / "out"
    words = ["prepare", str(corpus), "--out", str(out), "--vocab-size", "300", "--set", "tokenizer.kind=wordpiece"]
    done = zygote.run(*words, "--set", "text.dedup.near=off", "--json")
    assert done.returncode == 0, done.stderr
    tokenizer = load_tokenizer(out / "tokenizer")
    assert tokenizer.kind == "wordpiece"
    source = Tokens.open(out).sources["corpus"]
    assert "the fox number" in tokenizer.decode(source.ids[: source.document_offsets[1]])
    assert source.starts_word(np.arange(source.num_tokens)).mean() > 0.3
    shown = zygote.run("inspect", str(out), "--example", "0").stdout
    assert shown.splitlines()[1].count(" ") > 20, "words run together"


def test_settings_of_the_source_beside_its_paths(corpus: Path, tmp_path: Path, zygote: Zygote) -> None:
    table = tmp_path / "table.csv"
    lines = [line.replace('"', "") for path in sorted(corpus.rglob("*.txt")) for line in path.read_text().split("\n")]
    table.write_text("number,body\n" + "".join(f'{n},"{line} {n}"\n' for n, line in enumerate(lines) if line))
    words = ["prepare", str(table), "--out", str(tmp_path / "out"), "--vocab-size", "300", "--json"]
    done = zygote.run(*words)
    assert done.returncode == 65
    assert "number, body" in done.stderr
    assert not (tmp_path / ".out.work").exists()
    done = zygote.run(*words, "--set", "text.sources.text_columns=[body]")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["documents"] > 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["{corpus}", "--vocab-size", "500", "--tokenizer", "x"], 2, "give one of them"),
        (["{corpus}", "--vocab-size", "100"], 78, "at least 261"),
        (["{corpus}", "--tokenizer", "{corpus}/nothing"], 66, "no such vocabulary"),
        (["{corpus}/nothing.txt"], 66, "nothing.txt"),
        (["{corpus}", "--set", "text.sources=[]"], 2, "text.sources.KEY=VALUE"),
        (["{corpus}", "--set", "text.sources.columns=[b]"], 78, "unknown key text.sources.0.columns"),
        ([], 78, "nothing to prepare"),
        (["{corpus}", "--set", "tokenizer.vocabsize=5"], 78, "did you mean vocab_size"),
        (["{corpus}", "--set", "text.sentences.newline=space"], 78, "tokenizer.newlines"),
    ],
)
def test_mistakes_end_in_one_line(
    words: list[str], code: int, message: str, corpus: Path, tmp_path: Path, zygote: Zygote
) -> None:
    words = [word.format(corpus=corpus) for word in words]
    done = zygote.run("prepare", *words, "--out", str(tmp_path / "out"), "-q")
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / ".out.work").exists()


RAY = """
import sys
from pathlib import Path
from remask.preparation import prepare
from remask.config import build_run
from remask.progress import Progress
from remask.tokenizer import bulk
if __name__ == "__main__":
    bulk.MIN_PORTION_BYTES = 2_000
    out, engine, *paths = sys.argv[1:]
    options = {"text.sources": [{"name": "corpus", "paths": paths}], "text.dedup.near": "off",
               "tokenizer.vocab_size": 400, "workers": 2, "engine": engine}
    run = build_run(prepare.PrepareRun, options=options).run
    if engine == "ray":
        import os
        from ray.cluster_utils import Cluster
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        cluster.add_node(num_cpus=1)
        os.environ["RAY_ADDRESS"] = cluster.address
    try:
        prepare.prepare(run, Path(out), progress=Progress(quiet=True))
    finally:
        if engine == "ray":
            import ray
            ray.shutdown()
            cluster.shutdown()
"""


def test_a_ray_cluster_of_two_nodes_writes_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    script = tmp_path / "run.py"
    script.write_text(RAY)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    digests = {}
    for engine in ("ray", "local"):
        command = [sys.executable, str(script), str(tmp_path / engine), engine, *map(str, sorted(corpus.glob("*.txt")))]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        digest = hashlib.sha256()
        for path in sorted(p for p in (tmp_path / engine).rglob("*") if p.is_file()):
            digest.update(path.relative_to(tmp_path / engine).as_posix().encode() + path.read_bytes())
        digests[engine] = digest.hexdigest()
        assert len(list((tmp_path / engine).glob("*.tokens"))) > 3
    assert digests["ray"] == digests["local"]


def test_a_folder_of_an_earlier_version_is_not_refused_for_a_setting_it_did_not_have(
    corpus: Path, tmp_path: Path, zygote: Zygote
) -> None:
    words = ["prepare", str(corpus), "--out", str(tmp_path / "out"), "--vocab-size", "300", "--workers", "1"]
    assert zygote.run(*words).returncode == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    del manifest["config"]["tokenizer"]["chinese_words"], manifest["config"]["text"]["reading"]["lacking_columns"]
    manifest["fingerprint"] = artifacts._fingerprint(manifest)
    artifacts.write_json(tmp_path / "out" / "manifest.json", manifest)
    again = zygote.run(*words)
    assert again.returncode == 0, again.stderr
    assert "already prepared" in again.stderr
    assert zygote.run(*words, "--set", "tokenizer.newlines=token").returncode == 78
