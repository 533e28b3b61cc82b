"""`remask monitor`: texts with times -> shares by window and group -> an alarm where a share shifts.

In: a classifier and a MonitorRun. Out, in a folder: `alarms.jsonl`, `windows.jsonl`, `page.html`, rows that could not
be used (`bad.jsonl`) or came after their window had closed (`late.jsonl`), and the state, from which the same command
goes on after a stop or a kill. A file is read whole before its windows close, so its rows may stand in any order; of a
stream a window closes once a text came that is `late` seconds past its end. Not here: the test (detector), what is kept
(store), the page (page).
"""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from remask import artifacts, signals
from remask.config import differences, dump
from remask.errors import ConfigError, DataError, Stopped
from remask.monitoring.detector import Detector, Judged, Shift
from remask.monitoring.page import monitor_page
from remask.monitoring.rows import Mark, Source, Taken
from remask.monitoring.settings import STDIN, MonitorRun
from remask.monitoring.shares import MAX_CONDITION, Corrector
from remask.monitoring.store import FILE, Store
from remask.monitoring.times import BadTime, Clock, shown, window_start
from remask.progress import Progress, counted
from remask.schema import Json, Values
from remask.tables import Cells, require_columns

if TYPE_CHECKING:
    from remask.answer.stream import Asker

Event = Values
ALL, OTHERS = "", "(other)"  # the group of a run without groups, and of groups beyond the most
KINDS = ("classify", "pair")
_AHEAD_SECONDS = 86_400.0  # a time further in the future than this is a mistake
_KEPT_WINDOWS = 200  # closed windows whose texts are still known: for repeats, and for an alarm's examples
_PAGE_SECONDS = 2.0
_COMMAND_SECONDS = 60.0
_MAX_TEXT = 500
_FIRST_ROWS = 20
# What may differ when a monitor goes on.
_FREE = ("input", "on_alarm", "batch_rows", "delay_seconds", "idle_seconds", "batch_tokens", "precision", "device",
    "labelled", "model", "table", "format")  # fmt: skip


@dataclass(frozen=True)
class Classifier:
    """What answers, and how it errs."""

    asker: Asker
    classes: tuple[str, ...]
    corrector: Corrector
    fingerprint: str


@dataclass(frozen=True)
class Text:
    """A row that counts."""

    cells: Cells
    moment: float
    start: int
    group: str
    digest: bytes


# ------------------------------------------------------------------------------------------------------ the run


def monitor(
    run: MonitorRun, out: Path, *, progress: Progress, on_event: Callable[[Event], None] = lambda event: None
) -> Json:
    """Watch until the input ends; a signal stops it with its state saved. `on_event` gets every window that closes and
    every alarm, once."""
    check_columns_given(run)
    artifacts.claim(out, FILE)
    with artifacts.lock(out):
        classifier = open_classifier(run, progress)
        store = Store(out)
        try:
            watch = Monitor(run, out, classifier, store, progress, on_event)
            return watch.until_the_end()
        finally:
            store.close()


def check_columns_given(run: MonitorRun) -> None:
    for name, option in (("model", "MODEL"), ("input", "INPUT"), ("time", "--time COL")):
        if not getattr(run, name):
            raise ConfigError(f"{name} is needed: {option}")


def open_classifier(run: MonitorRun, progress: Progress) -> Classifier:
    """The model with the confusion that was measured on its dev data."""
    from remask.answer.predict import PredictRun, open_ready

    ready = open_ready(
        PredictRun(
            model=run.model, text=run.text, precision=run.precision, device=run.device, batch_tokens=run.batch_tokens
        )
    )
    task = ready.task
    if task.kind.name not in KINDS or not task.labels:
        raise ConfigError(f"{run.model}: a monitor needs a model that classifies texts; this one's task: {task.name}")
    if unknown := [name for name in run.classes if name not in task.labels]:
        raise ConfigError(f"classes = {unknown[0]}: the model has no such class; it has {', '.join(task.labels)}")
    confusion = None
    if run.alarm.correct:
        confusion = (
            _measured(ready, run) if run.labelled is not None else stored_confusion(Path(run.model), task.labels)
        )
    corrector = Corrector(confusion, len(task.labels))
    if not corrector.is_usable:
        raise ConfigError(
            f"{run.model}: its confusion cannot be taken back (condition {corrector.condition:.0f}, at most "
            f"{MAX_CONDITION:.0f}): it hardly tells the classes apart; --set alarm.correct=false takes it at its word"
        )
    return Classifier(ready.asker, task.labels, corrector, str(ready.identity["model"]))


