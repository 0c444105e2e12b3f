"""The REST API of an MLflow tracking server, version 2.0 of its paths, which MLflow 1 to 3 serve."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from rca import config
from rca.errors import SourceError, UsageError
from rca.sources import http
from rca.sources.mlflow import Found, Point
from rca.sources.parallel import Job, in_parallel

T = TypeVar("T")
MLFLOW = http.Api("an MLflow", "mlflow", "set the base URL of the tracking server, with its path where it has one")
PAGE = 1000
"""Runs or experiments a page; the server's own limits are 50,000 and 1,000."""
HISTORY = 25_000
"""Points of a metric a page; older servers give all at once."""


class _Experiment(msgspec.Struct):
    experiment_id: str
    name: str = ""


class _Experiments(msgspec.Struct):
    experiments: list[_Experiment] = []
    next_page_token: str = ""


class _Latest(msgspec.Struct):
    key: str
    timestamp: int = 0


class _Info(msgspec.Struct):
    run_id: str
    experiment_id: str = ""
    run_name: str = ""


class _Tag(msgspec.Struct):
    key: str
    value: str = ""


class _Data(msgspec.Struct):
    metrics: list[_Latest] = []
    tags: list[_Tag] = []


class _Run(msgspec.Struct):
    info: _Info
    data: _Data = msgspec.field(default_factory=_Data)


class _Runs(msgspec.Struct):
    runs: list[_Run] = []
    next_page_token: str = ""


class _Metric(msgspec.Struct):
    timestamp: int = 0
    value: float | None = None
    step: int = 0


class _History(msgspec.Struct):
    metrics: list[_Metric] = []
    next_page_token: str = ""


class Server:
    """A tracking server as a place of runs."""

    def __init__(self, url: str, server: config.Server) -> None:
        try:
            config.check_url(url)
        except ValueError as error:
            raise UsageError(f"--mlflow: {error}") from error
        self._session, self._site = http.connect(msgspec.structs.replace(server, url=url), MLFLOW)
        self._session.mount(self._site.url, http.Adapter(self._site, server.workers))
        self._workers = server.workers
        self._names: dict[str, list[str]] = {}
        self.place = self._site.url

    def runs(self) -> Iterator[Found]:
        """Yield the runs that are not deleted, latest first."""
        experiments: dict[str, str] = {}
        for found in self._pages("experiments/search", {"max_results": PAGE}, _Experiments):
            experiments |= {one.experiment_id: one.name for one in found.experiments}
        asked = {"max_results": PAGE, "order_by": ["attributes.start_time DESC"], "run_view_type": "ACTIVE_ONLY"}
        known = sorted(experiments)
        for at in range(0, len(known), PAGE):
            for page in self._pages("runs/search", {**asked, "experiment_ids": known[at : at + PAGE]}, _Runs):
                for run in page.runs:
                    yield self._found(run, experiments.get(run.info.experiment_id, ""))

    def _found(self, run: _Run, experiment: str) -> Found:
        self._names[run.info.run_id] = sorted(one.key for one in run.data.metrics)
        tagged = next((tag.value for tag in run.data.tags if tag.key == "mlflow.runName"), "")
        newest = max((one.timestamp for one in run.data.metrics), default=0) / 1000.0
        return Found(run.info.run_id, run.info.run_name or tagged or run.info.run_id, experiment, newest)

    def names(self, run: Found) -> Iterable[str]:
        """Return the names of a run's metrics."""
        return self._names.get(run.id, ())

    def points(self, run: Found, names: Sequence[str]) -> Iterator[Point]:
        """Yield the points of these metrics of a run, several metrics asked for at once."""
        jobs = [Job(f"the history of {name}", partial(self._history, run.id, name)) for name in names]
        for index, found in in_parallel(jobs, self._workers, self._site):
            for one in found:
                if one.value is not None:
                    yield names[index], one.timestamp / 1000.0, one.value, float(one.step)

    def said(self) -> Iterable[str]:
        """Return nothing: a server answers or does not."""
        return ()

    def _history(self, run: str, name: str) -> list[_Metric]:
        asked = {"run_id": run, "metric_key": name, "max_results": HISTORY}
        pages = self._pages("metrics/get-history", asked, _History, get=True)
        return [one for page in pages for one in page.metrics]

    def _pages(self, path: str, asked: Mapping[str, object], shape: type[T], *, get: bool = False) -> Iterator[T]:
        """Yield the pages of an answer; a server that goes in circles is left."""
        token, seen = "", set[str]()
        while True:
            page = self._page(path, {**asked, **({"page_token": token} if token else {})}, shape, get=get)
            yield page
            token = str(getattr(page, "next_page_token", ""))
            if not token:
                return
            if token in seen:
                raise SourceError(f"{self._site.url}: {path} repeats a page, is this an MLflow server")
            seen.add(token)

    def _page(self, path: str, asked: Mapping[str, object], shape: type[T], *, get: bool) -> T:
        url = f"{self._site.url}/api/2.0/mlflow/{path}"
        verify = self._session.verify
        if get:
            params = {key: str(value) for key, value in asked.items()}
            body = self._session.get(url, params=params, verify=verify).content
        else:
            body = self._session.post(url, json=asked, verify=verify).content
        try:
            return msgspec.json.decode(body, type=shape, strict=False)
        except msgspec.DecodeError as error:
            raise SourceError(
                f"{self._site.url}: the answer to {path} is not MLflow's ({error}), is the URL right"
            ) from error
