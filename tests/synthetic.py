"""Snapshots made directly in numpy, for tests of the pure core and for benchmarks: no series, no labels, no server."""

from dataclasses import dataclass, field

import numpy as np

from rca.library import Library
from rca.model import Floats, Measurement, Snapshot, Table
from rca.relations import reduced

STEP = 15.0


@dataclass
class Job:
    """A healthy job on tp × pp × dp GPUs, eight to a node; tests bend `signals` before they take the snapshot."""

    tp: int = 1
    pp: int = 1
    dp: int = 64
    columns: int = 60
    past: int = 240
    seed: int = 0
    signals: dict[str, Floats] = field(default_factory=dict)
    columns_of: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = self.tp * self.pp * self.dp
        rank = np.arange(size)
        index = {"tp": rank % self.tp, "dp": rank // self.tp % self.dp, "pp": rank // (self.tp * self.dp)}
        place = {name: [str(one) for one in values] for name, values in index.items()}
        node, gpu = [f"node-{one // 8:02d}" for one in rank], [str(one % 8) for one in rank]
        ranks = [str(one) for one in rank]
        common = {**place, "cp": ["0"] * size, "job": ["j"] * size, "rank": ranks, "node": node, "gpu": gpu}
        self.columns_of = {
            "gpu": {**common, "model": ["H100"] * size},
            "rank": dict(common),
            "node": {"node": sorted(set(node)), "job": ["j"] * len(set(node))},
            "cell": {"job": [], "dp": [], "pp": [], "node": []},
            "stage": {"job": ["j"] * self.pp, "pp": [str(one) for one in range(self.pp)]},
            "replica": {"job": ["j"] * self.dp, "dp": [str(one) for one in range(self.dp)]},
            "job": {"job": ["j"]},
        }
        for pp in range(self.pp):
            for dp in range(self.dp):
                nodes = {node[one] for one in rank if index["pp"][one] == pp and index["dp"][one] == dp}
                for name, value in (
                    ("job", "j"),
                    ("dp", str(dp)),
                    ("pp", str(pp)),
                    ("node", min(nodes) if len(nodes) == 1 else ""),
                ):
                    self.columns_of["cell"][name].append(value)
        self._healthy(size)

    def _healthy(self, size: int) -> None:
        random = np.random.default_rng(self.seed)
        width = self.past + self.columns

        def draw(level: float, spread: float, count: int = size) -> Floats:
            return level * (1 + spread * random.standard_normal((count, width)))

        nodes = len(self.columns_of["node"]["node"])
        chip = 1 + 0.02 * random.standard_normal((size, 1))
        self.signals = {
            "gpu_sm_clock": draw(1700.0, 0.005) * chip,
            "gpu_temperature": draw(65.0, 0.01),
            "gpu_max_op_temperature": np.full((size, width), 87.0),
            "gpu_thermal_violation_ratio": np.zeros((size, width)),
            "gpu_clock_event_reasons": np.full((size, width), 4.0),
            "gpu_power_limit": np.full((size, width), 700.0),
            "gpu_utilisation": np.clip(draw(98.0, 0.005), 0, 100),
            "gpu_tensor_active": draw(0.5, 0.01),
            "rank_forward_seconds": draw(0.7, 0.004),
            "rank_backward_seconds": draw(1.3, 0.004),
            "rank_data_wait_seconds": draw(0.02, 0.05),
            "rank_collective_wait_seconds": draw(0.1, 0.05),
            "rank_step_seconds": np.repeat(draw(2.4, 0.002, 1), size, axis=0),
            "rank_samples_per_second": np.repeat(draw(10.0, 0.002, 1), size, axis=0),
            "rank_batch_tokens": draw(4096.0, 0.002),
            "job_loss": 2.5 - 0.0005 * np.arange(width)[None, :] + 0.002 * random.standard_normal((1, width)),
            "node_cpu_pressure": draw(0.1, 0.05, nodes),
            "node_cpu_steal": np.zeros((nodes, width)),
            "node_cpu_busiest_core": draw(0.6, 0.02, nodes),
            "node_disk_read_latency": draw(0.0005, 0.05, nodes),
            "node_disk_read_bytes": draw(1.2e9, 0.02, nodes),
            "rank_state": np.full((size, width), 3.0),
        }

    def snapshot(self, library: Library, *, before: bool = True) -> Snapshot:
        """Return the snapshot, derived signals included; without `before` the job has no past."""
        tables = {
            kind: Table(
                kind,
                library.entities.kinds[kind].labels,
                {name: np.array(values, dtype=object) for name, values in columns.items()},
            )
            for kind, columns in self.columns_of.items()
        }
        full = dict(self.signals)
        for name in library.signals:
            self._derive(library, tables, full, name)
        past = self.past
        times = np.arange(self.columns) * STEP + 1.8e9
        measurements = {
            name: Measurement(values[:, past:], values[:, :past] if before else None, STEP, 0.0, name)
            for name, values in full.items()
        }
        return Snapshot(times, np.arange(-past, 0) * STEP + 1.8e9, STEP, tables, measurements)

    def _derive(self, library: Library, tables: dict[str, Table], full: dict[str, Floats], name: str) -> None:
        signal = library.signals[name]
        derived = signal.derived
        if name in full or derived is None or signal.entity not in tables:
            return
        for part in derived.inputs():
            self._derive(library, tables, full, part)
        if any(part not in full for part in derived.inputs() if part not in (*derived.plus, *derived.difference)):
            return
        own = tables[signal.entity]
        if derived.of is not None:
            finer = tables[library.signals[derived.of].entity]
            index = _index(finer, own)
            full[name] = reduced(full[derived.of], index, len(own), derived.by or "max")
            return
        parts = {part: self._on(library, tables, full, (part, own)) for part in derived.inputs() if part in full}
        product = np.prod([parts[part] for part in derived.product], axis=0) if derived.product else None
        whole = np.sum([parts[part] for part in derived.sum], axis=0) if derived.sum else None
        if product is not None:
            full[name] = product
        elif derived.ratio:
            with np.errstate(invalid="ignore", divide="ignore"):
                full[name] = parts[derived.ratio[0]] / parts[derived.ratio[1]]
        elif whole is not None:
            more = sum(np.nan_to_num(parts[part]) for part in derived.plus if part in parts)
            full[name] = whole + more - sum(parts[part] for part in derived.difference if part in parts)

    def _on(
        self, library: Library, tables: dict[str, Table], full: dict[str, Floats], part: tuple[str, Table]
    ) -> Floats:
        name, own = part
        kind = library.signals[name].entity
        return full[name] if kind == own.kind else full[name][_index(own, tables[kind])]


def _index(rows: Table, targets: Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    keys = {key: at for at, key in enumerate(zip(*(targets.columns[label] for label in targets.key), strict=True))}
    return np.array(
        [keys[key] for key in zip(*(rows.columns[label] for label in targets.key), strict=True)], dtype=np.int64
    )
