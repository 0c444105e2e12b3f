"""Lines that name no event get that of the template that knows them."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, islice

from rca.hook import events
from rca.loglines.line import LEVELS, Line
from rca.loglines.wanted import NAME, Wanted
from rca.phrases import Matcher, Template

_BATCH = 2048
"""Lines that are looked through at once."""


class Templates:
    """Names lines by templates, which are loaded when the first line comes that names no event itself."""

    def __init__(self, load: Callable[[], Sequence[Template]]) -> None:
        self._load = load

    @cached_property
    def matcher(self) -> Matcher:
        """Return what finds the lines that templates know."""
        return Matcher(self._load())

    def template(self, message: str) -> Template | None:
        """Return the template that knows a message, None where none does."""
        found = self.matcher.match(message)
        return None if found is None else self.matcher.templates[found.template]

    def marks(self, wanted: Wanted) -> Mapping[bytes, int]:
        """Return pieces of which every line holds one that is wanted for the name or the level that a template gives it, and
        how many lines the template reads.
        """
        if not wanted.events and wanted.text and not NAME.fullmatch(wanted.text):
            return {}
        found: dict[bytes, int] = {}
        for template in self.matcher.templates.values():
            if _wanted(events.table().get(template.event), wanted):
                for pattern in template.patterns:
                    mark = pattern.mark.encode()
                    found[mark] = max(pattern.lines, found.get(mark, 1))
        return found

    def named(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield lines, in their order; one without a level has the level of its event as well."""
        rest = iter(lines)
        while batch := list(islice(rest, _BATCH)):
            bare = [number for number, line in enumerate(batch) if not line.event and line.message]
            texts = [batch[number].message.encode("utf-8", "surrogatepass") for number in bare]
            starts = [0, *accumulate(len(text) + 1 for text in texts)]
            for found in self.matcher.find(b"\n".join(texts)) if bare else ():
                number = bare[bisect_right(starts, found.offset) - 1]
                batch[number] = _named(batch[number], self.matcher.templates[found.template])
            yield from batch


def _named(line: Line, template: Template) -> Line:
    """Return a line with the event of a template; of a message of several lines, the first that is known counts."""
    event = events.table().get(template.event)
    if line.event or event is None:
        return line
    return line._replace(event=event.name, event_id=event.id, level=line.level if line.level in LEVELS else event.level)


def _wanted(event: events.Event | None, wanted: Wanted) -> bool:
    """Say whether a line may be wanted for its event."""
    if event is None:
        return False
    if wanted.events:
        return event.name in wanted.events
    if wanted.text:
        return wanted.text in event.name
    return LEVELS.index(event.level) >= LEVELS.index(wanted.level)
