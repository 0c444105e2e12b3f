"""The page of `rca logs`: whole, in words as well as in colours, and harmless whatever the logs hold."""

import re
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from made_logs import SILENT, START, hang, line, mixed

from rca.cli import rca
from rca.logs.answers import Count, Counts, Lines, Told
from rca.logs.page import render
from rca.logs.picture import MOST_ROWS, draw

SVG = "{http://www.w3.org/2000/svg}"


def page(*arguments: object) -> str:
    result = CliRunner().invoke(rca, ["logs", *map(str, arguments), "-o", "html"])
    assert result.exit_code == 0, result.output
    return result.stdout


def drawing(text: str) -> ElementTree.Element:
    found = re.search(r'<svg class="map".*?</svg>', text, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found[0])


@pytest.mark.parametrize(
    "asked", [[], ["--silent"], ["--first-error"], ["--count"], ["--last", "10s"], ["--rank", "2"]], ids=" ".join
)
def test_a_page_stands_alone(tmp_path, asked):
    text = page(hang(tmp_path), *asked)
    assert "<script" not in text
    assert not re.search(r"(?:src|href)=|url\(|@import", text)
    assert "default-src 'none'" in text
    assert text.count("<h1>") == 1
    assert 'lang="en"' in text
    assert drawing(text).get("role") == "img"


def test_the_picture_shows_who_stopped_and_what_the_others_said(tmp_path):
    root = drawing(page(hang(tmp_path)))
    names = [one.text for one in root.iter("text")]
    assert [name for name in names if name and name.isdecimal()] == [str(rank) for rank in range(8)]
    titles = [one.text or "" for one in root.iter("title")]
    assert sum(title.startswith(f"rank {SILENT},") for title in titles) >= 1
    assert sum("NCCL_TIMEOUT (ERROR)" in title for title in titles) == 7
    assert "NCCL_TIMEOUT (ERROR)" in (root.get("aria-label") or "")


def test_a_rank_without_a_line_has_a_row(tmp_path):
    hang(tmp_path)
    (tmp_path / "rank-5.jsonl").write_bytes(b"")
    names = [one.text for one in drawing(page(tmp_path)).iter("text")]
    assert "5" in names


def test_many_ranks_are_gathered_in_bands_and_the_odd_one_stands_alone():
    rows = [
        Count(START + at, str(rank), "TRAIN_STEP", "INFO", 1)
        for rank in range(1024)
        for at in range(10)
        if rank != 700 or at < 4
    ]
    rows.append(Count(START + 3.0, "700", "DATA_LOAD_TIME", "WARN", 1))
    drawn = draw(Counts(rows, 1.0))
    assert drawn is not None
    names = [one.text or "" for one in ElementTree.fromstring(drawn.svg).iter("text")]
    assert "700" in names
    assert len([name for name in names if re.fullmatch(r"\d+–\d+", name)]) <= MOST_ROWS
    assert len(drawn.svg) < 100_000


def test_nothing_in_a_log_is_markup():
    bad = "<b onload='x'>&\x1b[31m\x00"
    row = Count(START, bad, bad, "ERROR", 1)
    text = render(Told(Lines([], 0), [bad], Counts([row], 1.0)))
    assert "<b onload" not in text
    assert "\x1b" not in text
    drawing(text)


def test_lines_without_a_time_make_no_picture(tmp_path):
    (tmp_path / "rank-0.log").write_text("loss 2.3\n", encoding="utf-8")
    text = page(tmp_path, "--rank", "0")
    assert '<svg class="map"' not in text
    assert "loss 2.3" in text


def test_a_page_of_a_large_job_stays_small(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in range(300):
        (folder / f"rank-{rank}.jsonl").write_text(
            "".join(line(START + second, rank, "m") for second in range(30)), encoding="utf-8"
        )
    assert len(page(folder)) < 200_000


def test_mixed_files_draw_the_same(tmp_path):
    one, other = page(hang(tmp_path / "run"), "--count"), page(mixed(tmp_path / "train.jsonl"), "--count")
    assert ElementTree.tostring(drawing(one)) == ElementTree.tostring(drawing(other))
