"""What was so already while the job still ran well: the first quarter of the baseline, judged by the same rules.

A cause that held then, without an effect that is there now, did not bring that effect about, unless it has grown.
"""

import dataclasses
import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rca.detectors import Logged, Missing, OneOf, Rising, Set, Unlike
from rca.evaluate import Judgement, Look, Reading, median
from rca.library import Rule
from rca.model import Measurement, Snapshot
from rca.peers import Indices
from rca.rows import QUARTERS

GROWN = 0.2
"""A cause has grown where it reads so much more, as a share, than it read nine tenths of the time then."""
NEWLY = 0.03
"""The same of an effect; less is the flutter of a finding at its margin."""
USUAL = 0.9
_LEAST = {-1: NEWLY, 1: GROWN}
MOST_ROWS = 64
_EVENTS = (Logged, Missing, OneOf, Rising)
"""What happens at one moment: each time is another one."""
_NAMES = (Set, Unlike)
"""Detectors that read a mask or a name, of which there is no more or less."""


class Earlier:
    """The rules on the first quarter of a snapshot's baseline; nothing is known where there is no baseline."""

    def __init__(self, look: Look) -> None:
        """Judge nothing yet; rules are judged when they are asked for."""
        self._now = look
        self._judged: dict[str, Judgement] = {}
        self._fresh: dict[tuple[str, int, float], bool] = {}

    @cached_property
    def _then(self) -> Look | None:
        past = earlier(self._now.snapshot)
        return None if past is None else Look(self._now.library, past)

    def predates(self, cause: tuple[Judgement, Indices], effect: tuple[Judgement, Indices]) -> bool:
        """Say whether a cause held on all its rows already when most of these effects did not, or were far less, and has
        not grown."""
        judged, rows = effect[0], effect[1][:MOST_ROWS]
        if not len(rows) or not self.held(*cause):
            return False
        then = self._state(judged.rule)[rows]
        new = [
            row
            for row, state in zip(rows, then, strict=True)
            if state and self._grew(judged, int(row), _LEAST[int(state)])
        ]
        return 2 * len(new) >= len(rows) and not any(
            self._grew(cause[0], int(row), GROWN) for row in cause[1][:MOST_ROWS]
        )

    def held(self, judged: Judgement, rows: Indices) -> bool:
        """Say whether a finding was there already on all of these rows."""
        then = self._state(judged.rule)
        return bool(len(then)) and bool((then[rows] == 1).all())

    def lasting(self, judged: Judgement, rows: Indices) -> NDArray[np.bool_]:
        """Say which findings were there then, or nearly, and no less."""
        then = self._state(judged.rule)
        if not len(then):
            return np.zeros(len(rows), dtype=bool)
        grew = [
            not state or self._grew(judged, int(row), _LEAST[int(state)])
            for row, state in zip(rows, then[rows], strict=True)
        ]
        return ~np.array(grew, dtype=bool)

    def _state(self, rule: Rule) -> Indices:
        if self._then is None:
            return np.array([], dtype=np.int64)
        if rule.id not in self._judged:
            self._judged[rule.id] = self._then.judge(rule)
        return self._judged[rule.id].state.astype(np.int64)

    def _grew(self, judged: Judgement, row: int, by: float) -> bool:
        """Say whether what makes a finding reads more than it did then, by a share of `by`, or is an event of its own."""
        key = (judged.rule.id, row, by)
        if key not in self._fresh:
            readings = [one for one in self._now.readings(judged, row) if not one.denied]
            sized = [one for one in readings if not isinstance(one.leaf, _NAMES)]
            own = [one for one in sized if one.kind == judged.rule.entity]
            self._fresh[key] = any(self._more(one, by) for one in own or sized)
        return self._fresh[key]

    def _more(self, reading: Reading, by: float) -> bool:
        if isinstance(reading.leaf, _EVENTS):
            return True
        scored = None if self._then is None else self._then.score(reading.leaf, reading.kind)
        if scored is None or not math.isfinite(reading.value):
            return False
        score, view = scored
        known = np.sort(score.sense * view.values[reading.row][~np.isnan(view.values[reading.row])])
        if not len(known):
            return False
        usual = float(known[round(USUAL * (len(known) - 1))])
        return score.sense * reading.value - usual > by * abs(median(view.values[reading.row]))


def earlier(snapshot: Snapshot) -> Snapshot | None:
    """Return the first quarter of a snapshot's baseline as a snapshot that is its own baseline; None without one."""
    width = len(snapshot.before_times) // QUARTERS
    if width < 2:
        return None
    past = {name: known for name, one in snapshot.measurements.items() if (known := _past(one, width)) is not None}
    times = snapshot.before_times[:width]
    return dataclasses.replace(snapshot, times=times, before_times=times, measurements=past)


def _past(one: Measurement, width: int) -> Measurement | None:
    """Return what a measurement was in the first `width` columns of its baseline, a constant as it is."""
    if one.before is not None:
        part = one.before[:, :width]
        return dataclasses.replace(one, window=part, before=part)
    first = one.window[:, :1]
    if not len(first) or not np.array_equal(first, one.window[:, -1:], True):  # mostly, and quick
        return None
    constant = np.array_equal(np.broadcast_to(first, one.window.shape), one.window, True)
    return dataclasses.replace(one, window=np.repeat(first, width, axis=1)) if constant else None
