"""What a person would read off the series of a simulated cluster."""

from collections.abc import Mapping

import numpy as np

from rca.model import Floats
from rca.physics.world import World

TAIL = slice(-24, None)  # the last six minutes at 15 s


def rows(world: World, name: str, **labels: str) -> list[int]:
    """Return the rows of a metric with these labels, ranks in their order."""
    metric = world.metrics[name]
    chosen = [i for i, own in enumerate(metric.labels) if all(own.get(key) == value for key, value in labels.items())]
    return sorted(chosen, key=lambda row: int(metric.labels[row].get("rank", row)))


def gauge(world: World, name: str, part: slice = TAIL, **labels: str) -> Floats:
    """Return (n,): the mean of each series."""
    return np.nanmean(world.metrics[name].values[rows(world, name, **labels)][:, part], axis=1)


def growth(world: World, name: str, part: slice = TAIL, **labels: str) -> Floats:
    """Return (n,): how much each counter grew between its first and last sample."""
    values = world.metrics[name].values[rows(world, name, **labels)][:, part]
    found = [series[~np.isnan(series)] for series in values]
    return np.array([series[-1] - series[0] for series in found])


def rate(world: World, name: str, part: slice = TAIL, **labels: str) -> Floats:
    """Return (n,): growth a second."""
    metric, chosen = world.metrics[name], rows(world, name, **labels)
    spans = []
    for row in chosen:
        times = metric.times[row, part][metric.there[row, part]]
        spans.append(times[-1] - times[0])
    return growth(world, name, part, **labels) / np.array(spans)


def per_step(world: World, name: str, part: slice = TAIL, **labels: str) -> Floats:
    """Return (n,): growth a step of each rank's counter, between scrapes that both have."""
    chosen = rows(world, name, **labels)
    metric, steps = world.metrics[name], world.metrics["train_steps_total"]
    by_rank: Mapping[tuple[str, str], int] = {(own["job_id"], own["rank"]): i for i, own in enumerate(steps.labels)}
    found = []
    for row in chosen:
        own = metric.labels[row]
        counted = steps.values[by_rank[own["job_id"], own["rank"]], part]
        series = metric.values[row, part]
        both = np.flatnonzero(~np.isnan(series) & ~np.isnan(counted))
        found.append((series[both[-1]] - series[both[0]]) / (counted[both[-1]] - counted[both[0]]))
    return np.array(found)


def phase(world: World, name: str, part: slice = TAIL) -> Floats:
    """Return (ranks,): seconds a step in a phase."""
    return per_step(world, "train_phase_duration_seconds_sum", part, phase=name)


def wait(world: World, part: slice = TAIL) -> Floats:
    """Return (ranks,): seconds a step that each rank waits for others."""
    name = "train_collective_wait_seconds_total"
    kinds = sorted({own["group"] for own in world.metrics[name].labels})
    return np.sum([per_step(world, name, part, group=kind) for kind in kinds], axis=0)


def work(world: World, part: slice = TAIL) -> Floats:
    """Return (ranks,): seconds a step of forward and backward compute without data loading."""
    return (
        phase(world, "forward_compute", part)
        + phase(world, "backward_compute", part)
        - phase(world, "batch_generator", part)
    )


def cycles(world: World, part: slice = TAIL) -> Floats:
    """Return (GPUs,): W, tensor activity times SM clock in MHz."""
    return gauge(world, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", part) * gauge(world, "DCGM_FI_DEV_SM_CLOCK", part)
