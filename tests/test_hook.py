"""What a loop says, and what becomes of it: by clocks that the test holds."""

import gc
import logging
import math
import re
import subprocess
from pathlib import Path

import pytest
import servers
from made_torch import Torch
from read_once import load

from rca.hook import Hook, Identity, Layout, Place, Settings, Surroundings
from rca.hook.series import METRICS, Series
from rca.load import metric_types
from rca.promql import plan, samples

LIBRARY = load()
SPOKEN = {name: one for name, one in LIBRARY.signals.items() if "(rca.hook" in one.enable}
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SAMPLE = re.compile(r'^([a-z_]+)\{job_id="j",rank="(\d+)"(?:,(.*))?\} (\S+)$', re.MULTILINE)


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time

    def pass_(self, seconds: float) -> None:
        self.time += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make(clock):
    """Make hooks that serve nothing, and close them."""
    made = []

    def one(rank=0, world=1, layout=None, labels=None, modules=None):
        around = Surroundings(environment={}, clock=clock, now=clock, modules=modules or {})
        who = Identity(rank=rank, local_rank=rank % 8, world=world, job="j", node="n")
        made.append(Hook(layout=layout, labels=labels, who=who, settings=Settings(listen="", around=around)))
        return made[-1]

    yield one
    for hook in made:
        hook.close()


def told(hook, metric):
    """Return the samples of a metric by their further labels."""
    found = _SAMPLE.findall(hook.series.text())
    return {labels: float(value) for name, _, labels, value in found if name == metric}


def phase(hook, name):
    return told(hook, "train_phase_duration_seconds_sum").get(f'phase="{name}"')


# steps, phases, waits


def test_a_step_is_counted_and_timed(make, clock):
    hook = make()
    for number in (7, 8):
        with hook.step(number):
            with hook.phase("forward_compute"):
                clock.pass_(0.1)
            with hook.phase("backward_compute"):
                clock.pass_(0.2)
            clock.pass_(0.05)
    assert told(hook, "train_steps_total") == {"": 2}
    assert told(hook, "train_step") == {"": 8}
    assert told(hook, "train_step_duration_seconds_count") == {"": 2}
    assert told(hook, "train_step_duration_seconds_sum")[""] == pytest.approx(0.7)
    assert told(hook, "train_last_step_timestamp_seconds") == {"": clock.time}
    assert (phase(hook, "forward_compute"), phase(hook, "backward_compute")) == (
        pytest.approx(0.2), pytest.approx(0.4),
    )  # fmt: skip


def test_a_wait_for_input_belongs_to_the_step_that_it_feeds(make, clock):
    hook = make()
    for _ in range(2):
        with hook.data_wait():
            clock.pass_(0.3)
        with hook.step():
            clock.pass_(0.1)
            with hook.data_wait():
                clock.pass_(0.2)
    assert told(hook, "train_data_wait_seconds_total")[""] == pytest.approx(1.0)
    assert told(hook, "train_step_duration_seconds_sum")[""] == pytest.approx(1.2)
    assert phase(hook, "batch_generator") is None, "it stood outside of the forward pass, so nothing is to be taken off"


@pytest.mark.parametrize("wait", ["data_wait", "batch_generator"])
def test_a_wait_inside_of_the_forward_pass_is_no_work_of_it(make, clock, wait):
    hook = make()
    with hook.step(), hook.phase("forward_compute"):
        with hook.data_wait() if wait == "data_wait" else hook.phase("batch_generator"):
            clock.pass_(0.2)
        clock.pass_(0.1)
    assert (phase(hook, "forward_compute"), phase(hook, "batch_generator")) == (pytest.approx(0.3), pytest.approx(0.2))
    assert told(hook, "train_data_wait_seconds_total")[""] == pytest.approx(0.2)


def test_a_loader_is_timed_while_it_is_read(make, clock):
    hook = make()

    def loader():
        for one in "ab":
            clock.pass_(0.5)
            yield one

    assert list(hook.batches(loader())) == ["a", "b"]
    assert told(hook, "train_data_wait_seconds_total")[""] == pytest.approx(1.0)


def test_a_step_that_an_exception_ends_is_not_counted_and_the_exception_goes_on(make, clock):
    hook = make()
    with pytest.raises(KeyError), hook.step(1), hook.phase("forward_compute"):
        raise KeyError
    with hook.step(2), hook.data_wait():
        clock.pass_(0.1)
    assert told(hook, "train_steps_total") == {"": 1}
    assert told(hook, "train_step_duration_seconds_sum")[""] == pytest.approx(0.1)
    assert told(hook, "train_phase_duration_seconds_sum") == {}, "within forward_compute no more"


def test_waits_for_others_are_counted_by_group(make, clock):
    hook = make()
    for group in ("dp", "tp", "dp"):
        with hook.collective_wait(group):
            clock.pass_(1.0)
    assert told(hook, "train_collective_wait_seconds_total") == {'group="dp"': 2, 'group="tp"': 1}


