"""What the servers say of their own health, as Prometheus metrics.

No label holds anything that grows with the cluster: what ails a job stands in the incidents. Those that are open are
series too, so that charts can be marked with them, and no more than `MOST_OPEN`.
"""

import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, Metric, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from rca import __version__
from rca.errors import ProblemsError, RcaError, SourceError, UsageError

Reason: TypeAlias = Literal["source", "rules", "usage", "internal"]
REASONS: tuple[Reason, ...] = ("source", "rules", "usage", "internal")
MOST_OPEN = 100
"""So many open incidents are series, those that were seen last."""
INCIDENT = ("root_cause_id", "cause", "layer", "place", "training_job")
"""The labels of an open incident; a label called `job` would collide with that of the scrape."""
_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Look(NamedTuple):
    """How well the source could be seen in a diagnosis: how old the newest sample was in seconds, the share of series
    that could be given to no entity, and the rules that could be judged nowhere, with the signals that they lack.
    """

    silence: float
    unmapped: float
    blind: Mapping[str, tuple[str, ...]]


class Health(NamedTuple):
    """How the last evaluation went: when it began in unix seconds (None: there was none), how many seconds it took, why
    it failed, if it did, and which rules could be judged nowhere when all was read last, with the signals that they lack.
    """

    at: float | None = None
    took: float = 0.0
    error: str = ""
    blind: Mapping[str, tuple[str, ...]] = {}


class Metrics(Collector):
    """The metrics of one process, in a registry of their own; every method may be called from any thread."""

    def __init__(self, at: float) -> None:
        """Begin to count; the configuration was read at `at`, in unix seconds."""
        self.health = Health()
        self._open: Sequence[Sequence[str]] = ()
        self._registry = own = CollectorRegistry()
        ProcessCollector(registry=own)
        Info("rca_build", "The program that runs.", registry=own).info(
            {"version": __version__, "python": platform.python_version()}
        )
        self._evaluations = Counter("rca_evaluations_total", "Diagnoses that were tried.", registry=own)
        self._failures = Counter(
            "rca_evaluation_failures_total", "Diagnoses that came to no report, by reason.", ["reason"], registry=own
        )
        for reason in REASONS:
            self._failures.labels(reason)
        self._duration = Histogram(
            "rca_evaluation_duration_seconds", "How long a diagnosis took.", buckets=_BUCKETS, registry=own
        )
        self._lag = Gauge(
            "rca_evaluation_lag_seconds", "From the moment a diagnosis was due to its report.", registry=own
        )
        self._missed = Counter("rca_ticks_missed_total", "Ticks left out because one was under way.", registry=own)
        self._staleness = Gauge(
            "rca_source_staleness_seconds", "Age of the newest sample that a diagnosis saw.", registry=own
        )
        self._unmapped = Gauge(
            "rca_unmapped_entities_ratio", "Share of series that could be given to no entity.", registry=own
        )
        self._blind = Gauge("rca_rules_without_data", "Rules that could be judged nowhere.", registry=own)
        self._sent = Counter("rca_notifications_sent_total", "Alerts handed to a receiver.", registry=own)
        self._failed = Counter("rca_notifications_failed_total", "Alerts that a receiver did not take.", registry=own)
        self._dropped = Counter("rca_notifications_dropped_total", "Alerts given up for good.", registry=own)
        self._queue = Gauge("rca_webhook_queue_length", "Alerts that wait to be looked into.", registry=own)
        self._loaded = Gauge(
            "rca_config_last_reload_successful", "Whether the rules and settings were last read well.", registry=own
        )
        self._loaded_at = Gauge(
            "rca_config_last_reload_success_timestamp_seconds", "When they were last read well.", registry=own
        )
        self.reloaded(at, well=True)

    def evaluated(self, began: float, duration: float, lag: float) -> None:
        """Count a diagnosis that came to a report: when it began, how long it took, and how long after it was due that was."""
        self.health = self.health._replace(at=began, took=max(duration, 0.0), error="")
        self._evaluations.inc()
        self._duration.observe(max(duration, 0.0))
        self._lag.set(max(lag, 0.0))

    def failed(self, error: BaseException, began: float | None = None) -> None:
        """Count a diagnosis that came to none, and when it began."""
        said = str(error) if isinstance(error, RcaError) else "internal error, see the log of the server"
        self.health = self.health._replace(at=self.health.at if began is None else began, error=said)
        self._evaluations.inc()
        self._failures.labels(reason(error)).inc()

    def missed(self, ticks: int = 1) -> None:
        """Count ticks that were left out."""
        self._missed.inc(ticks)

    def saw(self, look: Look) -> None:
        """Note what the last diagnosis saw."""
        self.health = self.health._replace(blind=look.blind)
        self._staleness.set(max(look.silence, 0.0))
        self._unmapped.set(look.unmapped)
        self._blind.set(len(look.blind))

    def notified(self, sent: int = 0, failed: int = 0, dropped: int = 0) -> None:
        """Count alerts on their way out."""
        self._sent.inc(sent)
        self._failed.inc(failed)
        self._dropped.inc(dropped)

    def queued(self, length: int) -> None:
        """Note how many alerts wait."""
        self._queue.set(length)

    def opened(self, incidents: Iterable[Sequence[str]]) -> None:
        """Note which incidents are open, each by its values of the labels in `INCIDENT`."""
        self._open = list(incidents)[:MOST_OPEN]

    def reloaded(self, at: float, *, well: bool) -> None:
        """Note that rules and settings were read again, and how that went."""
        self._loaded.set(well)
        if well:
            self._loaded_at.set(at)

    def collect(self) -> Iterable[Metric]:
        """Yield what is counted, without the times at which counting began: a series more for each, asked by nobody."""
        for metric in self._registry.collect():
            metric.samples = [one for one in metric.samples if not one.name.endswith("_created")]
            yield metric
        about = "One for each open incident, the last hundred at most."
        incidents = GaugeMetricFamily("rca_incident_open", about, labels=INCIDENT)
        for values in self._open:
            incidents.add_metric(values, 1.0)
        yield incidents

    def text(self, accept: str) -> tuple[bytes, str]:
        """Return what is counted in the format that suits an Accept header, and the content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self), content_type


def reason(error: BaseException) -> Reason:
    """Return the word for why a diagnosis failed.

    >>> reason(SourceError("no answer")), reason(ZeroDivisionError())
    ('source', 'internal')
    """
    if isinstance(error, SourceError):
        return "source"
    if isinstance(error, ProblemsError):
        return "rules"
    return "usage" if isinstance(error, UsageError) else "internal"
