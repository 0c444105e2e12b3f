"""What is installed works elsewhere: the wheel carries the rules, and no package beside its own."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from rca import __version__
from rca.load import load

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program outside of the checkout, with the libraries of this environment but not its `rca`."""
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_paths()["purelib"], "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Build the source distribution, and the wheel from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """Install the wheel into an environment of its own, and return its folder of programs."""
    folder = tmp_path_factory.mktemp("elsewhere")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    run(sys.executable, "-m", "pip", "-qq", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    return folder / "env" / "bin"


def shipped_files() -> set[str]:
    return {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "rules").rglob("*") if path.suffix in {".yaml", ".csv"}
    }


def test_the_wheel_holds_the_rules_inside_the_package_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"rca", f"rca-{__version__}.dist-info"}
    assert {f"rca/{name}" for name in shipped_files()} <= set(names)
    assert {
        "rca/cli.py",
        "rca/py.typed",
        "rca/export/alertmanager.yml",
        f"rca-{__version__}.dist-info/licenses/LICENSE",
    } <= set(names)


def test_the_source_distribution_holds_what_a_build_and_a_reader_need(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert shipped_files() <= names
    assert {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "Makefile", "tests/test_package.py"} <= names
    assert not [name for name in names if name.startswith((".venv", "dist/"))]


def test_the_command_runs_elsewhere(installed, tmp_path):
    assert run(installed / "rca", "--version", cwd=tmp_path) == f"rca {__version__}\n"
    assert "diagnose" in run(installed / "rca", "--help", cwd=tmp_path)
    assert run(installed / "rca", "check", cwd=tmp_path) == ""


def test_the_installed_rules_are_these_rules(installed, tmp_path):
    code = "import rca, rca.load as l; print(rca.__file__, l.shipped(), l.load().digest, sep='\\n')"
    file, folder, digest = run(installed / "python", "-c", code, cwd=tmp_path).split()
    assert Path(file).is_relative_to(installed.parent)
    assert Path(folder) == Path(file).parent / "rules"
    assert digest == load().digest
