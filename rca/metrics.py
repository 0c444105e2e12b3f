"""What the servers say of their own health, as Prometheus metrics.

No label holds anything that grows with the cluster: what ails a job stands in the incidents.
"""

import platform
from collections.abc import Iterable
from typing import Literal, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from rca import __version__
from rca.errors import ProblemsError, SourceError, UsageError

Reason: TypeAlias = Literal["source", "rules", "usage", "internal"]
REASONS: tuple[Reason, ...] = ("source", "rules", "usage", "internal")
_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics(Collector):
    """The metrics of one process, in a registry of their own; every method may be called from any thread."""

    def __init__(self, at: float) -> None:
        """Begin to count; the configuration was read at `at`, in unix seconds."""
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

    def evaluated(self, duration: float, lag: float) -> None:
        """Count a diagnosis that came to a report: how long it took, and how long after it was due that was."""
        self._evaluations.inc()
        self._duration.observe(max(duration, 0.0))
        self._lag.set(max(lag, 0.0))

    def failed(self, error: BaseException) -> None:
        """Count a diagnosis that came to none."""
        self._evaluations.inc()
        self._failures.labels(reason(error)).inc()

    def missed(self, ticks: int = 1) -> None:
        """Count ticks that were left out."""
        self._missed.inc(ticks)

    def saw(self, staleness: float, unmapped: float, without_data: int) -> None:
        """Note what the last diagnosis saw: seconds of age, a share between 0 and 1, and a number of rules."""
        self._staleness.set(max(staleness, 0.0))
        self._unmapped.set(unmapped)
        self._blind.set(without_data)

    def notified(self, sent: int = 0, failed: int = 0, dropped: int = 0) -> None:
        """Count alerts on their way out."""
        self._sent.inc(sent)
        self._failed.inc(failed)
        self._dropped.inc(dropped)

    def queued(self, length: int) -> None:
        """Note how many alerts wait."""
        self._queue.set(length)

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
