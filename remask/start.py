"""Where a pretraining run starts: at random, or from what one pass of counting over its training text gives.

In: StartSettings, a fresh network, PREPARED. Out: the network with the chosen parts started from counts. Vectors of
tokens are kept as an artifact of stage `counted` under a fingerprint of the training shards and the settings that made
them: in PREPARED, or in the run's folder where that cannot be written. Not here: how pairs are counted (data/counting),
how a matrix becomes vectors (model/factors), what they do to a network (model/counted).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from remask import artifacts
from remask.config import Config, fingerprint, setting, switch
from remask.errors import DataError, MissingInputError
from remask.progress import Progress
from remask.schema import Json, Values

if TYPE_CHECKING:
    from remask.data.tokens import Tokens
    from remask.model.network import Network

STAGE = "counted"
_VERSION = 1
_SEED = 0  # of the random projection: not the run's, so that runs of all seeds share what was counted
PER_MINUTE = 8_000_000  # tokens that a run by the clock counts at most: about a sixth of its time on two cores
MIN_TOKENS = 2_000  # fewer say nothing about which tokens go together


class StartSettings(Config):
    """What starts from counts. The numbers are those of first trials on a wiki corpus, one seed each."""

    embeddings: Literal["random", "counted"] = switch(
        "random", "token vectors: random, or from which tokens stand near which in the training text", effect="math"
    )
    attention: Literal["random", "neighbours", "sides"] = switch(
        "random",
        "attention: random; every layer adds a mean over the tokens that are near; or two heads of it look at the left "
        "and at the right token, and add what each is counted to say about the one between",
        effect="math",
    )
    bias: Literal["zeros", "frequencies"] = switch(
        "zeros", "the masked-LM bias starts at 0, or at the log frequencies of the data's tokens", effect="math"
    )
    head: Literal["random", "direct"] = switch(
        "random",
        "the masked-LM head's matrix: random, or near the identity, so that a state answers what it lies near to",
        effect="math",
    )
    new_tokens: Literal["random", "counted"] = switch(
        "counted", "tokens that the model of init_from does not know: random, or from counts", effect="math"
    )
    std: float = switch(0.06, "standard deviation of the counted embeddings", effect="math", samples=[0.15], gt=0)
    weights: tuple[float, ...] = switch(
        (1.0, 0.7, 0.5, 0.4),
        "what a pair counts at distance 1, 2, ...; as many as the window is wide to either side",
        effect="math",
        samples=[[1.0, 1.0]],
        min_length=1,
        max_length=64,
    )
    smoothing: float = switch(
        0.75, "power of the context frequencies in the PMI; 1: none", effect="math", samples=[1.0], gt=0, le=1
    )
    shift: float = switch(
        1.0, "PMI counts above the log of this; word2vec's number of negatives", effect="math", samples=[2.0], gt=0
    )
    least_count: float = switch(
        0.0, "pairs that count less than this are left out", effect="math", samples=[100.0], ge=0
    )
    flatten: float = switch(
        0.5, "every column is divided by this power of its deviation", effect="math", samples=[1.0], ge=0, le=1
    )
    most_tokens: int = setting(
        20_000_000,
        f"tokens that are counted at most, spread over the training text; by the clock: {PER_MINUTE:,} a minute",
        ge=MIN_TOKENS,
    )
    iterations: int = setting(2, "power iterations of the random projection", ge=0, le=20)
    neighbour_share: float = switch(
        0.5,
        "how much of the mean over the neighbours a layer adds, and each of two sides",
        effect="math",
        samples=[0.25],
        gt=0,
    )
    neighbour_noise: float = switch(
        0.2,
        "share of the random start that attention's values and output and a direct head keep",
        effect="math",
        samples=[1.0],
        ge=0,
    )
    head_share: float = switch(
        0.3, "of the identity in a direct head; below 1 its GELU is nearly straight", effect="math", samples=[1.0], gt=0
    )
    neighbour_reach: float = switch(
        2.0, "learned positions without a window: how many tokens away is near", effect="math", samples=[6.0], gt=0
    )
    neighbour_peak: float = switch(
        8.0, "learned positions without a window: logit of the nearest token", effect="math", samples=[4.0], gt=0
    )

    def within(self, minutes: float | None) -> StartSettings:
        """For a run of so many minutes, which counting must not use up."""
        if minutes is None:
            return self
        most = max(MIN_TOKENS, min(self.most_tokens, round(minutes * PER_MINUTE)))
        return self.model_copy(update={"most_tokens": most})

    def counting(self) -> Json:
        """What the vectors follow from."""
        names = ("weights", "smoothing", "shift", "least_count", "most_tokens", "iterations")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Counted:
    """Vectors of tokens as they were factored, and which tokens were seen."""

    vectors_VC: np.ndarray
    is_counted_V: np.ndarray


def start_network(
    network: Network, settings: StartSettings, tokens: Tokens, run_folder: Path | None, progress: Progress
) -> None:
    """The parts that the settings name, started from counts of the training text. Without a folder (a dry run) it is
    only checked that they can be."""
    from remask.model import counted

    if settings.embeddings == "counted":
        check_countable(tokens, "embeddings = counted")
    sides = settings.attention == "sides"
    if sides and not any(counted.has_sides(network.settings, layer) for layer in range(network.settings.num_layers)):
        progress.warn(
            "start.attention = sides needs three heads at least, and learned positions without a window or rotary ones "
            "with one: attention starts as with neighbours"
        )
        sides = False
    if sides:
        check_countable(tokens, "attention = sides")
    if run_folder is None:
        return
    if settings.embeddings == "counted":
        width = network.settings.embedding_width
        if settings.attention != "random":
            width -= counted.num_place_columns(network.settings, sides)
        start = counted_vectors(tokens, settings, network.settings.vocab_size, width, run_folder, progress)
        vectors_VC = counted.even_scale(start.vectors_VC, start.is_counted_V, settings.flatten, settings.std)
        counted.start_embeddings(network, vectors_VC, start.is_counted_V, settings.std)
        _say_what_is_missing(start, width, progress)
    if settings.attention != "random":
        counted.start_attention(
            network,
            settings.neighbour_share,
            settings.neighbour_noise,
            settings.neighbour_reach,
            settings.neighbour_peak,
            sides=sides,
        )
    if sides:
        _start_sides(network, settings, tokens, progress)
    if settings.head == "direct":
        counted.start_head(network, settings.head_share, settings.neighbour_noise)
    if settings.bias == "frequencies":
        counted.start_bias(network, tokens.log_frequencies(network.settings.vocab_size))


def _start_sides(network: Network, settings: StartSettings, tokens: Tokens, progress: Progress) -> None:
    """Which token follows which is counted anew each time: a single distance takes seconds."""
    import torch

    from remask.data.counting import following_counts, positive_pmi
    from remask.model import counted
    from remask.model.factors import between

    started, threads = time.monotonic(), torch.get_num_threads()
    weight_VE = network.encoder.embeddings.tokens.weight.detach().double()
    num_columns = weight_VE.shape[1] - counted.num_place_columns(network.settings, sides=True)
    vectors_VC = weight_VE[:, :num_columns] / weight_VE.square().mean(dim=1, keepdim=True).sqrt().clamp(min=1e-12)
    counts_VV = following_counts(tokens, len(weight_VE), settings.most_tokens, threads)
    frequencies_V = np.asarray(counts_VV.sum(axis=1)) / counts_VV.sum()
    pmi_VV = positive_pmi(counts_VV, smoothing=1.0, shift=1.0)
    if not pmi_VV.nnz:
        raise _nothing_stands_out(tokens, "attention")
    map_CC = between(pmi_VV, vectors_VC.numpy(), np.sqrt(frequencies_V), threads)
    counted.start_sides(
        network,
        map_CC,
        vectors_VC,
        torch.from_numpy(frequencies_V),
        settings.neighbour_share,
        settings.neighbour_reach,
        settings.neighbour_peak,
    )
    progress.say(f"  what stands on the left and on the right counted in {time.monotonic() - started:.1f} s")


def complete_network(
    network: Network,
    settings: StartSettings,
    tokens: Tokens,
    old_ids: Sequence[int],
    has_head: bool,
    run_folder: Path | None,
    progress: Progress,
    pieces: Sequence[Sequence[int]] | None = None,
) -> None:
    """What a model to start from did not have: vectors of new tokens (`old_ids` is -1 there), a masked-LM head.
    `pieces`: for every token the known tokens that it is made of; none for those that are no others' sum."""
    from remask.model import counted

    frequencies_V = tokens.log_frequencies(network.settings.vocab_size)
    if not has_head:
        assert network.heads.masked_lm is not None, "pretraining has the masked-LM head"
        counted.quiet_head(network.heads.masked_lm, frequencies_V)
    new_ids = [token for token, was in enumerate(old_ids) if was < 0]
    num_new = len(new_ids)
    if settings.bias == "frequencies":
        counted.start_bias(network, frequencies_V, new_ids)
    if not num_new or settings.new_tokens == "random":
        return
    if tokens.num_tokens < MIN_TOKENS:
        _start_without_counts(
            network, old_ids, pieces, f"{tokens.num_tokens:,} training tokens are too few to count", progress
        )
        return
    if run_folder is None:
        return
    width = network.settings.embedding_width
    start = counted_vectors(tokens, settings, network.settings.vocab_size, width, run_folder, progress)
    vectors_VC = counted.even_scale(start.vectors_VC, start.is_counted_V, settings.flatten, 1.0)
    explained = counted.fit_new_rows(network, (vectors_VC, start.is_counted_V), old_ids, frequencies_V, pieces)
    if explained is None:
        why = f"fewer than {counted.MIN_TEACHERS} tokens of the text are known"
        _start_without_counts(network, old_ids, pieces, why, progress)
    else:
        origin = "counts" if pieces is None else "counts and their pieces"
        progress.say(
            f"  {num_new:,} new tokens start from {origin}, by a map that explains {explained:.0%} of known tokens"
        )


