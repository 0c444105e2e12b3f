"""What a stream can show."""

import io

import pytest

from rca.terminal import screen


class Stream(io.TextIOWrapper):
    """A stream of a given encoding that may be a terminal."""

    def __init__(self, encoding: str, terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(("encoding", "ascii_only"), [("utf-8", False), ("ascii", True), ("latin-1", True)])
def test_ascii_where_the_encoding_lacks_box_characters(encoding: str, ascii_only: bool) -> None:
    assert screen(Stream(encoding, terminal=True), {}).ascii_only is ascii_only


@pytest.mark.parametrize(("terminal", "environment", "colour"), [
    (True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"NO_COLOR": ""}, True),
    (True, {"TERM": "dumb"}, False), (True, {"TERM": "xterm"}, True),
])  # fmt: skip
def test_colours(terminal: bool, environment: dict[str, str], colour: bool) -> None:
    assert screen(Stream("utf-8", terminal), environment).colour is colour


def test_a_pipe_has_a_fixed_width() -> None:
    assert screen(Stream("utf-8", terminal=False), {}).width == 100
