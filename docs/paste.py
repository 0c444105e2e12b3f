"""Paste what commands really print into pages, so that no page can lie about it.

    python docs/paste.py docs/cli.md README.md           writes the pages
    python docs/paste.py --check docs/cli.md README.md   exits with 1 where a page differs

A page marks each place with `<!-- run: rca ... -->`, perhaps with `| sed -n 1,9p` at its end, followed by a block of
text.
"""

import re
import shlex
import sys
from pathlib import Path

from click.testing import CliRunner

from rca.cli import rca

ENVIRONMENT = {"COLUMNS": "100"}
_BLOCK = re.compile(r"<!-- run: (rca[^|\n]*?)( \| sed -n (\d+),(\d+)p)? -->\n```text\n.*?```\n", re.DOTALL)


def printed(command: str) -> list[str]:
    """Return the lines that a command prints on stdout."""
    result = CliRunner().invoke(rca, shlex.split(command)[1:], prog_name="rca", env=ENVIRONMENT)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return [line.rstrip() for line in result.stdout.splitlines()]


def pasted(page: str) -> str:
    """Return the page with every block filled in anew; each command runs once."""
    outputs = {command: printed(command) for command in dict.fromkeys(commands(page))}

    def block(match: re.Match[str]) -> str:
        command, pipe, first, last = match.groups()
        lines = outputs[command][int(first) - 1 : int(last)] if pipe else outputs[command]
        shown = "\n".join([f"$ {command}{pipe or ''}", *lines])
        return f"<!-- run: {command}{pipe or ''} -->\n```text\n{shown}\n```\n"

    return _BLOCK.sub(block, page)


def commands(page: str) -> list[str]:
    """Return the commands whose output a page shows."""
    return [match[1] for match in _BLOCK.finditer(page)]


def main(arguments: list[str]) -> int:
    """Paste into the pages named, or with `--check` tell whether they differ."""
    stale = 0
    for path in [Path(argument) for argument in arguments if argument != "--check"]:
        page = path.read_text(encoding="utf-8")
        fresh = pasted(page)
        if fresh != page and "--check" in arguments:
            sys.stderr.write(f"{path}: differs from what the commands print, run python docs/paste.py {path}\n")
            stale += 1
        elif fresh != page:
            path.write_text(fresh, encoding="utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
