"""What frameworks call their numbers: the spelling in a log, to the name and unit of a `Record`.

Sources: Megatron-LM `training_log` from v2.5 to core 0.16 and its forks (Megatron-DeepSpeed, BigScience, AIAK),
NeMo's progress printer, torchtitan's `MetricsProcessor`, DeepSpeed's engine, HF Trainer, Lightning's progress bar.
"""

from typing import NamedTuple


class Name(NamedTuple):
    """A field of a record, and what turns the printed number into its unit."""

    field: str
    factor: float = 1.0


GIB, MIB = float(1 << 30), float(1 << 20)

NAMES: dict[str, Name] = {
    "actual seqlen": Name("sequence_length"),
    "allocated": Name("allocated_bytes", MIB),
    "b tokens/server/day": Name("billion_tokens_per_server_day"),
    "batch_samples": Name("batch_samples"),
    "batch_tokens": Name("batch_tokens"),
    "billion tokens/server/day": Name("billion_tokens_per_server_day"),
    "consumed samples": Name("samples"),
    "consumed tokens": Name("tokens"),
    "consumed_samples": Name("samples"),
    "currsamplespersec": Name("samples_per_second"),
    "data_load_seconds": Name("data_seconds"),
    "data_seconds": Name("data_seconds"),
    "data_time": Name("data_seconds"),
    "data_wait_seconds": Name("data_seconds"),
    "duration_s": Name("step_seconds"),
    "duration_seconds": Name("step_seconds"),
    "elapsed time per iteration (ms)": Name("step_seconds", 1e-3),
    "elapsed time per iteration (s)": Name("step_seconds"),
    "elapsed_seconds": Name("step_seconds"),
    "energy per gpu (j/iter/gpu)": Name("energy_joules"),
    "epoch": Name("epoch"),
    "global batch size": Name("batch_samples"),
    "global_batch_size": Name("batch_samples"),
    "global_step": Name("step"),
    "grad norm": Name("grad_norm"),
    "grad-norm": Name("grad_norm"),
    "grad_norm": Name("grad_norm"),
    "iter time (s)": Name("step_seconds"),
    "iteration": Name("step"),
    "learning rate": Name("learning_rate"),
    "learning_rate": Name("learning_rate"),
    "loss scale": Name("loss_scale"),
    "loss_scale": Name("loss_scale"),
    "lr": Name("learning_rate"),
    "max allocated": Name("peak_bytes", MIB),
    "maxmemallocated": Name("peak_bytes", GIB),
    "mem_alloc": Name("allocated_bytes", MIB),
    "memallocated": Name("allocated_bytes", GIB),
    "memory": Name("peak_reserved_bytes", GIB),
    "mfu": Name("mfu_percent"),
    "nonfinite": Name("nonfinite"),
    "num_tokens": Name("tokens"),
    "number of nan iterations": Name("nonfinite"),
    "number of skipped iterations": Name("skipped"),
    "params norm": Name("params_norm"),
    "params_norm": Name("params_norm"),
    "power per gpu (w/gpu)": Name("power_watts"),
    "reserved": Name("reserved_bytes", MIB),
    "sample_per_second": Name("samples_per_second"),
    "samples": Name("samples"),
    "samples per second": Name("samples_per_second"),
    "samples/sec": Name("samples_per_second"),
    "samples_per_second": Name("samples_per_second"),
    "skipped": Name("skipped_total"),
    "sps": Name("samples_per_second"),
    "step": Name("step"),
    "step_duration_seconds": Name("step_seconds"),
    "step_ms": Name("step_seconds", 1e-3),
    "step_seconds": Name("step_seconds"),
    "step_time": Name("step_seconds"),
    "step_time_ms": Name("step_seconds", 1e-3),
    "step_time_s": Name("step_seconds"),
    "steps": Name("step"),
    "target_steps": Name("target_steps"),
    "tflops": Name("teraflops"),
    "tflops_per_gpu": Name("teraflops"),
    "tgs": Name("tokens_per_gpu_second"),
    "throughput (tflop/s/gpu)": Name("teraflops"),
    "throughput (tokens/s)": Name("tokens_per_second"),
    "throughput per gpu (tflop/s/gpu)": Name("teraflops"),
    "tokens": Name("tokens"),
    "tokens per gpu per second": Name("tokens_per_gpu_second"),
    "tokens per gpu per second (tgs)": Name("tokens_per_gpu_second"),
    "tokens per second": Name("tokens_per_second"),
    "tokens/gpu/s": Name("tokens_per_gpu_second"),
    "tokens/s": Name("tokens_per_second"),
    "tokens/s/gpu": Name("tokens_per_gpu_second"),
    "tps": Name("tokens_per_gpu_second"),
    "train_step_timing in s": Name("step_seconds"),
}