def test_what_backward_takes_after_the_gradients_are_there_is_waiting(make, clock):
    hook = make()
    with hook.step(), hook.phase("backward_compute"):
        clock.pass_(0.1)
        hook.gradients_ready()
        clock.pass_(0.1)
        hook.gradients_ready()  # those of another bucket: the last counts
        clock.pass_(0.3)
    with hook.step(), hook.phase("backward_compute"):
        clock.pass_(0.1)
    assert (phase(hook, "backward_compute"), phase(hook, "grads_sync")) == (pytest.approx(0.3), pytest.approx(0.3))
    assert told(hook, "train_collective_wait_seconds_total") == {'group="dp"': pytest.approx(0.3)}


def test_garbage_collection_is_timed(make, clock):
    hook = make()

    class Slow:
        def __init__(self):
            self.itself = self

        def __del__(self):
            clock.pass_(0.25)

    Slow()
    gc.collect()
    assert told(hook, "train_gc_seconds_total")[""] == pytest.approx(0.25)


@pytest.mark.parametrize(("number", "step"), [(7, 7), (7.0, 7), (None, None), ("seven", None)])
def test_a_step_has_the_number_that_it_is_given(make, number, step):
    hook = make()
    with hook.step(number):
        pass
    assert told(hook, "train_step").get("") == step
    assert told(hook, "train_hook_errors_total") == {"": float(number == "seven")}


# states and checkpoints


def state(hook):
    (name,) = [labels for labels, value in told(hook, "train_state").items() if value == 1]
    return name.partition('"')[2].rstrip('"')


def test_states_follow_the_loop(make):
    hook = make()
    seen = [state(hook)]
    hook.state("compile")
    seen.append(state(hook))
    with hook.step():
        seen.append(state(hook))
    with hook.state("eval"):
        with hook.step():
            seen.append(state(hook))
        with hook.state("compile"):
            seen.append(state(hook))
        seen.append(state(hook))
    seen.append(state(hook))
    hook.close()
    assert [*seen, state(hook)] == ["init", "compile", "train", "eval", "compile", "eval", "train", "finished"]
    assert len(told(hook, "train_state")) == 7


def test_a_checkpoint_tells_all_that_the_rules_want(make, clock):
    hook = make()
    for step, pause in ((10, 50.0), (20, 0.0)):
        with hook.checkpoint("save") as saved:
            assert state(hook) == "save_checkpoint"
            clock.pass_(4.0)
            saved.step, saved.bytes = step, 2**20
        clock.pass_(pause)
    with hook.checkpoint("load"):
        assert state(hook) == "load_checkpoint"
        clock.pass_(2.0)
    with hook.checkpoint("save", mode="async"):
        assert state(hook) == "init"
    sums = told(hook, "train_checkpoint_duration_seconds_sum")
    assert sums['op="save",mode="sync"'] == pytest.approx(8.0)
    assert sums['op="load",mode="sync"'] == pytest.approx(2.0)
    assert sums['op="save",mode="async"'] == 0.0
    assert told(hook, "train_last_checkpoint_step") == {"": 20}
    assert told(hook, "train_checkpoint_bytes") == {"": 2**20}
    assert told(hook, "train_checkpoint_failures_total") == {"": 0}


def test_a_checkpoint_that_fails_is_counted_and_the_reason_goes_on(make, caplog):
    hook = make()
    with pytest.raises(OSError, match="full"), hook.checkpoint("save"):
        raise OSError("disk full")
    with pytest.raises(OSError, match="gone"), hook.checkpoint("load"):
        raise OSError("gone")
    assert told(hook, "train_checkpoint_failures_total") == {"": 1}
    assert told(hook, "train_checkpoint_duration_seconds_count") == {}
    assert state(hook) == "init"
    assert "disk full" in caplog.text


# numbers


@pytest.mark.parametrize(
    ("loss", "norm", "kinds"),
    [
        (2.5, 0.7, {"nan": 0, "inf": 0}),
        (math.nan, 0.7, {"nan": 1, "inf": 0}),
        (2.5, math.inf, {"nan": 0, "inf": 1}),
        (-math.inf, math.nan, {"nan": 1, "inf": 0}),
    ],
)
def test_what_is_not_finite_is_counted_and_never_exported(make, loss, norm, kinds):
    hook = make()
    hook.log(loss=1.0, grad_norm=1.0)
    hook.log(loss=loss, grad_norm=norm)
    assert told(hook, "train_nonfinite_steps_total") == {f'kind="{kind}"': n for kind, n in kinds.items()}
    assert told(hook, "train_loss") == ({'loss="lm"': loss} if math.isfinite(loss) else {})
    assert told(hook, "train_grad_norm") == ({"": norm} if math.isfinite(norm) else {})
    assert not re.search(r"\b(nan|inf)$", hook.series.text(), re.IGNORECASE | re.MULTILINE)


