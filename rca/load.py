"""From a folder of rules to a `Library`, or every problem of every file at once.

A rules folder holds `entities.yaml`, `signals/*.yaml` (name: signal), one rule a file in `<layer>/<id>.yaml`, and
`tables/*.csv`. A folder of extra rules holds the same without `entities.yaml` and only ever adds.
"""

import csv
import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from rca.errors import Problem, ProblemsError, UsageError, suggestion
from rca.imports import Import
from rca.library import Entities, Label, Library, Override, Rule, Signal
from rca.lint import faults, lint, order
from rca.model import LAYERS
from rca.phrases import Template
from rca.phrases import lint as phrase_lint
from rca.places import Places
from rca.reader import Reading, decode_file

_ID = re.compile(r"[a-z][a-z0-9_]*")
_FOLDERS = ("signals", "logs", "tables", *LAYERS)
T = TypeVar("T")
Aliases = Mapping[str, tuple[tuple[str, float], ...]]


@dataclass(frozen=True)
class Changes:
    """What a deployment changes without editing a file.

    `queries` are tried before a signal's own, `labels` before the aliases of `entities.yaml`; rules in `disable` are
    left out with the edges that lead to them. `place` is the file that says so, for messages.
    """

    overrides: Sequence[Override] = ()
    queries: Mapping[str, Sequence[str]] = field(default_factory=dict)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    disable: Sequence[str] = ()
    place: str = "config"


class Loaded(NamedTuple):
    """What came of some folders: the library (None where files are too broken for one), places and problems."""

    library: Library | None
    places: Places
    problems: tuple[Problem, ...]
    phrases: tuple[Template, ...] = ()


def load(rules: Path | None = None, extra: Sequence[Path] = (), changes: Changes | None = None) -> Library:
    """Load the shipped rules (or those of folder `rules`) and the folders `extra`, and check them together.

    Raises ProblemsError with everything that is wrong in any file, UsageError where a folder does not exist.
    """
    loaded = survey(rules, extra, changes)
    if loaded.problems or loaded.library is None:
        raise ProblemsError(loaded.problems)
    return loaded.library


def check(rules: Path | None = None, extra: Sequence[Path] = (), changes: Changes | None = None) -> Loaded:
    """Load as `survey` does, and add the log templates, and what `lint` and the runbooks' folder have to say."""
    loaded = survey(rules, extra, changes)
    main = Path(rules) if rules is not None else shipped()
    templates, problems = _phrases([main, *(Path(folder) for folder in extra)])
    problems += loaded.problems
    if loaded.library is not None:
        problems += lint(loaded.library, loaded.places, metric_types(main))
        problems += _runbooks(loaded.library, loaded.places)
        problems += _import_problems([main, *(Path(folder) for folder in extra)])
    return Loaded(loaded.library, loaded.places, order(problems), templates)


def phrases(rules: Path | None = None, extra: Sequence[Path] = ()) -> tuple[Template, ...]:
    """Return the log-line templates of the shipped rules (or of folder `rules`) and of the folders `extra`, by id.

    Raises ProblemsError with everything that is wrong in any of them, UsageError where a folder does not exist. The
    examples of shipped templates alone are not run here, which takes some tenths of a second; `check` runs them.
    """
    folders = [Path(rules) if rules is not None else shipped(), *(Path(folder) for folder in extra)]
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder}: not a folder of rules")
    templates, problems = _phrases(folders, run=rules is not None or bool(extra))
    if problems:
        raise ProblemsError(order(problems))
    return templates


def _phrases(folders: Sequence[Path], *, run: bool = True) -> tuple[tuple[Template, ...], list[Problem]]:
    """Read the log-line templates of some folders, and say what is wrong with them; `run` their examples too."""
    found = _Found()
    templates: dict[str, Template] = {}
    for folder in folders:
        paths = [path for path in _files(folder) if path.suffix == ".yaml" and path.parent == folder / "logs"]
        for name, path in ((path.stem, path) for path in paths):
            if found.add("log", name, f"{path}:1"):
                reading = decode_file(path, str(path), Template, {"id": name})
                _keep_lines(reading, ("log", name), found, str(path))
                if reading.value is not None:
                    templates[name] = reading.value
    in_order = tuple(templates[name] for name in sorted(templates))
    if found.problems or not run:
        return in_order, found.problems
    events = folders[0] / "tables" / "events.csv"
    names = {row.get("event", "") for _, row in table(events)} if events.is_file() else None
    main = [name for name in templates if Path(found.places["log", name]).parent == folders[0] / "logs"]
    return in_order, list(phrase_lint(in_order, found.places, names, main))


