"""Who is a member of a job: ranks of the window, and those that fell silent before it."""

from rca.sources.identity import Seen
from rca.sources.ranks import Info, members

START = 1_000.0


def info(rank: int, first: float, last: float, **more: str) -> Info:
    """Return the info series of a rank of job `j`, one GPU a node."""
    values = {"job": "j", "rank": str(rank), "node": f"n{rank}", "gpu": "0", **more}
    return Info(Seen(values, {}, {}), first, last)


def ranks(infos: list[Info]) -> list[str]:
    return [one.seen.values["rank"] for one in members(infos, START)]


def test_a_rank_that_fell_silent_before_the_window_is_a_member_still():
    assert ranks([info(0, 0, 2_000), info(1, 0, 2_000), info(2, 0, 400)]) == ["0", "1", "2"]


def test_a_new_start_without_it_is_another_job():
    assert ranks([info(0, 500, 2_000), info(1, 500, 2_000), info(2, 0, 400)]) == ["0", "1"]


def test_one_whose_place_is_taken_or_that_runs_elsewhere_now_is_gone():
    assert ranks([info(0, 0, 2_000), info(1, 0, 2_000), info(2, 0, 400), info(9, 0, 2_000, node="n2")]) == [
        "0",
        "1",
        "9",
    ]
    moved = [info(0, 0, 2_000), info(1, 0, 400), info(1, 0, 2_000, node="n7")]
    assert [one.seen.values["node"] for one in members(moved, START)] == ["n0", "n7"]


def test_a_job_that_has_ended_before_the_window_is_no_job_of_it():
    assert ranks([info(0, 0, 400), info(1, 0, 400), info(5, 600, 2_000, job="k")]) == ["5"]
