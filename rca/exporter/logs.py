"""Training logs that are followed: a reader for each log, a ledger for each job, and how well all that goes."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import tzinfo
from threading import Lock

from prometheus_client import Metric

from rca.exporter.names import Naming
from rca.follow import Block, Follower
from rca.ledger import Ledger, Options
from rca.parsers import Reader, new_strainer
from rca.plain import counted

RESTS = 60.0
"""A log that has said nothing for so many seconds has finished what it was saying."""
MOST_SHAPES = 20
_WIDEST = 120


@dataclass
class Log:
    """One log: who reads it, for whom, when it spoke last, and what of it was understood so far."""

    reader: Reader
    job: str
    fed: float = 0.0
    lines: int = 0
    unknown: int = 0
    shapes: Counter[str] = field(default_factory=Counter)

    def note(self) -> None:
        """Take down how far the reader is, for others to see while it reads on."""
        self.lines, self.unknown = self.reader.lines, self.reader.unknown
        if self.shapes.total() != self.reader.shapes.total():
            self.shapes = Counter(self.reader.shapes)


class Logs:
    """What training logs say. `read` is called by one thread, `metrics` by any. Times without a zone are of `zone`."""

    def __init__(self, follower: Follower, naming: Naming, options: Options, zone: tzinfo | None = None) -> None:
        self._follower, self._naming, self._options, self._zone = follower, naming, options, zone
        self._logs: dict[str, Log] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._talking: set[str] = set()
        self._strainer = new_strainer()
        self._turn = Lock()
        self._lines = self._unknown = 0
        self._shapes: Counter[str] = Counter()
        self._at = 0.0
        self.ready = False

    def read(self, at: float, ends: Callable[[], bool] = lambda: False) -> None:
        """Read what is new, to its end, or until it is said that all ends."""
        for block in self._follower.poll(at):
            self._take(block)
            if ends():
                return
        with self._turn:
            for source in [one for one in self._talking if at - self._logs[one].fed > RESTS]:
                self._flush(source, at)
            for source in self._follower.gone:
                self._forget(source, at)
        self._at, self.ready = at, True

    def finish(self, at: float) -> None:
        """Take what is unfinished as finished: nobody reads on."""
        for block in self._follower.unfinished(at):
            self._take(block)
        with self._turn:
            for source in list(self._talking):
                self._flush(source, at)

    def _take(self, block: Block) -> None:
        log = self._logs.get(block.source) or self._opened(block.source)
        records = log.reader.take(block.data)  # takes long, and is nobody else's business
        with self._turn:
            ledger = self._ledgers[log.job]
            for record in records:
                ledger.add(record, block.at)
            log.fed = block.at
            log.note()
            self._talking.add(block.source)

    def _opened(self, source: str) -> Log:
        owner = self._naming.owner(source)
        with self._turn:
            log = self._logs[source] = Log(Reader(owner.rank, self._zone, self._strainer), owner.job)
            if owner.job not in self._ledgers:
                self._ledgers[owner.job] = Ledger(self._options._replace(job=owner.job))
        return log

    def _flush(self, source: str, at: float) -> None:
        log = self._logs[source]
        for record in log.reader.flush():
            self._ledgers[log.job].add(record, at)
        log.note()
        self._talking.discard(source)

    def _forget(self, source: str, at: float) -> None:
        """Forget a log that is gone, and its job with the last log of it."""
        if source not in self._logs:
            return
        self._flush(source, at)
        log = self._logs.pop(source)
        self._lines += log.lines
        self._unknown += log.unknown
        self._shapes += log.shapes
        if log.job not in {one.job for one in self._logs.values()}:
            del self._ledgers[log.job]

    def metrics(self) -> Iterator[Metric]:
        """Yield what the logs say, once all that was there at the beginning has been read, and what reading met."""
        with self._turn:
            said = [one for ledger in self._ledgers.values() for one in ledger.samples()] if self.ready else []
            own = list(self._own())
        made: dict[str, Metric] = {}
        named: dict[str, Metric] = {}
        for one in said:
            metric = named.get(one.name)
            if metric is None:
                family = one.family.removesuffix("_total")
                metric = named[one.name] = made.setdefault(family, Metric(family, one.help, one.type))
            metric.add_sample(one.name, dict(one.labels), one.value)
        yield from made.values()
        yield from own

    def shapes(self) -> list[tuple[str, int]]:
        """Return the shapes that most of the lines have which nobody understood, in a sample of them."""
        total = sum((log.shapes for log in self._logs.values()), Counter(self._shapes))
        return total.most_common(MOST_SHAPES)

    def summary(self) -> str:
        """Say how much was read, and what was not understood."""
        counts, lines, unknown = self._follower.counts, self._read_lines(), self._read_unknown()
        files = counted(self._follower.files, "file")
        said = [f"{lines:,} lines in {files}, {unknown:,} of them not understood"]
        said += [f"{count:>9,} × {shape[:_WIDEST]}" for shape, count in self.shapes()]
        left = {"too long": counts.too_long, "broken off": counts.broken}
        said += [f"{count:,} lines left out: {why}" for why, count in left.items() if count]
        return "\n".join(said)

    def _read_lines(self) -> int:
        return self._lines + sum(log.lines for log in self._logs.values())

    def _read_unknown(self) -> int:
        return self._unknown + sum(log.unknown for log in self._logs.values())

    def _own(self) -> Iterable[Metric]:
        """Yield what reading met."""
        follower, counts = self._follower, self._follower.counts
        yield single("rca_exporter_lines_total", "Lines read.", self._read_lines())
        yield single("rca_exporter_unknown_lines_total", "Lines that no format explains.", self._read_unknown())
        shapes = Metric("rca_exporter_unknown_shape_lines", "Commonest shapes of unknown lines, in a sample.", "gauge")
        for shape, count in self.shapes():
            shapes.add_sample(shapes.name, {"shape": shape[:_WIDEST]}, count)
        yield shapes
        yield single("rca_exporter_read_bytes_total", "Bytes read.", counts.read)
        yield single("rca_exporter_files", "Files followed.", follower.files)
        yield single("rca_exporter_unreadable_files", "Files that cannot be read at present.", follower.unreadable)
        yield single("rca_exporter_read_errors_total", "Tries to read a file that failed.", counts.errors)
        yield single("rca_exporter_rotations_total", "Files that lost their name to a new one.", counts.rotations)
        yield single("rca_exporter_truncations_total", "Files that were truncated or written anew.", counts.truncations)
        left = Metric("rca_exporter_left_out_lines", "Lines left out, by reason.", "counter")
        for reason, count in (("too_long", counts.too_long), ("broken_off", counts.broken)):
            left.add_sample("rca_exporter_left_out_lines_total", {"reason": reason}, count)
        yield left
        if self._at:
            yield single("rca_exporter_last_read_timestamp_seconds", "When all logs were looked at last.", self._at)


def single(name: str, said: str, value: float) -> Metric:
    """Return a metric of one series; a counter where its name ends so."""
    metric = Metric(name.removesuffix("_total"), said, "counter" if name.endswith("_total") else "gauge")
    metric.add_sample(name, {}, value)
    return metric
