"""MLflow without mlflow: a tracking server, a folder of files (`mlruns`), or the database of either.

A URI may end in `#NAME`: the runs of that experiment, or that run. Without it the runs that were under way in the two
days before the newest point are read.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sql
import yaml

from rca.config import without_password
from rca.errors import SourceError, UsageError, suggestion
from rca.imports import Tally
from rca.plain import counted
from rca.sources.foreign import Place, Ways, lines, unreadable
from rca.sources.kept import Kept, Series
from rca.sources.runs import Run

LATEST = 2 * 86400.0
"""Seconds before the newest point in which a run must have been under way."""
MOST = 50
"""Runs to read at most; a run of a large job has thousands of points for each of its names."""
SERVERS = ("http://", "https://")
Point = tuple[str, float, float, float]
"""A name, unix seconds, a value, a step."""


class Found(NamedTuple):
    """A run that is there: its experiment's name, and the time of its newest point, unix seconds."""

    id: str
    name: str
    experiment: str
    newest: float


class Tracking(Protocol):
    """Where runs are kept."""

    place: str

    def runs(self) -> Iterable[Found]:
        """Yield the runs that are not deleted."""
        ...

    def names(self, run: Found) -> Iterable[str]:
        """Yield the names of a run's metrics."""
        ...

    def points(self, run: Found, names: Sequence[str]) -> Iterator[Point]:
        """Yield the points of these metrics of a run."""
        ...

    def said(self) -> Iterable[str]:
        """Yield what was odd."""
        ...


def read(place: Place, ways: Ways) -> Kept:
    """Read the runs that a URI names, or its latest; raises SourceError where there is none."""
    uri, _, wanted = place.path.partition("#")
    tracking = _opened(place._replace(path=uri), ways)
    runs, said = chosen(list(tracking.runs()), wanted, tracking.place)
    names = [run.name for run in runs]
    tally = Tally("metrics")
    series: list[Series] = []
    for found in runs:
        own = found.name if names.count(found.name) == 1 else f"{found.name}-{found.id[:8]}"
        job = f"{place.name}/{own}" if place.name and len(runs) > 1 else place.name or own
        run = Run({"job_id": job}, ways.imports, "mlflow", tally)
        for name, time, value, step in tracking.points(
            found, [name for name in tracking.names(found) if run.wants(name)]
        ):
            run.add(name, time, value, step)
        series += run.series()
    return Kept(series, tracking.place, [*said, *tracking.said(), *tally.said(tracking.place)])


def chosen(runs: Sequence[Found], wanted: str, place: str) -> tuple[list[Found], list[str]]:
    """Return the runs to read, oldest first, and what to say about the others.

    >>> chosen([Found("1", "a", "x", 0.0), Found("2", "b", "x", 1e6)], "", "m")
    ([Found(id='2', name='b', experiment='x', newest=1000000.0)], ['m: 1 run is older, not read; name one with m#RUN'])
    """
    if not runs:
        raise SourceError(f"{place}: no run in it")
    ordered = sorted(runs, key=lambda run: (run.newest, run.id))
    if wanted:
        picked = [run for run in ordered if wanted in {run.id, run.name, run.experiment}]
        if not picked:
            known = {run.name for run in runs} | {run.experiment for run in runs}
            raise UsageError(f"--mlflow: {place}: no run or experiment {wanted!r}{suggestion(wanted, known)}")
    else:
        picked = [run for run in ordered if run.newest >= ordered[-1].newest - LATEST]
    left = len(picked) - len(picked[-MOST:]) + (0 if wanted else len(ordered) - len(picked))
    older = f"{counted(left, 'run')} {'is' if left == 1 else 'are'} older, not read; name one with {place}#RUN"
    return picked[-MOST:], [f"{place}: {older}"] if left else []


def _opened(place: Place, ways: Ways) -> Tracking:
    """Return what a URI stands for."""
    if place.path.startswith(SERVERS):
        from rca.sources.mlflow_server import Server  # noqa: PLC0415 - the two know each other's runs

        return Server(place.path, ways.mlflow)
    if "://" in place.path and not place.path.startswith("file:"):
        return Database(place.path)
    path = place._replace(path=place.path.removeprefix("file://").removeprefix("file:")).file()
    return Folder(path) if path.is_dir() else Database(f"sqlite:///{path}")


