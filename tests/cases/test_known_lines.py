"""Log templates over the kernel lines of real nodes, and over the logs of jobs that ran well."""

import re
from pathlib import Path

import pytest

from rca.load import phrases
from rca.phrases import Matcher

XID = re.compile(r"NVRM: Xid \((?:PCI:)?([\da-f:.]+)\): (\d+),")
SXID = re.compile(r"nvidia-nvswitch(\d+): SXid \(PCI:([\da-f:.]+)\): (\d+),")


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher(phrases())


def longer(pci: str) -> str:
    """Return a PCI address with a domain of eight digits and a function."""
    return f"0000{pci}" + ("" if "." in pci else ".0")


def test_every_xid_and_sxid_is_read_with_its_address(cases: Path, matcher: Matcher) -> None:
    xids = sxids = lost = 0
    for line in (cases / "kernel" / "xid-sxid-lines.txt").read_text(encoding="utf-8").splitlines():
        found = matcher.match(line)
        if one := XID.search(line):
            assert found is not None, line
            assert (found.groups["xid"], found.groups["pci"]) == (one[2], longer(one[1])), line
            xids += 1
        elif one := SXID.search(line):
            assert found is not None, line
            wanted = (one[1], longer(one[2]), one[3])
            assert tuple(found.groups[name] for name in ("nvswitch", "pci", "sxid")) == wanted, line
            sxids += 1
        elif "fallen off the bus" in line:
            assert found is not None, line
            assert (found.template, found.groups["xid"]) == ("gpu_lost", "79"), line
            lost += 1
        else:
            assert found is None, line
    assert (xids > 90, sxids > 5, lost) == (True, True, 3)


def test_the_fabric_manager_s_log_holds_one_error(cases: Path, matcher: Matcher) -> None:
    found, = matcher.find((cases / "kernel" / "fabricmanager.log").read_bytes())  # fmt: skip
    assert (found.template, found.groups["sxid"], found.groups["pci"]) == (
        "nvswitch_error",
        "12028",
        "00000000:86:00.0",
    )


def test_no_root_is_seen_in_jobs_that_ran(cases: Path, matcher: Matcher) -> None:
    known, read = set(), 0
    for path in sorted((cases / "megatron-logs").glob("*/*")):
        text = path.read_bytes()
        for found in matcher.find(text):
            assert matcher.templates[found.template].role != "root", f"{path.name} at {found.offset}: {found.template}"
            known.add(
                (found.template, text[found.offset : text.find(b"\n", found.offset)].split(b"] ")[-1].split(b" ")[0])
            )
        read += len(text)
    assert read > 300_000
    assert known == {  # one of them was ended by its launcher
        ("overflow_skipped", b"OVERFLOW!"),
        ("told_to_end", b"Killing"),
        ("torchrun_worker_failed", b"exits"),
    }
    assert list(matcher.find((cases / "hang-m4" / "gpu.query.all.txt").read_bytes())) == []
