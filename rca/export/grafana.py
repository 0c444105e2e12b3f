"""Dashboards for Grafana, made from the signals: an overview, a job, a node and a GPU; and what makes Grafana load them.

Grafana reads the folder with `apiVersion: 1` providers; each dashboard asks for its data source in a variable, and has
a `uid` that stays, so that it can be linked and overwritten.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from rca.export.classic import servers
from rca.export.expressions import Catalogue, Labels, by
from rca.library import Library
from rca.promql import Match, selector

SCHEMA_VERSION = 39
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
UNITS: Mapping[str, tuple[str, float]] = {
    "celsius": ("celsius", 1),
    "watts": ("watt", 1),
    "megahertz": ("hertz", 1e6),
    "hertz": ("hertz", 1),
    "percent": ("percent", 1),
    "ratio": ("percentunit", 1),
    "seconds": ("s", 1),
    "bytes": ("bytes", 1),
    "mebibytes": ("mbytes", 1),
    "bytes_per_second": ("Bps", 1),
    "megabytes_per_second": ("MBs", 1),
    "per_second": ("cps", 1),
    "per_minute": ("cpm", 1),
    "count": ("short", 1),
    "tokens_per_second": ("short", 1),
}
"""Grafana's unit and the factor from ours; what is not here has none."""
PHASES: Mapping[str, tuple[str, ...]] = {
    "TP, forward and backward": ("forward_backward", "forward_compute", "backward_compute"),
    "DP communication": ("grads_sync", "params_all_gather", "layernorm_grads_sync", "embedding_grads_sync"),
    "PP communication": (
        "pp_forward_recv", "pp_forward_send", "pp_backward_recv", "pp_backward_send", "pp_fwd_send_bwd_recv",
        "pp_bwd_send_fwd_recv",
    ),
    "Optimizer": (
        "optimizer", "optimizer_copy_grad", "optimizer_unscale", "optimizer_count_zeros", "optimizer_step",
        "optimizer_copy_params", "optimizer_clip_grad",
    ),
    "Others": ("batch_generator", "save_checkpoint", "eval", "load_checkpoint"),
}  # fmt: skip
"""The phases of a step as Megatron's timers and AIAK's panels group them, by the values of the label `phase`."""
GPU = (
    "gpu_sm_clock", "gpu_temperature", "gpu_memory_temperature", "gpu_power", "gpu_utilisation", "gpu_tensor_active",
    "gpu_sm_active", "gpu_memory_used", "gpu_memory_share", "gpu_thermal_violation_ratio", "gpu_clock_event_reasons",
    "gpu_xid", "gpu_ecc_uncorrected", "gpu_ecc_corrected", "gpu_rows_uncorrectable", "gpu_rows_correctable",
    "gpu_pcie_width_ratio", "gpu_pcie_gen_ratio", "gpu_pcie_replays_per_minute", "gpu_nvlink_bandwidth",
    "gpu_nvlink_crc_per_minute", "gpu_nvlink_recoveries",
)  # fmt: skip
NODE = (
    "node_up", "node_cpu_busy", "node_cpu_busiest_core", "node_cpu_pressure", "node_cpu_frequency",
    "node_memory_available_share", "node_memory_pressure", "node_oom_kills", "node_disk_read_bytes",
    "node_disk_read_latency", "node_written_bytes", "node_disk_free_share", "node_shm_free_share",
    "mount_read_latency", "node_rdma_bytes", "node_kernel_sent_bytes", "node_kernel_received_bytes", "nic_state",
    "nic_rate", "nic_symbol_errors_per_minute", "nic_link_downs", "nic_link_recoveries", "nic_transmit_wait",
    "nic_congestion_packets",
)  # fmt: skip

Mapped = dict[str, object]


@dataclass(frozen=True)
class Panel:
    """A chart: its expressions by the legend of their series."""

    title: str
    unit: str
    targets: Sequence[tuple[str, str]]
    about: str = ""
    kind: str = "timeseries"
    width: int = 8


@dataclass(frozen=True)
class Variable:
    """A choice above the charts, filled from the values of a label."""

    name: str
    label: str
    series: str


@dataclass(frozen=True)
class Dashboard:
    """A page of charts in rows."""

    uid: str
    title: str
    variables: Sequence[Variable]
    rows: Mapping[str, Sequence[Panel]] = field(default_factory=dict)


def files(library: Library, labels: Labels, folder: Path) -> dict[str, str]:
    """Return the files of a folder by name: the dashboards, and the provider that points Grafana at the folder."""
    written = {f"{one.uid}.json": json.dumps(_page(one), indent=2) + "\n" for one in dashboards(library, labels)}
    provider = {"name": "rca", "orgId": 1, "folder": "rca", "type": "file", "options": {"path": str(folder.absolute())}}
    return {"rca.yaml": yaml.safe_dump({"apiVersion": 1, "providers": [provider]}, sort_keys=False), **written}


