"""Where a run starts: what was counted is kept and reused, held-out text is never counted, bad input is named."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from remask import start
from remask.artifacts import publish
from remask.data.tokens import ShardWriter, Tokens
from remask.errors import DataError
from remask.model import counted
from remask.model.encoder import Attention
from remask.model.network import Network, build_network
from remask.model.settings import HeadSettings, ModelSettings
from remask.progress import Progress
from remask.schema import Batch
from remask.start import StartSettings, complete_network, counted_vectors, start_network

VOCAB = 150
QUIET = Progress(quiet=True)
ALL = StartSettings(embeddings="counted", attention="neighbours", bias="frequencies")


def texts(seed: int, count: int = 60, vocab_size: int = VOCAB) -> list[np.ndarray]:
    """Documents in which every token prefers some others; ids below 5 (specials) never occur."""
    draw = np.random.default_rng(seed)
    return [
        5 + (draw.integers(0, 8, 90).cumsum() + draw.integers(0, vocab_size)) % (vocab_size - 5) for _ in range(count)
    ]


def prepared(folder: Path, train: Sequence[np.ndarray], heldout: Sequence[np.ndarray] = ()) -> Path:
    def fill(place: Path) -> dict[str, object]:
        facts = []
        for split, documents in (("train", train), ("heldout", heldout)):
            writer = ShardWriter(place, f"a.{split}.00000", VOCAB)
            for ids in documents:
                writer.add(ids, [0], np.ones(len(ids), bool))
            facts.append(writer.close())
        return {"shards": facts}

    publish(folder, "prepared", fill)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return prepared(tmp_path / "data", texts(1), texts(2, 10))


def made(seed: int = 0, heads: HeadSettings | None = None, **changes: Any) -> Network:
    form = {"vocab_size": VOCAB, "num_layers": 2, "hidden_size": 32, "num_heads": 2, "ffn_size": 48, "max_length": 24}
    return build_network(ModelSettings(**{**form, **changes}), heads or HeadSettings(masked_lm=True), seed)


def vectors(folder: Path, run_folder: Path, settings: StartSettings = ALL, width: int = 32) -> bytes:
    found = counted_vectors(Tokens.open(folder), settings, VOCAB, width, run_folder, QUIET)
    return found.vectors_VC.tobytes() + found.is_counted_V.tobytes()


# ------------------------------------------------------------------------------------------------ the kept artifact


def test_held_out_text_changes_nothing_and_training_text_does(tmp_path: Path, data: Path) -> None:
    first = vectors(data, tmp_path)
    assert vectors(prepared(tmp_path / "other_heldout", texts(1), texts(9, 40)), tmp_path) == first
    assert vectors(prepared(tmp_path / "more_training", [*texts(1), *texts(2, 10)]), tmp_path) != first
    # Not only the vectors: they are known again under the same name, whatever is held out.
    names = [sorted(p.name for p in (tmp_path / name / "counted").glob("1*")) for name in ("data", "other_heldout")]
    assert names[0] == names[1] != []


def test_what_was_counted_is_used_again(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = vectors(data, tmp_path)
    monkeypatch.setattr(start, "_count", lambda *_: pytest.fail("counted again"))
    assert vectors(data, tmp_path / "another run") == first


def test_damage_is_noticed_and_made_good(tmp_path: Path, data: Path) -> None:
    first = vectors(data, tmp_path)
    (file,) = (data / "counted").glob("*/vectors.npy")
    changed = bytearray(file.read_bytes())
    changed[-1] ^= 1
    file.write_bytes(changed)
    assert vectors(data, tmp_path) == first


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {place!r})
import test_start
from remask import start
fill = start._fill
def die(aside, *arrays):
    fill(aside, *arrays)
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "kill":
    start._fill = die
import hashlib
print(hashlib.sha256(test_start.vectors(Path(sys.argv[1]), Path("."))).hexdigest())
"""


def test_a_kill_and_another_number_of_threads_give_the_same_bytes(tmp_path: Path, data: Path) -> None:
    import hashlib
    import os

    wanted = hashlib.sha256(vectors(prepared(tmp_path / "twin", texts(1)), tmp_path)).hexdigest()
    script = KILLED.format(place=str(Path(__file__).parent))
    for way, code, said in (("kill", -signal.SIGKILL, ""), ("whole", 0, wanted)):
        done = subprocess.run(
            [sys.executable, "-c", script, str(data), way],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "2"},
        )
        assert (done.returncode, done.stdout.strip()) == (code, said), done.stderr


