"""A folder of rules becomes a library, or every problem of every file."""

import shutil
from pathlib import Path

import pytest
from rules_folder import ENTITIES, HOT, SIGNALS, SLOW, write

from rca.errors import ProblemsError, UsageError
from rca.library import Override
from rca.load import Changes, check, dcgm_aliases, load, metric_types, shipped, survey, table
from rca.model import LAYERS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "rules"
    write(root, "entities.yaml", ENTITIES)
    write(root, "signals/all.yaml", SIGNALS)
    write(root, "physical/hot.yaml", HOT)
    write(root, "training/slow.yaml", SLOW)
    return root


def said(folder: Path, extra: tuple[Path, ...] = (), changes: Changes | None = None) -> list[str]:
    """Return all problems, with places relative to the folder's parent."""
    return [str(one).replace(f"{folder.parent}/", "") for one in survey(folder, extra, changes).problems]


def test_a_folder_becomes_a_library(folder):
    library = load(folder)
    assert sorted(library.rules) == ["hot", "slow"]
    assert sorted(library.signals) == ["heat", "step"]
    assert (library.rules["hot"].id, library.rules["hot"].layer) == ("hot", "physical")
    assert library.rules["slow"].layer == "training"


def test_the_shipped_rules_load_without_a_problem():
    library = load()
    assert len(library.rules) > 10
    assert library.digest.startswith("sha256:")
    assert shipped().is_dir()


def test_the_digest_tells_of_every_byte_and_every_name(folder):
    before = load(folder).digest
    assert load(folder).digest == before
    write(folder, "physical/.hidden.yaml", "nonsense")
    write(folder, "README.md", "words")
    assert load(folder).digest == before
    write(folder, "physical/hot.yaml", f"{HOT}# a comment\n")
    changed = load(folder).digest
    assert changed != before
    (folder / "physical/hot.yaml").rename(folder / "physical/warm.yaml")
    assert load(folder).digest not in {before, changed}


def test_ten_broken_files_are_told_at_once(folder):
    write(folder, "physical/hot.yaml", HOT.replace("celsius", "x").replace("0.9", "9"))
    write(folder, "physical/a.yaml", "")
    write(folder, "physical/b.yaml", "summary: [")
    write(folder, "physical/c.yaml", HOT.replace("heat", "heet"))
    write(folder, "physical/d.yaml", HOT.replace("effect: slow", "effect: slwo"))
    write(folder, "physical/Bad-Name.yaml", HOT)
    write(folder, "training/e.yaml", SLOW.replace("by: 10%", "by: ten percent"))
    write(folder, "training/f.yml", SLOW)
    write(folder, "phisical/g.yaml", HOT)
    write(folder, "stray.yaml", HOT)
    write(folder, "signals/more.yaml", "heat: {summary: again, entity: gpu, layer: physical, unit: x, queries: [a]}\n")
    (folder / "resource").mkdir()
    (folder / "resource/h.yaml").write_bytes(b"summary: \xff")
    assert said(folder) == [
        "rules/phisical/g.yaml: unknown folder 'phisical', did you mean 'physical'",
        "rules/physical/Bad-Name.yaml:1: name 'Bad-Name' must be snake_case: small letters, digits and underscores",
        "rules/physical/a.yaml:1: the file is empty, nothing to read",
        "rules/physical/b.yaml:2: not YAML, while parsing a flow node did not find expected node content",
        "rules/physical/c.yaml:4: unknown signal 'heet', did you mean 'heat'",
        "rules/physical/d.yaml:5: unknown effect 'slwo', did you mean 'slow'",
        "rules/physical/hot.yaml:5: 'strength' must be at most 1, found 9",
        "rules/resource/h.yaml:1: byte 0xff is not UTF-8, save the file as UTF-8",
        "rules/signals/more.yaml:1: signal 'heat' exists already in rules/signals/all.yaml:1, choose a new name",
        f"rules/stray.yaml: lies outside of a folder, move it into one of signals, logs, tables, {', '.join(LAYERS)}",
        "rules/training/e.yaml:4: 'by' must be a number, a percentage or a signal's name, found 'ten percent'",
        "rules/training/f.yml: must end in .yaml, rename it to f.yaml",
    ]
    with pytest.raises(ProblemsError, match="unknown effect 'slwo'") as error:
        load(folder)
    assert error.value.exit_status == 3


