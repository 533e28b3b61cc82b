"""What each named task is: about eight lines of data, no code.

kind: what is answered. folder, train, dev: where the files are, by preference; a file that stands for both is cut
80/20 by hash. columns: alternatives, the first whose columns a file has (numbers, from 1: a file without a header).
labels: the classes in the order of the ids. metric: the one that early stopping goes by; official: those that GLUE
averages, where they are more. recipe: what differs from the defaults of a fine-tuning run, which are the paper's for
GLUE (RoBERTa, appendix, table 10); grid: what the paper tried. tests: the leaderboard's files of answers and what they
answer. starts_from: the paper's entry began with the model of that task. model_of: scored with the model of that task.
form_of: the same files asked in another way. row: what a line becomes before its columns are read (clue.ROWS).
"""

from __future__ import annotations

from remask.schema import Json

LARGE, SMALL = {"batch.num_rows": 32, "patience": 4}, {"batch.num_rows": 16, "patience": 4}
GRID = {"train.learning_rate": (1e-5, 2e-5, 3e-5), "batch.num_rows": (16, 32)}  # rates at the width of 768

_PAIR = {"text": "sentence1", "text2": "sentence2", "label": "label"}
_MRPC = {"text": "#1 String", "text2": "#2 String", "label": "Quality"}
_QQP = {"text": "question1", "text2": "question2", "label": "is_duplicate"}
_MNLI = ({**_PAIR, "label": "gold_label"}, {"text": "premise", "text2": "hypothesis", "label": "label"})