def survey(rules: Path | None = None, extra: Sequence[Path] = (), changes: Changes | None = None) -> Loaded:
    """Load as `load` does, but return the problems together with the places of all that could be read."""
    folders = [Path(rules) if rules is not None else shipped(), *(Path(folder) for folder in extra)]
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder}: not a folder of rules")
    found = _Found()
    files = [_files(folder) for folder in folders]
    for folder, paths in zip(folders, files, strict=True):
        _read_folder(folder, paths, found, main=folder is folders[0])
    if found.entities is None:
        return Loaded(None, found.places, order(found.problems))
    library = Library(
        signals=dict(sorted(found.signals.items())),
        entities=found.entities,
        rules=dict(sorted(found.rules.items())),
        aliases=_aliases(folders[0], found),
        digest=_digest(folders, files, found),
    )
    changes = changes or Changes()
    found.problems.extend(_change_problems(library, changes, found.places))
    library = changed(library, changes)
    found.places.update({("override", index): changes.place for index in range(len(changes.overrides))})
    found.problems.extend(faults(library, found.places))
    return Loaded(library, found.places, order(found.problems))


def shipped() -> Path:
    """Return the folder of the rules that come with the program: beside this file in a wheel, else in the checkout."""
    here = Path(__file__).resolve().parent
    installed = here / "rules"
    return installed if installed.is_dir() else here.parent / "rules"


def changed(library: Library, changes: Changes) -> Library:
    """Return the library with a deployment's changes; names that it does not know are left aside."""
    gone = frozenset(changes.disable)
    rules = {
        name: msgspec.structs.replace(rule, causes=tuple(edge for edge in rule.causes if edge.effect not in gone))
        for name, rule in library.rules.items()
        if name not in gone
    }
    signals = {
        name: msgspec.structs.replace(signal, queries=(*changes.queries.get(name, ()), *signal.queries))
        for name, signal in library.signals.items()
    }
    labels = {
        name: Label(aliases=(*changes.labels.get(name, ()), *label.aliases), rewrite=label.rewrite)
        for name, label in library.entities.labels.items()
    }
    entities = msgspec.structs.replace(library.entities, labels=labels)
    made = repr((changes.overrides, changes.queries, changes.labels, sorted(gone)))
    digest = library.digest if changes == Changes(place=changes.place) else _changed_digest(library.digest, made)
    return msgspec.structs.replace(
        library, rules=rules, signals=signals, entities=entities, overrides=tuple(changes.overrides), digest=digest
    )


def dcgm_aliases(rules: Path | None = None) -> Aliases:
    """Return for each DCGM name the other spellings: name -> ((other, factor), ...), other = factor x name.

    Spellings reach each other through any number of rows, the nearest first. Read from `tables/dcgm_aliases.csv`; a
    folder without that table has no aliases.
    """
    path = (Path(rules) if rules is not None else shipped()) / "tables" / "dcgm_aliases.csv"
    if not path.is_file():
        return {}
    pairs: dict[str, dict[str, float]] = {}
    problems = []
    for line, row in table(path):
        try:
            old, new, factor = row["old_name"], row["new_name"], float(row["new_per_old_factor"])
        except (KeyError, ValueError, TypeError):
            problems.append(Problem(f"{path}:{line}", "needs old_name, new_name and a number as new_per_old_factor"))
            continue
        pairs.setdefault(old, {})[new] = factor
        pairs.setdefault(new, {})[old] = 1.0 / factor
    if problems:
        raise ProblemsError(tuple(problems))
    return {name: _spellings(name, pairs) for name in pairs}


