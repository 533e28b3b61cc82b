"""The README.md of an exported model: front matter that hubs read, then what a person should know.

In: the model's settings and what its maker says about it. Out: Markdown. Nothing is claimed that was not handed in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import yaml

from remask.model.settings import HeadSettings, ModelSettings
from remask.schema import Json, Values
from remask.tokenizer import Tokenizer
from remask.visible import as_markdown

_TASKS = {
    "EncoderDecoderModel": ("text2text-generation", "write"),
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
    card: Values,
    side: Sequence[str] = (),
    no_class: Sequence[str] = (),
) -> str:
    """`card` may have: title, description, language, license, base_model, datasets [...], data {...}, metrics {...},
    training {...}, limits [...], prompts {name: text}, and for the front matter results {dataset {name, type},
    metrics {name: number}}."""
    kind = next((kind for kind in _TASKS if class_name.endswith(kind)), "Model")
    if heads.writer is not None:
        kind = "EncoderDecoderModel"
    pipeline, method = _TASKS[kind]
    tags = ["remask", pipeline, *(["sentence-transformers"] if kind == "Model" and not no_class else [])]
    library = "remask" if no_class else "sentence-transformers" if kind == "Model" else "transformers"
    lines = _opening(library, pipeline, tags, card)
    lines += _shape(settings, heads, tokenizer)
    if no_class:
        lines += ["## No class in transformers", ""]
        lines += [f"transformers has no class for {reason}." for reason in no_class]
        lines += ["", "This folder is in the layout of remask, which loads it: `remask.load(folder)`.", ""]
    if side:
        lines += [f"`remask_heads.safetensors` holds what {class_name} has no place for: {', '.join(side)}.", ""]
    lines += _told(card)
    prompts = {name: text for name, text in card.get("prompts", {}).items() if name.isidentifier()}
    lines += _usage(class_name, kind, method, tokenizer, bool(no_class), prompts)
    return "\n".join(lines) + "\nMade with remask.\n"


def graph_card(
    settings: ModelSettings,
    heads: HeadSettings,
    tokenizer: Tokenizer,
    card: Values,
    results: Values,
    no_class: Sequence[str] = (),
) -> str:
    """The card of an ONNX folder: what was measured when it was made, and code that runs as it stands."""
    pipeline = _TASKS[_kind_of(heads)][0]
    form = "int8" if results["format"] == "int8" else "fp32"
    lines = _opening("onnxruntime", pipeline, ["remask", pipeline, "onnx", *(["int8"] if form == "int8" else [])], card)
    lines += [f"`{results['file']}` is this model as an ONNX graph ({form}, {results['bytes'] / 1e6:.1f} MB).", ""]
    if no_class:
        reasons = "; ".join(no_class)
        lines += [f"transformers has no class for it ({reasons}); the graph needs none.", ""]
    if results["left_out"]:
        lines += [f"The graph has no output for these heads of the model: {', '.join(results['left_out'])}.", ""]
    lines += _shape(settings, heads, tokenizer)
    lines += _measured(results)
    lines += _told(card)
    lines += ["## Use", "", "In this folder, with `pip install onnxruntime tokenizers numpy`:", "", "```python"]
    lines += [*snippet(settings, heads, tokenizer, results), "```", ""]
    lines += ["Texts are padded on the right; `attention_mask` is 1 at real tokens and 0 at padding.", ""]
    return "\n".join(lines) + "\nMade with remask.\n"


def _kind_of(heads: HeadSettings) -> str:
    """The class that the graph's outputs are those of."""
    kinds = {
        "ForSequenceClassification": heads.num_classes is not None,
        "ForTokenClassification": heads.num_tags is not None,
        "ForQuestionAnswering": heads.span,
        "ForMultipleChoice": heads.choice,
        "ForMaskedLM": heads.masked_lm,
    }
    return next((kind for kind, present in kinds.items() if present), "Model")


