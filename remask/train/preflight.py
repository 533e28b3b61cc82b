"""What a run will be, said before its first step: size, data, learning rate, memory, disk, time, and warnings.

In: plain numbers about model, data and settings. Out: lines for a person and warnings where settings are known to go
wrong. Estimates are rough and say so. The batch rule is table 3 of RoBERTa's paper (256 rows of 512 tokens: 1e-4, 2K:
7e-4, 8K: 1e-3, for the base size). Not here: measuring anything.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from remask.progress import duration
from remask.schema import Values
from remask.train.optim import warmup_steps
from remask.train.settings import TrainSettings

PAPER_RATES = ((131_072, 1e-4), (1_048_576, 7e-4), (4_194_304, 1e-3))  # tokens a step, peak learning rate
MANY_EPOCHS = 40.0  # BERT's own number of passes; beyond it small corpora got worse, not better
FAR_ABOVE, BASE_WIDTH = 5.0, 768  # times the papers' batch rule for networks of their sizes: a judgement, not a trial
BEYOND = 100.0  # times the rule, and more the narrower the network: orders above it, a judgement too
FAIR_SHARE = 0.35  # of the pairs that either answer of the sentence loss must have at least
PAIRED_SHARE = 0.5  # of the rows that must be pairs, for a sentence loss to be worth its name
REACHED = 0.5  # of the speed of large matrix products, by steps of small and middle networks
PLATEAU_RATE = 1e-3  # post-norm from this learning rate on stayed at word frequencies in trials (6 x 384, small batch)


# LAMB divides by the size of the update, and Muon's rate is of another kind: both are used with larger ones.
_OPTIMIZER = {"adamw": 1.0, "lamb": 10.0, "muon": 100.0}


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a rank holds and sends, from what is trained and how."""

    parameters: int
    trainable: int
    hidden_size: int
    num_layers: int
    micro_tokens: float
    precision: str = "fp32"  # of products
    ranks: int = 1
    parallel: str = "ddp"
    micro_batches: int = 1  # of a rank in a step
    whole_parameters: int = 0  # that fsdp gathers at a time
    has_average: bool = False
    copied_parameters: int = 0  # of which there are bf16 copies beside the fp32 ones
    device: str = "cpu"
    device_bytes: float | None = None  # that a rank may take of the device's memory, where that is known

    @property
    def state_bytes(self) -> float:
        """Of a rank: weights, gradients and two moments in fp32, the average and the bf16 copies. Divided by fsdp,
        beside what it has whole for a while: the parts in use with their gradients."""
        held = 4.0 * self.parameters + 12.0 * self.trainable + (4.0 * self.parameters if self.has_average else 0.0)
        held += 2.0 * self.copied_parameters
        return held if self.parallel == "ddp" else held / self.ranks + 8.0 * self.whole_parameters

    @property
    def memory_bytes(self) -> float:
        """Of a rank: its state, and about 40 numbers per token, layer and unit of width."""
        each = 160 if self.precision == "fp32" else 80
        return self.state_bytes + each * self.micro_tokens * self.num_layers * self.hidden_size

    @property
    def checkpoint_bytes(self) -> float:
        """Weights and two moments, the average, and where ranks write their own rows the model that is joined."""
        models = 1 + self.has_average + (self.parallel == "fsdp" and self.ranks > 1)
        return 4.0 * self.parameters * models + 8.0 * self.trainable

    @property
    def traffic_bytes(self) -> float:
        """That a rank sends in a step, in rings. ddp: all gradients are added up once. fsdp, in every micro-batch: the
        weights are gathered for the forward and for the backward pass, and the gradients are added up."""
        others = (self.ranks - 1) / self.ranks
        if self.parallel == "ddp":
            return 2 * others * 4 * self.trainable
        return self.micro_batches * others * (2 * 4 * self.parameters + 4 * self.trainable)

    @property
    def memory_words(self) -> str:
        each = " for each rank" if self.ranks > 1 else ""
        there = "" if self.device_bytes is None else f" ({self.device} has {_bytes(self.device_bytes)})"
        return f"about {_bytes(self.memory_bytes)} of memory{each}{there}"

    def memory_warnings(self, smaller: str) -> list[str]:
        """`smaller`: the setting that makes micro-batches smaller."""
        if self.device_bytes is None or self.memory_bytes <= self.device_bytes:
            return []
        more = "" if self.parallel == "fsdp" or self.ranks == 1 else ", train.parallel=fsdp"
        return [
            f"{self.device} has {_bytes(self.device_bytes)} of memory{' for each rank' if self.ranks > 1 else ''}, and "
            f"this run may need {_bytes(self.memory_bytes)}: a smaller {smaller}, "
            f"train.activation_checkpointing=true{more} or a smaller model need less"
        ]


