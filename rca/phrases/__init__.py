"""What known lines of logs say: templates written as data, and a matcher that finds them in blocks of bytes.

    matcher = Matcher(load.phrases())
    for offset, template, groups in matcher.find(block):
        ...

A template is a file of `rules/logs`. Layers: `template` (what people write), `groups` (what parts of a line are called),
`matcher`, and `lint` over `backtracking`.
"""

from rca.phrases.lint import lint
from rca.phrases.matcher import Found, Matcher
from rca.phrases.template import Template

__all__ = ["Found", "Matcher", "Template", "lint"]
