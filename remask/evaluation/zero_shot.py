"""What `remask evaluate` measures without training: BLiMP, claims, perplexity and pseudo-perplexity.

In: a model with a masked-LM head on its device, and files. Out: results as the table wants them. Perplexity is
measured on the held-out text of prepared data, or on plain text files, which are prepared with the model's own
vocabulary first (in the cache folder, once). Not here: scores of tasks, the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from remask import artifacts
from remask.config import build_run
from remask.errors import DataError, MissingInputError
from remask.progress import Progress
from remask.schema import Json

if TYPE_CHECKING:
    import torch

    from remask.answer.model import Model
    from remask.answer.reader import Reader
    from remask.data.settings import DataSettings
    from remask.model.network import Network
    from remask.model.store import Loaded
    from remask.precision import Format
    from remask.schema import Batch
    from remask.tasks.rows import Frame

MAX_WORD_DOCUMENTS = 64  # of each held-out source, for bits per byte of whole words
BYTES_A_TOKEN = 4  # about: what a limit of rows means in bytes, whatever the vocabulary
PSEUDO_SENTENCES = 128  # each token of each is masked once: so many rows that a sample must do
PSEUDO_TOKENS = 64
ALL_HELD_OUT = 1 - 2**-52  # a share must be below 1


@dataclass(frozen=True)
class Judge:
    """A model that is asked, where it runs and in which number format."""

    reader: Reader
    device: torch.device
    precision: Format

    @cached_property
    def frame(self) -> Frame:
        from remask.tasks.settings import RowSettings

        return self.reader.frame(RowSettings())

    @cached_property
    def model(self) -> Model:
        from remask.answer.model import Model

        return Model(self.reader, device=self.device, precision=self.precision)

    @contextmanager
    def asked(self) -> Iterator[Network]:
        """The network on its device, without gradients."""
        import torch

        with torch.inference_mode(), self.model.runner.products():
            yield self.model.network

    @property
    def data(self) -> DataSettings:
        """How held-out text is cut for it."""
        from remask.data.settings import DataSettings

        return DataSettings(length=min(512, self.reader.loaded.settings.max_length))

    def sent(self, batch: Batch) -> Batch:
        """A batch of arrays as tensors on its device."""
        import torch

        return batch.map(lambda array: torch.as_tensor(array).to(self.device))

    def masked_logits(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """(log_probs_M of the masked tokens, logits_MV there)."""
        import torch.nn.functional as F

        with self.asked() as network:
            tensors = self.sent(batch)
            assert tensors.masked_positions_M is not None
            assert tensors.masked_labels_M is not None
            hidden_BSD = network.encode(tensors, wanted_M=tensors.masked_positions_M)
            logits_MV = network.masked_lm(hidden_BSD, tensors.masked_positions_M).float()
            return -F.cross_entropy(logits_MV, tensors.masked_labels_M, reduction="none"), logits_MV

    def log_probs(self, batch: Batch) -> np.ndarray:
        """log p of every masked token."""
        return self.masked_logits(batch)[0].cpu().numpy()


def require_masked_lm(loaded: Loaded, task: str) -> None:
    if not loaded.heads.masked_lm:
        raise DataError(f"{loaded.folder}: has no masked-LM head, which {task} needs")


# ------------------------------------------------------------------------------------------- BLiMP and claims


def blimp_folder(data: Path) -> Path:
    return data / "blimp" if (data / "blimp").is_dir() else data


def blimp(judge: Judge, folder: Path, max_pairs: int | None, progress: Progress) -> Json:
    """Accuracy over minimal pairs."""
    from remask.tasks.blimp import num_masked_rows, read_blimp, score_pairs, texts_of

    pairs = read_blimp(folder, max_pairs)
    with progress.stage("blimp", num_masked_rows(texts_of(pairs), judge.reader.tokenizer), "rows") as stage:
        result = score_pairs(pairs, judge.log_probs, judge.reader.tokenizer, judge.frame, stage.advance)
    notes = [] if max_pairs is None else [f"the first {max_pairs} pairs of each paradigm"]
    return {**result, "metric": "accuracy", "notes": notes, "data": {"dev": len(pairs)}}


def claims_file(data: Path) -> Path:
    path = data if data.is_file() else data / "claims.jsonl"
    if not path.is_file():
        raise MissingInputError(f"{path}: no such file; claims are JSONL with `claim` and `counter`")
    return path


def claims(judge: Judge, path: Path, progress: Progress) -> Json:
    """How often a claim is likelier than what stands against it."""
    from remask.tasks.blimp import num_masked_rows
    from remask.tasks.claims import read_claims, score_claims

    asked = read_claims(path)
    rows = num_masked_rows((text for claim in asked for text in claim.texts), judge.reader.tokenizer)
    with progress.stage("claims", rows, "rows") as stage:
        result = score_claims(asked, judge.log_probs, judge.reader.tokenizer, judge.frame, stage.advance)
    return {**result, "metric": "accuracy", "notes": [], "data": {"dev": len(asked)}}


# ------------------------------------------------------------------------------------------------- perplexity


def perplexity_sources(data: Path, texts: Sequence[str]) -> dict[str, Path]:
    """Task's name -> prepared data or a text file: those given, else DIR itself or DIR/prepared if prepared, else
    every *.valid.txt in DIR or one folder below."""
    if texts:
        paths = [Path(text) for text in texts]
        for path in paths:
            if not path.exists():
                raise MissingInputError(f"{path}: no such file")
        return {f"perplexity:{path.stem if path.is_file() else path.name}": path for path in paths}
    for folder in (data / "prepared", data):
        if (folder / artifacts.MANIFEST).is_file():
            return {"perplexity": folder}
    files = sorted([*data.glob("*.valid.txt"), *data.glob("*/*.valid.txt")])
    if not files:
        raise MissingInputError(
            f"{data}: is no prepared data (remask prepare) and has no *.valid.txt, which perplexity is measured on; "
            "name texts with --text FILE"
        )
    return {f"perplexity:{path.stem}": path for path in files}


def prepare_text(path: Path, judge: Judge, folder: Path, progress: Progress) -> None:
    """A text file as prepared data of the model's vocabulary, all of it held out."""
    from remask.preparation.prepare import prepare
    from remask.preparation.settings import PrepareRun

    options = {
        "text.sources": [{"name": "text", "paths": [str(path.resolve())]}],
        "text.heldout_fraction": ALL_HELD_OUT,
        "tokenizer.path": str(judge.reader.loaded.tokenizer_folder),
        "workers": 1,
    }
    quiet = Progress(quiet=True)  # its stages are no news here
    progress.say(f"  {path.name}: preparing")
    prepare(build_run(PrepareRun, options=options).run, folder, progress=quiet)


