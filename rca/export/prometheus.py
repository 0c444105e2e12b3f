"""A rules file for Prometheus: alerts for the rules that it can express, and the reason for each that it cannot."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import yaml

from rca import __version__
from rca.export.classic import alerts, throughput
from rca.export.conditions import Recording, Writer
from rca.export.expressions import PAUSED, PREFIX, TRAINING, Catalogue, InexpressibleError, Labels, Vector, indented
from rca.library import Library, Override, Rule
from rca.plain import counted

INTERVAL = "30s"
_HARDWARE = ("physical", "resource")
_PREFIXES = {"gpu": "Gpu", "job": "Job", "rank": "Train"}
"""How the names of alerts begin; those of what belongs to a host begin with Node."""
_SEVERITIES = {"crashed": "critical", "stalled": "critical", "numeric": "critical"}

_NAME = re.compile(rf"{PREFIX}[a-z0-9_:]+")

Mapped = dict[str, object]


@dataclass(frozen=True)
class Exported:
    """What has become of one rule: its alert, what it needs recorded, and what was left out of it."""

    rule: Rule
    alert: Mapped
    signals: tuple[str, ...]
    recordings: tuple[Recording, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """A rule that Prometheus cannot express, and why."""

    rule: Rule
    why: str


def export(library: Library, labels: Labels) -> tuple[list[Exported], list[Refused]]:
    """Write every rule as an alert, or say why not."""
    catalogue = Catalogue(library, labels)
    done: list[Exported] = []
    refused: list[Refused] = []
    for rule in sorted(_settled(library), key=lambda rule: (_ORDER[rule.layer], rule.id)):
        try:
            done.append(_exported(catalogue, rule))
        except InexpressibleError as error:
            refused.append(Refused(rule, str(error)))
    return done, refused


_ORDER = {"physical": 0, "resource": 1, "communication": 2, "training": 3}


def render(library: Library, labels: Labels) -> tuple[str, str]:
    """Return the rules file, and the sentences that sum up what is in it."""
    done, refused = export(library, labels)
    catalogue = Catalogue(library, labels)
    groups = [*_recorded(catalogue, done)]
    for layer in _ORDER:
        rules = [one.alert for one in done if one.rule.layer == layer]
        if rules:
            groups.append({"name": f"rca-{layer}", "interval": INTERVAL, "rules": rules})
    groups.append({"name": "classic", "interval": INTERVAL, "rules": alerts(catalogue)})
    partly = [one for one in done if one.left_out]
    head = [
        f"# Written by rca {__version__} (rca export prometheus) from the rules with the hash",
        f"# {library.digest}.",
        f"# {counted(len(done), 'alert')} for rules, {len(partly)} of them narrower than the rule;",
        f"# {counted(len(refused), 'rule')} cannot be said in PromQL, see the end.",
        "# An alert here tells a finding and no cause: which of several is the reason, only `rca diagnose` weighs.",
    ]
    text = "\n".join(head) + "\n" + _dump({"groups": groups}) + _listed(partly, refused)
    said = (
        f"{counted(len(done), 'alert')} for rules ({len(partly)} narrower than the rule) and "
        f"{counted(len(alerts(catalogue)), 'classic alert')}; {counted(len(refused), 'rule')} cannot be expressed: "
        "they are listed at the end of the file"
    )
    return text, said


def _settled(library: Library) -> Iterable[Rule]:
    """Yield the rules with the numbers that a deployment gave them, where these are for all entities."""
    everywhere: dict[str, list[Override]] = {}
    for override in library.overrides:
        if not override.match:
            everywhere.setdefault(override.rule, []).append(override)
    for rule in library.rules.values():
        settled = rule
        for override in everywhere.get(rule.id, ()):
            settled = override.apply(settled)
        yield settled


def _exported(catalogue: Catalogue, rule: Rule) -> Exported:
    if rule.only:
        wanted = " and ".join(f'{label}=~"{text}"' for label, text in rule.only.items())
        raise InexpressibleError(f"it is for what has {wanted} alone, which its series do not say")
    if rule.instead_of:
        raise InexpressibleError(f"it is judged only where {' and '.join(rule.instead_of)} cannot be")
    writer = Writer(catalogue, rule)
    vector = writer.true(rule.when)
    text = _masked(catalogue, rule, vector)
    signal = catalogue.library.signals[rule.measure or next(iter(writer.used))]
    alert: Mapped = {
        "alert": name(rule),
        "expr": text,
        "for": rule.hold,
        "labels": {"severity": severity(rule), "layer": rule.layer, "cause": rule.id, **_job(vector.labels)},
        "annotations": _annotations(rule, vector.labels, signal.summary),
    }
    read = set(_NAME.findall(text))
    for one in reversed(writer.recordings.values()):
        read |= set(_NAME.findall(one.text)) if one.name in read else set()
    made = tuple(one for one in writer.recordings.values() if one.name in read)
    signals = tuple(signal for signal in writer.used if PREFIX + signal in read)
    return Exported(rule, alert, signals, made, tuple(dict.fromkeys(writer.left_out)))


def _masked(catalogue: Catalogue, rule: Rule, vector: Vector) -> str:
    """Leave out what happens while the job does something else or has just done, where the series tell the job."""
    phases = rule.phases or (("any",) if rule.role == "root" and rule.layer in _HARDWARE else (TRAINING,))
    if phases == ("any",):
        return vector.text
    if "job" not in catalogue.library.entities.kinds[rule.entity].labels:
        raise InexpressibleError(
            f"it counts only in phase {' or '.join(phases)}, and no series of a {rule.entity} says its job"
        )
    others = catalogue.paused(phases)
    if not others:
        return vector.text
    job = catalogue.names.name("training", "job")
    paused = PAUSED if phases == (TRAINING,) else others
    text = vector.text if vector.level < 2 else f"(\n{indented(vector.text)}\n)"
    return f"{text}\nunless on ({job}) {paused}"


def name(rule: Rule) -> str:
    """Return the name of a rule's alert: what it is on, and what it is.

    The names match the route of deploy/alertmanager/alertmanager.yml that delivers alerts to rca.
    """
    prefix = _PREFIXES.get(rule.entity, "Node")
    words = "".join(word.capitalize() for word in rule.id.split("_"))
    return words if words.startswith(prefix) else prefix + words


def severity(rule: Rule) -> str:
    """Return how urgent an alert is: what is no trouble without a symptom is `info`."""
    if rule.role == "symptom":
        return "info" if rule.symptom is None else _SEVERITIES.get(rule.symptom, "warning")
    if "none" not in rule.prior:
        return "info"
    likely = max(rule.prior, key=lambda symptom: rule.prior[symptom])
    return _SEVERITIES.get(likely, "warning")


def _job(labels: Mapping[str, str]) -> dict[str, str]:
    return {"job": f"{{{{ $labels.{labels['job']} }}}}"} if "job" in labels else {}


def _annotations(rule: Rule, labels: Mapping[str, str], measured: str) -> dict[str, str]:
    where = ", ".join(f"{label} {{{{ $labels.{theirs} }}}}" for label, theirs in labels.items())
    found = {
        "summary": rule.summary,
        "description": f"{rule.summary} ({where}). First condition: {{{{ $value | humanize }}}}; measured by: {measured}.",
        "action": rule.action.text if rule.action else "",
        "runbook": rule.runbook,
    }
    return {key: " ".join(text.split()) for key, text in found.items() if text}


def _recorded(catalogue: Catalogue, done: Iterable[Exported]) -> list[Mapped]:
    """Return the groups of recording rules, each signal after those that it is made of."""
    rules: dict[str, Mapped] = {}

    def record(signal: str) -> None:
        if PREFIX + signal in rules:
            return
        for part in catalogue.needs(signal):
            record(part)
        rules[PREFIX + signal] = {"record": PREFIX + signal, "expr": catalogue.definition(signal)}

    for one in done:
        for signal in one.signals:
            record(signal)
    for signal in ("gpu_temperature", "gpu_utilisation", "gpu_memory_share", "job_loss", "job_step_seconds"):
        record(signal)
    for signal in ("job_tokens_per_gpu", "job_billion_tokens_per_day"):
        record(signal)
    if catalogue.paused():
        rules[PAUSED] = {"record": PAUSED, "expr": catalogue.paused()}
    past = {made.name: {"record": made.name, "expr": made.text} for one in done for made in one.recordings}
    return [
        {"name": "rca-signals", "interval": INTERVAL, "rules": [*rules.values(), *throughput(catalogue)]},
        {"name": "rca-usual", "interval": INTERVAL, "rules": list(past.values())},
    ]


def _listed(partly: Iterable[Exported], refused: Iterable[Refused]) -> str:
    """Write what is missing as comments."""
    lines = ["", "# Narrower than the rule (they fire on less), for what was left out:"]
    lines += [_comment(one.rule.id, "; ".join(one.left_out)) for one in partly]
    lines += ["#", "# Not in here, as PromQL or these series cannot say it:"]
    lines += [_comment(one.rule.id, one.why) for one in refused]
    return "\n".join(lines) + "\n"


def _comment(rule: str, text: str) -> str:
    return f"#   {rule}: {' '.join(text.split())}"


class _Dumper(yaml.SafeDumper):
    """Write expressions of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _dump(value: Mapped) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


__all__ = ["Exported", "Refused", "export", "name", "render", "severity"]
