"""Megatron-LM's other lines: memory, checkpoints, validation, states, arguments, stragglers, reruns, the progress log.

Sources: `megatron/training/` (`training.py`, `checkpointing.py`, `utils.py`), `megatron/core/utils.py` (straggler
detector, `core/README_STRAGGLER.md`), `megatron/core/rerun_state_machine.py`, from v2.5 to core 0.16.
"""

import re

from rca.parsers.keys import NAMES, loss_of
from rca.parsers.moments import Moments
from rca.parsers.record import Record, number

_RANK = re.compile(rb"\[Rank (\d+)\]")
_AFTER = re.compile(rb"after (\d+) iterations\)? *memory \(MB\)(.*)", re.DOTALL)
_PART = re.compile(rb"\| *([^|:]+?): *([-+.\deE]+)")
_AT = re.compile(rb"iteration:? +(\d+)", re.IGNORECASE)
_SECONDS = re.compile(rb" in ([\d.]+) ?s")
_LOSS = re.compile(rb"\| *([^|:]+?) value: *([^ |]+)")
_ARGUMENT = re.compile(rb"(?:^|\s)([a-z]\w*) \.{3,} *(\S+)")
_SIZES = re.compile(rb"(world size|data-parallel-size|model-parallel size): (\d+)")
_EXTREME = re.compile(rb"\| *(M[nx])(\w+)/Rnk: *([-+.\deE]+) *[^/|]*/(\d+)")
_EACH = re.compile(rb" ([-+.\deE]+)/(\d+),")
_REPORT = re.compile(rb"(?:Rank|on rank) (\d+).*?iteration #?(\d+)")
_ARGUMENTS = {
    b"context_parallel_size": "cp", b"data_parallel_size": "dp", b"expert_model_parallel_size": "ep",
    b"global_batch_size": "batch_samples", b"log_interval": "log_interval", b"moe_expert_parallel_size": "ep",
    b"model_parallel_size": "tp", b"pipeline_model_parallel_size": "pp", b"seq_length": "sequence_length",
    b"tensor_model_parallel_size": "tp", b"train_iters": "target_steps", b"train_samples": "target_samples",
    b"world_size": "world_size",
}  # fmt: skip
_EXTREMES = {
    b"Rtt": ("round_trip_seconds", 1e-3), b"Pwr": ("power_watts", 1e-3), b"Tmp": ("temperature_celsius", 1.0),
    b"Utl": ("utilisation_ratio", 1e-2), b"Clk": ("clock_hertz", 1e6), b"DRtt": ("data_wait_seconds", 1e-3),
    b"Etpt": ("model_flops_per_second", 1e12),
}  # fmt: skip
"""What the straggler detector calls its numbers; it prints milliwatts as W."""
_CHECKPOINT = (
    (b"saved checkpoint from iteration", "saved"), (b"saving checkpoint at iteration", "saving"),
    (b"loaded checkpoint from", "loaded"), (b"loading checkpoint from", "loading"),
    (b"loading distributed checkpoint", "loading"), (b"loading release checkpoint", "loading"),
    (b"aved checkpoint\tIteration:", "saved"), (b"aved async checkpoint\tIteration:", "saved"),
    (b"Finished saving the checkpoint", "saved"), (b"Saving the checkpoint", "saving"),
    (b"Saving a full checkpoint", "saving"), (b"Loading the checkpoint from", "loading"),
    (b"Finished loading the checkpoint", "loaded"), (b"Saving model checkpoint", "saving"),
)  # fmt: skip
"""What Megatron-LM, its progress log, torchtitan and Hugging Face Trainer say of checkpoints."""
_STATES = {
    b"[after megatron is initialized]": "init", b"[before the start of training step]": "train",
    b"[after training is done]": "finished", b"exiting program": "finished",
}  # fmt: skip
_OUTCOMES = {
    b"Possible transient error": "transient", b"Possible persistent error": "persistent",
    b"is reproducible": "reproducible", b"Unexpected result": "unexpected",
}  # fmt: skip


def memory(line: bytes, moments: Moments) -> list[Record]:
    """Read `[Rank 0] (after 1 iterations) memory (MB) | allocated: ...`.

    >>> memory(b"[Rank 3] (after 1 iterations) memory (MB) | allocated: 2.0 | max reserved: 4.0", Moments())[0].fields
    {'allocated_bytes': 2097152.0}
    """
    match, rank = _AFTER.search(line), _RANK.search(line)
    if match is None:
        return []
    fields: dict[str, float | str] = {}
    for key, text in _PART.findall(match[2]):
        name, value = NAMES.get(key.decode(errors="replace")), number(text)
        if name is not None and value is not None:
            fields[name.field] = value * name.factor
    return [Record("memory", moments.find(line, 0, match.start()), rank and rank[1].decode(), fields)]


