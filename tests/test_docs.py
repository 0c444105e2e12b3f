"""What the documents say is true: links lead somewhere, commands and rules exist, help texts are the program's."""

import re
import shlex
from pathlib import Path

import click
import pytest
from read_once import load

from rca import __version__
from rca.cli import rca

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path.relative_to(ROOT)
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md"))
)
PAGE = pytest.mark.parametrize("page", PAGES, ids=str)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_COMMAND = re.compile(r"^(?:\$ )?(rca .*)$", re.MULTILINE)
_FENCE = re.compile(r"```(?:console|sh|shell|bash|text)?\n(.*?)```", re.DOTALL)


def read(page: Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@PAGE
def test_links_lead_somewhere(page):
    for link in _LINK.findall(read(page)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        assert target.exists(), f"{page}: {link} leads nowhere"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{page}: {link} has no such heading"


def commands(text: str) -> list[str]:
    """Return the command lines that a page shows in its code blocks, continued lines joined."""
    blocks = "\n".join(_FENCE.findall(text)).replace("\\\n", " ")
    return _COMMAND.findall(blocks)


@PAGE
def test_commands_and_flags_exist(page):
    for line in commands(read(page)):
        words = shlex.split(line.partition(" | ")[0].partition(" > ")[0].partition(" #")[0])[1:]
        if not words or words[0].startswith("-") or not re.fullmatch(r"[a-z]+", words[0]):
            continue
        assert words[0] in rca.commands, f"{page}: {line}: no such command"
        command = rca.commands[words[0]]
        if isinstance(command, click.Group) and len(words) > 1 and not words[1].startswith("-"):
            assert words[1] in command.commands, f"{page}: {line}: no such command"
            command = command.commands[words[1]]
        known = {flag for option in command.params if isinstance(option, click.Option) for flag in option.opts}
        flags = {word.partition("=")[0] for word in words[1:] if word.startswith("-") and word != "-"}
        assert flags <= known | {"--help", "-h"}, f"{page}: {line}: unknown {sorted(flags - known)}"


@PAGE
def test_files_named_in_code_exist(page):
    for name in re.findall(r"`((?:rules|scenarios|docs|tests|benchmarks)/[\w./-]+\.\w+)`", read(page)):
        assert (ROOT / name).exists(), f"{page}: {name} does not exist"


@PAGE
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z]+):", read(Path("Makefile")), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)`", read(page)))
    assert named <= targets, f"{page}: no target {sorted(named - targets)}"


def test_every_root_cause_has_a_runbook_and_every_runbook_a_rule():
    roots = {rule.id for rule in load().rules.values() if rule.role == "root"}
    books = {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")} - {"README", "index"}
    assert books == roots


@pytest.mark.parametrize("rule", sorted(rule.id for rule in load().rules.values() if rule.role == "root"))
def test_a_runbook_tells_what_it_means_and_what_to_do(rule):
    text = read(Path("docs/runbooks") / f"{rule}.md")
    assert re.match(rf"# .*\b{rule}\b", text.splitlines()[0]), "the first line names the rule"
    heads = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert heads[:4] == ["Meaning", "Impact", "Diagnosis", "Mitigation"]


def test_the_changelog_tells_of_this_version():
    assert f"## [{__version__}]" in read(Path("CHANGELOG.md")) or "## [Unreleased]" in read(Path("CHANGELOG.md"))


def test_the_documents_speak_of_the_product_alone():
    for page in PAGES:
        assert not re.search(r"/work\b/|\bissue #?\d+\b", read(page)), page
