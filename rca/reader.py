"""One YAML text becomes one typed value, or every `file:line: problem` in it.

msgspec stops at the first error and knows no lines, PyYAML drops repeated keys and guesses types. So the text is
composed into nodes, which have both, and the nodes are decoded along the type's own description, field by field:
what goes wrong in one field does not hide what goes wrong in the next.

A tagged union may have members whose only field is `of`. They are written by their tag alone: `{any: [...]}` stands
for `{is: any, of: [...]}`.
"""

import difflib
import functools
import math
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Generic, TypeVar, cast

import yaml
from msgspec import inspect

from rca.errors import Problem, ProblemsError, suggestion
from rca.nodes import TAG, compose, line_of, printable

T = TypeVar("T")
Steps = tuple[str | int, ...]
MAX_SIZE = 64 * 1024 * 1024
_NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]*|(?=\.[0-9]))(?:\.[0-9]*)?(?:[eE][-+]?[0-9]{1,3})?")
_PERCENT = re.compile(r"([-+]?[0-9]+(?:\.[0-9]+)?) ?%")


class Wrong(Enum):
    """Stands where no value could be read; the reason is among the problems."""

    WRONG = "wrong"


WRONG = Wrong.WRONG


@dataclass(frozen=True)
class Reading(Generic[T]):
    """What came of one text: its value (None where there are problems), and the line of each path into it.

    A path follows the keys as the value has them, so the second part of `any:` in `when:` is at `("when", "of", 1)`.
    """

    value: T | None
    problems: tuple[Problem, ...]
    lines: Mapping[Steps, int]


def read(text: str, place: str, shape: type[T]) -> T:
    """Decode a YAML text, or raise ProblemsError with all that is wrong in it.

    >>> read("{labels: [node, gpu]}", "x.yaml", dict[str, tuple[str, ...]])
    {'labels': ('node', 'gpu')}
    >>> read("a: 1", "x.yaml", dict[str, str])
    Traceback (most recent call last):
    rca.errors.ProblemsError: x.yaml:1: 'a' must be text, found the number 1, write "1"
    """
    return _unwrap(decode(text, place, shape))


def read_file(path: Path, shape: type[T]) -> T:
    """Read and decode one file, or raise ProblemsError with all that is wrong in it."""
    return _unwrap(decode_file(path, str(path), shape))


