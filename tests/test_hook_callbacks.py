"""The callbacks for Hugging Face's Trainer and for Lightning, called as these call them."""

import pickle

import made_trainers as made
import pytest
from test_hook import Clock, phase, told

from rca.hook import Hook, Identity, Layout, Settings, Surroundings
from rca.hook.huggingface import RcaCallback as ForTrainer
from rca.hook.lightning import RcaCallback as ForLightning
from rca.hook.opened import tokens_of


class Seen:
    """A hook's maker, which keeps what it made and the states that it saw."""

    def __init__(self, world: int = 4) -> None:
        self.clock = Clock()
        self.world = world
        self.made: list[Hook] = []

    def __call__(self, who: Identity | None = None) -> Hook:
        around = Surroundings(environment={}, clock=self.clock, now=self.clock, modules={})
        known = (who or Identity(rank=3, world=self.world))._replace(job="j")
        self.made.append(Hook(layout=Layout(), who=known, settings=Settings(listen="", around=around)))
        return self.made[-1]


@pytest.fixture(params=["huggingface", "lightning"])
def trained(request):
    """Train with one of them, and return the hook that was made."""
    seen = Seen()
    model = made.Module(seen.clock)
    if request.param == "huggingface":
        made.HuggingFace(ForTrainer(seen), model, seen.clock).train()
    else:
        made.Lightning(ForLightning(seen), model, seen.clock).fit()
    (hook,) = seen.made
    return request.param, hook, model


def test_steps_and_phases_are_told(trained):
    which, hook, _ = trained
    step = 2 * (made.LOAD + made.FORWARD + made.BACKWARD + made.SYNC) + made.UPDATE
    assert told(hook, "train_steps_total") == {"": 5}
    assert told(hook, "train_step") == {"": 5}
    missing = (
        made.LOAD if which == "lightning" else 0.0
    )  # of the batch after the checkpoint: when that ended is not said
    assert told(hook, "train_step_duration_seconds_sum")[""] == pytest.approx(5 * step - missing)
    assert phase(hook, "forward_compute") == pytest.approx(10 * made.FORWARD), "an evaluation is none"
    assert phase(hook, "backward_compute") == pytest.approx(10 * made.BACKWARD)
    assert phase(hook, "grads_sync") == pytest.approx(10 * made.SYNC), "what comes after the gradients is waiting"
    assert phase(hook, "optimizer") == pytest.approx(5 * made.UPDATE)
    assert told(hook, "train_hook_errors_total") == {"": 0}


def test_waits_for_input_are_told(trained):
    which, hook, _ = trained
    waits = 10 if which == "huggingface" else 4  # nor is it said who waits inside of a step
    assert told(hook, "train_data_wait_seconds_total")[""] == pytest.approx(waits * made.LOAD)


def test_checkpoints_and_evaluations_are_told(trained):
    which, hook, _ = trained
    saves, extra = (2, 0.0) if which == "huggingface" else (1, made.LOAD)
    label = 'op="save",mode="sync"'
    assert told(hook, "train_checkpoint_duration_seconds_count") == {label: saves}
    assert told(hook, "train_checkpoint_duration_seconds_sum")[label] == pytest.approx(saves * made.SAVE + extra)
    assert told(hook, "train_validation_loss") == {'loss="lm"': 2.1}
    assert told(hook, "train_state")['state="finished"'] == 1


def test_numbers_are_told(trained):
    which, hook, _ = trained
    assert told(hook, "train_batch_tokens") == {"": 2 * 48}, "those that the mask lets through"
    assert told(hook, "train_batch_samples") == {"": 8}
    assert told(hook, "train_tokens_total") == {"": 5 * 2 * 48}
    assert told(hook, "train_loss") == {'loss="lm"': pytest.approx(1.6 if which == "huggingface" else 2.0)}
    assert told(hook, "train_learning_rate") == {"": 1e-4 if which == "huggingface" else 0.01}


def test_nothing_stays_on_the_model_but_marks(trained):
    _, _, model = trained
    assert (model.before, model.after) == ([], [])
    assert {len(one.node.hooks) for one in model.parameters()} == {0, 1}
    assert all(list(vars(one)) == ["node"] for one in model.parameters()), "a model must be pickled as before"


def test_lightning_says_who_the_rank_is():
    seen = Seen()
    made.Lightning(ForLightning(seen), made.Module(seen.clock), seen.clock).fit()
    assert seen.made[0].who[:3] == (3, 1, 4)


def test_states_are_those_of_the_trainer():
    seen = Seen()
    states = []

    class Watched(ForTrainer):
        def __getattribute__(self, name):
            if name.startswith("on_") and seen.made:
                states.append(seen.made[0].record.state)
            return super().__getattribute__(name)

    made.HuggingFace(Watched(seen), made.Module(seen.clock), seen.clock).train()
    order = [one for number, one in enumerate(states) if number == 0 or states[number - 1] != one]
    assert order == ["init", "train", "save_checkpoint", "train", "eval", "train", "save_checkpoint", "train"]


def test_a_compiled_model_is_left_alone():
    seen = Seen()
    model = made.Module(seen.clock)
    trainer = made.HuggingFace(ForTrainer(seen), model, seen.clock)
    trainer.args.torch_compile = True
    trainer.train()
    assert not [hook for one in model.parameters() for hook in one.node.hooks]
    assert phase(seen.made[0], "forward_compute") is None
    assert told(seen.made[0], "train_steps_total") == {"": 5}


@pytest.mark.parametrize("kind", [ForTrainer, ForLightning])
def test_a_callback_goes_to_another_process_before_it_has_a_hook(kind):
    assert isinstance(pickle.loads(pickle.dumps(kind())), kind)


@pytest.mark.parametrize("kind", [ForTrainer, ForLightning])
def test_events_that_are_unknown_are_passed_over(kind):
    callback = kind()
    callback.on_something_new(1, two=2)
    assert not hasattr(callback, "no_event")


def test_an_exception_leaves_nothing_open():
    seen = Seen()
    callback = ForLightning(seen)
    trainer = made.Lightning(callback, made.Module(seen.clock), seen.clock)
    trainer.call("on_fit_start")
    trainer.call("on_train_start")
    trainer.call("on_train_batch_start", made.batch(), 0)
    trainer.call("on_exception", RuntimeError("CUDA out of memory"))
    (hook,) = seen.made
    assert told(hook, "train_steps_total") == {"": 0}
    hook.close()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (made.batch(), (48, 4)),
        ({"input_ids": made.Tensor(2, 8)}, (16, 2)),
        ({"x": made.Tensor(3, 1)}, (None, 3)),
        ((made.Tensor(5, 1), made.Tensor(9, 1)), (None, 5)),
        (made.Tensor(7, 1), (None, 7)),
        ({}, (None, None)),
        ([], (None, None)),
        (None, (None, None)),
        ("text", (None, None)),
    ],
)
def test_the_size_of_a_batch(given, expected):
    assert tokens_of(given) == expected
