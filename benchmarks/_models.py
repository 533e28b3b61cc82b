"""A RoBERTa in Hugging Face layout with a real byte-level vocabulary, and texts to feed it: for start and latency.

Weights are random (speed does not depend on them); the vocabulary is a given tokenizer.json, or one that is trained on
the sources of Python's standard library, whose words the texts are made of too.
"""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
from _pretraining import SIZES

ROBERTA = Path(__file__).resolve().parents[2] / "shared" / "data" / "bpe" / "roberta.tokenizer.json"


def library_text(num_files: int = 150) -> str:
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:num_files]
    return "\n".join(path.read_text(encoding="utf-8", errors="ignore") for path in files)


def make_tokenizer(folder: Path, given: Path | None) -> Any:
    """Saved for both sides; gives the peer's object."""
    from tokenizers import ByteLevelBPETokenizer, Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    names = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
    if given is None and ROBERTA.exists():
        given = ROBERTA
    if given is not None:
        backend = Tokenizer.from_file(str(given))
    else:
        trained = ByteLevelBPETokenizer()
        specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        trained.train_from_iterator(library_text().splitlines(), 16_384, special_tokens=specials, show_progress=False)
        backend = Tokenizer.from_str(trained.to_str())
    ends = (("</s>", backend.token_to_id("</s>")), ("<s>", backend.token_to_id("<s>")))
    backend.post_processor = processors.RobertaProcessing(*ends, trim_offsets=True, add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, cls_token="<s>", sep_token="</s>", model_max_length=512,
        **{f"{role}_token": name for role, name in names.items()},
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    return tokenizer


def make_model(folder: Path, size: str, kind: str, tokenizer_file: Path | None = None) -> Any:
    """`kind`: masked-lm or classify (2 labels). Gives the tokenizer."""
    import torch
    from transformers import RobertaConfig, RobertaForMaskedLM, RobertaForSequenceClassification

    tokenizer = make_tokenizer(folder, tokenizer_file)
    layers, width, heads, ffn, _ = SIZES[size]
    config = RobertaConfig(
        vocab_size=len(tokenizer), num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads,
        intermediate_size=ffn, max_position_embeddings=514, layer_norm_eps=1e-5, type_vocab_size=1, num_labels=2,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    kinds = {"masked-lm": RobertaForMaskedLM, "classify": RobertaForSequenceClassification}
    kinds[kind](config).save_pretrained(folder)
    return tokenizer


def make_texts(tokenizer: Any, lengths: list[int]) -> list[str]:
    """Texts of exactly so many tokens, the two marks included."""
    generator = np.random.default_rng(0)
    words = np.array(sorted(set(re.findall(r"\b[a-z]{2,9}\b", library_text(40)))))
    texts = []
    for length in lengths:
        text = ""
        while (count := len(tokenizer(text)["input_ids"])) < length:
            word = f" {generator.choice(words)}"
            fits = len(tokenizer(text + word)["input_ids"]) <= length
            text += word if fits else " a" * (length - count)
        texts.append(text)
    assert [len(ids) for ids in tokenizer(texts)["input_ids"]] == lengths
    return texts


def mixed_lengths(count: int, mean: int) -> list[int]:
    """Lengths spread as those of sentences: a gamma distribution."""
    generator = np.random.default_rng(1)
    return np.clip(generator.gamma(2.2, mean / 2.2, count).astype(int), 6, 256).tolist()