def stored_confusion(model: Path, labels: Sequence[str]) -> list[list[float]]:
    """As fine-tuning measured it."""
    from remask.model.store import find_model
    from remask.tasks.card import CARD_JSON

    path = find_model(model) / CARD_JSON
    try:
        stored = json.loads(path.read_bytes())["confusion"] if path.is_file() else None
    except KeyError:
        stored = None
    except ValueError as error:
        raise DataError(f"{path}: damaged: {error}") from error
    if stored is None or stored["labels"] != list(labels):
        raise ConfigError(
            f"{model}: has no confusion of its dev data beside it: give --labelled FILE to measure it on, or "
            "--set alarm.correct=false to take the classifier at its word"
        )
    return stored["counts"]


def _measured(ready: Any, run: MonitorRun) -> list[list[float]]:
    """On a labelled file."""
    reader, task = ready.asker.model.reader, ready.task
    labelled = task.kind.read_labelled(Path(run.labelled or ""), task.name, task.labels, task.table)
    rows = reader.encode(labelled.items, labelled=True)
    return task.kind.score(ready.asker.model.outputs(rows), rows, labelled.items, task.labels)["confusion"]


class Monitor:
    """One run of the command over a store that may know of earlier ones."""

    def __init__(
        self, run: MonitorRun, out: Path, classifier: Classifier, store: Store, progress: Progress,
        on_event: Callable[[Event], None],
    ) -> None:  # fmt: skip
        self.run, self.out, self.classifier, self.store = run, out, classifier, store
        self._progress, self._on_event = progress, on_event
        self._zone = ZoneInfo(run.zone)
        self._clock = Clock(self._zone, run.time_format)
        self._watched = run.classes or classifier.classes
        self._same_run()
        self._detectors: dict[str, Detector] = {}
        self._groups = set(store.groups())
        self._told_zone = False
        self._page_at = 0.0
        self._alarms_before = len(store.alarms())
        self._windows_file, self._alarms_file = out / "windows.jsonl", out / "alarms.jsonl"
        for path, events in ((self._windows_file, store.judged()), (self._alarms_file, store.alarms())):
            artifacts.write_bytes(path, b"".join(map(_line, events)))  # what a kill left half written is made good

    def _same_run(self) -> None:
        """A folder is one watch: what it counts and how it judges must not change under way."""
        plain = {key: value for key, value in dump(self.run).items() if key not in _FREE}
        identity = {"run": plain, "model": self.classifier.fingerprint}
        before = self.store.fact("identity")
        if not self.store.fact("texts", 0):  # nothing was counted yet, perhaps because of a wrong column: start anew
            with self.store.transaction():
                self.store.clear()
                self.store.set_fact("identity", identity)
        elif changed := [key for key, _, _ in differences(before, json.loads(json.dumps(identity)))]:
            raise ConfigError(
                f"{self.out}: watches with other settings ({', '.join(key.removeprefix('run.') for key in changed)}); "
                "choose another --out"
            )

    def until_the_end(self) -> Json:
        run, store = self.run, self.store
        form = run.table.over(self.classifier.asker.model.reader.task.table)
        self._hand_over()  # alarms that a kill kept from the command
        with (
            Source(run, form, Mark(**store.fact("mark", {})), self._progress.say) as source,
            self._progress.stage("monitor", None, "texts") as stage,
        ):
            while not source.ended:
                taken = source.take(run.batch_rows, run.delay_seconds)
                if taken:
                    self._take(taken)
                    stage.update(store.fact("texts", 0))
                if signals.requested():
                    self._show(live=False)
                    raise Stopped("stopped, with everything up to here saved; the same command goes on")
        self._check_usable(1)
        self._advance(None)
        self._show(live=False)
        return self.result()

    # ----------------------------------------------------------------------------------------------- one batch

    def _take(self, taken: Sequence[Taken]) -> None:
        """Classify and count some rows, close what is due, all in one transaction."""
        texts: list[Text] = []
        bad: list[tuple[Taken, str]] = []
        repeats = 0
        known: set[bytes] = set()
        for row in taken:
            try:
                text = self._text(row)
            except BadTime as reason:
                bad.append((row, str(reason)))
                continue
            if text.digest in known or self.store.is_seen(text.digest):
                repeats += 1
                continue
            known.add(text.digest)
            texts.append(text)
        answers = self.classifier.asker.answer([text.cells for text in texts])[0] if texts else []
        with self.store.transaction():
            for text, answer in zip(texts, answers, strict=True):
                if "bad" in answer:
                    self.store.put_aside("bad", {"place": text.cells.place, "reason": answer["bad"]})
                    self.store.count("bad", 1)
                else:
                    self._count(text, answer)
            for row, reason in bad:
                self.store.put_aside("bad", {"place": row.cells.place, "reason": reason})
            self.store.count("bad", len(bad))
            self.store.count("repeats", repeats)
            self.store.set_fact("mark", {"first": taken[-1].mark.first, "count": taken[-1].mark.count})
            latest = max([self.store.fact("latest", 0.0), *(text.moment for text in texts)])
            self.store.set_fact("latest", latest)
        self._check_usable(_FIRST_ROWS)
        if self.run.is_stream:
            late = self.run.window if self.run.late is None else self.run.late
            self._advance(latest - late)
            if time.monotonic() - self._page_at > _PAGE_SECONDS:
                self._show(live=True)

    def _check_usable(self, least: int) -> None:
        """So many rows without a single good one are a wrong column or format, not bad luck."""
        if not self.store.fact("texts", 0) and self.store.fact("bad", 0) >= least:
            first = json.loads(self.store.aside("bad")[0])
            raise DataError(f"{first['place']}: {first['reason']} (none of the first rows can be used)")

    def _text(self, row: Taken) -> Text:
        """A row with its moment, window and group; BadTime where it cannot be counted."""
        run, cells = self.run, row.cells
        if row.bad:
            raise BadTime(row.bad)
        assert run.time is not None
        if row.mark.count == 1:
            require_columns(cells, [name for name in (run.time, run.group, run.id) if name is not None])
            self.classifier.asker.check_columns(cells)
        moment, has_zone = self._clock.read_with_zone(cells.values.get(run.time))
        if not has_zone and not self._told_zone:
            self._told_zone = True
            self._progress.say(f"  {cells.place}: times without a zone are taken as {run.zone} (--zone)")
        if moment > time.time() + _AHEAD_SECONDS:
            raise BadTime(f"{cells.values[run.time]!r} lies in the future")
        group = ALL if run.group is None else str(cells.values.get(run.group) or "").strip()
        if group not in self._groups and len(self._groups) >= run.max_groups:
            group = OTHERS
        self._groups.add(group)
        own = (
            [str(cells.values.get(run.id))]
            if run.id is not None
            else [str(cells.values.get(name)) for name in self.classifier.asker.columns]
        )
        key = json.dumps([*own, *([] if run.id is not None else [moment, group])])
        digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=12).digest()
        return Text(cells, moment, window_start(moment, run.window, self._zone), group, digest)

    def _count(self, text: Text, answer: Values) -> None:
        store, classes = self.store, self.classifier.classes
        store.see(text.digest, text.start)
        row = {
            "time": shown(text.moment, self._zone),
            "text": " | ".join(str(text.cells.values.get(name, "")) for name in self.classifier.asker.columns)[
                :_MAX_TEXT
            ],
            "place": text.cells.place,
        }
        name = answer["prediction"]
        if text.start < store.fact("closed_until", 0):
            store.put_aside("late", {"group": text.group, "class": name, **row})
            store.count("late", 1)
            return
        store.add_counts(text.group, text.start, [int(name == one) for one in classes])
        store.keep_text(text.group, text.start, name, answer["score"], row, self.run.alarm.examples)
        store.count("texts", 1)

    # --------------------------------------------------------------------------------------------- windows, alarms

    def _advance(self, moment: float | None) -> None:
        """Close the windows that end by a moment (None: all) and judge them in order of time."""
        last = None if moment is None else int(moment - self.run.window)
        due = self.store.open_windows(last)
        if not due:
            return
        events: list[Event] = []
        with self.store.transaction():
            for group, start, counts in due:
                events += self._close(group, start, counts)
            for group in {group for group, _, _ in due}:
                self.store.set_detector(group, self._detector(group).state)
            closed = max(start for _, start, _ in due) + int(self.run.window)
            self.store.set_fact("closed_until", max(closed, self.store.fact("closed_until", 0)))
            self.store.forget_before(closed - int(_KEPT_WINDOWS * self.run.window))
        self._tell(events)

    def _close(self, group: str, start: int, counts: Sequence[int]) -> list[Event]:
        judged = self._detector(group).take(start, counts)
        window = self._window_event(group, judged)
        self.store.judge(group, start, window)
        if judged.shift is None:
            return [window]
        return [window, self.store.add_alarm(self._alarm(group, judged, judged.shift))]

    def _detector(self, group: str) -> Detector:
        if group not in self._detectors:
            one = self.classifier
            self._detectors[group] = Detector(
                one.classes, self._watched, one.corrector, self.run.alarm, self._zone, self.store.detector(group)
            )
        return self._detectors[group]

    def _window_event(self, group: str, judged: Judged) -> Json:
        bands = {name: judged.band(name) for name in self._watched}
        return {
            "event": "window",
            "group": group,
            "start": shown(judged.start, self._zone),
            "at": judged.start,
            "texts": judged.num_texts,
            "shares": {name: round(judged.shares[name], 4) for name in self._watched},
            "bands": None
            if judged.expected is None
            else {name: [round(end, 4) for end in band] for name, band in bands.items() if band is not None},
        }

    def _alarm(self, group: str, judged: Judged, shift: Shift) -> Json:
        """With the texts that tell most: the surest of the class that grew, each text once."""
        grown = max(shift.sizes, key=lambda name: shift.sizes[name]) if shift.size < 0 else shift.name
        examples: dict[str, Json] = {}
        for text in self.store.texts(group, shift.onset, judged.start, grown):
            examples.setdefault(" ".join(text["text"].lower().split()), text)
        return {
            "group": group,
            "class": shift.name,
            "onset": shown(shift.onset, self._zone),
            "raised": shown(judged.start + self.run.window, self._zone),
            "at": judged.start,
            "before": round(shift.before, 4),
            "after": round(shift.after, 4),
            "size": round(shift.size, 4),
            "examples_of": grown,
            "examples": list(examples.values())[: self.run.alarm.examples],
        }

    def _tell(self, events: Sequence[Event]) -> None:
        """What was committed: lines in the files, then to whoever listens, then to the command."""
        for path, kind in ((self._windows_file, "window"), (self._alarms_file, "alarm")):
            lines = b"".join(_line(event) for event in events if event["event"] == kind)
            if lines:
                with artifacts.output_errors(path), path.open("ab") as file:
                    file.write(lines)
        for event in events:
            self._on_event(event)
        self._hand_over()

    def _hand_over(self) -> None:
        """Start the command for alarms that wait for it. Noted first: a kill in between loses a call, never doubles
        one; the alarm itself is in alarms.jsonl."""
        for alarm in self.store.alarms(waiting=True):
            with self.store.transaction():
                self.store.hand_over(alarm["number"])
            if self.run.on_alarm is None:
                continue
            command = shlex.split(self.run.on_alarm)
            try:
                done = subprocess.run(command, input=_line(alarm), timeout=_COMMAND_SECONDS, check=False, stdout=2)
                if done.returncode:
                    self._progress.warn(f"--on-alarm {command[0]}: ended with code {done.returncode}")
            except (OSError, subprocess.TimeoutExpired) as error:
                self._progress.warn(f"--on-alarm {command[0]}: {error}")

    # ------------------------------------------------------------------------------------------------ what is shown

    @cached_property
    def _title(self) -> str:
        return "stdin" if self.run.input == STDIN else Path(self.run.input).name

    def _show(self, *, live: bool) -> None:
        for kind in ("bad", "late"):
            if rows := self.store.aside(kind):
                artifacts.write_bytes(self.out / f"{kind}.jsonl", "".join(f"{row}\n" for row in rows).encode())
        page = monitor_page(self.store, self._title, self.result(), self.run, self._zone, live=live)
        artifacts.write_page(self.out / "page.html", page)
        self._page_at = time.monotonic()

    def result(self) -> Json:
        totals = {name: self.store.fact(name, 0) for name in ("texts", "repeats", "late", "bad")}
        alarms = self.store.alarms()
        return {
            **totals,
            "groups": len(self.store.groups()),
            "windows": self.store.num_judged(),
            "alarms": alarms,
            "new_alarms": len(alarms) - self._alarms_before,
            "corrected": self.run.alarm.correct,
            "page": str(self.out / "page.html"),
        }


def _line(event: Event) -> bytes:
    return (json.dumps(event, ensure_ascii=False) + "\n").encode()


def summary(values: Values) -> str:
    """What a person wants to see at the end."""
    lines = [
        f"{counted(values['texts'], 'text')} in {counted(values['windows'], 'window')} of "
        f"{counted(values['groups'], 'group')}; {values['repeats']:,} repeated, {values['late']:,} late, "
        f"{values['bad']:,} unusable",
        *(f"  {told(alarm)}" for alarm in values["alarms"]),
        f"{counted(len(values['alarms']), 'alarm')}  page: {values['page']}",
    ]
    return "\n".join(lines)


def told(alarm: Event) -> str:
    """An alarm in one line."""
    group = f"{alarm['group']}: " if alarm["group"] else ""
    return (
        f"{group}{alarm['class']} {alarm['before']:.0%} -> {alarm['after']:.0%} since {alarm['onset']} "
        f"(raised {alarm['raised']})"
    )
