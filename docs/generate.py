"""Write the pages that follow from the rules: a page a rule, the catalogues of signals, Xids and DCGM names, the graph.

    python -m docs.generate            writes them, and removes pages of rules that are gone
    python -m docs.generate --check    exits with 1 where a page differs

It also fills the block of counters in docs/sources.md and the table of metrics in docs/exporter.md. A test holds the pages against the rules.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from docs import catalogue, log_page, picture
from docs.rule_page import RulePage, cases, index
from rca.ledger.families import FAMILIES
from rca.library import Library
from rca.load import load, phrases, shipped, table

DOCS = Path(__file__).resolve().parent
COUNTERS = "dcgm-exporter counters file: "
_BEGIN, _END = "<!-- counters -->\n```text\n", "```\n"


def pages(library: Library) -> dict[str, str]:
    """Return every generated file by its path below docs."""
    found = cases(DOCS.parent / "scenarios")
    one = RulePage(library, shipped(), DOCS, found)
    written = {f"rules/{rule.id}.md": one.text(rule) for rule in library.rules.values()}
    written["rules/README.md"] = index(library)
    written["rules/graph.svg"] = picture.svg(library)
    written["signals.md"] = catalogue.signals(library)
    tables = {path.stem: [row for _, row in table(path)] for path in sorted((shipped() / "tables").glob("*.csv"))}
    written["xid.md"] = catalogue.xids(library, tables["xid"])
    written["dcgm.md"] = catalogue.aliases(library, tables["dcgm_aliases"])
    written["imports.md"] = catalogue.imports(tables["imports"])
    written["log-templates.md"] = log_page.text(phrases())
    written["logs.md"] = events(tables["events"], (DOCS / "logs.md").read_text(encoding="utf-8"))
    written["sources.md"] = counters(library, (DOCS / "sources.md").read_text(encoding="utf-8"))
    written["exporter.md"] = families((DOCS / "exporter.md").read_text(encoding="utf-8"))
    return dict(sorted(written.items()))


def counters(library: Library, page: str) -> str:
    """Return the page of sources with the lines to add to the counters file of dcgm-exporter."""
    lines = {one.enable.removeprefix(COUNTERS) for one in library.signals.values() if one.enable.startswith(COUNTERS)}
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    return before + begin + "".join(f"{line}\n" for line in sorted(lines)) + end + after


def families(page: str) -> str:
    """Return the page of the exporter with the table of the metrics that it makes of logs."""
    begin, end = "<!-- families -->\n", "<!-- end of families -->\n"
    head = ["| series | type | means |", "|---|---|---|"]
    rows = [f"| `{name}` | {one.type} | {one.help} |" for name, one in sorted(FAMILIES.items())]
    before, _, rest = page.partition(begin)
    return before + begin + "\n".join([*head, *rows, ""]) + end + rest.partition(end)[2]


def events(rows: catalogue.Rows, page: str) -> str:
    """Return the page of logs with the table of events."""
    before, begin, rest = page.partition("<!-- events -->\n")
    _, end, after = rest.partition("\n<!-- end -->\n")
    return before + begin + catalogue.events(rows) + end + after


def stale(written: Mapping[str, str]) -> Iterator[str]:
    """Yield the files that differ from what the rules say, are missing, or belong to no rule."""
    for name, text in written.items():
        path = DOCS / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            yield name
    yield from (name for name in left_over(written))


def left_over(written: Mapping[str, str]) -> list[str]:
    """Return the pages of rules that are gone."""
    found = (path.relative_to(DOCS).as_posix() for path in (DOCS / "rules").glob("*"))
    return sorted(name for name in found if name not in written)


def main(arguments: list[str]) -> int:
    """Write all pages, or with `--check` tell which differ."""
    written = pages(load())
    differing = list(stale(written))
    if "--check" in arguments:
        sys.stderr.writelines(f"docs/{name}: differs from the rules, run make docs\n" for name in differing)
        return 1 if differing else 0
    (DOCS / "rules").mkdir(exist_ok=True)
    for name in left_over(written):
        (DOCS / name).unlink()
    for name, text in written.items():
        (DOCS / name).write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
