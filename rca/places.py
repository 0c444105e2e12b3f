"""Where everything in the files of a library was written."""


class Places(dict[tuple[str | int, ...], str]):
    """Where everything was written: (section, name, key, ...) -> `file:line`."""

    def at(self, *steps: str | int) -> str:
        """Return the place of a path, or of the closest thing around it that has one.

        >>> Places({("rule", "hot"): "hot.yaml:1"}).at("rule", "hot", "when", "of", 0)
        'hot.yaml:1'
        """
        for length in range(len(steps), 0, -1):
            if steps[:length] in self:
                return self[steps[:length]]
        return " ".join(str(step) for step in steps[:2])