def _measured(results: Values) -> list[str]:
    lines = ["## Measured when it was made", ""]
    lines += [
        f"- fp32 graph and source: largest difference of any output {results['largest_difference']:.2g} "
        f"(bound {results['tolerance']:g}) on {results['sentences']} real texts, alone, together and padded."
    ]
    if results["format"] == "int8":
        agreement = results["agreement"]
        lines += [
            f"- int8 and source: {agreement['what']} {agreement['value']:.4f} "
            f"on {agreement['sentences']} real texts, largest "
            f"difference of any output {results['int8_difference']:.2g}; {results['fp32_bytes'] / 1e6:.1f} MB became "
            f"{results['bytes'] / 1e6:.1f} MB."
        ]
        if results["fp32_parts"]:
            lines += [f"- Kept in fp32: {', '.join(results['fp32_parts'])}."]
    if "scores" in results:
        scores = results["scores"]
        name, bound = as_markdown(str(scores["set"])), f"a drop of {scores['max_drop']:g}"
        lines += ["", f"On {name} ({scores['examples']:,} examples; bound on {scores['metric']}: {bound}):"]
        lines += ["", "| | source | int8 |", "|---|---|---|"]
        lines += [
            f"| {name} | {before:.4f} | {scores['after'][name]:.4f} |" for name, before in scores["before"].items()
        ]
    elif results["format"] == "int8":
        lines += ["- No set with labels was given (`--eval`), so no accuracy was measured."]
    return [*lines, ""]


def snippet(settings: ModelSettings, heads: HeadSettings, tokenizer: Tokenizer, results: Values) -> list[str]:
    """Python that runs in the folder and prints an answer."""
    names = tokenizer.special_names
    labelled = heads.num_tags is not None or (heads.num_classes is not None and not _is_regression(heads))
    texts, answer = _question(heads, names["mask"], tokenizer.mask_id)
    lines = ["import json", "from pathlib import Path", ""] if labelled else []
    lines += ["import numpy as np", "import onnxruntime", "from tokenizers import Tokenizer", ""]
    lines += [
        'tokenizer = Tokenizer.from_file("tokenizer.json")',
        f"tokenizer.enable_truncation({settings.max_length})",
    ]
    lines += [f'tokenizer.enable_padding(pad_id={tokenizer.pad_id}, pad_token="{names["pad"]}")']
    lines += [f'session = onnxruntime.InferenceSession("{results["file"]}", providers=["CPUExecutionProvider"])']
    lines += ['labels = json.loads(Path("config.json").read_text(encoding="utf-8"))["id2label"]'] if labelled else []
    lines += ["", *texts, "rows = tokenizer.encode_batch(texts)", "inputs = {"]
    fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    lines += [f'    "{name}": np.array([row.{fields[name]} for row in rows]),' for name in results["inputs"]]
    return [*lines, "}", *answer]


def _is_regression(heads: HeadSettings) -> bool:
    return heads.num_classes == 1 and not heads.multilabel


def _question(heads: HeadSettings, mask: str, mask_id: int) -> tuple[list[str], list[str]]:
    """(lines that make `texts`, lines that read the answer out of the outputs)."""
    texts = ['texts = ["A text.", "Another, longer text."]']
    run = 'logits = session.run(["logits"], inputs)[0]'
    if heads.num_classes is not None:
        if _is_regression(heads):
            return texts, [run, "print(logits[:, 0])"]
        if heads.multilabel:
            return texts, [run, "print([[labels[str(i)] for i in np.flatnonzero(row > 0)] for row in logits])"]
        return texts, [run, "print([labels[str(i)] for i in logits.argmax(-1)])"]
    if heads.num_tags is not None:
        reading = ["for row, best in zip(rows, logits.argmax(-1)):"]
        reading += ["    marked = zip(row.tokens, best, row.special_tokens_mask)"]
        return texts, [
            run,
            *reading,
            "    print([(token, labels[str(tag)]) for token, tag, special in marked if not special])",
        ]
    if heads.span:
        reading = ['start, end = session.run(["start_logits", "end_logits"], inputs)']
        reading += ["outside = np.array([number != 1 for number in rows[0].sequence_ids])"]
        reading += ["first = np.where(outside, -np.inf, start[0]).argmax()"]
        reading += ["last = first + np.where(outside, -np.inf, end[0])[first:].argmax()"]
        reading += ["print(texts[0][1][rows[0].offsets[first][0] : rows[0].offsets[last][1]])"]
        return ['texts = [("Who wrote it?", "Mary Shelley wrote it in 1818.")]'], reading
    if heads.choice:
        asked = ['texts = [("It rained.", "So we stayed in."), ("It rained.", "So it was dry.")]']
        example = "one = {name: array[None] for name, array in inputs.items()}  # one question of two choices"
        return asked, [example, 'logits = session.run(["logits"], one)[0]', "print(texts[logits[0].argmax()][1])"]
    if heads.masked_lm:
        place = f"place = rows[0].ids.index({mask_id})"
        return [f'texts = ["The answer is {mask}."]'], [
            run,
            place,
            "print(tokenizer.decode([logits[0, place].argmax()]))",
        ]
    reading = ['states = session.run(["last_hidden_state"], inputs)[0]']
    if heads.pooling == "mean":
        reading += ['weights = inputs["attention_mask"][:, :, None]']
        reading += ["vectors = (states * weights).sum(1) / weights.sum(1)"]
    else:
        reading += ["vectors = states[:, 0]"]
    reading += ["vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)", "print(vectors @ vectors.T)"]
    return texts, reading


