import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Recipes are scripts: their folder is on the path when they run.
sys.path.insert(0, str(Path(__file__).parents[2] / "recipes"))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Operators this small are slower on several threads, and far slower if the threads have to wait for a core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