def test_a_read_only_folder_keeps_it_in_the_runs(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start.os, "access", lambda path, mode: False)  # root may write anywhere
    vectors(data, tmp_path / "out")
    assert not (data / "counted").exists()
    assert list((tmp_path / "out" / "counted").glob("*/vectors.npy"))


# ------------------------------------------------------------------------------------------------ the network

FAMILIES: dict[str, dict[str, Any]] = {
    "roberta": {},
    "bert": {"position_offset": 0, "num_segments": 2, "norm_eps": 1e-12, "head_form": "bert"},
    "free output": {"tied_embeddings": False},
    "albert": {"embedding_size": 16, "sharing": "all", "activation": "gelu_tanh", "num_segments": 2},
    "wide embeddings": {"embedding_size": 48},
    "modern": {
        "positions": "rotary", "norm": "pre", "first_norm": False, "bias": False, "norm_bias": False, "ffn": "gated",
        "attention_window": 2, "global_every": 2, "num_segments": 0, "head_form": "modern", "init": "scaled",
    },
    "one head of odd width": {"num_heads": 1, "hidden_size": 33},
}  # fmt: skip


def batch(seed: int = 0) -> Batch:
    draw = np.random.default_rng(seed)
    return Batch(torch.from_numpy(draw.integers(0, VOCAB, (3, 20))), torch.full((3,), 20))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_starts_from_counts(family: str, data: Path, tmp_path: Path) -> None:
    fresh, begun = made(**FAMILIES[family]), made(**FAMILIES[family])
    start_network(begun, ALL, Tokens.open(data), tmp_path, QUIET)
    weight = begun.encoder.embeddings.tokens.weight
    found = counted_vectors(
        Tokens.open(data),
        ALL,
        VOCAB,
        weight.shape[1] - counted.num_place_columns(begun.settings, sides=False),
        tmp_path,
        QUIET,
    )
    assert found.is_counted_V[5:].all()
    assert not found.is_counted_V[:5].any()
    # Neighbours in the text have similar vectors, tokens far apart have not.
    unit = torch.nn.functional.normalize(weight[20:140] - weight[20:140].mean(0), dim=1)
    near = (unit[:-2] * unit[2:]).sum(1).mean()
    assert near > (unit[:-60] * unit[60:]).sum(1).mean() + 0.2
    masked_lm = begun.heads.masked_lm
    assert masked_lm is not None
    if masked_lm.decoder is not None:
        assert torch.equal(masked_lm.decoder.weight[5:], weight[5:])
    assert masked_lm.bias[20] > masked_lm.bias[0]
    for name, before in fresh.named_parameters():
        after = dict(begun.named_parameters())[name]
        assert torch.isfinite(after).all()
        if name.endswith(("qkv.weight", "output.weight")):
            assert not torch.equal(before, after)
    hidden = begun.encode(batch())
    assert torch.isfinite(begun.masked_lm(hidden, torch.arange(60))).all()


@pytest.mark.parametrize(
    "part, value",
    [("embeddings", "counted"), ("attention", "neighbours"), ("bias", "frequencies"), ("head", "direct")],
)
def test_each_part_can_be_had_alone(part: str, value: str, data: Path, tmp_path: Path) -> None:
    fresh, begun = made(positions="rotary"), made(positions="rotary")
    start_network(begun, StartSettings(**{part: value}), Tokens.open(data), tmp_path, QUIET)
    after = dict(begun.named_parameters())
    changed = {name for name, before in fresh.named_parameters() if not torch.equal(before, after[name])}
    places = {"embeddings": "embeddings.tokens", "attention": "attentions.", "bias": "lm.bias", "head": "lm.dense"}
    kind = places[part]
    assert changed
    assert all(kind in name for name in changed)


@pytest.mark.parametrize("form", [{}, {"embedding_size": 16}])
def test_a_direct_head_answers_with_the_token_that_a_state_lies_near(form: dict[str, int], tmp_path: Path) -> None:
    data = prepared(tmp_path / "data", texts(1))
    above = {}  # share of the tokens that score higher than the one that the state is of
    for head in ("random", "direct"):
        network = made(**form)
        start_network(network, ALL.model_copy(update={"head": head}), Tokens.open(data), tmp_path, QUIET)
        embeddings = network.encoder.embeddings
        tokens_VE = embeddings.tokens.weight[5:]
        with torch.no_grad():
            states = tokens_VE if embeddings.project is None else embeddings.project(tokens_VE)
            assert network.heads.masked_lm is not None
            scores = network.heads.masked_lm(states / states.std(dim=1, keepdim=True), embeddings.tokens.weight)
        above[head] = float((scores[:, 5:] > scores[:, 5:].diagonal()[:, None]).double().mean())
    assert above["direct"] < 0.1 < 0.3 < above["random"]


