"""The catalogues as pages: signals, Xids, and the names of DCGM."""

from collections.abc import Iterator, Mapping, Sequence

from docs.rule_page import NOTE
from docs.words import listed, unit
from rca import promql
from rca.detectors import OneOf, named
from rca.library import Derived, Library, Signal

Rows = Sequence[Mapping[str, str]]


def signals(library: Library) -> str:
    """Write the catalogue of signals, kind by kind."""
    kinds = [kind for kind in library.entities.kinds if any(one.entity == kind for one in library.signals.values())]
    readers = _readers(library)
    intro = (
        f"All {len(library.signals)} signals that rules can read: what each is, where it comes from, the line that "
        "enables it, and who reads it. Queries are tried in this order, a later one fills what those before it left "
        "empty; DCGM names stand in their [old spelling](dcgm.md), newer ones are found too. What a server lacks says "
        "[`rca check --against`](cli.md#rca-check)."
    )
    parts = [
        "# Signals",
        NOTE,
        intro,
        "\n".join(f"- [Of a {kind}](#of-a-{kind}): {library.entities.kinds[kind].summary}" for kind in kinds),
    ]
    for kind in kinds:
        names = sorted(name for name, one in library.signals.items() if one.entity == kind)
        rows = [
            f"| [`{name}`](#{name}) | {_cell(library.signals[name].summary)} | {unit(library.signals[name].unit)} |"
            for name in names
        ]
        parts += [f"## Of a {kind}", "\n".join(["| signal | is | unit |", "|---|---|---|", *rows])]
        parts += [part for name in names for part in _signal(name, library.signals[name], readers.get(name, {}))]
    return "\n\n".join(parts) + "\n"


def _signal(name: str, signal: Signal, readers: Mapping[str, str]) -> Iterator[str]:
    """Write one signal."""
    yield f"### {name}"
    yield f"{signal.summary}. In {unit(signal.unit)}; `{signal.layer}` layer."
    if signal.queries:
        yield "```text\n" + "\n".join(signal.queries) + "\n```"
    if signal.derived is not None:
        yield f"Derived: {_derived(signal.derived)}."
    if signal.enable:
        yield f"Enable: `{signal.enable}`"
    further = list(_further(signal))
    if further:
        yield f"{' '.join(further)}"
    yield f"Read by: {listed([f'[`{rule}`](rules/{rule}.md){how}' for rule, how in sorted(readers.items())]) or 'no rule'}."


def _further(signal: Signal) -> Iterator[str]:
    """Write what else is told of a signal."""
    if len(signal.queries) and signal.combine != "max":
        yield f"Of several series the {signal.combine} counts."
    if signal.valid is not None:
        yield f"What lies outside {signal.valid[0]:g} to {signal.valid[1]:g} is dropped."
    if signal.bits:
        yield f"Bits from 0 up: {', '.join(f'`{bit}`' for bit in signal.bits)}."
    if signal.codes is not None:
        values = ", ".join(f"{number} `{value}`" for number, value in enumerate(signal.codes.values))
        numbers = f"becomes a number: {values}" if values else "is the value, compared as text"
        yield f"Label `{signal.codes.label}` {numbers}."
    if signal.fallback is not None:
        values = ", ".join(f"`{_cell(pattern)}` {value:g}" for pattern, value in signal.fallback.values.items())
        yield f"Where no query yields it, by {signal.fallback.label}: {values}."
    if signal.source:
        yield f"Source: {signal.source.strip().rstrip('.')}."


def _derived(how: Derived) -> str:
    """Write how a signal is made of others."""

    def linked(names: Sequence[str], between: str) -> str:
        return between.join(f"[`{name}`](#{name})" for name in names)

    if how.of is not None:
        return f"the {how.by} of {linked([how.of], '')} over its members"
    text = linked(how.product, " × ") or linked(how.ratio, " / ") or linked(how.sum, " + ")
    text += f" + {linked(how.plus, ' + ')} where known" if how.plus else ""
    return text + (f" − {linked(how.difference, ' − ')} where known" if how.difference else "")


def _readers(library: Library) -> dict[str, dict[str, str]]:
    """Return for each signal the rules that read it, with a note where they read one that is derived from it."""
    found: dict[str, dict[str, str]] = {}
    for rule in library.rules.values():
        direct = {name for leaf in library.conditions(rule) for name in named(leaf)}
        direct |= {load for leaf in library.conditions(rule) if (load := getattr(leaf, "load", None))}
        direct |= {one for edge in rule.causes if edge.gain for one in (edge.gain.of, edge.gain.over) if one}
        for name in sorted(direct & library.signals.keys()):
            found.setdefault(name, {})[rule.id] = ""
        for name in sorted(direct & library.signals.keys()):
            for part in sorted(_parts(library, name) - direct):
                found.setdefault(part, {}).setdefault(rule.id, " (through a derived signal)")
    return found


