"""House rules for the code that no other tool holds."""

import ast
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "rca").rglob("*.py"))
FILES = sorted([*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])
SOURCE = pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
FILE = pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
WORDS = ("Base", "Impl", "Manager", "Helper", "Utils", "Engine", "Registry")


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function below its docstring."""
    first = function.body[1] if ast.get_docstring(function) and len(function.body) > 1 else function.body[0]
    return (function.end_lineno or 0) - first.lineno + 1


@FILE
def test_a_file_stays_under_500_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) < 500


@SOURCE
def test_a_function_stays_under_60_lines(path):
    assert {function.name: body(function) for function in functions(path) if body(function) >= 60} == {}


def test_bodies_are_short():
    assert statistics.median(body(function) for path in SOURCES for function in functions(path)) <= 10


@SOURCE
def test_interfaces_name_what_they_take(path):
    public = [node for node in tree(path).body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    starred = [function.name for function in public if function.args.kwarg is not None]
    assert starred == [], "**kwargs hides what a function takes"


@SOURCE
def test_no_error_is_caught_wholesale(path):
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else ""
            assert caught not in {"", "Exception", "BaseException"}, f"line {node.lineno}"


@SOURCE
def test_no_state_is_global(path):
    assert not [node.lineno for node in ast.walk(tree(path)) if isinstance(node, ast.Global)]


@SOURCE
def test_names_say_what_a_thing_is(path):
    names = [node.name for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)]
    assert [name for name in names if name.endswith(WORDS) or name.startswith(WORDS)] == []


@SOURCE
def test_annotations_are_there_at_run_time(path):
    text = path.read_text(encoding="utf-8")
    assert not ("msgspec" in text and "TYPE_CHECKING" in text), "msgspec resolves annotations at run time"


@FILE
def test_nothing_is_evaluated(path):
    calls = [node.func for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    names = {call.id for call in calls if isinstance(call, ast.Name)}
    assert not {"eval", "exec"} & names


@FILE
def test_the_code_speaks_of_the_product_alone(path):
    assert "/work" + "/" not in path.read_text(encoding="utf-8")
