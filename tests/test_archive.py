"""What is kept is there after a restart, once, and for as long as it was promised."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from test_incidents import BLIND, HEALTHY, ILL, PACE, START, at, ticks

from rca.archive import INCIDENTS_KEPT, LEASE, Alert, Archive, Filter, FullError
from rca.errors import SourceError, UsageError
from rca.incidents import Note
from rca.model import EntityRef, Report
from rca.sightings import MOST

OTHER = msgspec.structs.replace(
    ILL, causes=[msgspec.structs.replace(ILL.causes[0], entity=EntityRef("gpu", {"node": "node-9", "gpu": "0"}))]
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'rca.db'}"


@pytest.fixture
def archive(url: str) -> Iterator[Archive]:
    one = Archive(url)
    yield one
    one.close()


def feed(archive: Archive, reports: list[tuple[Report, float]]) -> None:
    """Let reports come in."""
    for report, seconds in reports:
        archive.absorb(at(report, seconds), PACE)


def alert(number: int, status: str = "firing") -> Alert:
    """Return one of many alerts."""
    return Alert(fingerprint=f"{number:016x}", status=status, labels={"n": str(number)}, annotations={}, starts=START)


def test_an_incident_survives_a_restart_at_any_time(url: str) -> None:
    for report, seconds in ticks(ILL, 0, 300) + ticks(BLIND, 330, 600) + ticks(HEALTHY, 630, 1000):
        one = Archive(url)
        one.absorb(at(report, seconds), PACE)
        one.close()
    again = Archive(url)
    [incident] = again.incidents()
    again.close()
    assert (incident.state, incident.well) == ("closed", START + 630.0)


def test_what_never_opened_is_no_incident(archive: Archive) -> None:
    feed(archive, [(ILL, 0.0)])
    assert not archive.incidents()
    assert [one.state for one in archive.alive(START)] == ["pending"]
    feed(archive, [(HEALTHY, 30.0)])
    assert not archive.alive(0.0)


def test_the_same_report_twice_is_one(archive: Archive) -> None:
    feed(archive, [*ticks(ILL, 0, 300), *ticks(ILL, 0, 300)])
    [incident] = archive.incidents()
    body = archive.report(incident.report)
    assert body is not None
    assert msgspec.json.decode(body, type=Report).causes == ILL.causes


def test_an_incident_knows_that_it_is_not_the_first_of_its_kind(archive: Archive) -> None:
    day = 86400.0
    for number in range(3):
        feed(
            archive,
            ticks(ILL, number * day, number * day + 120) + ticks(HEALTHY, number * day + 150, number * day + 480),
        )
    assert sorted(one.seen_before for one in archive.incidents()) == [0, 1, 2]
    place = ("gpu_thermal_throttling", "gpu node=node-07 gpu=1")
    assert archive.history(START + 3 * day) == {place: 3}
    assert archive.history(START + 40 * day) == {}


def test_a_cause_that_was_rejected_does_not_count(url: str) -> None:
    archive, day = Archive(url), 86400.0
    for number in range(3):
        feed(
            archive,
            ticks(ILL, number * day, number * day + 120) + ticks(HEALTHY, number * day + 150, number * day + 480),
        )
    third, second, first = archive.incidents()
    archive.note(first.id, Note(at=START, who="ops", verdict="rejected", text="it was the fan"), 9)
    archive.note(second.id, Note(at=START, verdict="rejected"), 9)
    archive.note(second.id, Note(at=START + 1, verdict="confirmed"), 9)
    archive.note(second.id, Note(at=START + 2, text="a note is no verdict"), 9)
    archive.close()
    archive = Archive(url)
    assert archive.verdicts() == {first.id: "rejected", second.id: "confirmed"}
    place = ("gpu_thermal_throttling", "gpu node=node-07 gpu=1")
    assert archive.history(START + 3 * day) == {place: 2}
    feed(archive, ticks(ILL, 3 * day, 3 * day + 120))
    assert archive.incidents()[0].seen_before == 2
    archive.note(third.id, Note(at=START, verdict="rejected"), 9)
    assert archive.history(START + 3 * day) == {place: 1}
    archive.close()


def test_notes_are_kept_in_order_and_go_with_their_incident(archive: Archive) -> None:
    feed(archive, ticks(ILL, 0, 120) + ticks(HEALTHY, 150, 600))
    [incident] = archive.incidents()
    said = [Note(at=START + number, who="ops", text=str(number)) for number in range(3)]
    for note in said:
        archive.note(incident.id, note, 3)
    with pytest.raises(FullError):
        archive.note(incident.id, said[0], 3)
    archive.prune(START + 80 * 3600.0, 72 * 3600.0)
    assert archive.notes(incident.id) == said
    archive.prune(START + INCIDENTS_KEPT + 3600.0, 72 * 3600.0)
    assert archive.notes(incident.id) == []


def test_the_version_is_another_where_what_is_listed_is(archive: Archive) -> None:
    told: dict[str, list[tuple[str, str, float]]] = {}
    for report, seconds in [*ticks(ILL, 0, 120), (OTHER, 150.0), *ticks(OTHER, 180, 300), *ticks(HEALTHY, 330, 900)]:
        archive.absorb(at(report, seconds), PACE)
        listed = [(one.id, one.state, one.last) for one in archive.incidents()]
        assert told.setdefault(archive.version(), listed) == listed
    assert len({str(listed) for listed in told.values()}) > 8
    archive.note(archive.incidents()[0].id, Note(at=START, verdict="confirmed"), 9)
    assert archive.version() not in told


def test_it_is_known_when_a_cause_was_last_seen(archive: Archive) -> None:
    assert archive.fired() == {}
    feed(archive, ticks(ILL, 0, 120) + ticks(OTHER, 150, 600))
    assert archive.fired() == {"gpu_thermal_throttling": (START + 600.0, 2)}


def test_incidents_are_chosen_by_what_they_are(archive: Archive) -> None:
    feed(archive, ticks(ILL, 0, 120) + ticks(OTHER, 150, 600))
    assert len(archive.incidents()) == 2
    assert [one.state for one in archive.incidents(Filter(node="node-9"))] == ["open"]
    assert [one.entity.labels["node"] for one in archive.incidents(Filter(state="closed"))] == ["node-07"]
    assert not archive.incidents(Filter(cause="nic_down"))
    assert len(archive.incidents(limit=1)) == 1


def test_reports_go_when_their_time_is_over_but_not_those_of_incidents(archive: Archive) -> None:
    feed(archive, ticks(ILL, 0, 120) + ticks(HEALTHY, 150, 600))
    [incident] = archive.incidents()
    archive.absorb(at(BLIND, 700.0), PACE)
    archive.prune(START + 80 * 3600.0, 72 * 3600.0)
    assert archive.report(incident.report) is not None
    assert archive.incidents() == [incident]
    archive.prune(START + INCIDENTS_KEPT + 3600.0, 72 * 3600.0)
    assert not archive.incidents()
    assert archive.report(incident.report) is None


def test_the_reports_that_named_an_incident_are_known_for_as_long_as_they_are_kept(archive: Archive) -> None:
    feed(archive, ticks(ILL, 0, 3000) + ticks(HEALTHY, 3030, 4000))
    [one] = archive.incidents()
    found = archive.sightings(one.id)
    assert len(found) <= MOST
    assert [found[0].at, found[-1].at] == [one.first, one.last]
    assert all(archive.report(sighting.report) is not None for sighting in found)
    assert {(sighting.probability, sighting.slowdown) for sighting in found} == {(one.probability, one.slowdown)}
    assert [later.at - earlier.at for earlier, later in pairwise(found)][:-1] == [150.0] * (len(found) - 2)
    archive.prune(START + 3000.0 + 600.0, 1200.0)
    assert archive.sightings(one.id)[0].at == START + 2400.0
    assert archive.sightings("nothing") == []


def test_alerts_are_kept_once_and_looked_into_in_order(archive: Archive) -> None:
    assert archive.accept([alert(2), alert(1)], START) == 2
    assert archive.accept([alert(1), alert(3), alert(3)], START + 1) == 1
    assert archive.accept([alert(1, "resolved")], START + 2) == 1
    assert [one.labels["n"] for one in archive.waiting()] == ["2", "1", "3", "1"]
    archive.settle(archive.waiting()[:3], said="done")
    assert archive.queued() == 1
    assert archive.accept([alert(2)], START + 3) == 0
    archive.prune(START + 1e6, 3600.0)
    assert archive.queued() == 1


def test_readers_wait_for_no_writer(url: str) -> None:
    archive, other = Archive(url), Archive(url)
    archive.accept([alert(1)], START)
    with archive._writing() as connection:
        connection.exec_driver_sql("delete from alerts")
        assert archive.queued() == other.queued() == 1
        assert [one.key for one in archive.waiting()] == [alert(1).key]
    assert archive.queued() == 0
    archive.close()
    other.close()


def test_a_report_settles_the_alerts_that_it_answers(archive: Archive) -> None:
    archive.accept([alert(1), alert(2)], START)
    archive.absorb(at(ILL, 0.0), PACE, [alert(1)])
    assert [one.labels["n"] for one in archive.waiting()] == ["2"]


def test_many_alerts_at_once_are_kept(archive: Archive) -> None:
    assert archive.accept([alert(number) for number in range(20_000)], START) == 20_000
    assert archive.accept([alert(number) for number in range(20_001)], START) == 1
    assert archive.queued() == 20_001
    archive.settle([alert(number) for number in range(20_000)])
    assert archive.queued() == 1


def test_what_one_has_claimed_is_left_to_it_until_it_may_be_dead(url: str) -> None:
    one, other = Archive(url), Archive(url)
    share_alerts(one, other)
    one.close()
    other.close()


def share_alerts(one: Archive, other: Archive) -> None:
    """Assert that two who share a database share the work."""
    assert one.claim("one", START) == []
    one.accept([alert(1), alert(2)], START)
    assert [told.labels["n"] for told in one.claim("one", START)] == ["1", "2"]
    assert other.claim("other", START + 1) == []
    other.accept([alert(3)], START)
    assert [told.labels["n"] for told in other.claim("other", START + 2)] == ["3"]
    assert [told.labels["n"] for told in one.claim("one", START + 3)] == ["1", "2"], "after a restart they are its own"
    assert one.claim("one", START + LEASE - 1, [alert(1), alert(3)]) == [alert(1)]
    late = START + 3 + LEASE
    assert [told.labels["n"] for told in other.claim("other", late)] == ["2", "3"], "and its own is claimed for longer"
    assert one.claim("one", late, [alert(2)]) == []
    one.settle([alert(1)])
    assert [told.labels["n"] for told in other.claim("other", late + 2 * LEASE)] == ["2", "3"]
    other.settle([alert(2), alert(3)])
    assert one.claim("one", late + 9 * LEASE) == other.claim("other", late + 9 * LEASE) == []


def _claim(url: str, name: str) -> None:
    archive = Archive(url)
    for _ in range(20):
        ours = archive.claim(name, START, limit=5)
        archive.settle(ours, said=name)
    archive.close()


def test_processes_that_claim_at_once_get_each_alert_once(url: str) -> None:
    archive = Archive(url)
    archive.accept([alert(number) for number in range(100)], START)
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_claim, args=(url, name)) for name in ("one", "other")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert archive.queued() == 0
    archive.close()


def test_no_more_wait_than_may(archive: Archive) -> None:
    assert archive.accept([alert(1), alert(2)], START, most=1) == 2
    with pytest.raises(FullError):
        archive.accept([alert(3)], START, most=2)
    assert archive.queued() == 2


def _accept(url: str, numbers: range) -> None:
    archive = Archive(url)
    for number in numbers:
        archive.accept([alert(number)], START)
        archive.absorb(at(ILL, 30.0 * (number % 7)), PACE)


def test_several_processes_share_a_database(url: str) -> None:
    Archive(url).close()
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_accept, args=(url, range(part * 10, part * 10 + 10))) for part in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    archive = Archive(url)
    assert archive.queued() == 20
    assert len(archive.alive(0.0)) == 1
    archive.close()


def test_what_was_accepted_is_there_after_a_kill(url: str) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        archive = Archive(url)
        for number in range(100_000):
            archive.accept([alert(number)], START)
            os.write(writing, b".")
    os.close(writing)
    said = os.read(reading, 1)
    while len(said) < 25:
        said += os.read(reading, 100)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reading, 100):
        said += more
    os.close(reading)
    archive = Archive(url)
    assert archive.queued() in {len(said), len(said) + 1}
    archive.close()


def test_a_database_that_cannot_be_opened_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"store sqlite:////nowhere/rca.db: unable to open database file, is it"):
        Archive("sqlite:////nowhere/rca.db")
    with pytest.raises(UsageError, match=r"store: 'oracle-ish:x' names no database"):
        Archive("oracle-ish:x")
    torn = tmp_path / "torn.db"
    torn.write_bytes(b"no database at all, but long enough to be looked at" * 100)
    with pytest.raises(SourceError, match="not a database"):
        Archive(f"sqlite:///{torn}")
