"""Let a scenario happen: the time loop that couples steps, clocks, watts and degrees."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rca.library import seconds
from rca.model import Floats
from rca.physics.cluster import GpuModel, Ints, assemble
from rca.physics.conditions import Conditions, Plant, healthy, unfold
from rca.physics.gpu import TIME_CONSTANT, Clocks, Limits, Load, clocks, limit, power, settle
from rca.physics.layout import STATES, TRAIN, Layout, agenda, place
from rca.physics.step import Course, Plan, Taken, roll, save_factor
from rca.physics.step import plan as plan_job
from rca.physics.stops import Stop, stop
from rca.physics.written import Scenario

DT = 5.0  # seconds of simulated time between two evaluations, a third of a usual scrape
BEFORE = 900.0  # seconds that the cluster has run under the first conditions when the scenario begins
STRETCH = 256  # turns that are prepared at once, so that large clusters need no more memory
_PAUSED = {"init": (0.0, 0.97), "compile": (0.02, 0.9), "load_checkpoint": (0.0, 0.95), "eval": (0.72, 0.03)}


@dataclass(frozen=True, eq=False)
class JobTrace:
    """What a job did. Row k of each array in `steps` (T, ...) holds from `edges[k]` to `edges[k + 1]`.

    `state` (T,) indexes `STATES` (-1: no process); `progress` (T + 1,) counts steps done at the edges.
    """

    layout: Layout
    plan: Plan
    state: Ints
    progress: Floats
    steps: Mapping[str, Floats]


@dataclass(frozen=True, eq=False)
class Trace:
    """What happened: `edges` (T + 1,) in seconds from the start; `gpu` holds arrays (T, G)."""

    plant: Plant
    edges: Floats
    conditions: tuple[Conditions, ...]
    segment: Ints
    gpu: Mapping[str, Floats]
    jobs: tuple[JobTrace, ...]

    def spread(self, name: str) -> Floats:
        """Return a fault field over time, (T, rows of its kind)."""
        return np.stack([conditions[name] for conditions in self.conditions])[self.segment]


def generator(seed: int, purpose: str) -> np.random.Generator:
    """Return the random numbers of one purpose, independent of how many others are drawn."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])


def lay_out(scenario: Scenario) -> Plant:
    """Build the hardware and place the jobs."""
    hardware = assemble(scenario.cluster, generator(scenario.seed, "hardware"))
    return Plant(scenario, hardware, tuple(place(job, hardware) for job in scenario.all_jobs()))


def happen(scenario: Scenario) -> Trace:
    """Simulate a scenario from its start to its end."""
    plant = lay_out(scenario)
    edges = np.arange(0.0, seconds(scenario.duration) + DT / 2, DT)
    segments = unfold(plant)
    since = np.array([conditions.since for conditions in segments])
    segment = np.searchsorted(since, edges[:-1], side="right") - 1
    plans = tuple(calibrate(plan_job(plant, job, DT), plant) for job in range(len(plant.layouts)))
    slower = [[save_factor(plant, layout, held) for layout in plant.layouts] for held in segments]
    saving = (np.array([held["saving"] for held in segments]) * np.array(slower))[segment]
    states = np.array([agenda(layout.job, edges[:-1], saving[:, row]) for row, layout in enumerate(plant.layouts)])
    states = states.reshape(len(plans), -1)
    stops = [[stop(plant, row, layout, held).halted for held in segments] for row, layout in enumerate(plant.layouts)]
    halted = np.array(stops, dtype=bool).reshape(len(plans), -1)[:, segment]
    states[halted & (states >= 0)] = TRAIN
    machine = Machine(plant, plans)
    machine.advance(segments[0], np.repeat(states[:, :1], int(BEFORE / DT), axis=1))
    parts = [machine.advance(segments[segment[some[0]]], states[:, some]) for some in _stretches(segment)]
    return Trace(
        plant=plant,
        edges=edges,
        conditions=segments,
        segment=segment,
        gpu=_joined([part.gpu for part in parts]),
        jobs=tuple(
            _job_trace(plans[j], states[j], halted[j], _joined([part.steps[j] for part in parts]))
            for j in range(len(plans))
        ),
    )


