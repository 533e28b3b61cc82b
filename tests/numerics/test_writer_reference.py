"""A network that writes beside transformers' EncoderDecoderModel with the same weights: losses, gradients, texts.

The folder that remask exports is what transformers opens, so names and shapes are tested with the numbers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from remask.answer.decoding import write
from remask.exports.hf import export_hf
from remask.model.network import Network, build_network
from remask.model.settings import HeadSettings, ModelSettings, WriterSettings
from remask.model.store import open_model, save_model
from remask.schema import IGNORE, Batch
from remask.tasks.settings import DecodeSettings
from remask.tokenizer import load_tokenizer

SIZES = {"num_layers": 3, "hidden_size": 32, "num_heads": 4, "ffn_size": 48, "max_length": 40, "init_std": 0.25}
BERT = {"head_form": "bert", "position_offset": 0, "num_segments": 2, "norm_eps": 1e-12}
FAMILIES = {"roberta": ({}, "byte-bpe"), "bert": (BERT, "wordpiece")}


@pytest.fixture(scope="module", params=["roberta-shared", "roberta-copied-2", "bert-shared-2", "bert-copied"])
def both(request: Any, tiny_tokenizers: dict[str, Path], tmp_path_factory: Any) -> tuple[Network, Any]:
    """Ours and theirs, from our export."""
    from transformers import EncoderDecoderModel

    family, weights, *layers = request.param.split("-")
    form, vocabulary = FAMILIES[family]
    tokenizer = load_tokenizer(tiny_tokenizers[vocabulary])
    settings = ModelSettings.model_validate({"vocab_size": tokenizer.vocab_size, **SIZES, **form})
    count = int(layers[0]) if layers else None
    writer = WriterSettings(weights=weights, num_layers=count, start_id=tokenizer.bos_id, end_id=tokenizer.eos_id)
    network = build_network(settings, HeadSettings(writer=writer), 3)
    with torch.no_grad():
        for name, parameter in network.named_parameters():  # biases and norms too, which begin as 0 and 1
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
    folder = tmp_path_factory.mktemp("writer")
    save_model(folder / "ours", network, tiny_tokenizers[vocabulary])
    export_hf(folder / "ours", folder / "theirs")
    theirs = EncoderDecoderModel.from_pretrained(folder / "theirs").eval()
    again = open_model(folder / "theirs")
    assert again.heads.writer == writer
    ours, back = network.state_dict(), again.network.state_dict()
    assert ours.keys() == back.keys()
    assert all(torch.equal(ours[name], back[name]) for name in ours)
    return network.eval(), theirs


def batch_of(vocab_size: int, targets: bool = True) -> Batch:
    rng = np.random.default_rng(5)
    lengths, target_lengths = torch.tensor([9, 4, 12]), torch.tensor([5, 11, 7])
    ids = torch.ones(3, 12, dtype=torch.int64)
    labels = torch.full((3, 11), IGNORE)
    for row in range(3):
        ids[row, : lengths[row]] = torch.from_numpy(rng.integers(5, vocab_size - 1, int(lengths[row])))
        drawn = rng.integers(5, vocab_size - 1, int(target_lengths[row]))
        labels[row, : target_lengths[row]] = torch.from_numpy(drawn)
    return Batch(ids, lengths, labels=labels, target_lengths_B=target_lengths)


def mask_of(batch: Batch) -> torch.Tensor:
    return (torch.arange(batch.input_ids_BS.shape[1]) < batch.lengths_B[:, None]).long()


@pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces")
def test_loss_and_gradients(both: tuple[Network, Any]) -> None:
    ours, theirs = both
    batch = batch_of(ours.settings.vocab_size)
    ours.zero_grad()
    theirs.zero_grad()
    loss, _ = ours.write_loss(ours.encode(batch), batch)
    loss = loss / batch.target_lengths_B.sum()
    loss.backward()
    said = theirs(input_ids=batch.input_ids_BS, attention_mask=mask_of(batch), labels=batch.labels)
    said.loss.backward()
    torch.testing.assert_close(loss, said.loss, rtol=1e-5, atol=1e-5)

    writer = ours.head_settings.writer
    assert writer is not None
    base = theirs.decoder.base_model
    layer = base.encoder.layer[0]
    cross = layer.crossattention
    decoder = ours.heads.writer
    assert decoder is not None
    own = decoder.crosses[0]
    expected = {
        own.query.weight: cross.self.query.weight.grad,
        own.key_value.weight: torch.cat([cross.self.key.weight.grad, cross.self.value.weight.grad]),
        own.output.bias: cross.output.dense.bias.grad,
        own.norm.weight: cross.output.LayerNorm.weight.grad,
    }
    # What is shared gathers the gradients of all places; the embeddings always do.
    first = ours.settings.num_layers - len(decoder.layers)
    there = theirs.encoder.encoder.layer[first]
    embeddings = theirs.encoder.embeddings.word_embeddings.weight.grad + base.embeddings.word_embeddings.weight.grad
    expected[ours.encoder.embeddings.tokens.weight] = embeddings
    up = layer.intermediate.dense.weight.grad
    if writer.weights == "shared":
        expected[ours.encoder.ffns[first].up.weight] = up + there.intermediate.dense.weight.grad
    else:
        expected[decoder.ffns[0].up.weight] = up
        expected[ours.encoder.ffns[first].up.weight] = there.intermediate.dense.weight.grad
    for parameter, gradient in expected.items():
        torch.testing.assert_close(parameter.grad, gradient, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize(
    "how",
    [{}, {"beams": 4}, {"beams": 3, "length_penalty": 0.3, "no_repeat": 2}, {"beams": 2, "length_penalty": 2.0},
     {"no_repeat": 1}],
    ids=lambda how: "-".join(map(str, how)) or "greedy",
)  # fmt: skip
def test_generate_writes_the_same(both: tuple[Network, Any], how: dict[str, Any]) -> None:
    ours, theirs = both
    batch = batch_of(ours.settings.vocab_size)
    decode = DecodeSettings(**how)
    with torch.inference_mode():
        drafts = write(ours, batch, ours.encode(batch), decode, 14)
        written = theirs.generate(
            batch.input_ids_BS, attention_mask=mask_of(batch), max_new_tokens=14, num_beams=decode.beams,
            no_repeat_ngram_size=decode.no_repeat, do_sample=False,
            **({"length_penalty": decode.length_penalty} if decode.beams > 1 else {}),
        )  # fmt: skip
    writer = ours.head_settings.writer
    assert writer is not None
    for draft, ids in zip(drafts, written[:, 1:].tolist(), strict=True):
        end = ids.index(writer.end_id) if writer.end_id in ids else len(ids)
        assert draft.ids.tolist() == ids[:end]
        assert draft.finished == (writer.end_id in ids)


def test_families_without_a_decoder_go_out_in_our_layout(tiny_tokenizers: dict[str, Path], tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_tokenizers["byte-bpe"])
    writer = WriterSettings(start_id=tokenizer.bos_id, end_id=tokenizer.eos_id)
    for name, form in (("albert", {"sharing": "all", "embedding_size": 16}), ("pre", {"norm": "pre"})):
        settings = ModelSettings.model_validate({"vocab_size": tokenizer.vocab_size, **SIZES, **form})
        save_model(
            tmp_path / name, build_network(settings, HeadSettings(writer=writer), 0), tiny_tokenizers["byte-bpe"]
        )
        counts = export_hf(tmp_path / name, tmp_path / f"{name}-out").counts
        assert counts["format"] == "remask"
        assert counts["no_class"] == ["a decoder in a family without one"]
        opened = open_model(tmp_path / f"{name}-out")
        assert opened.heads.writer == writer


def test_a_decoder_that_does_not_see_its_source_is_refused(
    both: tuple[Network, Any], tiny_tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    from remask.errors import DataError

    both[1].save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_bytes())
    config["decoder"]["add_cross_attention"] = False
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match="does not see its source"):
        open_model(tmp_path)
