"""Documents -> vocabulary; text <-> ids."""

from remask.tokenizer.codec import Tokenizer, load_tokenizer

__all__ = ["Tokenizer", "load_tokenizer"]
