"""The content of a report while it is made, and the format of its numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mcurl_torchrl.reports import Block, Estimate


@dataclass
class Pages:
    """The content of a report: blocks of the page, rows of report.csv, and sentences for the beginning."""

    blocks: list[Block] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    in_short: list[str] = field(default_factory=list)

    def record(self, kind: str, quantity: str, estimate: Estimate, **more: Any) -> None:
        numbers = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
        self.records.append({"kind": kind, "quantity": quantity, **numbers, **more})


def number(estimate: Estimate) -> str:
    """Writes a return, without decimals from 100 on."""
    return written(estimate, lambda value: f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}")


def decimal(estimate: Estimate, places: int = 3) -> str:
    return written(estimate, lambda value: f"{value:.{places}f}")


def written(estimate: Estimate, write: Callable[[float], str]) -> str:
    if not estimate.has_interval:
        return write(estimate.value)
    return f"{write(estimate.value)} [{write(estimate.low)}, {write(estimate.high)}]"


def steps(count: int) -> str:
    return f"{count:,}"


def seeds_text(count: int) -> str:
    return f"{count} seed{'s' if count != 1 else ''}"


def spread(counts: list[int]) -> str:
    """Writes counts as one number, or as the lowest and the highest."""
    return str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"


def known(count: int | None) -> str:
    return "–" if count is None else str(count)
