"""What a scenario asks for and what cannot be: everything wrong at once."""

import re
from collections.abc import Iterator

from rca.library import seconds
from rca.physics.conditions import EFFECTS, Plant, select
from rca.physics.run import DT, lay_out
from rca.physics.written import Fault, Job, Scenario


def problems(scenario: Scenario) -> list[str]:
    """Return one sentence for each thing that is wrong, in the order of the file."""
    found = [*_patterns(scenario), *_sizes(scenario)]
    if not found:
        plant = lay_out(scenario)
        found += [sentence for fault in scenario.faults + scenario.mild for sentence in _misplaced(plant, fault)]
        found += list(_unknown_nodes(scenario, plant.hardware.nodes))
    return found


def _patterns(scenario: Scenario) -> Iterator[str]:
    for pattern in scenario.telemetry.absent:
        try:
            re.compile(pattern)
        except re.error as error:
            yield f"'absent' holds {pattern!r}, which is no regular expression: {error}"


def _sizes(scenario: Scenario) -> Iterator[str]:
    cluster = scenario.cluster
    if scenario.job is not None and scenario.jobs:
        yield "both 'job' and 'jobs' are given, write one of them"
    if not scenario.all_jobs():
        yield "no 'job' is given, write one: a cluster without a job has nothing to diagnose"
    taken: dict[int, str] = {}
    names = [job.id for job in scenario.all_jobs()]
    yield from (f"job '{name}' is written twice, give each its own id" for name in set(names) if names.count(name) > 1)
    for job in scenario.all_jobs():
        ranks = job.tp * job.cp * job.dp * job.pp
        last = job.first * cluster.gpus + ranks
        if last > cluster.nodes * cluster.gpus:
            yield f"job '{job.id}' needs {ranks} GPUs from node {job.first} on, the cluster ends before"
        for gpu in range(job.first * cluster.gpus, min(last, cluster.nodes * cluster.gpus)):
            if taken.setdefault(gpu, job.id) != job.id:
                yield f"jobs '{taken[gpu]}' and '{job.id}' share GPUs, move one with 'first'"
                break
        yield from _step_parts(job)
    if seconds(scenario.duration) < 3 * seconds(scenario.telemetry.interval):
        yield f"duration {scenario.duration} holds fewer than 3 scrapes, make it longer"
    if seconds(scenario.telemetry.interval) < DT:
        yield f"interval {scenario.telemetry.interval} is below the {DT:g} s that the simulation resolves"


def _step_parts(job: Job) -> Iterator[str]:
    parts = sum(seconds(part) for part in (job.sync, job.p2p, job.optimizer, job.data.wait))
    if parts >= 0.8 * seconds(job.step):
        yield f"job '{job.id}': its step of {job.step} leaves less than a fifth for work, make it longer"


def _misplaced(plant: Plant, fault: Fault) -> Iterator[str]:
    named = [name for name in EFFECTS if getattr(fault, name) is not None]
    if not named and not fault.shows and not fault.counts and not fault.labels and not fault.says:
        yield f"the fault at {fault.at} has no effect, write one of {', '.join(EFFECTS)}, shows, counts, labels, says"
    if fault.says is not None and fault.on.rank is None:
        yield f"'says' at {fault.at} is on no rank, write whose line it is: on: {{rank: 0}}"
    if fault.on.device is not None and not re.fullmatch(r"mlx5_\d+", fault.on.device):
        yield f"the fault at {fault.at} is on device '{fault.on.device}', ports are named mlx5_0, mlx5_1 and so on"
        return
    for name in named:
        if not len(select(plant, fault.on, EFFECTS[name].kind)):
            yield f"'{name}' at {fault.at} is on something that this cluster has not"


def _unknown_nodes(scenario: Scenario, nodes: tuple[str, ...]) -> Iterator[str]:
    telemetry = scenario.telemetry
    mounted = [node for mount in scenario.cluster.mounts for node in mount.nodes]
    gaps = [gap.node for gap in telemetry.gaps if gap.node is not None]
    for node in dict.fromkeys([*mounted, *telemetry.renamed, *telemetry.slow, *gaps]):
        if node not in nodes:
            yield f"there is no '{node}', this cluster has {nodes[0]} to {nodes[-1]}"
