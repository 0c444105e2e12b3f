"""Log lines of all ranks, whoever wrote them: out of files of any size, or out of a server that keeps logs."""

from rca.loglines.files import PATTERNS, LogFile, Notes, find
from rca.loglines.line import LEVELS, Line, Source
from rca.loglines.owners import Naming
from rca.loglines.read import Ends, Logs
from rca.loglines.wanted import ALWAYS, Wanted, spelt

__all__ = [
    "ALWAYS", "LEVELS", "PATTERNS", "Ends", "Line", "LogFile", "Logs", "Naming", "Notes", "Source", "Wanted", "find", "spelt",
]  # fmt: skip