def _start_without_counts(
    network: Network, old_ids: Sequence[int], pieces: Sequence[Sequence[int]] | None, why: str, progress: Progress
) -> None:
    from remask.model import counted

    num_new = sum(was < 0 for was in old_ids)
    if pieces is None:
        progress.warn(f"{num_new:,} new tokens start at random: {why}")
        return
    counted.mean_new_rows(network, old_ids, pieces)
    progress.say(f"  {num_new:,} new tokens start at the mean of their pieces: {why}")


def _say_what_is_missing(counted: Counted, width: int, progress: Progress) -> None:
    size, rank = counted.vectors_VC.shape
    seen = int(counted.is_counted_V.sum())
    if seen < size // 2:
        progress.warn(
            f"start.embeddings = counted: only {seen:,} of {size:,} entries of the vocabulary are in the text that was "
            "counted; the others start at random"
        )
    if rank < width:
        progress.warn(
            f"start.embeddings = counted: the counts have rank {rank}, below the width of {width}; the other "
            f"{width - rank} columns start at random"
        )


def check_countable(tokens: Tokens, part: str) -> None:
    if tokens.num_tokens < MIN_TOKENS:
        raise DataError(
            f"{tokens.folder}: start.{part} needs at least {MIN_TOKENS:,} training tokens, there are "
            f"{tokens.num_tokens:,}; prepare more text, or --set start.{part.split()[0]}=random"
        )


