"""Reports written by hand for the renderers: two incidents, a healthy one, an inconclusive one, a hostile one."""

import msgspec

from rca.model import (
    Action,
    Cause,
    EntityRef,
    Evidence,
    FindingRef,
    Impact,
    JobSymptom,
    Link,
    NotAffected,
    NotChecked,
    Progress,
    Rejected,
    Report,
    ReportWindow,
)

WINDOW = ReportWindow(start="2026-03-01T13:50:00Z", end="2026-03-01T14:05:00Z", step_seconds=15.0)
JOB = EntityRef(kind="job", labels={"job": "llama-70b"})
GPU = EntityRef(kind="gpu", labels={"node": "node-07", "gpu": "1"})
SKEW_JOB = EntityRef(kind="job", labels={"job": "moe-8x22b"})
NODE = EntityRef(kind="node", labels={"node": "node-03"})
HOOK = (
    'training exporter: train_phase_duration_seconds{phase="forward_compute"} (rca.hook, Megatron --timing-log-level 2)'
)


def rank(job: str, index: int) -> EntityRef:
    """Name a rank."""
    return EntityRef(kind="rank", labels={"job": job, "rank": str(index)})


def cooling_fault() -> Report:
    """A GPU gets hot, lowers its clock, and its job waits for it."""
    cause = Cause(
        cause="gpu_thermal_throttling",
        layer="physical",
        entity=GPU,
        jobs=["llama-70b"],
        probability=0.94,
        since="2026-03-01T14:02:30Z",
        summary="A GPU is hot and lowers its clock",
        explains=65,
        chain=[
            Link(
                finding="gpu_thermal_throttling",
                layer="physical",
                entity=GPU,
                since="2026-03-01T14:02:30Z",
                text="92 °C and an SM clock of 1,200 MHz, peers run at 1,980 MHz",
            ),
            Link(
                finding="low_gpu_utilisation",
                layer="resource",
                entity=GPU,
                since="2026-03-01T14:02:45Z",
                text="utilisation 45 %, peers 97 %",
            ),
            Link(
                finding="straggling_rank",
                layer="communication",
                entity=rank("llama-70b", 57),
                since="2026-03-01T14:03:00Z",
                text="work takes 4.10 s a step, peers 1.80 s",
            ),
            Link(
                finding="waiting_rank",
                layer="communication",
                entity=JOB,
                kind="rank",
                since="2026-03-01T14:03:00Z",
                text="collectives wait 2.30 s a step",
                members=63,
                of=64,
            ),
            Link(
                finding="long_step",
                layer="training",
                entity=JOB,
                since="2026-03-01T14:03:15Z",
                text="a step takes 1.5x as long as before",
            ),
            Link(
                finding="low_throughput",
                layer="training",
                entity=JOB,
                since="2026-03-01T14:03:15Z",
                text="800 samples/s, before 1,200 samples/s",
            ),
        ],
        evidence=[
            Evidence(
                signal="gpu_temperature",
                query='DCGM_FI_DEV_GPU_TEMP{Hostname="node-07",gpu="1"}',
                value=92.0,
                unit="celsius",
                expected="64 °C (median of 63 peers)",
                text="",
            ),
            Evidence(
                signal="gpu_sm_clock",
                query='DCGM_FI_DEV_SM_CLOCK{Hostname="node-07",gpu="1"}',
                value=1200.0,
                unit="megahertz",
                expected="1,980 MHz (median of 63 peers)",
                text="SM clock: 1,200 MHz, expected 1,980 MHz (median of 63 peers)",
            ),
            Evidence(
                signal="rank_collective_wait_seconds",
                query="rate(train_collective_wait_seconds_total[1m]) / rate(train_steps_total[1m])",
                value=2.3,
                unit="seconds",
                expected="180 ms (before the window)",
                text="time per step in collectives: 2.30 s, expected 180 ms (before)",
            ),
        ],
        impact=Impact(ranks=64, slowdown=1.5),
        action=Action(do="drain", text="Move the job off the node, then check fans, airflow and thermal paste."),
        runbook="docs/runbooks/gpu_thermal_throttling.md",
    )
    return Report(
        status="causes_found",
        symptom="slow_onset",
        window=WINDOW,
        jobs=["llama-70b"],
        causes=[cause],
        symptoms=[JobSymptom(job="llama-70b", symptom="slow_onset", since="2026-03-01T14:03:15Z", slowdown=1.5)],
        findings=[
            FindingRef(
                finding="long_step",
                layer="training",
                role="symptom",
                entity=JOB,
                since="2026-03-01T14:03:15Z",
                text="a step takes 1.5x as long as before",
            )
        ],
        unexplained=[],
        not_affected=[NotAffected(rule="loss_divergence", entity=JOB, text="the loss goes on falling")],
        rejected=[
            Rejected(
                cause="gpu_degraded",
                entity=GPU,
                why="its clock is low, so its slowness is explained by gpu_thermal_throttling",
            )
        ],
        not_checked=[
            NotChecked(rule="pipeline_imbalance", missing=["rank_forward_seconds"], enable=HOOK),
            NotChecked(rule="sequence_imbalance", missing=["rank_forward_seconds"], enable=HOOK),
            NotChecked(rule="rack_cooling", missing=["node_inlet_temperature"], enable=""),
        ],
        warnings=["rails: assumed that the i-th RDMA port serves GPU i, name them in the topology file"],
        rules="sha256:" + "ab" * 32,
        progress=[
            Progress(
                job="llama-70b",
                at=WINDOW.end,
                step=12_340,
                target_step=100_000,
                tokens=1_234_000_000_000,
                tokens_per_gpu_second=3_412.0,
                step_seconds=3.11,
                loss=2.314,
                ranks=64,
                busy=0.42,
                busy_signal="gpu_tensor_active",
                eta_seconds=272_622.6,
            )
        ],
    )


