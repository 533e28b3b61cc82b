"""What was read, kept, dropped and not looked at: facts of the parts and fates of the documents -> counts, drops.jsonl,
and what the user is told of them.

Every record that was read is kept or dropped. Rows of a table that was given up for want of its columns were not read:
they are counted as `unread`, and a corpus that consists mostly of such rows is refused. Not here: the choice itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from remask.artifacts import Artifact, output_errors
from remask.documents import one_line
from remask.errors import DataError
from remask.progress import Progress
from remask.schema import Json, Values
from remask.text.choose import PASSAGE, REASONS, PlacedPart
from remask.text.part import MAX_SAMPLES
from remask.text.records import LACKING_COLUMN
from remask.text.settings import TextSettings

DROPS = "drops.jsonl"
_SHOWN = 5  # files that a warning names


def check_columns(settings: TextSettings, counts: Sequence[Values]) -> None:
    """A source most of whose rows lack the column asked for is a mistake in the settings, unless they say otherwise."""
    for index, source in enumerate(settings.sources):
        mine = [fact for fact in counts if fact["source"] == index]
        samples = [sample for fact in mine for sample in fact["samples"] if sample["reason"] == LACKING_COLUMN]
        unread = sum(fact["unread"] for fact in mine)
        lacking = sum(fact["dropped"].get(LACKING_COLUMN, 0) for fact in mine) + unread
        num_rows = sum(fact["read"] for fact in mine) + unread
        nothing = not any(fact["documents"] for fact in mine)
        if samples and (nothing or (settings.reading.lacking_columns == "refuse" and lacking * 2 > num_rows)):
            raise DataError(
                f"{samples[0]['place']}: {samples[0].get('detail', '')}; {lacking:,} of {num_rows:,} records of "
                f"{source.name} are of this kind: set its text_columns (beside paths: --set "
                "'text.sources.text_columns=[NAME]')"
                + ("" if nothing else "; text.reading.lacking_columns=drop goes on without them")
            )


def warn_of_files(counts: Sequence[Values], progress: Progress) -> None:
    """Whole files that gave no text, or stopped giving it, must not be found out after the training."""
    files: dict[str, dict[str, tuple[int, str]]] = {}
    for sample in (sample for fact in counts for sample in fact["samples"] if sample.get("is_file")):
        named = files.setdefault(sample["reason"], {})
        unread, detail = named.get(sample["place"], (0, sample.get("detail", "")))
        rows = 1 + sample["unread"] if "unread" in sample else 0
        named[sample["place"]] = unread + rows, detail
    for reason, named in files.items():
        shown = [
            place + (f" ({unread:,} rows not read)" if unread else "") + (f": {detail}" if detail else "")
            for place, (unread, detail) in list(named.items())[:_SHOWN]
        ]
        rest = f"; and {len(named) - _SHOWN:,} more, all in {DROPS}" if len(named) > _SHOWN else ""
        files_ = "1 file" if len(named) == 1 else f"{len(named):,} files"
        progress.warn(f"{files_} given up, {reason}: {'; '.join(shown)}{rest}")


def count_all(
    settings: TextSettings, of_parts: Sequence[Values], parts: Sequence[PlacedPart], fates: np.ndarray
) -> Json:
    """Counts of every source and of all. A document of which a passage is held out is read and kept as two."""
    sources: dict[str, Json] = {}
    for index, source in enumerate(settings.sources):
        read, unread, dropped, changed = 0, 0, Counter[str](), Counter[str]()
        for fact, part in zip(of_parts, parts, strict=True):
            if fact["source"] != index:
                continue
            read += fact["read"]
            unread += fact["unread"]
            dropped.update(fact["dropped"])
            changed.update(fact["changed"])
            of_fate = np.bincount(fates[part.first : part.first + part.count], minlength=PASSAGE + len(REASONS) + 1)
            dropped.update({reason: int(of_fate[fate]) for fate, reason in REASONS.items() if of_fate[fate]})
            if of_fate[PASSAGE]:
                changed["passage held out"] += int(of_fate[PASSAGE])
                read += int(of_fate[PASSAGE])
        kept = read - dropped.total()
        sources[source.name] = {
            "read": read,
            "unread": unread,
            "documents": kept,
            "dropped": dict(sorted(dropped.items())),
            "changed": dict(sorted(changed.items())),
            "weight": source.weight,
        }
    num_kept = int((fates <= PASSAGE).sum() + (fates == PASSAGE).sum())
    assert sum(counts["documents"] for counts in sources.values()) == num_kept
    dropped, changed = Counter[str](), Counter[str]()
    for counts in sources.values():
        dropped.update(counts["dropped"])
        changed.update(counts["changed"])
    return {
        "read": sum(counts["read"] for counts in sources.values()),
        "unread": sum(counts["unread"] for counts in sources.values()),
        "dropped": dict(sorted(dropped.items())),
        "changed": dict(sorted(changed.items())),
        "sources": sources,
    }


def in_words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items(), key=lambda i: -i[1])) or "none"


def say_counts(artifact: Artifact, progress: Progress) -> None:
    counts = artifact.counts
    progress.say(f"{counts['documents']:,} documents, {counts['bytes'] / 1e6:,.1f} MB of text")
    progress.say(f"dropped: {in_words(counts['dropped'])}")
    if counts["changed"]:
        progress.say(f"changed: {in_words(counts['changed'])}")
    fraction = artifact.manifest["config"]["heldout_fraction"]
    if fraction and not any(shard["split"] == "heldout" for shard in counts["shards"]):
        progress.warn(
            f"no text is held out, so nothing can be measured on it: heldout_fraction = {fraction}, but none of the "
            f"{counts['documents']:,} documents can be spared or has two sentences to cut between; add documents"
        )


def write_drops(
    settings: TextSettings,
    of_parts: Sequence[Values],
    parts: Sequence[PlacedPart],
    fates: np.ndarray,
    folder: Path,
) -> None:
    """The first drops of every reason and source with their places, in input order, and every file that was not read to
    its end."""
    seen: Counter[tuple[str, str]] = Counter()
    with output_errors(folder), (folder / DROPS).open("w", encoding="utf-8") as file:
        while_reading = ((fact["source"], sample) for fact in of_parts for sample in fact["samples"])
        for source, sample in [*while_reading, *_chosen_against(parts, fates)]:
            name = settings.sources[source].name
            seen[name, sample["reason"]] += 1
            if sample.get("is_file") or seen[name, sample["reason"]] <= MAX_SAMPLES:
                file.write(one_line(json.dumps({"source": name, **sample}, ensure_ascii=False)) + "\n")


def _chosen_against(parts: Sequence[PlacedPart], fates: np.ndarray) -> Iterator[tuple[int, Json]]:
    """By reason first, so that the order does not depend on how the files were divided."""
    for fate, reason in REASONS.items():
        for part in parts:
            mine, shard = fates[part.first : part.first + part.count], part.shard
            for index in np.flatnonzero(mine == fate)[:MAX_SAMPLES].tolist():
                yield part.source, {"reason": reason, "place": shard.place(index)}
