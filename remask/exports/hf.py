"""A finished model -> a folder that transformers (4.57 and 5) loads in the class that its config names.

In: a run, checkpoint, model or Hugging Face folder. Out: config.json with every value explicit, model.safetensors in
the source's dtype, the tokenizer's files, a model card; for a bare encoder also the files of sentence-transformers.
Heads without a class there go into a side file that `remask.load` reads; a model without a class goes out in our own
layout, and says why. Not here: the names (model/interop_weights), ONNX and int8 (onnx).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from remask.artifacts import Artifact, publish
from remask.config import dump, fingerprint
from remask.errors import DataError
from remask.exports.card import model_card
from remask.model.foreign import TOKENIZER_FILES, ForeignFolder
from remask.model.interop import (
    CARRIED,
    PROMPTS_JSON,
    SIDE_JSON,
    SIDE_WEIGHTS,
    TASK_JSON,
    pooling_read_as,
    read_hf_folder,
    read_prompts,
)
from remask.model.interop_config import SpecialIds, family_for, no_class, write_config
from remask.model.interop_weights import export_kind, pairs, to_theirs
from remask.model.interop_writer import write_both
from remask.model.peft_files import ADAPTER, ADAPTER_FILES
from remask.model.settings import HeadSettings, ModelSettings, Pooling
from remask.model.store import (
    MODEL_JSON,
    TARGETS,
    WEIGHTS,
    Loaded,
    find_model,
    model_files,
    model_fingerprint,
    open_model,
    write_weights,
)
from remask.schema import Json, Values
from remask.tasks.kinds import StoredTask
from remask.tokenizer import Tokenizer, load_tokenizer

# Written by transformers 5 for tokenizers without a class of their own; 4.57 does not know it.
_UNLOADABLE_CLASS = "TokenizersBackend"


@dataclass(frozen=True)
class Source:
    """A finished model as plain tensors in the dtype of its file."""

    settings: ModelSettings
    heads: HeadSettings
    state: Mapping[str, Tensor]
    labels: tuple[str, ...] | None
    tokenizer_folder: Path | None
    carried: Mapping[str, Tensor]
    folder: Path

    @property
    def prompts(self) -> Mapping[str, str]:
        """What stands before texts to embed, by name."""
        stored = StoredTask.read(self.folder)
        return stored.prompts if stored is not None and stored.prompts else read_prompts(self.folder)

    @property
    def has_task(self) -> bool:
        """Whether what goes out still answers the task that its folder tells of: an embedding of texts needs no head,
        every other task does."""
        stored = StoredTask.read(self.folder)
        return stored is not None and (stored.kind.method == "embed" or self.heads != _without_heads(self.heads))


def open_source(model: Path | Loaded) -> Source:
    """The model that a path means, without turning its weights into another dtype."""
    if isinstance(model, Loaded):
        state = {name: tensor.detach() for name, tensor in model.network.state_dict().items()}
        return Source(model.settings, model.heads, state, model.labels, model.tokenizer_folder, {}, model.folder)
    folder = find_model(model)
    if not (folder / MODEL_JSON).is_file():
        return open_foreign(folder)
    loaded = open_model(folder, dtype=None)
    state = {name: tensor.detach() for name, tensor in loaded.network.state_dict().items()}
    carried = load_file(folder / CARRIED) if (folder / CARRIED).is_file() else {}
    return Source(loaded.settings, loaded.heads, state, loaded.labels, loaded.tokenizer_folder, carried, folder)


def open_foreign(folder: Path) -> Source:
    """A Hugging Face folder, with or without a tokenizer."""
    foreign = read_hf_folder(folder)
    tokenizer = folder if any((folder / name).is_file() for name in TOKENIZER_FILES) else None
    return Source(foreign.settings, foreign.heads, foreign.state, foreign.labels, tokenizer, foreign.carried, folder)


def open_with_tokenizer(
    model: Path | Loaded, embedding: bool = False, pooling: Pooling | None = None
) -> tuple[Source, Tokenizer]:
    """What goes out. `embedding`: only the encoder, with its `pooling` (None: as the model has)."""
    source = open_source(model)
    if source.tokenizer_folder is None:
        raise DataError(f"{source.folder}: has no tokenizer; an exported model needs one beside it")
    tokenizer = load_tokenizer(source.tokenizer_folder)
    if embedding:
        bare = _without_heads(source.heads, pooling)
        state = {name: tensor for name, tensor in source.state.items() if not name.startswith("heads.")}
        source = Source(source.settings, bare, state, None, source.tokenizer_folder, source.carried, source.folder)
    return source, tokenizer


def _without_heads(heads: HeadSettings, pooling: Pooling | None = None) -> HeadSettings:
    return HeadSettings(pooling=pooling or heads.pooling)


def export_hf(
    model: Path | Loaded,
    out: Path,
    *,
    card: Values | None = None,
    embedding: bool = False,
    pooling: Pooling | None = None,
    replace: bool = False,
) -> Artifact:
    """Write the folder. `embedding`: only the encoder, for sentence-transformers, with its `pooling` (None: as the
    model has); `card`: see model_card."""
    source, tokenizer = open_with_tokenizer(model, embedding, pooling)
    reasons = no_class(source.settings, source.heads)
    how = Publishing(card or {}, replace, None if replace else export_key(source, "hf", card, embedding))
    if reasons:
        return _publish_own(source, tokenizer, out, reasons, how)
    if source.heads.writer is not None:
        return _publish_writer(source, tokenizer, out, how)
    return _publish_hf(source, tokenizer, out, how)


@dataclass(frozen=True)
class Publishing:
    """What the card says, and whether a folder may take the place of another (`key`: see artifacts.publish)."""

    card: Values
    replace: bool
    key: str | None


def export_key(source: Source, *choices: object) -> str:
    """Of everything that an export is made of."""
    plain = json.loads(json.dumps(choices, default=str))
    return fingerprint([model_fingerprint(source.folder), dump(source.heads), plain])


def _publish_hf(source: Source, tokenizer: Tokenizer, out: Path, how: Publishing) -> Artifact:
    settings, heads = source.settings, source.heads
    family, kind = family_for(settings), export_kind(settings, heads)
    ids = SpecialIds(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    offset = ids.pad + 1 if family.startswith("roberta") else 0
    table = pairs(family, settings, heads, kind, offset)
    tensors = to_theirs(source.state, table, settings.position_offset)
    side = {name: tensor for name, tensor in source.carried.items() if name not in tensors}
    tensors |= {name: tensor for name, tensor in source.carried.items() if name in tensors}
    covered = {pair.ours for pair in table} if kind != "Model" else set()
    side |= {n: t for n, t in source.state.items() if n.startswith("heads.") and n not in covered}
    config = write_config(settings, heads, kind, ids, _dtype(source.state), source.labels)
    card = {**how.card, "prompts": source.prompts}

    def fill(aside: Path) -> Json:
        write_weights(aside / WEIGHTS, tensors)
        write_json(aside / "config.json", config)
        write_tokenizer(aside, source, tokenizer)
        if source.has_task:
            shutil.copyfile(source.folder / TASK_JSON, aside / TASK_JSON)
        if kind != "Model":
            _copy_adapter(source, aside)
        if side or (kind != "Model" and heads.pooling != pooling_read_as(family, kind, heads.pooling)):
            write_json(aside / SIDE_JSON, {"heads": dump(heads)})
        if side:
            write_weights(aside / SIDE_WEIGHTS, side)
        if kind == "Model":
            write_sentence_transformers(aside, source)
        text = model_card(config["architectures"][0], settings, heads, tokenizer, card, sorted(side))
        (aside / "README.md").write_text(text, encoding="utf-8")
        return {
            "format": "hf",
            "class": config["architectures"][0],
            "parameters": sum(tensor.numel() for tensor in tensors.values()),
            "side": sorted(side),
            "no_class": [],
        }

    inputs = {"model": str(source.folder.name)}
    return publish(out, "hf", fill, config=config, inputs=inputs, replace=how.replace, key=how.key)


def _publish_writer(source: Source, tokenizer: Tokenizer, out: Path, how: Publishing) -> Artifact:
    """An EncoderDecoderModel, with the settings that its `generate` writes with as the model was scored."""
    writer = source.heads.writer
    assert writer is not None
    targets = tokenizer if writer.vocab_size is None else load_tokenizer(source.folder / TARGETS)
    ids = tuple(SpecialIds(known.pad_id, known.bos_id, known.eos_id) for known in (tokenizer, targets))
    config, tensors = write_both(source.settings, writer, source.state, (ids[0], ids[1]), _dtype(source.state))
    stored = StoredTask.read(source.folder)

    def fill(aside: Path) -> Json:
        write_weights(aside / WEIGHTS, tensors)
        write_json(aside / "config.json", config)
        write_json(aside / "generation_config.json", _generation(config, stored))
        write_tokenizer(aside, source, tokenizer)
        _copy_task(source, aside)
        text = model_card("EncoderDecoderModel", source.settings, source.heads, tokenizer, how.card, [])
        (aside / "README.md").write_text(text, encoding="utf-8")
        parameters = sum(tensor.numel() for tensor in tensors.values())
        missing = ["sentences"] if stored is not None and stored.decode.by == "sentences" else []
        return {
            "format": "hf", "class": "EncoderDecoderModel", "parameters": parameters, "side": [], "no_class": [],
            "no_decoding": missing,
        }  # fmt: skip

    inputs = {"model": str(source.folder.name)}
    return publish(out, "hf", fill, config=config, inputs=inputs, replace=how.replace, key=how.key)


def _generation(config: Values, stored: StoredTask | None) -> Json:
    names = ("decoder_start_token_id", "eos_token_id", "bos_token_id", "pad_token_id")
    values: Json = {name: config[name] for name in names}
    if stored is None or stored.drafting is None:
        return values
    decode, max_length = stored.drafting
    values |= {"max_new_tokens": max_length, "no_repeat_ngram_size": decode.no_repeat}
    if decode.by == "sampling":
        chosen = {"do_sample": True, "temperature": decode.temperature, "top_k": decode.top_k, "top_p": decode.top_p}
        return values | chosen
    return values | {
        "num_beams": decode.num_beams,
        **({"length_penalty": decode.length_penalty} if decode.num_beams > 1 else {}),
    }


def _copy_task(source: Source, aside: Path) -> None:
    """How the model was taught, and the vocabulary that it writes with where that is another one."""
    has_head = source.heads != HeadSettings(pooling=source.heads.pooling)  # an export of the encoder alone has none
    if has_head and (source.folder / TASK_JSON).is_file():
        shutil.copyfile(source.folder / TASK_JSON, aside / TASK_JSON)
    if source.heads.writer is not None and source.heads.writer.vocab_size is not None:
        (aside / TARGETS).mkdir()
        copy_tokenizer_files(source.folder / TARGETS, aside / TARGETS)


def _copy_adapter(source: Source, aside: Path) -> None:
    """What a run that let little learn made for peft, over its start; merged weights are these."""
    if (adapter := ForeignFolder(source.folder).inner(ADAPTER)) is not None:
        (aside / ADAPTER).mkdir()
        for path in adapter.present(ADAPTER_FILES):
            shutil.copyfile(path, aside / ADAPTER / path.name)


def _publish_own(source: Source, tokenizer: Tokenizer, out: Path, reasons: list[str], how: Publishing) -> Artifact:
    """Our own layout, for a model that transformers has no class for."""
    card = {**how.card, "prompts": source.prompts}

    def fill(aside: Path) -> Json:
        write_own(aside, source)
        _copy_task(source, aside)
        _copy_adapter(source, aside)
        text = model_card("remask", source.settings, source.heads, tokenizer, card, [], reasons)
        (aside / "README.md").write_text(text, encoding="utf-8")
        parameters = sum(tensor.numel() for tensor in source.state.values())
        return {"format": "remask", "class": None, "parameters": parameters, "side": [], "no_class": reasons}

    return publish(out, "model", fill, config=dump(source.settings), replace=how.replace, key=how.key)


def write_own(folder: Path, source: Source) -> None:
    """model.json, weights, tokenizer/ and what is carried: our own layout, in the source's dtype."""
    for name, contents in model_files(source.settings, source.heads, None, source.labels).items():
        assert isinstance(contents, bytes)
        (folder / name).write_bytes(contents)
    write_weights(folder / WEIGHTS, source.state)
    if source.carried:
        write_weights(folder / CARRIED, source.carried)
    if source.tokenizer_folder is not None:
        (folder / "tokenizer").mkdir()
        copy_tokenizer_files(source.tokenizer_folder, folder / "tokenizer")
    write_prompts(folder, source.prompts)


