"""Where the time of a diagnosis goes: the stages of `rca diagnose` one after the other, in one process."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rca.config import Server
from rca.diagnose import diagnose
from rca.load import load
from rca.model import Floats, Window
from rca.render import json
from rca.sources.assemble import assemble
from rca.sources.prometheus import PrometheusStore
from rca.sources.series import Block, Selector

T = TypeVar("T")
_START = "from rca import commands, load; load.load()"


class Kept:
    """A store whose answers are there already: what another store has answered before, selector by selector."""

    def __init__(self, store: PrometheusStore) -> None:
        self.store = store
        self.seconds = 0.0
        self._blocks: dict[Selector, Block] = {}

    def names(self, start: float, end: float) -> frozenset[str]:
        """Ask the server."""
        return self.store.names(start, end)

    def fetch(self, selectors: Sequence[Selector]) -> Iterator[tuple[int, Block]]:
        """Fetch at first all at once, and note how long it took."""
        start = time.perf_counter()
        if not self._blocks:
            self._blocks = {selectors[index]: block for index, block in self.store.fetch(selectors)}
        self.seconds = time.perf_counter() - start
        yield from enumerate(self._blocks[selector] for selector in selectors)

    def evaluate(self, query: str, times: Floats) -> Block:
        """Ask the server."""
        return self.store.evaluate(query, times)

    def warnings(self) -> tuple[str, ...]:
        """Return what the server has said."""
        return self.store.warnings()


def profile(url: str, end: float, width: float) -> None:
    """Print wall and CPU time of each stage."""
    library, window = load().in_use(), Window(end - width, end)
    with PrometheusStore(Server(url=url, timeout="10m")) as store:
        kept = Kept(store)
        _stage("start of the program, rules", lambda: subprocess.run([sys.executable, "-c", _START], check=True))
        assemble(kept, library, window)
        print(f"{'fetch and decode':>28} {kept.seconds:>7.2f} s")
        snapshot = _stage("assemble", lambda: assemble(kept, library, window))
    report = _stage("diagnose", lambda: diagnose(library, snapshot))
    _stage("write", lambda: json.render(report))


def _stage(name: str, call: Callable[[], T]) -> T:
    """Run one stage and print how long it took."""
    start, cpu = time.perf_counter(), time.process_time()
    result = call()
    print(f"{name:>28} {time.perf_counter() - start:>7.2f} s, CPU {time.process_time() - cpu:>7.2f} s", flush=True)
    return result
