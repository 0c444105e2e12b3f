"""The metrics that a training log yields: type and meaning of each family."""

from typing import Literal, NamedTuple

Type = Literal["gauge", "counter", "summary"]


class Family(NamedTuple):
    """A metric family as Prometheus has it: its type, and what it says."""

    type: Type
    help: str


STATES = ("init", "compile", "load_checkpoint", "train", "eval", "save_checkpoint", "finished")
FAMILIES: dict[str, Family] = {
    "train_batch_samples": Family("gauge", "Samples of a step of the whole job."),
    "train_batch_tokens": Family("gauge", "Unpadded tokens of the last step on this rank."),
    "train_billion_tokens_per_server_per_day": Family(
        "gauge", "Billions of tokens per server and day at the present pace."
    ),
    "train_checkpoint_duration_seconds": Family("summary", "Time of a checkpoint that was written or read."),
    "train_checkpoint_failures_total": Family("counter", "Checkpoints that could not be written."),
    "train_checkpoint_interval_seconds": Family("gauge", "Time between the last two checkpoints."),
    "train_communication_ratio": Family(
        "gauge",
        "Share of a step in phases that send, receive or wait, 0 to 1; what runs inside compute phases is not in it.",
    ),
    "train_data_wait_seconds_total": Family("counter", "Time that steps waited for their input."),
    "train_epoch": Family("gauge", "Epochs done, with their fraction."),
    "train_eta_seconds": Family("gauge", "Time to the last step at the median pace of the last lines."),
    "train_gpu_energy_per_step_joules": Family("gauge", "Energy of a GPU for one step."),
    "train_gpu_memory_allocated_bytes": Family("gauge", "Memory in tensors, as the caching allocator counts it."),
    "train_gpu_memory_peak_bytes": Family("gauge", "Most memory in tensors so far."),
    "train_gpu_memory_peak_reserved_bytes": Family(
        "gauge", "Most memory that the caching allocator held since the last line."
    ),
    "train_gpu_memory_reserved_bytes": Family("gauge", "Memory that the caching allocator holds."),
    "train_gpu_power_watts": Family("gauge", "Power of a GPU, mean over the ranks."),
    "train_grad_norm": Family("gauge", "Norm of the gradient; absent while it is not finite."),
    "train_job_info": Family("gauge", "Layout and size of the job, always 1."),
    "train_last_checkpoint_step": Family("gauge", "Step of the last checkpoint."),
    "train_last_checkpoint_timestamp_seconds": Family("gauge", "Unix time at which the last checkpoint was complete."),
    "train_last_step_timestamp_seconds": Family("gauge", "Unix time at which the last step ended."),
    "train_learning_rate": Family("gauge", "Learning rate."),
    "train_log_events_total": Family(
        "counter", "Lines of a structured log, by event and level, that are no metric by themselves."
    ),
    "train_loss": Family("gauge", "Training loss; absent while it is not finite."),
    "train_loss_scale": Family("gauge", "Factor by which the loss is scaled against underflow."),
    "train_mfu_ratio": Family("gauge", "Model operations against the peak that the framework assumes, 0 to 1."),
    "train_model_flops_per_second": Family("gauge", "Floating point operations of the model per second and GPU."),
    "train_nonfinite_steps_total": Family("counter", "Steps whose loss or gradient was not finite."),
    "train_oom_total": Family("counter", "Times that the GPU's memory did not suffice."),
    "train_params_norm": Family("gauge", "Norm of the parameters."),
    "train_phase_duration_seconds": Family("summary", "Time of a phase; forward_compute includes batch_generator."),
    "train_phase_max_seconds": Family("gauge", "Longest of a phase over all ranks, mean per step."),
    "train_phase_min_seconds": Family("gauge", "Shortest of a phase over all ranks, mean per step."),
    "train_progress_ratio": Family("gauge", "Steps done against the steps that are planned, 0 to 1."),
    "train_rerun_mismatches_total": Family("counter", "Steps that gave another result when they were run again."),
    "train_restarts_total": Family("counter", "Times that training began again, as its log shows it."),
    "train_samples_per_second": Family("gauge", "Samples of the whole job per second, as the framework prints it."),
    "train_samples_total": Family("counter", "Samples of the whole job; in a structured log those of this rank."),
    "train_skipped_steps_total": Family("counter", "Steps without an update of the weights."),
    "train_start_timestamp_seconds": Family("gauge", "Unix time at which the job began to speak."),
    "train_state": Family("gauge", "One for the state that the rank is in, zero for the others."),
    "train_step": Family("gauge", "Number of the step, counted over restarts."),
    "train_step_duration_seconds": Family("summary", "Time of a step."),
    "train_step_seconds": Family("gauge", "Time of a step, mean of the steps since the line before."),
    "train_steps_total": Family("counter", "Optimizer steps done."),
    "train_straggler_clock_hertz": Family("gauge", "SM clock of the ranks that are first and last in it."),
    "train_straggler_data_wait_seconds": Family(
        "gauge", "Time to fetch a batch of the ranks that are first and last in it."
    ),
    "train_straggler_model_flops_per_second": Family(
        "gauge", "Estimated throughput of the ranks that are first and last in it."
    ),
    "train_straggler_power_watts": Family("gauge", "GPU power of the ranks that are first and last in it."),
    "train_straggler_round_trip_seconds": Family(
        "gauge", "Time per step in traced work of the ranks that are first and last in it."
    ),
    "train_straggler_temperature_celsius": Family(
        "gauge", "GPU temperature of the ranks that are first and last in it."
    ),
    "train_straggler_utilisation_ratio": Family(
        "gauge", "GPU utilisation of the ranks that are first and last in it, 0 to 1."
    ),
    "train_target_steps": Family("gauge", "Steps that are planned."),
    "train_tokens_per_gpu_per_second": Family("gauge", "Tokens per second and GPU."),
    "train_tokens_per_second": Family("gauge", "Tokens of the whole job per second."),
    "train_tokens_total": Family(
        "counter", "Tokens of the whole job, where its ranks are known; in a structured log those of this rank."
    ),
    "train_unexpected_results_total": Family("counter", "Results that validation rejected on this rank."),
    "train_unseen_ranks": Family("gauge", "Ranks of the job that have no steps of their own here."),
    "train_validation_loss": Family("gauge", "Validation loss; absent while it is not finite."),
}
GAUGES: dict[str, tuple[str, float]] = {
    "allocated_bytes": ("train_gpu_memory_allocated_bytes", 1.0),
    "batch_samples": ("train_batch_samples", 1.0),
    "batch_tokens": ("train_batch_tokens", 1.0),
    "energy_joules": ("train_gpu_energy_per_step_joules", 1.0),
    "epoch": ("train_epoch", 1.0),
    "grad_norm": ("train_grad_norm", 1.0),
    "learning_rate": ("train_learning_rate", 1.0),
    "loss_scale": ("train_loss_scale", 1.0),
    "mfu_percent": ("train_mfu_ratio", 0.01),
    "params_norm": ("train_params_norm", 1.0),
    "peak_bytes": ("train_gpu_memory_peak_bytes", 1.0),
    "peak_reserved_bytes": ("train_gpu_memory_peak_reserved_bytes", 1.0),
    "power_watts": ("train_gpu_power_watts", 1.0),
    "reserved_bytes": ("train_gpu_memory_reserved_bytes", 1.0),
    "samples_per_second": ("train_samples_per_second", 1.0),
    "step": ("train_step", 1.0),
    "teraflops": ("train_model_flops_per_second", 1e12),
}
"""Fields of records that are a gauge as they stand."""


def family_of(name: str) -> str:
    """Return the family of a sample.

    >>> family_of("train_step_duration_seconds_sum"), family_of("train_steps_total")
    ('train_step_duration_seconds', 'train_steps_total')
    """
    for suffix in ("_sum", "_count"):
        if name.endswith(suffix) and name.removesuffix(suffix) in FAMILIES:
            return name.removesuffix(suffix)
    return name
