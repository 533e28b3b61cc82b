"""`remask inspect`: look into a PREPARED folder, or at the very batches that a training run would read.

In: PREPARED. Out: counts, lengths, samples, drops and compression for a person, with a small picture, or one JSON
object; with --batch or --example, rows with their masks (colours in a terminal, `[word→target]` elsewhere).
`--batch N --epoch E` is the N-th optimizer step that starts in pass E over the data, both counted from 0: all its rows,
over all ranks, as training reads them (`Batches.batch_of_epoch` says it exactly). In pass 0 that is the run's step N.
Lengths are read shard by shard, so the memory does not grow with the corpus. Not here: how batches are made (data/).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
from pydantic import model_validator

from remask.artifacts import open_artifact
from remask.commands import Common, common_options
from remask.config import Config, build_run, parse_assignment, setting
from remask.data.settings import PAIRS, DataSettings
from remask.data.tokens import SPLITS, STAGE, Shard, SourceTokens, Tokens
from remask.errors import UsageError
from remask.progress import Progress
from remask.schema import IGNORE, Batch, Json, Values
from remask.text.counts import DROPS
from remask.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from remask.data.batches import Batches

SHOWN_ROWS = 8
BATCH_ROWS = 32  # of a batch where no run says how many
LONGEST = 1 << 17  # lengths beyond are counted as this one


class InspectRun(Config):
    """What to look at."""

    prepared: Path | None = setting(None, "The folder that remask prepare made.")
    run: Path | None = setting(
        None, f"A pretraining run file whose batches to show; unset: roberta_base's rows, {BATCH_ROWS} a batch."
    )
    batch: int | None = setting(None, "Show the batch of this step, counted among those that start in a pass.", ge=0)
    example: int | None = setting(None, "Show this example, by the id that batches show.", ge=0)
    epoch: int = setting(0, "Of which pass over the data, counted from 0.", ge=0)
    samples: int = setting(3, "Documents whose beginnings are shown.", ge=0, le=1000)
    verify: bool = setting(False, "Read every byte and compare it with its checksum.")

    @model_validator(mode="after")
    def _one_thing(self) -> InspectRun:
        if self.batch is not None and self.example is not None:
            raise ValueError("--batch and --example ask for different things: give one of them")
        return self


@click.command(short_help="Look into prepared data: counts, samples, batches with their masks.")
@click.argument("place", metavar="PREPARED | RUN.yaml", type=click.Path(path_type=Path))
@click.option("--run", "training", type=click.Path(), help="The training run whose batches to show.")
@click.option(
    "--batch", type=int, help="Show the batch of the N-th step that starts in the pass; 0 is the first.", metavar="N"
)
@click.option("--example", type=int, help="Show the example with this id.")
@click.option("--epoch", type=int, help="Which pass over the data; 0 is the first, in which batch N is step N.")
@click.option("--verify", is_flag=True, default=None, help="Compare every byte with its checksum.")
@common_options
def command(
    place: Path,
    training: str | None,
    batch: int | None,
    example: int | None,
    epoch: int | None,
    verify: bool | None,
    common: Common,
) -> None:
    """Show counts, lengths, samples and drops of PREPARED, or with --batch N the rows that training would read."""
    file = place if place.suffix in (".yaml", ".yml") else None
    prepared = None if file else str(place)
    options = {"run": training, "batch": batch, "example": example, "epoch": epoch, "verify": verify}
    common, changes = _split_assignments(common)
    built = common.build(InspectRun, file, prepared=prepared, **options)
    if changes and built.run.batch is None and built.run.example is None:
        raise UsageError(f"--set {changes[0]}: changes the training run; it goes with --batch or --example")
    if common.dry_run:
        return
    max_rows = None if common.json else SHOWN_ROWS
    result = main(built.run, progress=common.progress, seed=common.seed, max_rows=max_rows, changes=changes)
    shown = f"{show_cuts(result['data'])}{show_batch(result)}" if "examples" in result else show(result)
    common.result(result, shown)


def _split_assignments(common: Common) -> tuple[Common, tuple[str, ...]]:
    """--set of what to look at, and --set of the training run whose batches are shown."""
    from remask.pretraining.settings import PretrainRun

    of_training = PretrainRun.model_fields.keys() - InspectRun.model_fields.keys()
    changes = tuple(word for word in common.assignments if parse_assignment(word)[0][0] in of_training)
    own = tuple(word for word in common.assignments if word not in changes)
    return replace(common, assignments=own), changes


def main(
    run: InspectRun,
    *,
    progress: Progress,
    seed: int | None = None,
    max_rows: int | None = None,
    changes: Sequence[str] = (),
) -> Json:
    """Facts about the folder, or the rows asked for as `{"examples": [...]}` (at most `max_rows` of them). `changes`:
    assignments to the training run, as --set has them."""
    if run.prepared is None:
        raise UsageError("which folder? Give PREPARED, or prepared: in the run file")
    open_artifact(run.prepared, STAGE)
    if run.verify:
        with progress.stage("verify"):
            for split in SPLITS:
                Tokens.open(run.prepared, split, verify=True)
    if run.batch is not None or run.example is not None:
        return _examples(run, run.prepared, seed, max_rows, changes)
    return facts(run.prepared, run.samples)


# --------------------------------------------------------------------------------------------------- the folder


def facts(prepared: Path, num_samples: int) -> Json:
    """Counts of the manifest, lengths by quantiles and powers of two, samples, and examples of drops."""
    artifact = open_artifact(prepared, STAGE)
    counts = dict(artifact.counts)
    splits = {split: Tokens.open(prepared, split) for split in SPLITS}
    sources = [source for tokens in splits.values() for source in tokens.sources.values()]
    tokenizer = load_tokenizer(prepared / "tokenizer")
    shards = counts.pop("shards")
    return {
        **counts,
        "bytes_per_token": round(counts["bytes"] / max(counts["tokens"], 1), 4),
        "splits": {
            split: {key: sum(s[key] for s in shards if s["split"] == split) for key in ("documents", "tokens", "bytes")}
            for split in SPLITS
        },
        "shards": len(shards),
        "document_tokens": _lengths(sources, "document_offsets"),
        "sentence_tokens": _lengths(sources, "sentence_starts"),
        "samples": _samples(splits["train"], tokenizer, num_samples),
        "drops": _drops(artifact.folder / DROPS),
    }


def _lengths(sources: Sequence[SourceTokens], name: str) -> Json:
    histogram = np.zeros(LONGEST + 1, np.int64)
    for source in sources:
        for shard in source.shards:
            starts = getattr(shard, name)
            ends = [] if name == "document_offsets" else [shard.num_tokens]
            lengths = np.diff(np.append(starts, ends).astype(np.int64))
            histogram += np.bincount(np.minimum(lengths, LONGEST), minlength=LONGEST + 1)
    total = int(histogram.sum())
    if total == 0:
        return {"mean": 0.0, "p10": 0, "median": 0, "p90": 0, "max": 0, "histogram": []}
    reached = np.cumsum(histogram)
    quantile = {share: int(np.searchsorted(reached, share * total)) for share in (0.1, 0.5, 0.9)}
    edges = [0, *(1 << power for power in range(18))]
    bars = [
        {"from": low, "to": high - 1, "count": int(histogram[low:high].sum())}
        for low, high in zip(edges, [*edges[1:], LONGEST + 1], strict=True)
    ]
    while bars and bars[-1]["count"] == 0:
        bars.pop()
    while bars and bars[0]["count"] == 0:
        bars.pop(0)
    return {
        "mean": round(float((histogram * np.arange(LONGEST + 1)).sum() / total), 2),
        "p10": quantile[0.1],
        "median": quantile[0.5],
        "p90": quantile[0.9],
        "max": int(np.flatnonzero(histogram)[-1]),
        "histogram": bars,
    }


def _samples(tokens: Tokens, tokenizer: Tokenizer, count: int) -> list[Json]:
    """The beginnings of documents spread evenly over each source."""
    problems: list[Json] = []
    for source in tokens.sources.values():
        for place in sorted({int(i) for i in np.linspace(0, source.num_documents - 1, count)} if count else set()):
            shard = [shard for shard in source.shards if shard.document_base <= place][-1]
            begin, end = shard.document_offsets[place - shard.document_base :][:2].tolist()
            text = _beginning(shard, begin, end, tokenizer)
            problems.append({"source": source.name, "document": place, "tokens": end - begin, "text": text})
    return problems


def _beginning(shard: Shard, begin: int, end: int, tokenizer: Tokenizer, num_tokens: int = 48) -> str:
    """A document's first tokens as text, with the breaks that stand for no token where its sentences start."""
    last = min(end, begin + num_tokens)
    low, high = np.searchsorted(shard.sentence_starts, [begin, last])
    cuts = [*shard.sentence_starts[low:high].tolist(), last]
    parts = [tokenizer.decode(shard.ids[a:b]) for a, b in pairwise(cuts)]
    return "".join(part if part.startswith((" ", "\n")) or n == 0 else f"\n{part}" for n, part in enumerate(parts))