def dashboards(library: Library, labels: Labels) -> list[Dashboard]:
    """Return the dashboards; a chart whose signal cannot be asked for is left out."""
    return [_overview(library, labels), _job(library, labels), _nodes(library, labels), _gpus(library, labels)]


class _Charts:
    """Makes charts of signals whose series are narrowed by the variables of a dashboard."""

    def __init__(self, library: Library, labels: Labels, matches: Mapping[str, Sequence[Match]]) -> None:
        self._library = library
        self._catalogue = Catalogue(library, labels, matches)

    def of(self, *signals: str) -> list[Panel]:
        """Return a chart for each signal that can be written."""
        return [self.chart(name) for name in signals if self._catalogue.expressible(name)]

    def by_layer(self, signals: Sequence[str]) -> dict[str, Sequence[Panel]]:
        """Return the charts of signals in a row for each layer."""
        rows: dict[str, list[str]] = {}
        for name in signals:
            rows.setdefault(self._library.signals[name].layer, []).append(name)
        return {layer.capitalize(): self.of(*names) for layer, names in rows.items()}

    def chart(self, name: str) -> Panel:
        """Return the chart of one signal."""
        signal = self._library.signals[name]
        unit, factor = UNITS.get(signal.unit, ("none", 1))
        text = self.text(name) + (f" * {factor:g}" if factor != 1 else "")
        legend = " ".join(f"{{{{{label}}}}}" for label in self._catalogue.labels(name).values())
        title = signal.summary.partition(";")[0]
        return Panel(title, unit, [(legend, text)], f"Signal {name}. {signal.enable}".strip())

    def text(self, name: str) -> str:
        """Return the expression of a signal."""
        return self._catalogue.inline(name)


def _overview(library: Library, labels: Labels) -> Dashboard:
    job = labels.name("training", "job")
    wanted = [Match(job, "=~", "$job")]
    charts = _Charts(library, labels, {"training": wanted})
    named = f"{{{{{job}}}}}"
    per_day = f"{charts.text('job_billion_tokens_per_day')} / {servers(job, wanted)}"
    loss = charts.text("job_loss")
    running = charts.text("job_ranks")
    rows = {
        "Jobs": [
            Panel("Jobs that report", "none", [("jobs", f"count({running})")], kind="stat", width=4),
            Panel("Ranks that report", "none", [(named, running)], kind="stat", width=20),
        ],
        "Throughput": [
            Panel("Tokens per GPU and second", "short", [(named, charts.text("job_tokens_per_gpu"))], width=8),
            Panel("Billion tokens per server and day", "none", [(named, per_day)], width=8),
            Panel("Time of a step", "s", [(named, charts.text("job_step_seconds"))], width=8),
        ],
        "Loss": [
            Panel(
                "Loss, raw and smoothed", "none",
                [(f"{named} raw", loss), (f"{named} smoothed", f"avg_over_time(({loss})[10m:30s])")], width=12,
            ),
            Panel("Norm of the gradient", "none", [(named, charts.text("job_grad_norm"))], width=12),
        ],
        "Communication": [
            Panel(
                "Communication share of the step", "percentunit", [(named, charts.text("job_communication_share"))],
                "Waits for others included; above 40 % is a warning.", width=12,
            ),
            Panel(
                "Least wait of any rank, share of the step", "percentunit",
                [(named, charts.text("job_least_wait_share"))], "A straggler waits for nobody.", width=12,
            ),
        ],
    }  # fmt: skip
    return Dashboard("rca-overview", "Training: overview", [_jobs(job)], rows)


def _job(library: Library, labels: Labels) -> Dashboard:
    job = labels.name("training", "job")
    wanted = [Match(job, "=~", "$job")]
    charts = _Charts(library, labels, {"training": wanted})
    rows: dict[str, Sequence[Panel]] = {
        "Pace": charts.of("job_step_seconds", "job_step_p95_seconds", "job_tokens_per_second"),
        "Learning": charts.of("job_loss", "job_grad_norm", "job_learning_rate"),
    }
    for title, phases in PHASES.items():
        rows[title] = [
            Panel(
                phase.replace("_", " "), "s", [(way, phase_text(labels, phase, way, wanted)) for way in ("min", "max")],
                f"Time per step over the ranks, phase {phase}.",
            )
            for phase in phases
        ]  # fmt: skip
    rows["Waits and checkpoints"] = charts.of(
        "job_communication_share", "job_least_wait_share", "job_gradient_skew_seconds", "job_checkpoint_seconds"
    )
    return Dashboard("rca-job", "Training: a job", [_jobs(job)], rows)