class Folder:
    """Runs in files: `mlruns/<experiment>/<run>/metrics/<name>`, a line a point: milliseconds, value and step."""

    def __init__(self, path: Path) -> None:
        inner = path / "mlruns"
        self.path = inner if inner.is_dir() else path
        self.place = str(path)
        self._said: list[str] = []

    def runs(self) -> Iterator[Found]:
        """Yield the runs that are not deleted."""
        experiments = [self.path] if (self.path / "metrics").is_dir() else sorted(self.path.glob("*/meta.yaml"))
        if experiments == [self.path]:
            yield self._found(self.path, self.path.parent.name)
            return
        for meta in experiments:
            told = self._meta(meta)
            if meta.parent.name[:1] != "." and told.get("lifecycle_stage") != "deleted":
                for run in sorted(meta.parent.glob("*/metrics")):
                    if self._meta(run.parent / "meta.yaml").get("lifecycle_stage") != "deleted":
                        yield self._found(run.parent, str(told.get("name") or meta.parent.name))

    def _found(self, run: Path, experiment: str) -> Found:
        name = self._meta(run / "meta.yaml").get("run_name") or _text(run / "tags" / "mlflow.runName") or run.name
        newest = max((_last_time(path) for path in self._files(run)), default=0.0)
        return Found(str(run), str(name), experiment, newest)

    def _meta(self, path: Path) -> dict[str, object]:
        try:
            told = yaml.safe_load(_text(path))
        except yaml.YAMLError as error:
            raise SourceError(f"{path}: not YAML ({' '.join(str(error).split())})") from error
        return told if isinstance(told, dict) else {}

    @staticmethod
    def _files(run: Path) -> Iterator[Path]:
        yield from sorted(path for path in (run / "metrics").rglob("*") if path.is_file())

    def names(self, run: Found) -> Iterator[str]:
        """Yield the names of a run's metrics."""
        folder = Path(run.id) / "metrics"
        yield from (path.relative_to(folder).as_posix() for path in self._files(Path(run.id)))

    def points(self, run: Found, names: Sequence[str]) -> Iterator[Point]:
        """Yield the points of these metrics of a run."""
        for name in names:
            path = Path(run.id) / "metrics" / name
            bad: list[int] = []
            good = 0
            for number, raw in lines(path):
                cells: Sequence[bytes] = raw.split() if raw.endswith(b"\n") else ()
                try:
                    time, value = int(cells[0]) / 1000.0, float(cells[1])
                    step = float(cells[2]) if len(cells) > 2 else float("nan")
                except (ValueError, IndexError):
                    bad.append(number)
                    continue
                good += 1
                yield name, time, value, step
            if bad and not good:
                raise SourceError(
                    f"{path}:{bad[0]}: not a line of milliseconds, value and step, is this a folder of MLflow"
                )
            if bad:
                self._said.append(f"{path}: {counted(len(bad), 'line')} left out, for example line {bad[0]}")

    def said(self) -> Iterable[str]:
        """Return what was odd."""
        return self._said


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError as error:
        raise unreadable(path, error) from error


def _last_time(path: Path) -> float:
    """Return the time in the last whole line of a metric's file."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(path.stat().st_size - 256, 0))
            return int(stream.read().split(b"\n")[-2].split()[0]) / 1000.0
    except (IndexError, ValueError):
        return 0.0
    except OSError as error:
        raise unreadable(path, error) from error


class Database:
    """Runs in a database, as a tracking server keeps them."""

    def __init__(self, uri: str) -> None:
        self.place = without_password(uri)
        if uri.startswith("sqlite:///"):
            path = Path(uri.removeprefix("sqlite:///"))
            if not path.is_file():
                raise UsageError(f"--mlflow: {path}: no such file or folder")
            uri = f"sqlite:///file:{path}?mode=ro&uri=true"
        try:
            self._engine = sql.create_engine(uri)
        except (sql.exc.SQLAlchemyError, ImportError) as error:
            raise SourceError(
                f"{self.place}: cannot be opened ({_plain(error)}), PostgreSQL needs rca[postgresql]"
            ) from error

    def _rows(self, query: str, **values: object) -> Iterator[Sequence[Any]]:
        try:
            with self._engine.connect().execution_options(yield_per=10_000) as connection:
                yield from connection.execute(sql.text(query), values)
        except sql.exc.SQLAlchemyError as error:
            raise SourceError(f"{self.place}: {_plain(error)}, is this the database of an MLflow server") from error

    def runs(self) -> Iterator[Found]:
        """Yield the runs that are not deleted."""
        query = (
            "select runs.run_uuid, runs.name, experiments.name, max(latest_metrics.timestamp) from runs "
            "join experiments on experiments.experiment_id = runs.experiment_id "
            "left join latest_metrics on latest_metrics.run_uuid = runs.run_uuid "
            "where runs.lifecycle_stage = 'active' group by runs.run_uuid, runs.name, experiments.name"
        )
        for run, name, experiment, newest in self._rows(query):
            yield Found(str(run), str(name or run), str(experiment), float(newest or 0) / 1000.0)

    def names(self, run: Found) -> Iterator[str]:
        """Yield the names of a run's metrics."""
        for (name,) in self._rows("select key from latest_metrics where run_uuid = :run order by key", run=run.id):
            yield str(name)

    def points(self, run: Found, names: Sequence[str]) -> Iterator[Point]:
        """Yield the points of these metrics of a run."""
        query = (
            "select timestamp, value, step, is_nan from metrics where run_uuid = :run and key = :name "
            "order by timestamp, step"
        )
        for name in names:
            for time, value, step, no_number in self._rows(query, run=run.id, name=name):
                number = float("nan") if no_number else float(value)
                yield name, float(time) / 1000.0, number, float(step)

    def said(self) -> Iterable[str]:
        """Return nothing: a database holds no torn lines."""
        return ()


def _plain(error: Exception) -> str:
    """Return what a database says, without the query and without credentials."""
    reason = error.orig if isinstance(error, sql.exc.DBAPIError) and error.orig is not None else error
    return without_password(" ".join(str(reason).split()))[:200]
