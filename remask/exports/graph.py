"""A network -> an ONNX graph for rows of any number and length, and running one in ONNX Runtime.

In: a model's settings, heads and weights. Out: a file whose inputs and outputs have the names that transformers and
optimum use. The graph is traced from the encoder's and the heads' own modules; only the view of a batch is another:
what is padding comes from `attention_mask`, nothing is unpadded or cut into blocks, so no size is fixed.
Not here: the folder around it (onnx), comparing it with its source (answer.agreement), int8 (quantize).
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from remask.errors import ConfigError, needs_extra
from remask.model.attention import Sight
from remask.model.encoder import Encoder, Positions, Rows, View
from remask.model.network import Network
from remask.model.noise import Noise
from remask.model.outputs import named_outputs
from remask.model.settings import HeadSettings, ModelSettings
from remask.schema import Batch

# Shapes: B rows, S positions, D width of a state, Q questions of C choices.

Array = np.ndarray
MAX_FILE_BYTES = 1 << 31  # of a protocol buffer; larger weights go into a file beside it


def need(name: str) -> ModuleType:
    """A package of the extra, or how to get it."""
    import importlib

    with needs_extra("onnx", f"{name} is not installed"):
        return importlib.import_module(name)


# ------------------------------------------------------------------------------------- the network as it is traced


class _Grid(Rows):
    """Every position is computed, in rows whose number is not known yet."""

    def pad(self, x_TD: torch.Tensor) -> torch.Tensor:
        return x_TD.unflatten(0, (-1, self.num_positions))


@dataclass
class _MaskedSight(Sight):
    """All keys at once, without those that are padding."""

    padding_BS: torch.Tensor | None = None

    def block(self, window: int | None) -> int | None:
        return None

    def hidden(self, window: int | None) -> torch.Tensor:
        assert self.padding_BS is not None
        padding_BNXQL = self.padding_BS[:, None, None, None, :]
        others = super().hidden(window)
        return padding_BNXQL if others is None else padding_BNXQL | others

    def behind(self, prefix_length: int) -> Sight:
        assert self.padding_BS is not None
        behind: Any = super().behind(prefix_length)
        return replace(behind, padding_BS=nn.functional.pad(self.padding_BS, (prefix_length, 0)))


class _TracedEncoder(Encoder):
    """The encoder on rows whose padding is where `document_ids_BS` is -1."""

    def forward(
        self, batch: Batch, noise: Noise | None = None, causal: bool = False, wanted_M: Positions | None = None
    ) -> torch.Tensor:
        assert wanted_M is None, "a graph has all states"
        hidden_BSD = super().forward(batch, noise, causal)
        assert batch.document_ids_BS is not None
        return hidden_BSD.masked_fill((batch.document_ids_BS < 0)[:, :, None], 0.0)

    def view(self, batch: Batch, noise: Noise | None, causal: bool) -> View:
        assert batch.document_ids_BS is not None
        padding_BS: torch.Tensor = batch.document_ids_BS < 0
        size = batch.input_ids_BS.shape[1]
        positions_BS = ((~padding_BS).long().cumsum(1) - 1).clamp(0, self.settings.max_length - 1)
        sight = _MaskedSight([size], size, padding_BS.device, causal, padding_BS=padding_BS)
        return View(_Grid([size], [size], size, None), sight, positions_BS)


class _TracedNetwork(Network):
    def __init__(self, settings: ModelSettings, heads: HeadSettings) -> None:
        super().__init__(settings, heads)
        self.encoder = _TracedEncoder(settings)


class _Answering(nn.Module):
    """Named inputs -> named outputs, as a class of transformers has them."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        network = self.network
        num_choices = None
        if network.head_settings.choice:
            num_choices = input_ids.shape[1]
            input_ids, attention_mask = input_ids.flatten(0, 1), attention_mask.flatten(0, 1)
            token_type_ids = None if token_type_ids is None else token_type_ids.flatten(0, 1)
        batch = Batch(input_ids, attention_mask.sum(1), token_type_ids, document_ids_BS=attention_mask - 1)
        outputs = named_outputs(network, network.encode(batch), batch.lengths_B)
        if num_choices is not None:
            outputs = {"logits": outputs["logits"].unflatten(0, (-1, num_choices))}
        return outputs


