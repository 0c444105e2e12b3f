"""What can be wrong between files: names, kinds, numbers, edges, and what makes a rule useless.

`faults` are what no library can work with; `load` refuses them. `lint` adds what a library works with and a reviewer
does not: edges against the order of layers, dead rules, missing runbooks, PromQL that cannot be. Both are pure and
return every problem at once, in the order of their places.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from rca import detectors, promql
from rca.detectors import Condition, Detector, Leaf
from rca.errors import Problem, suggestion
from rca.library import Derived, Effect, Entities, Library, Override, Rule, Signal, fits, seconds
from rca.model import LAYERS
from rca.places import Places

_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?%?")
_SETTABLE = frozenset({"limit", "clear", "by", "at_least", "agree", "z", "sigma", "factor", "least"})


def order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Sort problems by file, then by line as a number, and drop repetitions.

    >>> [problem.place for problem in order([Problem("a:10", "x"), Problem("a:9", "x"), Problem("a:9", "x")])]
    ['a:9', 'a:10']
    """

    def key(problem: Problem) -> tuple[str, int, str]:
        file, _, line = problem.place.rpartition(":")
        return (file, int(line), problem.text) if line.isdecimal() else (problem.place, 0, problem.text)

    return tuple(sorted(dict.fromkeys(problems), key=key))


def faults(library: Library, places: Places) -> tuple[Problem, ...]:
    """Return what no diagnosis can work with: unknown names, numbers that are none, cycles.

    Names that have a place but are missing in the library stand in files that could not be read; they are not
    reported a second time.
    """
    checker = _Checker(library, places)
    return order([
        *checker.signals(),
        *(problem for rule in library.rules.values() for problem in checker.rule(rule)),
        *_cycles(library, places),
        *checker.overrides(),
    ])  # fmt: skip


def lint(library: Library, places: Places, types: Mapping[str, str]) -> tuple[Problem, ...]:
    """Return all that `faults` returns, and what a reviewer would object to.

    `types` says of a metric whether it is a `counter` or a `gauge`.
    """
    rules = library.rules.values()
    return order([
        *faults(library, places),
        *(problem for rule in rules for problem in _order(rule, library, places)),
        *(problem for rule in rules for problem in _role(rule, places)),
        *_dead(library, places),
        *_queries(library, places, types),
    ])  # fmt: skip


def walk(condition: Condition, steps: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Leaf]]:
    """Yield the leaves of a condition with their paths, in the order of writing."""
    if isinstance(condition, detectors.All | detectors.Any):
        for index, part in enumerate(condition.of):
            yield from walk(part, (*steps, "of", index))
    elif isinstance(condition, detectors.Not | detectors.Unless):
        yield from walk(condition.of, (*steps, "of"))
    else:
        yield steps, condition


