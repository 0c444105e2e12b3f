"""Report -> JSON, `rca.report/v1`: for programs."""

import re

import msgspec

from rca.model import Report

_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def render(report: Report) -> str:
    """Write a report as indented JSON, fields in the order of their definition, and a newline.

    Characters that steer a terminal are written as `\\uXXXX`: the same strings once decoded, harmless when printed.
    """
    text = msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"
