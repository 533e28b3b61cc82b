"""What a monitor watches, in which windows, and when it speaks. No torch.

In: a run file or options. Out: the frozen MonitorRun. Lengths of time are numbers with a unit (30s, 15m, 1h, 1d, 1w).
Not here: reading (rows), times (times), the detector (detector), the loop (run).
"""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, field_validator, model_validator

from remask.config import Config, setting, switch
from remask.tables.form import ColumnName, OtherForm

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)([smhdw])\Z")
STDIN = "-"


def seconds_of(value: object) -> object:
    """`90s`, `15m`, `1h`, `1d`, `2w` as seconds; numbers are seconds."""
    if not isinstance(value, str):
        return value
    found = _LENGTH.match(value.strip())
    if found is None:
        raise ValueError("must be a length of time such as 30s, 15m, 1h, 1d or 2w")
    return float(found[1]) * _UNITS[found[2]]


Seconds = Annotated[float, BeforeValidator(seconds_of)]


class AlarmSettings(Config):
    """When a share counts as shifted."""

    shift: float = switch(
        0.1, "the shift to look for, as a share of the texts (0.1: ten points); half of it passes as normal",
        effect="math", samples=[0.05, 0.2], gt=0, lt=1,
    )  # fmt: skip
    rate: float = switch(
        1.0, "false alarms in 1,000 windows of a group, all classes together", effect="math", samples=[10.0], gt=0
    )
    baseline: int = switch(24, "windows with texts that a group learns from before it is judged", effect="math",
        samples=[8], ge=2)  # fmt: skip
    settle: int = switch(
        6,
        "fewest windows from the onset on that a new level is learned from after an alarm",
        effect="math",
        samples=[3],
        ge=2,
    )
    memory: int = switch(500, "windows without a shift that the level is taken from, the last ones", effect="math",
        samples=[8], ge=2)  # fmt: skip
    rhythm: Literal["none", "daily", "weekly"] = switch(
        "none", "whether the normal share follows the hour of the day (daily), and also the day of the week (weekly)",
        effect="math",
    )  # fmt: skip
    correct: bool = switch(
        True, "take the classifier's own mistakes into account, by the confusion on its dev data", effect="math"
    )
    examples: int = setting(10, "texts that an alarm shows", ge=1, le=100)


class MonitorRun(Config):
    """One stream and its watch."""

    model: str = setting("", "a classifier, fine-tuned here")
    input: str = setting("", "a file of rows, or - for stdin")
    time: ColumnName | None = setting(None, "column with the time of a text")
    text: str | None = setting(None, "column with the text; null: the one the model was trained on")
    group: ColumnName | None = setting(None, "column by which texts are watched apart; null: all together")
    id: ColumnName | None = setting(
        None, "column that tells texts apart; null: the same text, time and group again is a repeat"
    )
    classes: tuple[str, ...] = setting((), "classes to watch; none: all of the model")
    window: Seconds = setting(3600.0, "length of a window, such as 15m, 1h, 1d", ge=1)
    time_format: str | None = setting(None, "of the times, as Python's strptime has it; null: each by its form")
    zone: str = setting("UTC", "time zone of times that do not tell theirs, and of the hours of a rhythm")
    late: Seconds | None = setting(
        None, "how long a window of a stream waits for texts out of order; null: as long as a window"
    )
    follow: bool = setting(False, "go on reading as the file grows")
    format: Literal["csv", "tsv", "jsonl"] | None = setting(None, "layout of stdin, or of a file whose name is silent")
    table: OtherForm = setting(OtherForm(), "how the input is written, where its name does not tell")
    labelled: str | None = setting(None, "a labelled file to measure the confusion on; null: as stored with the model")
    alarm: AlarmSettings = setting(AlarmSettings(), "when a share counts as shifted")
    on_alarm: str | None = setting(None, "a command for every alarm, which has it as JSON on stdin; no shell")
    batch_rows: int = setting(256, "most texts that are classified together", ge=1)
    delay_seconds: float = setting(2.0, "longest that a text waits for others", gt=0)
    idle_seconds: float | None = setting(
        None, "follow: end after so many seconds without a new row; null: only a signal ends it", gt=0
    )
    max_groups: int = setting(1000, "groups that are watched apart; texts of further ones are counted together", ge=1)
    batch_tokens: int = setting(4096, "most padded tokens in one forward pass", ge=16)
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting("auto", "number format")
    device: str = setting("auto", "auto, cpu, cuda, cuda:N or mps")

    @field_validator("zone")
    @classmethod
    def _is_known(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (OSError, ValueError):  # ZoneInfoNotFoundError is a KeyError on some systems
            raise ValueError("is no time zone, such as UTC, Europe/Berlin, America/New_York") from None
        except KeyError:
            raise ValueError("is no time zone, such as UTC, Europe/Berlin, America/New_York") from None
        return value

    @field_validator("on_alarm")
    @classmethod
    def _is_a_command(cls, value: str | None) -> str | None:
        if value is not None and not shlex.split(value):
            raise ValueError("is empty: name a program and its words")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.follow and self.input == STDIN:
            raise ValueError("follow is for files: stdin is read as it comes anyway")
        if self.alarm.rhythm != "none" and self.window > 86_400:
            raise ValueError(f"alarm.rhythm = {self.alarm.rhythm}: a window of more than a day has no hour")
        return self

    @property
    def is_stream(self) -> bool:
        """Whether rows come one after the other, so that windows must close before all are there."""
        return self.follow or self.input == STDIN
