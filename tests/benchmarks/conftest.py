import sys
from pathlib import Path

import pytest

# Benchmarks are scripts: their folder is on the path when they run.
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(autouse=True)
def _one_thread(one_thread) -> None:
    """In all tests of this folder."""
