"""A preparation as one frozen object: what `remask prepare` reads from its file. No torch, nothing heavy."""

from __future__ import annotations

from pydantic import model_validator

from remask.config import Config, setting
from remask.text.settings import TextSettings
from remask.tokenizer.settings import TokenizerSettings
from remask.workers import Engine


class PrepareRun(Config):
    """A whole preparation."""

    seed: int = setting(0, "The one seed that everything random follows from.", ge=0)
    text: TextSettings = TextSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    keep_documents: bool = setting(False, "Keep the cleaned documents too, in OUT/documents.")
    workers: int = setting(0, "Processes (with ray: tasks at a time at least); 0: one for each core.", ge=0)
    engine: Engine = setting("local", "Processes of this machine, or the Ray cluster of RAY_ADDRESS.")

    @model_validator(mode="after")
    def _newlines_fit(self) -> PrepareRun:
        if self.text.sentences.newline == "space" and self.tokenizer.newlines == "none":
            raise ValueError("text.sentences.newline = space needs tokenizer.newlines = space or token")
        return self
