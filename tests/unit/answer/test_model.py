"""The Python API on tiny models: answers in the order of the texts, whatever else is in the batch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import remask
from remask import signals
from remask.answer.model import Model
from remask.errors import DataError, MissingInputError, Stopped, UnavailableError
from remask.model.network import Network, build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.model.store import save_model
from remask.tasks.choices import Choices
from remask.tasks.kinds import KINDS, StoredTask
from remask.tasks.race import ChoiceQuestion
from remask.tasks.settings import RowSettings, TableSettings
from remask.tasks.tables import Example
from remask.tokenizer import load_tokenizer

SMALL: dict[str, Any] = {
    "hidden_size": 32, "num_heads": 4, "num_layers": 2, "ffn_size": 48, "max_length": 24, "init_std": 0.3,
}  # fmt: skip
TEXTS = ["The dog.", "The quick brown fox jumps over it", "a", "Who wrote it? Mary Shelley"]


def make(
    folder: Path, tokenizer: Path, heads: HeadSettings, labels: Any = None,
    by_hand: Callable[[Network], None] | None = None, **changes: Any,
) -> Model:  # fmt: skip
    """`by_hand` sets weights of the network."""
    vocab_size = 80 if tokenizer.name == "wordpiece" else 300
    settings = ModelSettings(**(SMALL | {"vocab_size": vocab_size} | changes))
    network = build_network(settings, heads, seed=1)
    if by_hand is not None:
        with torch.no_grad():
            by_hand(network)
    save_model(folder, network, tokenizer, labels)
    return remask.load(folder)


@pytest.fixture
def bpe(tiny_tokenizers: dict[str, Path]) -> Path:
    return tiny_tokenizers["byte-bpe"]


def test_fill_mask_gives_the_best_tokens_and_the_filled_text(tmp_path: Path, bpe: Path) -> None:
    model = make(tmp_path / "m", bpe, HeadSettings(masked_lm=True))
    fills = model.fill_mask("The <mask> dog.", top=3)
    assert [fill.score for fill in fills] == sorted((fill.score for fill in fills), reverse=True)
    assert len(fills) == 3
    for fill in fills:
        assert fill.token_str == model.tokenizer.token_text(fill.token)
        expected = "" if fill.token in model.tokenizer.special_ids else fill.token_str
        assert fill.sequence == f"The{expected} dog."
    everything = model.fill_mask("The <mask> dog.", top=10_000)
    assert len(everything) == 300
    assert sum(fill.score for fill in everything) == pytest.approx(1.0, abs=1e-5)


def test_fill_mask_with_two_masks_and_several_texts(tmp_path: Path, bpe: Path) -> None:
    model = make(tmp_path / "m", bpe, HeadSettings(masked_lm=True))
    both = model.fill_mask("A <mask> b<mask>", top=1)
    assert len(both) == 2
    assert both[0].sequence.endswith("b<mask>")
    assert both[1].sequence.startswith("A<mask> b")
    alone = [model.fill_mask(text, top=2) for text in ("A <mask>", "The quick <mask> fox jumps")]
    together = model.fill_mask(["A <mask>", "The quick <mask> fox jumps"], top=2)
    for one, other in zip(alone, together, strict=True):
        assert [fill.token for fill in one] == [fill.token for fill in other]
        assert [fill.score for fill in one] == pytest.approx([fill.score for fill in other], abs=1e-6)


def test_fill_mask_with_berts_vocabulary(tmp_path: Path, tiny_tokenizers: dict[str, Path]) -> None:
    heads, form = HeadSettings(masked_lm=True), {"head_form": "bert", "num_segments": 2, "position_offset": 0}
    model = make(tmp_path / "m", tiny_tokenizers["wordpiece"], heads, **form)
    assert len(model.fill_mask("The [MASK] dog", top=4)) == 4
    with pytest.raises(DataError, match=r"has no \[MASK\]"):
        model.fill_mask("The <mask> dog")


@pytest.mark.parametrize(
    ("text", "message"), [("no mask here", "has no <mask>"), ("<mask>" + " fox jumps" * 30, "this model takes 22")]
)
def test_fill_mask_refuses_what_it_cannot_answer(tmp_path: Path, bpe: Path, text: str, message: str) -> None:
    model = make(tmp_path / "m", bpe, HeadSettings(masked_lm=True))
    with pytest.raises(DataError, match=message):
        model.fill_mask(text)
    with pytest.raises(DataError, match="top = 0"):
        model.fill_mask("a <mask>", top=0)


def test_a_model_says_what_it_can_do(tmp_path: Path, bpe: Path) -> None:
    model = make(tmp_path / "m", bpe, HeadSettings(num_classes=2))
    assert model.methods == ("classify", "embed", "rank", "encode", "tokenize")
    with pytest.raises(DataError, match="cannot fill_mask; it can classify"):
        model.fill_mask("a <mask>")
    with pytest.raises(MissingInputError):
        remask.load(tmp_path / "absent")


def test_a_notebook_sees_what_it_has(tmp_path: Path, bpe: Path) -> None:
    assert "load" in dir(remask)
    assert repr(make(tmp_path / "m", bpe, HeadSettings(masked_lm=True))).startswith("<remask model m: 2 layers x 32")


def test_classes_are_in_order_and_do_not_depend_on_the_batch(tmp_path: Path, bpe: Path) -> None:
    model = make(tmp_path / "m", bpe, HeadSettings(num_classes=3), ("x", "y", "z"))
    together = model.classify(TEXTS)
    small = remask.load(tmp_path / "m", batch_tokens=1)
    for text, label in zip(TEXTS, together, strict=True):
        (alone,) = small.classify([text])
        assert alone.label == label.label
        assert alone.scores == pytest.approx(label.scores, abs=1e-6)
        assert set(label.scores) == {"x", "y", "z"}
        assert sum(label.scores.values()) == pytest.approx(1.0)
        assert label.label == max(label.scores, key=label.scores.__getitem__)
        assert label.score == label.scores[label.label]
    assert model.classify([]) == []


def test_a_pair_is_not_its_parts_joined(tmp_path: Path, bpe: Path) -> None:
    model = make(tmp_path / "m", bpe, HeadSettings(num_classes=3))
    pair, joined = model.classify([("The dog.", "The fox."), "The dog. The fox."])
    assert pair.scores != pytest.approx(joined.scores, abs=1e-4)
    assert set(pair.scores) == {"LABEL_0", "LABEL_1", "LABEL_2"}
    pair_ids = model.encode([("The dog.", "The fox.")])[0].ids.tolist()
    assert pair_ids.count(model.tokenizer.eos_id) == 3


def test_regression_and_several_labels(tmp_path: Path, bpe: Path) -> None:
    number = make(tmp_path / "r", bpe, HeadSettings(num_classes=1)).classify(["The dog."])[0]
    assert number.label is None
    assert isinstance(number.score, float)
    several = make(tmp_path / "s", bpe, HeadSettings(num_classes=4, multilabel=True)).classify(TEXTS)
    for label in several:
        assert label.labels == tuple(name for name, score in label.scores.items() if score >= 0.5)
    assert any(abs(sum(label.scores.values()) - 1.0) > 1e-3 for label in several)


def test_tags_are_entities_with_their_characters(tmp_path: Path, bpe: Path) -> None:
    def all_persons(network: Network) -> None:
        assert network.heads.tagger is not None
        network.heads.tagger.weight.zero_()
        network.heads.tagger.bias.copy_(torch.tensor([0.0, 5.0, 0.0]))

    model = make(tmp_path / "m", bpe, HeadSettings(num_tags=3), ("O", "B-PER", "I-PER"), all_persons)
    text = "Mary Shelley, wrote"
    found = model.tag([text, "", "Who?"])
    assert [(entity.text, entity.start, entity.end) for entity in found[0]] == [
        ("Mary", 0, 4), ("Shelley", 5, 12), (",", 12, 13), ("wrote", 14, 19),
    ]  # fmt: skip
    assert found[0][0].label == "PER"
    assert found[1] == []
    assert [entity.text for entity in found[2]] == ["Who", "?"]
    long = " ".join(["fox"] * 60)  # beyond the model's 24 positions
    assert len(model.tag([long])[0]) == 60


def _span_reader(token: int) -> Callable[[Network], None]:
    """Make the span head point at one token: its state is made large in one direction by hand."""

    def change(network: Network) -> None:
        network.encoder.embeddings.positions.weight.zero_()
        network.encoder.embeddings.segments.weight.zero_()
        network.encoder.embeddings.tokens.weight.zero_()
        network.encoder.embeddings.tokens.weight[:, 0] = -1.0
        network.encoder.embeddings.tokens.weight[token, 0] = 1.0
        for attention, ffn in zip(network.encoder.attentions, network.encoder.ffns, strict=True):
            attention.output.weight.zero_()
            ffn.down.weight.zero_()
        network.heads.span.weight.zero_()
        network.heads.span.weight[:, 0] = 1.0

    return change


def test_an_answer_is_found_in_any_window_of_a_long_context(tmp_path: Path, bpe: Path) -> None:
    wanted = load_tokenizer(bpe).encode(" Z")
    model = make(tmp_path / "m", bpe, HeadSettings(span=True), by_hand=_span_reader(int(wanted[-1])))
    for place in range(0, 40, 3):
        words = ["fox"] * 40
        words[place] = "Z"
        context = " ".join(words)
        answer = model.answer("Who", context)
        assert answer.text.strip() == "Z"
        assert context[answer.start : answer.end] == answer.text
        assert 0 < answer.score <= 1
    many = model.answers([("Who", "fox Z"), ("Who wrote", "Z dog"), ("Who", "Z")])
    assert [(answer.text, answer.start) for answer in many] == [("Z", 4), ("Z", 0), ("Z", 0)]
    with pytest.raises(DataError, match="without a single token"):
        model.answer("", "x")


def test_no_answer_is_said_by_the_first_token_or_by_the_head(tmp_path: Path, bpe: Path) -> None:
    model = make(tmp_path / "m", bpe, HeadSettings(span=True), by_hand=_span_reader(load_tokenizer(bpe).bos_id))
    assert model.answer("Who", "The dog").text == ""
    model = make(tmp_path / "a", bpe, HeadSettings(span=True, answerable=True))
    for bias, empty in ((50.0, False), (-50.0, True)):
        with torch.no_grad():
            model.network.heads.answerable.bias.fill_(bias)
        assert (model.answer("Who", "The dog").text == "") == empty


def test_choices_are_scored_together(tmp_path: Path, bpe: Path) -> None:
    model = make(tmp_path / "m", bpe, HeadSettings(choice=True))
    choice = model.choose("The dog.", ["jumps", "over the river", "a"])
    assert sum(choice.scores) == pytest.approx(1.0)
    assert choice.index == int(np.argmax(choice.scores))
    with pytest.raises(DataError, match="at least two"):
        model.choose("The dog.", ["jumps"])


@pytest.mark.parametrize("text, question", [("The dog.", ""), ("The _ river", ""), ("Mary", "Who"), ("Mary", "The _")])
def test_choices_are_asked_as_they_are_trained(tmp_path: Path, bpe: Path, text: str, question: str) -> None:
    model = make(tmp_path / "m", bpe, HeadSettings(choice=True))
    options = ("jumps", "over the river")
    passage, said = (text, question) if question else ("", text)
    item = ChoiceQuestion(passage, said, options, 0, "", "here")
    trained = Choices().encode([item], (), model.tokenizer, model.questions.frame, RowSettings())
    asked = model.questions.choose(text, options, question)
    assert [ids.tolist() for ids, _ in asked.rows] == [ids.tolist() for ids in trained.ids]


def test_vectors_and_states(tmp_path: Path, bpe: Path) -> None:
    for pooling in ("first", "mean"):
        model = make(tmp_path / pooling, bpe, HeadSettings(pooling=pooling))
        encoded = model.encode(TEXTS)
        vectors = model.embed(TEXTS, normalize=False)
        for text, one, vector in zip(TEXTS, encoded, vectors, strict=True):
            ids = [model.tokenizer.bos_id, *model.tokenizer.encode(text), model.tokenizer.eos_id]
            assert one.ids.tolist() == ids
            assert one.states.shape == (len(ids), 32)
            expected = one.states[0] if pooling == "first" else one.states.mean(0)
            assert np.abs(vector - expected).max() < 1e-5
        unit = model.embed(TEXTS)
        assert np.linalg.norm(unit, axis=1) == pytest.approx(np.ones(4), abs=1e-6)
        assert model.embed([]).shape == (0, 32)
        ranked = model.rank(TEXTS[1], TEXTS)
        assert ranked[0].index == 1
        assert ranked[0].score == pytest.approx(1.0, abs=1e-5)
        assert [one.score for one in ranked] == sorted((one.score for one in ranked), reverse=True)


def test_long_texts_are_refused_unless_they_may_be_cut(tmp_path: Path, bpe: Path) -> None:
    model = make(tmp_path / "m", bpe, HeadSettings(num_classes=2))
    long = "fox jumps " * 40
    for call in (model.embed, model.encode):
        with pytest.raises(DataError, match="this model takes 22"):
            call([long])
    with pytest.raises(DataError, match=r"'fox jumps .*: does not fit into the 24 tokens that this model reads"):
        model.classify(["a", long])
    assert model.classify([long], long_texts="cut")[0].label == model.classify([long[:60]], long_texts="cut")[0].label
    windows, cut = (model.classify([long], long_texts=how)[0].scores for how in ("windows", "cut"))
    assert windows != pytest.approx(cut, abs=1e-6)
    chooser = make(tmp_path / "c", bpe, HeadSettings(choice=True))
    with pytest.raises(DataError, match="does not fit into the 24 tokens"):
        chooser.choose(long, ["a", "b"], "who?")
    assert len(chooser.choose(long, ["a", "b"], "who?", long_texts="cut").scores) == 2
    assert len(model.encode([long], long_texts="cut")[0].ids) == 24
    (pair,) = model.encode([(long, "a")], long_texts="cut")
    assert len(pair.ids) == 24
    tail = [model.tokenizer.eos_id, *model.tokenizer.encode("a"), model.tokenizer.eos_id]
    assert pair.ids.tolist()[-len(tail) :] == tail
    (pair,) = model.encode([("a", long)], long_texts="cut")
    assert len(pair.ids) == 24


def taught(folder: Path, task: str, labels: tuple[str, ...], **rows: Any) -> Model:
    """The model again, as one that was fine-tuned here with these row settings."""
    kind = KINDS[task]
    stored = StoredTask(task, kind, labels, kind.metric, TableSettings(), RowSettings(**rows))
    (folder / "task.json").write_bytes(stored.to_json())
    return remask.load(folder)


def test_long_texts_are_read_as_the_model_was_taught(tmp_path: Path, bpe: Path) -> None:
    foreign = make(tmp_path / "m", bpe, HeadSettings(num_classes=2), ("no", "yes"))
    long = "fox jumps " * 40
    expected = {how: foreign.classify([long], long_texts=how)[0].scores for how in ("cut", "windows")}
    for how in ("cut", "windows"):
        model = taught(tmp_path / "m", "classify", ("no", "yes"), long_texts=how)
        assert model.classify([long])[0].scores == pytest.approx(expected[how], abs=1e-6)
        with pytest.raises(DataError, match="does not fit into the 24 tokens"):
            model.classify(["a", long], long_texts="error")
        for other, scores in expected.items():
            assert model.classify([long], long_texts=other)[0].scores == pytest.approx(scores, abs=1e-6)
    short = taught(tmp_path / "m", "classify", ("no", "yes"), max_length=12)
    with pytest.raises(DataError, match="does not fit into the 12 tokens"):
        short.classify([long], long_texts="error")
    assert short.classify([long])[0].scores != pytest.approx(expected["cut"], abs=1e-6)


def test_long_questions_and_words_are_cut_by_any_model(tmp_path: Path, bpe: Path) -> None:
    spans = make(tmp_path / "s", bpe, HeadSettings(span=True), by_hand=_span_reader(load_tokenizer(bpe).bos_id))
    assert spans.answer("Who wrote it? " * 30, "The dog").text == ""
    tags = make(tmp_path / "t", bpe, HeadSettings(num_tags=3), ("O", "B-PER", "I-PER"))
    assert isinstance(tags.tag(["x" * 300])[0], list)


def test_tokens_and_their_characters(tmp_path: Path, bpe: Path) -> None:
    model = make(tmp_path / "m", bpe, HeadSettings())
    text = "The dog naïve <mask>"
    (tokens,) = model.tokenize([text])
    assert list(tokens.ids) == model.tokenizer.encode(text).tolist()
    assert model.tokenizer.mask_id not in tokens.ids
    assert text[slice(*tokens.spans[0])] == tokens.tokens[0]


def test_a_vocabulary_that_does_not_belong_to_the_model_is_refused(tmp_path: Path, bpe: Path) -> None:
    with pytest.raises(DataError, match="do not belong together"):
        make(tmp_path / "m", bpe, HeadSettings(), vocab_size=100)


def test_vectors_by_the_mean_where_asked(tmp_path: Path, bpe: Path) -> None:
    model = make(tmp_path / "m", bpe, HeadSettings())
    states = [one.states for one in model.encode(TEXTS)]
    for pooling, expected in (("first", [s[0] for s in states]), ("mean", [s.mean(0) for s in states])):
        found = model.embed(TEXTS, pooling=pooling, normalize=False)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, np.stack(expected), atol=1e-5)
    np.testing.assert_array_equal(model.embed(TEXTS), model.embed(TEXTS, pooling="first"))


def test_a_lone_text_is_not_taken_letter_by_letter(tmp_path: Path, bpe: Path) -> None:
    model = make(tmp_path / "m", bpe, HeadSettings(num_classes=2, num_tags=3))
    for ask in (model.embed, model.encode, model.classify, model.tag, model.tokenize, lambda t: model.rank("a", t)):
        with pytest.raises(DataError, match="give a list of texts"):
            ask("The dog.")


@pytest.mark.parametrize("device", ["moon", "cuda:99"])
def test_a_device_that_is_not_there_is_one_line(tmp_path: Path, bpe: Path, device: str) -> None:
    make(tmp_path / "m", bpe, HeadSettings())
    with pytest.raises(UnavailableError, match=f"device = {device}"):
        remask.load(tmp_path / "m", device=device)


def test_the_engine_needs_neither_transformers_nor_arrow(tmp_path: Path, bpe: Path) -> None:
    make(tmp_path / "m", bpe, HeadSettings(masked_lm=True))
    code = f"import sys, remask; remask.load({str(tmp_path / 'm')!r}).fill_mask('a <mask>')\n"
    code += (
        "heavy = {'transformers', 'pyarrow', 'datasets', 'sklearn', 'scipy', 'matplotlib', 'ray'} & set(sys.modules)\n"
    )
    code += "assert not heavy, heavy"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --------------------------------------------------------------------------------------- many questions at once


def test_only_targets_are_scored_each_in_its_likelier_form(tmp_path: Path, bpe: Path) -> None:
    model = make(tmp_path / "m", bpe, HeadSettings(masked_lm=True))
    scores = {fill.token: fill.score for fill in model.fill_mask("The <mask> dog.", top=300)}
    fills = model.fill_mask("The <mask> dog.", targets=["e", "r", "e"])
    forms = {
        word: [int(ids[0]) for w in (word, f" {word}") if len(ids := model.tokenizer.encode(w)) == 1] for word in "er"
    }
    best = sorted((max(scores[token] for token in forms[word]) for word in "er"), reverse=True)
    assert [fill.score for fill in fills] == pytest.approx(best)
    assert len(model.fill_mask("The <mask> dog.", top=1, targets=["e", "r"])) == 1
    with pytest.raises(DataError, match="'xylophone' is not one token"):
        model.fill_mask("The <mask> dog.", targets=["xylophone"])


def test_questions_of_several_kinds_share_batches(tmp_path: Path, bpe: Path) -> None:
    heads = HeadSettings(masked_lm=True, num_classes=2, span=True)
    model = make(tmp_path / "m", bpe, heads)
    ask = model.questions
    expected = [
        model.classify(TEXTS),
        model.fill_mask(["a <mask>"]),
        model.embed(TEXTS),
        model.answers([("Who", "The dog")]),
    ]
    before = model.runner.num_batches
    questions = [ask.classify(TEXTS), ask.fill_mask(["a <mask>"]), ask.embed(TEXTS), ask.answers([("Who", "The dog")])]

    def refuse(vectors: np.ndarray) -> None:
        raise DataError(f"{len(vectors)} vectors refused")

    said = model.together([*questions, ask.embed(TEXTS).then(refuse)])
    assert model.runner.num_batches - before <= 2
    for one, other in zip(said[0], expected[0], strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-5)
    assert [fill.token for fill in said[1][0]] == [fill.token for fill in expected[1][0]]
    np.testing.assert_allclose(said[2], expected[2], atol=1e-5)
    assert said[3][0].text == expected[3][0].text
    assert isinstance(said[4], DataError)
    assert str(said[4]) == f"{len(TEXTS)} vectors refused"
    with pytest.raises(DataError, match="has no <mask>"):
        ask.fill_mask(["no mask"])
    with pytest.raises(DataError, match="cannot tag"):
        ask.tag(TEXTS)


@pytest.mark.parametrize(
    "changes",
    [{}, {"positions": "rotary", "attention_window": 3, "global_every": 2}, {"norm": "pre", "sharing": "all"}],
)
def test_attention_maps_are_the_weights_that_the_network_used(
    tmp_path: Path, bpe: Path, changes: dict[str, Any]
) -> None:
    """The map times the values, through the output projection, is what the attention module gave."""
    model = make(tmp_path / "m", bpe, HeadSettings(), **changes)
    (encoded,) = model.encode(["The quick brown fox jumps"])
    values, outputs = [], []
    hooks = []
    for attention in model.network.encoder.attentions:
        hooks.append(attention.qkv.register_forward_hook(lambda module, args, out: values.append(out)))
        hooks.append(attention.output.register_forward_hook(lambda module, args, out: outputs.append(args[0])))
    maps = model.attentions(encoded.ids)
    for hook in hooks:
        hook.remove()
    size, (heads, width) = len(encoded.ids), (model.settings.num_heads, model.settings.head_size)
    assert maps.shape == (2, heads, size, size)
    for layer in range(2):
        v_NSK = values[layer].view(size, 3, heads, width)[:, 2].transpose(0, 1).numpy()
        attended = (maps[layer] @ v_NSK).transpose(1, 0, 2).reshape(size, -1)
        np.testing.assert_allclose(attended, outputs[layer].numpy(), atol=1e-5)


def test_bf16_products_give_nearly_the_same(tmp_path: Path, bpe: Path) -> None:
    from remask.precision import probe

    works, reason = probe("bf16", "cpu")
    if not works:
        pytest.skip(f"bf16: {reason}")
    exact = make(tmp_path / "m", bpe, HeadSettings(masked_lm=True))
    rough = remask.load(tmp_path / "m", precision="bf16")
    vectors = rough.embed(TEXTS)
    assert vectors.dtype == np.float32
    assert (vectors * exact.embed(TEXTS)).sum(1) == pytest.approx(np.ones(len(TEXTS)), abs=0.01)
    assert not np.array_equal(vectors, exact.embed(TEXTS))
    assert rough.fill_mask("The <mask> dog.", top=300)[0].score == pytest.approx(
        exact.fill_mask("The <mask> dog.", top=300)[0].score, rel=0.1
    )


def test_a_signal_ends_the_answers_to_many_rows(tmp_path: Path, bpe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever scores or answers a file: evaluate, predict, an ensemble."""
    make(tmp_path / "m", bpe, HeadSettings(num_classes=2))
    model = remask.load(tmp_path / "m", batch_tokens=16)
    rows = model.reader.encode([Example((text,), None, "f") for text in TEXTS])
    assert len(model.outputs(rows)) == len(TEXTS)
    monkeypatch.setattr(signals, "requested", lambda: True)
    before = model.runner.num_batches
    with pytest.raises(Stopped):
        model.outputs(rows)
    assert model.runner.num_batches == before + 1
