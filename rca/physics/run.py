"""Let a scenario happen: the time loop that couples steps, clocks, watts and degrees."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rca.library import seconds
from rca.model import Floats
from rca.physics.cluster import Ints, assemble
from rca.physics.conditions import Conditions, Plant, healthy, unfold
from rca.physics.gpu import TIME_CONSTANT, Clocks, Load, clocks, power, settle
from rca.physics.layout import STATES, TRAIN, Layout, agenda, place
from rca.physics.step import Plan, Step, save_factor, take
from rca.physics.step import plan as plan_job
from rca.physics.stops import stop
from rca.physics.written import Scenario

DT = 5.0  # seconds of simulated time between two evaluations, a third of a usual scrape
BEFORE = 900.0  # seconds that the cluster has run under the first conditions when the scenario begins
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
    for _ in range(int(BEFORE / DT)):
        machine.advance(segments[0], states[:, 0])
    moments = [machine.advance(segments[segment[k]], states[:, k]) for k in range(len(segment))]
    return Trace(
        plant=plant,
        edges=edges,
        conditions=segments,
        segment=segment,
        gpu={name: np.stack([moment.gpu[name] for moment in moments]) for name in moments[0].gpu},
        jobs=tuple(
            _job_trace(plans[j], states[j], halted[j], [moment.steps[j] for moment in moments])
            for j in range(len(plans))
        ),
    )


def _job_trace(plan: Plan, state: Ints, halted: NDArray[np.bool_], steps: Sequence[Step]) -> JobTrace:
    lasting = np.array([step.seconds for step in steps])
    done = np.where((state == TRAIN) & ~halted, DT / lasting, 0.0)
    names = ("data", "forward", "backward", "forward_recv", "backward_recv", "dp_wait", "sync", "pause")
    arrays = {name: np.stack([getattr(step, name) for step in steps]) for name in names}
    start = 0.0 if plan.layout.job.warm_up is not None else 20000.0
    progress = start + np.concatenate([[0.0], np.cumsum(done)])
    return JobTrace(plan.layout, plan, state, progress, {"seconds": lasting, **arrays})


def calibrate(plan: Plan, plant: Plant) -> Plan:
    """Scale a job's work until its healthy step, waits and slow chips included, lasts as planned."""
    target = seconds(plan.layout.job.step)
    fine = replace(plan, draws=64)
    conditions = healthy(plant)
    machine = Machine(plant, (fine,))
    temperature = np.full(len(plant.hardware.node), 50.0)
    for turn in range(6):
        rng = generator(plant.scenario.seed, f"calibrate {plan.row}")
        clock = clocks(plant.hardware, conditions, temperature, machine.load)
        step = take(fine, plant, conditions, clock.busy[plan.layout.gpu], rng)
        machine.occupy(conditions, np.array([TRAIN]), [step])
        if turn > 1:
            pipe = target - step.seconds
            bubble = 1.0 + (plan.layout.job.pp - 1) / plan.layout.job.micro_batches
            fine = replace(fine, work=fine.work * (1.0 + pipe / (fine.work.mean() * bubble)))
            machine.plans = (fine,)
    return replace(fine, draws=plan.draws)


@dataclass(frozen=True, eq=False)
class Moment:
    """One row of a trace."""

    gpu: Mapping[str, Floats]
    steps: Sequence[Step]


class Machine:
    """The state that one moment hands to the next: temperatures, the air of each node, and how GPUs were loaded."""

    def __init__(self, plant: Plant, plans: tuple[Plan, ...]) -> None:
        self.plant = plant
        self.plans = plans
        self.rng = generator(plant.scenario.seed, "steps")
        self.air = np.zeros(len(plant.hardware.nodes))
        count = len(plant.hardware.node)
        nothing = np.zeros(count)
        self.load = Load(np.zeros(count, dtype=bool), nothing, nothing, nothing, np.ones(count), np.ones(count))
        for plan in plans:
            self.load.running[plan.layout.gpu] = True
            self.load.intensity[plan.layout.gpu] = plan.layout.job.intensity
        working = np.where(self.load.running, plant.hardware.model.power_limit, plant.hardware.model.idle_power)
        self.temperature = settle(plant.hardware, healthy(plant), working)

    def advance(self, conditions: Conditions, states: Ints) -> Moment:
        """Let `DT` seconds pass, each job in its state."""
        hardware = self.plant.hardware
        clock = clocks(hardware, conditions, self.temperature, self.load)
        steps = [take(plan, self.plant, conditions, clock.busy[plan.layout.gpu], self.rng) for plan in self.plans]
        self.occupy(conditions, states, steps)
        watts = power(hardware, clock, self.load)
        self.air = 0.99 * self.air + 0.06 * self.rng.standard_normal(len(self.air))
        goal = settle(hardware, conditions, watts) + self.air[hardware.node]
        self.temperature = goal + (self.temperature - goal) * np.exp(-DT / TIME_CONSTANT)
        return Moment(self._seen(conditions, clock, watts), steps)

    def occupy(self, conditions: Conditions, states: Ints, steps: Sequence[Step]) -> None:
        """Set the load of every GPU from what its job does."""
        count = len(self.plant.hardware.node)
        running: NDArray[np.bool_] = np.zeros(count, dtype=bool)
        busy, idle, tensor, lasting = np.zeros(count), np.zeros(count), np.zeros(count), np.ones(count)
        for plan, state, step in zip(self.plans, states, steps, strict=True):
            gpu = plan.layout.gpu
            stopped = stop(self.plant, plan.row, plan.layout, conditions)
            running[gpu] = (state >= 0 and STATES[state] != "finished") & ~stopped.dead
            lasting[gpu] = step.seconds
            share = np.clip(step.busy / step.seconds, 0.0, 1.0)
            if stopped.halted:
                idle[gpu] = stopped.asleep
            elif state == TRAIN:
                busy[gpu], tensor[gpu] = share, step.cycles / step.seconds
                idle[gpu] = np.clip(step.idle / step.seconds, 0.0, 1.0 - share)
            elif STATES[state] == "save_checkpoint":
                idle[gpu] = plan.layout.index("dp") == 0
            elif running[gpu[0]]:
                busy[gpu], idle[gpu] = _PAUSED[STATES[state]]
                tensor[gpu] = 0.6 * step.cycles / step.seconds if STATES[state] == "eval" else 0.0
        self.load = Load(running, busy, idle, tensor, lasting, self.load.intensity)

    def _seen(self, conditions: Conditions, clock: Clocks, watts: Floats) -> Mapping[str, Floats]:
        model, load = self.plant.hardware.model, self.load
        waiting = np.where(load.running, clock.waiting, model.idle_clock)
        mean = load.busy * clock.busy + (1.0 - load.busy) * waiting
        pulsed = clock.hw_thermal & ~np.isnan(conditions["utilisation"])
        util = np.where(load.running, 1.0 - load.idle, 0.0)
        return {
            "temperature": self.temperature,
            "power": watts,
            "busy_clock": np.where(load.running, clock.busy, model.idle_clock),
            "waiting_clock": waiting,
            "busy": load.busy,
            "idle": np.where(load.running, load.idle, 1.0),
            "running": load.running.astype(np.float64),
            "utilisation": np.where(pulsed, conditions["utilisation"], util),
            "tensor": load.tensor / mean,
            "power_limited": clock.power_limited.astype(np.float64),
            "sw_thermal": clock.sw_thermal.astype(np.float64),
            "hw_thermal": clock.hw_thermal.astype(np.float64),
        }
