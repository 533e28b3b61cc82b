"""Whether a run may go on where another one stopped: what makes both the same run, and what the user lets differ.

In: the identity (plain values: config, fingerprints of data and tokenizer) that a checkpoint was made with and that of
the run now. Out: a refusal that shows every difference, or the differences that `--allow-change` names. Not here: what
belongs to an identity (the commands).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from remask.errors import ConfigError

Change = tuple[str, object, object]  # key, value before, value now


def is_allowed(key: str, allow_change: Iterable[str]) -> bool:
    """A word allows its key, and all below it."""
    return any(key == word or key.startswith(f"{word}.") for word in allow_change)


def shown(changes: Iterable[Change]) -> list[str]:
    return [f"{key}: {json.dumps(before)} -> {json.dumps(now)}" for key, before, now in changes]


def refuse(checkpoint: Path, changes: Sequence[Change], allow_change: Sequence[str]) -> None:
    """Every change must be allowed by name."""
    refused = [change for change in changes if not is_allowed(change[0], allow_change)]
    if refused:
        keys = ",".join(dict.fromkeys(key for key, _, _ in refused))
        raise ConfigError(
            f"{checkpoint}: was made by another run; choose another --out, or go on all the same with "
            f"--allow-change {keys}",
            *shown(refused),
        )