TASKS: dict[str, Json] = {
    "glue:cola": {
        "kind": "classify",
        "folder": "CoLA",
        "train": ("train.tsv",),
        "dev": ("dev.tsv",),
        "columns": ({"text": 4, "label": 2},),
        "labels": ("0", "1"),
        "metric": "matthews",
        "recipe": SMALL,
        "grid": GRID,
        "tests": {"CoLA.tsv": ("CoLA/test.tsv",)},
        "test_columns": {"text": "sentence"},  # unlike the others it has a header line
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
        "grid": GRID,
        "tests": {"SST-2.tsv": ("SST-2/test.tsv",)},
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
        "grid": GRID,
        "official": ("f1", "accuracy"),
        "starts_from": "glue:mnli",
        "tests": {"MRPC.tsv": ("MRPC/test.tsv",)},
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
        "grid": GRID,
        "official": ("pearson", "spearman"),
        "starts_from": "glue:mnli",
        "tests": {"STS-B.tsv": ("STS-B/test.tsv",)},
        "range": (0.0, 5.0),
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
        "grid": GRID,
        "official": ("f1", "accuracy"),
        "tests": {"QQP.tsv": ("QQP/test.tsv",)},
        "drop_ragged": True,  # the official file has broken lines, which everybody skips
    },
    "glue:mnli": {
        "kind": "classify",
        "folder": "MNLI",
        "train": ("train.tsv", "dev_matched.jsonl"),
        "dev": ("dev_matched.tsv", "dev_matched.jsonl"),
        "columns": _MNLI,
        "labels": ("entailment", "neutral", "contradiction"),
        "metric": "accuracy",
        "recipe": LARGE,
        "grid": GRID,
        "tests": {
            "MNLI-m.tsv": ("MNLI/test_matched.tsv",),
            "MNLI-mm.tsv": ("MNLI/test_mismatched.tsv",),
            "AX.tsv": ("AX/diagnostic.tsv", "diagnostic/diagnostic.tsv", "MNLI/diagnostic.tsv", "diagnostic.tsv"),
        },
    },
    "glue:mnli-mm": {
        "kind": "classify",
        "folder": "MNLI",
        "train": ("train.tsv", "dev_matched.tsv", "dev_matched.jsonl"),
        "dev": ("dev_mismatched.tsv", "dev_mismatched.jsonl"),
        "columns": _MNLI,
        "labels": ("entailment", "neutral", "contradiction"),
        "metric": "accuracy",
        "recipe": LARGE,
        "model_of": "glue:mnli",
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
        "grid": GRID,
        "tests": {"QNLI.tsv": ("QNLI/test.tsv",)},
    },
    "glue:qnli-rank": {
        "kind": "choice",  # the paper's leaderboard form of QNLI: which of a question's sentences answers it
        "folder": "QNLI",
        "train": ("train.tsv", "dev.tsv"),
        "dev": ("dev.tsv",),
        "labels": (),
        "metric": "accuracy",
        "recipe": LARGE,
        "form_of": "glue:qnli",
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
        "grid": GRID,
        "starts_from": "glue:mnli",
        "tests": {"RTE.tsv": ("RTE/test.tsv",)},
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
        "grid": GRID,
        "tests": {"WNLI.tsv": ("WNLI/test.tsv",)},
    },
    "wsc": {
        "kind": "choice",  # SuperGLUE's files; the form in which the paper trained WNLI, with a margin ranking loss
        "folder": "WSC",
        "train": ("train.jsonl",),
        "dev": ("val.jsonl", "dev.jsonl"),
        "labels": (),
        "metric": "accuracy",
        "recipe": {**SMALL, "loss.choice": "margin"},
    },
    "ner": {
        "kind": "tags",
        "folder": "conll2003",
        "train": ("eng.train", "train.txt"),
        "dev": ("eng.testa", "valid.txt", "dev.txt"),
        "labels": (),
        "metric": "f1",
        # Without clipping a fresh head spoils the first steps: F1 8 in place of 29 after 94 of them (EXPERIMENTS.md).
        "recipe": {**LARGE, "train.clip": 1.0},
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
    "cmrc2018": {
        "kind": "character_spans",
        "folder": "cmrc2018",
        "train": ("cmrc2018_train.json", "train.json", "cmrc2018_trial.json"),
        "dev": ("cmrc2018_dev.json", "dev.json", "cmrc2018_trial.json"),
        "labels": (),
        "metric": "f1",
        "recipe": {"train.epochs": 2.0, "train.weight_decay": 0.01, "batch.num_rows": 48},
    },
}

# FewCLUE (arXiv 2107.07498): five small splits of each task, train_0.json to train_4.json with a dev file each, and all
# five in one, which is read unless files are given (--train train_0.json --dev dev_0.json). What is scored is
# test_public.json where it is there.
_FEW = {
    "train": ("train_few_all.json",),
    "dev": ("test_public.json", "dev_few_all.json"),
    "metric": "accuracy",
    "recipe": SMALL,
}
_TOPICS = (
    "news_story", "news_culture", "news_entertainment", "news_sports", "news_finance", "news_house", "news_car",
    "news_edu", "news_tech", "news_military", "news_travel", "news_world", "news_stock", "news_agriculture",
    "news_game",
)  # fmt: skip
_CLUE: dict[str, Json] = {
    "eprstmt": {"columns": ({"text": "sentence", "label": "label"},), "labels": ("Negative", "Positive")},
    "tnews": {"columns": ({"text": "sentence", "label": "label_desc"},), "labels": _TOPICS},
    "ocnli": {"columns": (_PAIR,), "labels": ("entailment", "neutral", "contradiction"), "row": "ocnli"},
    "bustm": {"columns": (_PAIR,), "labels": ("0", "1")},
    "csl": {
        "columns": ({"text": "keyword", "text2": "abst", "label": "label"},), "labels": ("0", "1"), "row": "csl",
    },
    "cluewsc": {"columns": ({"text": "text", "label": "label"},), "labels": ("false", "true"), "row": "cluewsc"},
    "chid": {"kind": "choice", "labels": ()},
}  # fmt: skip
TASKS |= {f"clue:{name}": {"kind": "classify", "folder": name, **_FEW, **spec} for name, spec in _CLUE.items()}
