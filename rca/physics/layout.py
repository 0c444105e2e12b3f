"""Where the ranks of a job are, whom they talk to, and what the job does when."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rca.library import seconds
from rca.model import Floats
from rca.physics.cluster import Hardware, Ints
from rca.physics.written import Job, Pause

STATES = ("init", "compile", "load_checkpoint", "train", "eval", "save_checkpoint", "finished")
ABSENT = -1
TRAIN = STATES.index("train")


@dataclass(frozen=True, eq=False)
class Layout:
    """The ranks of a job. `shape` is (pp, dp, cp, tp): reshaped so, rank r stands at its four indices.

    `gpu` (R,) is the GPU of each rank. `reads` (R,) marks ranks that load data: tensor rank 0 of the first and of the
    last stage. `crosses` (pp, cp, tp) marks data-parallel groups that span more than one node.
    """

    job: Job
    shape: tuple[int, int, int, int]
    gpu: Ints
    node: Ints
    reads: NDArray[np.bool_]
    crosses: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.gpu)

    def index(self, axis: str) -> Ints:
        """Return one parallel index of every rank.

        >>> from rca.physics.cluster import assemble
        >>> from rca.physics.written import Cluster
        >>> hardware = assemble(Cluster(nodes=2), np.random.default_rng(0))
        >>> layout = place(Job(id="a", tp=2, dp=4, pp=2), hardware)
        >>> layout.index("tp")[:4].tolist(), layout.index("dp")[:4].tolist(), layout.index("pp")[7:9].tolist()
        ([0, 1, 0, 1], [0, 0, 1, 1], [0, 1])
        """
        found: Ints = np.indices(self.shape)[("pp", "dp", "cp", "tp").index(axis)].reshape(-1)
        return found


def place(job: Job, hardware: Hardware) -> Layout:
    """Put the ranks of a job on consecutive GPUs."""
    shape = (job.pp, job.dp, job.cp, job.tp)
    per_node = int(hardware.slot.max()) + 1
    gpu = job.first * per_node + np.arange(int(np.prod(shape)))
    node = hardware.node[gpu]
    stage, _, _, tensor = np.indices(shape)
    grid = node.reshape(shape)
    return Layout(
        job=job,
        shape=shape,
        gpu=gpu,
        node=node,
        reads=((tensor == 0) & ((stage == 0) | (stage == job.pp - 1))).reshape(-1),
        crosses=grid.max(axis=1) > grid.min(axis=1),
    )


def agenda(job: Job, times: Floats, saving: Floats | float = 1.0) -> Ints:
    """Return what the job does at each time: an index into `STATES`, or `ABSENT` while there is no process.

    A checkpoint takes `saving` times as long as planned.
    """
    state = np.full(len(times), TRAIN)
    for pause, name, factor in ((job.evaluation, "eval", 1.0), (job.checkpoint, "save_checkpoint", saving)):
        if pause is not None:
            state[_paused(pause, times, factor)] = STATES.index(name)
    if job.warm_up is not None:
        launch = seconds(job.warm_up.at)
        compiled = launch + seconds(job.warm_up.init)
        state[times < compiled + seconds(job.warm_up.compile)] = STATES.index("compile")
        state[times < compiled] = STATES.index("init")
        state[times < launch] = ABSENT
    if job.ends is not None:
        state[times >= seconds(job.ends)] = STATES.index("finished")
        state[times >= seconds(job.ends) + 60.0] = ABSENT
    return state


def _paused(pause: Pause, times: Floats, factor: Floats | float) -> NDArray[np.bool_]:
    since = times - seconds(pause.first)
    return (since >= 0) & (since % seconds(pause.every) < seconds(pause.lasts) * factor)
