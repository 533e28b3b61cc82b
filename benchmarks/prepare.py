"""Preparing text: ours beside the usual recipes, both sides in turn in one run.

tokenise   token shards beside run_mlm.py's datasets.map recipe (tokenise, then group into blocks), the same
           vocabulary, the same number of processes; with the `fast` extra and without it
train      the vocabulary, beside `tokenizers` alone on the same lines, and whether the merges are the same
memory     the most that the process or one of its workers holds while the corpus is streamed N times over
whole      the whole of `remask prepare` on the corpus, seconds and share of each step
vocabulary a vocabulary from so many gigabytes of made-up text, with spaces and without: seconds, and the most that the
           process or a worker holds, beside the bound; the disk takes counts only (without spaces: as much as the text)

    python benchmarks/prepare.py [--corpus FILE.txt.xz] [--megabytes 8] [--parts tokenise,train] [--json]
    python benchmarks/prepare.py --parts vocabulary --gigabytes 10 [--text none]

One JSON line a figure, with name, ratio, peer, ours and unit; the last is tokenising with the extra, where asked for.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from statistics import median
from typing import IO, Any

from _rig import memory_mb
from _synthetic import KINDS, portions

PARTS = ("whole", "memory", "train", "tokenise")  # on the corpus
BOUND_MB = 2048  # of a process, whatever the text


def read_documents_of(path: Path, megabytes: float | None) -> list[str]:
    with (lzma.open if path.suffix == ".xz" else open)(path, "rb") as file:
        text = file.read(int(megabytes * 1e6) if megabytes else -1).decode("utf-8", "ignore")
    return [document for part in text.split("\n\n") if (document := part.strip("\n"))]


def write_documents(documents: list[str], folder: Path, shard_bytes: int = 16_000_000) -> list[Any]:
    """In the layout of the text stage; lines stand for sentences, which costs the same."""
    from remask.documents import DocumentShard, DocumentWriter

    shards, writer, size = [], None, 0
    for document in documents:
        if writer is None or size > shard_bytes:
            if writer is not None:
                writer.close()
            name = f"corpus.train.{len(shards):05d}"
            writer, size = DocumentWriter(folder, name), 0
            shards.append(DocumentShard(folder, name))
        starts = [0] + [place + 1 for place, letter in enumerate(document) if letter == "\n"]
        writer.add(document, starts)
        size += len(document)
    assert writer is not None
    writer.close()
    return shards


# ------------------------------------------------------------------------------------------------------ tokenise


def ours_tokenise(shards: list[Any], tokenizer: Path, work: Path, processes: int, fast: bool) -> tuple[float, int]:
    from remask.data.shards import ShardTask, forget, make_shard
    from remask.tokenizer.bulk import plan_blocks
    from remask.workers import run_tasks

    folder = Path(tempfile.mkdtemp(dir=work))
    start = time.perf_counter()
    tasks = [
        ShardTask(blocks, f"corpus.train.{n:05d}", tokenizer, folder, folder / f"{n}.json", "none", fast)
        for n, blocks in enumerate(plan_blocks(shards))
    ]
    facts = run_tasks(make_shard, tasks, workers=processes)
    seconds = time.perf_counter() - start
    assert not any(fact["fell_back"] for fact in facts)
    forget()
    shutil.rmtree(folder)
    return seconds, sum(fact["tokens"] for fact in facts)


def peer_tokenise(lines: list[str], tokenizer: Path, work: Path, processes: int) -> tuple[float, int]:
    """run_mlm.py: map(tokenize, batched), then map(group_texts, batched), in the given number of processes."""
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    loaded = AutoTokenizer.from_pretrained(tokenizer)
    folder = Path(tempfile.mkdtemp(dir=work))
    source = datasets.Dataset.from_dict({"text": lines})
    length = 512

    def tokenize(examples: dict[str, list[str]]) -> Any:
        return loaded(examples["text"], return_special_tokens_mask=True)

    def group(examples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {key: list(chain.from_iterable(examples[key])) for key in examples}
        total = len(next(iter(joined.values()))) // length * length
        return {key: [all_[i : i + length] for i in range(0, total, length)] for key, all_ in joined.items()}

    start = time.perf_counter()
    common = {"batched": True, "num_proc": processes, "load_from_cache_file": False}
    tokenized = source.map(tokenize, remove_columns=["text"], cache_file_name=str(folder / "one.arrow"), **common)
    grouped = tokenized.map(group, cache_file_name=str(folder / "two.arrow"), **common)
    seconds = time.perf_counter() - start
    tokens = grouped.num_rows * length
    del source, tokenized, grouped
    shutil.rmtree(folder)
    return seconds, tokens


def measure_tokenise(options: argparse.Namespace, documents: list[str], work: Path) -> list[dict[str, Any]]:
    from remask.tokenizer import load_tokenizer

    shards = write_documents(documents, work)
    tokenizer = work / "tokenizer"
    load_tokenizer(options.tokenizer).save(tokenizer) if options.tokenizer else _small_vocabulary(documents, tokenizer)
    lines = [line for document in documents for part in document.split("\n") if (line := part.strip())]
    megabytes = sum(shard.num_bytes for shard in shards) / 1e6
    seconds: dict[str, list[float]] = {"peer": [], "fast": [], "plain": []}
    for number in range(options.rounds):
        seconds["peer"].append(peer_tokenise(lines, tokenizer, work, options.processes)[0])
        for name, fast in (("fast", True), ("plain", False)):
            seconds[name].append(ours_tokenise(shards, tokenizer, work, options.processes, fast)[0])
        rates = {name: round(megabytes / values[-1], 2) for name, values in seconds.items()}
        print(f"tokenise, round {number + 1}: {rates} MB/s")
    ratios = {n: [p / s for p, s in zip(seconds["peer"], seconds[n], strict=True)] for n in ("fast", "plain")}
    rate = {name: round(megabytes / median(values), 2) for name, values in seconds.items()}
    often = f", the text {options.times} times over" if options.times > 1 else ""
    return [
        {
            "name": f"prepare: tokenise{'' if way == 'fast' else ' without the fast extra'}{often}",
            "ratio": round(median(ratios[way]), 2),
            "peer": rate["peer"],
            "ours": rate[way],
            "unit": "MB/s",
            "rounds": [round(value, 2) for value in ratios[way]],
        }
        for way in ("plain", "fast")
    ]


def _small_vocabulary(documents: list[str], folder: Path) -> None:
    from remask.tokenizer import training
    from remask.tokenizer.settings import TokenizerSettings

    settings = TokenizerSettings(vocab_size=16384)
    pieces = [line.encode() for document in documents[:400] for line in document.split("\n") if line]
    words = sorted(training.count_pieces(pieces, settings, True).items())
    training.train_tokenizer(words, settings, True).save(folder)


# --------------------------------------------------------------------------------------------------------- train


def measure_train(options: argparse.Namespace, documents: list[str], work: Path) -> list[dict[str, Any]]:
    from tokenizers import ByteLevelBPETokenizer

    from remask.tokenizer import training
    from remask.tokenizer.bulk import plan_blocks
    from remask.tokenizer.settings import TokenizerSettings
    from remask.workers import run_tasks

    settings = TokenizerSettings(vocab_size=options.vocab_size)
    folder = work / "train"
    folder.mkdir()
    shards = write_documents(documents, folder)
    lines = [line for document in documents for part in document.split("\n") if (line := part.strip())]
    seconds: dict[str, list[float]] = {"peer": [], "ours": []}
    for number in range(options.rounds):
        start = time.perf_counter()
        library = ByteLevelBPETokenizer()
        specials = ["<s>", "<pad>", "</s>", "<unk>"]
        library.train_from_iterator(
            lines, vocab_size=settings.vocab_size - 1, min_frequency=0, special_tokens=specials, show_progress=False
        )
        seconds["peer"].append(time.perf_counter() - start)
        start = time.perf_counter()
        tasks = [
            training.CountTask(blocks, folder / f"{n}.counts", folder / f"{n}.json", settings, True)
            for n, blocks in enumerate(plan_blocks(shards))
        ]
        run_tasks(training.count_words, tasks, workers=options.processes)
        words = training.merge_counts([task.out for task in tasks], settings.max_distinct_words).words
        assert training.gigatoken_agrees(words)
        ours = training.train_tokenizer(words, settings, True)
        seconds["ours"].append(time.perf_counter() - start)
        last = {name: round(values[-1], 2) for name, values in seconds.items()}
        print(f"train, round {number + 1}: {last} s")
        same = json.loads(library.to_str())["model"]["merges"] == ours.description["model"]["merges"]
    ratios = [p / s for p, s in zip(seconds["peer"], seconds["ours"], strict=True)]
    facts = {
        "name": f"prepare: train a vocabulary of {settings.vocab_size:,}",
        "ratio": round(median(ratios), 2),
        "peer": round(median(seconds["peer"]), 2),
        "ours": round(median(seconds["ours"]), 2),
        "unit": "s",
        "same_merges": same,
        "rounds": [round(value, 2) for value in ratios],
    }
    return [facts]


# ---------------------------------------------------------------------------------------------------- vocabulary


def train_on_stream(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """The steps of `remask prepare` that make a vocabulary, on text that exists only while it is read."""
    import resource

    from remask.config import fingerprint
    from remask.tokenizer import training
    from remask.tokenizer.settings import TokenizerSettings
    from remask.workers import run_tasks

    settings = TokenizerSettings(vocab_size=options.vocab_size)
    streams = portions(options.text, int(options.gigabytes * 1e9))
    fast = options.accelerator == "auto" and importlib.util.find_spec("gigatoken") is not None
    tasks: list[Any] = [
        training.CountTask(stream, work / f"{n}.counts", work / f"{n}.json", settings, fast)  # type: ignore[arg-type]
        for n, stream in enumerate(streams)
    ]
    begun = time.perf_counter()
    run_tasks(training.count_words, tasks, workers=options.processes)
    counted = time.perf_counter()
    disk = sum(task.out.stat().st_size for task in tasks) / 1e6
    table = training.merge_counts([task.out for task in tasks], settings.max_distinct_words)
    merged = time.perf_counter()
    tokenizer = training.train_tokenizer(table.words, settings, fast and training.gigatoken_agrees(table.words))
    done = time.perf_counter()
    steps = {"count": counted - begun, "merge": merged - counted, "train": done - merged}
    worker_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {
        "seconds": round(done - begun, 1),
        "steps": {name: round(seconds, 1) for name, seconds in steps.items()},
        "parent_mb": round(memory_mb("VmHWM")),
        "worker_mb": round(worker_mb),
        "counts_mb": round(disk),
        "distinct_words": table.num_distinct,
        "words_learned_from": len(table.words),
        "share_of_the_text": round(table.kept_share, 4),
        "entries": tokenizer.vocab_size,
        "merges": fingerprint(tokenizer.description["model"]["merges"])[:16],  # the same from any number of processes
    }


def measure_vocabulary(options: argparse.Namespace, told: IO[str]) -> None:
    """Each kind of text in a process of its own, for its memory to be its own."""
    for kind in KINDS if options.text is None else [options.text]:
        words = ["--parts", "vocabulary", "--gigabytes", str(options.gigabytes), "--text", kind, "--side", "alone"]
        words += ["--processes", str(options.processes), "--vocab-size", str(options.vocab_size)]
        words += ["--accelerator", options.accelerator]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        done = subprocess.run([sys.executable, __file__, *words], env=environment, stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        held = max(found["parent_mb"], found["worker_mb"])
        name = f"prepare: a vocabulary of {options.vocab_size:,} from {options.gigabytes:g} GB of text {KINDS[kind]}"
        if not options.json:
            print(f"{name}: {found['seconds']} s, {held} MB held at most")
        facts = {"name": f"{name}, memory (peer: the bound)", "ratio": round(BOUND_MB / held, 2), "peer": BOUND_MB}
        print(json.dumps({**facts, "ours": held, "unit": "MB", **found, "processes": options.processes}), file=told)
        told.flush()


# ------------------------------------------------------------------------------------- whole runs, in a process


def _run_prepare(paths: list[Path], out: Path, options: argparse.Namespace) -> dict[str, Any]:
    """`remask prepare` in a process of its own; its result, and the most memory that it or a child of it held."""
    code = (
        "import json, resource, sys\n"
        "from remask.__main__ import cli\n"
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        cli(standalone_mode=False)\n"
        "    finally:\n"
        # Not getrusage for the process itself: that includes what this benchmark held when it forked.
        "        most = [line for line in open('/proc/self/status') if line.startswith('VmHWM')][0].split()[1]\n"
        "        workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        "        print(json.dumps({'parent_mb': int(most) / 1024, 'worker_mb': workers / 1024}))\n"
    )
    script = out.with_suffix(".py")
    script.write_text(code)
    words = ["prepare", *map(str, paths), "--out", str(out), "--vocab-size", str(options.vocab_size), "--json", "-q"]
    words += ["--workers", str(options.processes)] + [w for s in options.set for w in ("--set", s)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run(
        [sys.executable, str(script), *words], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    result, memory = map(json.loads, done.stdout.strip().splitlines())
    return {**result, **memory}


def _plain_copies(documents: list[str], folder: Path, copies: int) -> list[Path]:
    """Files of other text of the same kind: every copy's words carry its number, so that none is a duplicate."""
    paths = []
    for number in range(copies):
        paths.append(folder / f"copy{number}.txt")
        mark = f" v{number}x " if number else " "
        with paths[-1].open("w", encoding="utf-8") as file:
            for document in documents:
                file.write(document.replace(" the ", f" the{mark}") + "\n\n")
    return paths


