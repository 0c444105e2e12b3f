"""How a hook is reached, and what it sees of the process that it lives in."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

PORT = 9650
"""The port of local rank 0; each further rank of a node takes the next."""
EVERYWHERE = "0.0.0.0"  # noqa: S104 - Prometheus asks from another machine


class Surroundings(NamedTuple):
    """The environment, the clocks in seconds (one that only runs forward, one of the world), the imported modules."""

    environment: Mapping[str, str] = os.environ
    clock: Callable[[], float] = time.perf_counter  # noqa: TID251 - this is where the clock is passed in
    now: Callable[[], float] = time.time  # noqa: TID251 - likewise
    modules: Mapping[str, object] = sys.modules


class Settings(NamedTuple):
    """Where the metrics of a rank are to be had.

    `listen` is HOST:PORT for local rank 0, and the local rank is added to the port (port 0: any free one); empty serves
    nothing. `textfile` is a folder that node_exporter reads, written to every `interval` seconds. `logs` is a folder
    for structured logs. `cuda_events` times phases on the GPU's own stream where CUDA is in use.
    """

    listen: str = f"{EVERYWHERE}:{PORT}"
    textfile: str = ""
    interval: float = 15.0
    logs: str = ""
    cuda_events: bool = True
    around: Surroundings = Surroundings()

    @classmethod
    def read(cls, around: Surroundings) -> "Settings":
        """Read RCA_HOOK_LISTEN, RCA_HOOK_TEXTFILE and RCA_HOOK_LOGS; a folder for node_exporter turns HTTP off."""
        environment = around.environment
        textfile = environment.get("RCA_HOOK_TEXTFILE", "")
        listen = environment.get("RCA_HOOK_LISTEN", "" if textfile else cls().listen)
        return cls(listen=listen, textfile=textfile, logs=environment.get("RCA_HOOK_LOGS", ""), around=around)

    def address(self, local_rank: int) -> tuple[str, int] | None:
        """Return host and port of a local rank, None where nothing is served or the setting cannot be read.

        >>> (
        ...     Settings(listen="127.0.0.1:9700").address(3),
        ...     Settings(listen="[::]:0").address(3),
        ...     Settings(listen=":9650").address(1),
        ... )
        (('127.0.0.1', 9703), ('::', 0), ('0.0.0.0', 9651))
        """
        host, colon, port = self.listen.rpartition(":")
        if not colon or not port.isdecimal():
            return None
        number = int(port) + local_rank if int(port) else 0
        return (host.strip("[]") or EVERYWHERE, number) if number < 65536 else None
