"""Data and figures of reading.md: questions of SQuAD to their paragraphs, by words, by vectors and by both.

python docs/uses/reading.py files dev-v1.1.json article_split_v1.1.json OUT       pairs, tests, articles in two parts
python docs/uses/reading.py score OUT MODEL [MODEL …] [--questions 1000]          every way in one table
python docs/uses/reading.py answers OUT MODEL QA_MODEL [--questions 300]          then read what was found
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import bm25s
import numpy as np

import remask
from remask.model.store import model_fingerprint
from remask.tasks.ranking_scores import difference_interval, mean_interval, ranking_values
from remask.tasks.squad_scores import exact, f1

DEPTH, FUSED = 100, 60  # ranks that are looked at; the constant of reciprocal rank fusion


def files(squad: Path, split: Path, out: Path) -> None:
    """Paragraphs of all articles to search in; questions of the training articles to learn from, of the others to
    test."""
    out.mkdir(parents=True, exist_ok=True)
    held_out = set(json.loads(split.read_text(encoding="utf-8"))["eval"])
    paragraphs: list[str] = []
    parts: dict[str, list[dict]] = {"train": [], "test": []}
    articles = json.loads(squad.read_text(encoding="utf-8"))["data"]
    for name in ("train", "test"):  # for a reader, in SQuAD's own form
        kept = [article for article in articles if (article["title"] in held_out) == (name == "test")]
        (out / f"{name}-articles.json").write_text(json.dumps({"version": "1.1", "data": kept}), encoding="utf-8")
    for article in articles:
        for paragraph in article["paragraphs"]:
            paragraphs.append(paragraph["context"])
            for asked in paragraph["qas"]:
                row = {"question": asked["question"].strip(), "paragraph": paragraph["context"]}
                row |= {"number": len(paragraphs) - 1, "answers": sorted({a["text"] for a in asked["answers"]})}
                parts["test" if article["title"] in held_out else "train"].append(row)
    for rows in parts.values():  # by hash, so that the first so many are a sample that everybody has
        rows.sort(key=lambda row: hashlib.sha256(row["question"].encode()).digest())
    parts["dev"], parts["train"] = parts["train"][:100], parts["train"][100:]
    for name, rows in parts.items():
        (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (out / "paragraphs.json").write_text(json.dumps(paragraphs), encoding="utf-8")
    # The same for `remask index` and `remask search --queries … --qrels …`.
    tables = {
        "documents.jsonl": [json.dumps({"id": f"p{i}", "text": text}) for i, text in enumerate(paragraphs)],
        "queries.jsonl": [json.dumps({"id": f"q{i}", "text": row["question"]}) for i, row in enumerate(parts["test"])],
        "qrels.txt": [f"q{i} 0 p{row['number']} 1" for i, row in enumerate(parts["test"])],
    }
    for name, lines in tables.items():
        (out / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(parts['train'])} questions to train on, {len(parts['test'])} to test, {len(paragraphs)} paragraphs")


def read(out: Path, count: int) -> tuple[list[dict], list[str]]:
    rows = [json.loads(line) for line in (out / "test.jsonl").read_text(encoding="utf-8").splitlines()][:count]
    return rows, json.loads((out / "paragraphs.json").read_text(encoding="utf-8"))


def by_words(questions: list[str], paragraphs: list[str]) -> np.ndarray:
    index = bm25s.BM25()
    index.index(bm25s.tokenize(paragraphs, stopwords="en", show_progress=False), show_progress=False)
    asked = bm25s.tokenize(questions, stopwords="en", show_progress=False)
    return np.asarray(index.retrieve(asked, k=DEPTH, show_progress=False)[0], np.int64)


def by_vectors(questions: list[str], paragraphs: list[str], path: str, out: Path) -> np.ndarray:
    """Vectors are kept, since they take most of the time."""
    kept = out / f"vectors-{model_fingerprint(Path(path))[:12]}-{len(questions)}.npz"
    if not kept.is_file():
        model = remask.load(path, precision="bf16")
        named = [name if name in model.prompts else None for name in ("query", "document")]
        asked = model.embed(questions, prompt=named[0], long_texts="cut")
        np.savez(kept, asked=asked, texts=model.embed(paragraphs, prompt=named[1], long_texts="cut"))
    vectors = np.load(kept)
    return np.argsort(-(vectors["asked"] @ vectors["texts"].T), axis=1, kind="stable")[:, :DEPTH]


def fused(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Reciprocal rank fusion."""
    ranked = []
    for one, two in zip(first, second, strict=True):
        scores: dict[int, float] = {}
        for ranks in (one, two):
            for rank, number in enumerate(ranks.tolist(), 1):
                scores[number] = scores.get(number, 0.0) + 1 / (FUSED + rank)
        ranked.append(sorted(scores, key=lambda number: (-scores[number], number))[:DEPTH])
    return np.array([row[: min(map(len, ranked))] for row in ranked])


