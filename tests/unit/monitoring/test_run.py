"""Files and streams through a monitor with a fake classifier: what counts, what is set aside, what is told."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remask.config import build_run
from remask.errors import ConfigError, DataError, MissingInputError
from remask.monitoring import run as running
from remask.monitoring.run import Monitor, summary
from remask.monitoring.settings import MonitorRun
from remask.monitoring.store import Store
from remask.progress import Progress
from tests.unit.monitoring.fakes import fake_classifier

HOUR = 3600
START = 1_424_736_000  # 2015-02-24 00:00 UTC


def rows(shares: list[float], per_window: int = 30, seed: int = 0) -> list[dict[str, Any]]:
    """Texts of so many hours, of which a share is bad."""
    draw = random.Random(seed)
    made = []
    for hour, share in enumerate(shares):
        for number in range(per_window):
            word = "bad" if draw.random() < share else "good"
            moment = START + hour * HOUR + number * HOUR // per_window
            made.append({"when": moment, "text": f"{word} flight {hour} {number}", "who": "ab"[number % 2]})
    return made


SHIFT = [0.2] * 30 + [0.6] * 10


def write(path: Path, made: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


def settings(path: Path | str, **options: Any) -> MonitorRun:
    values = {"model": "fake", "input": str(path), "time": "when", "text": "text", "alarm.baseline": 12, **options}
    return build_run(MonitorRun, options=values).run


def watched(run: MonitorRun, out: Path, events: list[Any] | None = None, progress: Progress | None = None) -> Any:
    out.mkdir(exist_ok=True)
    store = Store(out)
    heard = [] if events is None else events
    try:
        monitor = Monitor(run, out, fake_classifier(), store, progress or Progress(quiet=True), heard.append)
        return monitor.until_the_end()
    finally:
        store.close()


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_in_any_order_gives_one_alarm_with_its_texts(tmp_path: Path) -> None:
    made = rows(SHIFT)
    random.Random(1).shuffle(made)
    events: list[Any] = []
    result = watched(settings(write(tmp_path / "in.jsonl", made)), tmp_path / "out", events)
    assert (result["texts"], result["windows"], len(result["alarms"])) == (1200, 40, 1)
    alarm = result["alarms"][0]
    assert alarm["onset"] == "2015-02-25T06:00+00:00"
    assert alarm["class"] in ("bad", "fine")
    assert alarm["examples_of"] == "bad"
    assert len(alarm["examples"]) == 10
    assert all(text["text"].startswith("bad") and text["time"] >= alarm["onset"] for text in alarm["examples"])
    assert (
        [event for event in events if event["event"] == "alarm"]
        == result["alarms"]
        == lines(tmp_path / "out/alarms.jsonl")
    )
    assert lines(tmp_path / "out/windows.jsonl") == [event for event in events if event["event"] == "window"]
    page = (tmp_path / "out/page.html").read_text()
    assert "class='mark'" in page
    assert "class='band'" in page
    assert alarm["examples"][0]["text"] in page
    assert "http-equiv='refresh'" not in page
    assert "since 2015-02-25T06:00" in summary(result)


def test_groups_are_watched_apart(tmp_path: Path) -> None:
    made = [row for row in rows([0.2] * 60, 40) if row["who"] == "a"]
    made += [row for row in rows([0.2] * 45 + [0.7] * 15, 40, seed=3) if row["who"] == "b"]
    run = settings(write(tmp_path / "in.jsonl", made), group="who", **{"alarm.baseline": 24})
    result = watched(run, tmp_path / "out")
    assert result["groups"] == 2
    assert {alarm["group"] for alarm in result["alarms"]} == {"b"}
    few = settings(tmp_path / "in.jsonl", group="who", max_groups=1)
    assert {event["group"] for event in lines_of(few, tmp_path / "few")} == {"a", "(other)"}


def lines_of(run: MonitorRun, out: Path) -> list[Any]:
    watched(run, out)
    return lines(out / "windows.jsonl")


def test_repeats_bad_rows_and_zones_are_said(tmp_path: Path) -> None:
    made = rows([0.2] * 4, 10)
    made[5:5] = [made[2], {"when": "soon", "text": "x", "who": "a"}, {"when": made[0]["when"], "text": "", "who": "a"}]
    made += [{"when": "2015-02-24 01:30", "text": "no zone"}, {"when": time.time() + 10 * 86_400, "text": "to come"}]
    made += [{"when": made[0]["when"], "text": made[0]["text"], "who": "b"}]  # the same text again is a repeat
    from io import StringIO

    said = StringIO()
    run = settings(write(tmp_path / "in.jsonl", made), zone="America/New_York")
    result = watched(run, tmp_path / "out", progress=Progress(stream=said))
    assert (result["texts"], result["repeats"], result["bad"]) == (41, 2, 3)
    assert result["texts"] + result["repeats"] + result["bad"] == len(made)
    reasons = {row["place"].rpartition(":")[2]: row["reason"] for row in lines(tmp_path / "out/bad.jsonl")}
    assert "--time-format" in reasons["7"]
    assert reasons["8"] == "an empty text"
    assert "future" in reasons["45"]
    assert said.getvalue().count("without a zone are taken as America/New_York") == 1
    with_id = settings(tmp_path / "in.jsonl", id="text")
    assert watched(with_id, tmp_path / "by-id")["repeats"] == 2


def test_a_stream_closes_windows_as_it_goes_and_sets_late_texts_aside(tmp_path: Path, monkeypatch: Any) -> None:
    made = rows([0.2] * 6, 10)
    late = {"when": START + 10, "text": "bad and late"}
    soon = {"when": START + 4 * HOUR - 10, "text": "a little out of order"}
    feed = [*made[:45], soon, late, *made[45:]]
    result = streamed(feed, tmp_path / "out", monkeypatch)
    assert (result["texts"], result["late"], result["windows"]) == (61, 1, 6)
    (row,) = lines(tmp_path / "out/late.jsonl")
    assert (row["text"], row["class"]) == ("bad and late", "bad")
    # Sent again after a stop: everything is known.
    again = streamed([*made[50:], {"when": START + 5 * HOUR + 3599, "text": "new"}], tmp_path / "out", monkeypatch)
    assert (again["texts"], again["repeats"], again["late"]) == (61, 10, 2)


def streamed(feed: list[dict[str, Any]], out: Path, monkeypatch: Any) -> Any:
    """Through stdin, slowly."""
    read, write_end = os.pipe()

    def send() -> None:
        with os.fdopen(write_end, "wb") as file:
            for row in feed:
                file.write(json.dumps(row).encode() + b"\n")
                file.flush()

    threading.Thread(target=send, daemon=True).start()
    with os.fdopen(read, "rb") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        return watched(settings("-", batch_rows=7, delay_seconds=0.05), out)


def test_a_growing_file_is_followed_through_a_rotation(tmp_path: Path) -> None:
    made = rows([0.2] * 8, 10)
    path = write(tmp_path / "log.jsonl", made[:30])

    def grow() -> None:
        time.sleep(0.4)
        with path.open("a") as file:
            for row in made[30:50]:
                text = json.dumps(row) + "\n"
                file.write(text[:9])  # half a line is no row
                file.flush()
                file.write(text[9:])
        time.sleep(0.7)
        path.rename(tmp_path / "log.1.jsonl")
        write(path, made[50:])

    thread = threading.Thread(target=grow)
    thread.start()
    run = settings(path, follow=True, idle_seconds=2.5, delay_seconds=0.1)
    result = watched(run, tmp_path / "out")
    thread.join()
    assert (result["texts"], result["repeats"], result["late"], result["bad"]) == (80, 0, 0, 0)
    # The same command goes on where it ended.
    with path.open("a") as file:
        file.write(json.dumps({"when": START + 8 * HOUR, "text": "good more"}) + "\n")
    assert watched(run.model_copy(update={"idle_seconds": 0.3}), tmp_path / "out")["texts"] == 81


def test_csv_with_a_header_comes_from_stdin_too(tmp_path: Path, monkeypatch: Any) -> None:
    read, write_end = os.pipe()
    with os.fdopen(write_end, "wb") as file:
        file.write(b'when,text\n2015-02-24 00:10Z,"bad, late"\n2015-02-24 00:20Z,fine\n')
    with os.fdopen(read, "rb") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        result = watched(settings("-", format="csv"), tmp_path / "out")
    assert (result["texts"], result["windows"]) == (2, 1)


def test_the_command_has_the_alarm_on_stdin_and_no_shell(tmp_path: Path) -> None:
    script = tmp_path / "note.py"
    script.write_text("import sys; open(sys.argv[1], 'a').write(sys.stdin.read())")
    heard = tmp_path / "heard $HOME.jsonl"
    command = f"{sys.executable} {script} '{heard}'"
    run = settings(write(tmp_path / "in.jsonl", rows(SHIFT)), on_alarm=command)
    result = watched(run, tmp_path / "out")
    assert lines(heard) == result["alarms"]
    watched(run, tmp_path / "out")
    assert len(lines(heard)) == 1


class Killed(BaseException):
    """Stands for SIGKILL: nothing gets to clean up but the system."""


@pytest.fixture
def kills(monkeypatch: Any) -> dict[str, int]:
    """Dies at the n-th transaction, before or after it is committed, and between a commit and what is told of it."""
    plan = {"before": 0, "after": 0, "tell": 0}
    transaction, tell = Store.transaction, Monitor._tell

    def counted_transaction(self: Store) -> Any:
        import contextlib

        @contextlib.contextmanager
        def inner() -> Iterator[None]:
            for moment in ("before", "after"):
                plan[moment] -= 1
            with transaction(self):
                yield
                if plan["before"] == 0:
                    raise Killed
            if plan["after"] == 0:
                raise Killed

        return inner()

    def counted_tell(self: Monitor, events: Any) -> None:
        plan["tell"] -= 1
        if plan["tell"] == 0:
            raise Killed
        tell(self, events)

    monkeypatch.setattr(Store, "transaction", counted_transaction)
    monkeypatch.setattr(Monitor, "_tell", counted_tell)
    return plan


def test_killed_at_any_moment_it_ends_the_same(tmp_path: Path, kills: dict[str, int]) -> None:
    made = rows([0.2] * 20 + [0.7] * 6, 16)
    path = write(tmp_path / "in.jsonl", made)
    run = settings(path, follow=True, idle_seconds=0.05, batch_rows=32, delay_seconds=0.05, late=0.0)
    expected = watched(run, tmp_path / "whole")
    assert len(expected["alarms"]) == 1
    for moment in ("before", "after", "tell"):
        out = tmp_path / moment
        events: list[Any] = []
        for number in range(2, 40):
            kills[moment] = number
            try:
                result = watched(run, out, events)
                break
            except Killed:
                continue
        kills[moment] = 0
        result = watched(run, out, events)
        for key in ("texts", "repeats", "late", "bad", "windows", "alarms"):
            assert result[key] == expected[key], (moment, key)
        for name in ("alarms.jsonl", "windows.jsonl"):
            assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), (moment, name)
        assert sum(event["event"] == "alarm" for event in events) <= 1


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    made = rows([0.2] * 3, 10)
    path = write(tmp_path / "in.jsonl", made)
    with pytest.raises(ConfigError, match=r"no column 'time'; there are when, text, who"):
        watched(settings(path, time="time"), tmp_path / "a")
    with pytest.raises(DataError, match=r"in.jsonl:1: 'bad flight 0 0'|none of the first rows"):
        watched(settings(path, time="text"), tmp_path / "b")
    assert watched(settings(path), tmp_path / "b")["texts"] == 30  # nothing was counted: the folder is still free
    with pytest.raises(ConfigError, match=r"other settings \(window\); choose another --out"):
        watched(settings(path, window="2h"), tmp_path / "b")
    with pytest.raises(MissingInputError, match="no such file"):
        watched(settings(tmp_path / "none.jsonl"), tmp_path / "c")
    with pytest.raises(ConfigError, match=r"only plain .* can grow"):
        watched(settings(write(tmp_path / "x.json", made), follow=True), tmp_path / "d")
    for options, message in (
        ({"window": "soon"}, "30s, 15m, 1h"),
        ({"zone": "Mars/Base"}, "no time zone"),
        ({"on_alarm": " "}, "is empty"),
        ({"input": "-", "follow": True}, "stdin is read as it comes"),
    ):
        with pytest.raises(ConfigError, match=message):
            settings(path, **options)
    with pytest.raises(ConfigError, match="time is needed: --time COL"):
        running.check_columns_given(settings(path, time=None))
