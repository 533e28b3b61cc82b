"""Patterns and words: what is refused, which rows they make, and what is made of the scores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from remask.errors import DataError, UsageError
from remask.model.network import Network, build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.schema import Batch
from remask.tasks.kind import TaskLoss
from remask.tasks.patterns import read_words
from remask.tasks.prompts import Prompt
from remask.tasks.rows import Rows, frame_for
from remask.tasks.settings import PromptSettings, RowSettings
from remask.tasks.tables import Example
from remask.tokenizer import Tokenizer, load_tokenizer

WORDS = {"yes": ("dog", "quick brown"), "no": ("fox",)}
LABELS = ("yes", "no")


@pytest.fixture(params=["byte-bpe", "wordpiece"])
def tokenizer(request: pytest.FixtureRequest, tiny_tokenizers: dict[str, Path]) -> Tokenizer:
    return load_tokenizer(tiny_tokenizers[request.param])


def kind_of(tokenizer: Tokenizer, *patterns: str, words: dict[str, tuple[str, ...]] = WORDS) -> Prompt:
    return Prompt(PromptSettings(patterns=patterns, words=words)).bound(tokenizer, tuple(words))


def rows_of(kind: Prompt, tokenizer: Tokenizer, *texts: tuple[str, ...], length: int = 64) -> Rows:
    settings = RowSettings(max_length=length)
    frame = frame_for(tokenizer, settings, model_length=512, num_segments=0)
    return kind.encode([Example(t, LABELS[0], "f:1") for t in texts], LABELS, tokenizer, frame, settings)


# ----------------------------------------------------------------------------------------------- what is given


@pytest.mark.parametrize(
    "pattern, said",
    [
        ("{text} is good", "has no <mask>"),
        ("{text} <mask> <mask>", "has 2 times a <mask>"),
        ("It was <mask>.", "write {text} once"),
        ("{text} {text} <mask>", "write {text} once"),
        ("{text} {text2} {text2} <mask>", "{text2} once at most"),
        ("{text} {title} <mask>", "{title} is neither"),
    ],
)
def test_a_pattern_that_cannot_be_asked_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(ValidationError, match="pattern") as error:
        PromptSettings(patterns=(pattern,))
    assert said in str(error.value)


@pytest.mark.parametrize(
    "words, said",
    [
        ({"a": ("x",)}, "only one label"),
        ({"a": ("x",), "b": ()}, "'b' has an empty word or none"),
        ({"a": ("x",), "b": (" ",)}, "'b' has an empty word"),
        ({"a": ("x", "y"), "b": ("y",)}, "'y' is given for 'a' and for 'b'"),
    ],
)
def test_words_that_cannot_tell_labels_apart_are_refused(words: dict[str, tuple[str, ...]], said: str) -> None:
    with pytest.raises(ValidationError) as error:
        PromptSettings(words=words)
    assert said in str(error.value)


def test_words_of_the_command_line() -> None:
    both = {"positive": ["great", "very good"], "negative": ["bad"]}
    assert read_words(["positive=great,very good negative=bad"]) == both
    assert read_words(["positive=great, very good", "negative=bad"]) == both
    assert read_words([]) == {}
    with pytest.raises(UsageError, match="'great': write LABEL=WORD"):
        read_words(["great"])
    with pytest.raises(UsageError, match="'a' is given twice"):
        read_words(["a=x a=y"])


def test_a_word_that_the_vocabulary_cannot_spell_is_refused(tiny_tokenizers: dict[str, Path]) -> None:
    wordpiece = load_tokenizer(tiny_tokenizers["wordpiece"])
    with pytest.raises(DataError, match=r"'☃' \(of 'no'\) cannot be spelled"):
        kind_of(wordpiece, "{text} <mask>", words={"yes": ("dog",), "no": ("☃",)})


# ------------------------------------------------------------------------------------------------------- rows


def test_a_row_is_the_pattern_with_a_mask_for_every_token_of_a_word(tokenizer: Tokenizer) -> None:
    kind = kind_of(tokenizer, "The {text} was <mask>.", "<mask>. {text}")
    rows = rows_of(kind, tokenizer, ("lazy dog",))
    spelled = kind.spelled
    assert spelled is not None
    assert rows.group_size == len(spelled.forms) == len(rows.ids)
    for ids, (pattern, masks) in zip(rows.ids, spelled.forms, strict=True):
        assert (ids == tokenizer.mask_id).sum() == masks
        inside = ids[1:-1]
        places = np.flatnonzero(inside == tokenizer.mask_id)
        assert (np.diff(places) == 1).all()
        before, after = tokenizer.decode(inside[: places[0]]), tokenizer.decode(inside[places[-1] + 1 :])
        said = (before.lower(), after.lower())
        assert said == (("the lazy dog was", ".") if pattern == 0 else ("", ". lazy dog"))
    if tokenizer.kind == "byte-bpe":  # the space before the mask belongs to the word
        first = [spelled.spellings[number] for number in spelled.spelling_PW[0]]
        assert [tokenizer.decode(ids) for ids in first] == [" dog", " quick brown", " fox"]
        second = [spelled.spellings[number] for number in spelled.spelling_PW[1]]
        assert [tokenizer.decode(ids) for ids in second] == ["dog", "quick brown", "fox"]


def test_long_texts_give_way_to_the_pattern(tokenizer: Tokenizer) -> None:
    kind = kind_of(tokenizer, "{text} and {text2}: <mask>.")
    rows = rows_of(kind, tokenizer, ("fox " * 40, "dog " * 40), ("a", "b"), length=32)
    assert rows.num_cut == 1
    assert max(len(ids) for ids in rows.ids) == 32
    assert all((ids == tokenizer.mask_id).any() for ids in rows.ids)
    with pytest.raises(DataError, match="leaves no room"):
        rows_of(kind_of(tokenizer, "fox " * 30 + "{text} <mask>"), tokenizer, ("a",), length=24)
    with pytest.raises(DataError, match="only one text"):
        rows_of(kind, tokenizer, ("a",))


# ------------------------------------------------------------------------------------------------------ scores


def network_for(tokenizer: Tokenizer) -> Network:
    sizes = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "ffn_size": 32, "max_length": 64, "init_std": 0.5}
    settings = ModelSettings.model_validate({"vocab_size": tokenizer.vocab_size, **sizes})
    return build_network(settings, HeadSettings(masked_lm=True), 3)


def batch_of(rows: Rows, pad_id: int) -> Batch:
    width = max(map(len, rows.ids))
    ids = np.full((len(rows.ids), width), pad_id)
    for number, row in enumerate(rows.ids):
        ids[number, : len(row)] = row
    labels = None if rows.labels is None else torch.tensor(np.array(rows.labels))
    return Batch(torch.from_numpy(ids), torch.from_numpy(rows.lengths), None, labels=labels)


def test_scores_are_those_of_the_masked_lm_head(tokenizer: Tokenizer) -> None:
    """Word by word, from the probabilities of the whole vocabulary at every mask."""
    kind = kind_of(tokenizer, "The {text} was <mask>.", "<mask>. {text}")
    rows, network = rows_of(kind, tokenizer, ("lazy dog",), ("river",)), network_for(tokenizer)
    batch = batch_of(rows, tokenizer.pad_id)
    spelled = kind.spelled
    assert spelled is not None
    with torch.no_grad():
        hidden = network.encode(batch)
        outputs = kind.logits(network, hidden, batch).numpy()
        everything = torch.arange(hidden.shape[0] * hidden.shape[1])
        log_probs = network.masked_lm(hidden, everything).log_softmax(-1).unflatten(0, hidden.shape[:2]).numpy()
    scores = kind.word_scores(outputs.reshape(2, len(spelled.forms), -1))
    for example in range(2):
        for pattern in range(2):
            for word, number in enumerate(spelled.spelling_PW[pattern]):
                ids = spelled.spellings[number]
                row = example * len(spelled.forms) + spelled.forms.index((pattern, len(ids)))
                masks = np.flatnonzero(rows.ids[row] == tokenizer.mask_id)
                expected = np.mean([log_probs[row, place, token] for place, token in zip(masks, ids, strict=True)])
                assert scores[example, pattern, word] == pytest.approx(expected, abs=1e-5)


def test_a_label_is_the_mean_of_its_words_calibrated_and_patterns_are_averaged(tokenizer: Tokenizer) -> None:
    kind = kind_of(tokenizer, "The {text} was <mask>.", "<mask>. {text}")
    spelled = kind.spelled
    assert spelled is not None
    outputs = np.random.default_rng(0).normal(size=(3, len(spelled.forms), len(spelled.spellings)))
    words_NPW = kind.word_scores(outputs)
    plain = np.stack([words_NPW[:, :, :2].mean(2), words_NPW[:, :, 2]], 2)
    assert np.allclose(kind.label_scores(outputs), plain)
    priors = np.random.default_rng(1).normal(size=(2, 3))
    calibrated = replace(kind, priors_PW=priors)
    less = np.stack([priors[:, :2].mean(1), priors[:, 2]], 1)
    assert np.allclose(calibrated.label_scores(outputs), plain - less)
    assert np.allclose(calibrated.label_scores(torch.from_numpy(outputs)).numpy(), plain - less)
    shares = np.exp(plain) / np.exp(plain).sum(2, keepdims=True)
    rows = rows_of(kind, tokenizer, ("a",), ("b",), ("c",))
    flat = list(outputs.reshape(-1, len(spelled.spellings)))
    assert np.allclose(kind.values(flat, rows), shares.mean(1))


def test_the_loss_falls_where_the_right_word_becomes_likelier(tokenizer: Tokenizer) -> None:
    kind = kind_of(tokenizer, "The {text} was <mask>.", "<mask>. {text}")
    rows, network = rows_of(kind, tokenizer, ("lazy dog",), ("river",)), network_for(tokenizer)
    batch = batch_of(rows, tokenizer.pad_id)
    assert kind.counts(batch, TaskLoss()) == {"task": 2}
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    losses = []
    for _ in range(12):
        sums, right = kind.loss(kind.logits(network, network.encode(batch), batch), batch, TaskLoss())
        assert right is not None
        losses.append(sums["task"].item())
        optimizer.zero_grad()
        sums["task"].backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]
    assert int(right) == 2


def test_the_kind_comes_back_from_what_is_stored(tokenizer: Tokenizer) -> None:
    kind = replace(kind_of(tokenizer, "{text} <mask>"), priors_PW=np.array([[0.5, 0.25, -1.0]]))
    again = Prompt().restored(kind.stored()).bound(tokenizer, LABELS)
    assert again.settings.words == kind.settings.words
    assert again.priors_PW is not None
    assert again.priors_PW.tolist() == [[0.5, 0.25, -1.0]]
    assert again.spelled is not None
    assert kind.spelled is not None
    assert again.spelled.spellings == kind.spelled.spellings
