"""The sentences that every format for people shares: verdict, times, members, and strings made safe to show."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from rca.model import (
    Cause,
    EntityRef,
    Evidence,
    FindingRef,
    JobSymptom,
    LastWords,
    Link,
    NotChecked,
    Progress,
    Quote,
    Report,
)
from rca.plain import counted, lasting, lowered, percent, quantity, significant, times, visible

LIKELY = 0.5
DETAILED = 3
FEW = 5
"""Of so many ranks a report for people tells the last words, and of so many kinds of last lines how often they came."""
_NUMBERS = re.compile(r"\d+")
MOST_JOBS = 8
"""Of so many jobs a report for people tells how far they are."""


def safe(report: Report) -> Report:
    """Return the report with every string made visible; its queries stay on one line and stay valid."""
    return msgspec.convert(_safe(msgspec.to_builtins(report)), Report)


def _safe(value: object) -> object:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {_safe(key): one_line(item) if key == "query" else _safe(item) for key, item in value.items()}
    return [_safe(item) for item in value] if isinstance(value, list) else value


def one_line(query: object) -> object:
    """Put a query that was written over several lines on one.

    >>> one_line("sum(\\n  x\\n)")
    'sum(x)'
    """
    if not isinstance(query, str):
        return _safe(query)
    line = ""
    for part in filter(None, map(str.strip, query.split("\n"))):
        line += part if not line or line.endswith("(") or part.startswith(")") else f" {part}"
    return visible(line)


def moment(stamp: str) -> datetime | None:
    """Read an RFC 3339 time as UTC; None where it is not one."""
    try:
        return datetime.fromisoformat(stamp).astimezone(UTC)
    except ValueError:
        return None


def clock(stamp: str, report: Report) -> str:
    """Write a time of the report: the time of day alone on the day on which its window ends, in UTC."""
    at, end = moment(stamp), moment(report.window.end)
    if at is None:
        return stamp or "an unknown time"
    return f"{at:%H:%M:%S}" if end is not None and at.date() == end.date() else f"{at:%Y-%m-%d %H:%M:%S}"


def span(report: Report) -> str:
    """Write the window with its date, and the time between samples."""
    start, end = moment(report.window.start), moment(report.window.end)
    step = f"a sample every {quantity(report.window.step_seconds, 'seconds').replace('.0 s', ' s')}"
    if start is None or end is None:
        return f"{report.window.start} to {report.window.end}, {step}"
    until = f"{end:%H:%M:%S}" if start.date() == end.date() else f"{end:%Y-%m-%d %H:%M:%S}"
    return f"{start:%Y-%m-%d %H:%M:%S} to {until} UTC, {step}"


def listed(words: Sequence[str], most: int = 6) -> str:
    """Join words for a sentence, and say how many were left out."""
    shown = list(words[:most]) + ([f"{len(words) - most:,} more"] if len(words) > most else [])
    return shown[0] if len(shown) == 1 else " and ".join((", ".join(shown[:-1]), shown[-1])) if shown else ""


def ended(sentence: str) -> str:
    """Make a sentence: a capital at its start, a stop at its end; nothing of nothing.

    >>> ended("explains 3 findings")
    'Explains 3 findings.'
    """
    stop = "" if not sentence or sentence.endswith((".", "!", "?")) else "."
    return f"{sentence[:1].upper()}{sentence[1:]}{stop}"


def getting_on(one: Progress) -> str:
    """Say how far a job is; nothing where only its ranks or GPUs are known.

    >>> getting_on(Progress(job="a", at="", step=12340, target_step=100000, eta_seconds=273600.0, loss=2.314))
    'a: step 12,340 of 100,000, about 3 d 4 h to go, loss 2.314'
    """
    parts = [] if one.step is None else [f"step {one.step:,}"]
    parts = [f"{part} of {one.target_step:,}" for part in parts] if one.target_step is not None else parts
    if one.eta_seconds:
        parts.append(f"about {lasting(one.eta_seconds)} to go")
    if one.loss is not None:
        parts.append(f"loss {quantity(one.loss, 'loss')}")
    if one.tokens_per_gpu_second is not None:
        parts.append(f"{significant(one.tokens_per_gpu_second)} tokens/GPU/s")
    return f"{one.job}: {', '.join(parts)}" if parts else ""


def course(report: Report) -> list[str]:
    """Say how far the first jobs are, a line each, and of how many more that is known."""
    lines = [line for one in report.progress if (line := getting_on(one))]
    return lines[:MOST_JOBS] + ([f"{counted(len(lines) - MOST_JOBS, 'more job')}"] if len(lines) > MOST_JOBS else [])


def name(entity: EntityRef) -> str:
    """Name an entity; a job is named by its label alone."""
    return f"job {entity.labels['job']}" if entity.kind == "job" and "job" in entity.labels else str(entity)


def ailment(symptom: JobSymptom, report: Report) -> str:
    """Say what ails a job."""
    since = f" since {clock(symptom.since, report)}" if symptom.since else ""
    slower = f"{times(symptom.slowdown)} slower" if symptom.slowdown else "slow"
    needs = " than its work needs" if symptom.slowdown else ""
    phrases = {
        "slow_onset": f"is {slower}{since}",
        "slow_always": f"is {slower}{needs}, for as long as was looked at",
        "stalled": f"makes no steps{since}",
        "crashed": f"has crashed{since.replace(' since ', ' at ')}",
        "numeric": f"has a loss or gradients that are not right{since}",
        "none": "shows no symptom",
    }
    return f"job {symptom.job} {phrases[symptom.symptom]}"


def ailments(report: Report) -> str:
    """Say what ails the jobs that are ill; the empty string when none is."""
    return listed([ailment(symptom, report) for symptom in report.symptoms if symptom.symptom != "none"], most=3)


def accusation(cause: Cause) -> str:
    """Name a cause on its entity with its probability."""
    return f"{cause.cause} on {name(cause.entity)} ({percent(cause.probability)})"


def verdict(report: Report) -> str:
    """Say in one sentence what was found, or that nothing was, or that it cannot be told."""
    if report.status == "causes_found":
        return _found(report)
    return _healthy(report) if report.status == "healthy" else _inconclusive(report)


def _found(report: Report) -> str:
    known = [cause for cause in report.causes if cause.cause != "unknown"]
    likely = [cause for cause in known if cause.probability >= LIKELY] or known[:1]
    effect = ailments(report)
    likely = [cause for cause in likely if not (effect and cause.standing)]
    if len(likely) > 1:
        parts = [f"{counted(len(likely), 'cause')}: {listed([accusation(cause) for cause in likely], most=3)}"]
    else:
        parts = [
            accusation(cause) + (f": {lowered(cause.summary.strip().rstrip('.'))}" if cause.summary else "")
            for cause in likely
        ]
    return "; ".join([*parts, effect or "no job shows a symptom yet", *_besides(report)])


def _inconclusive(report: Report) -> str:
    why = ailments(report) or "too little was seen to judge, the warnings say what"
    guesses = [accusation(cause) for cause in report.causes if cause.cause != "unknown" and not cause.standing]
    where = [name(one.entity) for one in report.causes if one.cause == "unknown" and one.entity.kind != "job"]
    best = f"the best guess is {guesses[0]}" if guesses else "there is no candidate"
    best = f"look at {where[0]}" if where and not guesses else best
    said = f"inconclusive: {why}, and no cause is as likely as {percent(LIKELY)}; {best}"
    return "; ".join([said, *_besides(report)])


def _besides(report: Report) -> list[str]:
    """Name the faults that are there, and explain none of the trouble."""
    there = [accusation(cause) for cause in report.causes if cause.standing and cause.probability >= LIKELY]
    return [f"besides, and not the reason: {listed(there, most=3)}"] if there and ailments(report) else []


def _healthy(report: Report) -> str:
    jobs = f"in job {listed(report.jobs)}" if len(report.jobs) == 1 else f"in {len(report.jobs):,} jobs"
    where = jobs if report.jobs else "(no training job was seen)"
    unchecked = counted(len(report.not_checked), "rule")
    return f"healthy: nothing wrong {where}" + (
        f", as far as it can be seen ({unchecked} could not be checked)" if report.not_checked else ""
    )


def crowd(link: Link) -> str:
    """Say who shows a link of a chain: one entity, or how many of those that could be seen."""
    share = f"{link.members:,} of {counted(link.of, link.kind or link.entity.kind)}"
    if link.members > 1:
        return f"{share} ({name(link.entity)})"
    return f"{name(link.entity)} ({share})" if link.of > 1 else name(link.entity)


def gathered(finding: FindingRef) -> str:
    """Say on whom a finding was made."""
    return f"{name(finding.entity)}, {finding.members:,} times" if finding.members > 1 else name(finding.entity)


def measured(evidence: Evidence) -> str:
    """Write what was measured, and what it should be."""
    if evidence.text:
        return f"{evidence.signal}, {evidence.text}"
    expected = f", expected {evidence.expected}" if evidence.expected else ""
    return f"{evidence.signal} {quantity(evidence.value, evidence.unit)}{expected}"


def quoted(quote: Quote, report: Report) -> str:
    """Write a line of a log as people read it: when, who, what, where."""
    who = f" rank {quote.rank}" if quote.rank else ""
    return f"{clock(quote.time, report)}{who}: {quote.text} ({quote.file})"


def last_words(report: Report) -> list[tuple[str, list[str]]]:
    """Return headings with lines below: the last words of the ranks that causes name, or that fell silent first, and how
    the others ended, counted by what their last line says.
    """
    named = {(job, cause.entity.labels.get("rank")) for cause in report.causes for job in cause.jobs}
    on = {cause.entity.labels.get("node") for cause in report.causes} - {None, ""}
    shown = [one for one in report.last_words if (one.job, one.rank) in named][:FEW]
    shown = shown or [one for one in report.last_words if one.node in on][:FEW] or report.last_words[:1]
    told = []
    for one in shown:
        silent = f", {one.silent_seconds:,.0f} s before the last" if one.silent_seconds >= 1.0 else ""
        place = f"rank {one.rank}" + (f" on {one.node}" if one.node else "")
        lines = [f"{clock(line.time, report)} {line.text}" for line in one.lines]
        told.append((f"{place}: silent since {clock(one.at, report)}{silent}", lines))
    rest: dict[str, list[LastWords]] = {}
    for one in report.last_words:
        if one not in shown:
            rest.setdefault(_NUMBERS.sub("#", one.lines[-1].text), []).append(one)
    groups = sorted(rest.values(), key=len, reverse=True)
    for alike in groups[:FEW]:
        last = alike[-1]
        who = f"rank {last.rank}" if len(alike) == 1 else f"{len(alike):,} more ranks, such as {last.rank}"
        told.append(
            (f"{who}: silent since {clock(last.at, report)}", [f"{clock(last.at, report)} {last.lines[-1].text}"])
        )
    if left := sum(map(len, groups[FEW:])):
        told.append((f"{counted(left, 'more rank')} with other last lines, in the JSON report", []))
    return told


def detailed(position: int, cause: Cause) -> bool:
    """Tell whether a cause, counted from 1, deserves its chain and its evidence."""
    return position <= DETAILED or cause.probability >= LIKELY


def weight(cause: Cause) -> str:
    """Say what a cause explains and whom it holds up; the empty string when neither is known."""
    parts = [f"explains {counted(cause.explains, 'finding')}"] if cause.explains else []
    parts += ["holds up no job"] if cause.standing else []
    if cause.impact.ranks:
        parts.append(f"holds up {counted(cause.impact.ranks, 'rank')} of {listed(cause.jobs) or 'no known job'}")
    if cause.impact.slowdown:
        parts.append(f"a step takes {times(cause.impact.slowdown)} as long")
    return ", ".join(parts)


def _unjudged(rule: NotChecked) -> str:
    """Say on which suspect a rule could not be judged, the empty string where it could be on none."""
    if rule.entity is None:
        return ""
    among = f"{counted(rule.members, 'suspect')} of " if rule.members > 1 else ""
    return f" on {among}{name(rule.entity)}"


def enabling(not_checked: Iterable[NotChecked]) -> dict[str, list[str]]:
    """Group the rules that could not be checked by what to enable, each such line once, most rules first.

    Under the empty string stand rules that lack a signal which nobody knows how to enable, with the signals.
    """
    groups: dict[str, list[str]] = {}
    for rule in not_checked:
        lines = [line.strip() for line in rule.enable.split("; ") if line.strip()]
        for line in lines or [""]:
            without = f" (without {listed(rule.missing)})" if rule.missing and not lines else ""
            groups.setdefault(line, []).append(f"{rule.rule}{_unjudged(rule)}{without}")
    return dict(sorted(groups.items(), key=lambda item: (item[0] == "", -len(item[1]), item[0])))