def _empty(condition: Condition, steps: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of `all` and `any` without a part."""
    if isinstance(condition, detectors.All | detectors.Any):
        if not condition.of:
            yield steps
        for index, part in enumerate(condition.of):
            yield from _empty(part, (*steps, "of", index))
    elif isinstance(condition, detectors.Not | detectors.Unless):
        yield from _empty(condition.of, (*steps, "of"))


def leaves(rule: Rule) -> Iterator[tuple[tuple[str | int, ...], Leaf]]:
    """Yield the leaves of a rule with their paths, those of `narrow` last."""
    yield from walk(rule.when, ("when",))
    if rule.narrow is not None:
        yield from walk(rule.narrow, ("narrow",))


def columns(kind: str, entities: Entities) -> frozenset[str]:
    """Return the labels that are known of every entity of a kind, its own and those of where it stands."""
    return entities.known(kind)


def is_finer(kind: str, than: str, entities: Entities) -> bool:
    """Say whether several entities of `kind` may belong to one of kind `than`."""
    up = set(entities.kinds[than].labels) <= columns(kind, entities)
    return up and not set(entities.kinds[kind].labels) <= columns(than, entities)


class _Checker:
    """Looks up names in one library and says where they fail."""

    def __init__(self, library: Library, places: Places) -> None:
        self.library = library
        self.places = places
        self.entities = library.entities
        self.names = {
            section: frozenset(known) | {str(path[1]) for path in places if len(path) == 2 and path[0] == section}
            for section, known in (("signal", library.signals), ("rule", library.rules))
        } | {
            "kind": frozenset(self.entities.kinds),
            "relation": frozenset(self.entities.relations),
            "phase": frozenset(_phases(library)),
            "peers": frozenset(self.entities.relations) | _labels(self.entities),
        }  # fmt: skip

    def unknown(self, section: str, name: str, *steps: str | int) -> Iterator[Problem]:
        """Yield a problem where a name is not known."""
        if name not in self.names[section]:
            what = {"kind": "kind of entity", "peers": "label or relation", "rule": "effect"}.get(section, section)
            text = f"unknown {what} '{name}'{suggestion(name, self.names[section])}"
            yield Problem(self.places.at(*steps), text)

    def signals(self) -> Iterator[Problem]:
        """Check every signal, and that derived ones end in measured ones."""
        for name, signal in self.library.signals.items():
            yield from self.unknown("kind", signal.entity, "signal", name, "entity")
            yield from self.signal(name, signal)
            if signal.derived is not None:
                yield from self.derived(name, signal, signal.derived)
        signals = self.library.signals.items()
        for names in _loops({name: signal.derived.inputs() if signal.derived else () for name, signal in signals}):
            text = f"derived from itself: {' -> '.join(names)}, one of them must be measured"
            yield Problem(self.places.at("signal", names[0], "derived"), text)

    def signal(self, name: str, signal: Signal) -> Iterator[Problem]:
        """Check what stands in one signal alone."""
        at = self.places.at
        if bool(signal.queries) == (signal.derived is not None):
            yield Problem(at("signal", name), f"'{name}' needs either queries or derived, write one of them")
        if signal.valid is not None and signal.valid[0] >= signal.valid[1]:
            low, high = signal.valid
            yield Problem(at("signal", name, "valid"), f"valid is empty, {low:g} is not below {high:g}")
        if signal.bits and signal.unit != "bits":
            yield Problem(at("signal", name, "bits"), f"bits need the unit bits, found '{signal.unit}'")
        if signal.codes is not None and signal.unit != "code":
            yield Problem(at("signal", name, "codes"), f"codes need the unit code, found '{signal.unit}'")

    def derived(self, name: str, signal: Signal, derived: Derived) -> Iterator[Problem]:
        """Check the form of a derived signal, and that each input can be read on its kind of entity."""
        place = self.places.at("signal", name, "derived")
        forms = [derived.of is not None, bool(derived.product), bool(derived.ratio), bool(derived.sum)]
        if sum(forms) != 1 or ((derived.difference or derived.plus) and not derived.sum):
            yield Problem(place, "needs exactly one of of, product, ratio, sum (plus and difference go with sum)")
        if (derived.of is None) != (derived.by is None):
            yield Problem(place, "of and by go together, for example {of: rank_work_seconds, by: max}")
        if derived.ratio and len(derived.ratio) != 2:
            yield Problem(place, f"ratio takes two signals, found {len(derived.ratio)}")
        for other in derived.inputs():
            yield from self.unknown("signal", other, "signal", name, "derived")
            if other in self.library.signals and signal.entity in self.entities.kinds:
                kind = self.library.signals[other].entity
                finer = self.finer(kind, signal.entity) or (kind, signal.entity) == ("rank", "group")
                if kind in self.entities.kinds and finer != (other == derived.of):
                    right = (
                        "read it with of and by" if finer else f"of needs a signal of a kind finer than {signal.entity}"
                    )
                    yield Problem(place, f"'{other}' is a signal of {kind}, {right}")
                if not finer:
                    yield from self.unreadable(other, signal.entity, place)

    def finer(self, kind: str, than: str) -> bool | None:
        """Say whether a kind is finer than another, None where one of them is not known."""
        if kind not in self.entities.kinds or than not in self.entities.kinds:
            return None
        return is_finer(kind, than, self.entities)

    def unreadable(self, signal: str, entity: str, place: str) -> Iterator[Problem]:
        """Yield a problem where a signal has nothing to do with a kind of entity."""
        kind = self.library.signals[signal].entity
        if kind == entity or not {kind, entity} <= set(self.entities.kinds):
            return
        known = columns(kind, self.entities), columns(entity, self.entities)
        keys = set(self.entities.kinds[kind].labels), set(self.entities.kinds[entity].labels)
        if not (keys[0] <= known[1] or keys[1] <= known[0]):
            yield Problem(place, f"'{signal}' is measured on {kind}, which no {entity} has or belongs to")

    def rule(self, rule: Rule) -> Iterator[Problem]:
        """Check one rule: its kind, its conditions, its edges."""
        yield from self.unknown("kind", rule.entity, "rule", rule.id, "entity")
        for steps in _empty(rule.when, ("when",)):
            yield Problem(self.places.at("rule", rule.id, *steps), "holds no condition, write at least one")
        for steps, leaf in leaves(rule):
            yield from self.condition(rule, leaf, steps)
        yield from self.widened(rule)
        for other in rule.instead_of:
            yield from self.unknown("rule", other, "rule", rule.id, "instead_of")
        for index, edge in enumerate(rule.causes):
            yield from self.edge(rule, edge, index)
        for phase in rule.phases:
            if phase != "any" and self.names["phase"]:
                yield from self.unknown("phase", phase, "rule", rule.id, "phases")
        yield from self.labelled(rule.only, rule, "only", self.places.at("rule", rule.id, "only"))
        if rule.measure is not None:
            yield from self.readable(rule, rule.measure, "measure")

    def widened(self, rule: Rule) -> Iterator[Problem]:
        """Check that `widen` names a kind to which the rule's entities belong."""
        if rule.widen is None:
            return
        yield from self.unknown("kind", rule.widen, "rule", rule.id, "widen")
        if self.finer(rule.entity, rule.widen) is False:
            yield Problem(
                self.places.at("rule", rule.id, "widen"), f"a {rule.widen} is no coarser than a {rule.entity}"
            )

    def labelled(self, wanted: Mapping[str, str], rule: Rule, key: str, place: str) -> Iterator[Problem]:
        """Check that the rule's entities carry labels, and that what is wanted of them is a regular expression."""
        known = columns(rule.entity, self.entities) if rule.entity in self.entities.kinds else frozenset(wanted)
        for label, pattern in wanted.items():
            if label not in known:
                yield Problem(place, f"a {rule.entity} has no label '{label}' for '{key}'{suggestion(label, known)}")
            try:
                re.compile(pattern)
            except re.error as error:
                yield Problem(place, f"'{pattern}' in '{key}' is no regular expression, {error}")

    def readable(self, rule: Rule, signal: str, *steps: str | int) -> Iterator[Problem]:
        """Check that a signal exists and can be read on the rule's entities."""
        yield from self.unknown("signal", signal, "rule", rule.id, *steps)
        if signal in self.library.signals and rule.entity in self.entities.kinds:
            yield from self.unreadable(signal, rule.entity, self.places.at("rule", rule.id, *steps))

    def condition(self, rule: Rule, leaf: Leaf, steps: tuple[str | int, ...]) -> Iterator[Problem]:
        """Check one leaf: its signal, its peers, its numbers, and what only some detectors have."""
        place = self.places.at("rule", rule.id, *steps)
        if not isinstance(leaf, detectors.Logged):
            yield from self.readable(rule, leaf.signal, *steps, "signal")
        for key in ("load", "other"):
            other = getattr(leaf, key, None)
            if other is not None:
                yield from self.readable(rule, other, *steps, "with" if key == "other" else key)
        if getattr(leaf, "peers", None) == () and not isinstance(leaf, detectors.Set):
            yield Problem(place, "peers are empty, write for example [job, stage]")
        for peer in getattr(leaf, "peers", ()):
            yield from self.unknown("peers", peer, "rule", rule.id, *steps, "peers")
        for key in ("limit", "clear", "by", "at_least", "agree"):
            yield from self.number(rule, getattr(leaf, key, None), *steps, key)
        signal = self.library.signals.get(leaf.signal)
        if signal is not None:
            yield from (
                self.narrowed(rule, leaf, signal, place)
                if steps[0] == "narrow"
                else self.reduction(rule, leaf, signal, place)
            )
            yield from _codes(leaf, signal, place)

    def number(self, rule: Rule, value: float | str | None, *steps: str | int) -> Iterator[Problem]:
        """Check that a number is one, a percentage, or the name of a signal."""
        if not isinstance(value, str) or _NUMBER.fullmatch(value.strip()):
            return
        key = steps[-1]
        place = self.places.at("rule", rule.id, *steps)
        named = re.fullmatch(r"[a-z][a-z0-9_]*", value) and value not in {"nan", "inf", "infinity"}
        if named and key not in {"at_least", "agree"}:
            yield from self.readable(rule, value, *steps)
        else:
            yield Problem(place, f"'{key}' must be a number, a percentage or a signal's name, found '{value}'")

    def reduction(self, rule: Rule, leaf: Detector, signal: Signal, place: str) -> Iterator[Problem]:
        """Check that `reduce` stands where a finer signal is read, and nowhere else."""
        finer = self.finer(signal.entity, rule.entity)
        if finer and leaf.reduce is None:
            yield Problem(
                place, f"'{leaf.signal}' has several values on one {rule.entity}, add reduce: max, min or count"
            )
        elif finer is False and leaf.reduce is not None:
            yield Problem(place, f"'{leaf.signal}' has one value on each {rule.entity}, leave reduce out")
        elif leaf.reduce != "count" and leaf.at_least != 1.0:
            yield Problem(place, "at_least counts members, it needs reduce: count")

    def narrowed(self, rule: Rule, leaf: Detector, signal: Signal, place: str) -> Iterator[Problem]:
        """Check that `narrow` asks about something finer than the rule's entity, one by one."""
        if self.finer(signal.entity, rule.entity) is False:
            yield Problem(place, f"narrow needs a signal of a kind finer than {rule.entity}, found {signal.entity}")
        elif leaf.reduce is not None:
            yield Problem(place, "narrow asks one entity at a time, leave reduce out")

    def edge(self, rule: Rule, edge: Effect, index: int) -> Iterator[Problem]:
        """Check one edge: its names, and that its relation joins both ends."""
        steps = ("rule", rule.id, "causes", index)
        yield from self.unknown("rule", edge.effect, *steps, "effect")
        yield from self.unknown("relation", edge.via, *steps, "via")
        if edge.gain is not None:
            for key in filter(None, (edge.gain.of, edge.gain.over)):
                yield from self.readable(rule, key, "causes", index, "gain", "of")
            if edge.gain.factor <= 0:
                yield Problem(self.places.at(*steps, "gain", "factor"), "a gain's factor must be above 0")
        effect = self.library.rules.get(edge.effect)
        if edge.via not in self.entities.relations or effect is None:
            return
        kinds = (rule.entity, effect.entity)
        if all(kind in self.entities.kinds for kind in kinds) and not self.entities.join(edge.via, *kinds):
            text = f"relation '{edge.via}' does not lead from {kinds[0]} to {kinds[1]}, the entity of '{edge.effect}'"
            yield Problem(self.places.at(*steps, "via"), text)

    def overrides(self) -> Iterator[Problem]:
        """Check that each override meets exactly one number of one rule."""
        for index, override in enumerate(self.library.overrides):
            rule = self.library.rules.get(override.rule)
            if rule is not None:
                place = self.places.at("override", index)
                yield from (Problem(place, text) for text in _settings(override, rule, self.library))
                yield from self.labelled(override.match, rule, "match", place)
            elif override.rule not in self.names["rule"]:
                text = f"override of unknown rule '{override.rule}'{suggestion(override.rule, self.names['rule'])}"
                yield Problem(self.places.at("override", index), text)


def _settings(override: Override, rule: Rule, library: Library) -> Iterator[str]:
    """Say of each setting of an override why it does not fit the rule."""
    found = [leaf for _, leaf in walk(rule.when, ())]
    for key, value in override.set.items():
        field = key.rpartition(".")[2]
        fitting = [leaf for leaf in found if fits(key, leaf) and field in _settable(leaf)]
        if key == "for" or field == "least":
            wanted = "" if _is_duration(value) else "a duration, for example 5m"
        elif field in {"z", "sigma", "factor"}:
            wanted = "" if isinstance(value, float | int) else "a number"
        else:
            plain = value in library.signals or not isinstance(value, str) or _NUMBER.fullmatch(value.strip())
            wanted = "" if plain else "a number, a percentage or a signal's name"
        if key != "for" and not fitting:
            known = {f"{leaf.signal}.{name}" for leaf in found for name in _settable(leaf)}
            yield f"rule '{rule.id}' has no '{key}' to override{suggestion(key, known | {'for'})}"
        elif len(fitting) > 1:
            exact = sorted({f"{leaf.signal}.{leaf.__struct_config__.tag}.{field}" for leaf in fitting})
            hint = f", write {' or '.join(exact)}" if len(exact) == len(fitting) else ""
            yield f"'{key}' is ambiguous, rule '{rule.id}' has it {len(fitting)} times{hint}"
        elif wanted:
            yield f"'{key}' must be {wanted}, found '{value}'"


def _settable(leaf: Leaf) -> Collection[str]:
    """Return the fields of a condition that a deployment may change."""
    return _SETTABLE & set(leaf.__struct_fields__)


def _is_duration(value: float | str) -> bool:
    try:
        return seconds(str(value)) >= 0.0
    except ValueError:
        return False


def _codes(leaf: Leaf, signal: Signal, place: str) -> Iterator[Problem]:
    """Check the detectors that read bits or codes."""
    if isinstance(leaf, detectors.Set):
        for bit in leaf.bits:
            if bit not in signal.bits:
                yield Problem(place, f"'{leaf.signal}' has no bit '{bit}'{suggestion(bit, signal.bits)}")
    elif isinstance(leaf, detectors.OneOf) and signal.unit != "code":
        yield Problem(place, f"one_of reads codes, '{leaf.signal}' is measured in {signal.unit}")
    elif signal.unit == "bits" and not isinstance(leaf, detectors.Missing):
        yield Problem(place, f"'{leaf.signal}' is a bit mask, read it with is: set")


def _cycles(library: Library, places: Places) -> Iterator[Problem]:
    for names in _loops({rule.id: [edge.effect for edge in rule.causes] for rule in library.rules.values()}):
        rule = library.rules[names[0]]
        index = next(index for index, edge in enumerate(rule.causes) if edge.effect == names[1])
        text = f"causes go in a circle: {' -> '.join(names)}, an effect cannot bring about its own cause"
        yield Problem(places.at("rule", rule.id, "causes", index), text)


def _loops(edges: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    """Yield one closed walk of each part of a graph that goes in a circle, beginning at its first name.

    >>> list(_loops({"b": ["a", "c"], "a": ["b"]}))
    [['a', 'b', 'a']]
    """
    if not _circular(edges):
        return
    import networkx as nx  # noqa: PLC0415 - 0.2 s, and circles are rare

    graph = nx.DiGraph([(name, other) for name, others in edges.items() for other in others])
    for part in sorted(map(sorted, nx.strongly_connected_components(graph))):
        if len(part) > 1 or graph.has_edge(part[0], part[0]):
            walk = nx.find_cycle(graph.subgraph(part), part[0])
            names = [edge[0] for edge in walk]
            start = names.index(min(names))
            names = names[start:] + names[:start]
            yield [*names, names[0]]


def _phases(library: Library) -> Collection[str]:
    """Return the phases that a rank can be in."""
    states = [signal.codes.values for signal in library.signals.values() if signal.codes and signal.entity == "rank"]
    return {phase for values in states for phase in values}


def _labels(entities: Entities) -> frozenset[str]:
    kinds = (label for kind in entities.kinds.values() for label in kind.labels)
    relations = (label for relation in entities.relations.values() for label in relation.labels)
    return frozenset([*entities.labels, *kinds, *relations])


def _order(rule: Rule, library: Library, places: Places) -> Iterator[Problem]:
    """Find edges that point back in the order of layers; a root cause may, and an edge that accuses nobody."""
    for index, edge in enumerate(rule.causes):
        effect = library.rules.get(edge.effect)
        if effect is None or rule.role == "root" or not edge.accuses:
            continue
        if LAYERS.index(effect.layer) < LAYERS.index(rule.layer):
            text = (
                f"an effect of a {rule.layer} symptom cannot lie in layer {effect.layer}, as '{effect.id}' does: "
                "turn the edge round, or write accuses: false for a wait that lowers activity"
            )
            yield Problem(places.at("rule", rule.id, "causes", index), text)


def _role(rule: Rule, places: Places) -> Iterator[Problem]:
    """Hold what a root cause must have, and a symptom must not."""
    place = places.at("rule", rule.id)
    wanted = (("action", rule.action is not None), ("prior", bool(rule.prior)), ("runbook", bool(rule.runbook)))
    for key, given in wanted:
        if rule.role == "root" and not given:
            yield Problem(place, f"root cause '{rule.id}' lacks '{key}'")
        if rule.role == "symptom" and given and key != "runbook":
            text = f"a symptom has no '{key}', leave it out or write role: root"
            yield Problem(places.at("rule", rule.id, key), text)
    if rule.role == "root" and rule.symptom is not None:
        yield Problem(places.at("rule", rule.id, "symptom"), "a root cause is no symptom class, write role: symptom")


def _circular(edges: Mapping[str, Iterable[str]]) -> bool:
    """Say whether a graph goes in a circle anywhere."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError:
        return True
    return False


def _dead(library: Library, places: Places) -> Iterator[Problem]:
    """Find rules that can explain nothing, and priors for symptoms that the rule cannot bring about."""
    import networkx as nx  # noqa: PLC0415 - 0.2 s, and only `check` needs it

    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(library.rules)
    classes = {rule.symptom for rule in library.rules.values()}
    graph.add_edges_from((rule.id, edge.effect) for rule in library.rules.values() for edge in rule.causes)
    for rule in library.rules.values():
        reached = {library.rules[name].symptom for name in nx.descendants(graph, rule.id) if name in library.rules}
        if rule.role == "symptom":
            if rule.symptom is None and rule.entity != "job" and not graph.degree(rule.id):
                text = f"'{rule.id}' is dead: nothing causes it, it causes nothing, and it says nothing of a job"
                yield Problem(places.at("rule", rule.id), text)
            continue
        if not rule.causes and "none" not in rule.prior:
            text = f"'{rule.id}' has no effects, add causes, or prior: {{none: ...}} for what is reported without a symptom"
            yield Problem(places.at("rule", rule.id), text)
        for symptom in rule.prior:
            if rule.causes and symptom in classes and symptom not in _implied(reached):
                text = f"no chain of effects leads from '{rule.id}' to a rule with symptom: {symptom}"
                yield Problem(places.at("rule", rule.id, "prior", symptom), text)


def _implied(symptoms: Collection[str | None]) -> frozenset[str | None]:
    """Return the symptom classes that a chain may end in: slow with an onset and slow from the start are one chain."""
    slow = {"slow_onset", "slow_always"}
    return frozenset(symptoms) | (slow if slow & set(symptoms) else set())


def _queries(library: Library, places: Places, types: Mapping[str, str]) -> Iterator[Problem]:
    """Find PromQL that does not parse, or that takes the rate of a gauge."""
    counters = frozenset(name for name, type_ in types.items() if type_ == "counter")
    gauges = frozenset(name for name, type_ in types.items() if type_ == "gauge")
    for name, signal in library.signals.items():
        for index, query in enumerate(signal.queries):
            for text in promql.problems(query, counters, gauges):
                yield Problem(places.at("signal", name, "queries", index), text)
