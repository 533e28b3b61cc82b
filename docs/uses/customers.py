"""Data and figures of customers.md: banking77's questions, few examples a class, a nearest known question, "I do not
know".

    python docs/uses/customers.py files train.csv OUT          known questions, pairs, tests: OUT/*.csv, OUT/*.jsonl
    python docs/uses/customers.py score OUT MODEL [--prompt query]
    python docs/uses/customers.py classifier OUT MODEL         the same tests for a model of task classify
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

import remask
from remask.tasks.metrics import interval

NEAREST = 5  # known questions that vote, by their cosine
TARGET_RISK = 0.05  # of the answers that are given, so many may be wrong


def read(path: Path) -> list[tuple[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = [(row["text"].strip(), row["category"]) for row in csv.DictReader(file)]
    return [(text, name) for text, name in rows if text and name]  # three rows of the file are broken in two


def write(path: Path, rows: list[tuple[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "category"), *rows])


def files(source: Path, out: Path, each: int) -> None:
    """By hash, so that everybody has the same: a quarter to test on, `each` of every class among the rest to know."""
    out.mkdir(parents=True, exist_ok=True)
    by_hash = sorted(read(source), key=lambda row: hashlib.sha256(row[0].encode()).digest())
    test, rest = by_hash[: len(by_hash) // 4], by_hash[len(by_hash) // 4 :]
    of_class: dict[str, list[str]] = defaultdict(list)
    for text, name in rest:
        if len(of_class[name]) < each:
            of_class[name].append(text)
    known = [(text, name) for name, texts in sorted(of_class.items()) for text in texts]
    write(out / "known.csv", known)
    write(out / "test.csv", test)
    with (out / "pairs.jsonl").open("w", encoding="utf-8") as file:
        for text, name in known:
            others = [other for other in of_class[name] if other != text]
            file.write(json.dumps({"question": text, "same": [name.replace("_", " "), *others]}) + "\n")
    print(f"{len(known)} known questions of {len(of_class)} intents, {len(test)} to test on")


def votes(asked_QE: np.ndarray, known_KE: np.ndarray, intent_K: np.ndarray, own: bool) -> tuple[np.ndarray, np.ndarray]:
    """(intent, how sure: its share of the nearest questions' weights times the nearest cosine) of every question.
    `own`: the questions are the known ones themselves, and none of them counts for itself."""
    scores_QK = asked_QE @ known_KE.T
    if own:
        np.fill_diagonal(scores_QK, -1.0)
    chosen, sure = [], []
    for scores in scores_QK:
        near = np.argsort(-scores)[:NEAREST]
        weights = np.exp((scores[near] - scores[near[0]]) / 0.05)
        of_intent = np.bincount(intent_K[near], weights)
        chosen.append(int(of_intent.argmax()))
        sure.append(float(scores[near[0]] * of_intent.max() / weights.sum()))
    return np.array(chosen), np.array(sure)


def risk_coverage(right: np.ndarray, sure: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(threshold, share that is answered, share of wrong ones among them) from the surest question down."""
    order = np.argsort(-sure, kind="stable")
    counts = np.arange(1, len(right) + 1)
    return sure[order], counts / len(right), np.cumsum(~right[order]) / counts


def threshold_for(right: np.ndarray, sure: np.ndarray, risk: float) -> float:
    """The lowest threshold above which no more than `risk` of the answers are wrong."""
    thresholds, _, risks = risk_coverage(right, sure)
    fine = np.flatnonzero(risks <= risk)
    return float(thresholds[fine[-1]]) if len(fine) else float("inf")


def told(name: str, right: np.ndarray, sure: np.ndarray, threshold: float) -> None:
    low, high = interval(right.mean(), len(right))
    given = sure >= threshold
    wrong = float((~right[given]).mean()) if given.any() else 0.0
    print(f"{name}: accuracy {right.mean():.4f} ({low:.4f} to {high:.4f}, 95 %, {len(right)} questions)")
    print(f"  threshold {threshold:.3f}: answers {given.mean():.1%}, of which {wrong:.1%} are wrong")
    _, coverage, risk = risk_coverage(right, sure)
    for share in (0.2, 0.4, 0.6, 0.8, 0.9, 1.0):
        at = min(len(right), round(share * len(right))) - 1
        print(f"  surest {coverage[at]:4.0%}: {risk[at]:6.2%} wrong")


def score(out: Path, model_path: str, prompt: str | None) -> None:
    known, test = read(out / "known.csv"), read(out / "test.csv")
    names = sorted({name for _, name in known})
    model = remask.load(model_path)
    known_KE, test_QE = (model.embed([text for text, _ in rows], prompt=prompt) for rows in (known, test))
    intent_K, truth_Q = (np.array([names.index(name) for _, name in rows]) for rows in (known, test))
    chosen, sure = votes(known_KE, known_KE, intent_K, own=True)
    threshold = threshold_for(chosen == intent_K, sure, TARGET_RISK)
    chosen, sure = votes(test_QE, known_KE, intent_K, own=False)
    told(f"nearest known question, {model_path}", chosen == truth_Q, sure, threshold)


def classifier(out: Path, model_path: str) -> None:
    test = read(out / "test.csv")
    labels = remask.load(model_path).classify([text for text, _ in test])
    right = np.array([label.label == name for label, (_, name) in zip(labels, test, strict=True)])
    told(f"classify, {model_path}", right, np.array([label.score for label in labels]), 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["files", "score", "classifier"])
    parser.add_argument("first", type=Path)
    parser.add_argument("second")
    parser.add_argument("--each", type=int, default=10, help="known questions of a class")
    parser.add_argument("--prompt")
    given = parser.parse_args()
    if given.what == "files":
        files(given.first, Path(given.second), given.each)
    elif given.what == "score":
        score(given.first, given.second, given.prompt)
    else:
        classifier(given.first, given.second)


if __name__ == "__main__":
    main()
