"""Special words in a text stay text, for every kind of model.

The tokenizers library looks for special tokens in a text before its model sees it, and can be told not to. But many
vocabularies (Unigram's above all) hold `<mask>` or `</s>` as ordinary pieces of the model too, which then emits the
special id for the word. Here the model that encodes gets these entries under names that no text holds: ids, scores
and everything else stay. Not here: the vocabulary under its real names, for files and decoding (codec.py).
"""

from __future__ import annotations

from collections.abc import Collection

from remask.schema import Json, Values

MARK = "\ufdd0"  # a code point that Unicode promises never to make a character


def without_special_words(description: Values, names: Collection[str]) -> Json | None:
    """The content of a tokenizer.json whose model cannot emit the ids of `names` for a text that says them; None where
    the given one cannot either. The token for what is unknown stays what it is: only its name is no text."""
    model = dict(description.get("model") or {})
    added = list(description.get("added_tokens") or ())
    entries = model.get("vocab") or {}
    held = set(names) & ({piece[0] for piece in entries} if isinstance(entries, list) else entries.keys())
    ordinary = any(token["content"] in names and not token["special"] for token in added)
    if not ordinary and (not held or not _can_say(model, held)):
        return None
    new = {name: f"{MARK}{name}{MARK}" for name in held}
    if isinstance(entries, list):
        model["vocab"] = [[new.get(piece, piece), score] for piece, score in entries]
    else:
        model["vocab"] = {new.get(name, name): number for name, number in entries.items()}
    if model.get("unk_token") in new:
        model["unk_token"] = new[model["unk_token"]]
    if "merges" in model:
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [pair for pair in merges if not held & {*pair, "".join(pair)}]
    changed = [
        {**token, "content": new.get(token["content"], token["content"]), "special": True}
        if token["content"] in names
        else token
        for token in added
    ]
    return {**description, "model": model, "added_tokens": changed}


def _can_say(model: Values, held: Collection[str]) -> bool:
    """A BPE says only single characters and what its merges make, unless it looks whole words up first."""
    if model.get("type") != "BPE":
        return True
    if model.get("ignore_merges") or any(len(name) == 1 for name in held):
        return True
    merges = (merge.replace(" ", "") if isinstance(merge, str) else "".join(merge) for merge in model["merges"])
    return not set(held).isdisjoint(merges)
