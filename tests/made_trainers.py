"""Trainers that call callbacks as transformers 5.24 and Lightning 2.6 do: the same names, arguments and order.

They train nothing. `clock` passes as long as the real things would take: see the constants.
"""

from types import SimpleNamespace

LOAD, FORWARD, BACKWARD, SYNC, UPDATE, EVALUATE, SAVE = 0.01, 0.1, 0.2, 0.05, 0.03, 1.0, 2.0


class Node:
    """Where autograd adds up a gradient."""

    def __init__(self) -> None:
        self.hooks = []

    def register_hook(self, hook):
        self.hooks.append(hook)


class Parameter:
    """A parameter, as far as it leads to its node."""

    requires_grad = True

    def __init__(self) -> None:
        self.node = Node()

    def expand_as(self, _):
        return SimpleNamespace(grad_fn=SimpleNamespace(next_functions=((self.node, 0),)))


class Module:
    """A module: its forward pass calls hooks with keywords, its backward pass those of its parameters."""

    def __init__(self, clock, count: int = 20) -> None:
        self._clock = clock
        self._parameters = [Parameter() for _ in range(count)]
        self.before, self.after = [], []

    def parameters(self):
        return iter(self._parameters)

    def register_forward_pre_hook(self, hook, *, with_kwargs=False):
        assert with_kwargs
        self.before.append(hook)
        return SimpleNamespace(remove=lambda: self.before.remove(hook))

    def register_forward_hook(self, hook):
        self.after.append(hook)
        return SimpleNamespace(remove=lambda: self.after.remove(hook))

    def forward(self, **batch):
        for hook in self.before:
            hook(self, (), batch)
        self._clock.pass_(FORWARD)
        for hook in self.after:
            hook(self, (), None)

    def backward(self):
        for parameter in reversed(self._parameters):
            self._clock.pass_(BACKWARD / len(self._parameters))
            for hook in parameter.node.hooks:
                hook(None, None)
        self._clock.pass_(SYNC)


class Tensor:
    """A tensor of some shape."""

    ndim = 2

    def __init__(self, *shape: int, passed: int | None = None) -> None:
        self.shape, self._passed = shape, passed

    def numel(self) -> int:
        return self.shape[0] * self.shape[1]

    def sum(self):
        return self._passed


def batch():
    return {"labels": Tensor(4, 16), "input_ids": Tensor(4, 16), "attention_mask": Tensor(4, 16, passed=48)}


class HuggingFace:
    """`transformers.Trainer`: two batches a step, logs every second step, evaluates at 4, saves at 3 and at the end."""

    def __init__(self, callback, model, clock) -> None:
        self.callback, self.model, self.clock = callback, model, clock
        self.args = SimpleNamespace(per_device_train_batch_size=4, gradient_accumulation_steps=2, torch_compile=False)
        self.state = SimpleNamespace(global_step=0, max_steps=5)
        self.control = SimpleNamespace(should_log=False, should_evaluate=False, should_save=False)

    def call(self, event, **more):
        extra = {"model": self.model, "processing_class": None, "optimizer": None, "train_dataloader": None, **more}
        getattr(self.callback, event)(self.args, self.state, self.control, **extra)

    def train(self):
        self.call("on_train_begin")
        self.call("on_epoch_begin")
        for step in range(1, 6):
            self.clock.pass_(LOAD * 2)
            for number in range(2):
                if number == 0:
                    self.call("on_step_begin")
                self.model.forward(**batch())
                self.model.backward()
                if number == 0:
                    self.call("on_substep_end")
            self.call("on_pre_optimizer_step")
            self.clock.pass_(UPDATE)
            self.call("on_optimizer_step")
            self.state.global_step = step
            self.control.should_log, self.control.should_evaluate = step % 2 == 0, step == 4
            self.control.should_save = step in (3, 5)
            self.call("on_step_end")
            self.after()
        self.call("on_epoch_end")
        self.call("on_log", logs={"train_runtime": 1.0, "train_loss": 2.0})
        self.call("on_train_end")

    def after(self):
        if self.control.should_log:
            self.control.should_log = False
            logs = {"loss": 2.0 - self.state.global_step / 10, "grad_norm": 0.7, "learning_rate": 1e-4, "epoch": 0.1}
            self.call("on_log", logs=logs)
        if self.control.should_evaluate:
            for _ in range(4):
                self.model.forward(**batch())
                self.clock.pass_(EVALUATE / 4)
                self.call("on_prediction_step", eval_dataloader=None)
            self.call("on_log", logs={"eval_loss": 2.1})
            self.control.should_evaluate = False
            self.call("on_evaluate", metrics={"eval_loss": 2.1})
        if self.control.should_save:
            self.clock.pass_(SAVE)
            self.control.should_save = False
            self.call("on_save")


class Lightning:
    """`lightning.pytorch.Trainer`: two batches a step, five steps, a checkpoint and a validation after each epoch."""

    global_rank, local_rank, world_size, max_steps = 3, 1, 4, -1

    def __init__(self, callback, model, clock) -> None:
        self.callback, self.model, self.clock = callback, model, clock
        self.global_step = 0
        self.optimizers = [SimpleNamespace(param_groups=[{"lr": 0.01}])]
        self.callback_metrics = {}

    def call(self, event, *arguments):
        getattr(self.callback, event)(self, self.model, *arguments)

    def validate(self):
        self.call("on_validation_start")
        self.call("on_validation_epoch_start")
        self.clock.pass_(EVALUATE)
        self.callback_metrics = {"val_loss": 2.1}
        self.call("on_validation_epoch_end")
        self.call("on_validation_end")

    def fit(self):
        self.call("setup", "fit")
        self.call("on_fit_start")
        self.call("on_sanity_check_start")
        self.validate()
        self.call("on_sanity_check_end")
        self.call("on_train_start")
        self.call("on_train_epoch_start")
        for number in range(10):
            self.clock.pass_(LOAD)
            given = batch()
            self.call("on_train_batch_start", given, number)
            self.clock.pass_(FORWARD)
            self.call("on_before_zero_grad", None)
            self.call("on_before_backward", 2.5)
            self.model.backward()
            self.call("on_after_backward")
            if number % 2:
                self.call("on_before_optimizer_step", self.optimizers[0])
                self.clock.pass_(UPDATE)
                self.global_step += 1
            self.call("on_train_batch_end", {"loss": 2.5 - self.global_step / 10}, given, number)
            if number == 5:
                self.call("on_save_checkpoint", {"state_dict": {}})
                self.clock.pass_(SAVE)
        self.validate()
        self.call("on_train_epoch_end")
        self.call("on_train_end")
        self.call("on_fit_end")
        self.call("teardown", "fit")