def _drops(path: Path, count: int = 5) -> list[Json]:
    """The first few of the sample that preparing kept."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line, _ in zip(file, range(count), strict=False)]


# ------------------------------------------------------------------------------------------------- for a person


def show(result: Values) -> str:
    lines = [
        f"documents      {result['documents']:>14,}   read {result['read']:,}",
        f"sentences      {result['sentences']:>14,}",
        f"tokens         {result['tokens']:>14,}   in {result['shards']} shards, vocabulary {result['vocab_size']:,}",
        f"bytes          {result['bytes']:>14,}   {result['bytes_per_token']:.2f} a token",
    ]
    heldout = result["splits"]["heldout"]
    lines.append(f"held out       {heldout['documents']:>14,}   documents, {heldout['tokens']:,} tokens")
    if result["unigram_nats"] is not None:
        lines.append(f"unigram        {result['unigram_nats']:>14.4f}   nats a held-out token: a model must do better")
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in sorted(result["dropped"].items())) or "none"
    lines.append(f"dropped        {sum(result['dropped'].values()):>14,}   {dropped}")
    if result.get("unread"):
        lines.append(f"not read       {result['unread']:>14,}   rows of files without the columns asked for")
    for drop in result["drops"]:
        lines.append(f"  {' · '.join(str(value)[:70] for value in drop.values())}")
    for name, title in (("document_tokens", "tokens in a document"), ("sentence_tokens", "tokens in a sentence")):
        lengths = result[name]
        lines.append("")
        lines.append(f"{title}: median {lengths['median']:,}, mean {lengths['mean']:,}, longest {lengths['max']:,}")
        lines += _picture(lengths["histogram"])
    for sample in result["samples"]:
        text = sample["text"].replace("\n", " / ")
        lines += [
            "",
            f"{sample['source']}, document {sample['document']:,} ({sample['tokens']:,} tokens)",
            f"  {text} …",
        ]
    return "\n".join(lines)


def _picture(bars: Sequence[Mapping[str, int]], width: int = 40) -> list[str]:
    most = max((bar["count"] for bar in bars), default=1)
    lines = []
    for bar in bars:
        eighths = round(8 * width * bar["count"] / most)
        full, rest = divmod(eighths, 8)
        filled = "█" * full + ("▏▎▍▌▋▊▉"[rest - 1] if rest else "")
        lines.append(f"  {bar['from']:>7,}-{bar['to']:<7,} {filled or ('▏' if bar['count'] else '')} {bar['count']:,}")
    return lines


# ------------------------------------------------------------------------------------------------------ batches


def _examples(run: InspectRun, prepared: Path, seed: int | None, max_rows: int | None, changes: Sequence[str]) -> Json:
    from remask.data.batches import open_batches
    from remask.pretraining.settings import PretrainRun

    base = None if run.run else "roberta_base"
    training = build_run(PretrainRun, run.run, changes, options={"seed": seed}, base=base).run
    tokenizer = load_tokenizer(prepared / "tokenizer")

    def opened(data: DataSettings) -> Batches:
        return open_batches(prepared, data, tokenizer, seed=training.seed, total_steps=training.train.steps)

    batches = opened(training.data)
    if run.run is None and not any(word.startswith("data.batch.") for word in changes):
        num_rows = min(BATCH_ROWS, batches.num_examples)  # a batch of more than a pass would show rows twice
        batch_settings = training.data.batch.model_copy(update={"num_rows": num_rows})
        batches = opened(training.data.model_copy(update={"batch": batch_settings}))
    elif training.train.tokens is not None or training.train.epochs is not None:
        from remask.train.budget import planned_steps

        # Short rows first and growing masks go by the number of steps. By the clock it is known in training only.
        if (num_steps := planned_steps(training.train, batches)) is not None:
            batches = batches.with_steps(num_steps)
    if run.example is not None:
        batch = batches.example(run.example, run.epoch)
    else:
        assert run.batch is not None
        batch = batches.batch_of_epoch(run.batch, run.epoch, max_rows)
    rows = rows_of(batch)
    for row in rows:
        row["tokens"] = [_token_text(tokenizer, token) for token in row["input_ids"]]
        row["targets"] = [None if label == IGNORE else _token_text(tokenizer, label) for label in row["labels"]]
    in_part = sum(phase.masker.num_words_in_part for phase in batches.phases)
    data = {**batches.describe(), "format": training.data.format, "words_masked_in_part": in_part}
    return {"batch": run.batch, "epoch": run.epoch, "data": data, "examples": rows}


def _token_text(tokenizer: Tokenizer, token: int) -> str:
    """As it stands in the row. WordPiece marks what goes on (##) rather than what starts, so words get their space."""
    text = tokenizer.token_text(token)
    starts = tokenizer.kind == "wordpiece" and not tokenizer.tokens[token].startswith("##")
    return f" {text}" if starts and token not in tokenizer.special_ids else text


def rows_of(batch: Batch) -> list[Json]:
    """One plain object a row, padding left out, labels -100 where nothing is predicted."""
    labels = np.full(batch.input_ids_BS.shape, IGNORE, np.int64)
    if batch.masked_positions_M is not None:
        labels.reshape(-1)[batch.masked_positions_M] = batch.masked_labels_M
    rows = []
    for number, length in enumerate(batch.lengths_B.tolist()):
        row: Json = {
            "id": int(batch.example_ids_B[number]) if batch.example_ids_B is not None else number,
            "input_ids": batch.input_ids_BS[number, :length].tolist(),
            "labels": labels[number, :length].tolist(),
        }
        if batch.segment_ids_BS is not None:
            row["segment_ids"] = batch.segment_ids_BS[number, :length].tolist()
        if batch.sentence_labels_B is not None:
            row["follows"] = int(batch.sentence_labels_B[number])
        rows.append(row)
    return rows


def show_cuts(data: Values) -> str:
    """A line about sentences that are longer than a row allows, or than half of one for pairs, where there are any."""
    lines = ""
    for counts in (data, data.get("short_rows", {})):
        if count := counts.get("cut_sentences", 0):
            by_source = {
                name: source["cut_sentences"] for name, source in counts["sources"].items() if source["cut_sentences"]
            }
            listed = ", ".join(f"{name} {number:,}" for name, number in by_source.items())
            part = "halves of rows" if data.get("format") in PAIRS else "rows"
            verb = "sentence is" if count == 1 else "sentences are"
            lines += f"{count:,} {verb} longer than {part} of {counts['length']} tokens allow and cut ({listed})\n"
    if in_part := data.get("words_masked_in_part"):
        lines += f"{in_part:,} masked words here are longer than their row's share of masks: masked in part only\n"
    return f"{lines}\n" if lines else ""


def show_batch(result: Values) -> str:
    """Masked places in colour: what the model reads, and what it should say."""
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    lines = []
    for row in result["examples"]:
        pieces = []
        for token, target in zip(row["tokens"], row["targets"], strict=True):
            if target is None:
                pieces.append(token)
            elif colour:
                kind = "7" if token != target else "4"  # replaced: inverse; kept as it was: underlined
                pieces.append(f"\x1b[{kind}m{token}\x1b[0m\x1b[32m{target}\x1b[0m")
            else:
                pieces.append(f"[{token}→{target}]")
        masked = sum(target is not None for target in row["targets"])
        head = f"example {row['id']}: {len(row['input_ids'])} tokens, {masked} to predict"
        lines += [head, "  " + "".join(pieces).replace("\n", "\\n"), ""]
    return "\n".join(lines)