def _spellings(name: str, pairs: Mapping[str, Mapping[str, float]]) -> tuple[tuple[str, float], ...]:
    """Follow the pairs from a name to every other spelling, multiplying factors.

    >>> _spellings("a", {"a": {"b": 10.0}, "b": {"a": 0.1, "c": 2.0}, "c": {"b": 0.5}})
    (('b', 10.0), ('c', 20.0))
    """
    found = {name: 1.0}
    waiting = [name]
    while waiting:
        one = waiting.pop(0)
        for other, factor in pairs[one].items():
            if other not in found:
                found[other] = found[one] * factor
                waiting.append(other)
    return tuple((other, factor) for other, factor in found.items() if other != name)


def metric_types(rules: Path | None = None) -> dict[str, str]:
    """Return what `tables/metric_types.csv` says of metrics, `counter` or `gauge`, under every spelling."""
    folder = Path(rules) if rules is not None else shipped()
    path = folder / "tables" / "metric_types.csv"
    if not path.is_file():
        return {}
    types = {row["name"]: row["type"] for _, row in table(path)}
    aliases = dcgm_aliases(folder)
    return {other: types[name] for name in types for other, _ in aliases.get(name, ())} | types


def imports(folders: Sequence[Path]) -> tuple[Import, ...]:
    """Return the rows of `tables/imports.csv` of these folders, those of the last folder first.

    Raises ProblemsError with every row that is wrong.
    """
    found: list[Import] = []
    problems = []
    for path in (folder / "tables" / "imports.csv" for folder in reversed(folders)):
        for line, row in table(path) if path.is_file() else ():
            try:
                found.append(Import.read(row))
            except ValueError as error:
                problems.append(Problem(f"{path}:{line}", str(error)))
    if problems:
        raise ProblemsError(tuple(problems))
    return tuple(found)


def _import_problems(folders: Sequence[Path]) -> tuple[Problem, ...]:
    try:
        imports(folders)
    except ProblemsError as error:
        return error.problems
    return ()


def _runbooks(library: Library, places: Places) -> Iterator[Problem]:
    """Find runbooks that are named and not there, where the rules lie beside a folder of documents."""
    for rule in library.rules.values():
        file = places.at("rule", rule.id).rpartition(":")[0]
        root = Path(file).parent.parent.parent
        if rule.runbook and (root / "docs").is_dir() and not (root / rule.runbook).is_file():
            yield Problem(places.at("rule", rule.id, "runbook"), f"runbook '{rule.runbook}' does not exist, write it")


