"""What `make test` does in seconds, at full length: kills, floods, bad weather, and memory. It takes an hour or so.

`kills` ends the server fifty times at random moments under load; `flood` sends 1,000 deliveries in 10 s over 20
connections; `weather` lets Alertmanager, and then Prometheus, be away, slow (answers take 30 s) and wrong half the time,
for five minutes each, while an incident is open; `memory` lets 2,000 ticks go by.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "tests")]

import endurance
import structlog
from own_process import running, scaled_rules, serve

LATE_MS = 100.0
GROWTH_MIB = 16.0


def say(text: str) -> None:
    """Print a line at once."""
    print(f"  {text}", flush=True)


def kills(folder: Path, scale: float) -> None:
    """Kill the server at random moments; raises where anything is lost or there twice."""
    counts = endurance.killed(folder, max(round(50 * scale), 2), random.Random(time.time_ns()))
    say(", ".join(f"{number:,} {name}" for name, number in counts.items()) + "; nothing lost, nothing twice")


def flood(folder: Path, scale: float) -> None:
    """Send many deliveries at once, and say how long the answers took."""
    count = max(round(1000 * scale), 40)
    with endurance.past(folder) as (source, starts):
        scaled = {**endurance.SCALED, "interval": "30s"}
        settings = {**scaled, "prometheus": {"url": source}, "rules": str(scaled_rules(folder / "rules"))}
        with running(serve(folder, settings)) as server:
            known = endurance.burst(server.url, count, 20, 10.0 * scale, starts)
            endurance.awaited(lambda: endurance.waiting(server.url) == 0, 120.0, "all alerts are looked into")
            server.stop()
        kept = endurance.settled(folder / "rca.db", known.fingerprints, server)["kept"]
    late = 1e3 * known.late()
    say(f"{count:,} sent, answers {dict(known.statuses)}, {kept:,} kept")
    say(
        f"p50 {1e3 * known.late(0.5):.0f} ms, p99 {late:.0f} ms, target {LATE_MS:.0f} ms  {'ok' if late < LATE_MS else 'missed'}"
    )


def weather(folder: Path, scale: float) -> None:
    """Let servers be away, slow and wrong."""
    lengths = endurance.LONG if scale == 1.0 else endurance.SHORT
    with endurance.site(folder, lengths) as site:
        endurance.endured(site, lengths, say)


def memory(folder: Path, scale: float) -> None:
    """Let time go by, and say how much memory is held."""
    ticks = max(round(2000 * scale), 40)
    held = endurance.remembered(folder, ticks, ticks // 10)
    growth = held[-1] - held[1]
    say(f"MiB after every {ticks // 10} ticks: {', '.join(f'{one:.0f}' for one in held)}")
    say(f"growth {growth:.0f} MiB, target {GROWTH_MIB:.0f} MiB  {'ok' if growth < GROWTH_MIB else 'missed'}")


PARTS: dict[str, Callable[[Path, float], None]] = {"kills": kills, "flood": flood, "weather": weather, "memory": memory}


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; may be repeated")
    parser.add_argument("--scale", type=float, default=1.0, help="a part of the full length, for a try  [1]")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("error"))
    for name in given.only or PARTS:
        start = time.monotonic()
        print(name, flush=True)
        with tempfile.TemporaryDirectory(prefix="rca-soak-") as folder:
            PARTS[name](Path(folder), given.scale)
        say(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
