"""The tables of the docs are equal to those that benchmarks/performance.py makes from the saved numbers."""

from __future__ import annotations

from pathlib import Path

import performance
import pytest


@pytest.mark.parametrize("page", performance.PAGES, ids=lambda page: page.name)
def test_pages_show_what_was_measured(page: Path) -> None:
    assert "<!-- table " in page.read_text()
    assert performance.filled(page) == page.read_text()


def test_every_table_is_shown() -> None:
    pages = "".join(page.read_text() for page in performance.PAGES)
    assert [name for name in performance.TABLES if f"<!-- table {name} -->\n|" not in pages] == []