def silent_data_skew() -> Report:
    """A slow disk starves one rank, and the job was slow all along."""
    ill = rank("moe-8x22b", 12)
    cause = Cause(
        cause="slow_local_disk",
        layer="resource",
        entity=NODE,
        jobs=["moe-8x22b"],
        probability=0.91,
        since="2026-03-01T13:50:00Z",
        summary="A local disk reads slowly",
        explains=66,
        chain=[
            Link(
                finding="slow_local_disk",
                layer="resource",
                entity=NODE,
                since="2026-03-01T13:50:00Z",
                text="reads 40.0 MB/s, peers 1.20 GB/s",
            ),
            Link(
                finding="starved_rank",
                layer="training",
                entity=ill,
                since="2026-03-01T13:50:00Z",
                text="data loading 180 ms a step, peers 20.0 ms",
            ),
        ],
        evidence=[
            Evidence(
                signal="node_disk_read_bytes",
                query='rate(node_disk_read_bytes_total{instance="node-03:9100"}[2m])',
                value=40e6,
                unit="bytes_per_second",
                expected="1.20 GB/s (median of 7 peers)",
                text="",
            )
        ],
        impact=Impact(ranks=64, slowdown=1.4),
        runbook="docs/runbooks/slow_local_disk.md",
        action=Action(do="drain", text="Replace the disk, or move the data set to another one."),
    )
    return Report(
        status="causes_found",
        symptom="slow_always",
        window=WINDOW,
        jobs=["moe-8x22b"],
        causes=[cause],
        symptoms=[JobSymptom(job="moe-8x22b", symptom="slow_always", slowdown=1.4)],
        findings=[],
        unexplained=[],
        not_affected=[],
        rejected=[Rejected(cause="data_skew", entity=ill, why="tokens per step equal those of its peers")],
        not_checked=[],
        warnings=[],
        rules="sha256:" + "cd" * 32,
    )


def healthy() -> Report:
    """Nothing is wrong, and everything could be seen."""
    return msgspec.structs.replace(
        cooling_fault(),
        status="healthy",
        symptom="none",
        causes=[],
        findings=[],
        rejected=[],
        not_checked=[],
        symptoms=[JobSymptom(job="llama-70b", symptom="none")],
        warnings=[],
    )


def inconclusive() -> Report:
    """The job is slow, and no candidate is likely."""
    report = cooling_fault()
    guess = msgspec.structs.replace(report.causes[0], cause="gpu_degraded", probability=0.31)
    seen = [
        FindingRef(
            finding="waiting_rank",
            layer="communication",
            role="symptom",
            entity=rank("llama-70b", index),
            since="2026-03-01T14:03:00Z",
            text="collectives wait 2.30 s a step",
        )
        for index in range(40)
    ]
    return msgspec.structs.replace(report, status="inconclusive", causes=[guess], unexplained=seen)


def hostile(value: str) -> Report:
    """The cooling fault with one and the same hostile string in every place that a label or a server can fill."""
    report = cooling_fault()
    entity = EntityRef(kind="gpu", labels={"node": value, "gpu": "1"})
    first = report.causes[0]
    cause = msgspec.structs.replace(
        first,
        entity=entity,
        jobs=[value],
        members=[entity],
        since=value,
        chain=[msgspec.structs.replace(link, entity=entity, text=value) for link in first.chain],
        evidence=[msgspec.structs.replace(item, query=f'x{{node="{value}"}}', text=value) for item in first.evidence],
    )
    return msgspec.structs.replace(
        report,
        causes=[cause],
        jobs=[value],
        progress=[msgspec.structs.replace(report.progress[0], job=value)],
        warnings=[value],
        symptoms=[JobSymptom(job=value, symptom="stalled")],
        rejected=[Rejected(cause="gpu_degraded", entity=entity, why=value)],
        not_checked=[NotChecked(rule="rack_cooling", missing=[value], enable=value)],
    )
