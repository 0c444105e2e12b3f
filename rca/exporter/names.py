"""Whose log a file is: the job and the rank that its path tells."""

import re
from typing import NamedTuple

from rca.errors import UsageError

_RANK = re.compile(r"(?:^|[/._-])(?:global_)?rank[-_.]?(\d{1,7})(?=\D|$)", re.IGNORECASE)
_TORCHRUN = re.compile(r"/attempt_\d+/(\d{1,7})/std(?:out|err)\.log$")
_NAMED = r"(?P<job>[^/]+)/rank-(?P<rank>\d+)\.log"


class Owner(NamedTuple):
    """The job that a log belongs to, and its rank where that is known."""

    job: str
    rank: str | None


class Naming(NamedTuple):
    """How paths tell jobs and ranks.

    `job` is the job where the path tells none. `pattern` may hold the groups `job` and `rank`. `first_rank` is added to
    the numbers that torchrun gives its folders: it counts the ranks of a node from 0.
    """

    job: str = "default"
    pattern: re.Pattern[str] | None = None
    first_rank: int = 0

    def owner(self, path: str) -> Owner:
        """Return whose log a path leads to.

        >>> Naming().owner("logs/rank_007.log"), Naming("a", first_rank=8).owner("run/attempt_0/3/stdout.log")
        (Owner(job='default', rank='7'), Owner(job='a', rank='11'))
        >>> Naming(pattern=re.compile(r"(?P<job>[^/]+)/w(?P<rank>[0-9]+)")).owner("/logs/llama/w3.out")
        Owner(job='llama', rank='3')
        """
        found = self.pattern.search(path) if self.pattern is not None else None
        told = found.groupdict() if found is not None else {}
        job, rank = told.get("job") or self.job, told.get("rank")
        if rank is None and (match := _RANK.search(path)):
            rank = match[1]
        if rank is None and (match := _TORCHRUN.search(path)):
            return Owner(job, str(int(match[1]) + self.first_rank))
        return Owner(job, str(int(rank)) if rank is not None and rank.isdecimal() else rank)


def pattern_of(flag: str, text: str) -> re.Pattern[str]:
    """Read a pattern for paths; raises UsageError for what is none, or names neither a job nor a rank."""
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise UsageError(f"{flag}: {text!r} is no regular expression: {error}, write for example {_NAMED!r}") from error
    if not {"job", "rank"} & pattern.groupindex.keys():
        raise UsageError(f"{flag}: {text!r} has neither a group 'job' nor 'rank', write for example {_NAMED!r}")
    return pattern
