"""Fixtures that every test folder shares."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import page_server as pages
from .faults.zygote import Zygote

# Two workers share two cores, where threads that wait for each other crawl. torch reads it when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora and checkpoints that some machines have beside the checkout; never needed."""
    if not SHARED_DATA.is_dir():
        pytest.skip("real data is not beside this checkout (../shared/data)")
    return SHARED_DATA


@pytest.fixture(scope="session")
def tiny_prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data of a few thousand tokens with some grammar in it, made in a second without any command."""
    import random

    from remask.artifacts import publish
    from remask.data.tokens import ShardWriter
    from remask.tokenizer.settings import TokenizerSettings
    from remask.tokenizer.training import count_pieces, train_tokenizer

    draw = random.Random(7)
    beings, deeds = ("cat", "dog", "bird", "child", "king"), {"cat": "sleeps", "dog": "barks", "bird": "sings"}
    places = ("in the house", "under a tree", "by the river", "on the hill")

    def sentence() -> str:
        being = draw.choice(beings)
        return f"The {being} {deeds.get(being, 'walks')} {draw.choice(places)}."

    documents = [[sentence() for _ in range(draw.randint(3, 12))] for _ in range(240)]
    settings = TokenizerSettings(vocab_size=320)
    pieces = [" ".join(document).encode() for document in documents]
    tokenizer = train_tokenizer(sorted(count_pieces(pieces, settings, False).items()), settings, False)

    def fill(folder: Path) -> dict[str, object]:
        tokenizer.save(folder / "tokenizer")
        shards = []
        for split, chosen in (("train", documents[40:]), ("heldout", documents[:40])):
            writer = ShardWriter(folder, f"tiny.{split}.00000", tokenizer.vocab_size)
            for document in chosen:
                encoded = [tokenizer.encode(text if i == 0 else " " + text) for i, text in enumerate(document)]
                starts = [0, *np.cumsum([len(ids) for ids in encoded])[:-1].tolist()]
                ids = np.concatenate(encoded)
                words = np.array([tokenizer.token_bytes[i][:1] == b" " for i in ids]) | (np.arange(len(ids)) == 0)
                writer.add(ids, starts, words, num_bytes=len(" ".join(document)))
            shards.append(writer.close())
        totals = {key: sum(shard[key] for shard in shards) for key in ("documents", "sentences", "tokens", "bytes")}
        return {**totals, "read": totals["documents"], "dropped": {}, "unigram_nats": 4.0, "shards": shards}

    folder = tmp_path_factory.mktemp("prepared") / "tiny"
    publish(folder, "prepared", fill)
    return folder


@pytest.fixture(scope="session")
def tiny_tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with a vocabulary of each kind, `byte-bpe` and `wordpiece`, for models that only need some."""
    from remask.tokenizer.settings import TokenizerSettings
    from remask.tokenizer.training import count_pieces, train_tokenizer

    folders = {}
    pieces = [b"The quick brown fox jumps over the lazy dog by the river.", b"Who wrote it? Mary Shelley wrote it."] * 3
    for kind, size in (("byte-bpe", 300), ("wordpiece", 80)):
        settings = TokenizerSettings.model_validate({"kind": kind, "vocab_size": size})
        tokenizer = train_tokenizer(sorted(count_pieces(pieces, settings, False).items()), settings, False)
        folders[kind] = tmp_path_factory.mktemp("tokenizers") / kind
        tokenizer.save(folders[kind])
    return folders


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Runs remask in forked children, which need not import torch and can be killed."""
    made = Zygote(tmp_path_factory.mktemp("zygote"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def page_server(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizers: dict[str, Path]) -> Iterator[pages.Server]:
    """`remask serve` at work with tiny models of every task; only for tests that need the page in a browser."""
    pages.need_browser()
    models = pages.make_models(tmp_path_factory.mktemp("page"), tiny_tokenizers["byte-bpe"], pages.PAYLOADS)
    with pages.serve(models) as server:
        yield server


@pytest.fixture(scope="module")
def page_browser() -> Iterator[Any]:
    """Chromium. For one file only: while it is open, its event loop forbids another one in the process."""
    with pages.open_browser() as browser:
        yield browser


@pytest.fixture
def stopped_in_evaluation(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """A fine-tuning inside is told to stop while it evaluates, and does."""
    from remask import signals
    from remask.errors import Stopped
    from remask.tune import seed

    evaluate = seed.Watch.evaluate

    def stop(self: Any, network: Any, step: int | None) -> Any:
        monkeypatch.setattr(signals, "requested", lambda: True)
        return evaluate(self, network, step)

    @contextmanager
    def stopped() -> Iterator[None]:
        monkeypatch.setattr(seed.Watch, "evaluate", stop)
        with pytest.raises(Stopped):
            yield
        monkeypatch.undo()

    return stopped
