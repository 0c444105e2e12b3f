"""What the tests of importers share: how to read, what was read, and a scenario written as files of other systems."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

from read_once import load

from rca.config import Server
from rca.imports import Imports
from rca.load import imports, shipped
from rca.physics.world import World
from rca.promql import metric_names
from rca.sources.foreign import Place, Ways
from rca.sources.kept import Kept
from rca.sources.scenario import stage
from rca.sources.series import Selector

FOREIGN = Path(__file__).parent / "foreign"
SCENARIOS = Path(__file__).parent.parent / "scenarios"
Samples = list[tuple[float, float]]


@cache
def table() -> Imports:
    known = {name for signal in load().signals.values() for query in signal.queries for name in metric_names(query)}
    return Imports(imports([shipped()]), known)


def ways(zone: str = "UTC", **servers: Server) -> Ways:
    return Ways(table(), ZoneInfo(zone), **servers)


def place(path: Path | str, name: str = "", flag: str = "--x") -> Place:
    return Place(flag, str(path), name)


def samples(kept: Kept, metric: str, **labels: str) -> Samples:
    """Return the samples of the one series of a metric that has these labels."""
    found = {one: part for one, part in every(kept, metric) if labels.items() <= dict(one).items()}
    [only] = found.values()
    return only


def every(kept: Kept, metric: str) -> Iterator[tuple[tuple[tuple[str, str], ...], Samples]]:
    [(_, block)] = kept.fetch([Selector((metric,), (), 0.0, 1e11)])
    for row, labels in enumerate(block.labels):
        part = slice(block.offsets[row], block.offsets[row + 1])
        yield (
            tuple(sorted(labels.items())),
            list(zip(block.times[part].tolist(), block.values[part].tolist(), strict=True)),
        )


def metrics(kept: Kept) -> set[str]:
    return set(kept.names(0.0, 1e11))


@cache
def world(name: str) -> World:
    return stage(SCENARIOS / f"{name}.yaml")


COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "temperature.gpu": ("DCGM_FI_DEV_GPU_TEMP", "{:.0f}".format),
    "power.draw [W]": ("DCGM_FI_DEV_POWER_USAGE", "{:.2f} W".format),
    "clocks.current.sm [MHz]": ("DCGM_FI_DEV_SM_CLOCK", "{:.0f} MHz".format),
    "utilization.gpu [%]": ("DCGM_FI_DEV_GPU_UTIL", "{:.0f} %".format),
    "memory.used [MiB]": ("DCGM_FI_DEV_FB_USED", "{:.0f} MiB".format),
    "clocks_event_reasons.active": ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", lambda value: f"0x{int(value):016x}"),
    "enforced.power.limit [W]": ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "{:.2f} W".format),
}


def write_nvidia_smi(scene: World, folder: Path) -> None:
    """Write the GPUs of a scenario as one file a node, as nvidia-smi would have done."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[tuple[float, str]]] = {}
    parts = [(scene.metrics[metric], write) for metric, write in COLUMNS.values()]
    temperature = parts[0][0]
    for gpu, labels in enumerate(temperature.labels):
        row = [
            next(
                at
                for at, one in enumerate(part.labels)
                if (one["Hostname"], one["gpu"]) == (labels["Hostname"], labels["gpu"])
            )
            for part, _ in parts
        ]
        for at, time in enumerate(temperature.times[gpu].tolist()):
            cells = [
                write(part.values[one, at]) if part.there[one, at] else "[N/A]"
                for (part, write), one in zip(parts, row, strict=True)
            ]
            moment = datetime.fromtimestamp(time, UTC)
            head = f"{moment:%Y/%m/%d %H:%M:%S}.{moment.microsecond // 1000:03d}"
            line = ", ".join([head, labels["modelName"], labels["gpu"], labels["UUID"], *cells])
            rows.setdefault(labels["Hostname"], []).append((time, line))
    for node, lines in rows.items():
        header = ", ".join(["timestamp", "name", "index", "uuid", *COLUMNS])
        (folder / f"{node}.csv").write_text("\n".join([header, *(line for _, line in sorted(lines))]) + "\n")


def steps(scene: World, every_steps: int = 1) -> Sequence[tuple[float, int, float]]:
    """Return (time, step, seconds a step) of rank 0 of a scenario, where the number of steps has grown."""
    done, spent = scene.metrics["train_steps_total"], scene.metrics["train_step_duration_seconds_sum"]
    rank = next(row for row, labels in enumerate(done.labels) if labels["rank"] == "0")
    found: list[tuple[float, int, float]] = []
    last = (done.values[rank, 0], spent.values[rank, 0])
    for time, count, total in zip(done.times[rank], done.values[rank], spent.values[rank], strict=True):
        if count >= last[0] + every_steps:
            found.append((float(time), int(count), float((total - last[1]) / (count - last[0]))))
            last = (count, total)
    return found
