"""What a scenario file says: a cluster, the jobs on it, and faults as physical effects.

A scenario knows no rules. `expect` is for whoever checks a diagnosis; the simulator never reads it.

    summary: A fan fails on one GPU
    seed: 7
    duration: 50m
    cluster: {nodes: 8, model: H100}
    job: {id: llama, dp: 64, step: 2s, samples: 512}
    faults:
      - {at: 42m, cooling: 3.5, on: {node: node-07, gpu: 1}}
    expect:
      status: causes_found
      symptom: slow_onset
      causes: [{cause: gpu_thermal_throttling, entity: {node: node-07, gpu: "1"}}]

Durations are text (`90s`, `1h30m`), everything else is a number in SI units (bytes, bytes per second, watts) or in the
unit that its name says. Ranks are laid out as Megatron does by default (order tp-cp-ep-dp-pp: tensor index fastest, then
context, data and pipeline index) and fill the nodes of the job in order.
Source of the order: Megatron-LM, megatron/core/parallel_state.py, `RankGenerator`.
"""

from typing import Annotated, Literal

from msgspec import Meta, structs

from rca.library import Written
from rca.model import Duration, Status, Symptom

Count = Annotated[int, Meta(ge=1)]
Index = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Amount = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Exporter = Literal["dcgm", "node", "train"]


class Mount(Written, frozen=True, kw_only=True):
    """A network file system: its export, and the nodes that mount it (empty: all)."""

    export: str
    nodes: tuple[str, ...] = ()


class Cluster(Written, frozen=True, kw_only=True):
    """Nodes of one GPU model; node k is named `node-0k`, its NIC `mlx5_i` stands beside GPU i.

    `clock_spread` is the relative sigma of the clock that a chip reaches at the power limit, `temperature_spread` that
    of its thermal resistance, `rear` how many degrees warmer the air is that the second half of the slots gets.
    `per_rack` and `per_unit` count nodes of a rack and of a scalable unit (whose NICs k share a leaf switch). With
    `roce` the ports are Ethernet, and ethtool counts their pause frames.
    """

    nodes: Annotated[int, Meta(ge=1, le=2048)]
    gpus: Annotated[int, Meta(ge=1, le=16)] = 8
    model: Literal["A100", "H100"] = "H100"
    cpus: Annotated[int, Meta(ge=1, le=256)] = 8
    per_rack: Count = 4
    per_unit: Count = 32
    disk_bandwidth: Positive = 7e9
    mounts: tuple[Mount, ...] = ()
    inlet: float = 27.0
    rear: float = 9.0
    roce: bool = False
    clock_spread: Annotated[float, Meta(ge=0, le=0.1)] = 0.025
    temperature_spread: Annotated[float, Meta(ge=0, le=0.3)] = 0.05


class Data(Written, frozen=True, kw_only=True):
    """How ranks read their input: `wait` a step in health, `bytes` a step and reading rank, from disk or a mount.

    Requests of `request` bytes, `parallel` of them in flight, are prefetched as far as they go: a reader can never be
    faster than its storage, nor than the CPUs that `prepare` a step's batch, and shows as waiting only what its own
    work does not hide.
    """

    source: Literal["disk", "mount"] = "disk"
    wait: Duration = "20ms"
    bytes: Amount = 2e6
    request: Positive = 128e3
    parallel: Count = 8
    prepare: Duration = "0s"


class Pause(Written, frozen=True, kw_only=True):
    """Something periodic: first at, then every, for how long each time."""

    first: Duration
    every: Duration
    lasts: Duration


class Saving(Pause, frozen=True, kw_only=True):
    """A checkpoint, written `to` the disks of its writers, or to what these mount: then slow storage makes it long."""

    to: Literal["disk", "mount"] = "disk"


class Collector(Written, frozen=True, kw_only=True):
    """How Python collects garbage: once in `every` steps, for how long, and whether all ranks do it `together`."""

    every: Count
    pause: Duration
    together: bool = False


class WarmUp(Written, frozen=True, kw_only=True):
    """When the job is launched, and how long it initialises and compiles before the first step."""

    at: Duration = "0s"
    init: Duration = "60s"
    compile: Duration = "90s"


