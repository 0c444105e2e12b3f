"""What a training loop speaks to."""

import atexit
import gc
import logging
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from rca.hook import backward
from rca.hook.blocks import Checkpoint, DataWait, Held, Phase, Step, Timed
from rca.hook.identity import Identity
from rca.hook.layout import Layout, Place
from rca.hook.record import BATCH, Record
from rca.hook.series import Series
from rca.hook.settings import Settings, Surroundings

if TYPE_CHECKING:
    from rca.hook.outlets import HttpOutlet, TextfileOutlet

T = TypeVar("T")
Number = Any
"""A number, or a tensor that holds one; what lies on a GPU is read when the GPU has come to it, not before."""
LOG = logging.getLogger("rca.hook")


class Hook:
    """The voice of one rank: made once, before the loop. It raises nothing into the loop, and waits for nobody.

    `job` names the job where the environment does not; `layout` gives the sizes of its groups, or this rank's own place;
    `labels` say more of the job (`model`, `seq_len`, `global_batch_size`, `framework`); `who` says who the rank is.
    A copy in a forked child is dumb: it serves nothing, and leaves the parent's files and port alone.
    """

    def __init__(
        self,
        job: str = "",
        layout: Layout | Place | None = None,
        labels: Mapping[str, object] | None = None,
        who: Identity | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.settings = settings or Settings.read(Surroundings())
        known = who or Identity.read(self.settings.around.environment)
        self.who = known._replace(job=job) if job else known
        self.series = Series(self.who.job, self.who.rank)
        self._labels = {name: str(value) for name, value in (labels or {}).items()}
        self._layout = layout
        self._watched: list[Any] = []
        self._attach_logs()
        self.record = Record(self.series, self.settings, self._introduce)
        self.record.place = self._placed()
        self._introduce(self.who.gpu)
        self._outlets = list(self._open())
        self._closed = False
        self._follow()
        data = {"world_size": self.who.world, "node": self.who.node, "pid": os.getpid()}
        LOG.info("rank %d of %d starts", self.who.rank, self.who.world, extra={"event": "RANK_START", "data": data})

    def _attach_logs(self) -> None:
        if self.settings.logs:
            from rca.hook import logs  # noqa: PLC0415 - only where it is wanted

            logs.attach(self.settings.logs, rank=self.who.rank)
            LOG.setLevel(logging.INFO)

    def _placed(self) -> Place | None:
        """Return the rank's place, and complain of a layout that does not fit."""
        if not isinstance(self._layout, Layout):
            return self._layout
        place = self._layout.place(self.who.rank, self.who.world)
        if place is None:
            self.record.complain("layout", f"{self._layout}: does not fit a world of {self.who.world}, left out")
        return place

    def _introduce(self, gpu: Mapping[str, str]) -> None:
        """Tell who the rank is, in place of what was told before."""
        who, torch = self.who, self.settings.around.modules.get("torch")
        version = str(getattr(torch, "__version__", ""))
        place = self._layout.place(who.rank, who.world) if isinstance(self._layout, Layout) else self._layout
        told = {"local_rank": str(who.local_rank), "node": who.node, **who.gpu, **gpu}
        told |= place.labels() if place is not None else {}
        told |= {"framework": self._labels.get("framework", "pytorch" if version else "")}
        told |= {"version": self._labels.get("version", version)}
        self.series.replace("train_rank_info", tuple((name, value) for name, value in told.items() if value))
        if who.rank == 0:
            sizes = self._layout.labels(who.world) if isinstance(self._layout, Layout) else {}
            job = {"world_size": str(who.world), **sizes, **self._labels}
            named = {name: value for name, value in job.items() if value and name not in {"framework", "version"}}
            self.series.replace("train_job_info", tuple(sorted(named.items())))

    def _open(self) -> Iterator["HttpOutlet | TextfileOutlet"]:
        from rca.hook.outlets import HttpOutlet, TextfileOutlet  # noqa: PLC0415 - sockets take longer than all the rest

        settings, name = self.settings, f"{self.who.job}_{self.who.rank}"
        address = settings.address(self.who.local_rank)
        if address is not None:
            yield HttpOutlet(address, self.series.text)
        elif settings.listen:
            self.record.complain("listen", f"listen: '{settings.listen}' is not HOST:PORT, nothing is served")
        if settings.textfile:
            yield TextfileOutlet(settings.textfile, name, self.series.text, settings.interval)

    def _follow(self) -> None:
        """Follow the process: its garbage collection, its forks, its end. None of them keeps a hook alive."""
        own = weakref.ref(self)
        self._process = os.getpid()

        def collected(phase: str, info: Mapping[str, int]) -> None:  # noqa: ARG001 - the interpreter's signature
            hook = own()
            if hook is not None:
                hook.record.collected(phase)

        def ended() -> None:
            hook = own()
            if hook is not None:
                hook.close()

        def forked() -> None:
            hook = own()
            if hook is not None:
                hook.forsake()

        self._collected, self._ended = collected, ended
        gc.callbacks.append(collected)
        atexit.register(ended)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=forked)

    @property
    def address(self) -> tuple[str, int] | None:
        """Where the metrics are served, None where they are not."""
        return next((one.address for one in self._outlets if one.address is not None), None)

    def step(self, number: int | None = None) -> AbstractContextManager[None]:
        """Time a step, and count it when it ends well; `number` counts over restarts."""
        return Step(self.record, number)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Time a phase of a step: forward_compute, backward_compute, optimizer, grads_sync; a name in snake_case."""
        return DataWait(self.record) if name == BATCH else Phase(self.record, self.record.phased, name)

    def data_wait(self) -> AbstractContextManager[None]:
        """Time a wait for input: inside forward_compute it is no work of it, before a step it belongs to that step."""
        return DataWait(self.record)

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield what a loader yields, and time the wait for it."""
        source = iter(loader)
        while True:
            with self.data_wait():
                try:
                    batch = next(source)
                except StopIteration:
                    return
            yield batch

    def collective_wait(self, group: str) -> AbstractContextManager[None]:
        """Time a wait for the others of a group: dp, tp, pp, cp, ep."""
        return Timed(self.record, self.record.awaited, group)

    def gradients_ready(self) -> None:
        """Say inside of backward_compute that this rank's own gradients are there: what follows is waiting."""
        self.record.ready = self.record.mark()

    def split_backward(self, model: object) -> int:
        """Tell the wait for others from the work in `backward_compute`, for DistributedDataParallel and its like.

        A few of the model's parameters say when their gradients are there. Returns how many do: none where there is
        nobody to wait for, and then nothing changes.
        """
        found = backward.watch(model, self.gradients_ready) if self.who.world > 1 else []
        self._watched += found
        return len(found)

    def state(self, name: str) -> AbstractContextManager[None]:
        """Say what the rank does from now on; as a block, until its end. A step outside of a block says `train`."""
        before = self.record.state
        self.record.enter(name)
        return Held(self.record, before)

    def checkpoint(self, op: str = "save", mode: str = "sync") -> Checkpoint:
        """Time the writing (`save`) or reading (`load`) of a checkpoint; an exception counts as failure and goes on.

        With `mode="async"` the rank trains meanwhile. What stands behind `as` takes `step` and `bytes`.
        """
        return Checkpoint(self.record, "load" if op == "load" else "save", "async" if mode == "async" else "sync")

    def log(
        self,
        loss: Number = None,
        grad_norm: Number = None,
        learning_rate: Number = None,
        tokens: Number = None,
        samples: Number = None,
    ) -> None:
        """Say once a step what it gave; `tokens` and `samples` are those that this rank computed in it."""
        told = {"loss": loss, "grad_norm": grad_norm, "learning_rate": learning_rate}
        self.record.told({**told, "tokens": tokens, "samples": samples})

    def note(
        self,
        validation_loss: Number = None,
        params_norm: Number = None,
        loss_scale: Number = None,
        flops: Number = None,
        mfu: Number = None,
    ) -> None:
        """Say what is known now and then; `flops` are the model's per second and GPU, `mfu` their share of the peak."""
        told = {"validation_loss": validation_loss, "params_norm": params_norm, "loss_scale": loss_scale}
        self.record.later(self.record.noted, {**told, "model_flops_per_second": flops, "mfu_ratio": mfu})

    def target(self, steps: Number) -> None:
        """Say how many steps the job is to do; rank 0 tells it."""
        if self.who.rank == 0:
            self.record.later(self.record.noted, {"target_steps": steps})

    def queue(self, length: Number) -> None:
        """Say how many batches wait in the loader's queue."""
        self.record.later(self.record.noted, {"dataloader_queue_length": length})

    def skipped(self) -> None:
        """Count a step that did not update the weights, such as one whose gradients overflowed."""
        self.series.add("train_skipped_steps_total", 1.0)
        LOG.warning("the step was skipped", extra={"event": "STEP_SKIPPED"})

    def weights_checked(self, *, same: bool) -> None:
        """Say whether this rank's weights were found the same as those of its replicas."""
        self.record.checked("train_weight_hash_mismatches_total", "WEIGHT_MISMATCH", same=same)

    def rerun_checked(self, *, same: bool) -> None:
        """Say whether a step that was run again gave the same result."""
        self.record.checked("train_rerun_mismatches_total", "RERUN_MISMATCH", same=same)

    def close(self) -> None:
        """Say `finished`, and serve no more; at the end of the process it happens by itself."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)
        atexit.unregister(self._ended)
        self.record.enter("finished")
        LOG.info("rank %d ends", self.who.rank, extra={"event": "RANK_END"})
        for outlet in self._outlets:
            outlet.close()

    def forsake(self) -> None:
        """Be dumb in a forked child."""
        for outlet in self._outlets:
            outlet.forsake()
        self._outlets = []