def decode_file(path: Path, place: str, shape: type[T], given: Mapping[str, object] | None = None) -> Reading[T]:
    """Read and decode one file as `decode` does; a file that cannot be read is a problem like any other."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_SIZE + 1)
    except OSError as error:
        return _failed(place, f"cannot be read, {(error.strerror or str(error)).lower()}")
    if len(data) > MAX_SIZE:
        return _failed(place, f"larger than {MAX_SIZE >> 20} MiB, too large for a file written by people")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return _failed(f"{place}:{line}", f"byte 0x{data[error.start]:02x} is not UTF-8, save the file as UTF-8")
    return decode(text, place, shape, given)


def decode(text: str, place: str, shape: type[T], given: Mapping[str, object] | None = None) -> Reading[T]:
    """Decode a YAML text into a `Reading`.

    `given` holds fields of the outermost struct that come from elsewhere (the file's name) and so must not be written.
    """
    node, problems = compose(text, place)
    if node is None:
        return Reading(None, problems, {})
    decoder = Decoder(place)
    value = decoder.outermost(node, _described(cast(Hashable, shape)), given or {})
    if decoder.problems:
        ordered = sorted(decoder.problems, key=lambda numbered: numbered[0])
        return Reading(None, tuple(problem for _, problem in ordered), decoder.lines)
    return Reading(cast(T, value), (), decoder.lines)


def _unwrap(reading: Reading[T]) -> T:
    if reading.problems:
        raise ProblemsError(reading.problems)
    return cast(T, reading.value)


def _failed(place: str, text: str) -> Reading[T]:
    return Reading(None, (Problem(place, text),), {})


@functools.cache
def _described(shape: Hashable) -> inspect.Type:
    return inspect.type_info(shape)


class Decoder:
    """Decodes the nodes of one text along type descriptions, and notes the line of every path and every problem."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.problems: list[tuple[int, Problem]] = []
        self.lines: dict[Steps, int] = {}

    def wrong(self, node: yaml.Node, text: str) -> Wrong:
        """Note a problem at the line of a node."""
        line = line_of(node)
        self.problems.append((line, Problem(f"{self.place}:{line}", printable(text))))
        return WRONG

    def outermost(self, node: yaml.Node, info: inspect.Type, given: Mapping[str, object]) -> object:
        """Decode the root of the text."""
        self.lines[()] = line_of(node)
        if isinstance(info, inspect.StructType) and given:
            return self.struct(node, info, (), given)
        return self.value(node, info, ())

    def value(self, node: yaml.Node, info: inspect.Type, path: Steps) -> object:
        """Decode a node as any type."""
        if isinstance(info, inspect.Metadata):
            return self.described(node, info, path)
        if isinstance(info, inspect.UnionType):
            return self.union(node, info, path)
        if isinstance(info, inspect.StructType):
            return self.struct(node, info, path)
        if isinstance(info, inspect.DictType):
            return self.dictionary(node, info, path)
        if isinstance(info, inspect.VarTupleType | inspect.ListType | inspect.TupleType):
            return self.sequence(node, info, path)
        return self.scalar(node, info, path)

    def described(self, node: yaml.Node, info: inspect.Metadata, path: Steps) -> object:
        """Decode a type that carries a title and examples, which say what is wanted better than its pattern does."""
        schema = info.extra_json_schema or {}
        if not (isinstance(info.type, inspect.StrType) and "title" in schema):
            return self.value(node, info.type, path)
        if isinstance(node, yaml.ScalarNode) and node.tag == f"{TAG}str" and _matches(node.value, info.type):
            return node.value
        return self.unexpected(node, path, f"must be {schema['title']}", f"write for example {schema['examples'][0]}")

    def union(self, node: yaml.Node, info: inspect.UnionType, path: Steps) -> object:
        """Decode a node as the member of a union that its shape (or its tag) picks."""
        members = [member for member in info.types if not isinstance(member, inspect.NoneType)]
        if len(members) < len(info.types) and isinstance(node, yaml.ScalarNode) and _is_null(node):
            return None
        structs = [member for member in members if isinstance(member, inspect.StructType)]
        if isinstance(node, yaml.MappingNode) and len(structs) > 1:
            return self.tagged(node, structs, path)
        fitting = [member for member in members if _fits(node, member)]
        return self.value(node, (fitting or members)[0], path)

    def tagged(self, node: yaml.MappingNode, members: list[inspect.StructType], path: Steps) -> object:
        """Decode a mapping as the struct that its tag names, or that stands for its only key."""
        by_tag = {str(member.tag): member for member in members}
        field = members[0].tag_field or "type"
        keys = {key.value: (key, item) for key, item in node.value if isinstance(key, yaml.ScalarNode)}
        short = [tag for tag in keys if tag in by_tag and [f.encode_name for f in by_tag[tag].fields] == ["of"]]
        if field not in keys and short:
            if len(node.value) > 1:
                return self.wrong(node, f"'{short[0]}' stands with other keys, write it alone in its mapping")
            inner = by_tag[short[0]].fields[0].type
            value = self.value(keys[short[0]][1], inner, self.at(path, keys[short[0]][0], "of"))
            return WRONG if value is WRONG else by_tag[short[0]].cls(of=value)
        if field not in keys:
            return self.wrong(node, f"{_name(path)} needs '{field}', known are {', '.join(sorted(by_tag))}")
        tag_node = keys[field][1]
        if not isinstance(tag_node, yaml.ScalarNode) or tag_node.value not in by_tag:
            word = str(tag_node.value) if isinstance(tag_node, yaml.ScalarNode) else ""
            return self.wrong(tag_node, f"unknown '{field}: {word}'{suggestion(word, by_tag)}")
        return self.struct(node, by_tag[tag_node.value], path)

    def struct(
        self, node: yaml.Node, info: inspect.StructType, path: Steps, given: Mapping[str, object] | None = None
    ) -> object:
        """Decode a mapping as a struct: every field, every unknown key, every missing one."""
        if not isinstance(node, yaml.MappingNode):
            return self.unexpected(node, path, "must be a mapping of keys to values")
        values: dict[str, object] = dict(given or {})
        fields = {field.encode_name: field for field in info.fields if field.name not in values}
        sound = True
        for key, item in self.pairs(node):
            if key.value in fields:
                field = fields.pop(key.value)
                values[field.name] = self.value(item, field.type, self.at(path, key, key.value))
                sound &= values[field.name] is not WRONG
            elif key.value != info.tag_field:
                self.unknown(key, info, given or {})
                sound = False
        for field in fields.values():
            if field.required:
                self.wrong(node, f"{_name(path) if info.tag is None else repr(info.tag)} lacks '{field.encode_name}'")
                sound = False
        return self.build(node, info, values) if sound else WRONG

    def unknown(self, key: yaml.ScalarNode, info: inspect.StructType, given: Mapping[str, object]) -> Wrong:
        """Note a key that the struct has not."""
        if key.value in given:
            return self.wrong(key, f"'{key.value}' follows from the name of the file, leave it out")
        known = [field.encode_name for field in info.fields if field.name not in given]
        of = f" of '{info.tag}'" if info.tag is not None else ""
        return self.wrong(key, f"unknown key '{key.value}'{of}{suggestion(key.value, known)}")

    def build(self, node: yaml.Node, info: inspect.StructType, values: dict[str, object]) -> object:
        """Create the struct; its own `__post_init__` may object with a ValueError."""
        try:
            return cast(object, info.cls(**values))
        except ValueError as error:
            return self.wrong(node, str(error))

    def dictionary(self, node: yaml.Node, info: inspect.DictType, path: Steps) -> object:
        """Decode a mapping whose keys are names."""
        if not isinstance(node, yaml.MappingNode):
            return self.unexpected(node, path, "must be a mapping of names to values")
        result: dict[object, object] = {}
        for key, item in self.pairs(node):
            name = self.scalar(key, info.key_type, (*path, "key"))
            value = self.value(item, info.value_type, self.at(path, key, key.value))
            result[name] = value
        return WRONG if WRONG in result or any(value is WRONG for value in result.values()) else result

    def pairs(self, node: yaml.MappingNode) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        """Yield the keys of a mapping with their values; note keys that are repeated, empty or no plain words."""
        seen: dict[str, int] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.wrong(key, "a key must be a plain word, found a list or mapping")
            elif key.tag == f"{TAG}merge":
                self.wrong(key, "merge key '<<' is not supported, write the keys out")
            elif key.tag == f"{TAG}null":
                self.wrong(key, "a key is empty, write a word before the colon")
            elif key.value in seen:
                self.wrong(key, f"key '{key.value}' is repeated, first written in line {seen[key.value]}")
            else:
                seen[key.value] = line_of(key)
                yield key, item

    def at(self, path: Steps, node: yaml.Node, step: str | int) -> Steps:
        """Return the path one step further, and note its line."""
        longer = (*path, step)
        self.lines[longer] = line_of(node)
        return longer

    def sequence(
        self, node: yaml.Node, info: inspect.VarTupleType | inspect.ListType | inspect.TupleType, path: Steps
    ) -> object:
        """Decode a list, of any length or of a fixed one."""
        if not isinstance(node, yaml.SequenceNode):
            example = f"[{node.value}]" if isinstance(node, yaml.ScalarNode) and node.value else "[...]"
            return self.unexpected(node, path, "must be a list", f"write {example}")
        if isinstance(info, inspect.TupleType):
            kinds = info.item_types
            if len(node.value) != len(kinds):
                return self.wrong(node, f"{_name(path)} must be a list of {len(kinds)}, found {len(node.value)}")
        else:
            kinds = (info.item_type,) * len(node.value)
        items = [
            self.value(item, kind, self.at(path, item, index))
            for index, (item, kind) in enumerate(zip(node.value, kinds, strict=True))
        ]
        if any(item is WRONG for item in items):
            return WRONG
        return items if isinstance(info, inspect.ListType) else tuple(items)

    def scalar(self, node: yaml.Node, info: inspect.Type, path: Steps) -> object:
        """Decode a single word or number."""
        if not isinstance(node, yaml.ScalarNode):
            return self.unexpected(node, path, _wanted(info))
        if isinstance(info, inspect.LiteralType):
            return self.choice(node, info, path)
        if isinstance(info, inspect.BoolType):
            if node.tag == f"{TAG}bool" and node.value in {"true", "false"}:
                return node.value == "true"
            return self.unexpected(node, path, _wanted(info), "write true or false")
        if isinstance(info, inspect.IntType | inspect.FloatType):
            return self.number(node, info, path)
        if isinstance(info, inspect.StrType):
            return self.text(node, info, path)
        raise TypeError(f"the reader does not know the type {info}")

    def choice(self, node: yaml.ScalarNode, info: inspect.LiteralType, path: Steps) -> object:
        """Decode one word of a closed list."""
        if node.tag == f"{TAG}str" and node.value in info.values:
            return node.value
        known = ", ".join(str(value) for value in info.values)
        close = difflib.get_close_matches(node.value, [str(value) for value in info.values], n=1)
        hint = f" (did you mean '{close[0]}')" if close else ""
        return self.wrong(node, f"{_name(path)} must be one of {known}, found {_found(node)}{hint}")

    def number(self, node: yaml.ScalarNode, info: inspect.IntType | inspect.FloatType, path: Steps) -> object:
        """Decode a number within the bounds of its type."""
        text = node.value
        if node.style or not _NUMBER.fullmatch(text):
            return self.unexpected(node, path, _wanted(info), _number_hint(node))
        value = float(text)
        if not math.isfinite(value):
            return self.wrong(node, f"{_name(path)} is too large, found {_shortened(text)}")
        if isinstance(info, inspect.IntType):
            if value != int(value):
                return self.wrong(node, f"{_name(path)} must be a whole number, found {text}")
            value = int(value)
        bounds = (
            ("at least", info.ge, info.ge is None or value >= info.ge),
            ("above", info.gt, info.gt is None or value > info.gt),
            ("at most", info.le, info.le is None or value <= info.le),
            ("below", info.lt, info.lt is None or value < info.lt),
        )
        for words, bound, holds in bounds:
            if not holds:
                return self.wrong(node, f"{_name(path)} must be {words} {bound:g}, found {text}")
        return value

    def text(self, node: yaml.ScalarNode, info: inspect.StrType, path: Steps) -> object:
        """Decode text; whatever YAML would turn into something else must be quoted."""
        if node.tag != f"{TAG}str":
            return self.unexpected(node, path, "must be text", _text_hint(node))
        if not _matches(node.value, info):
            return self.wrong(node, f"{_name(path)} must match {info.pattern}, found '{node.value}'")
        if info.min_length is not None and len(node.value) < info.min_length:
            return self.wrong(node, f"{_name(path)} must not be empty")
        return node.value

    def unexpected(self, node: yaml.Node, path: Steps, wanted: str, hint: str = "") -> Wrong:
        """Note a node of the wrong shape."""
        if isinstance(node, yaml.ScalarNode) and _is_empty(node):
            return self.wrong(node, f"{_name(path)} has no value, write one or leave the key out")
        tail = f", {hint}" if hint else ""
        return self.wrong(node, f"{_name(path)} {wanted}, found {_found(node)}{tail}")


def _name(path: Steps) -> str:
    """Name a path for a reader: the key, or the item of a list.

    >>> _name(("when", "peers", 1))
    "item 2 of 'peers'"
    """
    if not path:
        return "the file"
    if path[-1] == "key":
        return "a key"
    if isinstance(path[-1], int):
        return f"item {path[-1] + 1} of {_name(path[:-1])}"
    return f"'{path[-1]}'"


def _matches(text: str, info: inspect.StrType) -> bool:
    # `$` also matches before a last line end, which a block scalar brings
    return info.pattern is None or (not text.endswith("\n") and re.search(info.pattern, text) is not None)


def _fits(node: yaml.Node, info: inspect.Type) -> bool:
    """Say whether a node has the shape of a type, as far as picking a member of a union goes."""
    if isinstance(info, inspect.Metadata):
        return _fits(node, info.type)
    if isinstance(node, yaml.MappingNode):
        return isinstance(info, inspect.StructType | inspect.DictType)
    if isinstance(node, yaml.SequenceNode):
        return isinstance(info, inspect.VarTupleType | inspect.ListType | inspect.TupleType)
    if isinstance(info, inspect.IntType | inspect.FloatType):
        return isinstance(node, yaml.ScalarNode) and not node.style and bool(_NUMBER.fullmatch(node.value))
    if isinstance(info, inspect.BoolType):
        return bool(node.tag == f"{TAG}bool")
    if isinstance(info, inspect.LiteralType):
        return node.value in info.values
    return isinstance(info, inspect.StrType) and bool(node.tag == f"{TAG}str")


def _wanted(info: inspect.Type) -> str:
    """Say what a scalar type wants."""
    if isinstance(info, inspect.BoolType):
        return "must be true or false"
    if isinstance(info, inspect.IntType):
        return "must be a whole number"
    if isinstance(info, inspect.FloatType):
        return "must be a number"
    if isinstance(info, inspect.LiteralType):
        return f"must be one of {', '.join(str(value) for value in info.values)}"
    return "must be text"


def _found(node: yaml.Node) -> str:
    """Say what stands there, and what YAML makes of it where that surprises."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    word = _shortened(node.value)
    kind = node.tag.removeprefix(TAG)
    if kind in {"int", "float"}:
        reading = "" if _NUMBER.fullmatch(word) else _misread(word)
        return f"{word}, which YAML reads as {reading}" if reading else f"the number {word}"
    if kind == "bool":
        value = str(yaml.safe_load(word)).lower()
        return value if word == value else f"{word}, which YAML reads as {value}"
    if kind == "timestamp":
        return f"{word}, which YAML reads as a date"
    return "nothing" if kind == "null" else f"'{word}'"


def _shortened(word: str) -> str:
    return word if len(word) <= 60 else f"{word[:57]}..."


def _misread(word: str) -> str:
    """Return what YAML 1.1 makes of an octal, hexadecimal, binary or sexagesimal number, or of an infinite one.

    >>> _misread("012"), _misread("1:30")
    ('the number 10', 'the number 90')
    """
    return "a very long number" if word.endswith("...") else f"the number {yaml.safe_load(word)}"


def _number_hint(node: yaml.ScalarNode) -> str:
    percent = _PERCENT.fullmatch(node.value)
    if percent:
        return f"write {float(percent[1]) / 100:g}"
    return f"write {node.value} without quotes" if node.style in {"'", '"'} and _NUMBER.fullmatch(node.value) else ""


def _text_hint(node: yaml.ScalarNode) -> str:
    return f'write "{node.value}"' if node.tag != f"{TAG}null" else ""


def _is_null(node: yaml.ScalarNode) -> bool:
    return bool(node.tag == f"{TAG}null") and not _is_empty(node)


def _is_empty(node: yaml.ScalarNode) -> bool:
    return bool(node.value == "") and not node.style
