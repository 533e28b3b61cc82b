"""`remask index` that is killed ends, when it is given again, like one that was not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .zygote import Zygote

NUM_DOCS = 2_600  # more than two pieces of vectors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizers: dict[str, Path]) -> Path:
    from remask.model.network import build_network
    from remask.model.settings import HeadSettings, ModelSettings
    from remask.model.store import save_model
    from remask.tokenizer import load_tokenizer

    made = tmp_path_factory.mktemp("index-kills")
    size = load_tokenizer(tiny_tokenizers["byte-bpe"]).vocab_size
    settings = ModelSettings(vocab_size=size, num_layers=1, hidden_size=16, num_heads=2, ffn_size=16, max_length=32)
    save_model(made / "model", build_network(settings, HeadSettings(), 1), tiny_tokenizers["byte-bpe"])
    rows = ({"id": i, "text": f"The {'fox' if i % 3 else 'dog'} {i}."} for i in range(NUM_DOCS))
    (made / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("after", ["parts/000000/facts.json", "vectors/000000-000001024", "new/segment-0000/vectors"])
def test_a_killed_index_goes_on_to_the_same_bytes(folder: Path, zygote: Zygote, after: str) -> None:
    def command(out: Path) -> list[str | Path]:
        return ["index", folder / "model", folder / "docs.jsonl", "--first-pass", "int8", "--out", out]

    if not (folder / "whole").exists():
        whole = zygote.run(*command(folder / "whole"))
        assert whole.returncode == 0, whole.stderr
    out = folder / f"cut-{after.count('/')}-{len(after)}"
    killed = zygote.run(*command(out), signals=[(0, "SIGKILL")], wait_for=out.with_name(f".{out.name}.work") / after)
    assert killed.returncode == -9
    assert not out.exists()
    refused = zygote.run("search", out, "fox")
    assert refused.returncode == 66
    again = zygote.run(*command(out))
    assert again.returncode == 0, again.stderr
    assert "going on from where an earlier run stopped" in again.stderr
    assert contents(out) == contents(folder / "whole")
    assert not list(folder.glob(".*")), "nothing is left behind"