def copy_tokenizer_files(source: Path, target: Path) -> list[str]:
    """The known files of a tokenizer, through the guarded reader, since the folder may be a stranger's."""
    files = ForeignFolder(source).present(TOKENIZER_FILES)
    for path in files:
        shutil.copyfile(path, target / path.name)
    return [path.name for path in files]


def write_tokenizer(folder: Path, source: Source, tokenizer: Tokenizer) -> None:
    """The source's own files where every version of transformers loads them, else ours; the length is the model's."""
    assert source.tokenizer_folder is not None
    config_path = folder / "tokenizer_config.json"
    names = copy_tokenizer_files(source.tokenizer_folder, folder)
    config = ForeignFolder(folder).json(config_path.name) if config_path.name in names else {}
    if not {"tokenizer.json", "tokenizer_config.json"} <= set(names) or (
        config.get("tokenizer_class", _UNLOADABLE_CLASS) == _UNLOADABLE_CLASS
    ):
        for name, content in tokenizer.files().items():
            (folder / name).write_bytes(content)
        config = json.loads(config_path.read_bytes())
    write_json(config_path, {**config, "model_max_length": source.settings.max_length})


def write_prompts(folder: Path, prompts: Mapping[str, str]) -> None:
    """Where sentence-transformers looks for them, and `remask.load` too; it puts none before a text unless asked."""
    if prompts:
        write_json(folder / PROMPTS_JSON, {"prompts": dict(prompts), "default_prompt_name": None})


def write_sentence_transformers(folder: Path, source: Source) -> None:
    settings, first = source.settings, source.heads.pooling == "first"
    write_prompts(folder, source.prompts)
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": settings.max_length, "do_lower_case": False})
    for path, _ in kinds[1:]:
        (folder / path).mkdir()
    pooling = {
        "word_embedding_dimension": settings.hidden_size,
        "pooling_mode_cls_token": first,
        "pooling_mode_mean_tokens": not first,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    write_json(folder / "1_Pooling" / "config.json", pooling)


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _dtype(state: Mapping[str, Tensor]) -> str:
    return str(state["encoder.embeddings.tokens.weight"].dtype).removeprefix("torch.")
