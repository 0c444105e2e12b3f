"""A line of each kind that training frameworks write, with what it says. All are made up; formats are those of the code."""

HEAD = (
    " [2026-08-22 15:22:22.500000] iteration      100/  500000 | consumed samples:       102400 | elapsed time per iteration (ms): 4123.4 | "
    "throughput per GPU (TFLOP/s/GPU): 412.3 | energy per GPU (J/iter/GPU): 2450.0 | power per GPU (W/GPU): 610.5 | "
    "learning rate: 1.500000E-04 | global batch size:  1024 | lm loss: 2.125000E+00 | load_balancing_loss: 1.000000E-02 | "
    "loss scale: 1.0 | grad norm: 0.312 | num zeros: 12 | params norm: 2731.402 | number of skipped iterations:   1 | "
    "number of nan iterations:   0 |"
)
HEAD_FIELDS = {
    "step": 100.0, "target_steps": 500000.0, "samples": 102400.0, "step_seconds": 4.1234, "teraflops": 412.3,
    "energy_joules": 2450.0, "power_watts": 610.5, "learning_rate": 1.5e-4, "batch_samples": 1024.0, "loss:lm": 2.125,
    "loss:load_balancing": 0.01, "loss_scale": 1.0, "grad_norm": 0.312, "params_norm": 2731.402, "skipped": 1.0,
    "nonfinite": 0.0,
}  # fmt: skip
OLD = (
    " iteration       10/    1000 | consumed samples:        10240 | elapsed time per iteration (ms): 28716.0 | learning rate: 1.500E-04 | "
    "global batch size:  1024 | lm loss: 2.324108E+01 | loss scale: 1024.0 | grad norm: 3.500 | num zeros: 0.0 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |"
)
OLD_FIELDS = {
    "step": 10.0, "target_steps": 1000.0, "samples": 10240.0, "step_seconds": 28.716, "learning_rate": 1.5e-4,
    "batch_samples": 1024.0, "loss:lm": 23.24108, "loss_scale": 1024.0, "grad_norm": 3.5, "skipped": 0.0, "nonfinite": 0.0,
}  # fmt: skip
BLOOM = (
    "[default7]: iteration    31214/  115311 | consumed samples:     47768496 | consumed tokens:  97829879808 | "
    "elapsed time per iteration (s): 106.46 | learning rate: 5.279E-05 | global batch size:  2048 | lm loss: 2.198845E+00 | "
    "grad norm: 0.242 | num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 | "
    "samples per second: 19.238 | TFLOPs: 147.29 |"
)
OTHER = "[2026-08-22 15:22:22,500] [INFO] [logging.py:96:log_dist] "
TITAN = "\x1b[31mstep: 10  \x1b[32mloss:  7.85000  \x1b[38;2;1;2;3mgrad_norm:  1.2500  \x1b[34mmemory:  2.00GiB(6.10%)  \x1b[36mtps: 3,456  \x1b[35mtflops: 20.50  \x1b[37mmfu: 6.25%\x1b[0m"
NOON = 1787412142.5
"""2026-08-22 15:22:22.5 UTC, the time in all lines that have one."""