def test_a_dry_run_counts_nothing(data: Path) -> None:
    fresh, begun = made(), made()
    start_network(begun, ALL, Tokens.open(data), None, QUIET)
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), begun.parameters(), strict=True))
    assert not (data / "counted").exists()


@pytest.mark.parametrize("family", ["roberta", "albert"])
def test_learned_positions_start_by_looking_at_neighbours(family: str, data: Path, tmp_path: Path) -> None:
    """A changed token moves the states beside it more than those far from it, in every layer but by far."""
    network = made(max_length=64, num_layers=1, hidden_size=64, **{**FAMILIES[family], "num_segments": 1})
    start_network(network, ALL, Tokens.open(data), tmp_path, QUIET)
    ids = torch.from_numpy(np.random.default_rng(3).integers(5, VOCAB, (1, 60)))
    other = ids.clone()
    other[0, 30] = (ids[0, 30] + 60 - 5) % (VOCAB - 5) + 5
    lengths = torch.tensor([60])
    with torch.no_grad():
        moved = (network.encode(Batch(ids, lengths)) - network.encode(Batch(other, lengths)))[0].norm(dim=1)
    near = moved[[28, 29, 31, 32]].mean()
    assert near > 5 * torch.cat([moved[5:20], moved[40:55]]).mean()


SIDED: dict[str, dict[str, Any]] = {
    "modern": {**FAMILIES["modern"], "global_every": 0, "num_heads": 4, "hidden_size": 64},
    "roberta": {"num_heads": 4, "hidden_size": 128},
    "albert": {**FAMILIES["albert"], "num_heads": 4, "hidden_size": 128, "embedding_size": 64},
}
SIDES = StartSettings(embeddings="counted", attention="sides", head="direct", bias="frequencies")


@pytest.mark.parametrize("head, there", [(0, 31), (1, 29)])
@pytest.mark.parametrize("family", SIDED)
def test_two_heads_start_with_the_left_and_the_right_token(
    family: str, head: int, there: int, data: Path, tmp_path: Path
) -> None:
    """With one head alone, a changed token moves the state on its other side far more than those elsewhere."""
    network = made(**{**SIDED[family], "num_layers": 1, "max_length": 64, "num_segments": 1})
    start_network(network, SIDES, Tokens.open(data), tmp_path, QUIET)
    ids = torch.from_numpy(np.random.default_rng(3).integers(5, VOCAB, (1, 60)))
    other, lengths = ids.clone(), torch.tensor([60])
    other[0, 30] = (ids[0, 30] + 60 - 5) % (VOCAB - 5) + 5
    size = network.settings.head_size
    with torch.no_grad():
        attention = network.encoder.attentions[0]
        assert isinstance(attention, Attention)
        columns = slice(head * size, (head + 1) * size)
        kept = attention.output.weight[:, columns].clone()
        attention.output.weight.zero_()[:, columns] = kept
        moved = (network.encode(Batch(ids, lengths)) - network.encode(Batch(other, lengths)))[0].norm(dim=1)
    moved[30] = 0.0  # the token itself
    assert int(moved.argmax()) == there
    assert moved[there] > 2 * moved[60 - there]  # the same distance on the wrong side
    assert moved[there] > 10 * torch.cat([moved[5:20], moved[40:55]]).mean()