def perplexity(judge: Judge, prepared: Path, max_rows: int | None, progress: Progress) -> Json:
    """Loss, perplexity, accuracy and bits per byte of masked tokens, on rows and masks that are the same for every
    model with this vocabulary; bits per byte of whole words, which compare across vocabularies; and the same of
    sentences whose tokens are masked one at a time (pseudo-perplexity)."""
    from remask.data.evaluation import evaluation_batches, is_comparable, word_batches
    from remask.objectives import held_out
    from remask.tokenizer import load_tokenizer

    tokenizer = judge.reader.tokenizer
    if load_tokenizer(prepared / "tokenizer").fingerprint != tokenizer.fingerprint:
        raise DataError(f"{prepared}: was prepared with another vocabulary than that of {judge.reader.loaded.folder}")
    settings = judge.data
    notes = []
    with progress.stage("perplexity") as stage:
        held = evaluation_batches(prepared, settings, tokenizer, max_rows=max_rows)
        with judge.asked() as network:
            measures = held_out(network, held, tokenizer.token_lengths, tokenizer.token_characters)
            if is_comparable(tokenizer):
                most = None if max_rows is None else max_rows * settings.length * BYTES_A_TOKEN
                words = word_batches(prepared, settings, tokenizer, max_documents=MAX_WORD_DOCUMENTS, max_bytes=most)
                by_word = held_out(network, words, tokenizer.token_lengths)
                measures = {**measures, "word_bits_per_byte": by_word["bits_per_byte"]}
            else:
                notes.append("the vocabulary changes the text: bits per byte do not compare with other vocabularies")
        measures = {**measures, **_pseudo(judge, prepared, min(PSEUDO_SENTENCES, max_rows or PSEUDO_SENTENCES))}
        stage.update(len(held))
    data = {"dev": sum(len(batch.lengths_B) for batch in held), "prepared": str(prepared)}
    return {"metrics": dict(measures), "metric": "perplexity", "notes": notes, "data": data}


def word_bits_per_byte(models: Sequence[Path], prepared: Sequence[Path]) -> tuple[list[float], str]:
    """Bits per byte of whole words, the one measure that compares vocabularies: a number for each model, all on rows of
    the same length, each on its own tokens of the same text. Where a vocabulary does not keep the text: no numbers, and
    the reason."""
    import torch

    from remask.data.evaluation import is_comparable, word_batches
    from remask.data.settings import DataSettings
    from remask.model.store import open_model
    from remask.objectives import held_out
    from remask.tokenizer import load_tokenizer

    tokenizers = [load_tokenizer(folder / "tokenizer") for folder in prepared]
    for folder, tokenizer in zip(prepared, tokenizers, strict=True):
        if not is_comparable(tokenizer):
            return [], f"the vocabulary of {folder} changes the text"
    loaded = [open_model(folder) for folder in models]
    length = min(512, *(model.settings.max_length for model in loaded))
    bits = []
    for model, folder, tokenizer in zip(loaded, prepared, tokenizers, strict=True):
        batches = word_batches(folder, DataSettings(length=length), tokenizer, max_documents=MAX_WORD_DOCUMENTS)
        with torch.inference_mode():
            bits.append(held_out(model.network.eval(), batches, tokenizer.token_lengths)["bits_per_byte"])
    return bits, ""


def _pseudo(judge: Judge, prepared: Path, count: int) -> dict[str, float]:
    """exp of minus the mean pseudo-log-likelihood of a token, over a fixed sample of held-out sentences."""
    from remask.data.order import key_of, permute
    from remask.data.tokens import Tokens
    from remask.tasks.blimp import pseudo_log_likelihoods

    longest = min(PSEUDO_TOKENS, judge.frame.room(1))
    sentences: list[np.ndarray] = []
    for source in Tokens.open(prepared, "heldout").sources.values():
        starts = np.append(source.sentence_starts, len(source))
        picked = permute(np.arange(min(count, len(starts) - 1)), len(starts) - 1, key_of("pseudo", source.name))
        for number in np.sort(picked):
            sentences.append(np.asarray(source.ids[starts[number] : starts[number + 1]][:longest], np.int64))
    nats = -float(pseudo_log_likelihoods(
        judge.log_probs, [judge.frame.join([ids])[0] for ids in sentences], judge.reader.tokenizer.mask_id
    ).sum())  # fmt: skip
    tokens = sum(len(ids) for ids in sentences)
    num_bytes = sum(int(judge.reader.tokenizer.token_lengths[ids].sum()) for ids in sentences)
    return {
        "pseudo_perplexity": math.exp(min(nats / max(1, tokens), 700.0)),
        "pseudo_bits_per_byte": nats / math.log(2) / max(1, num_bytes),
    }
