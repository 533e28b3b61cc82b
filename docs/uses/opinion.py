"""Data of opinion.md: tweets to airlines, some airlines to learn from, others to watch.

    python docs/uses/opinion.py tweets.csv OUT      OUT/train.csv, OUT/dev.csv, OUT/watch.csv

`tweets.csv` has the columns text, tweet_created and airline_sentiment; the airline is the first @name of the list below
that a text has. Tweets without one are left out and counted.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
from pathlib import Path

LEARN_FROM = ("united", "southwestair", "virginamerica")
WATCH = ("jetblue", "usairways")  # the sixth, American, has no tweets before the 22nd: nothing to compare with
COLUMNS = ("airline", "created", "text", "sentiment")
NUM_TRAIN, NUM_DEV = 1200, 600


def read(path: Path) -> tuple[list[dict[str, str]], int]:
    """Tweets by airline, and how many have none."""
    tweets, without = [], 0
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            names = [name.lower() for name in re.findall(r"@(\w+)", row["text"])]
            airline = next((name for name in names if name in (*LEARN_FROM, *WATCH, "americanair")), None)
            if airline is None:
                without += 1
                continue
            values = (airline, row["tweet_created"], row["text"], row["airline_sentiment"])
            tweets.append(dict(zip(COLUMNS, values, strict=True)))
    return tweets, without


def write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows):6,} tweets  {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tweets", type=Path)
    parser.add_argument("out", type=Path)
    words = parser.parse_args()
    tweets, without = read(words.tweets)
    known = [tweet for tweet in tweets if tweet["airline"] in LEARN_FROM]
    random.Random(0).shuffle(known)
    words.out.mkdir(parents=True, exist_ok=True)
    write(words.out / "train.csv", known[:NUM_TRAIN])
    write(words.out / "dev.csv", known[NUM_TRAIN : NUM_TRAIN + NUM_DEV])
    write(words.out / "watch.csv", [tweet for tweet in tweets if tweet["airline"] in WATCH])
    print(f"{without:6,} tweets without an airline's name are left out")


if __name__ == "__main__":
    main()