@pytest.mark.parametrize("family", SIDED)
def test_sides_know_the_order_of_tokens_before_anything_is_learned(family: str, tmp_path: Path) -> None:
    """Three kinds of tokens come in turn. Text that is read backwards has the same neighbours: only sides can tell."""
    draw = np.random.default_rng(4)
    documents = [5 + 3 * draw.integers(0, (VOCAB - 5) // 3, 60) + (np.arange(60) + k) % 3 for k in range(60)]
    tokens = Tokens.open(prepared(tmp_path / "data", documents))
    rows = torch.from_numpy(np.stack([ids[:21] for ids in documents]))
    at = torch.arange(60) * 21 + 10
    worse = {}
    for attention in ("neighbours", "sides"):
        network = made(**SIDED[family])
        start_network(network, SIDES.model_copy(update={"attention": attention}), tokens, tmp_path, QUIET)
        losses = []
        for ids in (rows, rows.flip(1)):
            masked = ids.clone()
            masked[:, 10] = 4
            with torch.no_grad():
                states = network.encode(Batch(masked, torch.full((60,), 21)))
                losses.append(float(network.masked_lm_loss(states, at, ids[:, 10])[0]) / 60)
        worse[attention] = losses[1] - losses[0]
    assert abs(worse["neighbours"]) < 0.02
    assert worse["sides"] > 0.05


def test_sides_are_the_same_for_any_number_of_threads(data: Path, tmp_path: Path) -> None:
    begun = []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        begun.append(made(**SIDED["modern"]))
        start_network(begun[-1], SIDES, Tokens.open(data), tmp_path / str(threads), QUIET)
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(begun[0].parameters(), begun[1].parameters(), strict=True))


# ------------------------------------------------------------------------------------------- a model to start from


def test_new_tokens_follow_the_map_of_known_ones(data: Path, tmp_path: Path) -> None:
    """Vectors that are a linear function of the counts are found again, and so are their biases."""
    network = made()
    tokens = Tokens.open(data)
    found = counted_vectors(tokens, ALL, VOCAB, 32, tmp_path, QUIET)
    table = counted.even_scale(found.vectors_VC, found.is_counted_V, 0.5, 1.0)
    truth = torch.from_numpy(table @ np.random.default_rng(0).standard_normal((table.shape[1], 32)).astype("f4") + 2)
    with torch.no_grad():
        network.encoder.embeddings.tokens.weight.copy_(truth)
        network.encoder.embeddings.tokens.weight[100:] = 0.0
    old_ids = [*range(100), *[-1] * 50]
    assert sum(found.is_counted_V[:100]) == 95
    at_random = StartSettings(new_tokens="random", bias="frequencies")
    complete_network(network, at_random, tokens, old_ids, True, tmp_path, QUIET)
    new_bias = network.heads.masked_lm.bias.detach().clone()  # type: ignore[union-attr]
    assert not new_bias[:100].any()
    assert torch.allclose(new_bias[100:], torch.from_numpy(tokens.log_frequencies(VOCAB)).float()[100:])
    assert not network.encoder.embeddings.tokens.weight[100:].any()
    said = StringIO()
    complete_network(network, StartSettings(), tokens, old_ids, True, tmp_path, Progress(stream=said))
    assert "fewer than 100 tokens" in said.getvalue()
    old_ids = [*range(120), *[-1] * 30]
    with torch.no_grad():
        network.encoder.embeddings.tokens.weight[:120] = truth[:120]
        network.heads.masked_lm.bias.copy_(torch.from_numpy(tokens.log_frequencies(VOCAB)) + 7)  # type: ignore[union-attr]
        network.heads.masked_lm.bias[120:] = 0.0  # type: ignore[union-attr]
    complete_network(network, StartSettings(), tokens, old_ids, True, tmp_path, QUIET)
    weight, bias = network.encoder.embeddings.tokens.weight, network.heads.masked_lm.bias  # type: ignore[union-attr]
    assert (weight[120:] - truth[120:]).norm() < 0.1 * (truth[120:] - truth.mean(0)).norm()
    assert torch.allclose(bias[120:] - 7, torch.from_numpy(tokens.log_frequencies(VOCAB))[120:].float(), atol=1e-3)


def test_new_tokens_follow_their_pieces_where_known_ones_do(data: Path, tmp_path: Path) -> None:
    """Tokens whose vector is the sum of their two pieces, whatever the counts say, teach that to new ones; with too few
    of them to teach, new ones start at the mean."""
    network, tokens = made(), Tokens.open(data)
    weight = network.encoder.embeddings.tokens.weight
    draw = np.random.default_rng(1)
    pieces = [[] if token < 15 else draw.integers(0, 15, 2).tolist() for token in range(VOCAB)]
    with torch.no_grad():
        weight.copy_(torch.from_numpy(draw.standard_normal((VOCAB, 32)).astype("f4")))
        for token in range(15, VOCAB):
            weight[token] = weight[pieces[token]].sum(dim=0)
        truth = weight.clone()
        weight[130:] = 0.0
    old_ids = [*range(130), *[-1] * 20]
    complete_network(network, StartSettings(), tokens, old_ids, True, tmp_path, QUIET, pieces)
    assert (weight[130:] - truth[130:]).norm() < 0.05 * truth[130:].norm()
    few = [*range(60), *[-1] * 90]
    complete_network(network, StartSettings(), tokens, few, True, tmp_path, QUIET, pieces)
    assert torch.allclose(weight[60:], truth[60:] / 2, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_that_was_not_there_starts_at_the_frequencies(tied: bool, data: Path, tmp_path: Path) -> None:
    """Long embeddings under a random head are worse than knowing nothing; under a quiet one as good as the unigram."""
    tokens = Tokens.open(data)
    network = made(tied_embeddings=tied)
    matrices = [p for name, p in network.named_parameters() if name.endswith(("tokens.weight", "decoder.weight"))]
    with torch.no_grad():
        for weight in matrices:
            weight *= 5.7 / weight.norm(dim=1).mean()
    ids = torch.from_numpy(np.stack([ids[:20] for ids in texts(2, 40)]))
    rows, lengths = Batch(ids, torch.full((40,), 20)), torch.arange(800)

    def loss() -> float:
        with torch.no_grad():
            return float(network.masked_lm_loss(network.encode(rows), lengths, ids.flatten())[0]) / 800

    unigram = -float(tokens.log_frequencies(VOCAB)[ids.flatten().numpy()].mean())
    if not tied:  # a tied one sees the answer itself
        assert loss() > unigram + 1
    complete_network(network, StartSettings(), tokens, range(VOCAB), False, tmp_path, QUIET)
    assert loss() <= unigram + 1e-4


# ------------------------------------------------------------------------------------------------ bad input


def test_too_little_text_is_refused_by_name(tmp_path: Path) -> None:
    tokens = Tokens.open(prepared(tmp_path / "data", texts(1, 3)))
    for folder in (tmp_path, None):
        with pytest.raises(DataError, match=r"start.embeddings = counted needs at least 2,000 training tokens.* 270;"):
            start_network(made(), ALL, tokens, folder, QUIET)
    start_network(made(), StartSettings(attention="neighbours", bias="frequencies"), tokens, tmp_path, QUIET)


def test_sides_that_cannot_be_are_named(tmp_path: Path, data: Path) -> None:
    for form in ({"num_heads": 2}, {"positions": "rotary", "num_heads": 4}, {"attention_window": 2, "num_heads": 4}):
        said, plain, begun = StringIO(), made(**form), made(**form)
        start_network(begun, SIDES, Tokens.open(data), tmp_path, Progress(stream=said))
        assert "attention starts as with neighbours" in said.getvalue()
        start_network(plain, SIDES.model_copy(update={"attention": "neighbours"}), Tokens.open(data), tmp_path, QUIET)
        assert all(torch.equal(a, b) for a, b in zip(begun.parameters(), plain.parameters(), strict=True))
    little = Tokens.open(prepared(tmp_path / "little", texts(1, 3)))
    with pytest.raises(DataError, match=r"start.attention = sides needs at least 2,000 training tokens"):
        start_network(made(num_heads=4), StartSettings(attention="sides"), little, tmp_path, QUIET)


def test_what_cannot_be_counted_is_said_and_stays_random(tmp_path: Path) -> None:
    said = StringIO()
    tokens = Tokens.open(prepared(tmp_path / "data", texts(1, vocab_size=25)))
    network = made(positions="rotary", hidden_size=64, ffn_size=48)
    start_network(network, ALL, tokens, tmp_path, Progress(stream=said))
    assert "only 20 of 150 entries of the vocabulary are in the text" in said.getvalue()
    assert "below the width of 64; the other" in said.getvalue()
    weight = network.encoder.embeddings.tokens.weight.detach()
    assert float(weight[30:].std()) == pytest.approx(ALL.std, rel=0.1)
    assert float(weight[5:25, 40:].std()) == pytest.approx(ALL.std, rel=0.1)


def test_the_same_token_all_over_is_refused(tmp_path: Path) -> None:
    tokens = Tokens.open(prepared(tmp_path / "data", [np.full(3000, 7)]))
    with pytest.raises(DataError, match="no two tokens stand together more often than chance"):
        start_network(made(), ALL, tokens, tmp_path, QUIET)
    with pytest.raises(DataError, match=r"more often than chance; --set start.attention=random"):
        start_network(made(num_heads=4), StartSettings(attention="sides"), tokens, tmp_path, QUIET)
