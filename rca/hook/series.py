"""What a rank has to say, and how it is written for Prometheus."""

import math
from collections.abc import Iterator, Mapping

Labels = tuple[tuple[str, str], ...]
COUNTER, GAUGE, SUMMARY = "counter", "gauge", "summary"
STATES = ("init", "compile", "load_checkpoint", "train", "eval", "save_checkpoint", "finished")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

METRICS: Mapping[str, tuple[str, str]] = {
    "train_rank_info": (GAUGE, "Where the rank runs and what its place in the job is, always 1."),
    "train_job_info": (GAUGE, "Layout and size of the job, always 1, on rank 0."),
    "train_state": (GAUGE, "One for the state that the rank is in, zero for the others."),
    "train_steps_total": (COUNTER, "Optimizer steps done by this process."),
    "train_step": (GAUGE, "Number of the step, counted over restarts."),
    "train_target_steps": (GAUGE, "Steps that the job is to do, on rank 0."),
    "train_last_step_timestamp_seconds": (GAUGE, "Unix time at which the last step ended."),
    "train_start_timestamp_seconds": (GAUGE, "Unix time at which the process began to speak."),
    "train_step_duration_seconds": (SUMMARY, "Time of a step, the wait for its input included."),
    "train_phase_duration_seconds": (SUMMARY, "Time of a phase; forward_compute includes batch_generator."),
    "train_data_wait_seconds_total": (COUNTER, "Time that steps waited for their input."),
    "train_dataloader_queue_length": (GAUGE, "Batches that wait in the queue of the loader."),
    "train_batch_tokens": (GAUGE, "Unpadded tokens of the last step on this rank."),
    "train_batch_samples": (GAUGE, "Samples of the last step on this rank."),
    "train_tokens_total": (COUNTER, "Tokens of this rank's replica, on the one rank that speaks for it."),
    "train_samples_total": (COUNTER, "Samples of this rank's replica, on the one rank that speaks for it."),
    "train_loss": (GAUGE, "Training loss; absent while it is not finite."),
    "train_validation_loss": (GAUGE, "Validation loss; absent while it is not finite."),
    "train_grad_norm": (GAUGE, "Norm of the gradient; absent while it is not finite."),
    "train_params_norm": (GAUGE, "Norm of the parameters."),
    "train_learning_rate": (GAUGE, "Learning rate."),
    "train_loss_scale": (GAUGE, "Factor by which the loss is scaled against underflow."),
    "train_skipped_steps_total": (COUNTER, "Steps without an update of the weights."),
    "train_nonfinite_steps_total": (COUNTER, "Steps whose loss or gradient was not finite."),
    "train_model_flops_per_second": (GAUGE, "Floating point operations of the model per second and GPU."),
    "train_mfu_ratio": (GAUGE, "Model operations against the peak that the user states."),
    "train_checkpoint_duration_seconds": (SUMMARY, "Time of a checkpoint that was written or read."),
    "train_last_checkpoint_timestamp_seconds": (GAUGE, "Unix time at which the last checkpoint was complete."),
    "train_last_checkpoint_step": (GAUGE, "Step of the last checkpoint."),
    "train_checkpoint_interval_seconds": (GAUGE, "Time between the last two checkpoints."),
    "train_checkpoint_bytes": (GAUGE, "Size of the last checkpoint as this rank wrote it."),
    "train_checkpoint_failures_total": (COUNTER, "Checkpoints that could not be written."),
    "train_gpu_memory_allocated_bytes": (GAUGE, "Memory in tensors, as the caching allocator counts it."),
    "train_gpu_memory_reserved_bytes": (GAUGE, "Memory that the caching allocator holds."),
    "train_gpu_memory_peak_bytes": (GAUGE, "Most memory in tensors so far."),
    "train_alloc_retries_total": (COUNTER, "Times that the allocator gave its cache back and tried again."),
    "train_oom_total": (COUNTER, "Times that the allocator found no memory."),
    "train_gc_seconds_total": (COUNTER, "Time in the garbage collector of Python."),
    "train_collective_wait_seconds_total": (COUNTER, "Time that the rank waited for others in collectives."),
    "train_weight_hash_mismatches_total": (COUNTER, "Checks that found the weights unlike those of other replicas."),
    "train_rerun_mismatches_total": (COUNTER, "Steps that gave another result when they were run again."),
    "train_hook_errors_total": (COUNTER, "Values that the hook could not use."),
}


class Series:
    """The values of one rank, by metric and further labels.

    One thread writes a series, others read: every value is replaced as a whole, and nothing is ever locked, so that a
    scrape cannot stop the loop, and a fork or the garbage collector in mid-write leaves nothing broken.
    """

    def __init__(self, job: str, rank: int) -> None:
        self._identity = pairs((("job_id", job), ("rank", str(rank))))
        self._values: dict[str, dict[Labels, float]] = {}
        self._summaries: dict[str, dict[Labels, tuple[float, int]]] = {}

    def set(self, metric: str, value: float | None, labels: Labels = ()) -> None:
        """Set a gauge; None, and what is not finite, takes it away."""
        if value is None or not math.isfinite(value):
            self._values.setdefault(metric, {}).pop(labels, None)
        else:
            self._values.setdefault(metric, {})[labels] = value

    def add(self, metric: str, amount: float, labels: Labels = ()) -> None:
        """Count up; what is negative or not finite is left aside."""
        if 0.0 <= amount < math.inf:
            values = self._values.setdefault(metric, {})
            values[labels] = values.get(labels, 0.0) + amount

    def observe(self, metric: str, seconds: float, labels: Labels = ()) -> None:
        """Add one observation to a summary; what is negative or not finite is left aside."""
        if 0.0 <= seconds < math.inf:
            values = self._summaries.setdefault(metric, {})
            total, count = values.get(labels, (0.0, 0))
            values[labels] = (total + seconds, count + 1)

    def replace(self, metric: str, labels: Labels) -> None:
        """Set an info series, which is always 1, in place of the one before."""
        self._values[metric] = {labels: 1.0}

    def value(self, metric: str, labels: Labels = ()) -> float | None:
        """Return the value of a counter or gauge."""
        return self._values.get(metric, {}).get(labels)

    def text(self) -> str:
        """Write the exposition, metrics and series in the order in which they came."""
        return "".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for metric, values in list(self._values.items()):
            yield from _head(metric, bool(values))
            for labels, value in list(values.items()):
                yield f"{metric}{{{self._identity}{further(labels)}}} {number(value)}\n"
        for metric, summaries in list(self._summaries.items()):
            yield from _head(metric, bool(summaries))
            for labels, (total, count) in list(summaries.items()):
                own = f"{{{self._identity}{further(labels)}}}"
                yield f"{metric}_sum{own} {number(total)}\n{metric}_count{own} {count}\n"


def _head(metric: str, filled: bool) -> Iterator[str]:
    if filled:
        kind, text = METRICS[metric]
        yield f"# HELP {metric} {text}\n# TYPE {metric} {kind}\n"


def number(value: float) -> str:
    """Write a value.

    >>> number(3.0), number(1e-05), number(16777216.0)
    ('3', '1e-05', '16777216')
    """
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def further(labels: Labels) -> str:
    """Write the labels that follow the identity."""
    return f",{pairs(labels)}" if labels else ""


def pairs(labels: Labels) -> str:
    r"""Write labels, with the three characters escaped that the format wants escaped.

    >>> print(pairs((("job_id", 'a "b"\\c'),)))
    job_id="a \"b\"\\c"
    """
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
