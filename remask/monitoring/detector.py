"""Is a share still what it was? A CUSUM on corrected shares against a level that may follow the hour and the day.

In: the counts of one group's windows, in order of time. Out: for every window what was expected and its band, and one
alarm a shift with its onset and size. Page's test in its likelihood form: each window adds (d / s^2)(x - d/2), where x
is its distance from the level, d the shift that is looked for and s the deviation that chance, the level's own
uncertainty and the usual unrest between windows give a window with so few texts. So few texts add little. It speaks
where the sum since its last zero passes a limit, which Siegmund's formula gives for the stated rate of false alarms.
Everything it knows is in `state`, plain JSON. Not here: texts, files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np

from remask.monitoring.settings import AlarmSettings
from remask.monitoring.shares import Corrector
from remask.schema import Json, Values

Array = np.ndarray

# Shapes: K classes, W windows, H hours or days.

BAND = 1.96  # deviations on either side that a page shows
DOUBT = 1.5  # deviations of the level's own error that never count: with fewer false alarms come too often (measured)
_OVERSHOOT = 1.166  # Siegmund's: twice 0.583, by which a sum passes its limit on average


@dataclass(frozen=True)
class Shift:
    """An alarm: from `onset` on the share of the class `name` is `size` above what it was (below: negative)."""

    name: str
    onset: int
    size: float
    before: float
    after: float
    sizes: Mapping[str, float]  # of all classes


@dataclass(frozen=True)
class Judged:
    """One window: by class the share, what was expected, and the band around that (NaN while it learns)."""

    start: int
    num_texts: int
    shares: Mapping[str, float]
    expected: Mapping[str, float] | None
    deviations: Mapping[str, float] | None
    shift: Shift | None = None

    def band(self, name: str) -> tuple[float, float] | None:
        if self.expected is None or self.deviations is None:
            return None
        width = BAND * self.deviations[name]
        return max(0.0, self.expected[name] - width), min(1.0, self.expected[name] + width)


@dataclass
class Level:
    """What is normal, fitted to windows without a shift."""

    level_K: Array
    level_variance_K: Array
    unrest_K: Array  # variance between windows beyond chance
    one_K: Array  # variance of an estimate from one text
    effects: dict[str, Array] = field(default_factory=dict)  # "hour": 24 x K, "day": 7 x K

    def expected(self, when: datetime) -> Array:
        return self.level_K + _effect(self.effects, when, len(self.level_K))

    def variance(self, num_texts: int) -> Array:
        return self.one_K / num_texts + self.unrest_K + self.level_variance_K


class Detector:
    """Watches one group."""

    def __init__(
        self, classes: Sequence[str], watched: Sequence[str], corrector: Corrector, settings: AlarmSettings,
        zone: ZoneInfo, state: Values | None = None,
    ) -> None:  # fmt: skip
        self.classes, self.corrector, self.settings, self.zone = list(classes), corrector, settings, zone
        self._watched = [self.classes.index(name) for name in watched]
        state = state or {}
        # Windows since the last shift: (start, counts). The first `calm` of them are without a doubt; the others came
        # while a sum was above zero, and join once it is back there, or are the start of the next level.
        self._windows: list[tuple[int, list[int]]] = [(start, counts) for start, counts in state.get("windows", [])]
        self._calm: int = state.get("calm", 0)
        self._needed: int = state.get("needed", settings.baseline)
        self._sums_2K = np.array(state.get("sums", np.zeros((2, len(self.classes)))), dtype=float)
        self._zeros: list[list[int]] = state.get("zeros", [[0] * len(self.classes) for _ in range(2)])
        self._carried: Json | None = state.get("carried")
        self._level: Level | None = None
        if self._calm >= self._needed:
            self._fit()

    @property
    def state(self) -> Json:
        return {
            "windows": [list(window) for window in self._windows],
            "calm": self._calm,
            "needed": self._needed,
            "sums": self._sums_2K.tolist(),
            "zeros": self._zeros,
            "carried": self._carried,
        }

    def take(self, start: int, counts: Sequence[int]) -> Judged:
        """The next window, which has texts. A pause before it changes nothing: there was nothing to see."""
        counts_K, num_texts = np.asarray(counts), int(sum(counts))
        shares_K = self.corrector.shares(counts_K)
        self._windows.append((start, [int(count) for count in counts]))
        if self._level is None:
            self._calm = len(self._windows)
            if self._calm >= self._needed:
                self._fit()
            return Judged(start, num_texts, self._named(np.clip(shares_K, 0, 1)), None, None)
        expected_K = self._level.expected(self._when(start))
        variance_K = self._level.variance(num_texts)
        judged = Judged(
            start, num_texts, self._named(np.clip(shares_K, 0, 1)), self._named(expected_K),
            self._named(np.sqrt(variance_K)),
        )  # fmt: skip
        self._add(shares_K - expected_K, variance_K, np.sqrt(self._level.level_variance_K))
        shift = self._shift()
        if shift is None:
            self._join()
            return judged
        return Judged(start, num_texts, judged.shares, judged.expected, judged.deviations, shift)

    # ------------------------------------------------------------------------------------------------- the test

    def _add(self, distance_K: Array, variance_K: Array, doubt_K: Array) -> None:
        """`doubt_K`: deviation of the level itself. Unlike chance it is the same in all windows, and would add up."""
        size = self.settings.shift
        for side, sign in enumerate((1, -1)):
            more_K = size / variance_K * (sign * distance_K - DOUBT * doubt_K - size / 2)
            self._sums_2K[side] = np.maximum(0.0, self._sums_2K[side] + more_K)
            for number in range(len(self.classes)):
                if self._sums_2K[side, number] == 0.0:
                    self._zeros[side][number] = len(self._windows)  # an onset would be the window after this one

    def limit(self, number: int) -> float:
        """Of the sums of a class: how high chance alone takes them once in as many windows as the rate allows."""
        assert self._level is not None
        # Shares add up to 1: of all K classes only K - 1 move on their own.
        num_free = len(self._watched) - (len(self._watched) == len(self.classes) > 1)
        per_test = 1000 / self.settings.rate * 2 * num_free
        usual = float(np.median([sum(counts) for _, counts in self._windows[: self._calm]]))
        deviation = math.sqrt(self._level.variance(max(1, int(usual)))[number])
        return cusum_limit(self.settings.shift / deviation, per_test)

    def _shift(self) -> Shift | None:
        """The alarm, if a sum passed its limit: of the class whose sum is highest over its limit."""
        over = [
            (self._sums_2K[side, number] / max(self.limit(number), 1e-9), side, number)
            for number in self._watched
            for side in (0, 1)
            if self._sums_2K[side, number] > self.limit(number)
        ]
        if not over:
            return None
        _, side, number = max(over)
        first = self._zeros[side][number]
        since = self._windows[first + self._onset(self._windows[first:], number, 1 - 2 * side) :]
        before_K, after_K = self._levels_around(since)
        sizes_K = after_K - before_K
        shift = Shift(
            self.classes[number], since[0][0], float(sizes_K[number]), float(before_K[number]), float(after_K[number]),
            self._named(sizes_K),
        )  # fmt: skip
        self._start_again(since)
        return shift

    def _onset(self, windows: Sequence[tuple[int, list[int]]], number: int, sign: int) -> int:
        """Where, among the windows since the sum was last zero, a shift of whatever size most likely began."""
        assert self._level is not None
        weights_W = 1 / np.array([self._level.variance(sum(counts))[number] for _, counts in windows])
        expected_W = np.array([self._level.expected(self._when(start))[number] for start, _ in windows])
        shares_W = self.corrector.shares(np.array([counts for _, counts in windows]))[:, number]
        moved_W = np.cumsum((weights_W * sign * (shares_W - expected_W))[::-1])[::-1]  # from each window on
        return int(np.argmax(np.maximum(moved_W, 0.0) ** 2 / np.cumsum(weights_W[::-1])[::-1]))

    def _levels_around(self, since: Sequence[tuple[int, list[int]]]) -> tuple[Array, Array]:
        """Mean of what was expected, and of what came, by texts."""
        assert self._level is not None
        weights_W = np.array([sum(counts) for _, counts in since], dtype=float)
        weights_W /= weights_W.sum()
        expected_WK = np.array([self._level.expected(self._when(start)) for start, _ in since])
        said_K = np.array([counts for _, counts in since]).sum(0)
        return np.clip(weights_W @ expected_WK, 0, 1), np.clip(self.corrector.shares(said_K), 0, 1)

    def _start_again(self, since: Sequence[tuple[int, list[int]]]) -> None:
        """Learn the new level from its onset on; the rhythm and the unrest stay what they were."""
        assert self._level is not None
        self._carried = {
            "unrest": self._level.unrest_K.tolist(),
            "effects": {name: effect.tolist() for name, effect in self._level.effects.items()},
        }
        # A few windows more in any case: those that raised the alarm were high by chance, too.
        self._windows, self._needed = list(since), max(self.settings.settle, len(since) + self.settings.settle // 2)
        self._calm = len(self._windows)
        self._sums_2K[:] = 0.0
        self._zeros = [[0] * len(self.classes) for _ in range(2)]
        self._level = None

    def _join(self) -> None:
        """Windows up to where all sums were last zero were calm: the level is taken from them, too."""
        watched = [self._zeros[side][number] for side in (0, 1) for number in self._watched]
        if (calm := min(watched)) <= self._calm:
            return
        self._calm = calm
        if (gone := max(0, self._calm - self.settings.memory)) > 0:
            self._windows, self._calm = self._windows[gone:], self._calm - gone
            self._zeros = [[max(0, zero - gone) for zero in side] for side in self._zeros]
        self._fit()

    # ------------------------------------------------------------------------------------------------ the level

    def _fit(self) -> None:
        windows = self._windows[: self._calm]
        for side in self._zeros:
            side[:] = [max(zero, self._calm) for zero in side]
        carried = self._carried or {}
        counts_WK = np.array([counts for _, counts in windows], dtype=float)
        whens = [self._when(start) for start, _ in windows]
        given = {name: np.array(effect) for name, effect in carried.get("effects", {}).items()}
        unrest_K = np.array(carried["unrest"]) if carried else None
        self._level = fit_level(counts_WK, whens, self.corrector, self.settings.rhythm, given, unrest_K)

    def _when(self, start: int) -> datetime:
        return datetime.fromtimestamp(start, self.zone)

    def _named(self, values_K: Array) -> dict[str, float]:
        return {name: float(value) for name, value in zip(self.classes, values_K, strict=True)}


def cusum_limit(step: float, windows_per_alarm: float) -> float:
    """The limit at which chance alone gives one alarm in so many windows: Siegmund's approximation of a normal CUSUM
    (Sequential Analysis, 1985) whose windows are `step` deviations apart under the shift; 0 where no limit is rare
    enough to matter."""

    def mean_run(limit: float) -> float:
        reach = limit + _OVERSHOOT * step
        return (math.expm1(min(reach, 600.0)) - reach) / (step * step / 2)

    low, high = 0.0, 600.0
    if mean_run(low) >= windows_per_alarm:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_run(middle) < windows_per_alarm else (low, middle)
    return high


def fit_level(
    counts_WK: Array, whens: Sequence[datetime], corrector: Corrector, rhythm: str,
    given: Mapping[str, Array] | None = None, unrest_K: Array | None = None,
) -> Level:  # fmt: skip
    """The level of windows without a shift. `given` effects and unrest are those of an earlier level."""
    num_texts_W = counts_WK.sum(1)
    pooled_K = corrector.shares(counts_WK.sum(0) + 1.0)  # as if every class had been said once more
    one_K = corrector.variance_of_one(pooled_K)
    shares_WK = corrector.shares(counts_WK)
    effects = dict(given or {})
    rest_WK = shares_WK - np.array([_effect(effects, when, shares_WK.shape[1]) for when in whens])
    chance_WK = one_K[None] / num_texts_W[:, None]
    if unrest_K is None:
        unrest_K = _unrest(rest_WK, chance_WK)
    level_K, variance_K = _mean(rest_WK, chance_WK + unrest_K)
    if rhythm != "none" and not effects:
        effects = _rhythm(rest_WK - level_K, chance_WK + unrest_K, whens, rhythm)
        rest_WK = shares_WK - np.array([_effect(effects, when, shares_WK.shape[1]) for when in whens])
        unrest_K = _unrest(rest_WK, chance_WK)
        level_K, variance_K = _mean(rest_WK, chance_WK + unrest_K)
    return Level(level_K, variance_K, unrest_K, one_K, effects)


def _mean(values_WK: Array, variances_WK: Array) -> tuple[Array, Array]:
    weights_WK = 1 / variances_WK
    return (weights_WK * values_WK).sum(0) / weights_WK.sum(0), 1 / weights_WK.sum(0)


def _unrest(values_WK: Array, chance_WK: Array) -> Array:
    """Variance between windows beyond what chance explains, by moments (DerSimonian and Laird)."""
    weights_WK = 1 / chance_WK
    mean_K, _ = _mean(values_WK, chance_WK)
    spread_K = (weights_WK * (values_WK - mean_K) ** 2).sum(0) - (len(values_WK) - 1)
    total_K = weights_WK.sum(0)
    return np.maximum(0.0, spread_K / (total_K - (weights_WK**2).sum(0) / total_K))


def _slots(name: str, whens: Sequence[datetime]) -> Array:
    return np.array([when.hour if name == "hour" else when.weekday() for when in whens])


def _rhythm(rest_WK: Array, variances_WK: Array, whens: Sequence[datetime], rhythm: str) -> dict[str, Array]:
    """Effects of hours, and of days: each slot's mean, drawn towards 0 by as much as slots differ by chance alone."""
    sizes = {"hour": 24, **({"day": 7} if rhythm == "weekly" else {})}
    num_classes = rest_WK.shape[1]
    effects = {name: np.zeros((size, num_classes)) for name, size in sizes.items()}
    for _ in range(3):  # hours and days are fitted in turns, since weeks are not always whole
        for name, size in sizes.items():
            others = {other: effect for other, effect in effects.items() if other != name}
            left_WK = rest_WK - np.array([_effect(others, when, num_classes) for when in whens])
            slots_W = _slots(name, whens)
            means_HK, chances_HK = np.zeros((size, num_classes)), np.full((size, num_classes), np.inf)
            for slot in np.unique(slots_W):
                own = slots_W == slot
                means_HK[slot], chances_HK[slot] = _mean(left_WK[own], variances_WK[own])
            known = np.isfinite(chances_HK[:, 0])
            if known.sum() > 1:
                apart_K = _unrest(means_HK[known], chances_HK[known])
                effects[name] = means_HK * (apart_K / (apart_K + chances_HK))
    return effects


def _effect(effects: Mapping[str, Array], when: datetime, num_classes: int) -> Array:
    total_K = np.zeros(num_classes)
    for name, effect_HK in effects.items():
        total_K = total_K + effect_HK[when.hour if name == "hour" else when.weekday()]
    return total_K
