"""Whose log a file is: the rank, the node and the start of the job that its path tells."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from rca.errors import UsageError

_RANK = re.compile(r"(?:^|[/._-])(?:global_?)?rank[-_.=]?(\d{1,7})(?=\D|$)", re.IGNORECASE)
_TORCHRUN = re.compile(r"(?:^|/)([^/]*)/?attempt_(\d+)/(\d{1,7})/std(?:out|err)\.log")
_ATTEMPT = re.compile(r"(?:^|[/._-])(?:attempt|restart)[-_.]?(\d{1,4})(?=\D|$)", re.IGNORECASE)
_NUMBERED = re.compile(r"(?:^|/)(\d{1,6})\.(?:out|err|log|txt|jsonl?)(?:$|\.)")
_NODE = re.compile(
    r"(?:^|[/._-])((?:node|host|worker|hgx|dgx|gpu|vm|compute)[-_]?[a-z]*\d[a-z\d-]*)(?=[/._]|$)", re.IGNORECASE
)


class Owner(NamedTuple):
    """Who wrote a file, as far as its path tells; `group` is the folder of a launcher that counts ranks of its node alone."""

    rank: str | None = None
    node: str | None = None
    attempt: int = 0
    group: str | None = None


class Naming(NamedTuple):
    """How paths tell ranks: a pattern with the groups `rank`, `node`, `attempt`, or what is usual.

    `first_rank` is added to the numbers that torchrun gives its folders: it counts the ranks of a node from 0.
    """

    pattern: re.Pattern[str] | None = None
    first_rank: int = 0

    def owner(self, path: str) -> Owner:
        """Return whose log a path leads to.

        >>> Naming().owner("logs/node-03/rank_007.log"), Naming().owner("out/12.out").rank
        (Owner(rank='7', node='node-03', attempt=0, group=None), '12')
        >>> Naming().owner("run/none_x1/attempt_1/3/stdout.log")
        Owner(rank='3', node=None, attempt=1, group='none_x1')
        """
        told = self._told(path)
        node = told.get("node") or _last(_NODE, path)
        attempt = told.get("attempt") or _last(_ATTEMPT, path) or "0"
        rank, group = told.get("rank"), None
        if rank is None and (match := _TORCHRUN.search(path)):
            rank, group = str(int(match[3]) + self.first_rank), match[1]
        rank = rank or _last(_RANK, path) or _last(_NUMBERED, path)
        number = str(int(rank)) if rank is not None and rank.isdecimal() else rank
        return Owner(number, node, int(attempt) if attempt.isdecimal() else 0, group)

    def _told(self, path: str) -> dict[str, str | None]:
        match = self.pattern.search(path) if self.pattern is not None else None
        return match.groupdict() if match is not None else {}


def _last(pattern: re.Pattern[str], path: str) -> str | None:
    """Return what a pattern finds closest to the end of a path: `rank-3/rank-4.log` is of rank 4."""
    found = None
    for match in pattern.finditer(path):
        found = match[1]
    return found


def told_apart(owners: Iterable[Owner]) -> list[Owner]:
    """Return the owners with ranks that differ: where several launchers each count from 0, the launcher comes in front.

    >>> told_apart([Owner("3", group="a"), Owner("3", group="b"), Owner("7")])[0].rank
    'a/3'
    """
    owners = list(owners)
    if len({one.group for one in owners if one.group is not None}) < 2:
        return owners
    return [one if one.group is None else one._replace(rank=f"{one.group}/{one.rank}") for one in owners]


def pattern_of(flag: str, text: str) -> re.Pattern[str]:
    """Read a pattern for paths; raises UsageError for what is none, or has none of the groups."""
    example = "(?P<node>[^/]+)/rank-(?P<rank>[0-9]+)"
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise UsageError(
            f"{flag}: {text!r} is no regular expression: {error}, write for example {example!r}"
        ) from error
    if not {"rank", "node", "attempt"} & pattern.groupindex.keys():
        raise UsageError(f"{flag}: {text!r} has no group 'rank', 'node' or 'attempt', write for example {example!r}")
    return pattern