def left_out(heads: HeadSettings) -> list[str]:
    """Heads that the graph has no output for: it answers one kind of question."""
    task = heads.num_classes is not None or heads.num_tags is not None or heads.span or heads.choice
    return [name for name in ("masked_lm", "sentence") if getattr(heads, name) and (task or name == "sentence")]


# ----------------------------------------------------------------------------------------------------- writing


def write_graph(
    path: Path, settings: ModelSettings, heads: HeadSettings, state: Mapping[str, torch.Tensor]
) -> list[str]:
    """Trace the network in fp32 and write it; the names of its outputs."""
    need("onnxscript")
    need("onnx")
    if settings.attention_kind == "hashed":
        raise ConfigError("model.attention_kind = hashed: its buckets follow from the input, which a graph cannot hold")
    plain = settings.model_copy(update={"attention_kernel": "sdpa", "unpad": False})
    with torch.device("meta"):
        network = _TracedNetwork(plain, heads)
    network.load_state_dict({name: tensor.float() for name, tensor in state.items()}, assign=True)
    module = _Answering(network).eval().requires_grad_(False)
    shape = (2, 3, 8) if heads.choice else (2, 8)
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if settings.num_segments > 1 else [])]
    axes = ("batch", "choices", "length") if heads.choice else ("batch", "length")
    inputs = {"input_ids": torch.full(shape, 1), "attention_mask": torch.ones(shape, dtype=torch.long)}
    inputs |= {"token_type_ids": torch.zeros(shape, dtype=torch.long)} if "token_type_ids" in names else {}
    inputs["attention_mask"][..., 0, 5:] = 0
    with torch.no_grad(), _quiet():
        outputs = list(module(**inputs))
        program = torch.onnx.export(
            module, (), kwargs=inputs, dynamo=True, input_names=names, output_names=outputs, verbose=False,
            dynamic_shapes={name: dict(enumerate(axes)) for name in names},
        )  # fmt: skip
        assert program is not None
        size = sum(tensor.numel() * 4 for tensor in state.values())
        program.save(path, external_data=size > MAX_FILE_BYTES * 0.9)
    return outputs


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What torch.onnx says about packages that are not needed here and about its own future."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


# ----------------------------------------------------------------------------------------------------- running


class Graph:
    """An ONNX file in ONNX Runtime: numpy batches in, outputs by name."""

    def __init__(self, path: Path, *, num_threads: int = 0) -> None:
        runtime = need("onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = num_threads or torch.get_num_threads()
        self._session: Any = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = {entry.name: entry.shape for entry in self._session.get_inputs()}
        self.outputs = [entry.name for entry in self._session.get_outputs()]

    def __call__(self, batch: Batch) -> dict[str, Array]:
        ids_BS = np.asarray(batch.input_ids_BS, np.int64)
        mask_BS = (np.arange(ids_BS.shape[1]) < np.asarray(batch.lengths_B)[:, None]).astype(np.int64)
        segments_BS = np.zeros_like(ids_BS) if batch.segment_ids_BS is None else np.asarray(batch.segment_ids_BS)
        given = {"input_ids": ids_BS, "attention_mask": mask_BS, "token_type_ids": segments_BS}
        given = {name: given[name] for name in self.inputs}
        choices = len(self.inputs["input_ids"]) == 3
        if choices:  # every row a question of one choice: scores do not depend on the other choices
            given = {name: array[:, None] for name, array in given.items()}
        outputs = dict(zip(self.outputs, self._session.run(None, given), strict=True))
        return {"logits": outputs["logits"][:, 0]} if choices else outputs