Line = tuple[str, str, str | None, dict[str, float | str]]
"""A line, the kind of its record, the rank that it names, and the fields that it must have."""
LINES: dict[str, Line] = {
    "megatron, newest": (HEAD, "step", None, HEAD_FIELDS),
    "megatron, seconds only": (HEAD.replace("22.500000]", "22]"), "step", None, HEAD_FIELDS),
    "megatron, logger": ("INFO:megatron.training.training:" + HEAD.lstrip(), "step", None, HEAD_FIELDS),
    "megatron, srun label": ("0: " + HEAD, "step", None, HEAD_FIELDS),
    "megatron, torchrun tee": ("[default7]:" + HEAD, "step", None, HEAD_FIELDS),
    "megatron, pdsh": ("vm-07-14: " + OLD, "step", None, OLD_FIELDS),
    "megatron, v2.5": (OLD, "step", None, OLD_FIELDS),
    "megatron, no spaces": (OLD.replace(" ", ""), "", None, {}),
    "megatron, windows line end": (OLD + "\r", "step", None, OLD_FIELDS),
    "megatron, loss with a hyphen": (OLD.replace("lm loss", "lm-loss"), "step", None, OLD_FIELDS),
    "megatron, not a number": (
        OLD.replace(" lm loss: 2.324108E+01 |", "").replace("nan iterations:   0", "nan iterations:   1"),
        "step", None, {key: value for key, value in OLD_FIELDS.items() if key != "loss:lm"} | {"nonfinite": 1.0},
    ),
    "megatron, cut off": (OLD[:120], "step", None, {"step": 10.0, "step_seconds": 28.716}),
    "aiak": (
        OLD + " tokens per GPU per second: 3456.5 | B tokens/server/day: 2.389 |",
        "step", None, OLD_FIELDS | {"tokens_per_gpu_second": 3456.5, "billion_tokens_per_server_day": 2.389},
    ),
    "bloom": (
        BLOOM, "step", None, {"tokens": 97829879808.0, "step_seconds": 106.46, "samples_per_second": 19.238, "teraflops": 147.29},
    ),
    "megatron-deepspeed": (
        "iteration 7/ 9 | elapsed time per iteration (ms): 500.0 | actual seqlen:  2048 | tokens per gpu per second (tgs): 55.5 | SPS: 7.0 |",
        "step", None, {"sequence_length": 2048.0, "tokens_per_gpu_second": 55.5, "samples_per_second": 7.0},
    ),
    "nemo": (
        "Training epoch 0, iteration 9/99 | lr: 0.0003 | global_batch_size: 512 | global_step: 9 | reduced_train_loss: 10.25 | train_step_timing in s: 1.25 | consumed_samples: 5120",
        "step", None, {"step": 9.0, "learning_rate": 0.0003, "loss:lm": 10.25, "step_seconds": 1.25, "samples": 5120.0, "by": "0"},
    ),
    "one line of timers": (
        "[Rank 0] time (ms) | forward-compute: 1250.00 | backward-compute: 2500.00 | batch-generator: 12.50 | optimizer: 50.0",
        "phase", None, {"forward_compute": 1.25, "backward_compute": 2.5, "batch_generator": 0.0125, "optimizer": 0.05},
    ),
    "oldest timers": (
        "time (ms) | forward: 35650.91 | backward: 85861.86 | backward-backward: 85861.81 | backward-allreduce: 0.50 | batch generator: 13.17",
        "phase", None, {"forward_compute": 35.65091, "backward_compute": 85.86181, "grads_sync": 0.0005, "batch_generator": 0.01317},
    ),
    "deepspeed timers": (
        OTHER + "[Rank 0] time (ms) | fwd_microstep: 10.00 | bwd_microstep: 30.00 | bwd_inner_microstep: 20.00 | bwd_allreduce_microstep: 10.00 | step_microstep: 5.00",
        "micro_phase", None, {"forward_compute": 0.01, "backward_compute": 0.02, "grads_sync": 0.01, "optimizer": 0.005},
    ),
    "memory": (
        "[Rank 22] (after 1 iterations) memory (MB) | allocated: 10837.5 | max allocated: 16373.75 | reserved: 18882.0 | max reserved: 18884.0",
        "memory", "22", {"allocated_bytes": 10837.5 * 2**20, "peak_bytes": 16373.75 * 2**20, "reserved_bytes": 18882.0 * 2**20},
    ),
    "memory, oldest": ("after 1 iterations memory (MB) | allocated: 2.0 | reserved: 4.0", "memory", None, {"reserved_bytes": 4.0 * 2**20}),
    "saving": ("saving checkpoint at iteration     500 to /ckpt in torch_dist format", "saving", None, {"step": 500.0}),
    "saved": ("  successfully saved checkpoint from iteration     500 to /ckpt [ t 1/2, p 1/1 ]", "saved", None, {"step": 500.0}),
    "loading": (" loading distributed checkpoint from /ckpt at iteration 500", "loading", None, {"step": 500.0}),
    "loaded": ("  successfully loaded checkpoint from /ckpt [ t 1/2, p 1/1 ] at iteration 500", "loaded", None, {"step": 500.0}),
    "progress log": (
        "2026-08-22 15:22:22.5\tJob ID: 7\t# GPUs: 64\tSaved checkpoint\tIteration: 500\tJob throughput: 400.1 TFLOP/s/GPU\tTokens (in billions): 2.10",
        "saved", None, {"step": 500.0},
    ),
    "progress log, asynchronous": ("Saved async checkpoint\tIteration: 500", "saved", None, {"step": 500.0, "mode": "async"}),
    "torchtitan saved": ("[titan] - INFO - Finished saving the checkpoint in 2.50 seconds", "saved", None, {"seconds": 2.5}),
    "validation": (
        " validation loss at iteration 7000 on validation set | lm loss value: 7.174200E+00 | lm loss PPL: 1.305315E+03 | ",
        "validation", None, {"step": 7000.0, "loss:lm": 7.1742},
    ),
    "exit": ("[exiting program at iteration 70] datetime: 2026-08-22 15:22:22.5", "state", None, {"state": "finished"}),
    "end": ("[after training is done] datetime: 2026-08-22 15:22:22.5 ", "state", None, {"state": "finished"}),
    "start": ("[after megatron is initialized] datetime: 2026-08-22 15:22:22.5 ", "state", None, {"state": "init"}),
    "sizes": (
        "using world size: 64, data-parallel-size: 2, tensor-model-parallel size: 4, pipeline-model-parallel size: 8 ",
        "arguments", None, {"world_size": 64.0, "dp": 2.0, "tp": 4.0, "pp": 8.0},
    ),
    "argument": ("  world_size ...................................... 384", "arguments", None, {"world_size": 384.0}),
    "argument of a long name": ("0:   pipeline_model_parallel_size .................... 8", "arguments", None, {"pp": 8.0}),
    "straggler": (
        "INFO:megatron.core.utils:[2026-08-22 15:22:22.5] | MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 | MnPwr/Rnk: 601796W/8",
        "extreme", "8", {"round_trip_seconds": 3.45308, "extreme": "min"},
    ),
    "bottom ranks": (
        "INFO:megatron.core.utils:^^^^ Bottom 4 Ranks with lowest  Etpt(TF): 296.02/0, 296.50/3, 296.60/9, 297.00/5,",
        "extreme", "0", {"model_flops_per_second": 296.02e12, "extreme": "min"},
    ),
    "rerun": ("ERROR:megatron.core.rerun_state_machine:Rank 5, node n1, device 5, iteration #70: Possible transient error!!", "rerun", "5", {"outcome": "transient", "step": 70.0}),
    "rerun, persistent": ("Rank 5, node n1, device 5, iteration #70: Possible persistent error!!", "rerun", "5", {"outcome": "persistent"}),
    "unexpected result": ("Rank 3, node n, device 4, iteration 7: Unexpected result nan (message='spiky loss')", "rerun", "3", {"outcome": "unexpected"}),
    "unexpected result, first run": ("Unexpected result inf on rank 3 at iteration #7 invocation #2 (message='x')", "rerun", "3", {"step": 7.0}),
    "deepspeed": (
        OTHER + "[Rank 0] step=10, skipped=2, lr=[0.001, 0.001], mom=[(0.9, 0.95), (0.9, 0.95)]",
        "step", None, {"step": 10.0, "skipped_total": 2.0, "learning_rate": 0.001, "by": "0"},
    ),
    "deepspeed speed": (
        OTHER + "epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.0, CurrSamplesPerSec=25.5, MemAllocated=4.0GB, MaxMemAllocated=38.5GB",
        "step", None, {"step": 10.0, "allocated_bytes": 4.0 * 2**30, "peak_bytes": 38.5 * 2**30},
    ),
    "deepspeed speed, old": (OTHER + "0/20, RunningAvgSamplesPerSec=232.5, CurrSamplesPerSec=227.4, MemAllocated=0.5GB", "step", None, {"step": 20.0}),
    "deepspeed pipeline": (
        "steps: 200 loss: 5.5508 lm loss: 5.5103 moe loss: 0.0405 iter time (s): 0.936 samples/sec: 136.706",
        "step", None, {"step": 200.0, "loss:lm": 5.5508, "step_seconds": 0.936, "samples_per_second": 136.706},
    ),
    "deepspeed overflow": (
        OTHER + "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536.0, reducing to 32768.0",
        "overflow", None, {"loss_scale": 32768.0},
    ),
    "torchtitan": (
        "[rank0]:[titan] 2026-08-22 15:22:22,500 - root - INFO - " + TITAN,
        "step", None, {"step": 10.0, "loss:lm": 7.85, "grad_norm": 1.25, "peak_reserved_bytes": 2.0 * 2**30, "tokens_per_gpu_second": 3456.0, "teraflops": 20.5, "mfu_percent": 6.25},
    ),
    "trainer": ("{'loss': 2.5, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.5}", "step", None, {"loss:lm": 2.5, "grad_norm": 1.25, "learning_rate": 5e-05, "epoch": 0.5}),
    "trainer beside a bar": (
        "\r  9%|▉         | 45/500 [00:09<01:31,  4.95it/s]\r 10%|█         | 50/500 [00:10<01:30,  5.00it/s]\r   \r{'loss': '2.5', 'num_tokens': 1000}",
        "step", None, {"step": 50.0, "target_steps": 500.0, "loss:lm": 2.5, "tokens": 1000.0},
    ),
    "trainer's evaluation": ("{'eval_loss': 2.25, 'eval_runtime': 3.1, 'epoch': 1.0}", "validation", None, {"loss:lm": 2.25}),
    "trainer's end": ("{'train_runtime': 100.0, 'train_loss': 2.0, 'epoch': 1.0}", "state", None, {"state": "finished"}),
    "lightning": (
        "Epoch 1:  10%|█  | 1/10 [00:01<00:04,  2.00it/s]\rEpoch 1:  20%|██ | 2/10 [00:01<00:04,  2.00it/s, v_num=0, train_loss=0.500]",
        "step", None, {"step": 12.0, "step_seconds": 0.5, "loss:lm": 0.5},
    ),
    "structured": (
        '{"timestamp": "2026-08-22T15:22:22.500Z", "rank": 3, "level": "INFO", "event": "TRAIN_STEP", "event_id": "EVT_1001", "message": "step=1500 lr=1.2e-4", "extra": {"loss": 2.345, "step_seconds": 0.25, "data_wait_seconds": 0.01}}',
        "step", "3", {"step": 1500.0, "learning_rate": 1.2e-4, "loss:lm": 2.345, "step_seconds": 0.25, "data_seconds": 0.01, "steps": 1.0},
    ),
    "structured, little": ('{"rank": 0, "event": "CHECKPOINT_SAVE", "extra": {"seconds": 2.5, "step": 7}}', "saved", "0", {"step": 7.0, "seconds": 2.5}),
    "structured, no number": ('{"rank": 1, "event": "TRAIN_STEP", "extra": {"loss": NaN, "step": 7}}', "step", "1", {"step": 7.0}),
    "structured, time in milliseconds": ('{"timestamp": 1787412142500, "rank": "4", "event": "GRAD_NORM", "extra": {"grad_norm": 45.6}}', "gauge", "4", {"grad_norm": 45.6}),
    "structured, another event": ('{"rank": 1, "level": "ERROR", "event": "NCCL_TIMEOUT", "message": "rank=1 waits"}', "event", "1", {"event": "NCCL_TIMEOUT", "level": "ERROR"}),
    "structured, data": ('{"rank": 12, "event": "DATA_LOAD_TIME", "extra": {"ms": 180}}', "wait", "12", {"data_seconds": 0.18}),
}  # fmt: skip
BLOCK = """0: (min, max) time across ranks (ms):
0:     forward-backward ...............................: (4000.00, 4010.00)
1: somebody else says something
0:     forward-compute ................................: (1250.00, 1500.00)
0:     optimizer-copy-main-to-model-params ............: (12.00, 13.00)
0:     save-checkpoint ................................: (900.00, 1000.00)
"""
AIAK = "(min, max) time across ranks (ms):\n    grads-reduce-scatter-time ......................: (25.00, 50.00)\n"
LONGEST = "max time across ranks (ms):\n    forward-compute ................................: 1500.00\n"
EACH = "times across ranks (ms):\n  forward-compute:\n     rank  0: 1250.00\n     rank  1: 1500.00\n  all-grads-sync:\n     rank  1: 50.00\n"
