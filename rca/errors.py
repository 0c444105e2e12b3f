"""What can go wrong, as one small tree.

RcaError                 exit status 1, never raised itself
├── UsageError           2: a flag or argument that cannot work
├── ProblemsError        3: rules, scenario, topology or config files are wrong; carries every problem
└── SourceError          4: the outside world did not answer as it should
"""

import difflib
from collections.abc import Iterable
from typing import NamedTuple


class RcaError(Exception):
    """Stand at the root of every error that a user may see; the command line prints it without a traceback."""

    exit_status = 1


class UsageError(RcaError):
    """A flag or argument that cannot work as given."""

    exit_status = 2


class Problem(NamedTuple):
    """One thing wrong in one place: `place` is `file:line`, a URL or a flag."""

    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class ProblemsError(RcaError):
    """Files are wrong; all their problems at once, in the order of their places."""

    exit_status = 3

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))

    def __reduce__(self) -> tuple[type["ProblemsError"], tuple[tuple[Problem, ...]]]:
        """Travel between processes with the problems, not with their text."""
        return type(self), (self.problems,)


class SourceError(RcaError):
    """A source could not be read: unreachable, refused, too slow, or not what it claims to be."""

    exit_status = 4


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `, did you mean 'x'`, else the list of what is known when it is short, else nothing.

    >>> suggestion("limt", ["limit", "clear"])
    ", did you mean 'limit'"
    >>> suggestion("zzz", ["limit", "clear"])
    ', known are clear, limit'
    """
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f", did you mean '{close[0]}'"
    return f", known are {', '.join(names)}" if 0 < len(names) <= 16 else ""