@dataclass(frozen=True, kw_only=True)
class Facts(Load):
    """The numbers behind the lines. `num_steps` None: the clock decides."""

    post_norm: bool
    tokens_per_step: float
    rows_per_step: float
    steps_per_epoch: float
    num_steps: int | None
    free_bytes: int
    flops_per_token: float = 0.0  # forward and backward
    flops_per_second: float | None = None
    planned_tokens: float = 0.0  # over the run, and
    planned_passes: float = 0.0  # over the data: fewer than num_steps full steps would read where the batch grows
    first_rows: int | None = None  # a step, where the batch grows over `growing_share` of the steps
    growing_share: float = 0.0
    short_length: int | None = None  # of the rows in the first `short_share` of the steps
    short_share: float = 0.0
    length: int = 0


def gathered(parameters: int, parts: Sequence[int]) -> int:
    """What fsdp has whole at a time: all outside the parts (embeddings, heads) and two parts, one of them ahead."""
    return parameters - sum(parts) + sum(sorted(parts)[-2:])


def paper_rate(tokens_per_step: float) -> float:
    """The papers' peak rate for the base size at a batch of so many tokens: straight between the points of table 3 in
    logarithms, by the square root outside."""
    first, last = PAPER_RATES[0], PAPER_RATES[-1]
    if tokens_per_step <= first[0]:
        return first[1] * math.sqrt(tokens_per_step / first[0])
    for (x0, y0), (x1, y1) in itertools.pairwise(PAPER_RATES):
        if tokens_per_step <= x1:
            share = math.log(tokens_per_step / x0) / math.log(x1 / x0)
            return math.exp(math.log(y0) + share * math.log(y1 / y0))
    return last[1] * math.sqrt(tokens_per_step / last[0])


def lines(checks: Facts, settings: TrainSettings) -> list[str]:
    learning = "" if checks.trainable == checks.parameters else f", {_million(checks.trainable)} of them learn"
    shown = [f"model: {_million(checks.parameters)} parameters{learning}"]
    rows = f"{checks.rows_per_step:,.0f} rows, {checks.tokens_per_step:,.0f} tokens a step"
    if checks.num_steps is None:
        shown.append(f"data: {rows}; {checks.steps_per_epoch:,.0f} steps a pass; {settings.minutes:g} minutes")
    else:
        read = f"{_million(checks.planned_tokens)} tokens = {checks.planned_passes:.2f} passes"
        shown.append(f"data: {rows}; {checks.num_steps:,} steps = {read}")
    if checks.first_rows is not None:
        shown.append(
            f"batch: grows from {checks.first_rows:,} to {checks.rows_per_step:,.0f} rows in the first "
            f"{checks.growing_share:.0%} of the steps"
        )
    if checks.short_length is not None:
        shown.append(
            f"rows: {checks.short_length} tokens in the first {checks.short_share:.0%} of the steps, "
            f"then {checks.length}"
        )
    shown.append(
        f"learning rate: {settings.learning_rate:g} by {settings.optimizer}, {settings.schedule}; the paper's rule for "
        f"the base size says {paper_rate(checks.tokens_per_step):.1e} at this batch; smaller networks bear more"
    )
    disk = f"{_bytes((settings.keep_checkpoints + 1) * checks.checkpoint_bytes)} of disk for checkpoints"
    shown.append(f"needs {checks.memory_words} and {disk}")
    if checks.ranks > 1:
        shown.append(
            f"ranks: {checks.ranks} by {checks.parallel}, micro-batches a step: {checks.micro_batches:,}; each sends "
            f"about {_bytes(checks.traffic_bytes)} a step and receives as much"
        )
    if checks.num_steps is not None and checks.flops_per_second:
        seconds = checks.planned_tokens * checks.flops_per_token / (REACHED * checks.flops_per_second)
        shown.append(f"takes about {duration(seconds)} on this machine (from its speed at matrix products; rough)")
    return shown


