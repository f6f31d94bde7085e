import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread) -> None:
    """In all tests of this folder."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread_in_module(one_thread_in_module) -> None:
    """And in the fixtures of its modules."""
