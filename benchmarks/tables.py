"""How the figures of an accuracy run are printed."""

from collections.abc import Iterator, Sequence

from benchmarks.scores import Decoy, Outcome, Row, Summary, summarise

HEADS = {
    "tuning": "tuning: strong form, even seeds; thresholds and probabilities were set while looking at these",
    "scoring": "scoring: mild form where there is one, odd seeds; these are the figures that count",
}
TARGETS = {"top-1": 0.92, "top-3": 0.98, "entity": 0.95, "both": 0.85, "Brier": 0.08}
_HEAD = (
    f"{'fault':<26}{'cases':>6}{'top-1':>7}{'top-3':>7}{'entity':>8}{'sure':>7}{'wrong':>7}{'incon.':>8}{'Brier':>7}"
)
_DECOYS = f"{'healthy':<26}{'runs':>6}{'alarms':>7}{'unsettled':>10}  instead"


def tables(outcomes: Sequence[Outcome]) -> str:
    """Return the tables of all splits and kinds of telemetry."""
    blocks = []
    for telemetry in dict.fromkeys(outcome.telemetry for outcome in outcomes):
        for split, head in HEADS.items():
            chosen = [one for one in outcomes if (one.telemetry, one.split) == (telemetry, split)]
            if chosen:
                title = head if telemetry == "full" else f"without {telemetry} · {head}"
                blocks.append("\n".join([title, *lines(summarise(chosen)), one_line(split, telemetry, chosen)]))
    return "\n\n".join(blocks)


def lines(summary: Summary) -> Iterator[str]:
    """Yield one line a fault id, one a decoy, one a rival and one a confusion."""
    yield f"{_HEAD}  instead"
    yield from map(_fault, summary.rows)
    yield _fault(summary.overall)
    if summary.decoys:
        yield _DECOYS
        yield from map(_decoy, summary.decoys)
    for name, (cause, entity, alarms) in summary.rivals.items():
        yield f"rival, {name:<19}{'':>6}{_cause(cause, entity)}{entity:>8.3f}   alarms on {alarms} healthy runs"
    yield from map(_confusion, summary.confusions)


def one_line(split: str, telemetry: str, outcomes: Sequence[Outcome]) -> str:
    """Return the line that sums up a split, targets beside what misses them."""
    summary = summarise(outcomes)
    row = summary.overall
    decoys = sum(decoy.runs for decoy in summary.decoys)
    raised = sum(decoy.alarms for decoy in summary.decoys)
    watched = "full telemetry" if telemetry == "full" else f"without {telemetry}"
    parts = [f"{split} ({watched}): {len(outcomes)} runs"]
    if row.cases:
        parts += [_judged("top-1", row.top1), _judged("top-3", row.top3), _judged("entity", row.entity)]
        parts += [f"wrong {row.wrong:.3f}", f"inconclusive {row.inconclusive:.3f}"]
    if summary.both is not None:
        parts.append(f"{_judged('both', summary.both)} of {summary.doubles}")
    if summary.alarms is not None:
        parts.append(f"{raised} false alarms in {decoys} healthy runs, {summary.alarms:.2f} a day and 500 GPUs")
    brier = f"Brier {summary.brier:.3f}"
    parts.append(brier if summary.brier <= TARGETS["Brier"] else f"{brier} (target {TARGETS['Brier']})")
    return ", ".join(parts)


def quiet(outcomes: Sequence[Outcome], hours: int) -> str:
    """Return what was said of healthy clusters in some hours: a line a scenario, and one for all."""
    summary = summarise(outcomes)
    raised = sum(decoy.alarms for decoy in summary.decoys)
    gpus = sum(outcome.gpu_hours for outcome in outcomes) / hours
    total = f"healthy for {hours} h: {raised} causes in {len(outcomes)} windows, {gpus:,.0f} GPUs (target 0)"
    return "\n".join([_DECOYS, *map(_decoy, summary.decoys), *map(_confusion, summary.confusions), total])


def _confusion(found: tuple[str, int, str]) -> str:
    pair, count, example = found
    return f"confused {count:>4} x  {pair}  ({example})"


def _judged(name: str, value: float) -> str:
    target = TARGETS[name]
    return f"{name} {value:.3f}" if value >= target else f"{name} {value:.3f} (target {target})"


def _cause(cause: float, entity: float) -> str:
    """Return a rival's share of right causes; one that names entities alone has none."""
    return f"{cause:>7.3f}{'':>7}" if cause or not entity else f"{'-':>7}{'':>7}"


def _fault(row: Row) -> str:
    shares = f"{row.top1:>7.2f}{row.top3:>7.2f}{row.entity:>8.2f}{row.sure:>7.2f}{row.wrong:>7.2f}"
    return f"{row.name:<26}{row.cases:>6}{shares}{row.inconclusive:>8.2f}{row.brier:>7.2f}  {row.confused}".rstrip()


def _decoy(decoy: Decoy) -> str:
    return f"{decoy.name:<26}{decoy.runs:>6}{decoy.alarms:>7}{decoy.unsettled:>10}  {decoy.confused}".rstrip()
