"""What the parts of a line are called, and the one form in which each comes out.

A pattern may name a group twice, in two alternatives, by an underscore behind the second: `rank` and `rank_`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal

from rca.errors import suggestion

_ADDRESS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_TORCH = (
    r"(?:\[rank(?P<rank>\d{1,7})\]:(?:\[[^\]\n]{1,120}\] ?){0,3}?)?"
    r"(?:\[(?:PG (?:ID \d{1,9} PG GUID )?(?P<group>\w{1,80})(?: ?\((?P<group_name>[^()]{1,80})\))? )?"
    r"Rank (?P<group_rank>\d{1,7})\] )?"
)
_LINE = (
    r"^(?:\d{4}-\d\d-\d\dT\S{10,36} std(?:out|err) [FP] )?(?:(?=[\w.-]{0,63}\d)[a-z][\w.-]{1,63}+: )?"
    r"(?:\[rank(?P<rank>\d{1,7})\]:? ?|\[[a-z]{1,20}\d{1,4}\]:|\d{1,7}: )?"
)
PIECES: Mapping[str, tuple[str, str]] = {
    "line": (_LINE, "the beginning of a line, with what containers and launchers put there: `rank`"),
    "pci": (rf"(?P<pci>{_ADDRESS})", "a PCI address, as `pci`"),
    "xid": (rf"NVRM: Xid \((?:PCI:)?(?P<pci>{_ADDRESS})\): ", "the head of an Xid, before its code"),
    "xid_process": (
        r"(?:, pid=(?P<pid>\d{1,10}+))?+(?:, name=(?P<process>[^,<\s]{1,64}+))?+",
        "what may stand behind the code of an Xid: `pid` and `process`",
    ),
    "torch": (
        _TORCH,
        "what PyTorch writes before a message of its communicators: `rank`, `group`, `group_name`, `group_rank`",
    ),
}
"""Parts of expressions that many patterns share, written `%{name}`, and what each is."""
_PIECE = re.compile(r"%\{(\w*)\}")
_PCI = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?")
_NUMBER = re.compile(r"([-+]?)0*([0-9]+)")
_SECONDS = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_SIGNALS = {
    "sighup": "1", "hangup": "1", "sigint": "2", "interrupt": "2", "sigabrt": "6", "aborted": "6", "sigbus": "7",
    "bus error": "7", "sigfpe": "8", "floating point exception": "8", "sigkill": "9", "killed": "9", "sigusr1": "10",
    "user defined signal 1": "10", "sigsegv": "11", "segmentation fault": "11", "sigusr2": "12",
    "user defined signal 2": "12", "sigpipe": "13", "broken pipe": "13", "sigterm": "15", "terminated": "15",
}  # fmt: skip
"""Signals of Linux on x86 and ARM, as `strsignal` and `signal.h` spell them (signal(7))."""


def number(text: str) -> str:
    """Return a whole number without leading zeros; what is none stays as it is.

    >>> number("007"), number("-0"), number("x")
    ('7', '0', 'x')
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    return match[2] if match[2] == "0" or match[1] != "-" else f"-{match[2]}"


def pci(text: str) -> str:
    """Return a PCI address as exporters of GPUs tell it, in small letters: domain of eight digits, with a function.

    >>> pci("0000:3B:00"), pci("18:00.0"), pci("00000000:86:00.0")
    ('00000000:3b:00.0', '00000000:18:00.0', '00000000:86:00.0')
    """
    match = _PCI.fullmatch(text)
    if match is None:
        return text.lower()
    return f"{match[1] or '':0>8}:{match[2]}:{match[3]}.{match[4] or '0'}".lower()


def signal(text: str) -> str:
    """Return the number of a signal, however it is named.

    >>> signal("Bus error"), signal("SIGTERM"), signal("09")
    ('7', '15', '9')
    """
    return _SIGNALS.get(text.lower(), number(text))


def numbers(text: str) -> str:
    """Return a list of numbers without leading zeros.

    >>> numbers("1, 012")
    '1,12'
    """
    return ",".join(number(one.strip()) for one in text.split(","))


def milliseconds(text: str) -> str:
    """Return seconds as milliseconds.

    >>> milliseconds("1800"), milliseconds("0.5")
    ('1800000', '500')
    """
    return str(int(Decimal(text) * 1000)) if _SECONDS.fullmatch(text) else text


