"""Work in parallel: how far it runs ahead of whoever takes its results."""

import threading
import time

import pytest

from rca.config import Server
from rca.errors import SourceError
from rca.sources import http
from rca.sources.parallel import WAITING, Job, in_parallel


def site() -> http.Site:
    session, found = http.connect(Server(url="http://127.0.0.1:9", timeout="10s"))
    session.close()
    return found


def test_while_results_wait_one_job_at_a_time_goes_on_and_they_do_not_pile_up() -> None:
    busy: set[int] = set()
    beside: dict[int, int] = {}
    lock = threading.Lock()

    def work(number: int) -> int:
        with lock:
            busy.add(number)
            beside[number] = len(busy)
        time.sleep(0.001)
        with lock:
            busy.remove(number)
        return number

    jobs = [Job("x", lambda number=number: work(number)) for number in range(60)]
    taken = []
    for index, result in in_parallel(jobs, 3, site()):
        taken.append(result)
        assert index == result
        most = len(taken) + 3 * WAITING
        end = time.monotonic() + 5
        while len(taken) == 1 and len(beside) < most and time.monotonic() < end:
            time.sleep(0.01)
        assert len(beside) <= most
    assert sorted(taken) == list(range(60))
    assert {beside[number] for number in range(4, 3 * WAITING + 1)} == {1}
    assert max(beside.values()) <= 3


def test_who_stops_taking_leaves_no_thread_behind():
    before = set(threading.enumerate())

    def fail() -> int:
        raise SourceError("gone")

    jobs = [Job("x", fail), *(Job("x", lambda: 1) for _ in range(20))]
    with pytest.raises(SourceError, match="gone"):
        list(in_parallel(jobs, 2, site()))
    end = time.monotonic() + 5
    while set(threading.enumerate()) - before and time.monotonic() < end:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before