def _parts(library: Library, name: str) -> set[str]:
    """Return what a signal is made of, over any number of steps."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        signal = library.signals.get(waiting.pop())
        new = set(signal.derived.inputs()) - found if signal is not None and signal.derived is not None else set()
        found |= new
        waiting += sorted(new)
    return found


def xids(library: Library, rows: Rows) -> str:
    """Write the catalogue of Xids, with the rules that read each."""
    read: dict[int, set[str]] = {}
    for rule in library.rules.values():
        for leaf in library.conditions(rule):
            if isinstance(leaf, OneOf) and "xid" in leaf.signal:
                for code in leaf.codes:
                    read.setdefault(int(code), set()).add(rule.id)
    intro = (
        f"The {len(rows)} codes that NVIDIA's driver reports, from `rules/tables/xid.csv`: what NVIDIA's catalogue tells "
        "to do, and how they are read here. The gauge of dcgm-exporter shows the *last* code until the driver or the "
        "exporter restarts, so only a code that is new inside the window counts."
    )
    parts = [
        "# Xid codes",
        NOTE,
        intro,
        "\n".join([
            "| Xid | means | NVIDIA says: at once | then | layer | kind | severity | origin | do | rules |",
            "|--:|---|---|---|---|---|---|---|---|---|",
            *(_xid(row, sorted(read.get(int(row["code"]), ()))) for row in rows),
        ]),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _xid(row: Mapping[str, str], rules: Sequence[str]) -> str:
    told = (row[name] for name in ("nvidia_immediate", "nvidia_investigatory"))
    here = (row[f"engine_{name}"] for name in ("layer", "category", "severity", "origin", "action"))
    links = ", ".join(f"[`{rule}`](rules/{rule}.md)" for rule in rules)
    mnemonic = f" `{row['mnemonic']}`" if row["mnemonic"] else ""
    return f"| {row['code']} | {_cell(row['description'])}{mnemonic} | {' | '.join(map(_cell, [*told, *here]))} | {links} |"


def aliases(library: Library, rows: Rows) -> str:
    """Write the table of DCGM's names, with the signals that read each."""
    reads: dict[str, set[str]] = {}
    for name, signal in library.signals.items():
        for query in signal.queries:
            for metric in promql.metric_names(query):
                reads.setdefault(metric, set()).add(name)
    intro = (
        f"dcgm-exporter writes a metric as its counters file spells it, and DCGM 4.6 renamed many fields. These {len(rows)} "
        "pairs are read as one, from `rules/tables/dcgm_aliases.csv`; one unit of the old name is so many of the new."
    )
    parts = [
        "# DCGM names",
        NOTE,
        intro,
        "\n".join([
            "| old | new | field | factor | note | signals |",
            "|---|---|--:|--:|---|---|",
            *(_alias(row, reads) for row in rows),
        ]),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _alias(row: Mapping[str, str], reads: Mapping[str, set[str]]) -> str:
    names = sorted(reads.get(row["old_name"], set()) | reads.get(row["new_name"], set()))
    links = ", ".join(f"[`{name}`](signals.md#{name})" for name in names)
    cells = [
        f"`{row['old_name']}`",
        f"`{row['new_name']}`",
        row["field_id"],
        row["new_per_old_factor"],
        _cell(row["note"]),
        links,
    ]
    return f"| {' | '.join(cells)} |"


_SYSTEMS = {
    "training": "Values of training in TensorBoard, MLflow and W&B",
    "mlflow": "System metrics of MLflow",
    "wandb": "System metrics of W&B",
    "nvidia_smi": "Columns of nvidia-smi",
    "influx": "Measurements and fields of InfluxDB",
}
_TAKES = {"value": "", "per_step": "a mean per step", "per_second": "a rate", "axis": "the number of the step"}


def imports(rows: Rows) -> str:
    """Write the table of what the names of other systems become."""
    intro = (
        f"What is read of files and servers that are not Prometheus ([how](sources.md#files-of-other-systems)): {len(rows)} "
        "names, from `rules/tables/imports.csv`. A name is a regular expression that fits the whole; its groups become "
        "labels. Of several names of one metric the first that is there counts. A folder of extra rules (`--rules-extra`) "
        "may hold a table of its own, whose rows come first."
    )
    parts = ["# Names of other systems", NOTE, intro]
    for system, title in _SYSTEMS.items():
        parts += [
            f"## {title}",
            "\n".join([
                "| name | metric | labels | times | taken as | written by |",
                "|---|---|---|--:|---|---|",
                *(_import(row) for row in rows if row["system"] == system),
            ]),
        ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _import(row: Mapping[str, str]) -> str:
    factor = "" if row["factor"] == "1" else row["factor"]
    over = f", over {row['axis']}" if row["axis"] else ""
    cells = [
        f"`{_cell(row['name'])}`",
        f"`{row['metric']}`",
        _cell(row["labels"]),
        factor,
        _TAKES[row["takes"]] + over,
        _cell(row["note"]),
    ]
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def events(rows: Rows) -> str:
    """Write the table of events, by id."""
    lines = ["| id | event | level | layer | meaning | told by |", "|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda one: one["event_id"]):
        cells = [
            f"`{row['event_id']}`",
            f"`{row['event']}`",
            *(_cell(row[one]) for one in ("level", "layer", "meaning", "source")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
