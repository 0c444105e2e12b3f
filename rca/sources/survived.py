"""Whether a job went on after a failure: what it has survived is none."""

from typing import NamedTuple

import numpy as np

from rca.loglines.heard import WAITS, Known
from rca.model import Floats

GOES_ON = 60.0
"""A step so many seconds after a failure shows that the job has survived it; what comes sooner was under way."""
NEAR = 5.0
"""Seconds by which the line of a step may come late."""


class Progress(NamedTuple):
    """When a job took steps, ascending unix seconds; where no line tells of any, when its ranks wrote calm lines."""

    steps: Floats

    @property
    def slack(self) -> float:
        """Return how long after a failure a step may still end that was under way: two usual steps, a minute at least.

        >>> Progress(np.array([0.0, 300.0, 600.0])).slack
        600.0
        """
        return max(GOES_ON, 2.0 * float(np.median(np.diff(self.steps)))) if len(self.steps) > 1 else GOES_ON

    @property
    def last(self) -> float:
        """Return when the last step was taken."""
        return float(self.steps[-1]) if len(self.steps) else -np.inf

    def after(self, time: float) -> float:
        """Return when the job first stepped after a failure, infinity where it never did.

        >>> progress = Progress(np.array([0.0, 30.0, 50.0, 500.0]))
        >>> progress.after(0.0), progress.after(450.0)
        (500.0, inf)
        """
        later = int(np.searchsorted(self.steps, time + self.slack))
        return float(self.steps[later]) if later < len(self.steps) else np.inf

    def goes_on(self, time: float) -> bool:
        """Say whether a job went on stepping after a failure as if nothing had been.

        >>> Progress(np.arange(0.0, 90.0, 5.0)).goes_on(1.0), Progress(np.array([0.0, 5.0, 10.0, 500.0])).goes_on(1.0)
        (True, False)
        """
        later = int(np.searchsorted(self.steps, time + self.slack))
        return 0 < later < len(self.steps) and float(self.steps[later] - self.steps[later - 1]) <= 2.0 * self.slack

    def stands(self, one: Known) -> bool:
        """Say whether a line belongs to a failure that the job has not survived; who waits must have done so for long.

        By what is not fatal in itself no step may have come later: it was caught.
        """
        time = one.line.time or 0.0
        if one.template.fatal:
            return time >= self.last - self.slack
        if not WAITS & one.groups.keys():
            return time >= self.last - NEAR
        return time >= self.last + GOES_ON and float(one.groups.get("ran_ms", np.inf)) >= 1000.0 * GOES_ON
