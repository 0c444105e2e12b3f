"""A log-line template as people write it: one file `rules/logs/<id>.yaml` a template."""

import re
from typing import Literal

from rca.library import Written
from rca.phrases.groups import written_out

Part = Literal["root", "echo", "confirmation"]
"""What a line can say of a failure: see `Template`."""
About = Literal["rank", "gpu", "node", "nic", "job"]


class Pattern(Written, frozen=True, kw_only=True):
    """One wording of a line.

    `mark` is a piece that every such line holds as it stands here; only lines that hold it are looked at. `expression`
    is a regular expression of Python's `re`, searched in the line; its named groups are those of `groups.GROUPS`, and
    `%{name}` stands for one of `groups.PIECES`. `gives` are groups that the wording says without writing them. `lines` is how many lines it reads, from that of the
    mark on.
    """

    mark: str
    expression: str
    gives: dict[str, str | int] = {}
    lines: int = 1

    def compiled(self) -> re.Pattern[bytes]:
        """Return what is searched; raises re.error, or ValueError for a piece that there is not."""
        return re.compile(written_out(self.expression).encode(), re.MULTILINE)


class Example(Written, frozen=True, kw_only=True):
    """A line that must be found, and all groups that must be found in it, with their values."""

    line: str
    groups: dict[str, str | int] = {}


class Template(Written, frozen=True, kw_only=True):
    """Lines that say one thing.

    `role: root` means that what the line speaks of may be where a failure began; `echo`, that it began elsewhere and
    this names who noticed; `confirmation`, that it backs what is found otherwise and accuses nobody by itself. `entity`
    is the kind of thing that it speaks of. `fatal` says that the process that writes it, or the one that it names, ends
    by it. `event` is the name in `tables/events.csv` that a structured log has for the same. A line that several
    templates fit is given to the one that stands `instead_of` the others; `general` ones give way to all that are not.
    """

    id: str
    summary: str
    role: Part
    entity: About
    patterns: tuple[Pattern, ...]
    examples: tuple[Example, ...]
    source: str
    event: str = ""
    fatal: bool = False
    general: bool = False
    instead_of: tuple[str, ...] = ()
    counter_examples: tuple[str, ...] = ()

    def before(self, other: "Template") -> bool:
        """Say whether a line that both fit is this one's."""
        return other.id in self.instead_of or (other.general and not self.general and self.id not in other.instead_of)


PARTS: dict[Part, str] = {
    "root": "what it speaks of may be where a failure began",
    "echo": "it began elsewhere, this names who noticed",
    "confirmation": "it backs what is found otherwise, and accuses nobody by itself",
}
"""The roles, in words."""
