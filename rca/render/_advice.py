"""Advice -> text: what cannot fire, what to enable, what to change, each line to be copied alone on its own."""

from collections.abc import Iterator, Sequence

from rca.advice import Advice, Lacking
from rca.plain import counted, stamp, visible
from rca.render._words import listed
from rca.render.text import Page, plainly

KINDS = ("job", "rank", "node", "gpu", "nic", "mount")


def render(advice: Advice, *, width: int = 100, colour: bool = False, ascii_only: bool = False) -> str:
    """Write advice for people, `width` columns wide; what is to be copied is never broken."""
    text = "\n".join(_lines(advice, Page(width, colour))) + "\n"
    return plainly(text) if ascii_only else text


def _lines(advice: Advice, page: Page) -> Iterator[str]:
    yield page.paint(verdict(advice), "green" if advice.fine() else "yellow")
    yield ""
    seen = ", ".join(counted(advice.seen[kind], kind) for kind in KINDS if kind in advice.seen)
    yield from page.prose(f"{stamp(advice.start)} to {stamp(advice.end)}; {seen or 'nothing was seen'}", style="dim")
    dead = [f"{one.rule} ({one.layer}, {one.role}): without {listed(one.missing, 8)}" for one in advice.dead]
    yield from page.section("Can never fire here", dead)
    yield from _enabling([one for one in advice.lacking if not one.there], page)
    useless = [f"{one.signal}: {visible(one.why)}; read by {listed(one.rules)}" for one in advice.lacking if one.there]
    yield from page.section("There, without a series of use", useless)
    yield from page.section("Collection", [visible(one) for one in advice.collection])
    untold = [f"{one.why}: {listed(one.rules, 12)}" for one in advice.unjudged]
    yield from page.section("Could fire, and could not be judged in this window", untold)


def verdict(advice: Advice) -> str:
    """Sum up in one line."""
    able = f"{advice.rules - len(advice.dead)} of {counted(advice.rules, 'rule')} can fire"
    lacking = counted(len(advice.lacking), "signal")
    changes = f"{counted(len(advice.collection), 'thing')} to change in collection"
    rest = "nothing to advise" if advice.fine() else f"{lacking} missing, {changes}"
    return f"{visible(advice.server)}: {able}, {rest}"


def _enabling(lacking: Sequence[Lacking], page: Page) -> Iterator[str]:
    """Yield what to enable: where it is set, each line once, and what it gives."""
    places: dict[str, dict[str, list[Lacking]]] = {}
    for one in lacking:
        where, line = _place(one.enable)
        places.setdefault(where, {}).setdefault(line, []).append(one)
    if places:
        yield ""
        yield page.paint("Missing signals; what to enable", "bold")
    for where, lines in sorted(places.items()):
        yield f"  {where}"
        for line, signals in sorted(lines.items()):
            yield f"    {line}"
            for one in signals:
                yield from page.prose(f"{one.signal} for {listed(one.rules)}", "      ", style="dim")


def _place(enable: str) -> tuple[str, str]:
    """Part what to enable into the place where it is set and the line that is written there.

    >>> _place("dcgm-exporter counters file: DCGM_FI_DEV_X, gauge, X."), _place("node_exporter --collector.mountstats")
    (('dcgm-exporter counters file', 'DCGM_FI_DEV_X, gauge, X.'), ('node_exporter', '--collector.mountstats'))
    """
    where, colon, line = enable.partition(": ")
    if not colon:
        where, _, line = enable.partition(" ")
    return (where, line) if line else ("nothing that is known here", enable or "(no exporter setting is known)")
