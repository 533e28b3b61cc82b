"""The README.md of an exported model: front matter that hubs read, then what a person should know.

In: the model's settings and what its maker says about it. Out: Markdown. Nothing is claimed that was not handed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from remask.model.settings import HeadSettings, ModelSettings
from remask.tokenizer import Tokenizer

_TASKS = {
    "ForMaskedLM": ("fill-mask", "fill_mask"),
    "ForPreTraining": ("fill-mask", "fill_mask"),
    "ForSequenceClassification": ("text-classification", "classify"),
    "ForTokenClassification": ("token-classification", "tag"),
    "ForQuestionAnswering": ("question-answering", "answer"),
    "ForMultipleChoice": ("multiple-choice", "choose"),
    "Model": ("feature-extraction", "embed"),
}
_EXAMPLES = {
    "fill_mask": '"The answer is MASK."',
    "answer": '"Who wrote it?", "Mary Shelley wrote it in 1818."',
    "choose": '"It rained.", ["So we stayed in.", "So it was dry."]',
}


def model_card(
    class_name: str,
    settings: ModelSettings,
    heads: HeadSettings,
    tokenizer: Tokenizer,
    card: Mapping[str, Any],
    side: Sequence[str] = (),
    no_class: Sequence[str] = (),
) -> str:
    """`card` may have: title, description, language, license, datasets [...], metrics {...}, training {...}."""
    kind = next((kind for kind in _TASKS if class_name.endswith(kind)), "Model")
    pipeline, method = _TASKS[kind]
    front: dict[str, Any] = {
        "library_name": "remask" if no_class else "transformers",
        "pipeline_tag": pipeline,
        "tags": ["remask", pipeline, *(["sentence-transformers"] if kind == "Model" and not no_class else [])],
    }
    front |= {key: card[key] for key in ("language", "license", "datasets") if card.get(key)}
    lines = ["---", yaml.safe_dump(front, sort_keys=False, allow_unicode=True).rstrip(), "---", ""]
    lines += [f"# {card.get('title', 'An encoder made with remask')}", ""]
    if card.get("description"):
        lines += [str(card["description"]), ""]
    lines += _shape(settings, heads, tokenizer)
    if no_class:
        lines += ["## No class in transformers", ""]
        lines += [f"transformers has no class for {reason}." for reason in no_class]
        lines += ["", "This folder is in the layout of remask, which loads it: `remask.load(folder)`.", ""]
    if side:
        lines += [f"`remask_heads.safetensors` holds what {class_name} has no place for: {', '.join(side)}.", ""]
    for name in ("metrics", "training"):
        if card.get(name):
            lines += [f"## {name.capitalize()}", "", "| | |", "|---|---|"]
            lines += [f"| {key} | {_cell(value)} |" for key, value in card[name].items()]
            lines += [""]
    lines += _usage(class_name, kind, method, tokenizer, bool(no_class))
    return "\n".join(lines) + "\nMade with remask.\n"


def _shape(settings: ModelSettings, heads: HeadSettings, tokenizer: Tokenizer) -> list[str]:
    rows: dict[str, Any] = {
        "layers": settings.num_layers,
        "hidden size": settings.hidden_size,
        "heads": settings.num_heads,
        "FFN size": settings.ffn_size,
        "longest input": f"{settings.max_length} tokens",
        "vocabulary": f"{settings.vocab_size:,} ({tokenizer.kind})",
    }
    if heads.num_classes or heads.num_tags:
        rows["labels"] = heads.num_classes or heads.num_tags
    return ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items()), ""]


def _usage(class_name: str, kind: str, method: str, tokenizer: Tokenizer, own: bool) -> list[str]:
    mask = tokenizer.special_names["mask"]
    example = _EXAMPLES.get(method, '["A text.", "Another."]').replace("MASK", mask)
    lines = ["## Use", "", "```python", "import remask", "", 'model = remask.load("this-folder")']
    lines += [f"model.{method}({example})", "```", ""]
    if not own:
        lines += ["```python", f"from transformers import AutoTokenizer, {class_name}", ""]
        lines += ['tokenizer = AutoTokenizer.from_pretrained("this-folder")']
        lines += [f'model = {class_name}.from_pretrained("this-folder")', "```", ""]
    return lines


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("|", "\\|").replace("\n", " ")
