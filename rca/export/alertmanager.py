"""The configuration that lets Alertmanager and rca work together: what lies in deploy/, and nothing else."""

from pathlib import Path

ADDRESS = "http://127.0.0.1:9797"
"""Where the shipped file says that rca is."""


def shipped() -> Path:
    """Return the file: beside this one in a wheel, else in the checkout."""
    here = Path(__file__).resolve().parent
    installed = here / "alertmanager.yml"
    return installed if installed.is_file() else here.parents[1] / "deploy" / "alertmanager" / "alertmanager.yml"


def render(address: str = ADDRESS) -> str:
    """Return the configuration for an rca that answers at an address."""
    return shipped().read_text(encoding="utf-8").replace(ADDRESS, address.rstrip("/"))


__all__ = ["ADDRESS", "render", "shipped"]
