"""Waits are followed to the rank that all wait for, and no victim is blamed."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from rca.waits import Call, End, Word, trace

WORLD = {"world": [str(rank) for rank in range(8)]}


def layout(tp: int, pp: int, dp: int) -> dict[str, list[str]]:
    """Return the communicators of a job, tensor fastest, then data, then pipeline."""
    groups: dict[str, list[str]] = {}
    for rank in range(tp * pp * dp):
        t, d, p = rank % tp, rank // tp % dp, rank // tp // dp
        for name in (f"tp d{d} p{p}", f"dp t{t} p{p}", f"pp t{t} d{d}"):
            groups.setdefault(name, []).append(str(rank))
    return groups


def stuck(groups: dict[str, list[str]], dead: Iterable[str]) -> list[Call]:
    """Let ranks be absent: their tensor peers wait in that group, all others in their data parallel groups."""
    gone = set(dead)
    ill = {rank for name, ranks in groups.items() if name.startswith("tp") and gone & set(ranks) for rank in ranks}
    calls = []
    for name, ranks in groups.items():
        for rank in set(ranks) - gone:
            here = name.startswith("tp") if rank in ill else name.startswith("dp")
            calls.append(Call(rank, name, 41 if here else 40, 40))
    return calls


def test_one_rank_of_many_groups_is_found_behind_its_victims():
    groups = layout(tp=8, pp=4, dp=8)
    waits = trace(stuck(groups, ["77"]), [], groups)
    [end] = waits.ends
    assert (end.ranks, end.why) == (("77",), "silent")
    assert end.waiting == 7 + 8 * 7, "its tensor peers, and who waits for these in their data parallel groups"
    assert (waits.spoke, waits.of) == (255, 256)


@given(st.integers(0, 63))
def test_whichever_rank_it_is(rank: int) -> None:
    groups = layout(tp=4, pp=2, dp=8)
    [end] = trace(stuck(groups, [str(rank)]), [], groups).ends
    assert (end.ranks, end.why) == ((str(rank),), "silent")
    assert end.waiting >= 3 + 4 * 7


def test_a_rank_that_has_entered_less_is_absent_and_not_silent():
    calls = [Call(str(rank), "world", 7, 6) for rank in range(7)] + [Call("7", "world", 6, 6)]
    assert trace(calls, [], WORLD).ends == (End(("7",), 7, "absent", ("world",)),)


def test_where_all_have_entered_nobody_is_missing():
    waits = trace([Call(str(rank), "world", 7, 6) for rank in range(8)], [], WORLD)
    assert waits.ends == ()
    assert waits.joined == ("world",)


def test_a_rank_in_another_operation_is_odd():
    calls = [Call(str(rank), "world", 7, 6, "ALLREDUCE" if rank else "BROADCAST") for rank in range(8)]
    [end] = trace(calls, [], WORLD).ends
    assert (end.ranks, end.waiting, end.why) == (("0",), 7, "mismatched")


def test_two_that_wait_for_each_other_are_a_deadlock():
    groups = {"a": ["0", "1"], "b": ["0", "1"], **WORLD}
    calls = [Call("0", "a", 1, 0), Call("1", "a", 0, 0), Call("0", "b", 0, 0), Call("1", "b", 1, 0)]
    calls += [Call(str(rank), "world", 3, 2) for rank in range(2, 8)]
    calls += [Call(rank, "world", 2, 2) for rank in ("0", "1")]
    [end] = trace(calls, [], groups).ends
    assert (end.ranks, end.waiting, end.why) == (("0", "1"), 6, "deadlocked")


def test_words_lead_on():
    waits = trace([], [Word("1", "2"), Word("0", "1"), Word("3", "1")], {})
    assert waits.ends == (End(("2",), 3, "silent"),)


def test_what_a_rank_says_of_itself_makes_it_a_victim():
    calls = [Call(str(rank), "world", 7, 6) for rank in range(7)]
    assert trace(calls, [Word("7", "11")], WORLD).ends[0].ranks == ("11",)


def test_nobody_waits_where_all_is_well():
    waits = trace([Call(str(rank), "world", 7, 7) for rank in range(8)], [], WORLD)
    assert waits == ((), (), 8, 8)


def test_numbers_are_compared_in_one_communicator_only():
    groups = {"a": ["0", "1"], "b": ["2", "3"]}
    calls = [Call("0", "a", 900, 899), Call("1", "a", 900, 899), Call("2", "b", 3, 2), Call("3", "b", 2, 2)]
    waits = trace(calls, [], groups)
    assert [end.ranks for end in waits.ends] == [("3",)]
    assert waits.joined == ("a",)


def test_a_rank_that_is_left_in_a_collective_is_behind():
    calls = [Call(str(rank), "world", 8, 7) for rank in range(7)] + [Call("7", "world", 7, 6)]
    assert trace(calls, [], WORLD).ends == (End(("7",), 7, "behind", ("world",)),)
