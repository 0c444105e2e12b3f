"""What a server lacks for a diagnosis: rules that cannot fire, signals to enable, collection that does not fit."""

import numpy as np
import pytest
from memory_store import END, MemoryStore, counter, series, ticks
from small_library import library, signal

from rca.advice import Advice, Kept, advise, possible
from rca.detectors import Above, AbovePeers, All, Any, BelowBaseline, Not, Unless
from rca.library import Derived, Fallback, Library, Rule
from rca.model import Window
from rca.render import _advice as page
from rca.sources.prometheus import kept
from rca.sources.survey import Survey, survey

HEAT = Above(signal="heat", limit=90)
LOAD = Above(signal="load", limit=0.9)
DAYS = 15 * 86400.0
LONG = Kept(DAYS, True)
COUNTERS = "dcgm-exporter counters file: LOAD, gauge, Load."


def rule(when: object, name: str = "hot", entity: str = "gpu", **more: object) -> Rule:
    fields = {"id": name, "layer": "physical", "summary": "s", "entity": entity, "role": "root", "when": when, **more}
    return Rule(**fields)


def gpu(number: int = 0, node: str = "n0", **more: str) -> dict[str, str]:
    return {"job": "dcgm", "instance": f"{node}:9400", "Hostname": node, "gpu": str(number), "job_id": "a", **more}


def noise(step: float = 15.0, seconds: float = 900.0, held: int = 1, seed: int = 0) -> list[tuple[float, float]]:
    """Return samples that change at every scrape, or are held for `held` scrapes."""
    values = np.repeat(np.random.default_rng(seed).normal(60.0, 1.0, 2000), held)
    return ticks(values[: int(seconds / step) + 1], step=step, seconds=seconds)


def small(**rules: Rule) -> Library:
    return library(
        rules or {"hot": rule(HEAT)}, heat=signal("gpu", "HEAT"), load=signal("gpu", "LOAD", enable=COUNTERS)
    )


def look(held: list, given: Library | None = None) -> Survey:
    return survey(MemoryStore(held), given or small(), Window(END - 900.0, END, 900.0))


def advice(held: list, given: Library | None = None, told: Kept = LONG) -> Advice:
    return advise(look(held, given), "http://prometheus:9090", told)


def fleet(step: float = 15.0, held: int = 1, name: str = "HEAT") -> list:
    return [series(name, gpu(number), noise(step, held=held, seed=number)) for number in range(8)]


# rules and signals


@pytest.mark.parametrize(
    ("condition", "able"),
    [
        (HEAT, True),
        (LOAD, False),
        (Any((HEAT, LOAD)), True),
        (All((HEAT, LOAD)), False),
        (All((HEAT, Unless(LOAD))), True),
        (All((HEAT, Not(LOAD))), False),
        (Not(All((HEAT, LOAD))), True),
        (Not(Any((HEAT, LOAD))), False),
        (Not(Unless(HEAT)), True),
        (Not(Unless(LOAD)), False),
        (Not(Not(LOAD)), False),
        (Above(signal="heat", limit="load"), False),
        (AbovePeers(signal="heat", by=0.1, peers=("node",), load="load"), True),
    ],
    ids=str,
)
def test_a_condition_can_hold_only_with_what_is_there(condition, able):
    assert possible(condition, {"heat"}.__contains__) is able


def test_a_rule_that_can_never_fire_says_what_it_lacks():
    given = small(hot=rule(HEAT), busy=rule(All((HEAT, LOAD)), "busy"), either=rule(Any((HEAT, LOAD)), "either"))
    found = advice(fleet(), given)
    assert [(one.rule, one.missing) for one in found.dead] == [("busy", ["load"])]
    [lacking] = found.lacking
    assert (lacking.signal, lacking.enable, lacking.rules, lacking.there) == (
        "load",
        COUNTERS,
        ["busy", "either"],
        False,
    )
    assert lacking.why == "no series LOAD on the server"
    assert not found.fine()


def test_a_derived_signal_lacks_what_it_is_made_of():
    work = signal("gpu", derived=Derived(product=("heat", "load")))
    given = small(hot=rule(Above(signal="work", limit=1)))
    given = library(given.rules, **given.signals, work=work)
    found = advice(fleet(), given)
    assert [one.missing for one in found.dead] == [["load"]]


