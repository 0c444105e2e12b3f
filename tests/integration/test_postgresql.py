"""The archive on a real PostgreSQL does what it does on SQLite."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from courses import course, noted
from servers import free_port, postgresql
from test_archive import alert, feed, share_alerts
from test_incidents import HEALTHY, ILL, PACE, START, at, ticks

from rca import journal
from rca.archive import Archive
from rca.errors import SourceError
from rca.incidents import Note


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgresql() as address:
        yield address


def test_incidents_reports_recordings_and_alerts_are_kept(url: str) -> None:
    first = Archive(url)
    feed(first, ticks(ILL, 0, 300) + ticks(HEALTHY, 330, 660))
    assert first.accept([alert(1), alert(2)], START) == 2
    assert first.accept([alert(2)], START) == 0
    first.close()
    again = Archive(url)
    [incident] = again.incidents()
    assert (incident.state, incident.well) == ("closed", START + 330.0)
    assert again.report(incident.report) is not None
    again.record(incident.report, START, b"\x00samples")
    assert again.recording(incident.report) == b"\x00samples"
    again.settle(again.waiting()[:1], said="done")
    assert [one.labels["n"] for one in again.waiting()] == ["2"]
    again.prune(START + 1e9, 3600.0)
    assert not again.incidents()
    assert again.queued() == 1
    again.close()


def test_how_far_jobs_are_is_kept(url: str) -> None:
    archive = Archive(url)
    rows = course("a\0", START, 20)
    noted(archive, [*rows, *course("b", START + 1.0, 1)])
    noted(archive, rows)
    assert archive.progress("a\0") == rows
    with archive._reading() as connection:
        assert journal.course(connection, "a\0", 7) == rows[1::3]
    assert [one.job for one in archive.jobs()] == ["a\0", "b"]
    archive.prune(START + 1e9, 3600.0)
    assert archive.jobs() == []
    archive.close()


def test_what_people_say_is_kept_and_heeded(url: str) -> None:
    archive = Archive(url)
    feed(archive, ticks(ILL, 0, 300) + ticks(HEALTHY, 330, 660))
    [incident] = archive.incidents()
    before = archive.version()
    said = [Note(at=START, who="ops", verdict="confirmed"), Note(at=START + 1, verdict="rejected", text="a \u202e fan")]
    archive.note(incident.id, said[0], 2)
    assert list(archive.history(START + 900.0).values()) == [1]
    archive.note(incident.id, said[1], 2)
    assert archive.notes(incident.id) == said
    assert archive.verdicts() == {incident.id: "rejected"}
    assert archive.history(START + 900.0) == {}
    assert archive.version() != before
    assert archive.fired() == {incident.cause: (incident.last, 1)}
    archive.record(incident.report, START, b"samples")
    assert archive.recorded(incident.job) == incident.report
    archive.prune(START + 1e9, 3600.0)
    assert archive.verdicts() == {}
    archive.close()


def test_replicas_that_write_at_once_make_one_incident(url: str) -> None:
    replicas = [Archive(url) for _ in range(3)]
    reports = [at(ILL, 30.0 * number) for number in range(12)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda one: [one.absorb(report, PACE) for report in reports], replicas))
    assert len(replicas[0].incidents()) == 1
    for one in replicas:
        one.close()


def test_two_servers_share_the_alerts_that_wait(url: str) -> None:
    one, other = Archive(url), Archive(url)
    one.settle(one.waiting())
    one.prune(START + 1e9, 3600.0)
    share_alerts(one, other)
    one.close()
    other.close()


def test_a_server_that_is_away_is_said_without_its_password() -> None:
    port = free_port()
    with pytest.raises(SourceError, match=r"store postgresql\+psycopg://127.0.0.1:\d+/rca: .*refused") as caught:
        Archive(f"postgresql+psycopg://rca:secret@127.0.0.1:{port}/rca")
    assert "secret" not in str(caught.value)
