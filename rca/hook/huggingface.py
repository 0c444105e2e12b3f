"""A callback for the Trainer of Hugging Face's transformers.

    from rca.hook.huggingface import RcaCallback

    Trainer(..., callbacks=[RcaCallback()])

Nothing of transformers is imported: the callback answers the events that it knows, and takes no notice of others. With
`logging_nan_inf_filter=False` a loss that is NaN reaches it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from rca.hook.opened import Opened, Passive, tokens_of
from rca.hook.timers import FAILURES
from rca.hook.training import Hook

Event = Any
"""`TrainingArguments`, `TrainerState` and `TrainerControl`: what transformers hands to a callback, by duck type."""


class RcaCallback(Passive):
    """Tells a hook what a Trainer does. `make` makes the hook, in the process that trains."""

    def __init__(self, make: Callable[[], Hook] = Hook) -> None:
        self._make = make
        self._hook: Hook | None = None
        self._opened = Opened()
        self._tokens: Any = None
        self._untold: dict[str, Any] = {}
        self._handles: list[Any] = []

    @property
    def hook(self) -> Hook:
        """The hook, made when it is first needed."""
        if self._hook is None:
            self._hook = self._make()
        return self._hook

    def on_train_begin(self, args: Event, state: Event, control: Event, **rest: Any) -> None:  # noqa: ANN401, ARG002
        """Watch the model, unless it is compiled: hooks would break its graph."""
        model = rest.get("model")
        if model is not None and not getattr(args, "torch_compile", False) and not self._handles:
            self._watch(model)
        self.hook.target(getattr(state, "max_steps", None) or None)
        self._opened.begin("data", self.hook.data_wait())

    def _watch(self, model: Any) -> None:  # noqa: ANN401 - a module of torch
        self.hook.split_backward(model)
        try:
            self._handles = [
                model.register_forward_pre_hook(self._forward_begins, with_kwargs=True),
                model.register_forward_hook(self._forward_ends),
            ]
        except FAILURES:
            self._handles = []

    def _forward_begins(self, _: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if "step" not in self._opened:
            return
        self._opened.end("backward")
        try:
            tokens, _samples = tokens_of(kwargs or (args[0] if args else None))
            if tokens is not None:
                self._tokens = tokens if self._tokens is None else self._tokens + tokens
        except FAILURES:
            self._tokens = None
        self._opened.begin("forward", self.hook.phase("forward_compute"))

    def _forward_ends(self, *_: object) -> None:
        if "forward" in self._opened:
            self._opened.end("forward")
            self._opened.begin("backward", self.hook.phase("backward_compute"))

    def on_step_begin(self, args: Event, state: Event, control: Event, **rest: Any) -> None:  # noqa: ANN401, ARG002
        """Begin a step; what passed since the last event was the wait for its input."""
        self._opened.drop("saving", "evaluation")
        self._opened.end("data")
        self._tell()
        self._opened.begin("step", self.hook.step(int(state.global_step) + 1))

    def on_substep_end(self, args: Event, state: Event, control: Event, **rest: Any) -> None:  # noqa: ANN401, ARG002
        """End the backward pass of one batch of several."""
        self._opened.end("backward")

    def on_pre_optimizer_step(self, args: Event, state: Event, control: Event, **rest: Any) -> None:  # noqa: ANN401, ARG002
        """End the backward pass, and begin the update."""
        self._opened.end("backward")
        self._opened.begin("optimizer", self.hook.phase("optimizer"))

    def on_optimizer_step(self, args: Event, state: Event, control: Event, **rest: Any) -> None:  # noqa: ANN401, ARG002
        """End the update."""
        self._opened.end("optimizer")

    def on_step_end(self, args: Event, state: Event, control: Event, **rest: Any) -> None:  # noqa: ANN401, ARG002
        """End a step, and say how much it worked on."""
        self._opened.end("backward")
        self._opened.end("step")
        each, times = getattr(args, "per_device_train_batch_size", 0), getattr(args, "gradient_accumulation_steps", 1)
        self._untold, self._tokens = {"tokens": self._tokens, "samples": each * times or None}, None
        if not getattr(control, "should_log", False):
            self._tell()
        self._next(control)

    def _tell(self, *said: Any) -> None:  # noqa: ANN401 - loss, norm of the gradient, learning rate
        """Say what a step gave, at once or together with what is logged of it."""
        untold, self._untold = self._untold, {}
        if untold or said:
            self.hook.log(*said, **untold)

    def on_epoch_end(self, args: Event, state: Event, control: Event, **rest: Any) -> None:  # noqa: ANN401, ARG002
        """Go on to what the end of an epoch brings: a checkpoint, or the next one's input."""
        self._next(control)

    def on_log(self, args: Event, state: Event, control: Event, **rest: Any) -> None:  # noqa: ANN401, ARG002
        """Say what was logged; at the end of training that is a summary, and no step."""
        logs: Mapping[str, Any] = rest.get("logs") or {}
        if "loss" in logs:
            self._tell(logs.get("loss"), logs.get("grad_norm"), logs.get("learning_rate"))
        self._next(control)

    def on_prediction_step(self, args: Event, state: Event, control: Event, **rest: Any) -> None:  # noqa: ANN401, ARG002
        """Say that the rank evaluates."""
        self._opened.drop("data")
        if "evaluation" not in self._opened:
            self._opened.begin("evaluation", self.hook.state("eval"))

    def on_evaluate(self, args: Event, state: Event, control: Event, **rest: Any) -> None:  # noqa: ANN401, ARG002
        """Say what an evaluation gave."""
        self._opened.end("evaluation")
        self.hook.note(validation_loss=(rest.get("metrics") or {}).get("eval_loss"))
        self._next(control)

    def on_save(self, args: Event, state: Event, control: Event, **rest: Any) -> None:  # noqa: ANN401, ARG002
        """Say that a checkpoint is complete."""
        self._opened.end("saving")
        self._next(control)

    def on_train_end(self, args: Event, state: Event, control: Event, **rest: Any) -> None:  # noqa: ANN401, ARG002
        """Let the model go, and say that it is over."""
        self._opened.drop("data", "forward", "backward", "optimizer", "step", "saving", "evaluation")
        self._tell()
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        if self._hook is not None:
            self._hook.close()
            self._hook = None

    def _next(self, control: Event) -> None:
        """Time what comes after an event: a checkpoint once nothing else is to be done before it, else input."""
        logs, evaluates = getattr(control, "should_log", False), getattr(control, "should_evaluate", False)
        self._opened.drop("data")
        if getattr(control, "should_save", False) and not logs and not evaluates:
            self._opened.begin("saving", self.hook.checkpoint("save"))
        elif not logs and not evaluates:
            self._opened.begin("data", self.hook.data_wait())
