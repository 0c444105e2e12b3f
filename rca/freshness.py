"""What a snapshot does not see: series that ended, a present that is missing, a window too short for the rules."""

import numpy as np

from rca.library import Library, seconds
from rca.model import Floats, Snapshot
from rca.peers import Indices
from rca.plain import counted

SILENCE = 120.0
"""Seconds without any sample before the end of the window that are worth a word, besides three collections."""
STALE = 300.0
"""Seconds without any sample after which nothing can be said of the present."""


def last_seen(values: Floats) -> Indices:
    """Return the column of the last sample of each row, -1 where there is none.

    >>> last_seen(np.array([[1.0, np.nan], [np.nan, np.nan]])).tolist()
    [0, -1]
    """
    known = np.isfinite(values)
    return np.where(known.any(axis=1), known.shape[1] - 1 - np.argmax(known[:, ::-1], axis=1), -1)


def silence(snapshot: Snapshot) -> float:
    """Return how many seconds before the end of the window the last sample of all lies; the window where none does."""
    for column in range(len(snapshot.times) - 1, -1, -1):
        if any(np.isfinite(one.window[:, column]).any() for one in snapshot.measurements.values()):
            return float(snapshot.times[-1] - snapshot.times[column])
    return float(np.ptp(snapshot.times))


def remarks(library: Library, snapshot: Snapshot) -> list[str]:
    """Say what the reader must know of the limits of this view."""
    said = []
    quiet = silence(snapshot)
    if quiet > SILENCE:
        said.append(f"samples: none in the last {quiet:.0f} s of the window, the present cannot be judged")
    length = float(np.ptp(snapshot.times)) + snapshot.step
    short = [rule for rule in library.rules.values() if seconds(rule.hold) > length]
    if short:
        longest = max((rule.hold for rule in short), key=seconds)
        said.append(
            f"window: {length:.0f} s is shorter than what {counted(len(short), 'rule')} must hold for, they could not be"
            f" judged; write --window {longest} or more"
        )
    return said + _ended(library, snapshot)


def _ended(library: Library, snapshot: Snapshot) -> list[str]:
    """Count for each kind the entities whose series ended inside the window while others live on."""
    worst: dict[str, tuple[int, int, str, str]] = {}
    for name, one in sorted(snapshot.measurements.items()):
        signal = library.signals[name]
        if signal.derived is not None or not len(one.window):
            continue
        allowed = (3 * max(one.interval, snapshot.step) + one.smoothing) / snapshot.step
        if np.isfinite(one.window[:, -int(allowed) :]).any(axis=1).all():
            continue
        last = last_seen(one.window)
        ended = np.flatnonzero((last >= 0) & (last < last.max() - allowed))
        if len(ended) > worst.get(signal.entity, (0,))[0]:
            table = snapshot.tables[signal.entity]
            first = " ".join(f"{label}={table.columns[label][ended[0]]}" for label in table.key)
            worst[signal.entity] = (len(ended), int((last >= 0).sum()), first, name)
    return [
        f"series: {name} ended inside the window on {count} of {counted(total, kind)}, for example {first}"
        for kind, (count, total, first, name) in sorted(worst.items())
    ]