@pytest.mark.parametrize(
    "bad", ["many", object(), [1], {"a": 1}, 10**400, complex(1, 2)], ids=lambda one: type(one).__name__
)
def test_what_is_no_number_is_counted_and_said_once(make, caplog, bad):
    hook = make()
    for _ in range(3):
        hook.log(loss=bad, tokens=5)
        hook.note(flops=bad)
        hook.queue(bad)
    assert told(hook, "train_hook_errors_total") == {"": 9}
    assert told(hook, "train_tokens_total") == {"": 15}
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) == 3


def test_a_strange_state_or_layout_is_no_reason_to_stop(make):
    hook = make(world=8, layout=Layout(tp=3))
    with hook.state("sleeping"):
        pass
    assert told(hook, "train_hook_errors_total") == {"": 2}
    assert state(hook) == "init"
    assert "tp_rank" not in hook.series.text()


@pytest.mark.parametrize(
    ("rank", "tokens", "samples"), [(0, None, None), (4, 20, 4), (5, None, None), (6, None, None), (7, None, None)]
)
def test_one_rank_of_a_replica_speaks_for_its_tokens(make, rank, tokens, samples):
    """Two tensor, two context and two pipeline ranks: the first of the last stage counts, for both context ranks."""
    hook = make(rank=rank, world=8, layout=Layout(tp=2, cp=2, pp=2))
    hook.log(tokens=10, samples=4)
    assert told(hook, "train_batch_tokens") == {"": 10}
    assert told(hook, "train_tokens_total").get("") == tokens
    assert told(hook, "train_samples_total").get("") == samples


def test_checks_are_there_as_soon_as_somebody_checks(make):
    hook = make()
    assert told(hook, "train_rerun_mismatches_total") == {}
    hook.rerun_checked(same=True)
    hook.weights_checked(same=False)
    hook.weights_checked(same=True)
    assert told(hook, "train_rerun_mismatches_total") == {"": 0}
    assert told(hook, "train_weight_hash_mismatches_total") == {"": 1}


# who is who


def test_the_info_series_say_where_a_rank_stands(make):
    hook = make(rank=5, world=16, layout=Layout(tp=2, pp=2, ep=2))
    (info,) = told(hook, "train_rank_info")
    assert info == 'local_rank="5",node="n",dp_rank="2",tp_rank="1",pp_rank="0",cp_rank="0",ep_rank="0"'
    assert told(hook, "train_job_info") == {}, "that is for rank 0 to say"


def test_rank_0_says_what_the_job_is(make):
    hook = make(
        world=16, layout=Layout(tp=2, pp=2, ep=2), labels={"model": 'my "7b"\n', "seq_len": 4096, "framework": "x"}
    )
    (info,) = told(hook, "train_job_info")
    assert info == r'cp="1",dp="4",ep="2",model="my \"7b\"\n",pp="2",seq_len="4096",tp="2",world_size="16"'
    assert 'framework="x"' in next(iter(told(hook, "train_rank_info")))


def test_a_place_may_be_given_as_it_is(make):
    hook = make(rank=3, world=9, layout=Place(tp=0, pp=2, dp=1, cp=0, ep=5, last_stage=False))
    assert 'pp_rank="2"' in next(iter(told(hook, "train_rank_info")))
    hook.log(tokens=1)
    assert told(hook, "train_tokens_total") == {}


# the GPU


def test_phases_are_timed_where_the_gpu_works(make, clock):
    torch = Torch()
    hook = make(modules={"torch": torch})
    with hook.step(1):
        with hook.phase("forward_compute"):
            clock.pass_(0.001)
            torch.works(0.5)
        assert phase(hook, "forward_compute") is None, "nobody waits for the GPU"
    torch.catches_up()
    with hook.step(2):
        pass
    assert phase(hook, "forward_compute") == pytest.approx(0.5)
    assert torch.waited == 0


def test_a_tensor_on_the_gpu_is_read_once_the_gpu_has_come_to_it(make):
    torch = Torch()
    hook = make(modules={"torch": torch})
    with hook.step(1):
        torch.works(1.0)
    hook.log(loss=torch.tensor(2.5), tokens=10)
    assert told(hook, "train_loss") == {}
    torch.catches_up()
    with hook.step(2):
        pass
    assert told(hook, "train_loss") == {'loss="lm"': 2.5}
    assert told(hook, "train_tokens_total") == {"": 10}
    assert torch.waited == 0


