"""What `rca.hook` costs a training loop whose step is busy for 300 ms in six phases, with structured logs on.

    python benchmarks/bench_hook.py [--small] [--repeats N]

The work of a step is fixed, not its time; a step with the hook and one without take turns, the first of each pair now the
one and now the other, while another process scrapes the rank every second. Printed is the median ratio of their wall
times, and how far that can be trusted. Other programs disturb it by more than there is to measure, so the target is held
against the median difference of many short steps in the same way, and what a scrape takes, both against 300 ms.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rca.hook import Hook, Identity, Layout, Settings

PHASES = ("forward_compute", "backward_compute", "grads_sync", "params_all_gather", "optimizer", "other")
STEP, SHORT = 0.3, 0.003
TARGET = 0.003
SCRAPER = """
import sys, time, urllib.request
for _ in range(int(sys.argv[3])):
    urllib.request.urlopen(sys.argv[1], timeout=5).read()
    time.sleep(float(sys.argv[2]))
"""


def work(rounds: int) -> int:
    """Keep the processor busy, and leave no garbage."""
    total = 0
    for one in range(rounds):
        total = (total * 31 + one) & 0xFFFF
    return total


def rounds_of(seconds: float) -> int:
    """Return how many rounds take about so long."""
    tries = []
    for _ in range(5):
        start = time.process_time()
        work(200_000)
        tries.append(time.process_time() - start)
    return int(200_000 * seconds / min(tries))


def spoken(hook: Hook, number: int, rounds: int) -> None:
    """Take a step and tell it."""
    with hook.data_wait():
        pass
    with hook.step(number):
        for name in PHASES:
            with hook.phase(name):
                work(rounds)
    hook.log(loss=2.5, grad_norm=0.7, learning_rate=1.5e-4, tokens=4096, samples=4)


def silent(_: Hook, __: int, rounds: int) -> None:
    """Take the same step and tell nobody."""
    for _name in PHASES:
        work(rounds)


def timed(step: Callable[[Hook, int, int], None], hook: Hook, number: int, rounds: int) -> float:
    """Return the wall seconds of a step."""
    start = time.perf_counter()
    step(hook, number, rounds)
    return time.perf_counter() - start


def pairs(hook: Hook, seconds: float, count: int) -> list[tuple[float, float]]:
    """Take pairs of steps; return the seconds without and with the hook."""
    rounds = rounds_of(seconds / len(PHASES))
    taken = []
    for number in range(count):
        order = (silent, spoken) if number % 2 else (spoken, silent)
        took = {step: timed(step, hook, number, rounds) for step in order}
        taken.append((took[silent], took[spoken]))
    return taken


def middle(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and its standard error from the spread between the quartiles."""
    low, median, high = statistics.quantiles(values, n=4)
    return median, 1.2533 * (high - low) / 1.349 / len(values) ** 0.5


def scraping(hook: Hook, pause: float, count: int) -> subprocess.Popen[bytes]:
    """Start to scrape a rank from another process."""
    host, port = hook.address or ("", 0)
    url = f"http://{host}:{port}/metrics"
    return subprocess.Popen([sys.executable, "-c", SCRAPER, url, str(pause), str(count)])


def scrape_cost(hook: Hook, count: int) -> float:
    """Return the processor seconds of a scrape in the process that is scraped."""
    start = time.process_time()
    scraping(hook, 0.0, count).wait()
    return (time.process_time() - start) / count


def measure(hook: Hook, long: int, short: int) -> None:
    """Measure and print."""
    pairs(hook, SHORT, 10)
    scrape = scrape_cost(hook, max(5, short // 100))
    scraper = scraping(hook, 1.0, 100_000)
    try:
        taken = pairs(hook, STEP, long)
        brief = pairs(hook, SHORT, short)
    finally:
        scraper.terminate()
        scraper.wait()
    ratio, doubt = middle([spoke / without - 1.0 for without, spoke in taken])
    cost, error = middle([spoke - without for without, spoke in brief])
    typical = statistics.median(without for without, _ in taken)
    total = (cost + scrape * STEP) / STEP
    print(f"a step of {typical * 1e3:.0f} ms in {len(PHASES)} phases, {long} pairs, scraped every second, logs on")
    print(f"  ratio {ratio:+.2%}, give or take {2 * doubt:.2%}")
    print(f"  the hook {cost * 1e6:.0f} us a step, give or take {2 * error * 1e6:.0f} ({short} pairs)")
    print(f"  a scrape {scrape * 1e6:.0f} us")
    print(f"  overhead {total:.3%} of {STEP * 1e3:.0f} ms, target {TARGET:.1%}  {'ok' if total < TARGET else 'missed'}")


def main() -> None:
    """Make a hook and measure it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="few steps")
    parser.add_argument("--repeats", type=int, default=30, help="pairs of steps of 300 ms")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as logs:
        settings = Settings(listen="127.0.0.1:0", logs=logs)
        hook = Hook(layout=Layout(tp=8, pp=4), who=Identity(rank=3, world=256, job="bench"), settings=settings)
        measure(hook, max(2, given.repeats), 60 if given.small else 3000)
        hook.close()


if __name__ == "__main__":
    main()
