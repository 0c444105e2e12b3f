"""A training log, block by block, into records; what no dialect understands is counted, and shown by its shape."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import tzinfo
from typing import BinaryIO

from rca.parsers import frameworks, megatron
from rca.parsers.iterations import Iterations
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
_DOTS = b" ............"
"""Arguments are listed with dots between name and value; most of them are of no interest here."""
LITERALS = (
    HEADING, b"saved checkpoint from", b"saving checkpoint at", b"loaded checkpoint from",
    b"loading checkpoint from", b"loading distributed checkpoint", b"loading release checkpoint", b"checkpoint\tIteration:",
    b"Finished saving the checkpoint", b"Saving the checkpoint", b"Saving a full checkpoint", b"Loading the checkpoint from",
    b"Finished loading the checkpoint", b"Saving model checkpoint", b"exiting program at", b"exiting program after",
    b"[after megatron is initialized]", b"[before the start of training step]", b"[after training is done]",
    b"using world size: ", b"world_size .....", b"seq_length .....", b"train_iters ....", b"train_samples ..",
    b"log_interval ...", b"global_batch_size", b"model_parallel_size", b"data_parallel_size", b"context_parallel_size",
    b"expert_parallel_size", b"Possible transient error", b"Possible persistent error", b"nexpected result is",
    b"Unexpected result ", b" Ranks with lowest", b" Ranks with highest", b"log_dist] [Rank 0] step=",
    b"RunningAvgSamplesPerSec=", b" step. Attempted", b" iter time (s): ", b"...............",
)  # fmt: skip
_ENTRY = b"..: "
_RARE = (b"|", b"{", b"%")
BLOCK, LONGEST = 4 << 20, 16 << 20
_NAMED = re.compile(r"(?<![a-z])rank[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_DIGITS = re.compile(rb"\d+")
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

    def take(self, block: bytes) -> list[Record]:
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
        for begin, end in lines:
            if done < begin and (self._after_step or self._timers is not None):
                self._between(block, (done, begin), known)
            if self._read(block[begin:end], records):
                known.add(begin)
            done = end + 1
        self._between(block, (done, len(block)), known)
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
        return [one if one.rank else one._replace(rank=self._rank) for one in records] if self._rank else records

    def _close(self, records: list[Record]) -> None:
        if self._timers is not None:
            records += self._timers.records()
            self._timers = None

    def _between(self, block: bytes, part: tuple[int, int], known: set[int]) -> None:
        """Look at lines that hold nothing by themselves, as long as they may go on with what was begun."""
        begin, end = part
        if self._after_step and begin < end:
            self._after_step = False
            stop = block.find(b"\n", begin, end)
            if block.endswith(_NO_TIMERS, begin, end if stop < 0 else stop):
                known.add(begin)
        while self._timers is not None and self._timers.looking and begin < end:
            stop = block.find(b"\n", begin, end)
            stop = end if stop < 0 else stop
            if self._timers.take(block[begin:stop]):
                known.add(begin)
            begin = stop + 1

    def _read(self, line: bytes, records: list[Record]) -> bool:
        """Add what a line says, and say whether it is understood."""
        timers = self._timers
        if timers is not None and _ENTRY in line and timers.take(line):
            return True
        step = self._iterations.read(line)
        if step is not None:
            if timers is not None:
                self._close(records)
            self._after_step = True
            records.append(step)
            return True
        self._after_step = False
        if timers is not None and timers.take(line):
            return True
        if HEADING in line:
            self._close(records)
            self._timers = TimerBlock(self._names)
            return True
        at = line.find(_ONE_LINE)
        if at >= 0:
            time = self._moments.find(line, 0, at)
            records += [one._replace(time=time) for one in one_line(line, at)]
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
        silent = any(text in line for text in _SILENT) or (_DOTS in line and b"...: " not in line)
        return [] if silent else None

    def _sample(self, block: bytes, known: set[int]) -> None:
        """Take down the shapes of some lines that were not understood."""
        if self.sampled >= _SAMPLED:
            return
        for line in between([(begin, 0) for begin in known], block, _PER_BLOCK):
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
    return _DIGITS.sub(b"#", line[:_LONGEST].strip()).decode("utf-8", errors="replace")


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


def blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file in blocks of complete lines; the last may lack its end, and a line too long is cut.

    >>> from io import BytesIO
    >>> list(blocks(BytesIO(b"one\\ntwo\\nthr")))
    [b'one\\ntwo\\nthr']
    """
    while data := file.read(BLOCK):
        yield data if data.endswith(b"\n") else data + file.readline(LONGEST)