def test_names_in_a_broken_file_are_not_unknown(folder):
    write(folder, "signals/all.yaml", SIGNALS.replace("unit: celsius", "unit: 5"))
    write(folder, "training/slow.yaml", SLOW.replace("role: symptom", "role: sympton"))
    assert [one.partition(":")[0] for one in said(folder)] == ["rules/signals/all.yaml", "rules/training/slow.yaml"]


def test_a_folder_without_entities_is_told(folder, tmp_path):
    (folder / "entities.yaml").unlink()
    assert said(folder) == ["rules/entities.yaml: is missing, a rules folder names its entities there"]
    with pytest.raises(ProblemsError, match=r"entities\.yaml: is missing"):
        load(folder)
    with pytest.raises(UsageError, match="nowhere: not a folder of rules"):
        load(tmp_path / "nowhere")


def test_extra_folders_add_and_never_replace(folder, tmp_path):
    extra = tmp_path / "extra"
    write(extra, "physical/cold.yaml", HOT.replace("heat", "chill"))
    write(extra, "signals/own.yaml", SIGNALS.splitlines()[0].replace("heat", "chill"))
    library = load(folder, [extra])
    assert sorted(library.rules) == ["cold", "hot", "slow"]
    assert library.digest != load(folder).digest
    write(extra, "resource/hot.yaml", HOT)
    write(extra, "entities.yaml", ENTITIES)
    assert said(folder, (extra,)) == [
        "extra/entities.yaml: extra rules cannot change entities, use labels in the config",
        "extra/resource/hot.yaml:1: rule 'hot' exists already in rules/physical/hot.yaml:1, choose a new name",
    ]


def test_a_deployment_changes_without_editing(folder):
    changes = Changes(
        queries={"heat": ["my_temperature"]},
        labels={"node": ["my_node"]},
        disable=["slow"],
        overrides=[Override(rule="hot", match={"model": "H100.*"}, set={"for": "5m", "heat.limit": 95})],
    )
    library = load(folder, changes=changes)
    assert library.signals["heat"].queries == ("my_temperature", "DCGM_FI_DEV_GPU_TEMP")
    assert library.entities.labels["node"].aliases == ("my_node", "node")
    assert sorted(library.rules) == ["hot"]
    assert library.rules["hot"].causes == ()
    assert library.overrides == tuple(changes.overrides)
    assert library.digest != load(folder).digest, "the digest tells of the changes"


def test_what_a_deployment_gets_wrong_is_told(folder):
    changes = Changes(
        queries={"heet": ["x"]},
        labels={"nod": ["x"]},
        disable=["slwo"],
        overrides=[
            Override(rule="hott", set={"for": "5m"}),
            Override(rule="hot", set={"heat.limt": 95}),
            Override(rule="hot", match={"modell": "H100", "node": "["}, set={"heat.limit": 95}),
        ],
        place="rca.yaml",
    )
    assert said(folder, changes=changes) == [
        "rca.yaml: '[' in 'match' is no regular expression, unterminated character set at position 0",
        "rca.yaml: a gpu has no label 'modell' for 'match', did you mean 'model'",
        "rca.yaml: override of unknown rule 'hott', did you mean 'hot'",
        "rca.yaml: rule 'hot' has no 'heat.limt' to override, did you mean 'heat.limit'",
        "rca.yaml: unknown label 'nod' in 'labels', did you mean 'node'",
        "rca.yaml: unknown rule 'slwo' in 'disable', did you mean 'slow'",
        "rca.yaml: unknown signal 'heet' in 'signals', did you mean 'heat'",
    ]


