import sys
from pathlib import Path

import pytest
import torch

# Recipes are scripts: their folder is on the path when they run.
sys.path.insert(0, str(Path(__file__).parents[2] / "recipes"))


@pytest.fixture(autouse=True)
def _one_thread():
    """Results are the same bit for bit with the same number of threads only, and small networks are faster with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
