"""The network that a pretraining starts from: fresh weights, or those of another model as far as they fit.

In: the run and the data's tokenizer. Out: a Network whose vocabulary is the data's. Not here: its layers (model), what
it learns (objectives).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from remask.artifacts import open_artifact
from remask.errors import ConfigError, DataError, MissingInputError
from remask.model.settings import HeadSettings
from remask.pretraining.settings import PretrainRun
from remask.progress import Progress

if TYPE_CHECKING:
    from remask.model.network import Network
    from remask.model.store import Loaded
    from remask.tokenizer import Tokenizer


def prepared_of(run: PretrainRun) -> Path:
    """The data of the run; what the run lacks, or asks for in vain, shows here."""
    if run.prepared is None:
        raise ConfigError("prepared: which data? Give --data PREPARED (made by remask prepare)")
    if run.init_from is not None and not run.init_from.is_dir():
        raise MissingInputError(f"init_from = {run.init_from}: no such model folder")
    open_artifact(run.prepared, "prepared")
    return run.prepared


def with_form(run: PretrainRun) -> PretrainRun:
    """The run with the form of the model that it starts from; its vocabulary stays the data's."""
    from remask.model.store import open_model

    assert run.init_from is not None
    form = open_model(run.init_from).settings.model_copy(update={"vocab_size": 0})
    return run.model_copy(update={"model": form})


def measured_on(run: PretrainRun, tokenizer: Tokenizer) -> Path:
    """The prepared data whose held-out text is measured; one of another vocabulary is refused."""
    from remask.tokenizer import load_tokenizer

    if run.validation is None:
        return prepared_of(run)
    open_artifact(run.validation, "prepared")
    if load_tokenizer(run.validation / "tokenizer").fingerprint != tokenizer.fingerprint:
        raise DataError(f"validation = {run.validation}: was prepared with another vocabulary than {run.prepared}")
    return run.validation


def make_network(run: PretrainRun, tokenizer: Tokenizer, progress: Progress, run_folder: Path | None = None) -> Network:
    """Fresh weights, or those of another model as far as they fit. Its vocabulary is the data's."""
    from remask.data.tokens import Tokens
    from remask.model.adapters import add_updates
    from remask.model.network import build_network
    from remask.model.store import open_model
    from remask.start import complete_network, start_network

    if run.model.vocab_size not in (0, tokenizer.vocab_size):
        raise ConfigError(
            f"model.vocab_size = {run.model.vocab_size}: the data's tokenizer has {tokenizer.vocab_size} entries; "
            "leave it out (0)"
        )
    if run.data.length > run.model.max_length:
        raise ConfigError(f"data.length = {run.data.length}: the model reads at most {run.model.max_length} tokens")
    settings = run.model.model_copy(update={"vocab_size": tokenizer.vocab_size})
    has_pairs = run.data.sentence_loss != "none"
    # Only a sentence loss trains the first token; without one the mean of the tokens says more about a text.
    heads = HeadSettings(masked_lm=True, sentence=has_pairs, pooling="first" if has_pairs else "mean")
    tokens = Tokens.open(prepared_of(run)).first(run.data.max_tokens)  # what is not read is not counted, either
    start = run.start.within(run.train.minutes)
    if run.init_from is None:
        network = build_network(settings, heads, run.seed)
        start_network(network, start, tokens, run_folder, progress)
        return network
    loaded = open_model(run.init_from)
    had_head = loaded.network.heads.masked_lm is not None
    if not had_head and not has_pairs:  # an embedding model, say: what stands for a text is what it was taught
        heads = heads.model_copy(update={"pooling": loaded.heads.pooling})
    network = build_network(settings, heads, run.seed)
    old_ids = _take_over(network, loaded, run.init_from, tokenizer, progress)
    pieces = _pieces(tokenizer, old_ids)
    complete_network(network, start, tokens, old_ids, had_head, run_folder, progress, pieces)
    if run.learn == "lora":
        add_updates(network.encoder, run.lora, run.seed)
    return network


def _take_over(
    network: Network, loaded: Loaded, init_from: Path, tokenizer: Tokenizer, progress: Progress
) -> Sequence[int]:
    """Weights of another model; tokens that both vocabularies have keep their vectors. Gives the old id of every token
    (-1: new)."""
    from remask.model.transplant import transplant
    from remask.tokenizer import load_tokenizer

    if loaded.tokenizer_folder is None:
        raise ConfigError(f"init_from = {init_from}: has no tokenizer, so its embeddings cannot be told apart")
    old = load_tokenizer(loaded.tokenizer_folder)
    old_id = {name: number for number, name in enumerate(old.tokens)}
    rows = [old_id.get(name, -1) for name in tokenizer.tokens]
    for role in ("bos", "pad", "eos", "unk", "mask"):  # specials go by what they do, whatever they are called
        rows[getattr(tokenizer, f"{role}_id")] = getattr(old, f"{role}_id")
    fresh = transplant(network, loaded.network, rows)
    kept = sum(row >= 0 for row in rows)
    progress.say(f"  weights from {init_from}: {kept:,} of {len(rows):,} tokens keep their vectors")
    if fresh:
        parts = dict.fromkeys(".".join(name.split(".")[:2]) for name in fresh)
        progress.warn(f"{init_from} has no weights for {', '.join(parts)}: these start new")
    return rows


def _pieces(tokenizer: Tokenizer, old_ids: Sequence[int]) -> list[list[int]] | None:
    """For every token of a byte-level BPE the tokens that its merge joins, and theirs, as far as the model knew none of
    them; a single byte has none. Other kinds of vocabulary do not tell: None."""
    if tokenizer.kind != "byte-bpe":
        return None
    ids = {name: number for number, name in enumerate(tokenizer.tokens)}
    joined: dict[int, tuple[int, int]] = {}
    for merge in tokenizer.description["model"]["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        joined.setdefault(ids[left + right], (ids[left], ids[right]))

    def known(token: int) -> list[int]:
        if old_ids[token] >= 0:
            return [token]
        return [piece for half in joined.get(token, ()) for piece in known(half)]

    return [[piece for half in joined.get(token, ()) for piece in known(half)] for token in range(len(old_ids))]
