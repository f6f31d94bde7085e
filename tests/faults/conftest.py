from collections.abc import Callable

import pytest

from tests.recipes.faulty_envs import Faulty


@pytest.fixture(autouse=True)
def _one_thread(one_thread) -> None:
    """In all tests of this folder."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread_in_module(one_thread_in_module) -> None:
    """And in the fixtures of its modules."""


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Faulty, float], float]], None]:
    """Sets the fault that the environments have in each step and reset, until the test is over."""
    monkeypatch.setattr(Faulty, "made", [])
    return lambda what: monkeypatch.setattr(Faulty, "fault", what)
