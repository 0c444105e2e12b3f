"""A callback for the Trainer of Lightning (`lightning` and `pytorch_lightning` alike).

    from rca.hook.lightning import RcaCallback

    Trainer(..., callbacks=[RcaCallback()])

Nothing of Lightning is imported: the callback answers the events that it knows, and takes no notice of others.
"""

from collections.abc import Callable, Mapping
from typing import Any

from rca.hook.identity import Identity
from rca.hook.opened import Opened, Passive, tokens_of
from rca.hook.settings import Settings, Surroundings
from rca.hook.timers import FAILURES
from rca.hook.training import Hook

Trainer = Any
Module = Any


def _made(who: Identity) -> Hook:
    return Hook(who=who)


class RcaCallback(Passive):
    """Tells a hook what a Trainer does. `make` makes the hook, in the process that trains, of who the rank is."""

    state_key = "RcaCallback"
    _further = ("setup", "teardown")

    def __init__(self, make: Callable[[Identity], Hook] = _made) -> None:
        self._make = make
        self._hook: Hook | None = None
        self._opened = Opened()
        self._done = -1
        self._tokens: Any = None
        self._samples = 0

    def state_dict(self) -> dict[str, Any]:
        """Keep nothing in checkpoints."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Expect nothing from checkpoints."""

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Make the hook: by now the rank knows who it is."""
        read = Identity.read(Settings.read(Surroundings()).around.environment)
        who = read._replace(rank=trainer.global_rank, local_rank=trainer.local_rank, world=trainer.world_size)
        self._hook = self._hook or self._make(who)
        self._hook.split_backward(pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:  # noqa: ARG002
        """Wait for the first input."""
        most = getattr(trainer, "max_steps", None)
        if self._hook is not None and isinstance(most, int) and most > 0:
            self._hook.target(most)
        self._wait()

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:  # noqa: ANN401, ARG002
        """Begin a step, or a further batch of it; what passed since the last event was the wait for this input."""
        if self._hook is None:
            return
        self._opened.end("saving")
        self._opened.end("data")
        if "step" not in self._opened:
            self._done, self._tokens, self._samples = trainer.global_step, None, 0
            self._opened.begin("step", self._hook.step(trainer.global_step + 1))
        self._count(batch)
        self._opened.begin("forward", self._hook.phase("forward_compute"))

    def _count(self, batch: object) -> None:
        try:
            tokens, samples = tokens_of(batch)
            if tokens is not None:
                self._tokens = tokens if self._tokens is None else self._tokens + tokens
            self._samples += samples or 0
        except FAILURES:
            self._tokens = None

    def on_before_backward(self, trainer: Trainer, pl_module: Module, loss: Any) -> None:  # noqa: ANN401, ARG002
        """End the forward pass, and begin the backward pass."""
        if self._hook is not None:
            self._opened.end("forward")
            self._opened.begin("backward", self._hook.phase("backward_compute"))

    def on_after_backward(self, trainer: Trainer, pl_module: Module) -> None:  # noqa: ARG002
        """End the backward pass."""
        self._opened.end("backward")

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Module, optimizer: Any, *_: object) -> None:  # noqa: ANN401, ARG002
        """Begin the update."""
        if self._hook is not None:
            self._opened.begin("optimizer", self._hook.phase("optimizer"))

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ANN401, ARG002 - as Lightning calls it
        """End the step, if an optimizer has made one of the batches since it began."""
        if self._hook is None:
            return
        self._opened.end("optimizer")
        self._opened.drop("forward", "backward")
        if trainer.global_step > self._done:
            self._opened.end("step")
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            rate = next((group["lr"] for one in trainer.optimizers for group in one.param_groups), None)
            self._hook.log(loss, learning_rate=rate, tokens=self._tokens, samples=self._samples or None)
        self._wait()

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:  # noqa: ARG002
        """Say that the rank evaluates."""
        if self._hook is not None:
            self._opened.end("saving")
            self._opened.drop("data")
            self._opened.begin("evaluation", self._hook.state("eval"))

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:  # noqa: ARG002
        """Say what the evaluation gave."""
        if self._hook is not None:
            self._opened.end("evaluation")
            self._hook.note(validation_loss=trainer.callback_metrics.get("val_loss"))
            self._wait()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: Any) -> None:  # noqa: ANN401, ARG002
        """Begin to save; Lightning does not say when that has ended, so it lasts until the next event."""
        if self._hook is not None and "step" not in self._opened:
            self._opened.drop("data")
            self._opened.begin("saving", self._hook.checkpoint("save"))

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:  # noqa: ARG002
        """Give up what is open."""
        self._opened.end("saving")
        self._opened.drop("data", "forward", "backward", "optimizer", "step", "evaluation")

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:  # noqa: ARG002
        """Give up what is open."""
        self._opened.drop("saving", "data", "forward", "backward", "optimizer", "step", "evaluation")

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:  # noqa: ARG002
        """Say that it is over."""
        if self._hook is not None:
            self._hook.close()
            self._hook = None

    def _wait(self) -> None:
        if self._hook is not None and "step" not in self._opened and "saving" not in self._opened:
            self._opened.begin("data", self._hook.data_wait())