class Logs(Written, frozen=True, kw_only=True):
    """How a job's ranks and its launcher write what `rca simulate --logs` puts down; where a job has `logs:`, a diagnosis of
    the scenario reads them too.

    `torch` is the version whose words a dying process uses, `timeout` how long its watchdog lets a collective run (10
    minutes, half an hour in 2.1). Lines of stderr bear the time of the collector that took them (`cri`, as Kubernetes
    keeps them), or only what the process itself writes (`plain`). Each `every`-th step has a line; where nobody says,
    as many as keep a job's files below 60 MB.

    `peers` says how ranks on other nodes learn that a process has died: its connections are `closed`, nothing is told
    (`silent`) until their watchdogs give up, or the launcher ends the whole job (`killed`).
    """

    torch: Literal["2.1", "2.4", "2.6"] = "2.6"
    timeout: Duration | None = None
    format: Literal["cri", "plain"] = "cri"
    every: Count | None = None
    peers: Literal["closed", "silent", "killed"] = "closed"


class Job(Written, frozen=True, kw_only=True):
    """A synchronous training job. `nodes` is how many it fills, from node `first` on; tp * cp * dp * pp ranks.

    `step` is the planned time of a healthy step with its parts `sync` (gradients), `p2p` (between stages), `optimizer`
    and the data wait; the rest is work and, with stages, the pipeline's bubble. `samples` is the global batch, `tokens`
    those of a sample. `compute` is the share of work that scales with the SM clock, `tensor` the share of its cycles
    that the tensor pipe is busy, `tp_share` the share that is tensor-parallel communication, `host` the share that is
    launched by the CPU. `intensity` is the power of its kernels against a full load (lighter ones clock higher).
    `jitter` is the relative sigma of one step's work of a cell. `ep` is the size of its groups of experts, for
    `train_job_info` alone. Without `gc` nobody counts the collector's pauses. `steps` is how many it is to do, ten days
    of them where nobody says.
    """

    id: str
    model: str = "llama-70b"
    first: Index = 0
    tp: Count = 1
    cp: Count = 1
    dp: Count = 1
    pp: Count = 1
    micro_batches: Count = 8
    step: Duration = "2s"
    sync: Duration = "100ms"
    p2p: Duration = "20ms"
    optimizer: Duration = "50ms"
    data: Data = Data()
    samples: Count = 512
    tokens: Count = 4096
    compute: Share = 0.8
    tensor: Share = 0.55
    tp_share: Share = 0.12
    host: Share = 0.3
    intensity: Annotated[float, Meta(ge=0.3, le=1.2)] = 1.0
    jitter: Amount = 0.01
    ep: Count = 1
    gc: Collector | None = None
    warm_up: WarmUp | None = None
    checkpoint: Saving | None = None
    evaluation: Pause | None = None
    ends: Duration | None = None
    steps: Count | None = None
    logs: Logs | None = None


class Where(Written, frozen=True, kw_only=True):
    """Where a fault acts; every key that is given narrows it."""

    job: str | None = None
    node: str | None = None
    gpu: Index | None = None
    device: str | None = None
    rank: Index | None = None
    stage: Index | None = None
    replica: Index | None = None
    export: str | None = None


