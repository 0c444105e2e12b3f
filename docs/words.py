"""Conditions, numbers and units of rules in words, as the generated pages have them."""

from collections.abc import Iterator
from typing import Final

from rca import detectors
from rca.detectors import Condition, Leaf, Number, number
from rca.library import Library
from rca.plain import quantity

GATHERED: Final = {"max": "the highest", "min": "the lowest", "mean": "the mean", "median": "the median"}
UNITS: Final = {
    "bool": "1 yes, 0 no", "celsius": "°C", "code": "a code", "count": "a number", "megahertz": "MHz", "percent": "0 to 100",
    "ratio": "0 to 1", "seconds": "s", "watts": "W", "mebibytes": "MiB", "bytes_per_second": "B/s",
    "megabytes_per_second": "MB/s", "per_minute": "per minute", "per_second": "per second", "bits": "a bit mask",
}  # fmt: skip
PLAIN: Final = frozenset({"bits", "bool", "code", "count", "generation"})
SCALED: Final = frozenset({"bytes", "bytes_per_second", "megabytes_per_second"})
DURATIONS: Final = {"s": "second", "m": "minute", "h": "hour", "d": "day"}


def unit(name: str) -> str:
    """Write a unit for people.

    >>> unit("celsius"), unit("samples_per_second")
    ('°C', 'samples per second')
    """
    return UNITS.get(name, name.replace("_", " "))


def duration(text: str) -> str:
    """Write a duration for people; one of several parts stays as it is.

    >>> duration("1m"), duration("30s"), duration("1h30m")
    ('1 minute', '30 seconds', '1h30m')
    """
    word = DURATIONS.get(text[-1:])
    if word is None or not text[:-1].isdigit():
        return text
    return f"{text[:-1]} {word}" if text[:-1] == "1" else f"{text[:-1]} {word}s"


def share(value: Number) -> str:
    """Write a margin as people do.

    >>> share(0.04), share("7%"), share(1)
    ('4 %', '7 %', '100 %')
    """
    plain = number(value)
    return f"`{value}`" if plain is None else f"{round(plain * 100, 6):g} %"


def listed(words: list[str] | tuple[str, ...], last: str = "and") -> str:
    """Join words for a sentence.

    >>> listed(["a", "b", "c"]), listed(["a", "b"], "or")
    ('a, b and c', 'a or b')
    """
    return f" {last} ".join([part for part in (", ".join(words[:-1]), *words[-1:]) if part])


