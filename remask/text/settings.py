"""What the text stage can be told: where texts are, how they are read, cleaned, chosen and cut into sentences.

Read by the modules of text/ only. A source is a place (files, folders, globs, stdin, a Hugging Face data set, the
Python documentation on this machine); everything else holds for all sources of a run, with the few exceptions that
a source can say for itself. Not here: vocabulary and tokens (tokenizer/settings).
"""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator, model_validator

from remask.config import Config, setting, switch
from remask.tables.form import ColumnName, TableForm

Kind = Literal[
    "auto", "text", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "html", "wikipedia", "warc", "hf", "pydocs"
]  # fmt: skip
Layout = Literal["guess", "blank", "line", "file", "wikitext"]


class StoriesSettings(Config):
    """Keeps the documents that share most n-grams with seed sentences (the Stories corpus; Trinh and Le 2018)."""

    seeds: tuple[str, ...] = setting((), "The sentences that documents should be close to.", min_length=1)
    keep_fraction: float = setting(0.1, "The share of the source's documents that is kept, best first.", gt=0, le=1)


class SourceSettings(TableForm):
    """One place that text comes from."""

    name: str = setting("corpus", "Names the source in shards, counts and logs.", pattern=r"^[A-Za-z0-9_-]{1,64}$")
    paths: tuple[str, ...] = setting(
        (), "Files, folders, globs, - (stdin), hf:NAME or pydocs: (the documentation of this Python).", min_length=1
    )
    kind: Kind = setting("auto", "What the files hold; auto goes by their names.")
    layout: Layout | None = setting(None, "How plain text divides into documents; unset: as reading.layout says.")
    text_columns: tuple[ColumnName, ...] = setting(
        ("text",), "Columns whose texts are joined by a newline.", min_length=1
    )
    subset: str | None = setting(None, "For hf: the configuration of the data set.")
    hf_split: str = setting("train", "For hf: the split of the data set.")
    date_column: ColumnName | None = setting(None, "Column of a date, for date_from and date_to (WARC has its own).")
    date_from: str | None = setting(None, "First day, YYYY-MM-DD; records of other days are dropped.")
    date_to: str | None = setting(None, "Last day, YYYY-MM-DD.")
    languages: tuple[str, ...] | None = setting(None, "Unset: as language.keep says.")
    weight: float | None = setting(None, "Share of this source in the mix, by bytes, relative to the others'.", gt=0)
    max_bytes: int | None = setting(None, "Size cap: a sample of the documents, chosen by their hash, is kept.", gt=0)
    max_expansion: float = setting(200.0, "Compressed files that grow more than this many times are refused.", gt=1)
    stories: StoriesSettings | None = setting(None, "Keep only what is close to seed sentences.")

    @field_validator("date_from", "date_to")
    @classmethod
    def _is_day(cls, value: str | None) -> str | None:
        import datetime

        if value is not None:
            datetime.date.fromisoformat(value)
        return value


class ReadSettings(Config):
    """From bytes to texts."""

    layout: Layout = switch(
        "guess",
        "Plain text: a blank line ends a document, a line or a file is one, or WikiText's = Title = begins one.",
        effect="data",
    )
    lacking_columns: Literal["refuse", "drop"] = setting(
        "refuse", "Where most rows have none of the text columns: end with an error, or go on without them."
    )
    invalid_utf8: Literal["replace", "drop"] = switch(
        "replace", "Bytes that are not UTF-8: put U+FFFD in their place, or drop the document.", effect="data"
    )
    extractor: Literal["resiliparse", "trafilatura", "all"] = switch(
        "resiliparse", "Main text of web pages: the fast one, the precise one, or all visible text.", effect="data"
    )
    long_documents: Literal["cut", "drop"] = switch(
        "cut", "A document over max_document_bytes is cut into several, or dropped.", effect="data"
    )
    max_document_bytes: int = switch(
        8_000_000, "The most that is held in memory as one document.", effect="data", samples=[4_000], ge=100
    )


class CleanSettings(Config):
    """Normalisation, and the filters that look at one document alone."""

    unicode: Literal["none", "NFC", "NFKC"] = switch("NFC", "Unicode normalisation form.", effect="data")
    chinese: Literal["keep", "simplified", "traditional"] = switch(
        "keep",
        "Chinese characters as they come, or folded to one script by OpenCC (extra zh); Japanese text changes too.",
        effect="data",
    )
    controls: Literal["remove", "keep"] = switch(
        "remove", "Control characters other than tab and newline, and byte order marks inside the text.", effect="data"
    )
    whitespace: Literal["keep", "trim", "collapse"] = switch(
        "trim", "trim: no spaces at line ends; collapse: also one space for many, no empty lines.", effect="data"
    )
    wrapped_lines: Literal["keep", "join"] = switch(
        "join", "Lines that were wrapped at a fixed width are joined again within their paragraph.", effect="data"
    )
    min_chars: int = switch(1, "Shorter documents are dropped.", effect="data", samples=[200], ge=1)
    max_symbols: float = switch(
        0.5,
        "Drop where more than this share of the visible characters is neither letter nor digit.",
        effect="data",
        samples=[0.1, 1.0],
        gt=0,
        le=1,
    )
    max_repeated_lines: float = switch(
        0.5,
        "Drop where more than this share of the characters is in lines that stood there before.",
        effect="data",
        samples=[0.2, 1.0],
        gt=0,
        le=1,
    )
    max_compression: float = switch(
        12.0,
        "Drop where zlib shrinks the text more than this many times: one thing over and over (0: no check).",
        effect="data",
        samples=[0.0, 3.0],
        ge=0,
    )


