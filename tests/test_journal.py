"""How far jobs were is kept: a row in five minutes, for ninety days, also in a database that knew nothing of it."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from courses import course, noted
from hypothesis import given, settings
from hypothesis import strategies as st
from test_watch import Cluster

from rca import journal
from rca.archive import Archive
from rca.model import Progress
from rca.plain import stamp, unix
from rca.tables import PROGRESS

START = 1_772_373_900.0
DAY = 86_400.0


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    one = Archive(f"sqlite:///{tmp_path / 'rca.db'}")
    yield one
    one.close()


def at(job: str, seconds: float) -> Progress:
    """Return a row of a time."""
    return Progress(job=job, at=stamp(START + seconds), step=round(seconds) + 1)


def test_a_job_has_a_row_in_five_minutes(archive: Archive) -> None:
    for seconds in range(0, 1000, 30):
        archive.progressed([at("a", seconds), at("b", seconds + 15)])
    assert [unix(row.at) - START for row in archive.progress("a")] == [0, 300, 600, 900]
    assert [unix(row.at) - START for row in archive.progress("b")] == [15, 315, 615, 915]
    archive.progressed([at("a", 700.0), at("c", 700.0)])
    assert len(archive.progress("a")) == 4, "what comes late says nothing new"
    assert archive.jobs() == [at("a", 900), at("b", 915), at("c", 700)]
    assert archive.progress("nobody") == []
    archive.progressed([])


def test_all_that_is_known_is_read_back(archive: Archive) -> None:
    name = "a/<b>\0\u202e"
    rows = [*course(name, START, 3), Progress(job=name, at=stamp(START + DAY))]
    noted(archive, rows)
    assert archive.progress(name) == rows
    assert archive.jobs() == rows[-1:]


def test_rows_go_after_ninety_days(archive: Archive) -> None:
    noted(archive, [at("a", 0.0), at("a", DAY)])
    archive.prune(START + journal.KEPT, 3600.0)
    assert len(archive.progress("a")) == 2
    archive.prune(START + journal.KEPT + 1.0, 3600.0)
    assert [unix(row.at) for row in archive.progress("a")] == [START + DAY]
    archive.prune(START + journal.KEPT + DAY + 1.0, 3600.0)
    assert archive.jobs() == []


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 60), st.integers(1, 50))
def test_of_many_rows_evenly_chosen_ones_are_read_and_the_last(count: int, most: int) -> None:
    archive = Archive("sqlite://")
    with archive._writing() as connection:
        rows = course("a", START, count)
        journal.write(connection, rows)
        read = journal.course(connection, "a", most)
    archive.close()
    assert len(read) <= most
    assert read[-1:] == rows[-1:]
    assert len({rows.index(after) - rows.index(before) for before, after in pairwise(read)}) <= 1
    assert count > most or read == rows


def test_a_database_from_before_goes_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rca.db'}"
    old = Archive(url)
    with old._writing() as connection:
        PROGRESS.drop(connection)
    old.close()
    again = Archive(url)
    again.progressed([at("a", 0.0)])
    assert again.jobs() == [at("a", 0.0)]
    again.close()


def test_the_schedule_notes_how_far_jobs_are(archive: Archive) -> None:
    cluster = Cluster("healthy", archive)
    cluster.run(720)
    [last] = archive.jobs()
    rows = archive.progress(last.job)
    assert [unix(after.at) - unix(before.at) for before, after in pairwise(rows)] == [300.0, 300.0]
    assert [row.step for row in rows] == sorted(row.step or 0 for row in rows)
    assert last.eta_seconds is not None
    assert msgspec.structs.replace(last, at="").loss is not None
