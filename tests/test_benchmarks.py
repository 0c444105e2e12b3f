"""The benchmarks run, name the ill GPU and print a ratio; what they measure is no test's business."""

import re
import subprocess
import sys
from pathlib import Path

import servers

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


def printed(name: str, *flags: str) -> str:
    command = [sys.executable, str(FOLDER / name), "--small", "--repeats", "1", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_diagnose_is_measured_against_median_and_mad():
    text = printed("bench_diagnose.py")
    assert text.count("gpu_thermal_throttling on gpu node=node-01 gpu=2") == 2
    rows = re.findall(r"^ +(\d+) +(\d+) .* s +\d+\.\d\d +\d\.\d x  (?:ok|missed)$", text, re.MULTILINE)
    assert rows == [("1", "1"), ("3", "3")]


def test_a_diagnosis_is_measured_against_a_raw_fetch():
    servers.binary("promtool")
    servers.binary("prometheus")
    text = printed("bench_prometheus.py", "--profile")
    assert "gpu_thermal_throttling on node=node-10 gpu=1" in text
    assert ": right\n" in text
    assert "not asked for" not in text
    assert re.search(
        r"^ratio of the medians [\d.]+, of the best [\d.]+, target 2\.0 x  (ok|missed)$", text, re.MULTILINE
    )
    assert re.search(r"^peak memory [\d,]+ MiB, target 4,096 MiB  ok$", text, re.MULTILINE)
    raw, rca = (float(re.search(rf"^ +{side} .* ([\d.]+) MB", text, re.MULTILINE)[1]) for side in ("raw", "rca"))
    assert abs(raw - rca) <= 0.1, "both sides fetch the same bytes"
    assert re.search(r"^ +diagnose +[\d.]+ s", text, re.MULTILINE)


def test_a_tick_is_measured_against_rulers():
    servers.binary("promtool")
    servers.binary("prometheus")
    text = printed("bench_watch.py")
    assert re.search(r"^ +ruler 40 rules, \d+\.\d\d s a cycle$", text, re.MULTILINE)
    for kind in ("healthy", "diagnosing"):
        assert re.search(rf"^ *{kind} tick / ruler: \d+\.\d\d, target [\d.]+ x  (ok|missed)$", text, re.MULTILINE)
    assert "found gpu_thermal_throttling: right" in text


def test_a_page_is_measured_from_report_to_screen():
    servers.binary("chromium")
    text = printed("bench_page.py")
    assert re.search(r"^page of 640 ranks, \d+ kB, [1-9] maps$", text, re.MULTILINE)
    assert re.search(r"^\d+\.\d\d s in all, \d+\.\d\d of diagnose\(\); under 3 s: (ok|missed)$", text, re.MULTILINE)


def test_a_slice_of_logs_is_measured_against_grep():
    text = printed("bench_logs_slice.py", "--layout", "nodes")
    assert len(re.findall(r"^ +\d+\.\d\d s .* GiB +\d+\.\d+   rank (?:7|1000): right$", text, re.MULTILINE)) == 2


def test_reading_logs_is_measured_against_grep():
    text = printed("bench_logs.py")
    assert "grep finds 1,515 of steps: right" in text
    assert re.search(r"^ratio of the best \d+\.\d\d, target 2\.0 x  (ok|missed)$", text, re.MULTILINE)
    assert re.search(r"^memory grows by \d+ MiB$", text, re.MULTILINE)