class Fault(Written, frozen=True, kw_only=True):
    """Physical effects from `at` until `until` (else to the end); `at: 0s` means since long before.

    On GPUs: `cooling` factor of the thermal resistance to air, `inlet_rise` degrees, `power_limit` watts, `power_brake`,
    `clock_limit` MHz (locked by someone), `compute` factor by which kernels take longer, `utilisation` the share that
    the driver reports while hardware slowdown pulses the clock (a measured oddity, not derived), `pcie_width` lanes,
    `pcie_generation`, `pcie_replays` a second, `nvlink_bandwidth` share left, `nvlink_crc` errors and
    `nvlink_recoveries` a second.
    On ports: `port_rate` bytes a second, `symbol_errors` and `link_recoveries` a second, `flaps` (moments without a
    link) a second, `port_lanes` of its own PCIe link.
    On nodes: `cpu_taken` share of the CPU time, `cpu_clock` share of the CPU's frequency, `launch_delay` by what share
    launching takes longer with every counter normal, `memory_taken` share of the memory, `disk_bandwidth` bytes a
    second. On exports: `mount_latency` seconds.
    On ranks: `read_bytes` a step (0: from the page cache), `gc_pause` seconds of a collection. On replicas (or the
    replica of a rank): `tokens` factor of its batch. On stages, replicas or ranks: `work` factor.
    On jobs: `sequence_spread`, the sigma of the logarithm of each replica's work in each step, `congestion`, the factor
    of all transfers between nodes, `sockets` (TCP instead of RDMA), and `saving`, the factor of a checkpoint's time.

    What stops a job: ranks that are `stuck` on their host or whose process is `gone`, whose GPU has not the memory that
    they ask for (`out_of_memory`, and the process dies) or whose program calls another collective than the others
    (`mismatched`), nodes that are `down`, GPUs that fell off the bus (`lost`) or whose driver hangs (`frozen`), ports
    that left their link (`port_down`), and exports that answer nothing (`mount_frozen`), so that who reads there sleeps.

    What is only seen: `shows` is what series of the place read from then on, `counts` what their counters grow by a
    second more. Both name series as `metric` or `metric{label="value"}`. `labels` is what labels of the place's series
    say, all the time, where they have them. `says` is what a rank writes to its stderr.
    """

    at: Duration = "0s"
    until: Duration | None = None
    on: Where = Where()
    cooling: Positive | None = None
    inlet_rise: float | None = None
    power_limit: Positive | None = None
    power_brake: bool | None = None
    clock_limit: Positive | None = None
    compute: Positive | None = None
    utilisation: Share | None = None
    pcie_width: Positive | None = None
    pcie_generation: Positive | None = None
    pcie_replays: Amount | None = None
    nvlink_bandwidth: Positive | None = None
    nvlink_crc: Amount | None = None
    nvlink_recoveries: Amount | None = None
    port_rate: Positive | None = None
    symbol_errors: Amount | None = None
    link_recoveries: Amount | None = None
    flaps: Amount | None = None
    port_lanes: Positive | None = None
    cpu_taken: Annotated[float, Meta(ge=0, lt=1)] | None = None
    cpu_clock: Annotated[float, Meta(gt=0, le=1)] | None = None
    launch_delay: Amount | None = None
    memory_taken: Annotated[float, Meta(ge=0, lt=1)] | None = None
    disk_bandwidth: Positive | None = None
    mount_latency: Positive | None = None
    read_bytes: Amount | None = None
    tokens: Positive | None = None
    work: Positive | None = None
    gc_pause: Amount | None = None
    sequence_spread: Amount | None = None
    congestion: Positive | None = None
    sockets: bool | None = None
    saving: Positive | None = None
    stuck: bool | None = None
    gone: bool | None = None
    out_of_memory: bool | None = None
    mismatched: bool | None = None
    down: bool | None = None
    lost: bool | None = None
    frozen: bool | None = None
    port_down: bool | None = None
    mount_frozen: bool | None = None
    shows: dict[str, float] | None = None
    counts: dict[str, Amount] | None = None
    labels: dict[str, str] | None = None
    says: str | None = None


class Gap(Written, frozen=True, kw_only=True):
    """Time in which an exporter says nothing of a node, or of one GPU of it; without `until` it never speaks again."""

    exporter: Exporter
    at: Duration
    until: Duration | None = None
    node: str | None = None
    gpu: Index | None = None


class Telemetry(Written, frozen=True, kw_only=True):
    """How the cluster is watched.

    `missed` is the probability that a scrape fails. `absent` are regular expressions of metric names that nobody
    exports. Nodes in `renamed` run a DCGM of 4.6 or newer (new metric names and units, label `hostname`). `slow` nodes
    collect from DCGM only every 30 s. `rack` says whether node exporter targets carry a rack label. `timers` says how
    the time of a job's phases is known: of all `ranks`, or as `minmax` over them, as Megatron prints it.
    """

    interval: Duration = "15s"
    missed: Share = 0.002
    absent: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    rack: bool = True
    timers: Literal["ranks", "minmax"] = "ranks"


class ExpectedCause(Written, frozen=True, kw_only=True):
    """A cause that must be found on an entity, with at least this probability, its chain passing `through` entities."""

    cause: str
    entity: dict[str, str]
    least: Share = 0.5
    through: tuple[dict[str, str], ...] = ()


class Expect(Written, frozen=True, kw_only=True):
    """What a diagnosis at the end of the scenario must say."""

    status: Status
    symptom: Symptom
    causes: tuple[ExpectedCause, ...] = ()
    not_affected: tuple[str, ...] = ()


class Scenario(Written, frozen=True, kw_only=True):
    """One made-up incident. `job:` is short for `jobs:` of one; `mild` are the faults of its milder form."""

    summary: str
    seed: Index = 1
    duration: Duration = "60m"
    cluster: Cluster
    job: Job | None = None
    jobs: tuple[Job, ...] = ()
    faults: tuple[Fault, ...] = ()
    mild: tuple[Fault, ...] = ()
    telemetry: Telemetry = Telemetry()
    expect: Expect | None = None

    def all_jobs(self) -> tuple[Job, ...]:
        """Return the jobs under either spelling."""
        return ((self.job,) if self.job is not None else ()) + self.jobs

    def milder(self) -> "Scenario":
        """Return the milder form; the scenario itself where it has none."""
        return structs.replace(self, faults=self.mild or self.faults, mild=())