def _nothing_stands_out(tokens: Tokens, part: str) -> DataError:
    return DataError(f"{tokens.folder}: no two tokens stand together more often than chance; --set start.{part}=random")


def counted_vectors(
    tokens: Tokens, settings: StartSettings, vocab_size: int, width: int, run_folder: Path, progress: Progress
) -> Counted:
    """From the disk where an earlier run left them, else counted now."""
    identity = {
        "version": _VERSION,
        "shards": _training_files(tokens),
        "tokens": tokens.num_tokens,  # a run may read less than there is
        "vocab_size": vocab_size,
        "width": width,
        "counting": settings.counting(),
    }
    folder = _place(tokens.folder, run_folder)
    place = folder / f"{vocab_size}x{width}-{fingerprint(identity)[:16]}"
    with artifacts.turn(folder):
        try:
            artifact = artifacts.open_artifact(place, STAGE, verify=True)
        except (DataError, MissingInputError):
            artifact = artifacts.publish(
                place,
                STAGE,
                lambda aside: _fill(aside, *_count(tokens, settings, vocab_size, width, progress)),
                config=identity,
                inputs={"shards": fingerprint(identity["shards"])},
                replace=True,
            )
    return Counted(np.load(artifact.path("vectors.npy")), np.load(artifact.path("is_counted.npy")))


def _training_files(tokens: Tokens) -> dict[str, str]:
    """Checksums of what is counted. Held-out shards are no part of it."""
    manifest: Values = artifacts.open_artifact(tokens.folder, "prepared").manifest["files"]
    names = [shard.name for source in tokens.sources.values() for shard in source.shards]
    return {
        f"{name}.{suffix}": manifest[f"{name}.{suffix}"]["sha256"] for name in names for suffix in ("tokens", "offsets")
    }


def _place(prepared: Path, run_folder: Path) -> Path:
    """In PREPARED, for every run on it; where that is read-only, in the run's folder."""
    folder = prepared / STAGE
    is_writable = os.access(folder if folder.exists() else prepared, os.W_OK | os.X_OK)
    return folder if is_writable else run_folder / STAGE


def _count(
    tokens: Tokens, settings: StartSettings, vocab_size: int, width: int, progress: Progress
) -> tuple[np.ndarray, np.ndarray]:
    import torch

    from remask.data.counting import neighbour_counts, positive_pmi
    from remask.model.factors import factors

    started = time.monotonic()
    threads = torch.get_num_threads()
    counts_VV = neighbour_counts(tokens, vocab_size, settings.weights, settings.most_tokens, threads)
    matrix_VV = positive_pmi(counts_VV, settings.smoothing, settings.shift, settings.least_count)
    is_counted_V = np.diff(matrix_VV.indptr) > 0
    if not is_counted_V.any():
        raise _nothing_stands_out(tokens, "embeddings")
    counted_at = time.monotonic()
    vectors_VC = factors(matrix_VV, width, _SEED, settings.iterations, threads)
    progress.say(
        f"  {min(tokens.num_tokens, settings.most_tokens):,} of {tokens.num_tokens:,} tokens counted in "
        f"{counted_at - started:.1f} s, "
        f"{matrix_VV.nnz:,} pairs factored in {time.monotonic() - counted_at:.1f} s"
    )
    return vectors_VC, is_counted_V


def _fill(aside: Path, vectors_VC: np.ndarray, is_counted_V: np.ndarray) -> Json:
    np.save(aside / "vectors.npy", vectors_VC)
    np.save(aside / "is_counted.npy", is_counted_V)
    return {"tokens_counted": int(is_counted_V.sum()), "columns": vectors_VC.shape[1]}