def test_a_constant_that_a_signal_knows_for_a_model_is_there():
    limit = signal("gpu", "LIMIT", fallback=Fallback(label="model", values={".*H100.*": 87.0}))
    given = library({"hot": rule(Above(signal="heat", limit="limit"))}, heat=signal("gpu", "HEAT"), limit=limit)
    known = [series("HEAT", gpu(number, modelName="H100"), noise(seed=number)) for number in range(8)]
    assert advice(known, given).dead == []
    assert [one.rule for one in advice(fleet(), given).dead] == ["hot"]


def test_series_that_name_nobody_are_there_and_of_no_use():
    held = [*fleet(), series("LOAD", {"job": "dcgm", "instance": "n0:9400"}, noise())]
    found = advice(held, small(busy=rule(LOAD, "busy"), hot=rule(HEAT)))
    assert [(one.signal, one.there) for one in found.lacking] == [("load", True)]
    assert "none of its 1 series names a gpu" in found.lacking[0].why
    assert any("1 series name no gpu, for example LOAD{" in one for one in found.collection)
    assert "There, without a series of use" in page.render(found)


def test_signals_that_no_rule_reads_are_nobodys_business():
    assert advice(fleet()).lacking == []
    assert advice(fleet()).fine()


def test_what_could_fire_and_cannot_be_judged_is_told_apart():
    past = rule(BelowBaseline(signal="heat", by=0.1), "fell")
    lonely = rule(AbovePeers(signal="heat", by=0.1, peers=("node",)), "lonely")
    found = advice(fleet()[:2], small(hot=rule(HEAT), fell=past, lonely=lonely, gone=rule(HEAT, "gone", "switch")))
    assert [(one.why.partition(": ")[0], one.rules) for one in found.unjudged] == [
        ("no switch is known", ["gone"]),
        ("unknown everywhere (2 gpus)", ["fell", "lonely"]),
    ]
    assert found.fine()


# collection


def test_an_exporter_that_collects_slower_than_it_is_scraped():
    [told] = advice(fleet(held=2)).collection
    assert "scrape job dcgm: scraped every 15 s, but its values change only every 30 s or so" in told
    assert "--collect-interval 15000" in told
    assert look(fleet(held=2)).targets[0].collected == pytest.approx(30.0, rel=0.1)
    assert look(fleet()).targets[0].collected == pytest.approx(15.0)


def test_a_job_that_steps_slowly_is_no_slow_exporter():
    given = library({"late": rule(Above(signal="pace", limit=1), "late", "rank")}, pace=signal("rank", "STEP"))
    held = [series("STEP", {"job": "train", "instance": "n0:1", "job_id": "a", "rank": str(number)}, noise(held=4))
            for number in range(8)]  # fmt: skip
    assert [one.collected for one in look(held, given).targets] == [pytest.approx(np.nan, nan_ok=True)]
    assert not any("change only" in one for one in advice(held, given).collection)


def test_series_with_their_own_timestamps_tell_nothing_of_scrapes():
    held = [series("HEAT", gpu(number), [(time - number, value) for time, value in noise(seed=number, held=2)])
            for number in range(8)]  # fmt: skip
    assert np.isnan(look(held).targets[0].collected)
    assert look(held).targets[0].interval == 15.0


def test_sampling_faster_than_two_seconds():
    [told] = advice(fleet(step=1.0)).collection
    assert "scraped every 1 s" in told
    assert advice(fleet(step=2.0)).collection == []


@pytest.mark.parametrize(("step", "told"), [(15.0, 0), (30.0, 1)])
def test_rates_over_too_few_scrapes(step, told):
    given = library({"hot": rule(HEAT, hold="2m")}, heat=signal("gpu", "rate(HEAT_total[1m])"))
    held = [series("HEAT_total", gpu(number), counter(1.0 + number, step=step)) for number in range(8)]
    found = advice(held, given).collection
    assert len(found) == told
    assert all("rates: 60 s hold 2 new values of heat" in one and "every 15 s, or" in one for one in found)