def _stretches(segment: Ints) -> Iterator[Ints]:
    """Yield the rows of turns that follow one another under the same conditions, `STRETCH` at most."""
    for same in np.split(np.arange(len(segment)), np.flatnonzero(np.diff(segment)) + 1):
        yield from np.split(same, range(STRETCH, len(same), STRETCH))


def _joined(parts: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _job_trace(plan: Plan, state: Ints, halted: NDArray[np.bool_], steps: Mapping[str, Floats]) -> JobTrace:
    done = np.where((state == TRAIN) & ~halted, DT / steps["seconds"], 0.0)
    start = 0.0 if plan.layout.job.warm_up is not None else 20000.0
    progress = start + np.concatenate([[0.0], np.cumsum(done)])
    return JobTrace(plan.layout, plan, state, progress, steps)


def calibrate(plan: Plan, plant: Plant) -> Plan:
    """Scale a job's work until its healthy step, waits and slow chips included, lasts as planned."""
    target = seconds(plan.layout.job.step)
    fine = replace(plan, draws=64)
    conditions, state = healthy(plant), np.array([TRAIN])
    machine = Machine(plant, (fine,))
    limits = machine.limits(conditions)
    stops = [stop(plant, plan.row, plan.layout, conditions)]
    temperature = np.full(len(plant.hardware.node), 50.0)
    dice = roll(fine, conditions, generator(plant.scenario.seed, f"calibrate {plan.row}"))
    for turn in range(6):
        clock = clocks(plant.hardware.model, limits, temperature, machine.load)
        taken = Course(fine, plant, conditions, [dice]).take(0, clock.busy[plan.layout.gpu])
        machine.occupy(stops, state, [taken])
        if turn > 1:
            pipe = target - taken.lasts
            bubble = 1.0 + (plan.layout.job.pp - 1) / plan.layout.job.micro_batches
            fine = replace(fine, work=fine.work * (1.0 + pipe / (fine.work.mean() * bubble)))
    return replace(fine, draws=plan.draws)


@dataclass(frozen=True, eq=False)
class Stretch:
    """Some rows of a trace: arrays (T, G) of GPUs, and for each job those of its steps (T, ...)."""

    gpu: Mapping[str, Floats]
    steps: Sequence[Mapping[str, Floats]]


class Machine:
    """The state that one turn hands to the next: temperatures, the air of each node, and how GPUs were loaded."""

    def __init__(self, plant: Plant, plans: tuple[Plan, ...]) -> None:
        self.plant = plant
        self.plans = plans
        self.rng = generator(plant.scenario.seed, "steps")
        self.air = np.zeros(len(plant.hardware.nodes))
        count = len(plant.hardware.node)
        nothing = np.zeros(count)
        self.load = Load(np.zeros(count, dtype=bool), nothing, nothing, nothing, np.ones(count))
        for plan in plans:
            self.load.running[plan.layout.gpu] = True
        working = np.where(self.load.running, plant.hardware.model.power_limit, plant.hardware.model.idle_power)
        self.temperature = settle(plant.hardware, healthy(plant), working)

    def limits(self, conditions: Conditions) -> Limits:
        """Return the limits of all GPUs under the kernels of their jobs."""
        intensity = np.ones(len(self.plant.hardware.node))
        for plan in self.plans:
            intensity[plan.layout.gpu] = plan.layout.job.intensity
        return limit(self.plant.hardware, conditions, intensity)

    def advance(self, conditions: Conditions, states: Ints) -> Stretch:
        """Let `DT` seconds pass for each column of `states` (jobs, T), in which each job is in its state."""
        hardware, model = self.plant.hardware, self.plant.hardware.model
        courses, air = self._roll(conditions, states.shape[1])
        stops = [stop(self.plant, plan.row, plan.layout, conditions) for plan in self.plans]
        limits, cooled = self.limits(conditions), np.exp(-DT / TIME_CONSTANT)
        moments = []
        for turn, around in enumerate(air[:, hardware.node]):
            clock = clocks(model, limits, self.temperature, self.load)
            taken = [course.take(turn, clock.busy[course.plan.layout.gpu]) for course in courses]
            self.occupy(stops, states[:, turn], taken)
            watts = power(model, limits, clock, self.load)
            goal = settle(hardware, conditions, watts) + around
            self.temperature = goal + (self.temperature - goal) * cooled
            moments.append(Moment(clock, self.load, watts, self.temperature, taken))
        steps = [course.steps([moment.taken[j] for moment in moments]) for j, course in enumerate(courses)]
        return Stretch(_seen(model, conditions, moments), steps)

    def _roll(self, conditions: Conditions, turns: int) -> tuple[list[Course], Floats]:
        """Draw what chance brings: to each job, and as degrees (T, nodes) to the air of each node."""
        rolls, air = [], np.empty((turns, len(self.air)))
        for turn in range(turns):
            rolls.append([roll(plan, conditions, self.rng) for plan in self.plans])
            self.air = air[turn] = 0.99 * self.air + 0.06 * self.rng.standard_normal(len(self.air))
        courses = [
            Course(plan, self.plant, conditions, [own[job] for own in rolls]) for job, plan in enumerate(self.plans)
        ]
        return courses, air

    def occupy(self, stops: Sequence[Stop], states: Ints, taken: Sequence[Taken]) -> None:
        """Set the load of every GPU from what its job does."""
        count = len(self.plant.hardware.node)
        running: NDArray[np.bool_] = np.zeros(count, dtype=bool)
        busy, idle, tensor, lasting = np.zeros(count), np.zeros(count), np.zeros(count), np.ones(count)
        for plan, stopped, state, step in zip(self.plans, stops, states.tolist(), taken, strict=True):
            gpu = plan.layout.gpu
            running[gpu] = (state >= 0 and STATES[state] != "finished") & ~stopped.dead
            lasting[gpu] = step.lasts
            if stopped.halted:
                idle[gpu] = stopped.asleep
            elif state == TRAIN:
                share = np.minimum(step.busy / step.lasts, 1.0)
                busy[gpu], tensor[gpu] = share, step.cycles / step.lasts
                idle[gpu] = np.minimum(step.idle / step.lasts, 1.0 - share)
            elif STATES[state] == "save_checkpoint":
                idle[gpu] = plan.layout.index("dp") == 0
            elif running[gpu[0]]:
                busy[gpu], idle[gpu] = _PAUSED[STATES[state]]
                tensor[gpu] = 0.6 * step.cycles / step.lasts if STATES[state] == "eval" else 0.0
        self.load = Load(running, busy, idle, tensor, lasting)


class Moment(NamedTuple):
    """What held at one turn: arrays (G,), and the steps of each job."""

    clock: Clocks
    load: Load
    watts: Floats
    temperature: Floats
    taken: Sequence[Taken]


def _seen(model: GpuModel, conditions: Conditions, moments: Sequence[Moment]) -> Mapping[str, Floats]:
    """Return what there is to see of GPUs at each turn, (T, G)."""
    clock = {field.name: np.array([getattr(one.clock, field.name) for one in moments]) for field in fields(Clocks)}
    load = {field.name: np.array([getattr(one.load, field.name) for one in moments]) for field in fields(Load)}
    running = load["running"]
    waiting = np.where(running, clock["waiting"], model.idle_clock)
    mean = load["busy"] * clock["busy"] + (1.0 - load["busy"]) * waiting
    pulsed = clock["hw_thermal"] & ~np.isnan(conditions["utilisation"])
    return {
        "temperature": np.array([one.temperature for one in moments]),
        "power": np.array([one.watts for one in moments]),
        "busy_clock": np.where(running, clock["busy"], model.idle_clock),
        "waiting_clock": waiting,
        "busy": load["busy"],
        "idle": np.where(running, load["idle"], 1.0),
        "running": running.astype(np.float64),
        "utilisation": np.where(pulsed, conditions["utilisation"], np.where(running, 1.0 - load["idle"], 0.0)),
        "tensor": load["tensor"] / mean,
        "power_limited": clock["power_limited"].astype(np.float64),
        "sw_thermal": clock["sw_thermal"].astype(np.float64),
        "hw_thermal": clock["hw_thermal"].astype(np.float64),
    }
