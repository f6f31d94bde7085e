import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

# "ci" draws the same examples every time, so that a red test stays red; "dev" looks for new ones.
# No deadline in either: the first call of a torch operator is far slower than the next.
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=50, print_blob=True)
settings.register_profile("dev", deadline=None, max_examples=500, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# TorchRL logs each storage it makes: too much for tests that make thousands.
logging.getLogger("torchrl").setLevel(logging.WARNING)

if "PYTEST_XDIST_WORKER_COUNT" in os.environ:  # the workers share the cores instead of each taking all of them
    threads = max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    torch.set_num_threads(threads)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # of the processes that tests start


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Networks that a test makes have double precision: sums in another order differ less than mistakes do."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _with_one_thread() -> Iterator[None]:
    """Results are the same bit for bit with the same number of threads only, and small networks are faster with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


one_thread = pytest.fixture(_with_one_thread, name="one_thread")
# For what the fixtures of a module train: they are made before those of a test.
one_thread_in_module = pytest.fixture(_with_one_thread, name="one_thread_in_module", scope="module")


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The matplotlib figures that a test saves, in order."""
    from matplotlib.figure import Figure

    saved: list[Figure] = []
    savefig = Figure.savefig

    def keep(figure: Figure, *args: Any, **kwargs: Any) -> None:
        saved.append(figure)
        savefig(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return saved
