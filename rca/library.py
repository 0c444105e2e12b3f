"""What people write: signals, entities and rules, and the library that holds them together.

The structs mirror the YAML key by key; `load` fills them, nothing else creates them outside of tests. A duration is a
string (`2m`), a number may be a string (`7%`, or the name of a signal); `seconds` and `detectors.number` read them.
"""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Literal, Protocol

import msgspec

from rca.detectors import All, Any, Condition, Leaf, Not, Number, Unless, leaves, named
from rca.model import Duration, Layer, Share, Snapshot, Symptom, Window, seconds

Role = Literal["root", "symptom"]
PHASES = "rank_state"
"""The signal that says what a job is doing; every rule is masked by it."""
BUSY = "gpu_utilisation"
"""The signal that says whether a GPU does anything at all."""
PROGRESS = "job_steps"
"""The signal that says whether a job gets on; what has stood still since before the window is looked at from there."""
TOLD = (
    "job_step_number", "job_steps", "job_target_steps", "job_tokens", "job_tokens_per_gpu", "job_step_seconds", "job_loss",
    "job_gpus",
)  # fmt: skip
"""The signals that reports tell how far jobs are by, whether a rule reads them or not; none is asked of every GPU."""


class Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Anything written in a file: immutable, unknown keys are errors."""


class Derived(Written, frozen=True, kw_only=True):
    """A signal computed from others, on entities of the signal's own kind, element by element.

    Exactly one form is set: `of` with `by` gathers a finer kind's signal (`{of: rank_work_seconds, by: max}`);
    `product`, `ratio` and `sum` combine signals of this kind or of a coarser one. To a `sum` what is known of `plus` is
    added and what is known of `difference` taken off: what is missing there counts as nothing.
    """

    of: str | None = None
    by: Literal["max", "min", "mean", "median", "sum"] | None = None
    product: tuple[str, ...] = ()
    ratio: tuple[str, ...] = ()
    sum: tuple[str, ...] = ()
    plus: tuple[str, ...] = ()
    difference: tuple[str, ...] = ()

    def inputs(self) -> tuple[str, ...]:
        """Return the names of the signals that this one is made of."""
        return ((self.of,) if self.of else ()) + self.product + self.ratio + self.sum + self.plus + self.difference


class Codes(Written, frozen=True, kw_only=True):
    """A label whose value is the measurement: state sets and code labels become numbers.

    The matrix holds the index in `values` of the label value whose series is not 0. Without `values` any text counts,
    whatever the series reads: the texts that are found are numbered in natural order.
    """

    label: str
    values: tuple[str, ...] = ()


class Fallback(Written, frozen=True, kw_only=True):
    """A constant for entities that no query fills: the first of `values` whose regular expression fits column `label`."""

    label: str
    values: dict[str, float]

    def of(self, text: str) -> float:
        """Return the constant for a label's value, NaN where none is known.

        >>> Fallback(label="model", values={".*A100.*": 85.0}).of("NVIDIA A100-SXM4-80GB")
        85.0
        """
        return next((value for pattern, value in self.values.items() if re.fullmatch(pattern, text)), math.nan)


class Signal(Written, frozen=True, kw_only=True):
    """A named measurement of one kind of entity.

    `queries` are PromQL, best first; a query fills the entities that those before it left empty. DCGM names stand in
    their old spelling, `tables/dcgm_aliases.csv` adds the new one and its unit factor. Where several series meet one
    entity, `combine` says how. Samples outside `valid` (closed interval, in `unit`) are sentinels and dropped.
    """

    summary: str
    entity: str
    layer: Layer
    unit: str
    queries: tuple[str, ...] = ()
    derived: Derived | None = None
    combine: Literal["max", "min", "sum", "mean", "last"] = "max"
    valid: tuple[float, float] | None = None
    bits: tuple[str, ...] = ()
    codes: Codes | None = None
    fallback: Fallback | None = None
    enable: str = ""
    source: str = ""


class EntityKind(Written, frozen=True, kw_only=True):
    """A kind of entity: the labels that name one, and the `columns` that say where it stands, where that is known."""

    labels: tuple[str, ...]
    summary: str
    columns: tuple[str, ...] = ()


class Relation(Written, frozen=True, kw_only=True):
    """How entities meet: equal values of these labels. `through` names the kind of the table that joins two others."""

    labels: tuple[str, ...]
    summary: str
    through: str | None = None
    communicator: bool = False


class Label(Written, frozen=True, kw_only=True):
    """A canonical label: the labels that may carry it, in order of trust, and rewrites applied to the value.

    `rewrite` is a list of `[regular expression, replacement]`, the first that matches the whole value is applied.
    """

    aliases: tuple[str, ...]
    rewrite: tuple[tuple[str, str], ...] = ()


class Entities(Written, frozen=True, kw_only=True):
    """The file `entities.yaml`: kinds, relations, labels, and the info series that join them."""

    kinds: dict[str, EntityKind]
    relations: dict[str, Relation]
    labels: dict[str, Label]
    rank_info: tuple[str, ...] = ("train_rank_info",)

    def known(self, kind: str) -> frozenset[str]:
        """Return the labels that are known of every entity of a kind, its own and those of where it stands."""
        return frozenset(self.kinds[kind].labels) | frozenset(self.kinds[kind].columns)

    def join(self, via: str, cause: str, effect: str) -> bool:
        """Say whether a relation leads from one kind to another: both know its labels, or a third kind stands between.

        The third knows where it stands, or the effect knows the rest of the third's labels.
        """
        labels, through = set(self.relations[via].labels), self.relations[via].through
        if not labels <= self.known(cause) or labels <= self.known(effect):
            return labels <= self.known(cause)
        if through is None or through not in self.kinds:
            return False
        rest = set(self.kinds[through].labels) - labels
        return rest <= self.known(effect) or set(self.kinds[effect].labels) <= self.known(through)


class Gain(Written, frozen=True, kw_only=True):
    """How large an effect must be: `factor` × the deviation of signal `of` at the cause.

    Deviations are relative (|ln(value / expected)|), or absolute where both signals share the unit seconds. `over` is
    the signal that says in which share of the time the deviation can show: a GPU that waits boosts, so its mean clock
    tells less than half of the story when it works for less than half of the step.
    """

    of: str
    factor: float
    over: str | None = None


class Effect(Written, frozen=True, kw_only=True):
    """An edge: the rule brings about `effect` on the entities that share relation `via` with it.

    `strength` is the probability that a visible member shows the effect. `members: share` expects it of all members,
    `any` of at least one. `accuses: false` marks an edge that explains findings and never speaks for the cause.
    """

    effect: str
    via: str
    strength: Share
    gain: Gain | None = None
    within: Duration = "5m"
    members: Literal["share", "any"] = "share"
    accuses: bool = True


class Action(Written, frozen=True, kw_only=True):
    """What to do: a verb that automation understands, and the sentence for people."""

    do: str
    text: str


class Rule(Written, frozen=True, kw_only=True):
    """When something is wrong on an entity, and what that brings about elsewhere.

    `role: root` may be a root cause, `role: symptom` never is. `prior` is the share of jobs with that symptom class
    that this rule starts. `leak` is how often the condition holds on one healthy entity. `symptom` marks a job-level
    rule that puts its job into a symptom class, `onset` the class where the finding clearly began inside the window.
    `phases` names what the job must be doing (`any`: whatever); by default root rules of the physical and resource
    layers hold in any phase and all others while training. `narrow` names the one finer entity that fulfils it instead
    of this one, where exactly one does; `widen` names the coarser kind that is ill where three quarters of its members,
    two at least, fulfil the rule together, or where several would bring about the very same. `only` leaves the rule to
    entities whose labels match (regular expressions). `measure` is the signal whose deviation is the size of the
    finding (default: that of the first condition). `instead_of` names rules of the same kind for which this one stands
    in: it is judged only where none of them could be, and every edge to them leads to it too. `confused_with` lists the
    ids that look alike; `source` says where thresholds come from.
    """

    id: str
    layer: Layer
    summary: str
    entity: str
    role: Role
    when: Condition
    hold: Duration = msgspec.field(name="for", default="1m")
    phases: tuple[str, ...] = ()
    causes: tuple[Effect, ...] = ()
    prior: dict[Symptom, Share] = {}
    leak: Share = 0.01
    symptom: Symptom | None = None
    onset: Symptom | None = None
    narrow: Condition | None = None
    widen: str | None = None
    only: dict[str, str] = {}
    measure: str | None = None
    instead_of: tuple[str, ...] = ()
    action: Action | None = None
    runbook: str = ""
    confused_with: tuple[str, ...] = ()
    source: str = ""


def fits(key: str, leaf: Leaf) -> bool:
    """Say whether a key of an override, `signal.field` or `signal.is.field`, names a condition.

    >>> from rca.detectors import Above
    >>> fits("heat.limit", Above(signal="heat", limit=90)), fits("heat.below.limit", Above(signal="heat", limit=90))
    (True, False)
    """
    path = key.split(".")
    return path[0] == leaf.signal and (len(path) == 2 or path[1:-1] == [str(leaf.__struct_config__.tag)])


class Override(Written, frozen=True, kw_only=True):
    """A deployment's change of a rule's numbers where entity labels match.

    The keys of `set` are `for`, `signal.field`, or `signal.is.field` where a rule has several conditions on a signal.
    """

    rule: str
    match: dict[str, str] = {}
    set: dict[str, float | str]

    def apply(self, rule: Rule) -> Rule:
        """Return the rule with this override's numbers; keys that name nothing in it change nothing."""
        hold = self.set.get("for", rule.hold)
        return msgspec.structs.replace(rule, when=self._changed(rule.when), hold=str(hold))

    def _changed(self, condition: Condition) -> Condition:
        if isinstance(condition, All | Any):
            return msgspec.structs.replace(condition, of=tuple(self._changed(part) for part in condition.of))
        if isinstance(condition, Not | Unless):
            return msgspec.structs.replace(condition, of=self._changed(condition.of))
        fields = {
            key.rpartition(".")[2]: value
            for key, value in self.set.items()
            if fits(key, condition) and key.rpartition(".")[2] in condition.__struct_fields__
        }
        return msgspec.structs.replace(condition, **fields)


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """All signals, entities and rules, cross-checked.

    `aliases` holds the other spellings of a metric name, nearest first, each with the factor of its unit: one unit of
    the name is so many of the other's. `digest` is `sha256:` of the files it was loaded from.
    """

    signals: dict[str, Signal]
    entities: Entities
    rules: dict[str, Rule]
    overrides: tuple[Override, ...] = ()
    aliases: dict[str, tuple[tuple[str, float], ...]] = {}
    digest: str = ""

    def in_use(self, told: Iterable[str] = TOLD) -> "Library":
        """Return the library without the signals that no rule reads, directly or through a derived one, but those that
        reports are `told` by.
        """
        waiting = [PHASES, *told]
        for rule in self.rules.values():
            waiting += [rule.measure] if rule.measure else []
            waiting += [effect.gain.of for effect in rule.causes if effect.gain is not None]
            waiting += [effect.gain.over for effect in rule.causes if effect.gain is not None and effect.gain.over]
            for leaf in self.conditions(rule):
                load = getattr(leaf, "load", None)
                waiting += [*named(leaf), *([load] if load else [])]
        found: dict[str, Signal] = {}
        while waiting:
            name = waiting.pop()
            if name in self.signals and name not in found:
                signal = found[name] = self.signals[name]
                waiting += signal.derived.inputs() if signal.derived is not None else ()
        return msgspec.structs.replace(self, signals={name: found[name] for name in sorted(found)})

    def conditions(self, rule: Rule) -> Iterator[Leaf]:
        """Yield every leaf condition of a rule, `narrow` included."""
        yield from leaves(rule.when)
        if rule.narrow is not None:
            yield from leaves(rule.narrow)


class Source(Protocol):
    """The one way in: read the world once, and say what was seen."""

    def latest(self) -> float:
        """Return the time that `--at` defaults to, in unix seconds."""
        ...

    def snapshot(self, library: Library, window: Window) -> Snapshot:
        """Read all that the library's signals ask for; the only I/O of a diagnosis."""
        ...


__all__ = [
    "Action",
    "Codes",
    "Derived",
    "Effect",
    "Entities",
    "EntityKind",
    "Gain",
    "Label",
    "Library",
    "Number",
    "Override",
    "Relation",
    "Role",
    "Rule",
    "Signal",
    "Source",
    "Written",
    "seconds",
]
