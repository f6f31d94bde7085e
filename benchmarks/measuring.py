"""Functions that benchmarks share: timing several functions in turns, and printing tables."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def milliseconds(contenders: dict[str, Callable[[], Any]], rounds: int, inner: int = 1) -> dict[str, float]:
    """Calls all functions in turns; returns the median time of each, without the first two rounds."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 2):
        for name, call in contenders.items():
            start = time.perf_counter()
            for _ in range(inner):
                call()
            times[name].append((time.perf_counter() - start) / inner * 1e3)
    return {name: statistics.median(values[2:]) for name, values in times.items()}


def show(title: str, table: list[dict[str, Any]], digits: int = 3) -> None:
    """Prints a table, without columns that contain lists."""
    print(f"\n{title}")
    columns = [name for name, value in table[0].items() if not isinstance(value, list)]
    cells = [columns] + [
        [f"{row[name]:.{digits}f}" if isinstance(row[name], float) else str(row[name]) for name in columns]
        for row in table
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(columns))]
    for row in cells:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
