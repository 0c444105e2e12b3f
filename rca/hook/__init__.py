"""The voice of a training process: metrics of its rank for Prometheus, and structured logs.

    from rca.hook import Hook

    hook = Hook()
    for batch in hook.batches(loader):
        with hook.step():
            with hook.phase("forward_compute"):
                loss = model(batch)
            with hook.phase("backward_compute"):
                loss.backward()
            with hook.phase("optimizer"):
                optimizer.step()
        hook.log(loss=loss, tokens=batch.numel())

The standard library is all that it needs, and nothing else of `rca` is imported: it must work in any training container
and cost nothing there. It never raises into the loop, and never waits for anybody.
"""

from rca.hook.identity import Identity
from rca.hook.layout import Layout, Place
from rca.hook.settings import Settings, Surroundings
from rca.hook.training import Hook

__all__ = ["Hook", "Identity", "Layout", "Place", "Settings", "Surroundings"]