def test_rates_over_too_few_collections():
    given = library({"hot": rule(HEAT)}, heat=signal("gpu", "rate(HEAT_total[1m])"), other=signal("gpu", "HEAT"))
    held = [series("HEAT_total", gpu(number), [(time, 100.0 * (time // 30)) for time, _ in ticks(0.0)])
            for number in range(8)]  # fmt: skip
    assert any("rates: 60 s hold 2 new values" in one for one in advice(held, given).collection)


def test_a_ratio_of_counts_chooses_its_own_width():
    given = library({"hot": rule(HEAT, hold="2m")}, heat=signal("gpu", "rate(A_total[1m]) / rate(B_total[1m])"))
    held = [
        series(name, gpu(number), counter(2.0, step=30.0)) for name in ("A_total", "B_total") for number in range(8)
    ]
    assert advice(held, given).collection == []


def test_rules_that_hold_for_less_than_two_samples():
    [told] = advice(fleet(step=60.0), small(hot=rule(HEAT), slow=rule(HEAT, "slow", hold="3m"))).collection
    assert told.startswith("rules: hot hold after less than two samples, which come every 60 s")


def test_two_exporters_for_one_gpu():
    twice = [series("HEAT", {**one, "instance": "n0:9401"}, samples) for one, samples in fleet()]
    held = [*fleet(), *[({**labels, "__name__": "HEAT"}, samples) for labels, samples in twice]]
    assert any("two exporters for one gpu: 8 have them, for example n0/0" in one for one in advice(held).collection)


def test_gpus_and_hosts_that_have_no_name_in_common():
    given = library(
        {"hot": rule(HEAT), "full": rule(LOAD, "full", "node")}, heat=signal("gpu", "HEAT"), load=signal("node", "LOAD")
    )
    pods = [series("HEAT", gpu(number, "dcgm-x7k2p"), noise(seed=number)) for number in range(8)]
    hosts = [series("LOAD", {"job": "node", "instance": f"n{number}:9100"}, noise(seed=number)) for number in range(3)]
    [told] = [one for one in advice(pods + hosts, given).collection if one.startswith("nodes: no node")]
    assert "no node of a gpu (dcgm-x7k2p, ...) is one of a node (n0, ...)" in told
    assert not any(one.startswith("nodes: no node") for one in advice(fleet() + hosts, given).collection)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (Kept(DAYS, True), ""),
        (Kept(2 * 86400.0, True), "retention: 48 h, less than 72 h; start Prometheus with --storage.tsdb.retention"),
        (Kept(None, True), ""),
        (Kept(None, False), "retention: no sample is older than 72 h"),
    ],
)
def test_retention(told, said):
    found = advice(fleet(), told=told).collection
    assert [one[: len(said)] for one in found] == [said] * bool(said)


@pytest.mark.parametrize(
    ("told", "days"),
    [("15d", 15), ("2w", 14), ("1y", 365), ("1d12h", 1.5), ("15d or 10GiB", 15), ("10GiB", None), ("", None)],
)
def test_a_retention_is_read_as_prometheus_writes_it(told, days):
    assert kept(told) == (None if days is None else days * 86400.0)


# the page


def test_the_page_shows_lines_to_copy_unbroken():
    given = small(busy=rule(All((HEAT, LOAD)), "busy"))
    text = page.render(advice(fleet(held=2), given), width=40)
    assert text.splitlines()[0] == (
        "http://prometheus:9090: 0 of 1 rule can fire, 1 signal missing, 1 thing to change in collection"
    )
    assert "\n  dcgm-exporter counters file\n    LOAD, gauge, Load.\n      load for busy\n" in text
    assert "busy (physical, root): without load" in " ".join(text.split())
    assert text.endswith("\n")
    assert "\x1b" not in text


def test_a_page_without_advice_is_short():
    text = page.render(advice(fleet()))
    assert text.splitlines()[0] == "http://prometheus:9090: 1 of 1 rule can fire, nothing to advise"
    assert len(text.splitlines()) == 3


def test_labels_cannot_steer_a_terminal():
    held = [*fleet(), series("LOAD", {"job": "x\x1b[31m", "instance": "n0:9400"}, noise())]
    text = page.render(advice(held, small(busy=rule(LOAD, "busy"), hot=rule(HEAT))), colour=True)
    assert "\x1b[31m" not in text


def test_an_empty_store_lacks_everything():
    found = advice([], small(busy=rule(LOAD, "busy"), hot=rule(HEAT)))
    assert [one.rule for one in found.dead] == ["busy", "hot"]
    assert found.seen == {}
    assert "nothing was seen" in page.render(found)
