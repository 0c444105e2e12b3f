"""Lines of DeepSpeed, torchtitan, Hugging Face Trainer and Lightning.

Sources: DeepSpeed's `engine.py`, `utils/timer.py`, `runtime/pipe/engine.py`; torchtitan's `components/metrics.py` and
`checkpoint.py`; transformers' printer callback and tqdm's bar beside it; Lightning's progress bar.
"""

import re

from rca.parsers.keys import name_of
from rca.parsers.moments import Moments
from rca.parsers.record import Fields, Record, number

_EQUALS = re.compile(rb"([A-Za-z_]\w*)=\[?([-+.\deE]+|nan|inf)")
_TOTAL = re.compile(rb"\b\d+/(\d+), RunningAvg")
_COLON = re.compile(rb"([A-Za-z][\w/ ()-]*?): *(\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?|nan|inf|-inf)")
_QUOTED = re.compile(rb"'([\w/@.-]+)': *'?(-?[\d.]+(?:[eE][-+]?\d+)?|nan|-?inf)\b")
_COLOUR = re.compile(rb"\x1b\[[\d;]*m")
_BAR = re.compile(rb"(\d+)/(\d+) \[[\d:]+<[\d:?]+, *([\d.]+) ?(it/s|s/it)")
_EPOCH = re.compile(rb"Epoch (\d+):[^|]*\|[^|]*\| (\d+)/(\d+) \[[^<]*<[^,]*(?:, *([\d.]+) ?(it/s|s/it))?([^\]]*)")
_SCALE = re.compile(rb"Attempted loss scale: ([\d.]+), (?:but hysteresis[^.]*|reducing to ([\d.]+))")
_WHO = re.compile(rb"[Rr]ank (\d+)")


def engine(line: bytes, moments: Moments) -> list[Record]:
    """Read DeepSpeed's `step=10, skipped=0, lr=[0.001], mom=[(0.9, 0.999)]`, and what its throughput timer prints.

    >>> engine(b"[logging.py:96:log_dist] [Rank 0] step=10, skipped=2, lr=[1e-3, 1e-3], mom=[(0.9, 0.95)]", Moments())[
    ...     0
    ... ].fields
    {'step': 10.0, 'skipped_total': 2.0, 'learning_rate': 0.001, 'by': '0'}
    """
    total = _TOTAL.search(line)
    fields = _read(
        _EQUALS.findall(line), {"learning_rate", "mom", "step", "skipped_total", "allocated_bytes", "peak_bytes"}
    )
    if total is not None:
        fields["step"] = float(total[1])
    return [Record("step", moments.find(line), None, {**fields, "by": "0"})] if "step" in fields else []


def pipeline(line: bytes, moments: Moments) -> list[Record]:
    """Read DeepSpeed's pipeline engine.

    >>> pipeline(b"steps: 10 loss: 7.25 iter time (s): 0.5 samples/sec: 32.0", Moments())[0].fields
    {'step': 10.0, 'loss:lm': 7.25, 'step_seconds': 0.5, 'samples_per_second': 32.0, 'by': '0'}
    """
    begin = line.find(b"step")
    fields = _read(_COLON.findall(line[begin:]), None) if begin >= 0 else {}
    return [Record("step", moments.find(line, 0, begin), None, {**fields, "by": "0"})] if "step" in fields else []


def overflow(line: bytes, moments: Moments) -> list[Record]:
    """Read that DeepSpeed leaves out a step because a gradient overflowed.

    >>> overflow(b"OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 16.0, reducing to 8.0", Moments())[0].fields
    {'loss_scale': 8.0}
    """
    match = _SCALE.search(line)
    value = number(match[2] or match[1]) if match else None
    who = _WHO.search(line)
    if who is not None and who[1] != b"0":
        return []
    return [Record("overflow", moments.find(line), None, {} if value is None else {"loss_scale": value})]


