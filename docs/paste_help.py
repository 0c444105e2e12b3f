"""Paste the output of `--help` into a page, between `<!-- help: rca ... -->` and the end of the code block after it.

python docs/paste_help.py docs/cli.md           writes the page
python docs/paste_help.py --check docs/cli.md   exits with 1 when the page differs
"""

import re
import sys
from pathlib import Path

import click

from rca.cli import rca

WIDTH = 100
_BLOCK = re.compile(r"<!-- help: (rca(?: [a-z]+)?) -->\n```text\n.*?```\n", re.DOTALL)


def help_of(name: str) -> str:
    """Return what `NAME --help` prints."""
    context = click.Context(rca, info_name="rca", terminal_width=WIDTH, help_option_names=["-h", "--help"])
    words = name.split()[1:]
    if not words:
        return rca.get_help(context)
    command = rca.commands[words[0]]
    return command.get_help(click.Context(command, parent=context, info_name=words[0], terminal_width=WIDTH))


def pasted(page: str) -> str:
    """Return the page with every block filled in anew."""
    return _BLOCK.sub(lambda match: f"<!-- help: {match[1]} -->\n```text\n{help_of(match[1])}\n```\n", page)


def missing(page: str) -> list[str]:
    """Return the commands that the page does not show."""
    shown = {match[1] for match in _BLOCK.finditer(page)}
    return sorted({"rca", *(f"rca {name}" for name in rca.commands)} - shown)


def main(arguments: list[str]) -> int:
    """Paste into the files named, or with `--check` tell whether they differ."""
    stale = 0
    for path in [Path(argument) for argument in arguments if argument != "--check"]:
        page = path.read_text(encoding="utf-8")
        fresh = pasted(page)
        for name in missing(page):
            print(f"{path}: no block for `{name}`, add <!-- help: {name} -->", file=sys.stderr)
            stale += 1
        if fresh != page and "--check" in arguments:
            print(f"{path}: differs from --help, run python docs/paste_help.py {path}", file=sys.stderr)
            stale += 1
        elif fresh != page:
            path.write_text(fresh, encoding="utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
