"""The page of one rule, and the index of all."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from docs.words import Words, duration, listed, share, unit
from rca.detectors import Leaf, leaves, named
from rca.evaluate import ANY_PHASE, HARDWARE, TRAINING
from rca.library import Effect, Library, Rule
from rca.model import LAYERS

DETECTS: Final = ("entity", "when", "for", "phases", "only", "measure", "narrow", "widen")
NOTE = "<!-- written by docs/generate.py, do not edit: run make docs -->"


class Case(NamedTuple):
    """A made-up incident: its file's stem, what it is, and which causes it must come out with."""

    name: str
    summary: str
    causes: tuple[str, ...]


def cases(folder: Path) -> list[Case]:
    """Read what the scenarios of a folder are about."""
    found = []
    for path in sorted(folder.glob("*.yaml")):
        written = yaml.safe_load(path.read_text(encoding="utf-8"))
        expected = (written.get("expect") or {}).get("causes") or []
        found.append(Case(path.stem, str(written.get("summary", "")), tuple(str(one["cause"]) for one in expected)))
    return found


class RulePage:
    """Writes pages of rules; `docs` is the folder of documents, `rules` that of the rules."""

    def __init__(self, library: Library, rules: Path, docs: Path, found: Sequence[Case]) -> None:
        self._library = library
        self._rules = rules
        self._docs = docs
        self._cases = {one.name: one for one in found}

    def text(self, rule: Rule) -> str:
        """Write the page of a rule."""
        kind = self._library.entities.kinds[rule.entity].summary
        role = "may be a root cause" if rule.role == "root" else "a symptom, never a root cause"
        parts = [
            f"# {rule.id}",
            NOTE,
            f"{rule.summary}.",
            f"`{rule.layer}` layer · judged on each `{rule.entity}` ({kind}) · {role}",
            *self._meaning(rule),
            "## Detection",
            *self._detection(rule),
            "## Effects",
            *self._effects(rule),
            *self._lookalikes(rule),
            *self._action(rule),
            *self._shown(rule),
            "## Source",
            rule.source.strip() or "None is given.",
        ]
        return "\n\n".join(parts) + "\n"

    def _meaning(self, rule: Rule) -> Iterator[str]:
        """Tell what the runbook says about the meaning, and how likely it is."""
        told = _section(self._book(rule), "Impact")
        if told:
            yield told.split("\n\n", maxsplit=1)[0]
        if rule.symptom or rule.onset:
            onset = f", `{rule.onset}` where it clearly began inside the window" if rule.onset else ""
            yield f"Puts its job into the class `{rule.symptom or 'none'}`{onset}."
        if rule.prior:
            priors = [f"{share(value)} of `{name}` jobs" for name, value in rule.prior.items() if name != "none"]
            hard = f"{share(rule.prior['none'])} where a job shows no symptom" if "none" in rule.prior else ""
            likely = listed([*priors, *([hard] if hard else [])])
            yield f"Prior: it starts {likely}. It holds by chance on {share(rule.leak)} of healthy `{rule.entity}` entities."

    def _detection(self, rule: Rule) -> Iterator[str]:
        """Tell the condition in words and as it is written."""
        words = Words(self._library, rule.entity)
        names = rule.phases or (ANY_PHASE if rule.role == "root" and rule.layer in HARDWARE else (TRAINING,))
        phases = (
            "whatever the job does"
            if names == ANY_PHASE
            else f"while the job is in {listed([f'`{n}`' for n in names], 'or')}"
        )
        only = "".join(f", where its `{label}` fits `{text}`" for label, text in rule.only.items())
        yield f"Holds on a `{rule.entity}`{only} when, for {duration(rule.hold)} and {phases}:"
        yield "\n".join(words.lines(rule.when))
        if rule.narrow is not None:
            yield "Where exactly one member fulfils this, that one is named:"
            yield "\n".join(Words(self._library, "").lines(rule.narrow))
        if rule.widen:
            yield f"Where three quarters of a `{rule.widen}` fulfil it together, two at least, the `{rule.widen}` is named."
        yield f"As it is written, in `rules/{rule.layer}/{rule.id}.yaml`:"
        yield f"```yaml\n{self._written(rule)}```"
        yield self._signals(rule)

    def _written(self, rule: Rule) -> str:
        """Return the lines of the rule's file that say when it holds."""
        path = self._rules / rule.layer / f"{rule.id}.yaml"
        blocks = re.split(r"^(?=[a-z_]+:)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        return "".join(block for block in blocks if block.partition(":")[0] in DETECTS)

    def _signals(self, rule: Rule) -> str:
        """List what the rule reads, with what supplies it."""
        signals = self._library.signals
        names = sorted({name for leaf in self._library.conditions(rule) for name in _read(leaf)} & signals.keys())
        rows = []
        for name in names:
            origin = signals[name].enable or self._made_of(name)
            rows.append(
                f"| [`{name}`](../signals.md#{name}) | {_cell(signals[name].summary)} | {unit(signals[name].unit)} | {_cell(origin)} |"
            )
        return "\n".join(["| reads | is | unit | comes from |", "|---|---|---|---|", *rows])

    def _made_of(self, name: str) -> str:
        derived = self._library.signals[name].derived
        parts = [f"`{one}`" for one in dict.fromkeys(derived.inputs())] if derived is not None else []
        return f"{listed(parts)}" if parts else "any exporter"

    def _effects(self, rule: Rule) -> Iterator[str]:
        """Tell both ends of the graph: what it brings about, and what brings it about."""
        if rule.causes:
            rows = [
                f"| {_to(edge.effect)} | `{edge.via}`: {self._relation(edge.via)} | {share(edge.strength)} | {_how(edge)} |"
                for edge in rule.causes
            ]
            yield "It brings about:"
            yield "\n".join(["| effect | through | strength | |", "|---|---|--:|---|", *rows])
        else:
            yield "It brings about nothing that is looked for."
        origins = sorted(
            one.id for one in self._library.rules.values() if rule.id in {edge.effect for edge in one.causes}
        )
        if origins:
            yield f"It is brought about by {listed([_to(name) for name in origins])}."
        yield "Where it stands among all: [the causal graph](README.md#the-causal-graph)."

    def _relation(self, name: str) -> str:
        relation = self._library.entities.relations.get(name)
        return relation.summary if relation is not None else name

    def _lookalikes(self, rule: Rule) -> Iterator[str]:
        """Tell what it is confused with, and what decides: the runbook's words, else what the other is."""
        if not rule.confused_with:
            return
        told = _decisions(self._book(rule))
        yield "## Confused with"
        rows = [
            f"| {self._other(name)} | {told.get(name) or self._decider(rule, name)} |" for name in rule.confused_with
        ]
        yield "\n".join(["| looks like | what decides |", "|---|---|", *rows])

    def _other(self, name: str) -> str:
        if name in self._library.rules:
            return _to(name)
        return f"[`{name}`](../../scenarios/{name}.yaml), healthy" if name in self._cases else f"`{name}`"

    def _decider(self, rule: Rule, name: str) -> str:
        """Say what the look-alike is, and what it reads that this rule does not."""
        other = self._library.rules.get(name)
        if other is None:
            return (
                _cell(self._cases[name].summary)
                if name in self._cases
                else "what this rule asks for does not hold there"
            )
        own = {one for leaf in leaves(rule.when) for one in named(leaf)}
        further = sorted({one for leaf in leaves(other.when) for one in named(leaf)} - own)
        links = listed([f"[`{one}`](../signals.md#{one})" for one in further])
        return f"{_cell(other.summary)}" + (f"; look at {links}" if links else "")

    def _action(self, rule: Rule) -> Iterator[str]:
        if rule.action is not None:
            yield "## Action"
            yield f"`{rule.action.do}`: {rule.action.text}"
        if rule.runbook:
            yield f"Runbook: [{rule.id}](../{rule.runbook.removeprefix('docs/')})"

    def _shown(self, rule: Rule) -> Iterator[str]:
        """Name the made-up incidents in which it must be found."""
        found = [one for one in self._cases.values() if rule.id in one.causes]
        if found:
            yield "## Seen in"
            yield "\n".join(
                f"- [{one.name}](../../scenarios/{one.name}.yaml): {_lowered(one.summary)}" for one in found
            )

    def _book(self, rule: Rule) -> str:
        path = self._docs / rule.runbook.removeprefix("docs/") if rule.runbook else None
        return path.read_text(encoding="utf-8") if path is not None and path.is_file() else ""


def index(library: Library) -> str:
    """Write the index of rules by layer, with the picture of the graph."""
    roots = sum(rule.role == "root" for rule in library.rules.values())
    intro = (
        f"{roots} causes and {len(library.rules) - roots} symptoms, layer by layer. How a rule is written tells the "
        "[rule language](../rule-language.md), what it reads the [signal catalogue](../signals.md), what to do about a "
        "cause its runbook."
    )
    picture = (
        "Causes stand at the left, what they bring about to the right of them, the class that a job falls into at the "
        "far right. Causes with the same effects share a box. Colours are layers; dashed lines explain a finding and "
        "never speak for a cause."
    )
    parts = [
        "# Rules",
        NOTE,
        intro,
        "- [The causal graph](#the-causal-graph)\n"
        + "\n".join(f"- [{layer.capitalize()}](#{layer})" for layer in LAYERS),
        "## The causal graph",
        picture,
        "![What brings about what: the same as the tables of effects on the pages below](graph.svg)",
    ]
    for layer in LAYERS:
        parts.append(f"## {layer.capitalize()}")
        rules = [rule for rule in library.rules.values() if rule.layer == layer]
        for role, title in (("root", "cause"), ("symptom", "symptom")):
            rows = [_row(rule) for rule in sorted(rules, key=lambda one: one.id) if rule.role == role]
            if rows:
                parts.append("\n".join([f"| {title} | of a | is | brings about |", "|---|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _row(rule: Rule) -> str:
    effects = ", ".join(dict.fromkeys(f"`{edge.effect}`" for edge in rule.causes)) or "–"
    return f"| {_to(rule.id)} | {rule.entity} | {_cell(rule.summary)} | {effects} |"


def _to(name: str) -> str:
    return f"[`{name}`]({name}.md)"


def _how(edge: Effect) -> str:
    """Tell what else an edge says."""
    said = [f"within {duration(edge.within)}"]
    if edge.gain is not None:
        over = f" over `{edge.gain.over}`" if edge.gain.over else ""
        said.append(f"{edge.gain.factor:g} × the deviation of `{edge.gain.of}`{over}")
    if edge.members == "any":
        said.append("on at least one of them")
    if not edge.accuses:
        said.append("explains only")
    return ", ".join(said)


def _read(leaf: Leaf) -> set[str]:
    load = getattr(leaf, "load", None)
    return {*named(leaf), *([load] if load else [])}


def _section(text: str, heading: str) -> str:
    """Return what stands below a heading of a runbook."""
    found = re.search(rf"^## {heading}\n+(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def _decisions(book: str) -> Mapping[str, str]:
    """Return what a runbook's table of look-alikes says of each id."""
    rows = re.findall(r"^\| ([^|\n]*`\w+`[^|\n]*) \| ([^\n]*) \|$", _section(book, "Diagnosis"), re.MULTILINE)
    return {name: text for cell, text in rows for name in re.findall(r"`(\w+)`", cell)}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _lowered(text: str) -> str:
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]