def score(out: Path, models: list[str], count: int) -> None:
    rows, paragraphs = read(out, count)
    questions = [row["question"] for row in rows]
    found = {"words (BM25)": by_words(questions, paragraphs)}
    for path in models:
        found[f"vectors, {path}"] = by_vectors(questions, paragraphs, path, out)
        found[f"both, {path}"] = fused(found["words (BM25)"], found[f"vectors, {path}"])
    values = {}
    for name, ranked in found.items():
        gains = [[float(number == row["number"]) for number in ranks] for ranks, row in zip(ranked, rows, strict=True)]
        values[name] = ranking_values(gains, [[1.0]] * len(rows), ("recall@1", "recall@5", "recall@10", "ndcg@10"))
    print(f"{len(rows)} questions, {len(paragraphs)} paragraphs; 95 % intervals over questions")
    for name, of_way in values.items():
        shown = "  ".join(
            f"{m} {mean:.4f} ({low:.4f}-{high:.4f})"
            for m, v in of_way.items()
            for mean, low, high in [mean_interval(v)]
        )
        print(f"{name}\n  {shown}")
        if name != "words (BM25)":
            mean, low, high = difference_interval(of_way["recall@5"], values["words (BM25)"]["recall@5"])
            print(f"  recall@5 above BM25's by {mean:+.4f} ({low:+.4f} to {high:+.4f})")


def answers(out: Path, path: str, qa_path: str, count: int) -> None:
    """The best paragraph by words and vectors together, and the answer in it; beside the paragraph of the question."""
    rows, paragraphs = read(out, count)
    questions = [row["question"] for row in rows]
    ranked = fused(by_words(questions, paragraphs), by_vectors(questions, paragraphs, path, out))
    reader = remask.load(qa_path)
    for name, numbers in (("found", ranked[:, 0].tolist()), ("the question's own", [row["number"] for row in rows])):
        said = reader.answers([(q, paragraphs[number]) for q, number in zip(questions, numbers, strict=True)])
        pairs = [(answer.text, row["answers"]) for answer, row in zip(said, rows, strict=True)]
        same = np.array([max(exact(text, true) for true in truths) for text, truths in pairs], float)
        f1s = np.array([max(f1(text, true) for true in truths) for text, truths in pairs], float)
        for measure, values in (("exact", same), ("F1", f1s)):
            mean, low, high = mean_interval(values)
            print(f"paragraph {name}: {measure} {mean:.4f} ({low:.4f}-{high:.4f}, {len(rows)} questions)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["files", "score", "answers"])
    parser.add_argument("words", nargs="+")
    parser.add_argument("--questions", type=int, default=1 << 30)
    given = parser.parse_args()
    if given.what == "files":
        files(*map(Path, given.words))
    elif given.what == "score":
        score(Path(given.words[0]), given.words[1:], given.questions)
    else:
        answers(Path(given.words[0]), given.words[1], given.words[2], given.questions)


if __name__ == "__main__":
    main()