def test_memory_and_uuid_come_from_torch(make, clock):
    torch = Torch()
    hook = make(modules={"torch": torch})
    assert "gpu_uuid" not in hook.series.text()
    for _ in range(3):
        with hook.step():
            clock.pass_(3.0)
    assert 'gpu_uuid="GPU-12345678-1234-1234-1234-123456789abc",pci_bus_id="00000000:8D:00.0"' in hook.series.text()
    assert 'framework="pytorch",version="9.9"' in hook.series.text()
    assert told(hook, "train_gpu_memory_reserved_bytes") == {"": 2048}
    assert told(hook, "train_alloc_retries_total") == {"": 3}
    assert torch.looked == 2, "every five seconds"


def test_cuda_in_trouble_is_left_alone(make, clock, caplog):
    torch = Torch()
    hook = make(modules={"torch": torch})
    with hook.step():
        pass
    torch.broken = True
    for _ in range(20):
        with hook.step(), hook.phase("forward_compute"):
            clock.pass_(1.0)
        hook.log(loss=torch.tensor(1.0))
    assert told(hook, "train_steps_total") == {"": 21}
    assert phase(hook, "forward_compute") > 10.0, "by the clock of the host in the end"
    assert caplog.text.count("cuda: RuntimeError") == 1


def test_torch_without_a_gpu_changes_nothing(make, clock):
    torch = Torch()
    torch.initialised = False
    hook = make(modules={"torch": torch})
    with hook.step(), hook.phase("forward_compute"):
        clock.pass_(0.5)
    assert phase(hook, "forward_compute") == pytest.approx(0.5)


# the contract


def complete(make, clock):
    """Return a hook that has been told everything there is."""
    torch = Torch()
    hook = make(world=16, layout=Layout(tp=2, ep=4), labels={"model": "m"}, modules={"torch": torch})
    for number in range(2):
        with hook.step(number):
            for name in ("forward_compute", "backward_compute", "grads_sync"):
                with hook.phase(name), hook.data_wait():
                    clock.pass_(0.1)
            with hook.collective_wait("dp"):
                clock.pass_(0.1)
        with hook.checkpoint("save") as saved:
            saved.step = saved.bytes = number
            clock.pass_(6.0)
    hook.log(loss=1, grad_norm=1, learning_rate=1, tokens=1, samples=1)
    hook.note(validation_loss=1, params_norm=1, loss_scale=1, flops=1, mfu=1)
    hook.queue(3)
    hook.target(100)
    hook.weights_checked(same=True)
    hook.rerun_checked(same=True)
    torch.catches_up()
    with hook.step():
        pass
    return hook


@pytest.mark.parametrize("name", sorted(SPOKEN))
def test_every_signal_that_the_hook_enables_is_served(make, clock, name):
    text = complete(make, clock).series.text()
    served = [(metric, dict(_LABEL.findall(labels or ""))) for metric, _, labels, _ in _SAMPLE.findall(text)]
    for asked in samples(plan(SPOKEN[name].queries[0])):
        found = [labels for metric, labels in served if metric == asked.name]
        assert any(all(suits(labels, match) for match in asked.matches) for labels in found), f"{name} asks for {asked}"


def suits(labels, match):
    value = labels.get(match.label, "")
    return re.fullmatch(match.value, value) is not None if match.op == "=~" else value == match.value


def test_signals_name_many_metrics_of_the_hook():
    assert len(SPOKEN) > 25


def test_all_that_can_be_said_is_right_for_prometheus(make, clock):
    text = complete(make, clock).series.text()
    command = [servers.binary("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    said = {re.sub("_(sum|count)$", "", name) for name, *_ in _SAMPLE.findall(text)}
    assert said == set(METRICS), "every metric of the table is said, and no other"


def test_the_page_tells_of_every_call_setting_and_series():
    page = (Path(__file__).resolve().parent.parent / "docs" / "hook.md").read_text(encoding="utf-8")
    calls = [name for name, one in vars(Hook).items() if not name.startswith("_") and callable(one)]
    assert [name for name in calls if f"`{name}(" not in page and name != "forsake"] == []
    assert [name for name in METRICS if f"`{name}`" not in page] == []
    source = (Path(__file__).resolve().parent.parent / "rca" / "hook" / "settings.py").read_text(encoding="utf-8")
    assert [name for name in re.findall(r'"(RCA_\w+)"', source) if f"`{name}`" not in page] == []


def test_types_are_those_of_the_rules():
    of_rules = metric_types()
    for name, (kind, _) in METRICS.items():
        for full in (f"{name}_sum", f"{name}_count") if kind == "summary" else (name,):
            wanted = "counter" if kind != "gauge" else "gauge"
            assert of_rules.get(full, wanted) == wanted, full


def test_a_series_takes_nothing_that_is_no_number():
    series = Series("j", 0)
    for bad in (math.nan, math.inf, -1.0):
        series.add("train_steps_total", bad)
        series.observe("train_step_duration_seconds", bad)
    series.set("train_loss", math.nan)
    assert series.text() == ""