def _rate_warnings(checks: Facts, settings: TrainSettings) -> list[str]:
    """Rates that a whole network does not bear; heads that learn alone do."""
    if settings.trainable_top_layers == 0:
        return []
    warned = []
    small_batch = checks.tokens_per_step < PAPER_RATES[0][0]
    if checks.post_norm and small_batch and settings.learning_rate >= PLATEAU_RATE and checks.hidden_size >= 384:
        warned.append(
            f"learning rate {settings.learning_rate:g} with norm: post is known to stay at word frequencies or to "
            "diverge with small batches; 5e-4, or model.norm=pre, does not"
        )
    rule = paper_rate(checks.tokens_per_step)
    wide = checks.post_norm and checks.hidden_size >= BASE_WIDTH
    if wide and settings.optimizer == "adamw" and settings.learning_rate > FAR_ABOVE * rule:
        warned.append(
            f"learning rate {settings.learning_rate:g} is {settings.learning_rate / rule:.0f} times the paper's rule "
            f"for this batch ({rule:.1e}): a network as wide as base may diverge; a larger data.batch.num_rows or a "
            "lower rate is safer"
        )
    bearable = _OPTIMIZER[settings.optimizer] * BEYOND * rule * max(1.0, BASE_WIDTH / checks.hidden_size)
    if not (wide and settings.optimizer == "adamw") and settings.learning_rate > bearable:
        warned.append(
            f"learning rate {settings.learning_rate:g} is {settings.learning_rate / rule:,.0f} times the paper's rule "
            f"for this batch ({rule:.1e}), far above what smaller networks bear: it will likely diverge or stay at "
            f"word frequencies; far below {_round_down(bearable):g} is safer"
        )
    return warned


def warnings(checks: Facts, settings: TrainSettings) -> list[str]:
    warned = _rate_warnings(checks, settings)
    if checks.post_norm and settings.warmup == 0:
        warned.append("norm: post without a warmup is known to diverge; train.warmup=0.06 is a good start")
    if checks.num_steps is not None:
        epochs = checks.planned_passes
        if epochs > MANY_EPOCHS:
            warned.append(
                f"the corpus is small for {checks.num_steps:,} steps: every passage would be read {epochs:,.0f} times; "
                f"{max(1, int(checks.num_steps * MANY_EPOCHS / epochs)):,} steps or more text would serve better"
            )
        if warmup_steps(settings, checks.num_steps) >= checks.num_steps:
            warned.append(f"the warmup ({settings.warmup:g} steps) does not end within {checks.num_steps:,} steps")
    if checks.free_bytes < (settings.keep_checkpoints + 1) * checks.checkpoint_bytes:
        warned.append(f"only {_bytes(checks.free_bytes)} of disk are free there")
    return warned + checks.memory_warnings("data.batch.micro_rows")


def data_warnings(
    data: Values, *, sentence_loss: str = "none", causal_share: float = 0.0, repeat: str = "dynamic"
) -> list[str]:
    """What the counts of the rows (`Batches.describe`) say against the settings."""
    warned = []
    names = ("real_pairs", "false_pairs", "examples")
    real, false, rows = (sum(source.get(name, 0) for source in data["sources"].values()) for name in names)
    pairs = max(real + false, 1)
    advice = "since most documents have one sentence; longer documents, or sentence_loss=none, serve better"
    if sentence_loss != "none" and real + false < PAIRED_SHARE * rows:
        share = (real + false) / max(rows, 1)
        warned.append(f"data.sentence_loss = {sentence_loss}: only {share:.0%} of the rows are pairs, {advice}")
    elif sentence_loss != "none" and not FAIR_SHARE <= real / pairs <= 1 - FAIR_SHARE:
        warned.append(f"data.sentence_loss = {sentence_loss}: {false / pairs:.0%} of the pairs are negatives, {advice}")
    if causal_share and repeat == "static":
        warned.append(
            f"data.masking.repeat = static with objective.causal_share = {causal_share:g}: which rows are read left to "
            f"right is drawn with the mask, so {causal_share:.0%} of the text never has the masked loss; "
            "repeat=dynamic draws anew in every pass"
        )
    return warned


def _round_down(number: float) -> float:
    """To one digit, for a person."""
    scale = 10.0 ** math.floor(math.log10(number))
    return math.floor(number / scale) * scale


def _bytes(number: float) -> str:
    return f"{number / 1e9:.3g} GB" if number >= 1e9 else f"{max(1.0, number / 1e6):.0f} MB"


def _million(number: float) -> str:
    return f"{number / 1e9:.2f}B" if number >= 1e9 else f"{number / 1e6:.1f}M" if number >= 1e5 else f"{number:,.0f}"
