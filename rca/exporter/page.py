"""The page that Prometheus reads, from whoever has something to say."""

import os
import platform
from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client import Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from rca import __version__
from rca.errors import SourceError
from rca.exporter.nvml import Family

Say = Callable[[], Iterable[Metric]]


class Page(Collector):
    """What several have to say, and the process of itself."""

    def __init__(self, *say: Say, process: bool = True) -> None:
        self._say = say
        self._process = ProcessCollector(registry=None) if process else None

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        for say in self._say:
            yield from say()
        build = Metric("rca_build_info", "The program that runs.", "gauge")
        build.add_sample("rca_build_info", {"version": __version__, "python": platform.python_version()}, 1)
        yield build
        if self._process is not None:
            yield from self._process.collect()

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page in the format that suits an Accept header, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self), content_type

    def write(self, path: Path) -> None:
        """Write the page for node_exporter's textfile collector: at once or not at all; raises SourceError."""
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.write_bytes(self.text()[0])
            beside.replace(path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise SourceError(f"{path}: cannot be written, {(error.strerror or str(error)).lower()}") from error


def metric(family: Family) -> Metric:
    """Return a metric of NVML; a counter of DCGM is called untyped, as its name lacks what the name of a counter needs.

    >>> metric(Family("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe retries.", ())).type
    'unknown'
    """
    counter = family.type == "counter"
    well = family.name.endswith("_total")
    made = Metric(
        family.name.removesuffix("_total") if counter and well else family.name,
        family.help,
        "unknown" if counter and not well else family.type,
    )
    for labels, value in family.samples:
        made.add_sample(family.name, labels, value)
    return made