def checkpoint(line: bytes, moments: Moments) -> list[Record]:
    """Read what is said of a checkpoint: that it is being written or read, or was.

    >>> checkpoint(b"  successfully saved checkpoint from iteration     500 to /ckpt", Moments())[0]
    Record(kind='saved', time=None, rank=None, fields={'step': 500.0})
    """
    kind = next((kind for text, kind in _CHECKPOINT if text in line), "")
    if not kind:
        return []
    step, seconds = _AT.search(line), _SECONDS.search(line)
    fields: dict[str, float | str] = {} if step is None else {"step": float(step[1])}
    value = None if seconds is None else number(seconds[1])
    if kind in ("saved", "loaded") and value is not None:
        fields["seconds"] = value
    if b"async checkpoint" in line:
        fields["mode"] = "async"
    return [Record(kind, moments.find(line), None, fields)]


def validation(line: bytes, moments: Moments) -> list[Record]:
    """Read ` validation loss at iteration 7000 | lm loss value: 7.17E+00 | lm loss PPL: 1.3E+03 |`.

    >>> validation(
    ...     b"validation loss at iteration 70 on validation set | lm loss value: 2.5 | lm loss PPL: 12 |", Moments()
    ... )[0].fields
    {'step': 70.0, 'loss:lm': 2.5}
    """
    if b" test set" in line:
        return []
    step = _AT.search(line)
    fields: dict[str, float | str] = {} if step is None else {"step": float(step[1])}
    for key, text in _LOSS.findall(line):
        value = number(text)
        if value is not None:
            fields[f"loss:{loss_of(key.decode(errors='replace').lower())}"] = value
    return [Record("validation", moments.find(line), None, fields)]


def state(line: bytes, moments: Moments) -> list[Record]:
    """Read `[after training is done] datetime: 2023-11-29 08:57:30` and the like.

    >>> state(b"[exiting program at iteration 70] datetime: none", Moments())
    [Record(kind='state', time=None, rank=None, fields={'state': 'finished'})]
    """
    found = next((state for text, state in _STATES.items() if text in line), "")
    return [Record("state", moments.find(line), None, {"state": found})] if found else []


def arguments(line: bytes, moments: Moments) -> list[Record]:
    """Read an argument as Megatron lists them, or the line that sums up the sizes.

    >>> arguments(b"  seq_length ............. 4096", Moments())[0].fields
    {'sequence_length': 4096.0}
    >>> arguments(
    ...     b"using world size: 64, data-parallel-size: 2, tensor-model-parallel size: 4, pipeline-model-parallel size: 8",
    ...     Moments(),
    ... )[0].fields
    {'world_size': 64.0, 'dp': 2.0, 'tp': 4.0, 'pp': 8.0}
    """
    fields: dict[str, float | str] = {}
    match = None if b":print]" in line else _ARGUMENT.search(line)  # DeepSpeed's configuration counts replicas
    if match and match[1] in _ARGUMENTS:
        value = number(match[2])
        fields = {} if value is None else {_ARGUMENTS[match[1]]: value}
    elif b"world size: " in line:
        names = {b"world size": ["world_size"], b"data-parallel-size": ["dp"], b"model-parallel size": ["tp", "pp"]}
        for key, text in _SIZES.findall(line):
            if names.get(key):
                fields[names[key].pop(0)] = float(text)
    return [Record("arguments", moments.find(line), None, fields)] if fields else []


def straggler(line: bytes, moments: Moments) -> list[Record]:
    """Read what the straggler detector says of the ranks that are first and last in something.

    >>> [
    ...     one.rank
    ...     for one in straggler(
    ...         b"I:[2024-03-14 23:07:56] | MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0", Moments()
    ...     )
    ... ]
    ['8', '0']
    >>> straggler(b"^^^^ Bottom 4 Ranks with lowest  Etpt(TF): 296.02/0, 296.50/3,", Moments())[1].fields
    {'model_flops_per_second': 296500000000000.0, 'extreme': 'min'}
    """
    time = moments.find(line)
    found = []
    for extreme, key, text, rank in _EXTREME.findall(line):
        name, factor = _EXTREMES.get(key, ("", 1.0))
        value = number(text)
        if name and value is not None:
            fields = {name: value * factor, "extreme": "min" if extreme == b"Mn" else "max"}
            found.append(Record("extreme", time, rank.decode(), fields))
    if b"Ranks with " in line:
        extreme = "min" if b"lowest" in line else "max"
        for text, rank in _EACH.findall(line):
            value = number(text)
            if value is not None:
                fields = {"model_flops_per_second": value * 1e12, "extreme": extreme}
                found.append(Record("extreme", time, rank.decode(), fields))
    return found


def rerun(line: bytes, moments: Moments) -> list[Record]:
    """Read what the rerun state machine says of a result.

    >>> rerun(b"Rank 5, node n1, device 5, iteration #70: Possible transient error!!", Moments())
    [Record(kind='rerun', time=None, rank='5', fields={'outcome': 'transient', 'step': 70.0})]
    """
    match = _REPORT.search(line)
    outcome = next((outcome for text, outcome in _OUTCOMES.items() if text in line), "")
    if match is None or not outcome:
        return []
    return [Record("rerun", moments.find(line), match[1].decode(), {"outcome": outcome, "step": float(match[2])})]
