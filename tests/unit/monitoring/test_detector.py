"""The detector on made-up predictions: shares are corrected, shifts found once, chance mostly left alone."""

from __future__ import annotations

import json
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from remask.config import Switch, switches
from remask.monitoring.detector import Detector, Judged, cusum_limit
from remask.monitoring.settings import AlarmSettings
from remask.monitoring.shares import Corrector

CLASSES = ("bad", "fine")
CONFUSION = [[160, 40], [30, 170]]  # of 200 bad ones 160 are called bad
TRUE_TO_SAID = np.array(CONFUSION) / 200
UTC = ZoneInfo("UTC")


def detector(settings: AlarmSettings | None = None, state: dict | None = None) -> Detector:
    return Detector(CLASSES, CLASSES, Corrector(CONFUSION, 2), settings or AlarmSettings(), UTC, state)


def said(rng: np.random.Generator, share: float, num_texts: int) -> list[int]:
    """What the classifier says about texts of which this share is bad."""
    return rng.multinomial(num_texts, np.array([share, 1 - share]) @ TRUE_TO_SAID).tolist()


def watch(one: Detector, shares: list[float], num_texts: int, seed: int = 0, first: int = 0) -> list[Judged]:
    rng = np.random.default_rng(seed)
    return [one.take((first + i) * 3600, said(rng, share, num_texts)) for i, share in enumerate(shares)]


def test_shares_are_what_the_mistakes_point_to() -> None:
    corrector = Corrector(CONFUSION, 2)
    counts = np.array([0.3, 0.7]) @ TRUE_TO_SAID * 10_000
    assert corrector.shares(counts)[0] == pytest.approx(0.3, abs=0.01)
    assert Corrector(None, 2).shares(counts)[0] == pytest.approx(0.345, abs=1e-6)
    # A correction costs certainty: the said share moves by less than the true one.
    shares = np.array([0.3, 0.7])
    assert corrector.variance_of_one(shares)[0] > 1.5 * Corrector(None, 2).variance_of_one(shares)[0]
    drawn = np.random.default_rng(1).multinomial(50, shares @ corrector.matrix_KK, size=20_000)
    assert corrector.shares(drawn)[:, 0].var() * 50 == pytest.approx(corrector.variance_of_one(shares)[0], rel=0.05)
    assert not Corrector([[50, 50], [49, 51]], 2).is_usable


def test_a_shift_is_one_alarm_with_its_onset_and_size() -> None:
    onsets, delays, sizes = [], [], []
    for seed in range(7):
        judged = watch(detector(), [0.3] * 60 + [0.5] * 60, 100, seed)
        ((start, shift),) = [(o.start, o.shift) for o in judged if o.shift is not None and o.start >= 60 * 3600]
        onsets.append(shift.onset / 3600)
        delays.append(start / 3600 - 60)
        sizes.append(shift.sizes["bad"])
        assert shift.sizes["fine"] == pytest.approx(-shift.sizes["bad"])
    assert np.median(onsets) == pytest.approx(60, abs=1)
    assert np.median(sizes) == pytest.approx(0.2, abs=0.07)
    assert max(delays) <= 6
    back = watch(detector(), [0.3] * 60 + [0.5] * 60 + [0.3] * 40, 100)
    assert [np.sign(one.shift.sizes["bad"]) for one in back if one.shift] == [1, -1]


def test_few_texts_widen_the_band_and_wait_longer() -> None:
    many, few = (watch(detector(), [0.3] * 60 + [0.5] * 80, size) for size in (200, 15))
    width = [np.subtract(*one[40].band("bad")[::-1]) for one in (many, few)]
    assert width[1] > 2.5 * width[0]
    raised = [next(one.start for one in run if one.shift and one.start >= 60 * 3600) / 3600 for run in (many, few)]
    assert raised[0] < raised[1]


def test_false_alarms_are_about_as_rare_as_asked() -> None:
    settings = AlarmSettings(rate=5.0)
    found = sum(bool(one.shift) for seed in range(3) for one in watch(detector(settings), [0.4] * 1000, 40, seed))
    assert 2 <= found <= 30  # 15 expected in 3,000 windows
    assert not any(one.shift for one in watch(detector(AlarmSettings(rate=0.01)), [0.4] * 1000, 40))


def test_the_limit_follows_the_rate() -> None:
    """Against a simulation of the sum itself."""
    rng = np.random.default_rng(0)
    step, limit = 0.8, cusum_limit(0.8, 200.0)
    sums, alarms = np.zeros(400), 0
    for _ in range(1000):
        sums = np.maximum(0, sums + step * (rng.normal(size=400) - step / 2))
        alarms += int((sums > limit).sum())
        sums[sums > limit] = 0.0
    assert 400 * 1000 / alarms == pytest.approx(200, rel=0.15)
    assert cusum_limit(0.8, 2000.0) > limit
    assert cusum_limit(12.0, 10.0) == 0.0


def test_a_daily_rhythm_is_no_shift() -> None:
    hours = [0.3 + 0.15 * np.sin(i / 24 * 2 * np.pi) for i in range(24 * 12)]
    plain, daily = (AlarmSettings(baseline=24 * 6, rhythm=rhythm, shift=0.1) for rhythm in ("none", "daily"))
    assert sum(bool(one.shift) for one in watch(detector(daily), hours, 150)) == 0
    shifted = [*hours, *(share + 0.15 for share in hours[:48])]
    alarms = [one.start / 3600 for one in watch(detector(daily), shifted, 150) if one.shift]
    assert len(alarms) == 1
    assert len(hours) <= alarms[0] <= len(hours) + 4
    # Without the rhythm each turn of the day is a shift.
    assert sum(bool(one.shift) for one in watch(detector(plain), hours, 150)) > 2


def test_the_state_is_all_there_is() -> None:
    shares = [0.3] * 40 + [0.5] * 20 + [0.35] * 30
    rng = np.random.default_rng(3)
    counts = [said(rng, share, 60) for share in shares]
    whole = detector()
    expected = [whole.take(i * 3600, one) for i, one in enumerate(counts)]
    state: dict | None = None
    found = []
    for i, one in enumerate(counts):
        again = detector(state=state)
        found.append(again.take(i * 3600, one))
        state = json.loads(json.dumps(again.state))
    assert found == expected
    assert sum(bool(one.shift) for one in found) >= 1


def test_pauses_change_nothing() -> None:
    one, two = detector(), detector()
    rng = np.random.default_rng(5)
    counts = [said(rng, 0.3, 50) for _ in range(50)]
    close = [one.take(i * 3600, c) for i, c in enumerate(counts)]
    apart = [two.take(i * 3600 * (1 + 100 * (i > 30)), c) for i, c in enumerate(counts)]
    assert [j.expected for j in close] == [j.expected for j in apart]


TURNED = [one for one in switches(AlarmSettings) if one.key != "correct"]  # which chooses the corrector: above


@pytest.mark.parametrize("one", TURNED, ids=lambda one: one.key)
def test_every_switch_of_the_alarm_is_live(one: Switch) -> None:
    swing = [0.3 + 0.1 * np.sin(i / 24 * 2 * np.pi) + (0.25 if i > 90 else 0.0) for i in range(140)]
    before = watch(detector(), swing, 80)
    for value in (value for value in one.values if value != one.default):
        assert watch(detector(AlarmSettings(**{one.key: value})), swing, 80) != before, f"{one.key} = {value!r}"
