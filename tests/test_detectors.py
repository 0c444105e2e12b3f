"""Each detector on hand-made rows: what it sees, what it must not see, what it cannot know."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rca import detectors as d
from rca.detectors import Detector, Score, View
from rca.peers import Cohort

NAN = float("nan")


def view(rows: list[list[float]], **more: object) -> View:
    matrix = np.array(rows, dtype=float)
    size = len(matrix)
    settings: dict[str, object] = {"before": None, "step": 15.0, "interval": 15.0}
    settings["cohort"] = Cohort(np.zeros(size, np.int64), np.zeros(size, np.int64), np.arange(size))
    return View(matrix, **{**settings, **more})  # type: ignore[arg-type]


def state(detector: Detector, seen: View) -> list[list[int]]:
    score: Score = detector.score(seen)  # type: ignore[attr-defined]
    return score.state.tolist()


def test_above_and_below_a_limit() -> None:
    rows = view([[1.0, 3.0, NAN]])
    assert state(d.Above(signal="a", limit=2), rows) == [[-1, 1, 0]]
    assert state(d.Below(signal="a", limit="200%"), rows) == [[1, -1, 0]]


def test_clear_keeps_a_finding_until_the_value_is_back() -> None:
    rows = view([[1.0, 5.0, 3.0, 3.0, 1.0, 3.0]])
    assert state(d.Above(signal="a", limit=4, clear=2), rows) == [[-1, 1, 1, 1, -1, -1]]


def test_a_signal_as_limit_is_unknown_where_it_is_missing() -> None:
    rows = view([[5.0, 5.0]], others={"b": np.array([[4.0, NAN]])})
    assert state(d.Above(signal="a", limit="b"), rows) == [[1, 0]]


def test_peers_need_significance_and_margin() -> None:
    rows = [[100.0], [101.0], [99.0], [100.5], [99.5], [100.0], [103.0]]
    assert state(d.AbovePeers(signal="a", by="5%", peers=("job",)), view(rows))[-1] == [-1]
    rows[-1] = [110.0]
    assert state(d.AbovePeers(signal="a", by="5%", peers=("job",)), view(rows))[-1] == [1]
    noisy = [[80.0], [120.0], [90.0], [110.0], [100.0], [70.0], [130.0]]
    assert state(d.AbovePeers(signal="a", by="5%", peers=("job",)), view(noisy))[-1] == [-1]


def test_fewer_than_five_peers_are_unknown_not_healthy() -> None:
    assert state(d.BelowPeers(signal="a", by="5%", peers=("job",)), view([[10.0], [10.0], [1.0]])) == [[0], [0], [0]]


def test_only_loaded_peers_are_compared() -> None:
    """Waiting GPUs boost: six wait at 1,980 MHz without load, five work at 1,700 MHz, and so does the sixth."""
    clocks = [[1980.0]] * 6 + [[1700.0]] * 6
    loads = np.array([[0.01]] * 6 + [[0.5]] * 6)
    seen = view(clocks, others={"load": loads})
    detector = d.BelowPeers(signal="a", by="4%", peers=("job",), load="load")
    assert state(detector, seen) == [[0]] * 6 + [[-1]] * 6


def test_baseline_needs_ten_samples() -> None:
    few, enough = np.full((1, 9), 2.0), np.full((1, 10), 2.0)
    detector = d.AboveBaseline(signal="a", by="10%")
    assert state(detector, view([[3.0]], before=few)) == [[0]]
    assert state(detector, view([[3.0]], before=enough)) == [[1]]
    assert state(detector, view([[2.1]], before=enough)) == [[-1]]
    assert state(d.BelowBaseline(signal="a", by="10%"), view([[1.0]], before=enough)) == [[1]]


def test_half_a_baseline_of_faults_moves_it_little() -> None:
    """The median of the past holds while less than half of it is ill."""
    before = np.concatenate([np.full((1, 30), 2.0), np.full((1, 25), 3.0)], axis=1)
    assert state(d.AboveBaseline(signal="a", by="10%", z=0.5), view([[3.0]], before=before)) == [[1]]


def test_what_comes_and_goes_in_the_baseline_is_no_onset() -> None:
    usual = [100.0] * 40
    returning = np.array([[*usual, 60.0, 60.0, 60.0, *usual]])
    lasting = np.array([[*usual, *usual, 60.0, 60.0, 60.0]])
    plain, beyond = (d.BelowBaseline(signal="a", by="10%", beyond=share) for share in (None, "3%"))
    assert state(plain, view([[60.0]], before=returning)) == [[1]]
    assert state(beyond, view([[60.0, 50.0]], before=returning)) == [[-1, 1]]
    assert state(beyond, view([[60.0]], before=lasting)) == [[1]]
    above = d.AboveBaseline(signal="a", by="10%", beyond="3%")
    assert state(above, view([[160.0, 210.0]], before=np.where(returning < 100, 160.0, 100.0))) == [[-1, 1]]


def test_rising_counts_growth_and_not_resets() -> None:
    assert state(d.Rising(signal="a", by=3), view([[100.0, 101.0, 0.0, 1.0, 2.0]])) == [[-1, -1, -1, -1, 1]]


def test_bits() -> None:
    bits = ("gpu_idle", "clocks_setting", "power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal")
    detector = d.Set(signal="a", bits=("sw_thermal", "hw_thermal"))
    assert state(detector, view([[4.0, 36.0, 64.0, NAN]], bits=bits)) == [[-1, 1, 1, 0]]


def test_a_bit_that_most_peers_show_is_nothing_special() -> None:
    detector = d.Set(signal="a", bits=("clocks_setting",), peers=("job",))
    bits = ("gpu_idle", "clocks_setting")
    assert state(detector, view([[2.0]] * 5 + [[0.0]], bits=bits)) == [[-1]] * 6
    assert state(detector, view([[2.0]] + [[0.0]] * 5, bits=bits)) == [[1]] + [[-1]] * 5


def test_a_sticky_code_is_old_news() -> None:
    detector = d.OneOf(signal="a", codes=(74.0,))
    assert state(detector, view([[74.0] * 8])) == [[-1] * 8]
    assert state(detector, view([[0.0] * 4 + [74.0] * 4])) == [[-1] * 4 + [1] * 4]
    assert state(detector, view([[NAN] * 4 + [74.0] * 4])) == [[0] * 4 + [1] * 4]
    assert state(detector, view([[13.0] * 4 + [43.0] * 4])) == [[-1] * 8]


def test_stalled_scales_with_the_steps() -> None:
    moving = [float(step) for step in range(40)]
    stopped = moving[:10] + [9.0] * 30
    detector = d.Stalled(signal="a", least="5m", factor=10)
    found = state(detector, view([moving, stopped]))
    assert found[0][-1] == -1
    assert found[1][-1] == 1
    slow = [float(step // 10) for step in range(80)]
    assert state(detector, view([slow]))[0][-1] == -1


def test_what_was_never_seen_to_move_stands_after_long_enough() -> None:
    detector = d.Stalled(signal="a", least="2m", factor=5)
    before = np.array([[120.0] * 150, [0.0] * 150, [NAN] * 150])
    seen = view([[120.0] * 40, [0.0] * 40, [120.0] * 40], before=before)
    assert [row[-1] for row in state(detector, seen)] == [1, 0, 0]  # 0 has not begun; too short


def test_a_past_that_is_ill_in_part_is_compared_with_its_first_quarter() -> None:
    noise = 0.01 * np.sin(np.arange(240.0) * 12.9898)
    for healthy in (180, 140, 80):
        before = (np.where(np.arange(240) < healthy, 4.0, 5.2) + noise)[None, :]
        found = d.AboveBaseline(signal="a", by="10%").score(view([[5.2] * 4], before=before))
        assert found.state.tolist() == [[1] * 4], healthy
        assert found.expected[0, 0] == pytest.approx(4.0, abs=0.02)
        assert state(d.BelowBaseline(signal="a", by="10%"), view([[5.2] * 4], before=before)) == [[-1] * 4]
    ill = np.full((1, 240), 5.2) + noise
    assert state(d.AboveBaseline(signal="a", by="10%"), view([[5.2] * 4], before=ill)) == [[-1] * 4]


def test_codes_and_growth_count_since_the_incident_began() -> None:
    before = np.array([[0.0] * 10 + [79.0] * 10, [79.0] * 20])
    rows = [[79.0] * 4] * 2
    detector, rising = d.OneOf(signal="a", codes=(79,)), d.Rising(signal="a", by=1)
    assert state(detector, view(rows, before=before)) == [[-1] * 4] * 2
    since = np.array([12, 12])
    assert state(detector, view(rows, before=before, since=since)) == [[1] * 4, [-1] * 4]
    assert state(rising, view(rows, before=before, since=since)) == [[1] * 4, [-1] * 4]
    assert state(detector, view(rows, before=before, since=np.array([8, 0]))) == [[-1] * 4] * 2, "it was so before"


def test_not_falling() -> None:
    time = np.arange(60.0)
    noise = 0.01 * np.sin(time * 12.9898)
    falling, rising = 2.0 - 0.01 * time + noise, 2.0 + 0.01 * time + noise
    assert [row[0] for row in state(d.NotFalling(signal="a"), view([list(falling), list(rising)]))] == [-1, 1]
    assert state(d.NotFalling(signal="a"), view([[1.0, 2.0, 3.0]])) == [[0, 0, 0]]


def test_drifting() -> None:
    rising = [100.0 + 0.1 * step for step in range(60)]
    assert state(d.Drifting(signal="a", by="10%"), view([rising]))[0][0] == 1
    assert state(d.Drifting(signal="a", by="50%"), view([rising]))[0][0] == -1


def test_missing_is_a_series_that_ends_among_living_peers() -> None:
    alive, ended = [1.0] * 12, [1.0] * 5 + [NAN] * 7
    detector = d.Missing(signal="a", peers=("node",))
    assert state(detector, view([alive, alive, ended]))[2] == [-1] * 5 + [0, 0, 0, 1, 1, 1, 1]
    assert 1 not in state(detector, view([ended, ended, ended]))[2], "when all end at once nobody is missing"
    assert 1 not in state(detector, view([alive, alive, [NAN] * 12]))[2], "what never was cannot end"


def test_correlated_looks_at_movement_not_at_level() -> None:
    random = np.random.default_rng(1)
    moves = 1 + 0.1 * random.standard_normal((8, 40))
    together = d.Correlated(signal="a", other="b", limit=0.9, peers=("job",))
    assert {row[0] for row in state(together, view(moves.tolist(), others={"b": 2 * moves}))} == {1}
    apart = 1 + 0.1 * random.standard_normal((8, 40))
    assert {row[0] for row in state(together, view(moves.tolist(), others={"b": apart}))} == {-1}
    shifted = 1 + 0.02 * random.standard_normal((8, 40))
    other = 1 + 0.02 * random.standard_normal((8, 40))
    shifted[:3, 20:] += 0.5
    other[:3, 20:] += 0.5
    assert {row[0] for row in state(together, view(shifted.tolist(), others={"b": other}))} == {-1}
    constant = np.ones((8, 40))
    constant[3] = 1.5
    assert {row[0] for row in state(together, view(constant.tolist(), others={"b": constant}))} == {-1}


def test_a_logged_event_lasts() -> None:
    assert state(d.Logged(signal="e"), view([[0.0, 1.0, 1.0]])) == [[-1, 1, 1]]


def test_lines_from_before_the_window_are_not_logged_in_it() -> None:
    seen = view([[3.0, 3.0, 3.0], [3.0, 3.0, 4.0], [NAN, NAN, 1.0], [NAN, NAN, NAN]])
    assert state(d.Logged(signal="e"), seen) == [[-1, -1, -1], [-1, -1, 1], [0, 0, 1], [0, 0, 0]]


EVERY = [
    d.Above(signal="a", limit=0),
    d.Below(signal="a", limit=0),
    d.AbovePeers(signal="a", by="5%", peers=("job",)),
    d.BelowPeers(signal="a", by="5%", peers=("job",)),
    d.AboveBaseline(signal="a", by="5%"),
    d.BelowBaseline(signal="a", by="5%"),
    d.OneOf(signal="a", codes=(1.0,)),
    d.Set(signal="a", bits=("x",)),
    d.Unlike(signal="a", peers=("job",)),
]


def test_unlike_is_another_value_than_most_peers_have() -> None:
    odd = d.Unlike(signal="a", peers=("job",))
    assert state(odd, view([[7.0], [7.0], [7.0], [8.0], [7.0]])) == [[-1], [-1], [-1], [1], [-1]]
    assert state(odd, view([[7.0, 7.0]] * 5 + [[7.0, 8.0], [NAN, NAN]])) == [[-1, -1]] * 5 + [[-1, 1], [0, 0]]
    assert (
        state(d.Unlike(signal="a", peers=("job",), agree="60%"), view([[7.0]] * 4 + [[8.0]] * 2))
        == [[-1]] * 4 + [[1]] * 2
    )


def test_nobody_is_unlike_divided_peers() -> None:
    """Half way through an upgrade there is no usual version."""
    odd = d.Unlike(signal="a", peers=("job",))
    assert state(odd, view([[7.0]] * 4 + [[8.0]] * 4)) == [[-1]] * 8
    assert state(odd, view([[7.0]] * 6 + [[8.0]] * 2)) == [[-1]] * 6 + [[1]] * 2
    assert state(odd, view([[7.0]] * 5 + [[8.0]] * 2)) == [[-1]] * 5 + [[1]] * 2
    assert state(odd, view([[7.0]] * 3 + [[8.0]] * 2)) == [[-1]] * 5


def test_three_others_must_agree_at_least() -> None:
    odd = d.Unlike(signal="a", peers=("job",))
    assert state(odd, view([[7.0], [7.0], [8.0]])) == [[0], [0], [0]]
    assert state(odd, view([[7.0], [7.0], [7.0], [8.0]])) == [[-1], [-1], [-1], [1]]


def test_a_missed_scrape_makes_no_peer_vanish() -> None:
    odd = d.Unlike(signal="a", peers=("job",))
    assert state(odd, view([[7.0, NAN], [7.0, 7.0], [7.0, NAN], [8.0, 8.0]])) == [[-1, 0], [-1, -1], [-1, 0], [1, 1]]


@given(arrays(np.float64, (6, 8), elements=st.one_of(st.floats(-10, 10), st.just(NAN))), st.sampled_from(EVERY))
def test_a_missing_sample_never_makes_a_finding(matrix: np.ndarray, detector: Detector) -> None:
    found = np.array(state(detector, view(matrix.tolist(), before=np.abs(matrix), bits=("x",))))
    assert (found[np.isnan(matrix)] == 0).all()


@pytest.mark.parametrize(("text", "value"), [("7%", 0.07), ("0.5", 0.5), (3, 3.0), ("gpu_power", None)])
def test_numbers(text: float | str, value: float | None) -> None:
    assert d.number(text) == value