class Words:
    """Writes the conditions of rules on one kind of entity; `up` leads from the page to the folder of documents."""

    def __init__(self, library: Library, kind: str, up: str = "../") -> None:
        self._library = library
        self._kind = kind
        self._up = up

    def link(self, signal: str) -> str:
        """Link a signal to its place in the catalogue."""
        known = signal in self._library.signals
        return f"[`{signal}`]({self._up}signals.md#{signal})" if known else f"`{signal}`"

    def lines(self, condition: Condition, depth: int = 0) -> Iterator[str]:
        """Yield a condition as an indented list."""
        indent = "  " * depth
        if isinstance(condition, detectors.All | detectors.Any):
            word = "all" if isinstance(condition, detectors.All) else "one"
            yield f"{indent}- {word} of these:"
            for part in condition.of:
                yield from self.lines(part, depth + 1)
        elif isinstance(condition, detectors.Not | detectors.Unless):
            denied = isinstance(condition, detectors.Not)
            head = "it is known that not" if denied else "unless it is known that"
            if isinstance(condition.of, detectors.All | detectors.Any | detectors.Not | detectors.Unless):
                yield f"{indent}- {head}:"
                yield from self.lines(condition.of, depth + 1)
            else:
                yield f"{indent}- {head}: {self.clause(condition.of)}"
        else:
            yield f"{indent}- {self.clause(condition)}"

    def clause(self, leaf: Leaf) -> str:
        """Write one condition."""
        signal = self._library.signals.get(leaf.signal)
        finer = "" if signal is None or signal.entity == self._kind else signal.entity
        subject = self.link(leaf.signal)
        if leaf.reduce == "count":
            plain = number(leaf.at_least)
            least = f"{plain:g}" if plain is not None and "%" not in str(leaf.at_least) else str(leaf.at_least)
            where = f"on at least {least.replace('%', ' %')} of its {finer or self._kind}s, "
        else:
            where = f"{GATHERED[leaf.reduce]} of its {finer or self._kind}s in " if leaf.reduce else ""
            subject += f" of its {finer}" if finer and not leaf.reduce else ""
        verb, told = self._verb(leaf)
        return f"{where}{subject} {verb}{self._rest(leaf, told)}"

    def _amount(self, leaf: Leaf, value: Number) -> str:
        """Write a limit in the unit of the signal that it belongs to."""
        plain, signal = number(value), self._library.signals.get(leaf.signal)
        if plain is None:
            return self.link(str(value))
        return f"{plain:g}" if signal is None else _exact(plain, signal.unit)

    def _verb(self, leaf: Leaf) -> tuple[str, set[str]]:
        """Write what a condition asks of its signal, and name the fields that this tells."""
        match leaf:
            case detectors.Above() | detectors.Below():
                side = "above" if isinstance(leaf, detectors.Above) else "below"
                back = "falls below" if side == "above" else "rises above"
                until = f", until it {back} {self._amount(leaf, leaf.clear)}" if leaf.clear is not None else ""
                return f"is {side} {self._amount(leaf, leaf.limit)}{until}", {"limit", "clear"}
            case detectors.AbovePeers() | detectors.BelowPeers():
                side = "above" if isinstance(leaf, detectors.AbovePeers) else "below"
                load = f", counting only samples under load ({self.link(leaf.load)})" if leaf.load else ""
                return (
                    f"is more than {share(leaf.by)} {side} the median of its peers (same {listed(leaf.peers)}) and "
                    f"{leaf.z:g} robust deviations from it{load}"
                ), {"by", "peers", "z", "load"}
            case detectors.AboveBaseline() | detectors.BelowBaseline():
                side = "above" if isinstance(leaf, detectors.AboveBaseline) else "below"
                return (
                    f"is more than {share(leaf.by)} {side} its own median before the window and {leaf.z:g} robust "
                    "deviations from it"
                ), {"by", "z"}
            case detectors.Set():
                peers = f", and on fewer than half of its peers (same {listed(leaf.peers)})" if leaf.peers else ""
                bits = listed([f"`{bit}`" for bit in leaf.bits], "or")
                return f"has {bits} set{peers}", {"bits", "peers"}
            case detectors.Unlike():
                return f"differs from what {share(leaf.agree)} of its peers (same {listed(leaf.peers)}) agree on", {
                    "peers",
                    "agree",
                }
            case detectors.OneOf():
                codes = listed([f"{code:g}" for code in leaf.codes], "or")
                return f"shows a code that is new in the window: {codes}", {"codes"}
            case _:
                return self._moving(leaf)

    def _moving(self, leaf: Leaf) -> tuple[str, set[str]]:
        """Write what the detectors of movement ask; one that is not known here is told by its name and fields."""
        match leaf:
            case detectors.Rising():
                return f"has grown by at least {self._amount(leaf, leaf.by)} since the window began", {"by"}
            case detectors.Stalled():
                times = f"{leaf.factor:g} times its own usual time between moves"
                never = f"was not seen to move for {duration(leaf.unmoved)}"
                moved = f"has not moved for {duration(leaf.least)} and for {times}, or {never}"
                return moved, {"least", "factor", "unmoved"}
            case detectors.NotFalling():
                return f"does not fall: its slope is above zero by {leaf.sigma:g} standard errors", {"sigma"}
            case detectors.Drifting():
                return (
                    f"drifts by more than {share(leaf.by)} of its mean an hour, by {leaf.sigma:g} standard errors",
                    {"by", "sigma"},
                )
            case detectors.Missing():
                return f"has ended while that of its peers (same {listed(leaf.peers)}) lives on", {"peers"}
            case detectors.Correlated():
                return (
                    f"moves together with {self.link(leaf.other)} against its peers (same {listed(leaf.peers)}), by a "
                    f"correlation of {leaf.limit:g} or more"
                ), {"other", "limit", "peers"}
            case detectors.Logged():
                return "was logged in the window", set()
        return f"is {str(leaf.__struct_config__.tag).replace('_', ' ')}", set()

    @staticmethod
    def _rest(leaf: Leaf, told: set[str]) -> str:
        """Write the fields that nothing else tells, so that no condition is told by halves."""
        shared = {"signal", "reduce", "at_least"}
        left = [name for name in leaf.__struct_fields__ if name not in told | shared]
        said = [f"`{name}` {getattr(leaf, name)}" for name in left if getattr(leaf, name) not in (None, (), "")]
        return f" ({', '.join(said)})" if said else ""


def _exact(value: float, name: str) -> str:
    """Write a limit with its unit, every digit of it.

    >>> _exact(0.04, "ratio"), _exact(2048, "mebibytes"), _exact(0.1, "seconds"), _exact(10, "per_minute")
    ('4 %', '2,048 MiB', '0.1 s', '10 per minute')
    """
    if name == "ratio":
        return share(value)
    if name in SCALED and value >= 1e4:
        return quantity(value, name)
    digits = f"{value:,.0f}" if value == round(value) and abs(value) < 1e9 else f"{value:g}"
    suffix = UNITS[name] if name.startswith("per_") and name in UNITS else quantity(1.0, name).partition(" ")[2]
    return digits if name in PLAIN or not suffix else f"{digits} {suffix}"
