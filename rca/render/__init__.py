"""Report -> string: one module a format, each with a pure function `render(report)`."""

import pkgutil


def formats() -> tuple[str, ...]:
    """List the formats that there are, text first: the public modules of this package."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if module.name[0] != "_"]
    return tuple(sorted(names, key=lambda name: (name != "text", name)))
