"""What each named task is: about eight lines of data, no code.

kind: what is answered. folder, train, dev: where the files are, by preference; a file that stands for both is cut
80/20 by hash. columns: alternatives, the first whose columns a file has (numbers: a file without a header line).
labels: the classes in the order of the ids. metric: the one that early stopping and tables go by. recipe: what
differs from the defaults of a fine-tuning run, which are the paper's for GLUE (RoBERTa, appendix, table 10).
"""

from __future__ import annotations

from typing import Any

LARGE, SMALL = {"batch.num_rows": 32}, {"batch.num_rows": 16}

_PAIR = {"text": "sentence1", "text2": "sentence2", "label": "label"}
_MRPC = {"text": "#1 String", "text2": "#2 String", "label": "Quality"}
_QQP = {"text": "question1", "text2": "question2", "label": "is_duplicate"}

TASKS: dict[str, dict[str, Any]] = {
    "glue:cola": {
        "kind": "classify",
        "folder": "CoLA",
        "train": ("train.tsv",),
        "dev": ("dev.tsv",),
        "columns": ({"text": 3, "label": 1},),
        "labels": ("0", "1"),
        "metric": "matthews",
        "recipe": SMALL,
    },
    "glue:sst2": {
        "kind": "classify",
        "folder": "SST-2",
        "train": ("train.tsv",),
        "dev": ("dev.tsv",),
        "columns": ({"text": "sentence", "label": "label"},),
        "labels": ("0", "1"),
        "metric": "accuracy",
        "recipe": LARGE,
    },
    "glue:mrpc": {
        "kind": "classify",
        "folder": "MRPC",
        "train": ("train.tsv", "msr_paraphrase_train.txt"),
        "dev": ("dev.tsv", "msr_paraphrase_test.txt"),
        "columns": (_MRPC, _PAIR),
        "labels": ("0", "1"),
        "metric": "f1",
        "recipe": SMALL,
    },
    "glue:stsb": {
        "kind": "regress",
        "folder": "STS-B",
        "train": ("train.tsv",),
        "dev": ("dev.tsv",),
        "columns": ({**_PAIR, "label": "score"},),
        "labels": (),
        "metric": "spearman",
        "recipe": SMALL,
    },
    "glue:qqp": {
        "kind": "classify",
        "folder": "QQP",
        "train": ("train.tsv", "QQP_part/part.tsv"),
        "dev": ("dev.tsv", "QQP_part/part.tsv"),
        "columns": (_QQP,),
        "labels": ("0", "1"),
        "metric": "accuracy",
        "recipe": LARGE,
        "drop_ragged": True,  # the official file has broken lines, which everybody skips
    },
    "glue:mnli": {
        "kind": "classify",
        "folder": "MNLI",
        "train": ("train.tsv", "dev_matched.jsonl"),
        "dev": ("dev_matched.tsv", "dev_matched.jsonl"),
        "columns": (
            {**_PAIR, "label": "gold_label"},
            {"text": "premise", "text2": "hypothesis", "label": "label"},
        ),
        "labels": ("entailment", "neutral", "contradiction"),
        "metric": "accuracy",
        "recipe": LARGE,
    },
    "glue:mnli-mm": {
        "kind": "classify",
        "folder": "MNLI",
        "train": ("train.tsv",),
        "dev": ("dev_mismatched.tsv",),
        "columns": ({**_PAIR, "label": "gold_label"},),
        "labels": ("entailment", "neutral", "contradiction"),
        "metric": "accuracy",
        "recipe": LARGE,
    },
    "glue:qnli": {
        "kind": "classify",
        "folder": "QNLI",
        "train": ("train.tsv", "dev.tsv"),
        "dev": ("dev.tsv",),
        "columns": ({"text": "question", "text2": "sentence", "label": "label"},),
        "labels": ("entailment", "not_entailment"),
        "metric": "accuracy",
        "recipe": LARGE,
    },
    "glue:rte": {
        "kind": "classify",
        "folder": "RTE",
        "train": ("train.tsv",),
        "dev": ("dev.tsv",),
        "columns": (_PAIR,),
        "labels": ("entailment", "not_entailment"),
        "metric": "accuracy",
        "recipe": SMALL,
    },
    "glue:wnli": {
        "kind": "classify",
        "folder": "WNLI",
        "train": ("train.tsv",),
        "dev": ("dev.tsv",),
        "columns": (_PAIR,),
        "labels": ("0", "1"),
        "metric": "accuracy",
        "recipe": SMALL,
    },
    "ner": {
        "kind": "tags",
        "folder": "conll2003",
        "train": ("eng.train", "train.txt"),
        "dev": ("eng.testa", "valid.txt", "dev.txt"),
        "labels": (),
        "metric": "f1",
        "recipe": LARGE,
    },
    "squad1": {
        "kind": "spans",
        "folder": "squad",
        "train": ("train-v1.1.json", "dev-v1.1.json"),
        "dev": ("dev-v1.1.json",),
        "labels": (),
        "metric": "f1",
        "recipe": {"train.epochs": 2.0, "train.weight_decay": 0.01, "batch.num_rows": 48},
    },
    "squad2": {
        "kind": "spans",
        "folder": "squad",
        "train": ("train-v2.0.json", "dev-v2.0.json"),
        "dev": ("dev-v2.0.json",),
        "labels": (),
        "metric": "f1",
        "recipe": {"train.epochs": 2.0, "train.weight_decay": 0.01, "batch.num_rows": 48},
    },
    "race": {
        "kind": "choice",
        "folder": "race",
        "train": ("train.middle.jsonl.xz", "train.high.jsonl.xz", "train"),  # all that are there, not the first
        "dev": ("dev.middle.jsonl", "dev.high.jsonl", "dev"),
        "labels": (),
        "metric": "accuracy",
        "recipe": {"train.epochs": 4.0, "batch.num_rows": 16},
    },
}
