"""How far the clocks of nodes are ahead, as written in a file: `node-03: 0.5`."""

from pathlib import Path

from rca import reader


def load(path: Path) -> dict[str, float]:
    """Return how many seconds the clock of each node is ahead, negative where it is behind.

    Raises ProblemsError for a file that holds anything else.
    """
    return dict(reader.read_file(path, dict[str, float]))