def _opening(library: str, pipeline: str, tags: Sequence[str], card: Values) -> list[str]:
    """Front matter, title and description."""
    front: Json = {"library_name": library, "pipeline_tag": pipeline, "tags": list(tags)}
    front |= {key: card[key] for key in ("language", "license", "base_model", "datasets") if card.get(key)}
    if scored := card.get("results"):
        front |= {"metrics": list(scored["metrics"]), "model-index": [_index(scored, pipeline, card)]}
    lines = ["---", yaml.safe_dump(front, sort_keys=False, allow_unicode=True).rstrip(), "---", ""]
    lines += [f"# {as_markdown(str(card.get('title', 'An encoder made with remask')))}", ""]
    return lines + ([as_markdown(str(card["description"])), ""] if card.get("description") else [])


def _index(scored: Values, pipeline: str, card: Values) -> Json:
    """The figures as hubs read them."""
    figures = [{"type": name, "name": name, "value": round(value, 4)} for name, value in scored["metrics"].items()]
    result = {"task": {"type": pipeline}, "dataset": dict(scored["dataset"]), "metrics": figures}
    return {"name": str(card.get("title", "remask")), "results": [result]}


def _told(card: Values) -> list[str]:
    """Tables that the maker handed in."""
    lines: list[str] = []
    for name in ("data", "metrics", "training"):
        if card.get(name):
            lines += [f"## {name.capitalize()}", "", "| | |", "|---|---|"]
            lines += [f"| {_cell(key)} | {_cell(value)} |" for key, value in card[name].items()]
            lines += [""]
    if card.get("limits"):
        lines += ["## Limits", "", *(f"- {as_markdown(str(limit))}" for limit in card["limits"]), ""]
    return lines


def _shape(settings: ModelSettings, heads: HeadSettings, tokenizer: Tokenizer) -> list[str]:
    rows: Json = {
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


def _usage(
    class_name: str, kind: str, method: str, tokenizer: Tokenizer, own: bool, prompts: Mapping[str, str]
) -> list[str]:
    mask = tokenizer.special_names["mask"]
    example = _EXAMPLES.get(method, '["A text.", "Another."]').replace("MASK", mask)
    lines = ["## Use", "", "```python", "import remask", "", 'model = remask.load("this-folder")']
    asked = [f'{example}, prompt="{name}"' for name in prompts] if method == "embed" else []
    lines += [*(f"model.{method}({words})" for words in asked or [example]), "```", ""]
    if asked:
        lines += ["It was taught to read a text before each of its inputs, by the side they are on:", ""]
        lines += ["| prompt | text |", "|---|---|"]
        lines += [f"| {as_markdown(name)} | {as_markdown(json.dumps(text))} |" for name, text in prompts.items()]
        lines += [""]
    if not own and kind == "Model":
        lines += ["```python", "from sentence_transformers import SentenceTransformer", ""]
        lines += ['model = SentenceTransformer("this-folder")']
        named = [f'{name} = model.encode({example}, prompt_name="{name}")' for name in prompts]
        lines += named or [f"vectors = model.encode({example})"]
        first, last = (next(iter(prompts)), list(prompts)[-1]) if prompts else ("vectors", "vectors")
        lines += [f"print(model.similarity({first}, {last}))", "```", ""]
    if not own:
        lines += ["```python", f"from transformers import AutoTokenizer, {class_name}", ""]
        lines += ['tokenizer = AutoTokenizer.from_pretrained("this-folder")']
        lines += [f'model = {class_name}.from_pretrained("this-folder")']
        if kind == "EncoderDecoderModel":
            lines += [f'inputs = tokenizer({example}, padding=True, return_tensors="pt")']
            lines += ["written = model.generate(inputs.input_ids, attention_mask=inputs.attention_mask)"]
            lines += ["print(tokenizer.batch_decode(written, skip_special_tokens=True))"]
        lines += ["```", ""]
    return lines


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return as_markdown(str(value))