PHASES: dict[str, str] = {
    "all-grads-sync": "grads_sync",
    "backward-allreduce": "grads_sync",
    "backward-backward": "backward_compute",
    "backward-compute": "backward_compute",
    "backward-embedding-all-reduce": "embedding_grads_sync",
    "backward-params-all-reduce": "grads_sync",
    "backward-recv": "pp_backward_recv",
    "backward-send": "pp_backward_send",
    "backward-send-backward-recv": "pp_bwd_send_bwd_recv",
    "backward-send-forward-recv": "pp_bwd_send_fwd_recv",
    "batch-generator": "batch_generator",
    "batch_input": "batch_generator",
    "bwd_allreduce": "grads_sync",
    "bwd_inner": "backward_compute",
    "embedding-grads-all-reduce": "embedding_grads_sync",
    "forward": "forward_compute",
    "forward-backward": "forward_backward",
    "forward-backward-send-forward-backward-recv": "pp_fwd_bwd_send_fwd_bwd_recv",
    "forward-compute": "forward_compute",
    "forward-recv": "pp_forward_recv",
    "forward-send": "pp_forward_send",
    "forward-send-backward-recv": "pp_fwd_send_bwd_recv",
    "forward-send-forward-recv": "pp_fwd_send_fwd_recv",
    "fwd": "forward_compute",
    "grads-all-reduce": "grads_sync",
    "grads-reduce-scatter": "grads_sync",
    "layernorm-grads-all-reduce": "layernorm_grads_sync",
    "non-tensor-parallel-grads-all-reduce": "layernorm_grads_sync",
    "optimizer": "optimizer",
    "optimizer-clip-main-grad": "optimizer_clip_grad",
    "optimizer-copy-main-to-model-params": "optimizer_copy_params",
    "optimizer-copy-to-main-grad": "optimizer_copy_grad",
    "optimizer-count-zeros": "optimizer_count_zeros",
    "optimizer-inner-step": "optimizer_step",
    "optimizer-unscale-and-check-inf": "optimizer_unscale",
    "params-all-gather": "params_all_gather",
    "step": "optimizer",
}
MICRO: dict[str, str] = {
    "bwd_allreduce_microstep": "grads_sync",
    "bwd_inner_microstep": "backward_compute",
    "fwd_microstep": "forward_compute",
    "step_microstep": "optimizer",
}
ONCE: dict[str, str] = {
    "eval-time": "eval",
    "evaluate": "eval",
    "load-checkpoint": "load_checkpoint",
    "save-checkpoint": "save_checkpoint",
    "save-checkpoint-non-persistent": "save_checkpoint",
    "valid": "eval",
}
COMMUNICATION = frozenset(
    phase for phase in PHASES.values() if phase.startswith("pp_") or phase.endswith("_sync") or "gather" in phase
)
"""Phases in which a rank sends, receives or waits for others."""

_LOSSES = {"loss": "lm", "reduced_train_loss": "lm", "train_loss": "lm", "val_loss": "lm", "eval_loss": "lm"}


def name_of(key: str) -> Name | None:
    """Return what a key of a training log stands for, None where that is not known.

    >>> name_of("elapsed time per iteration (ms)"), name_of("lm-loss"), name_of("num zeros")
    (Name(field='step_seconds', factor=0.001), Name(field='loss:lm', factor=1.0), None)
    """
    plain = key.strip().lower()
    known = NAMES.get(plain)
    if known is not None:
        return known
    loss = loss_of(plain)
    return Name(f"loss:{loss}") if loss else None


def loss_of(key: str) -> str:
    """Return the name of the loss that a key names, empty where it names none.

    >>> (
    ...     loss_of("lm loss value"),
    ...     loss_of("load_balancing_loss"),
    ...     loss_of("loss"),
    ...     loss_of("seq aux loss 1"),
    ...     loss_of("lr"),
    ... )
    ('lm', 'load_balancing', 'lm', 'seq_aux_1', '')
    """
    plain = key.removesuffix(" value").replace("-", "_").replace(" ", "_").replace("/", "_")
    if "loss" not in plain or "scale" in plain:
        return ""
    if plain in _LOSSES:
        return _LOSSES[plain]
    return "_".join(part for part in plain.split("_") if part not in ("", "loss")) or "lm"


def phase_of(timer: str) -> str:
    """Return the phase of a step that a timer measures, empty where it is none; AIAK appends `-time`.

    >>> phase_of("all-grads-sync"), phase_of("grads-reduce-scatter-time"), phase_of("batch generator"), phase_of("x")
    ('grads_sync', 'grads_sync', 'batch_generator', '')
    """
    plain = timer.strip()
    return PHASES.get(plain) or PHASES.get(plain.removesuffix("-time")) or PHASES.get(plain.replace(" ", "-"), "")
