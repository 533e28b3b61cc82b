"""Prometheus' text format."""

from __future__ import annotations

from remask.serve.metrics import Metrics


def test_counters_gauges_and_the_histogram() -> None:
    metrics = Metrics()
    metrics.add("requests_total", task="tag", status="200")
    metrics.add("requests_total", task="tag", status="200")
    metrics.add("inputs_total", 5)
    for seconds in (0.001, 0.02, 99.0):
        metrics.observe("tag", seconds)
    lines = metrics.text({"engine_up": True}).splitlines()
    assert 'remask_requests_total{task="tag",status="200"} 2' in lines
    assert "remask_inputs_total 5" in lines
    assert "remask_refused_total 0" in lines
    assert "remask_engine_up 1" in lines
    assert 'remask_request_seconds_bucket{task="tag",le="0.001"} 1' in lines
    assert 'remask_request_seconds_bucket{task="tag",le="0.025"} 2' in lines
    assert 'remask_request_seconds_bucket{task="tag",le="30.0"} 2' in lines
    assert 'remask_request_seconds_bucket{task="tag",le="+Inf"} 3' in lines
    assert 'remask_request_seconds_count{task="tag"} 3' in lines


def test_a_new_engine_counts_on() -> None:
    metrics = Metrics()
    for counts in ((10, 15, 1), (30, 45, 2), (5, 5, 1), (7, 8, 2)):
        metrics.engine(counts)
    lines = metrics.text({}).splitlines()
    assert "remask_tokens_total 37" in lines
    assert "remask_padding_tokens_total 16" in lines
    assert "remask_batches_total 4" in lines