def measure_memory(options: argparse.Namespace, documents: list[str], work: Path) -> list[dict[str, Any]]:
    folder = work / "memory"
    folder.mkdir()
    held = {}
    for copies in (1, options.copies):
        paths = _plain_copies(documents, folder, copies)
        result = _run_prepare(paths, folder / f"out{copies}", options)
        held[copies] = max(result["parent_mb"], result["worker_mb"])
        print(f"memory: {copies} copies, {result['bytes'] / 1e6:.0f} MB of text: {held[copies]:.0f} MB held at most")
        shutil.rmtree(folder / f"out{copies}")
    facts = {
        "name": f"prepare: most memory of a process, {options.copies} copies of the corpus (peer: the bound)",
        "ratio": round(1024 / held[options.copies], 2),
        "peer": 1024.0,
        "ours": round(held[options.copies], 1),
        "unit": "MB",
        "one_copy": round(held[1], 1),
    }
    return [facts]


def measure_whole(options: argparse.Namespace, documents: list[str], work: Path) -> list[dict[str, Any]]:
    folder = work / "whole"
    folder.mkdir()
    paths = _plain_copies(documents, folder, 1)
    start = time.perf_counter()
    result = _run_prepare(paths, folder / "out", options)
    total = time.perf_counter() - start
    steps = {**result["seconds"], "rest": total - sum(result["seconds"].values())}
    for name, seconds in steps.items():
        print(f"whole: {name:12} {seconds:7.2f} s  {100 * seconds / total:5.1f} %")
    shares = {name: {"seconds": round(taken, 2), "share": round(taken / total, 3)} for name, taken in steps.items()}
    facts = {"name": "prepare: whole", "seconds": round(total, 2), "steps": shares, "tokens": result["tokens"]}
    return [facts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--corpus", type=Path, default=beside / "wiki" / "wiki.train.txt.xz")
    parser.add_argument(
        "--tokenizer", type=Path, help="vocabulary for the part tokenise; else one of 16,384 is trained"
    )
    parser.add_argument("--megabytes", type=float, help="only the first so many")
    parser.add_argument("--times", type=int, default=1, help="the text so often over: workers start only once")
    parser.add_argument("--parts", default="train,tokenise", help=f"of {','.join(PARTS)}, or all; or vocabulary")
    parser.add_argument("--gigabytes", type=float, default=10.0, help="of text, for the part vocabulary")
    parser.add_argument("--text", choices=KINDS, help="of the part vocabulary: what stands between words; else both")
    parser.add_argument("--accelerator", default="auto", choices=["auto", "none"], help="of the part vocabulary")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--vocab-size", type=int, default=16384)
    parser.add_argument("--copies", type=int, default=10)
    parser.add_argument("--set", action="append", default=[], help="settings for the parts memory and whole")
    parser.add_argument("--json", action="store_true", help="nothing but the last line")
    options = parser.parse_args()
    if options.side:
        with tempfile.TemporaryDirectory(prefix="remask-bench-") as folder:
            return print(json.dumps(train_on_stream(options, Path(folder))))
    if options.parts == "vocabulary":
        return measure_vocabulary(options, sys.stdout)
    asked = PARTS if options.parts == "all" else options.parts.split(",")
    if unknown := set(asked) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    told = sys.stdout
    if options.json:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    measures = {
        "whole": measure_whole,
        "memory": measure_memory,
        "train": measure_train,
        "tokenise": measure_tokenise,
    }
    documents = read_documents_of(options.corpus, options.megabytes) * options.times
    megabytes = round(sum(len(document.encode()) for document in documents) / 1e6, 1)
    with tempfile.TemporaryDirectory(prefix="remask-bench-") as folder:
        for part in (part for part in PARTS if part in asked):
            for facts in measures[part](options, documents, Path(folder)):
                print(
                    json.dumps({**facts, "megabytes": megabytes, "processes": options.processes}), file=told, flush=True
                )


if __name__ == "__main__":
    main()
