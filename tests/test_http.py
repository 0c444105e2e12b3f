"""Work in parallel: how far it runs ahead of whoever takes its results."""

import threading
import time

import pytest

from rca.config import Server
from rca.errors import SourceError
from rca.sources import http


def site() -> http.Site:
    session, found = http.connect(Server(url="http://127.0.0.1:9", timeout="10s"))
    session.close()
    return found


def test_work_runs_ahead_of_a_slow_taker_by_so_much_and_no_more():
    begun, lock = [], threading.Lock()

    def work(number: int) -> int:
        with lock:
            begun.append(number)
        return number

    jobs = [http.Job("x", lambda number=number: work(number)) for number in range(40)]
    taken = []
    for index, result in http.in_parallel(jobs, 3, site()):
        taken.append(result)
        assert index == result
        time.sleep(0.005)
        assert len(begun) <= len(taken) + 6
    assert sorted(taken) == list(range(40))


def test_who_stops_taking_leaves_no_thread_behind():
    before = set(threading.enumerate())

    def fail() -> int:
        raise SourceError("gone")

    jobs = [http.Job("x", fail), *(http.Job("x", lambda: 1) for _ in range(20))]
    with pytest.raises(SourceError, match="gone"):
        list(http.in_parallel(jobs, 2, site()))
    end = time.monotonic() + 5
    while set(threading.enumerate()) - before and time.monotonic() < end:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before