def titan(line: bytes, moments: Moments) -> list[Record]:
    """Read torchtitan's `step: 10  loss: 7.85  grad_norm: 1.2  memory: 5.2GiB(6.1%)  tps: 3,456  mfu: 6.45%`.

    >>> titan(b"step: 10  loss:  7.85000  memory:  1.00GiB(6.10%)  tps: 3,456  tflops: 2.00  mfu: 6.25%", Moments())[
    ...     0
    ... ].fields
    {'step': 10.0, 'loss:lm': 7.85, 'peak_reserved_bytes': 1073741824.0, 'tokens_per_gpu_second': 3456.0, 'teraflops': 2.0, 'mfu_percent': 6.25, 'by': 'reporter'}
    """
    plain = _COLOUR.sub(b"", line)
    begin = plain.find(b"step:")
    fields = _read(_COLON.findall(plain[begin:]), None)
    return (
        [Record("step", moments.find(plain, 0, begin), None, {**fields, "by": "reporter"})] if "step" in fields else []
    )


def trainer(line: bytes, moments: Moments) -> list[Record]:
    """Read a dictionary of Hugging Face Trainer, and the step off the progress bar before it where there is one.

    >>> trainer(
    ...     b" 10%|#  | 50/500 [00:10<01:30,  5.00it/s]\\r{'loss': 2.5, 'grad_norm': '1.5', 'epoch': 0.1}", Moments()
    ... )[0].fields
    {'loss:lm': 2.5, 'grad_norm': 1.5, 'epoch': 0.1, 'by': '0', 'step': 50.0, 'target_steps': 500.0}
    >>> trainer(b"{'eval_loss': 2.25, 'eval_runtime': 3.1}", Moments())
    [Record(kind='validation', time=None, rank=None, fields={'loss:lm': 2.25})]
    """
    begin = line.find(b"{'")
    pairs = [(key.decode(errors="replace"), number(text)) for key, text in _QUOTED.findall(line, max(begin, 0))]
    found = {key.lower(): value for key, value in pairs if value is not None}
    time = moments.find(line, 0, begin)
    if "eval_loss" in found:
        return [Record("validation", time, None, {"loss:lm": found["eval_loss"]})]
    if "train_runtime" in found:
        return [Record("state", time, None, {"state": "finished"})]
    if "loss" not in found:
        return []
    names = {key: name_of(key) for key in found}
    fields: dict[str, float | str] = {name.field: found[key] * name.factor for key, name in names.items() if name}
    fields["by"] = "0"
    bars = _BAR.findall(line, 0, begin)
    if bars:
        fields |= {"step": float(bars[-1][0]), "target_steps": float(bars[-1][1])}
    return [Record("step", time, None, fields)]


def lightning(line: bytes, moments: Moments) -> list[Record]:
    """Read the last state of Lightning's progress bar in a line.

    >>> lightning(b"Epoch 1:  20%|##   | 2/10 [00:01<00:04,  2.00it/s, v_num=0, train_loss=0.500]", Moments())[0].fields
    {'step': 12.0, 'step_seconds': 0.5, 'loss:lm': 0.5, 'by': '0'}
    """
    bars = _EPOCH.findall(line)
    if not bars:
        return []
    epoch, done, total, speed, unit, rest = bars[-1]
    fields: dict[str, float | str] = {"step": float(epoch) * float(total) + float(done)}
    pace = number(speed) if speed else None
    if pace:
        fields["step_seconds"] = 1.0 / pace if unit == b"it/s" else pace
    return [Record("step", moments.find(line), None, {**fields, **_read(_EQUALS.findall(rest), None), "by": "0"})]


def _read(pairs: list[tuple[bytes, bytes]], wanted: set[str] | None) -> dict[str, float | str]:
    """Return the numbers whose keys are known, of those that are wanted."""
    fields: dict[str, float | str] = {}
    for key, text in pairs:
        name, value = name_of(key.decode(errors="replace")), number(text)
        if name is not None and value is not None and (wanted is None or name.field in wanted):
            fields.setdefault(name.field, value * name.factor)
    return fields


def nothing(line: bytes, moments: Moments) -> list[Record]:  # noqa: ARG001 - what all readers of a line take
    """Read a line that is understood and says nothing that is not said elsewhere."""
    return []


__all__ = ["Fields", "engine", "lightning", "nothing", "overflow", "pipeline", "titan", "trainer"]