def test_an_override_of_two_numbers_at_once_is_ambiguous(folder):
    twice = "{any: [{signal: heat, is: above, limit: 90}, {signal: heat, is: above, limit: 95}]}"
    write(folder, "physical/hot.yaml", HOT.replace("{signal: heat, is: above, limit: 90}", twice))
    changes = Changes(overrides=[Override(rule="hot", set={"heat.limit": 99})])
    assert said(folder, changes=changes) == ["config: 'heat.limit' is ambiguous, rule 'hot' has it 2 times"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"for": 300}, "'for' must be a duration, for example 5m, found '300'"),
        ({"for": "soon"}, "'for' must be a duration, for example 5m, found 'soon'"),
        ({"heat.limit": "hot"}, "'heat.limit' must be a number, a percentage or a signal's name, found 'hot'"),
        (
            {"heat.signal": "step"},
            "rule 'hot' has no 'heat.signal' to override, known are for, heat.at_least, heat.clear, heat.limit",
        ),
        ({"for": "5m", "heat.limit": "95%", "heat.clear": 80.0}, None),
        ({"heat.limit": "heat"}, None),
    ],
)
def test_numbers_of_an_override_are_numbers(folder, settings, problem):
    changes = Changes(overrides=[Override(rule="hot", set=settings)])
    assert said(folder, changes=changes) == ([f"config: {problem}"] if problem else [])


def test_files_behind_links_count_and_broken_links_are_told(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (folder / "physical").rename(elsewhere)
    (folder / "physical").symlink_to(elsewhere)
    assert "hot" in load(folder).rules
    (folder / "training" / "gone.yaml").symlink_to(tmp_path / "nowhere")
    assert "rules/training/gone.yaml: cannot be read, no such file or directory" in said(folder)


def test_check_adds_runbooks_and_what_a_reviewer_objects_to(folder):
    assert check(folder).problems == ()
    (folder.parent / "docs").mkdir()
    (problem,) = check(folder).problems
    assert str(problem).endswith("hot.yaml:8: runbook 'docs/runbooks/hot.md' does not exist, write it")
    write(folder.parent, "docs/runbooks/hot.md", "# hot\n")
    assert check(folder).problems == ()


def test_spellings_of_dcgm_names():
    aliases = dcgm_aliases()
    assert aliases["DCGM_FI_DEV_XID_ERRORS"] == (("DCGM_FI_DEV_XID_ERROR", 1.0), ("dcgm_xid_errors", 1.0))
    assert dict(aliases["DCGM_FI_DEV_SM_CLOCK"])["DCGM_FI_DEV_SM_CLOCK_HERTZ"] == 1e6
    assert dict(aliases["DCGM_FI_DEV_SM_CLOCK_HERTZ"])["DCGM_FI_DEV_SM_CLOCK"] == pytest.approx(1e-6)
    for name, others in aliases.items():
        for other, factor in others:
            assert dict(aliases[other])[name] == pytest.approx(1 / factor)


def test_tables_that_are_broken_or_missing(folder):
    assert dcgm_aliases(folder) == {}
    assert metric_types(folder) == {}
    write(folder, "tables/dcgm_aliases.csv", "# c\nold_name,new_name,new_per_old_factor\na,b,1\n\nc,d,much\n")
    with pytest.raises(ProblemsError, match=r"dcgm_aliases.csv:5: needs old_name, new_name and a number"):
        dcgm_aliases(folder)
    assert said(folder) == [
        "rules/tables/dcgm_aliases.csv:5: needs old_name, new_name and a number as new_per_old_factor"
    ]
    with pytest.raises(ProblemsError, match="cannot be read"):
        list(table(folder / "tables/none.csv"))


def test_types_are_known_under_every_spelling():
    types = metric_types()
    assert types["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"] == "gauge"
    assert types["DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL"] == "gauge"
    assert types["DCGM_FI_DEV_PCIE_REPLAY_TOTAL"] == "counter"
    assert set(types.values()) == {"counter", "gauge"}


def test_rules_are_found_beside_the_package(tmp_path):
    copy = tmp_path / "rules"
    shutil.copytree(shipped(), copy)
    assert load(copy) == load()
