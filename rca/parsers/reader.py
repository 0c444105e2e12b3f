"""A training log, block by block, into records; what no dialect understands is counted, and shown by its shape."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import tzinfo
from io import BufferedIOBase

from msgspec.structs import replace

from rca.parsers import frameworks, megatron
from rca.parsers.iterations import BEGIN, Iterations
from rca.parsers.moments import Moments
from rca.parsers.record import Record
from rca.parsers.strain import Strainer, between
from rca.parsers.structured import structured
from rca.parsers.timers import HEADING, Names, TimerBlock, one_line

Parse = Callable[[bytes, Moments], list[Record]]

_ONE_LINE, _NO_TIMERS = b"time (ms) |", (b"time (ms)", b"time (ms) ", b"time (ms)\r")
_READERS: tuple[tuple[bytes, Parse], ...] = (
    (b'{"', structured),
    (b"memory (MB) |", megatron.memory),
    (b"validation loss at", megatron.validation),
    (b"/Rnk: ", megatron.straggler),
    (b" Ranks with ", megatron.straggler),
    (b"checkpoint", megatron.checkpoint),
    (b"] datetime: ", megatron.state),
    (b"exiting program ", megatron.state),
    (b"world size: ", megatron.arguments),
    (b" ....", megatron.arguments),
    (b"error!", megatron.rerun),
    (b"nexpected result ", megatron.rerun),
    (b" samples/sec: ", frameworks.pipeline),
    (b"[Rank 0] step=", frameworks.engine),
    (b"RunningAvgSamplesPerSec=", frameworks.engine),
    (b"Attempted loss scale: ", frameworks.overflow),
    (b"tps: ", frameworks.titan),
    (b"{'", frameworks.trainer),
    (b"Epoch ", frameworks.lightning),
)
"""What a line must hold to be read by whom, in this order; the first that makes something of it counts."""
_SILENT = (b" test set |", b"Attempted loss scale: ")
"""What is understood in a line that says nothing of interest here."""
_DOTS = (b" ...............", b"_parallel_size ............", b"log_interval ............", b" ............ {")
"""Arguments are listed with dots between name and value; most of them are of no interest here."""
LITERALS = (
    BEGIN, b"(ms)", b" ....", b"checkpoint", b"memory (MB) |", b"validation loss at", b"] datetime: ", b"exiting program a",
    b"using world size: ", b"error!", b"nexpected result ", b" Ranks with ", b"/Rnk: ", b"log_dist] [Rank 0] step=",
    b"RunningAvgSamplesPerSec=", b" step. Attempted", b" iter time (s): ", b"tps: ", b"Epoch ",
)  # fmt: skip
"""One of these is in every line of interest that is no JSON. Few of them are found much sooner than many."""
_ENTRY = b"..: "
_RARE = (b"{",)
BLOCK, LONGEST = 1 << 20, 16 << 20
_NAMED = re.compile(r"(?<![a-z])rank[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_AS_SHAPE = bytes.maketrans(b"0123456789", b"##########")
_LONGEST = 160
_SHAPES, _SAMPLED, _PER_BLOCK = 200, 5_000, 64
OTHERS = "(other shapes)"


class Reader:
    """Reads one log; what spans blocks, such as timers after a heading, is kept between them.

    `rank` is that of all lines that name none, where the file tells it. `zone` is that of times that name none; None
    stands for the zone of the machine that reads.
    """

    def __init__(self, rank: str | None = None, zone: tzinfo | None = None, strainer: Strainer | None = None) -> None:
        self.lines = 0
        self.known = 0
        self.sampled = 0
        self.shapes: Counter[str] = Counter()
        self._rank = rank
        self._moments = Moments(zone)
        self._iterations = Iterations(self._moments)
        self._strainer = strainer or new_strainer()
        self._names = Names()
        self._timers: TimerBlock | None = None
        self._after_step = False

    @property
    def unknown(self) -> int:
        """Return how many lines no dialect understood."""
        return self.lines - self.known

    def take(self, block: bytes | bytearray) -> list[Record]:
        """Read complete lines and return what they say, in their order.

        >>> reader = Reader()
        >>> (
        ...     [one.kind for one in reader.take(b"hello 7\\n iteration 1/ 9 | lm loss: 2.0 |\\ntime (ms)\\n")],
        ...     reader.unknown,
        ... )
        (['step'], 1)
        >>> reader.shapes
        Counter({'hello #': 1})
        """
        count, lines = self._strainer.strain(block)
        known: set[int] = set()
        records: list[Record] = []
        done = 0
        view = memoryview(block)
        texts = [view[begin:end].tobytes() for begin, end in lines]
        for (begin, end), line, step in zip(lines, texts, self._iterations.read(texts), strict=True):
            if begin < done:
                continue  # stood below a heading
            if done < begin:
                self._after_step = False
                if self._timers is not None:
                    self._timers.look(block, (done, begin), known)
            before = self._timers
            if before is None and step is not None:
                self._after_step = True
                records.append(step)
                known.add(begin)
                done = end + 1
                continue
            if self._read(line, step, records):
                known.add(begin)
            done = end + 1
            if self._timers is not before and self._timers is not None:
                done = self._timers.run(block, done, known)
        if done < len(block):
            self._after_step = False
            if self._timers is not None:
                self._timers.look(block, (done, len(block)), known)
        self.lines += count
        self.known += len(known)
        self._sample(block, known)
        return self._ranked(records)

    def flush(self) -> list[Record]:
        """Return what an open block of timers says: the log has ended, or rests."""
        records: list[Record] = []
        self._close(records)
        return self._ranked(records)

    def _ranked(self, records: list[Record]) -> list[Record]:
        return [one if one.rank else replace(one, rank=self._rank) for one in records] if self._rank else records

    def _close(self, records: list[Record]) -> None:
        if self._timers is not None:
            records += self._timers.records()
            self._timers = None

    def _read(self, line: bytes, step: Record | None, records: list[Record]) -> bool:
        """Add what a line says, which is a step or anything else, and say whether it is understood."""
        timers = self._timers
        if timers is not None and _ENTRY in line and timers.take(line):
            return True
        if step is not None:
            if timers is not None:
                self._close(records)
            self._after_step = True
            records.append(step)
            return True
        after_step, self._after_step = self._after_step, False
        if timers is not None and timers.take(line):
            return True
        if after_step and line.endswith(_NO_TIMERS):
            return True
        if HEADING in line:
            self._close(records)
            self._timers = TimerBlock(self._names)
            return True
        at = line.find(_ONE_LINE)
        if at >= 0:
            time = self._moments.find(line, 0, at)
            records += [replace(one, time=time) for one in one_line(line, at)]
            return True
        found = self._others(line)
        records += found or []
        return found is not None

    def _others(self, line: bytes) -> list[Record] | None:
        for text, parse in _READERS:
            if text in line:
                found = parse(line, self._moments)
                if found:
                    return found
        silent = any(text in line for text in _SILENT) or (b"...: " not in line and any(text in line for text in _DOTS))
        return [] if silent else None

    def _sample(self, block: bytes | bytearray, known: set[int]) -> None:
        """Take down the shapes of some lines that were not understood."""
        if self.sampled >= _SAMPLED:
            return
        for line in between(known, block, _PER_BLOCK):
            self.sampled += 1
            shape = shape_of(line)
            if shape not in self.shapes and len(self.shapes) >= _SHAPES:
                shape = OTHERS
            self.shapes[shape] += 1


def shape_of(line: bytes) -> str:
    """Return a line without what differs from one to the next: digits become `#`.

    >>> shape_of(b"[rank12] step 0.25 of 300, took 7ms\\r")
    '[rank#] step #.# of #, took #ms'
    """
    text = line[:_LONGEST].strip().translate(_AS_SHAPE)
    while b"##" in text:
        text = text.replace(b"##", b"#")
    return text.decode("utf-8", errors="replace")


def rank_of(name: str) -> str | None:
    """Return the rank that a file's name tells.

    >>> rank_of("rank_12.log"), rank_of("worker-rank3.out"), rank_of("train.log"), rank_of("ranks.log")
    ('12', '3', None, None)
    """
    match = _NAMED.search(name)
    return str(int(match[1])) if match else None


def new_strainer() -> Strainer:
    """Return what finds the lines that may say something: one serves any number of readers of one thread."""
    return Strainer(_RARE, LITERALS)


def blocks(file: BufferedIOBase, size: int = BLOCK) -> Iterator[bytearray]:
    """Yield a file in blocks of complete lines, of about so many bytes; the last may lack its end, and a line too long is
    cut.

    It is the same array each time, whose memory stays in the processor's cache: it holds until the next is asked for.

    >>> from io import BytesIO
    >>> [bytes(block) for block in blocks(BytesIO(b"one\\ntwo\\nthr"))]
    [b'one\\ntwo\\nthr']
    """
    block = bytearray(file.read(size))
    while block:
        if not block.endswith(b"\n"):
            block += file.readline(LONGEST)
        yield block
        del block[size:]
        del block[file.readinto(block) :]
