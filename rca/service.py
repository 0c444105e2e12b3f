"""What the long-lived commands do between their flags and the signal that ends them."""

import os
import platform
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rca import load, terminal
from rca.apart import Apart
from rca.archive import Archive
from rca.commands import save
from rca.config import check_listen, settle
from rca.errors import RcaError, UsageError
from rca.inputs import Inputs, changes, deployment, flags, folders
from rca.messages import receivers
from rca.metrics import Metrics
from rca.model import seconds
from rca.outbox import Outbox
from rca.plain import stamp
from rca.sources.prometheus import PrometheusStore
from rca.watch import Eyes, Rules, Shard, Sight, Watch, scheduled

TURN = 0.0005
"""Seconds after which a thread of the server gives way to another: who answers waits for who stores, at each step."""


def rules_of(given: Inputs) -> Rules:
    """Read what a server works by: settings, rules, topology, and how its source is opened."""
    settings = settle(given.config, os.environ, flags(given))
    if not settings.prometheus.url:
        raise UsageError("no source: give --prometheus URL")
    library = load.load(*folders(settings), changes(settings, given.config))
    receivers(settings.incidents)  # better an error now than at the first incident
    return Rules(settings, library, deployment(settings), partial(PrometheusStore, settings.prometheus))


@contextmanager
def watching(
    given: Inputs, shard: tuple[int, int], *, apart: bool = False
) -> Iterator[tuple[Watch, Outbox, Archive, Metrics]]:
    """Make what watches, `apart` with eyes in a process of their own, and close it in the end; the log goes to stderr."""
    rules, clock = rules_of(given), time.time  # noqa: TID251 - the present is asked for at the edge, and nowhere else
    terminal.log_to(sys.stderr)
    metrics, archive = Metrics(clock()), Archive(rules.settings.store)
    eyes = (Apart if apart else Eyes)(rules, archive, metrics, Shard(*shard))
    outbox = Outbox(archive, metrics, lambda: eyes.rules.settings, clock)
    one = Watch(eyes, archive, metrics, clock)
    one.tell = outbox.wake
    try:
        yield one, outbox, archive, metrics
    finally:
        outbox.stop()
        eyes.close()
        archive.close()


def watch(given: Inputs, shard: tuple[int, int], *, once: bool) -> None:
    """Evaluate on a schedule until told to stop, or once.

    Raises what the one look raised, SourceError where a store or server cannot be used at all.
    """
    with watching(given, shard) as (one, outbox, _, metrics):
        if once:
            one.tick(strict=True)
            outbox.round()
            return
        outbox.start()
        scheduler = scheduled(one, metrics, seconds(one.eyes.rules.settings.interval))
        scheduler.start()
        wait_for_stop(lambda: metrics.reloaded(one.clock(), well=not reloaded(one.eyes, given)))
        scheduler.shutdown()


def serve(given: Inputs, shard: tuple[int, int], *, follow: bool) -> None:
    """Answer alerts and questions over HTTP until told to stop; evaluate on a schedule, unless only to `follow` what
    alerts have brought about.
    """
    from rca import serve as server  # noqa: PLC0415 - heavy
    from rca.webhook import Backend  # noqa: PLC0415 - likewise

    with watching(given, shard, apart=True) as (one, outbox, archive, metrics):
        sys.setswitchinterval(TURN)
        one.follows, eyes = follow, one.eyes
        backend = Backend(
            archive=archive,
            ask=eyes.ask,
            leave=eyes.close,
            name=f"{platform.node()} {eyes.rules.settings.listen}",
            announce=lambda: one.announce(at_once=True),
            reload=lambda: reloaded(eyes, given),
            library=lambda: eyes.rules.library,
            settings=lambda: eyes.rules.settings,
            metrics=metrics,
            now=one.clock,
        )
        scheduler = scheduled(one, metrics, seconds(eyes.rules.settings.interval))
        scheduler.start()
        outbox.start()
        try:
            eyes.start()
            server.serve(backend, eyes.rules.settings)
        finally:
            scheduler.shutdown()


def reloaded(eyes: Sight, given: Inputs) -> str:
    """Read settings and rules again; where they are wrong keep the old ones, and return what is wrong."""
    try:
        eyes.rules = rules_of(given)
    except RcaError as error:
        return str(error)
    return ""


def simulate(scenario: Path, to: str | None, end: float | None, listen: str) -> None:
    """Let a scenario happen now until told to stop; what of it lies in the past is written first, if `to` a file."""
    from rca import live, openmetrics  # noqa: PLC0415 - the simulator is heavy
    from rca.sources.scenario import read, stage  # noqa: PLC0415 - likewise

    try:
        check_listen(listen)
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from error
    now = time.time()  # noqa: TID251 - the present is asked for at the edge
    world = stage(scenario, live.ending(read(scenario), now) if end is None else end)
    if to is not None:
        save(to, openmetrics.lines(world, time.time()))  # noqa: TID251 - likewise
    with live.listening(world, listen, time.time) as address:  # noqa: TID251 - likewise
        terminal.say(f"{address}: {stamp(world.epoch)} to {stamp(world.end)}")
        wait_for_stop(lambda: None)


def wait_for_stop(reload: Callable[[], object]) -> None:
    """Wait until a signal asks the process to end; SIGHUP asks it to read its files again."""
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _frame: asked.put(got))
    while asked.get() == signal.SIGHUP:
        reload()
