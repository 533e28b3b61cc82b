"""What a run is told before it starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remask.train.preflight import Facts, data_warnings, gathered, lines, paper_rate, warnings
from remask.train.settings import TrainSettings

FACTS = Facts(
    parameters=10_000_000,
    trainable=10_000_000,
    hidden_size=384,
    num_layers=6,
    post_norm=True,
    tokens_per_step=4096,
    rows_per_step=32,
    micro_tokens=4096,
    steps_per_epoch=1000,
    num_steps=5000,
    free_bytes=10**12,
    flops_per_token=6e7,
    flops_per_second=1e11,
    planned_tokens=5000 * 4096,
    planned_passes=5.0,
    length=128,
)


def test_the_paper_s_rule() -> None:
    assert paper_rate(256 * 512) == pytest.approx(1e-4)
    assert paper_rate(2048 * 512) == pytest.approx(7e-4)
    assert paper_rate(8192 * 512) == pytest.approx(1e-3)
    assert 1e-4 < paper_rate(512 * 512) < 7e-4
    assert paper_rate(32 * 128) < 1e-4 < 1e-3 < paper_rate(32_768 * 512)


def test_the_lines_say_size_data_rate_memory_disk_and_time() -> None:
    text = "\n".join(lines(FACTS, TrainSettings(learning_rate=5e-4)))
    for words in (
        "10.0M parameters",
        "5.00 passes",
        "20.5M tokens",
        "0.0005",
        "GB of memory",
        "360 MB of disk",
        "takes about 6 h 49 min on this machine",  # 20.5M tokens of 60 MFLOP at half of 100 GFLOP/s
    ):
        assert words in text, words
    text = "\n".join(lines(replace(FACTS, num_steps=None, trainable=2_000_000), TrainSettings(minutes=30)))
    assert "30 minutes" in text
    assert "2.0M of them learn" in text


def test_the_lines_say_how_batch_and_rows_change() -> None:
    growing = replace(FACTS, first_rows=4, growing_share=0.1, short_length=32, short_share=0.9)
    text = "\n".join(lines(growing, TrainSettings()))
    assert "grows from 4 to 32 rows in the first 10% of the steps" in text
    assert "32 tokens in the first 90% of the steps, then 128" in text
    assert "grows" not in (plain := "\n".join(lines(FACTS, TrainSettings())))
    assert "then 128" not in plain


def test_what_a_rank_holds_and_sends() -> None:
    one = FACTS
    assert one.state_bytes == 16 * one.parameters
    assert one.traffic_bytes == 0
    ddp = replace(FACTS, ranks=4, micro_batches=8)
    assert ddp.state_bytes == 16 * one.parameters
    assert ddp.traffic_bytes == 2 * 3 / 4 * 4 * one.parameters
    fsdp = replace(ddp, parallel="fsdp", whole_parameters=1_000_000, has_average=True)
    assert fsdp.state_bytes == 20 * one.parameters / 4 + 8e6
    assert fsdp.traffic_bytes == 8 * 3 / 4 * 12 * one.parameters
    assert gathered(100, [10, 30, 20, 20]) == 20 + 50
    assert one.checkpoint_bytes == ddp.checkpoint_bytes == 12 * one.parameters
    assert fsdp.checkpoint_bytes == 20 * one.parameters  # with an average, and the model joined from the ranks' rows
    copied = replace(one, copied_parameters=9_000_000, precision="bf16")
    assert copied.state_bytes - one.state_bytes == 18e6
    assert copied.memory_bytes - copied.state_bytes == (one.memory_bytes - one.state_bytes) / 2
    text = "\n".join(lines(fsdp, TrainSettings()))
    assert "for each rank" in text
    assert "ranks: 4 by fsdp, micro-batches a step: 8; each sends about 720 MB" in text
    assert "ranks:" not in "\n".join(lines(one, TrainSettings()))


def test_what_a_device_does_not_hold_is_warned_of() -> None:
    large = replace(
        FACTS, parameters=355_000_000, trainable=355_000_000, hidden_size=1024, num_layers=24, micro_tokens=32 * 512,
        precision="bf16", device="cuda:0", device_bytes=40e9,
    )  # fmt: skip
    good = TrainSettings(learning_rate=5e-5)
    assert "about 37.9 GB of memory (cuda:0 has 40 GB)" in "\n".join(lines(large, good))  # as docs/scale.md has it
    assert warnings(large, good) == []
    (line,) = warnings(replace(large, device_bytes=24e9, ranks=2), good)
    assert "cuda:0 has 24 GB of memory for each rank, and this run may need 37.9 GB" in line
    assert "data.batch.micro_rows" in line
    assert "train.parallel=fsdp" in line


def test_warnings_where_settings_are_known_to_go_wrong() -> None:
    good = TrainSettings(learning_rate=5e-4, warmup=0.06)
    assert warnings(FACTS, good) == []
    assert "word frequencies" in warnings(FACTS, TrainSettings(learning_rate=2e-3))[0]
    assert warnings(replace(FACTS, post_norm=False), TrainSettings(learning_rate=2e-3)) == []
    base = replace(FACTS, hidden_size=768)
    assert "25 times the paper's rule" in warnings(base, TrainSettings(learning_rate=4.4e-4))[0]
    assert warnings(base, TrainSettings(learning_rate=5e-5)) == []
    assert warnings(replace(base, tokens_per_step=8192 * 512), TrainSettings(learning_rate=1e-3)) == []
    assert "without a warmup" in warnings(FACTS, TrainSettings(learning_rate=5e-4, warmup=0.0))[0]
    many = warnings(replace(FACTS, num_steps=100_000, planned_passes=100.0), good)[0]
    assert "read 100 times" in many
    assert "40,000 steps or more text" in many
    assert "does not end" in warnings(FACTS, TrainSettings(learning_rate=5e-4, warmup=6000.0))[0]
    assert "of disk are free" in warnings(replace(FACTS, free_bytes=10**6), good)[0]


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "muon"])
def test_a_rate_orders_above_the_rule_is_warned_of(optimizer: str) -> None:
    def said(rate: float, **changes: int | bool) -> str:
        settings = TrainSettings.model_validate({"learning_rate": rate, "optimizer": optimizer})
        return "\n".join(warnings(replace(FACTS, post_norm=False, **changes), settings))

    assert "times the paper's rule" in said(0.5)
    assert "times the paper's rule" in said(0.5, hidden_size=768)
    assert said(5e-4) == ""
    heads_alone = TrainSettings(learning_rate=0.5, trainable_top_layers=0)
    assert warnings(FACTS, heads_alone) == []


def counts(examples: int, real: int, false: int) -> dict[str, dict[str, dict[str, int]]]:
    return {"sources": {"corpus": {"examples": examples, "real_pairs": real, "false_pairs": false}}}


def test_sentence_losses_on_documents_of_one_sentence_are_warned_of() -> None:
    (line,) = data_warnings(counts(1000, 20, 980), sentence_loss="nsp")
    assert "98% of the pairs are negatives" in line
    (line,) = data_warnings(counts(1000, 9, 11), sentence_loss="sop")
    assert "only 2% of the rows are pairs" in line
    assert data_warnings(counts(1000, 480, 520), sentence_loss="nsp") == []
    assert data_warnings({"sources": {"corpus": {"examples": 9}}}) == []


def test_static_masks_with_a_left_to_right_share_are_warned_of() -> None:
    (line,) = data_warnings(counts(9, 0, 0), causal_share=0.25, repeat="static")
    assert "25% of the text never has the masked loss" in line
    assert data_warnings(counts(9, 0, 0), causal_share=0.25, repeat="dynamic") == []