def table(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a CSV table with their line numbers; comment lines begin with `#`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemsError((Problem(str(path), f"cannot be read, {error}"),)) from error
    numbered = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")]
    rows = csv.DictReader(io.StringIO("\n".join(line for _, line in numbered)))
    for (number, _), row in zip(numbered[1:], rows, strict=False):
        yield number, row


class _Found:
    """What has been read so far."""

    def __init__(self) -> None:
        self.entities: Entities | None = None
        self.signals: dict[str, Signal] = {}
        self.rules: dict[str, Rule] = {}
        self.places = Places()
        self.problems: list[Problem] = []

    def note(self, place: str, text: str) -> None:
        self.problems.append(Problem(place, text))

    def add(self, section: str, name: str, place: str) -> bool:
        """Enter a name under its place; say whether it is new, and fit for a name."""
        if not _ID.fullmatch(name):
            self.note(place, f"name '{name}' must be snake_case: small letters, digits and underscores")
            return False
        if (section, name) in self.places:
            self.note(place, f"{section} '{name}' exists already in {self.places.at(section, name)}, choose a new name")
            return False
        self.places[section, name] = place
        return True


def _read_folder(folder: Path, paths: Sequence[Path], found: _Found, *, main: bool) -> None:
    for path in paths:
        relative = path.relative_to(folder)
        top = relative.parts[0]
        if path.suffix == ".yml":
            found.note(str(path), f"must end in .yaml, rename it to {path.stem}.yaml")
        elif len(relative.parts) == 1:
            _read_top(path, found, main=main)
        elif top not in _FOLDERS:
            found.note(str(path), f"unknown folder '{top}'{suggestion(top, _FOLDERS)}")
        elif path.suffix == ".yaml" and len(relative.parts) > 2:
            found.note(str(path), f"lies too deep, files lie in {top}/ itself")
        elif top == "signals" and path.suffix == ".yaml":
            _read_signals(path, found)
        elif top in LAYERS and path.suffix == ".yaml":
            _read_rule(path, top, found)
    if main and found.entities is None and not (folder / "entities.yaml").is_file():
        found.note(str(folder / "entities.yaml"), "is missing, a rules folder names its entities there")


def _read_top(path: Path, found: _Found, *, main: bool) -> None:
    if path.suffix != ".yaml":
        return
    if path.name != "entities.yaml":
        found.note(str(path), f"lies outside of a folder, move it into one of {', '.join(_FOLDERS)}")
    elif not main:
        found.note(str(path), "extra rules cannot change entities, use labels in the config")
    else:
        reading = decode_file(path, str(path), Entities)
        found.entities = reading.value
        _keep_lines(reading, ("entities",), found, str(path))


def _read_signals(path: Path, found: _Found) -> None:
    reading = decode_file(path, str(path), dict[str, Signal])
    new = [
        steps[0] for steps, line in reading.lines.items()
        if len(steps) == 1 and found.add("signal", str(steps[0]), f"{path}:{line}")
    ]  # fmt: skip
    _keep_lines(reading, ("signal",), found, str(path))
    found.signals.update({name: signal for name, signal in (reading.value or {}).items() if name in new})


def _read_rule(path: Path, layer: str, found: _Found) -> None:
    if not found.add("rule", path.stem, f"{path}:1"):
        return
    reading = decode_file(path, str(path), Rule, {"id": path.stem, "layer": layer})
    _keep_lines(reading, ("rule", path.stem), found, str(path))
    if reading.value is not None:
        found.rules[path.stem] = reading.value


def _keep_lines(reading: Reading[T], prefix: tuple[str, ...], found: _Found, place: str) -> None:
    """Keep the places and problems of one file."""
    found.problems.extend(reading.problems)
    for steps, line in reading.lines.items():
        found.places.setdefault((*prefix, *steps), f"{place}:{line}")


def _change_problems(library: Library, changes: Changes, places: Places) -> Iterator[Problem]:
    known = (
        ("disable", changes.disable, "rule", library.rules),
        ("signals", changes.queries, "signal", library.signals),
        ("labels", changes.labels, "label", library.entities.labels),
    )
    for key, names, section, existing in known:
        for name in names:
            if name not in existing and (section, name) not in places:
                yield Problem(changes.place, f"unknown {section} '{name}' in '{key}'{suggestion(name, existing)}")


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder that count, sorted; hidden ones and folders of caches do not.

    Links are followed in the folder itself, which is how a ConfigMap is mounted; one that leads nowhere counts too, so
    that it is told.
    """
    entries = [entry for top in folder.iterdir() for entry in (top, *(top.rglob("*") if top.is_dir() else ()))]
    return sorted(
        path
        for path in entries
        if (path.is_file() or (path.is_symlink() and not path.is_dir()))
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    )


def _aliases(folder: Path, found: _Found) -> dict[str, tuple[tuple[str, float], ...]]:
    try:
        return dict(dcgm_aliases(folder))
    except ProblemsError as error:
        found.problems.extend(error.problems)
        return {}


def _changed_digest(digest: str, changes: str) -> str:
    """Return a digest that tells of a deployment's changes too."""
    return f"sha256:{hashlib.sha256(f'{digest} {changes}'.encode()).hexdigest()}"


def _digest(folders: Sequence[Path], files: Sequence[Sequence[Path]], found: _Found) -> str:
    """Return the digest of all files that make a library: sorted relative paths, and bytes."""
    digest = hashlib.sha256()
    for number, (folder, paths) in enumerate(zip(folders, files, strict=True)):
        for path in paths:
            if path.suffix in {".yaml", ".csv"}:
                try:
                    data = path.read_bytes()
                except OSError as error:
                    found.note(str(path), f"cannot be read, {(error.strerror or str(error)).lower()}")
                    continue
                digest.update(f"{number}/{path.relative_to(folder).as_posix()}\0{len(data)}\0".encode())
                digest.update(data)
    return f"sha256:{digest.hexdigest()}"
