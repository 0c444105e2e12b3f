"""Files that the field produced: read where they lie, and no part of this repository."""

import os
from pathlib import Path

import pytest

CASES = Path(os.environ.get("RCA_CASES", Path(__file__).resolve().parents[3] / "shared" / "cases"))


@pytest.fixture(scope="session")
def cases() -> Path:
    """Return the folder of real cases; without it all tests that read from it are skipped, in one line."""
    if not CASES.is_dir():
        pytest.skip(f"no real cases at {CASES}, set RCA_CASES")
    return CASES
