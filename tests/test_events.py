"""Those who watch are told of news, from one look for all of them, and cost nothing when they are gone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import requests
from own_server import Engine, backend, refused, running, wait_until

from rca.errors import SourceError
from rca.serve import live
from rca.serve.live import Bulletin
from rca.webhook import Backend

EVERY = 0.02


class Versions:
    """A look at versions that are told by the test; counts how often it is asked."""

    def __init__(self) -> None:
        self.version, self.asked, self.failing = "a", 0, False

    def __call__(self) -> str:
        self.asked += 1
        if self.failing:
            raise SourceError("away")
        return self.version


@asynccontextmanager
async def bulletin(versions: Versions, beat: float = 30.0) -> AsyncIterator[Bulletin]:
    """Run a bulletin."""
    one = Bulletin(versions, EVERY, beat)
    running = asyncio.create_task(one.run())
    yield one
    running.cancel()


async def heard(listener: AsyncIterator[str]) -> str:
    """Return what comes next."""
    return await asyncio.wait_for(anext(listener), 5.0)


def test_all_are_told_of_news_from_one_look() -> None:
    async def play() -> None:
        versions = Versions()
        async with bulletin(versions) as one:
            await asyncio.sleep(5 * EVERY)
            assert versions.asked == 0, "nobody listens"
            listeners = [one.listen() for _ in range(20)]
            assert {await heard(listener) for listener in listeners} == {"retry: 3000\n\n"}
            assert {await heard(listener) for listener in listeners} == {live._event("a")}
            asked = versions.asked
            versions.version = "b"
            assert {await heard(listener) for listener in listeners} == {live._event("b")}
            assert versions.asked - asked < 10
            for listener in listeners:
                await listener.aclose()
            await asyncio.sleep(3 * EVERY)
            asked, versions.version = versions.asked, "c"
            await asyncio.sleep(5 * EVERY)
            assert versions.asked == asked, "nobody listens any more"
            late = one.listen()
            assert [await heard(late), await heard(late)][1] == live._event("c"), "and what is old is not told"
            await late.aclose()

    asyncio.run(play())


def test_a_silent_line_is_kept_open_while_the_archive_is_away() -> None:
    async def play() -> None:
        versions = Versions()
        versions.failing = True
        async with bulletin(versions, beat=3 * EVERY) as one:
            listener = one.listen()
            assert [await heard(listener) for _ in range(3)][1:] == [": still here\n\n"] * 2
            versions.failing = False
            while (told := await heard(listener)) == ": still here\n\n":
                pass
            assert told == live._event("a")
            one.close()
            assert [rest async for rest in listener] == []

    asyncio.run(play())


@pytest.fixture
def works(tmp_path: Path) -> Backend:
    return backend(tmp_path, Engine())


def test_no_more_listen_than_may(works: Backend) -> None:
    with running(works) as url:
        listeners = [requests.get(f"{url}/api/v1/events", stream=True, timeout=10) for _ in range(live.MOST)]
        lines = [listener.iter_lines() for listener in listeners]
        assert {next(line) for line in lines} == {b"retry: 3000"}
        assert refused(requests.get(f"{url}/api/v1/events", timeout=10)) == (503, "as many listen as may")
        listeners[0].close()
        wait_until(lambda: _let_in(url))
        for listener in listeners:
            listener.close()


def test_who_only_asks_for_headers_gets_these(works: Backend) -> None:
    with running(works) as url:
        answer = requests.head(f"{url}/api/v1/events", timeout=10)
        assert answer.headers["Content-Type"].startswith("text/event-stream")


def _let_in(url: str) -> bool:
    with requests.get(f"{url}/api/v1/events", stream=True, timeout=10) as answer:
        return answer.status_code == 200