def plain(text: str) -> str:
    """Return text as it is, without space around it."""
    return text.strip()


GROUPS: Mapping[str, tuple[Callable[[str], str], str]] = {
    "rank": (number, "the rank in the whole job"),
    "group_rank": (number, "the rank inside its communicator, which is another number in all but the one of all ranks"),
    "local_rank": (number, "the rank inside its node"),
    "waited_for": (numbers, "the ranks that are waited for, or named as missing: `1,12`"),
    "noticed_by": (number, "the rank that noticed the failure first"),
    "joined": (number, "how many ranks came"),
    "wanted": (number, "how many ranks there should be"),
    "group": (plain, "the communicator, by its number or unique name"),
    "group_name": (plain, "the communicator, by what it is for"),
    "sequence": (number, "the number of the operation inside its communicator"),
    "last_enqueued": (number, "the last operation of the communicator that this rank has launched"),
    "last_completed": (number, "the last operation of the communicator that has ended on this rank"),
    "operation": (plain, "the operation: `ALLREDUCE`"),
    "limit_ms": (number, "how long it may take, in milliseconds"),
    "limit_s": (milliseconds, "the same in seconds; comes out as `limit_ms`"),
    "ran_ms": (number, "how long it took, in milliseconds"),
    "ran_s": (milliseconds, "the same in seconds; comes out as `ran_ms`"),
    "status": (number, "the number of an error"),
    "peer": (plain, "the other end of a connection"),
    "server": (plain, "a server of a file system"),
    "node": (plain, "a host"),
    "nic": (plain, "a network device"),
    "port": (number, "the port of a network device or switch"),
    "link": (number, "the link of a GPU or switch"),
    "disk": (plain, "a block device or file system"),
    "pci": (pci, "a PCI address, as `00000000:3b:00.0`"),
    "xid": (number, "the code of an Xid"),
    "sxid": (number, "the code of an SXid"),
    "nvswitch": (number, "a switch between GPUs as the driver counts"),
    "gpu": (number, "a GPU as the driver counts"),
    "cuda_device": (number, "a GPU as the process counts, which may be another number"),
    "pid": (number, "the number of a process"),
    "process": (plain, "the name of a process"),
    "exit_code": (number, "how a process ended; below 0: by that signal"),
    "signal": (signal, "the number of a signal, whether the line names or numbers it"),
    "exception": (plain, "the class of an exception"),
    "error": (plain, "an error in the words of the line"),
    "path": (plain, "a file or folder"),
    "iteration": (number, "a training step"),
    "job": (plain, "a job of a scheduler"),
    "task": (plain, "tasks of a scheduler's job: `0-2,5`"),
    "pod": (plain, "a pod or container"),
}
"""Every group that a pattern may have: how its text is written out, and what it is."""
_OUT = {"limit_s": "limit_ms", "ran_s": "ran_ms"}


def written_out(expression: str) -> str:
    """Return an expression with its pieces in full; raises ValueError for one that there is not.

    >>> written_out("a%{pci}")[:9]
    'a(?P<pci>'
    """
    unknown = [name for name in _PIECE.findall(expression) if name not in PIECES]
    if unknown:
        raise ValueError(f"unknown piece '%{{{unknown[0]}}}'{suggestion(unknown[0], PIECES)}")
    return _PIECE.sub(lambda match: PIECES[match[1]][0], expression)


def name_of(group: str) -> str:
    """Return which group is meant: underscores behind it only tell two of one name apart."""
    return group.rstrip("_")


def told(found: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Return what groups say, each under its name and in its one form; the first of one name that says anything counts.

    In PyTorch's communicator 0, that of all ranks, the number inside it is the rank.

    >>> told([("rank", None), ("rank_", "03"), ("ran_s", "1800")])
    {'rank': '3', 'ran_ms': '1800000'}
    """
    values: dict[str, str] = {}
    for group, text in found:
        name = name_of(group)
        out = _OUT.get(name, name)
        if text and out not in values and (value := GROUPS[name][0](text)):
            values[out] = value
    if values.get("group") == "0" and "group_rank" in values:
        values.setdefault("rank", values["group_rank"])
    return values
