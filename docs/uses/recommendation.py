"""Data and figures of recommendation.md: MovieLens split by time, texts against counts, new films apart.

python docs/uses/recommendation.py files MOVIELENS OUT                       pairs.jsonl, dev.jsonl, films, users
python docs/uses/recommendation.py score OUT MODEL [MODEL …]                 every way in one table
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import itertools
import json
from collections import defaultdict
from pathlib import Path

import bm25s
import numpy as np

import remask
from remask.model.store import model_fingerprint
from remask.tasks.ranking_scores import difference_interval, mean_interval, ranking_values

LIKED, RECENT, LEAST, DEPTH = 4.0, 10, 5, 100  # stars; films that stand for a user; fewest in a history; ranks
SPLIT, LATER = 0.8, 0.5  # share of all ratings before the cut; share of a test user's films that make the history
FUSED = 60
MEASURES = ("recall@10", "ndcg@10")


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def files(source: Path, out: Path) -> None:
    """What is learned, counted or written in a tag comes from before the cut; users are tested on what they liked
    after it, their own earlier likes being the query."""
    out.mkdir(parents=True, exist_ok=True)
    ratings = sorted(
        (int(r["timestamp"]), int(r["userId"]), int(r["movieId"]), float(r["rating"]))
        for r in table(source / "ratings.csv")
    )
    cut = ratings[int(SPLIT * len(ratings))][0]
    tags: dict[int, list[str]] = defaultdict(list)
    for row in table(source / "tags.csv"):
        if int(row["timestamp"]) < cut and row["tag"].lower() not in tags[int(row["movieId"])]:
            tags[int(row["movieId"])].append(row["tag"].lower())
    films = {}
    for row in table(source / "movies.csv"):
        number = int(row["movieId"])
        genres = ", ".join(row["genres"].split("|")) if "no genres" not in row["genres"] else ""
        films[number] = ". ".join(part for part in (row["title"].strip(), genres, ", ".join(tags[number][:8])) if part)
    before: dict[int, list[int]] = defaultdict(list)
    both: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for time, user, film, stars in ratings:
        if stars >= LIKED:
            both[user].append((time, film))
            if time < cut:
                before[user].append(film)
    users = []
    for liked in both.values():
        start = max(LEAST, int(LATER * len(liked)))
        wanted = [film for time, film in liked[start:] if time >= cut]
        if wanted:
            users.append({"history": [film for _, film in liked[:start]], "wanted": wanted})
    pairs = [
        {"film": films[one], "next": films[two]} for liked in before.values() for one, two in itertools.pairwise(liked)
    ]
    pairs.sort(key=lambda pair: hashlib.sha256(json.dumps(pair).encode()).digest())
    for name, rows in (("dev", pairs[:200]), ("pairs", pairs[200:])):
        (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    kept = {"films": films, "before": list(before.values()), "users": users}
    (out / "data.json").write_text(json.dumps(kept), encoding="utf-8")
    seen = {film for liked in before.values() for film in liked}
    wanted = [film for user in users for film in user["wanted"]]
    new = sum(film not in seen for film in wanted)
    print(f"{len(pairs)} pairs; {len(users)} users to test, {len(wanted)} likes, {new} of new films")


def unit_vectors(texts: list[str], path: str, out: Path) -> np.ndarray:
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    kept = out / f"vectors-{model_fingerprint(Path(path))[:12]}-{digest[:8]}.npy"
    if not kept.is_file():
        np.save(kept, remask.load(path, precision="bf16").embed(texts, long_texts="cut"))
    return np.load(kept)


def scores_of(out: Path, models: list[str]) -> tuple[dict[str, np.ndarray], list[dict], np.ndarray, np.ndarray]:
    """(scores_UF by way, users, numbers of the films, whether a film is new)."""
    data = json.loads((out / "data.json").read_text(encoding="utf-8"))
    numbers = np.array(sorted(int(number) for number in data["films"]))
    place = {int(number): i for i, number in enumerate(numbers)}
    texts, users = [data["films"][str(number)] for number in numbers], data["users"]
    seen_UF = np.zeros((len(data["before"]), len(numbers)), np.float32)
    for row, liked in enumerate(data["before"]):
        seen_UF[row, [place[film] for film in liked]] = 1
    counts_F = seen_UF.sum(0)
    together_FF = (seen_UF.T @ seen_UF) / np.maximum(1, np.sqrt(np.outer(counts_F, counts_F)))
    recent = [[place[film] for film in user["history"][-RECENT:]] for user in users]
    ways = {"popular": np.repeat(counts_F[None], len(users), 0)}
    ways["seen together"] = np.stack([together_FF[films].sum(0) for films in recent])
    index = bm25s.BM25()
    index.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
    asked = bm25s.tokenize(
        [" ".join(texts[i] for i in films) for films in recent], stopwords="en", show_progress=False, return_ids=False
    )
    ways["words (BM25)"] = np.stack([index.get_scores(words) for words in asked])
    for path in models:
        vectors_FE = unit_vectors(texts, path, out)
        ways[f"mean of vectors, {path}"] = np.stack([vectors_FE[films].mean(0) @ vectors_FE.T for films in recent])
        joined = ["; ".join(texts[i] for i in films) for films in recent]
        ways[f"texts joined, {path}"] = unit_vectors(joined, path, out) @ vectors_FE.T
        ways[f"seen together and mean of vectors, {path}"] = fused(
            ways["seen together"], ways[f"mean of vectors, {path}"]
        )
    return ways, users, numbers, counts_F == 0


def fused(one_UF: np.ndarray, two_UF: np.ndarray) -> np.ndarray:
    """Reciprocal rank fusion of all films."""
    ranks = [np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1) for scores in (one_UF, two_UF)]
    return sum(1 / (FUSED + 1 + rank) for rank in ranks)


def score(out: Path, models: list[str]) -> None:
    ways, users, numbers, is_new = scores_of(out, models)
    place = {int(number): i for i, number in enumerate(numbers)}
    for title, only_new in (("all films", False), ("new films only", True)):
        of_way: dict[str, dict[str, np.ndarray]] = {}
        for name, scores_UF in ways.items():
            gains, relevant = [], []
            for scores, user in zip(scores_UF, users, strict=True):
                wanted = {place[film] for film in user["wanted"] if not only_new or is_new[place[film]]}
                if not wanted:
                    continue
                left_out = np.zeros(len(scores), bool)
                left_out[[place[film] for film in user["history"]]] = True
                left_out |= ~is_new if only_new else False
                order = np.argsort(-np.where(left_out, -np.inf, scores), kind="stable")[:DEPTH]
                gains.append([float(i in wanted) for i in order])
                relevant.append([1.0] * len(wanted))
            of_way[name] = ranking_values(gains, relevant, MEASURES)
        print(f"{title}: {len(gains)} users, 95 % intervals over users")
        for name, values in of_way.items():
            words = [
                f"{m} {mean:.4f} ({low:.4f}-{high:.4f})"
                for m in MEASURES
                for mean, low, high in [mean_interval(values[m])]
            ]
            mean, low, high = difference_interval(values["ndcg@10"], of_way["seen together"]["ndcg@10"])
            print(f"  {name:60} {'  '.join(words)}  above seen together by {mean:+.4f} ({low:+.4f} to {high:+.4f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["files", "score"])
    parser.add_argument("words", nargs="+")
    given = parser.parse_args()
    if given.what == "files":
        files(*map(Path, given.words))
    else:
        score(Path(given.words[0]), given.words[1:])


if __name__ == "__main__":
    main()
