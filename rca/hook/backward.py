"""When a rank's own gradients are there: what a backward pass takes after that, it waits for others."""

from collections.abc import Callable
from typing import Any

from rca.hook.timers import FAILURES

_MARKS = 8


def watch(model: object, ready: Callable[[], None]) -> list[Any]:
    """Call `ready` when gradients of a few parameters, spread over the model, are there.

    Returns what must be kept as long as that is wanted. It is not kept in the model, which has to be pickled.

    Gradients come about in the order in which the forward pass used the parameters, backwards. Which one is last differs
    from model to model, but it is as a rule the first or the last that was made, or close to one of these; the last call
    counts. Source: torch's autograd engine orders by sequence number; DistributedDataParallel hooks the same nodes.
    """
    try:
        trained = [one for one in model.parameters() if one.requires_grad]  # type: ignore[attr-defined]
        return [_watched(one, ready) for one in spread(trained, _MARKS)]
    except FAILURES:
        return []


def spread(items: list[Any], most: int) -> list[Any]:
    """Return some of a list, evenly spread, the first and the last among them.

    >>> spread([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 4), spread([0, 1], 4)
    ([0, 3, 6, 9], [0, 1])
    """
    if len(items) <= most:
        return items
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def _watched(parameter: Any, ready: Callable[[], None]) -> Any:  # noqa: ANN401 - a tensor, and a node of its graph
    """Follow the node that adds a parameter's gradient up, which lives only as long as somebody holds it."""
    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: ready())
    return node