class DedupSettings(Config):
    """Duplicates, over all sources of a run; the first one is kept."""

    exact: bool = switch(True, "Drop documents whose text was there before.", effect="data")
    near: Literal["off", "minhash"] = switch(
        "minhash", "Drop documents that nearly repeat an earlier one (MinHash over word n-grams).", effect="data"
    )
    threshold: float = switch(
        0.8, "Estimated share of common n-grams from which two documents are the same.", effect="data", samples=[0.5]
    )
    ngram: int = switch(5, "Words in an n-gram; a Chinese or Japanese character is a word.", effect="data", samples=[1])
    num_hashes: int = switch(
        128, "Length of the MinHash: finer with more, faster with fewer.", effect="data", samples=[64], multiple_of=16
    )

    @field_validator("threshold")
    @classmethod
    def _is_share(cls, value: float) -> float:
        if not 0.3 <= value <= 1:
            raise ValueError("must be between 0.3 and 1")
        return value

    @field_validator("ngram", "num_hashes")
    @classmethod
    def _is_small(cls, value: int) -> int:
        if not 1 <= value <= 1024:
            raise ValueError("must be between 1 and 1024")
        return value


class LanguageSettings(Config):
    """Which languages are kept."""

    keep: tuple[str, ...] = switch(
        (), "Codes such as en, zh; documents in others are dropped. Empty: all.", effect="data", samples=[["en"]]
    )
    min_prob: float = switch(0.5, "How sure the language must be.", effect="data", samples=[0.999999], ge=0, le=1)


# Languages with rules of their own in sentencex; a neighbour's or English ones serve the others.
_OWN_CODES = "am ar bg bn ca da de el en es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk"
_CODES = (
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en "
    "eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv "
    "ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne "
    "ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st "
    "su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"
)
OWN_ABBREVIATIONS, LANGUAGES = tuple(_OWN_CODES.split()), frozenset(_CODES.split())


class SentenceSettings(Config):
    """Where sentences start."""

    splitter: Literal["sentencex", "none"] = switch(
        "sentencex", "By rules for some 240 languages, or only at newlines.", effect="data"
    )
    language: str = switch(
        "en",
        "Whose abbreviations count, as a code of two letters; Chinese and others work with any.",
        effect="data",
        samples=["de"],
    )
    newline: Literal["boundary", "space"] = switch(
        "boundary", "A newline ends a sentence, or is a space like any other.", effect="data"
    )

    @field_validator("language")
    @classmethod
    def _is_known(cls, value: str) -> str:
        # The library takes any word and goes on with English rules.
        if value not in LANGUAGES:
            raise ValueError(
                f"{value!r} is no language code of two letters (ISO 639-1), such as {', '.join(OWN_ABBREVIATIONS)}, "
                "which have abbreviations of their own"
            )
        return value


class TextSettings(Config):
    """Raw files to documents."""

    sources: tuple[SourceSettings, ...] = setting((), "Where the text comes from; earlier ones win over duplicates.")
    reading: ReadSettings = ReadSettings()
    cleaning: CleanSettings = CleanSettings()
    language: LanguageSettings = LanguageSettings()
    dedup: DedupSettings = DedupSettings()
    sentences: SentenceSettings = SentenceSettings()
    heldout_fraction: float = switch(
        0.01,
        "Share of the documents held out, by their hash; above 0, a document or a passage at least.",
        effect="data",
        samples=[0.0, 0.2],
        ge=0,
        lt=1,
    )
    max_bytes: int | None = switch(
        None, "Size cap of the whole mix; each source gets its share.", effect="data", samples=[3_000], gt=0
    )
    shard_bytes: int = setting(64_000_000, "Text bytes in a shard.", ge=1000)

    @model_validator(mode="after")
    def _sources_fit_together(self) -> TextSettings:
        names = [source.name for source in self.sources]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"sources: the name {twice} is given twice; every source needs its own")
        weights = [source.weight is not None for source in self.sources]
        if any(weights) and not all(weights):
            missing = names[weights.index(False)]
            raise ValueError(f"sources: {missing} has no weight but others have; give all of them one, or none")
        return self
