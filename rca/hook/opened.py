"""Blocks that are opened in one callback and closed in another."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


class Opened:
    """At most one open block of each kind; what is left open is given up."""

    def __init__(self) -> None:
        self._open: dict[str, AbstractContextManager[Any]] = {}

    def begin(self, kind: str, block: AbstractContextManager[Any]) -> None:
        """Open a block, in place of one of its kind that was never closed."""
        self.drop(kind)
        block.__enter__()
        self._open[kind] = block

    def end(self, kind: str) -> None:
        """Close a block, if it is open."""
        block = self._open.pop(kind, None)
        if block is not None:
            block.__exit__(None, None, None)

    def drop(self, *kinds: str) -> None:
        """Give blocks up, as if an exception had ended them: they are not counted."""
        for kind in kinds:
            block = self._open.pop(kind, None)
            if block is not None:
                block.__exit__(GeneratorExit, None, None)

    def __contains__(self, kind: str) -> bool:
        return kind in self._open


class Passive:
    """Takes no notice of events that are not answered: a framework calls them all, and newer ones more of them."""

    _further: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_") or name in self._further:
            return self._ignore
        raise AttributeError(f"{type(self).__name__}: no attribute '{name}'")

    @staticmethod
    def _ignore(*_: object, **__: object) -> None:
        """Do nothing."""


def tokens_of(batch: Any) -> tuple[Any, Any]:  # noqa: ANN401 - what frameworks hand over
    """Return the tokens and samples of a batch as a framework hands it over, None for what cannot be told.

    A mapping with `input_ids` has as many tokens as its `attention_mask` lets through, without one as many as there are.
    Of anything else, only the length of its first tensor is known, which is its samples.
    """
    if hasattr(batch, "get"):
        ids, mask = _item(batch, "input_ids"), _item(batch, "attention_mask")
        first = ids if ids is not None else next((_item(batch, key) for key in batch), None)
        if ids is not None and hasattr(ids, "numel"):
            two = mask is not None and getattr(mask, "ndim", 0) == 2
            return (mask.sum() if two else ids.numel()), _length(first)
        return None, _length(first)
    if isinstance(batch, list | tuple) and batch:
        return None, _length(batch[0])
    return None, _length(batch)


def _item(batch: Any, key: str) -> Any:  # noqa: ANN401 - any mapping
    return batch.get(key)


def _length(tensor: object) -> int | None:
    shape = getattr(tensor, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else None
