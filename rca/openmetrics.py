"""A simulated cluster as OpenMetrics text, so that a real Prometheus can be filled with it.

    rca simulate scenarios/cooling_fault.yaml --to series.om
    promtool tsdb create-blocks-from openmetrics series.om data

Metric names come back as they are: a counter is declared without its `_total`, an info metric without its `_info`, and
what grows under a name that OpenMetrics does not allow for counters (DCGM's) is declared unknown.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from rca.physics.world import Metric, World

_SUFFIXES = {"counter": ("_total",), "info": ("_info",), "summary": ("_sum", "_count")}


def lines(world: World, until: float = math.inf) -> Iterator[str]:
    """Yield the text piece by piece: each family's declaration, then its series one after the other, then `# EOF`.

    What comes after `until` (unix seconds) is left out.
    """
    families: dict[str, list[Metric]] = {}
    for metric in world.metrics.values():
        families.setdefault(family_name(metric), []).append(metric)
    for name in sorted(families):
        metrics = families[name]
        yield f"# TYPE {name} {metrics[0].type}\n"
        if len(metrics) == 1:
            yield from _series(metrics[0], until)
        else:
            yield from _interleaved(metrics, until)
    yield "# EOF\n"


def family_name(metric: Metric) -> str:
    """Return the name under which OpenMetrics declares a metric."""
    for suffix in _SUFFIXES.get(metric.type, ()):
        if metric.name.endswith(suffix):
            return metric.name.removesuffix(suffix)
    return metric.name


def _series(metric: Metric, until: float) -> Iterator[str]:
    for row, labels in enumerate(metric.labels):
        text = "".join(f"{sample}\n" for sample in _samples(metric, row, selector(labels), until))
        if text:
            yield text


def _interleaved(metrics: Sequence[Metric], until: float) -> Iterator[str]:
    """Yield the parts of a summary together, point by point; all parts have the same series and scrapes."""
    for row in range(len(metrics[0].labels)):
        parts = [_samples(metric, row, selector(metric.labels[row]), until) for metric in metrics]
        text = "".join(f"{sample}\n" for sample in chain.from_iterable(zip(*parts, strict=True)))
        if text:
            yield text


def _samples(metric: Metric, row: int, name: str, until: float) -> Iterator[str]:
    there = metric.there[row] & (metric.times[row] <= until)
    for value, time in zip(metric.values[row][there].tolist(), metric.times[row][there].tolist(), strict=True):
        yield f"{name} {number(value)} {time:.3f}"


def selector(labels: Mapping[str, str]) -> str:
    r"""Write a series.

    >>> selector({"__name__": "up", "job": 'a "b"', "x": "c\\d"})
    'up{job="a \\"b\\"",x="c\\\\d"}'
    """
    pairs = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items() if key != "__name__")
    return f"{labels['__name__']}{{{pairs}}}" if pairs else labels["__name__"]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value: float) -> str:
    """Write a value so that it reads back as the same.

    >>> number(0.1), number(3.0), number(float("inf"))
    ('0.1', '3.0', '+Inf')
    """
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