def phase_text(labels: Labels, phase: str, way: str, matches: Sequence[Match]) -> str:
    """Write the shortest or longest time per step that a phase takes on any rank, or what the job itself prints."""
    ranks = labels.all("training", ("job", "rank"))
    job = {"job": ranks["job"]}
    one = selector([Match("phase", "=", phase), *matches])
    steps = f"sum by {by(ranks)} (rate(train_steps_total{selector(matches)}[5m]))"
    each = f"sum by {by(ranks)} (rate(train_phase_duration_seconds_sum{one}[5m])) / {steps}"
    return f"{way} by {by(job)} ({each}) or {way} by {by(job)} (train_phase_{way}_seconds{one})"


def _nodes(library: Library, labels: Labels) -> Dashboard:
    node = labels.name("node", "node")
    charts = _Charts(library, labels, {"node": [Match(node, "=~", "$node")]})
    return Dashboard("rca-node", "Training: a node", [Variable("node", node, "node_uname_info")], charts.by_layer(NODE))


def _gpus(library: Library, labels: Labels) -> Dashboard:
    node, gpu = labels.name("dcgm", "node"), labels.name("dcgm", "gpu")
    narrow = [Match(node, "=~", "$node"), Match(gpu, "=~", "$gpu")]
    charts = _Charts(library, labels, {"dcgm": narrow})
    series = '{__name__=~"DCGM_FI_DEV_GPU_TEMP(_CELSIUS)?"}'
    chosen = '{__name__=~"DCGM_FI_DEV_GPU_TEMP(_CELSIUS)?",' + f'{node}=~"$node"}}'
    variables = [Variable("node", node, series), Variable("gpu", gpu, chosen)]
    return Dashboard("rca-gpu", "Training: a GPU", variables, charts.by_layer(GPU))


def _jobs(job: str) -> Variable:
    return Variable("job", job, "train_steps_total")


def _page(dashboard: Dashboard) -> Mapped:
    """Write a dashboard as Grafana reads it."""
    panels: list[Mapped] = []
    top = 0
    for title, row in dashboard.rows.items():
        panels.append(_heading(title, top))
        top, left = top + 1, 0
        for panel in row:
            if left + panel.width > 24:
                top, left = top + 8, 0
            panels.append(_panel(panel, {"x": left, "y": top, "w": panel.width, "h": 8}))
            left += panel.width
        top += 8
    for number, one in enumerate(panels, start=1):
        one["id"] = number
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": "Written by rca export grafana from the signals; changes made here are lost when it is written anew.",
        "tags": ["rca", "training"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "1m",
        "timezone": "browser",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_datasource(), *map(_variable, dashboard.variables)]},
        "annotations": {"list": _annotations()},
        "links": [{"type": "dashboards", "tags": ["rca"], "title": "rca", "asDropdown": False, "keepTime": True}],
        "panels": panels,
    }


def _annotations() -> list[Mapped]:
    """Return what marks charts: the incidents that `rca serve` tells in its own metrics, and findings of exported rules."""
    wanted = (
        ("Incidents", "rca_incident_open == 1", "{{cause}} on {{place}}", "red", True),
        ("Findings", 'ALERTS{cause!="",alertstate="firing"}', "{{alertname}}", "orange", False),
    )
    return [
        {
            "name": name,
            "datasource": SOURCE,
            "enable": enable,
            "expr": text,
            "iconColor": colour,
            "step": "60s",
            "titleFormat": title,
            "tagKeys": "layer,cause,training_job,severity",
        }
        for name, text, title, colour, enable in wanted
    ]


def _heading(title: str, top: int) -> Mapped:
    return {
        "type": "row",
        "title": title,
        "collapsed": False,
        "panels": [],
        "gridPos": {"x": 0, "y": top, "w": 24, "h": 1},
    }


def _panel(panel: Panel, place: Mapping[str, int]) -> Mapped:
    targets = [
        {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": text, "legendFormat": legend, "range": True}
        for number, (legend, text) in enumerate(panel.targets)
    ]
    custom: Mapped = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 0, "showPoints": "never", "spanNulls": False}
    options: Mapped = {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    if panel.kind == "stat":
        custom = {}
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "value_and_name", "graphMode": "none"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": dict(place),
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "options": options,
        "targets": targets,
    }


def _datasource() -> Mapped:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source", "hide": 0}


def _variable(variable: Variable) -> Mapped:
    query = f"label_values({variable.series}, {variable.label})"
    return {
        "name": variable.name,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": variable.name},
        "refresh": 2,
        "sort": 3,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
    }


__all__ = ["GPU", "NODE", "PHASES", "UNITS", "Dashboard", "Panel", "dashboards", "files", "phase_text"]
