"""A training job without a framework: processes that step together, tell it through `rca.hook`, and wait for each other.

    python tests/hook_job.py JOB WORLD PORT [--slow-loader SECONDS] [--slow-work SECONDS] [--tokens FACTOR]
        [--ill RANK] [--after SECONDS]

Rank N serves its metrics on PORT + N of the loopback. From `--after` seconds on, rank `--ill` is slow. It runs until it
is terminated.
"""

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier

from rca.hook import Hook, Identity, Layout, Settings

LOADER, FORWARD, BACKWARD, TRANSFER = 0.004, 0.04, 0.05, 0.005
"""Seconds of a healthy step of some 100 ms."""


def spin(seconds: float) -> None:
    """Work for some seconds."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def load(given: argparse.Namespace, rank: int, begun: float) -> Iterator[bool]:
    """Yield whether a batch is ill; the ill rank takes longer for each, once it is ill."""
    while True:
        ill = rank == given.ill and time.monotonic() > begun + given.after
        time.sleep(LOADER + (given.slow_loader if ill else 0.0))
        yield ill


def train(given: argparse.Namespace, rank: int, together: Barrier) -> None:
    """Be one rank."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    who = Identity(rank=rank, local_rank=rank, world=given.world, job=given.job, node=f"node-{rank // 8:02}")
    hook = Hook(layout=Layout(), who=who, settings=Settings(listen=f"127.0.0.1:{given.port}"))
    for number, ill in enumerate(hook.batches(load(given, rank, time.monotonic())), 1):
        with hook.step(number):
            with hook.phase("forward_compute"):
                time.sleep(FORWARD)
                spin(given.slow_work if ill else 0.0)
            with hook.phase("backward_compute"):
                time.sleep(BACKWARD)
            with hook.collective_wait("dp"):
                together.wait()
            with hook.phase("grads_sync"):
                time.sleep(TRANSFER)
        hook.log(loss=2.0 + 1.0 / number, tokens=4096 * (given.tokens if ill else 1.0), samples=4)


def main() -> None:
    """Start the ranks, and end with them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("world", type=int)
    parser.add_argument("port", type=int)
    parser.add_argument("--ill", type=int, default=-1)
    parser.add_argument("--slow-loader", type=float, default=0.0)
    parser.add_argument("--slow-work", type=float, default=0.0)
    parser.add_argument("--tokens", type=float, default=1.0)
    parser.add_argument("--after", type=float, default=0.0)
    given = parser.parse_args()
    context = multiprocessing.get_context("fork")
    together = context.Barrier(given.world)
    ranks = [context.Process(target=train, args=(given, rank, together)) for rank in range(given.world)]
    for rank in ranks:
        rank.start()

    def end(*_: object) -> None:
        for rank in ranks:
            rank.terminate()
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    for rank in ranks:
        rank.join()


if __name__ == "__main__":
    main()
