"""Several places at once as one source: files of other systems, their servers, and Prometheus."""

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

import numpy as np

from rca.errors import SourceError
from rca.library import Library
from rca.model import Snapshot, Window
from rca.plain import natural, stamp
from rca.sources.assemble import Deployment, assemble
from rca.sources.foreign import Place, Ways
from rca.sources.http import Site
from rca.sources.kept import Kept, Series, Several
from rca.sources.logs import Spoken, told
from rca.sources.ranks import DEFAULT
from rca.sources.series import Store

_OF_GPUS = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_SM_CLOCK")
"""Metrics of which every source of GPUs has one, the best first."""
FEWEST, ENOUGH = 3, 10
"""Samples that a window must hold, and those that it is better to have."""


class Live(Store, Protocol):
    """A store of a server, which knows the time."""

    site: Site

    def now(self) -> float:
        """Return the server's clock, unix seconds."""
        ...

    def extent(self) -> tuple[float, float] | None:
        """Return the times between which the server has samples, None where it has none or cannot tell."""
        ...


def read(importer: str, place: Place, ways: Ways) -> "Kept | Live":
    """Read a place by the importer of that name."""
    module = import_module(f"rca.sources.{importer}")
    found: Kept | Live = module.read(place, ways)
    return found


class FilesSource:
    """What was read from several places, with the servers among them last."""

    def __init__(self, stores: Sequence[Kept | Live], deployment: Deployment | None = None) -> None:
        self.kept = [store for store in stores if isinstance(store, Kept)]
        self.live = [store for store in stores if not isinstance(store, Kept)]
        self.deployment = deployment
        self._said: list[str] = []

    @property
    def where(self) -> str:
        """Name all the places."""
        return ", ".join([store.place for store in self.kept] + [store.site.url for store in self.live])

    def of_job(self, job: str = "") -> None:
        """Take what names no job for that of this one, else of the only one that is named."""
        named = {one for store in self.kept for one in store.told("job_id")} - {DEFAULT}
        job = job or (next(iter(named)) if len(named) == 1 and not self.live else "")
        alone = [store for store in self.kept if job and store.nobodys()]
        self.kept = [store.of_job(job) if store in alone else store for store in self.kept]
        self._said = [f"{store.place}: tells no job, what it says is taken to be of {job}" for store in alone]
        if self.live and not job:
            self._said += [
                f"{store.place}: names no job; that it is one with the server's is told by --job, or NAME= before the path"
                for store in self.kept
                if isinstance(store, Spoken) and store.nobodys()
            ]

    def assume_ranks(self) -> None:
        """Take the i-th GPU of the job for that of rank i, where files are all there is and none tells a rank's GPU.

        Without it no GPU could be the reason for a slow job. Where ranks have series of their own, more than the first
        and the last that print for all, a wrong guess would accuse the wrong GPU, so none is made.
        """
        ranks = max(len(store.told("rank")) for store in self.kept) if self.kept else 0
        placed = any("train_rank_info" in store.blocks for store in self.kept)
        found = [one for store in self.kept for metric in _OF_GPUS for one in store.series(metric)]
        gpus = {
            (one.labels.get("Hostname", ""), one.labels["gpu"]): one for one in reversed(found) if "gpu" in one.labels
        }
        jobs = {one.labels.get("job_id", "") for one in gpus.values()}
        if self.live or placed or ranks not in {1, 2} or len(jobs) != 1 or jobs == {""}:
            return
        series = []
        for rank, (node, gpu) in enumerate(sorted(gpus, key=lambda key: tuple(map(natural, key)))):
            seen = gpus[node, gpu]
            where = {"job_id": jobs.copy().pop(), "rank": str(rank), "node": node, "gpu": gpu}
            labels = {"__name__": "train_rank_info", **where, "gpu_uuid": seen.labels.get("UUID", "")}
            series.append(Series(labels, seen.times, np.ones(len(seen.times))))
        self.kept.append(Kept(series, "ranks"))
        self._said.append(
            "ranks: no file tells which rank runs on which GPU, the i-th GPU is taken for that of rank i, so a rank's "
            "number and its place in the job may be others"
        )

    def latest(self) -> float:
        """Return the present of a server where there is one, else the time of the last sample."""
        if self.live:
            return self.live[-1].now()
        ends = [extent[1] for store in self.kept if (extent := store.extent()) is not None]
        if not ends:
            raise SourceError(f"{', '.join(store.place for store in self.kept)}: no sample that the rules read")
        return max(ends)

    def extent(self) -> tuple[float, float] | None:
        """Return the times between which there are samples, None where there are none."""
        stores: list[Kept | Live] = [*self.kept, *self.live]
        ends = [extent for store in stores if (extent := store.extent()) is not None]
        return (min(first for first, _ in ends), max(last for _, last in ends)) if ends else None

    def sparse(self, window: Window) -> list[str]:
        """Say of each file that has too few samples in a window, or none, how to see more of it."""
        return [said for said in (_sparse(store, window) for store in self.kept if store.place != "ranks") if said]

    def snapshot(self, library: Library, window: Window) -> Snapshot:
        """Read all that the library's rules ask for."""
        store = Several([*self.kept, *self.live], [*self._said, *self.sparse(window)])
        spoken = [one for one in self.kept if isinstance(one, Spoken)]
        others = [one for one in (*self.kept, *self.live) if one not in spoken]
        return told(spoken, others, window, lambda: assemble(store, library.in_use(), window, self.deployment))


def _sparse(store: Kept, window: Window) -> str:
    extent, interval = store.extent(), store.interval()
    if extent is None:
        return f"{store.place}: no sample that the rules read"
    first, last = extent
    if last < window.start or first > window.end:
        return (
            f"{store.place}: no sample between {stamp(window.start)} and {stamp(window.end)}, there are some from "
            f"{stamp(first)} to {stamp(last)}, write --at {stamp(last)}"
        )
    width = window.end - window.start
    if interval is None or width >= FEWEST * interval:
        return ""
    wide = np.ceil(ENOUGH * interval / 300.0) * 300.0
    return (
        f"{store.place}: it has samples that come every {interval:.0f} s, a window of {width:.0f} s is too short for them, write "
        f"--window {_duration(wide)} --baseline {_duration(3.0 * wide)}"
    )


def _duration(seconds: float) -> str:
    """Write a duration of whole minutes as flags take it.

    >>> _duration(9000.0), _duration(300.0)
    ('2h30m', '5m')
    """
    hours, minutes = divmod(round(seconds / 60.0), 60)
    return f"{hours}h" * bool(hours) + f"{minutes}m" * bool(minutes or not hours)
