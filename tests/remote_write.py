"""A simulated cluster sent to a running Prometheus, a tenth of the work of writing blocks with promtool.

The protocol is Prometheus' remote write 1.0: a protobuf `WriteRequest`, framed as snappy. Requests hold whole series, so
the server must not mind old samples: `FLAGS` give its head room for weeks.
"""

import urllib.request
from collections.abc import Iterator, Mapping

import numpy as np

from rca.model import Floats
from rca.physics.world import World

FLAGS = ("--web.enable-remote-write-receiver", "--storage.tsdb.min-block-duration=60d")
"""What a server that is sent to needs: to listen, and to take what is up to half as old as a block is long."""
AT_ONCE = 16 << 20
"""Bytes of a request, about."""
_SAMPLE = np.dtype([("head", "V3"), ("value", "<f8"), ("tag", "u1"), ("time", "u1", 6)])
"""A `Sample` as field 2 of a `TimeSeries`: 16 bytes of a double and of milliseconds, which take six bytes until 2109."""


def send(url: str, world: World) -> None:
    """Send every sample of a cluster; what has the same labels must come in the order of time."""
    waiting = bytearray()
    for one in _series(world):
        waiting += one
        if len(waiting) > AT_ONCE:
            _post(url, bytes(waiting))
            waiting.clear()
    _post(url, bytes(waiting))


def _series(world: World) -> Iterator[bytes]:
    for metric in world.metrics.values():
        for labels, there, times, values in zip(metric.labels, metric.there, metric.times, metric.values, strict=True):
            yield _field(1, _labels(labels) + samples(times[there], values[there]))


def _labels(labels: Mapping[str, str]) -> bytes:
    pairs = sorted((name, value) for name, value in labels.items() if value)
    return b"".join(_field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in pairs)


def samples(times: Floats, values: Floats) -> bytes:
    """Write samples, `times` in unix seconds.

    >>> samples(np.array([1_772_373_900.0]), np.array([1.0])).hex(" ")
    '12 10 09 00 00 00 00 00 00 f0 3f 10 e0 f5 dd cd ca 33'
    """
    written = np.zeros(len(times), _SAMPLE)
    written["head"] = np.void(b"\x12\x10\x09")
    written["value"] = values
    written["tag"] = 0x10
    milliseconds = np.rint(times * 1000.0).astype(np.int64)
    written["time"] = milliseconds[:, None] >> np.arange(0, 42, 7) & 0x7F
    written["time"][:, :5] |= 0x80
    return written.tobytes()


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Write a number in groups of seven bits, the lowest first."""
    groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def _post(url: str, content: bytes) -> None:
    """Send a request as one snappy literal, which nothing was compressed in."""
    framed = _varint(len(content)) + b"\xfc" + (len(content) - 1).to_bytes(4, "little") + content
    headers = {
        "Content-Type": "application/x-protobuf", "Content-Encoding": "snappy",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }  # fmt: skip
    with urllib.request.urlopen(urllib.request.Request(f"{url}/api/v1/write", framed, headers), timeout=120) as answer:
        assert answer.status == 204
