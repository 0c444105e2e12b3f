"""When checkpoints were written and read, and how long that took."""

from rca.ledger.course import number
from rca.ledger.values import Key, Values
from rca.parsers.record import Fields


class Checkpoints:
    """A checkpoint takes as long as a timer says that follows it, else from the line before it to the line after it."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._saving: float | None = None
        self._loading: float | None = None
        self._unsaved: float | None = None

    def begin_save(self, time: float) -> None:
        """Take the beginning of a checkpoint."""
        self._saving = time

    def save(self, fields: Fields, step: float | None, rank: str, time: float) -> None:
        """Take a checkpoint that is complete; one that is told of twice counts once."""
        values = self._values
        known = {
            name: values.values.get(Key(f"train_last_checkpoint_{name}", rank))
            for name in ("step", "timestamp_seconds")
        }
        if step is not None and known["step"] == step:
            return
        before = known["timestamp_seconds"]
        if before is not None and time > before:
            values.set("train_checkpoint_interval_seconds", rank, time - before)
        values.set("train_last_checkpoint_timestamp_seconds", rank, time)
        if step is not None:
            values.set("train_last_checkpoint_step", rank, step)
        began, self._saving = self._saving, None
        took = time - began if began is not None and time > began else 0.0
        self._unsaved = number(fields, "seconds") or took
        if "seconds" in fields:
            self.commit(rank)

    def commit(self, rank: str) -> None:
        """Count the time of a checkpoint that no timer has told."""
        seconds, self._unsaved = self._unsaved, None
        if seconds:
            self._observe(rank, seconds, "save", "sync")

    def begin_load(self, time: float) -> None:
        """Take the beginning of reading a checkpoint."""
        self._loading = time

    def load(self, fields: Fields, rank: str, time: float) -> None:
        """Take a checkpoint that was read."""
        began, self._loading = self._loading, None
        seconds = number(fields, "seconds") or (time - began if began is not None else 0.0)
        if seconds > 0.0:
            self._observe(rank, seconds, "load", "sync")

    def timed(self, op: str, seconds: float, rank: str) -> None:
        """Take what a timer says; one that speaks before the checkpoint is complete has timed what held up training."""
        mode = "async" if op == "save" and self._unsaved is None else "sync"
        if op == "save":
            self._unsaved = None
        self._loading = None
        self._observe(rank, seconds, op, mode)

    def _observe(self, rank: str, seconds: float, op: str, mode: str) -> None:
        self._values.observe("train_checkpoint_duration_seconds", rank, seconds, 1.0, (("op", op), ("mode", mode)))
