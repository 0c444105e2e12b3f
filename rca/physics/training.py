"""Series of the training exporter, one target a rank.

Steps count when they end, so every sum and count is that of whole steps, however short the scrape interval. Time spent
in a checkpoint or an evaluation belongs to no phase. Data loading is reported by the ranks that load; samples and
tokens by the rank that computes a replica's loss (tensor and context index 0, last stage), so that they add up to the
job's; the loss by the last rank alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rca.library import seconds
from rca.model import Floats
from rca.physics.cluster import Ints
from rca.physics.dcgm import bus, uuid
from rca.physics.layout import ABSENT, STATES
from rca.physics.run import DT, JobTrace, Trace, generator
from rca.physics.scrape import Family, Labels, MetricType, Scrapes, between, hold

_PHASE = "train_phase_duration_seconds"
_TEN_DAYS = 864_000.0


@dataclass(frozen=True, eq=False)
class Ranks:
    """The ranks of a job as their exporter shows them: `now` (R, S) is the scrape, `ended` when the last step ended.

    `done` (R, S) counts the steps of the process until then. All times in seconds from the start of the scenario.
    """

    trace: Trace
    job: JobTrace
    target: Ints
    labels: Sequence[Labels]
    now: Floats
    ended: Floats
    done: Floats

    def total(self, per_step: Floats, rows: Ints) -> Floats:
        """Return a counter that grows by `per_step` (T, entities) with each step; column `rows[i]` for rank i."""
        added = per_step * np.diff(self.job.progress)[:, None]
        before = per_step[0] * self.job.progress[0]
        total = before + np.concatenate([np.zeros((1, per_step.shape[1])), np.cumsum(added, axis=0)])
        return between(total, rows, self.ended)

    def family(self, name: str, draw: Callable[[], Floats], *labels: Labels) -> Family:
        """Make a family with the same extra labels on all ranks."""
        extra = {key: value for more in labels for key, value in more.items()}
        return Family(name, _type(name), [{**own, **extra} for own in self.labels], self.target, draw)

    def part(self, chosen: Ints) -> "Ranks":
        """Return some of the ranks."""
        labels = [self.labels[i] for i in chosen]
        return Ranks(
            self.trace, self.job, self.target[chosen], labels, self.now[chosen], self.ended[chosen], self.done[chosen]
        )


def _type(name: str) -> MetricType:
    if name.endswith("_info"):
        return "info"
    if name.endswith(("_seconds_sum", "_seconds_count")):
        return "summary"
    return "counter" if name.endswith("_total") else "gauge"


def families(trace: Trace, scrapes: Scrapes, epoch: float) -> Iterator[Family]:
    """Yield all series of all ranks of all jobs."""
    for number in range(len(trace.jobs)):
        ranks = _ranks(trace, scrapes, number)
        yield from _identity(ranks)
        yield from _progress(ranks, epoch)
        if trace.plant.scenario.telemetry.timers == "minmax":
            yield from _printed(ranks)
        else:
            yield from _phases(ranks)
            yield from _waits(ranks)
            yield from _batches(ranks)
            yield from _collections(ranks)
        yield from _counted(ranks)
        yield from _losses(ranks)
        yield from _memory(ranks)
        if ranks.job.layout.job.checkpoint is not None:
            yield from _checkpoints(ranks)


def _ranks(trace: Trace, scrapes: Scrapes, number: int) -> Ranks:
    job = trace.jobs[number]
    target = np.array([i for i, t in enumerate(scrapes.targets) if t.layout == number], dtype=np.int64)
    now = scrapes.times[target]
    done = np.floor(np.interp(now, trace.edges, job.progress))
    ended = np.interp(done, job.progress, trace.edges)
    labels = [{**scrapes.targets[t].labels, "job_id": job.layout.job.id, "rank": str(r)} for r, t in enumerate(target)]
    return Ranks(trace, job, target, labels, now, np.minimum(ended, now), done)


def _identity(ranks: Ranks) -> Iterator[Family]:
    layout, hardware = ranks.job.layout, ranks.trace.plant.hardware
    job = layout.job
    indices = {axis: layout.index(axis) for axis in ("dp", "tp", "pp", "cp")}
    labels = []
    for rank, own in enumerate(ranks.labels):
        gpu = int(layout.gpu[rank])
        slot = int(hardware.slot[gpu])
        place = {"local_rank": str(slot), "node": hardware.nodes[layout.node[rank]], "gpu": str(slot)}
        chip = {"gpu_uuid": uuid(gpu), "pci_bus_id": bus(slot)}
        position = {f"{axis}_rank": str(index[rank]) for axis, index in indices.items()}
        labels.append({**own, **place, **chip, **position, "framework": "megatron"})
    ones = np.ones(ranks.now.shape)
    yield Family("train_rank_info", "info", labels, ranks.target, lambda: ones)
    size = {"tp": job.tp, "cp": job.cp, "dp": job.dp, "pp": job.pp, "world_size": len(layout)}
    about = {
        "model": job.model,
        "seq_len": str(job.tokens),
        "global_batch_size": str(job.samples),
        "ep": str(job.ep),
    }
    sizes = {key: str(value) for key, value in size.items()}
    first = ranks.part(np.array([0]))
    yield first.family("train_job_info", lambda: ones[:1], about, sizes)


def _progress(ranks: Ranks, epoch: float) -> Iterator[Family]:
    job, trace = ranks.job, ranks.trace
    state = hold(trace, job.state[:, None].astype(np.float64), np.zeros(len(ranks.target), dtype=np.int64), ranks.now)
    labels = [{**own, "state": name} for name in STATES for own in ranks.labels]
    values = np.concatenate([(state == code).astype(np.float64) for code in range(len(STATES))])
    yield Family("train_state", "gauge", labels, np.tile(ranks.target, len(STATES)), lambda: values)
    yield ranks.family("train_steps_total", lambda: ranks.done)
    yield ranks.family("train_step", lambda: ranks.done)
    planned = job.layout.job.steps or float(f"{_TEN_DAYS / seconds(job.layout.job.step):.3g}")
    first = ranks.part(np.array([0]))
    yield first.family("train_target_steps", lambda: np.full(first.now.shape, planned))
    yield ranks.family("train_last_step_timestamp_seconds", lambda: epoch + ranks.ended)
    alive = np.flatnonzero(job.state != ABSENT)
    started = trace.edges[alive[0]] if len(alive) and alive[0] > 0 else -3600.0 * 30.0
    yield ranks.family("train_start_timestamp_seconds", lambda: np.full(ranks.now.shape, epoch + started))
    step = job.steps["seconds"][:, None]
    every = np.zeros(len(ranks.target), dtype=np.int64)
    yield ranks.family("train_step_duration_seconds_sum", lambda: ranks.total(step, every))
    yield ranks.family("train_step_duration_seconds_count", lambda: ranks.done)
    yield _histogram(ranks.part(np.array([0])), step)


def _histogram(first: Ranks, step: Floats) -> Family:
    """Return the steps of the first rank that stayed below bounds, 15 % apart; all ranks have the same step."""
    planned = seconds(first.job.layout.job.step)
    bounds = [*(planned * 1.15**power for power in range(-4, 13)), np.inf]
    labels = [{**first.labels[0], "le": "+Inf" if np.isinf(bound) else f"{bound:.4g}"} for bound in bounds]
    below = np.concatenate([step <= bound for bound in bounds], axis=1).astype(np.float64)
    several = replace(
        first, ended=np.repeat(first.ended, len(bounds), axis=0), target=np.repeat(first.target, len(bounds))
    )
    draw = _totalling(several, below, np.arange(len(bounds)))
    return Family("train_step_duration_seconds_bucket", "unknown", labels, several.target, draw)


def _cells(ranks: Ranks, name: str) -> tuple[Floats, Ints]:
    """Return an array of the cells as (T, cells), and the cell of each rank."""
    layout = ranks.job.layout
    values = ranks.job.steps[name]
    return values.reshape(len(values), -1), layout.index("pp") * layout.job.dp + layout.index("dp")


def _sync(ranks: Ranks) -> tuple[Floats, Ints]:
    """Return the gradient transfer of groups as (T, groups), and the group of each rank."""
    layout = ranks.job.layout
    values = ranks.job.steps["sync"]
    group = (layout.index("pp") * layout.job.cp + layout.index("cp")) * layout.job.tp + layout.index("tp")
    return values.reshape(len(values), -1), group


def _timed(ranks: Ranks) -> dict[str, tuple[Floats, Ints]]:
    """Return the time of each phase by its owner, (T, owners), and the owner of each rank."""
    job = ranks.job.layout.job
    optimizer = np.full((len(ranks.job.state), 1), ranks.job.plan.optimizer)
    every = np.zeros(len(ranks.target), dtype=np.int64)
    phases = {
        "forward_compute": _cells(ranks, "forward"),
        "backward_compute": _cells(ranks, "backward"),
        "batch_generator": _cells(ranks, "data"),
        "grads_sync": _sync(ranks),
        "optimizer": (optimizer, every),
    }
    if job.pp > 1:
        phases["pp_forward_recv"] = _cells(ranks, "forward_recv")
        phases["pp_backward_recv"] = _cells(ranks, "backward_recv")
    return phases


def _phases(ranks: Ranks) -> Iterator[Family]:
    for phase, (values, rows) in _timed(ranks).items():
        label = {"phase": phase}
        yield ranks.family(f"{_PHASE}_sum", _totalling(ranks, values, rows), label)
        yield ranks.family(f"{_PHASE}_count", lambda: ranks.done, label)


def _printed(ranks: Ranks) -> Iterator[Family]:
    """Yield the shortest and the longest of each phase over all ranks, as the last rank prints them."""
    last = ranks.part(np.array([len(ranks.target) - 1]))
    every = np.zeros(1, dtype=np.int64)
    for phase, (values, _) in _timed(ranks).items():
        for name, reduced in (("min", values.min(axis=1)), ("max", values.max(axis=1))):
            draw = partial(hold, ranks.trace, reduced[:, None], every, last.ended)
            yield last.family(f"train_phase_{name}_seconds", draw, {"phase": phase})


def _collections(ranks: Ranks) -> Iterator[Family]:
    pause = ranks.job.steps["pause"]
    if pause.size:
        yield ranks.family("train_gc_seconds_total", _totalling(ranks, pause, np.arange(len(ranks.target))))


def _counted(ranks: Ranks) -> Iterator[Family]:
    """Yield the steps that gave no usable gradient; in health there are none."""
    last = ranks.part(np.array([len(ranks.target) - 1]))
    for check in ("train_rerun_mismatches_total", "train_weight_hash_mismatches_total"):
        yield ranks.family(check, lambda: np.zeros(ranks.now.shape))
    yield last.family("train_skipped_steps_total", lambda: np.zeros(last.now.shape))
    yield last.family("train_nonfinite_steps_total", lambda: np.zeros(last.now.shape), {"kind": "nan"})


def _totalling(ranks: Ranks, values: Floats, rows: Ints) -> Callable[[], Floats]:
    return lambda: ranks.total(values, rows)


def _waits(ranks: Ranks) -> Iterator[Family]:
    """Yield waits: for input, in receives, before the gradients are summed, and after for slower groups of the model.

    Waits inside a tensor-parallel group during work are not seen by anybody: they are part of the work phases.
    """
    layout, name = ranks.job.layout, "train_collective_wait_seconds_total"
    loading = ranks.part(np.flatnonzero(layout.reads))
    yield loading.family("train_dataloader_queue_length", lambda: np.full(loading.now.shape, 16.0))
    data, cell = _cells(ranks, "data")
    yield loading.family("train_data_wait_seconds_total", _totalling(loading, data, cell[layout.reads]))
    waits = {"dp": (ranks.job.steps["dp_wait"], layout.index("dp"))}
    sync, group = _sync(ranks)
    late = sync.max(axis=1, keepdims=True) - sync
    if layout.job.pp > 1:
        forward, backward = _cells(ranks, "forward_recv")[0], _cells(ranks, "backward_recv")[0]
        waits["pp"] = (forward + backward, cell)
    if layout.job.tp > 1:
        waits["tp"] = (late, group)
    elif layout.job.pp > 1:
        waits["pp"] = (waits["pp"][0][:, cell] + late[:, group], np.arange(len(layout)))
    for kind, (values, rows) in waits.items():
        yield ranks.family(name, _totalling(ranks, values, rows), {"group": kind})


def _batches(ranks: Ranks) -> Iterator[Family]:
    trace, layout = ranks.trace, ranks.job.layout
    job = layout.job
    row = ranks.job.plan.row
    factor = trace.spread("tokens")[:, trace.plant.ranks(row)]
    tokens = job.samples / job.dp * job.tokens / job.cp
    noise = generator(trace.plant.scenario.seed, f"tokens {row}").standard_normal((4096, job.dp))
    every = np.arange(len(layout))

    def batch() -> Floats:
        vary = noise[ranks.done.astype(np.int64) % len(noise), layout.index("dp")[:, None]]
        batch = tokens * hold(trace, factor, every, ranks.ended) * (1.0 + 0.01 * vary)
        return np.where(ranks.done > 0, np.round(batch), np.nan)

    yield ranks.family("train_batch_tokens", batch)
    counting = (layout.index("tp") == 0) & (layout.index("cp") == 0) & (layout.index("pp") == job.pp - 1)
    some = ranks.part(np.flatnonzero(counting))
    yield some.family("train_samples_total", lambda: some.done * job.samples / job.dp)
    per_step = factor * job.samples / job.dp * job.tokens
    yield some.family("train_tokens_total", lambda: np.floor(some.total(per_step, every[counting])))


def _losses(ranks: Ranks) -> Iterator[Family]:
    job, last = ranks.job.layout.job, ranks.part(np.array([len(ranks.target) - 1]))
    noise = generator(ranks.trace.plant.scenario.seed, f"loss {ranks.job.plan.row}").standard_normal((2, 4096))
    fresh = job.warm_up is not None
    steps = last.done - (0.0 if fresh else ranks.job.progress[0])
    hours = steps * seconds(job.step) / 3600.0
    loss = 2.0 + 8.8 * np.exp(-steps / 150.0) if fresh else 2.0 + 0.5 * np.exp(-hours - 0.3)
    index = last.done.astype(np.int64) % noise.shape[1]
    seen = np.where(last.done > 0, loss + 0.008 * noise[0][index], np.nan)
    norm = np.where(last.done > 0, 0.7 * np.exp(0.1 * noise[1][index]), np.nan)
    yield last.family("train_loss", lambda: seen, {"loss": "lm"})
    yield last.family("train_grad_norm", lambda: norm)
    yield last.family("train_learning_rate", lambda: np.where(last.done > 0, 1.5e-4, np.nan))


def _memory(ranks: Ranks) -> Iterator[Family]:
    """Yield what the caching allocator says: it holds most of the memory, and never had to give any back."""
    trace, gpu = ranks.trace, ranks.job.layout.gpu
    held = trace.plant.hardware.model.memory * 1048576.0 * 0.9

    def reserved() -> Floats:
        running = hold(trace, trace.gpu["running"], gpu, ranks.now)
        return np.where(running > 0, held, np.nan)

    yield ranks.family("train_gpu_memory_reserved_bytes", reserved)
    yield ranks.family("train_alloc_retries_total", lambda: np.zeros(ranks.now.shape))


def _checkpoints(ranks: Ranks) -> Iterator[Family]:
    """Yield how long checkpoints took, as the first rank tells it when one has ended."""
    saving = np.concatenate([[False], ranks.job.state == STATES.index("save_checkpoint")])
    ended = np.flatnonzero(saving[:-1] & ~saving[1:]) + 1
    lasted = np.diff(np.cumsum(saving * DT)[ended], prepend=0.0)
    edges = ranks.trace.edges
    first = ranks.part(np.array([0]))
    name, labels = "train_checkpoint_duration_seconds", {"op": "save", "mode": "sync"}

    def told(of_each: Floats) -> Floats:
        done = np.searchsorted(edges[ended], first.now, side="right")
        return np.concatenate([[0.0], np.cumsum(of_each)])[done]

    yield first.family(f"{name}_sum", lambda: 45.0 + told(lasted), labels)
    yield first.family(f"{name}_count", lambda: 1.0 + told(np.ones(len(ended))), labels)
    yield first.family("train_checkpoint_failures_total", lambda: np.zeros(first.now.shape))
