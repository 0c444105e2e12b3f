"""The five alerts that everybody starts with, and how fast a job trains."""

from collections.abc import Sequence

from rca.export.expressions import Catalogue
from rca.promql import Match, selector

Mapped = dict[str, object]


def alerts(catalogue: Catalogue) -> Sequence[Mapped]:
    """Return the classic alerts; they know limits and nothing of a job's usual self."""
    job = catalogue.names.name("training", "job")
    node, gpu = catalogue.names.name("dcgm", "node"), catalogue.names.name("dcgm", "gpu")
    one = f"GPU {{{{ $labels.{gpu} }}}} of {{{{ $labels.{node} }}}}"
    return [
        _alert(
            "GpuHot", "rca:gpu_temperature > 85", "5m", "warning", f"{one} is hotter than 85 °C",
            "{{ $value | humanize }} °C. Hot and fast is no trouble yet: see whether its clock is lower.",
        ),
        _alert(
            "GpusIdle", "avg(rca:gpu_utilisation) < 30", "10m", "warning", "The GPUs are used by less than 30 %",
            "On average {{ $value | humanize }} % over all GPUs.",
        ),
        _alert(
            "TrainLossJumped", "rca:job_loss > 10 * rca:job_loss offset 5m", "1m", "critical",
            f"The loss of job {{{{ $labels.{job} }}}} is over ten times that of five minutes ago",
            "It is {{ $value | humanize }}.", job,
        ),
        _alert(
            "GpuMemoryNearlyFull", "rca:gpu_memory_share > 0.95", "2m", "warning", f"{one} has less than 5 % of its memory free",
            "{{ $value | humanizePercentage }} are used. Caching allocators keep it at 92 to 98 % by design.",
        ),
        _alert(
            "TrainNoSamples", f"sum by ({job}) (increase(train_samples_total[10m])) == 0", "0s", "critical",
            f"Job {{{{ $labels.{job} }}}} has processed no sample in ten minutes",
            "It may hang, save a checkpoint, or be over.", job,
        ),
    ]  # fmt: skip


def throughput(catalogue: Catalogue) -> Sequence[Mapped]:
    """Return the recording rule of tokens per server, whose servers are those that the ranks say they run on.

    Tokens per GPU and the time of a step are signals, and recorded as such.
    """
    job = catalogue.names.name("training", "job")
    return [
        {
            "record": "rca:job_billion_tokens_per_server_day",
            "expr": f"rca:job_billion_tokens_per_day / {servers(job)}",
        }
    ]


def servers(job: str, matches: Sequence[Match] = ()) -> str:
    """Write the number of servers of a job."""
    ranks = f"train_rank_info{selector(matches)}" if matches else "train_rank_info"
    return f"count by ({job}) (count by ({job}, node) ({ranks}))"


def _alert(*parts: str) -> Mapped:
    name, expression, hold, severity, summary, description, *job = parts
    labels = {"severity": severity, "group": "classic"}
    if job:
        labels["job"] = f"{{{{ $labels.{job[0]} }}}}"
    return {
        "alert": name,
        "expr": expression,
        "for": hold,
        "labels": labels,
        "annotations": {"summary": summary, "description": description},
    }
