"""Clock: how long the parts of a training loop take, and the whole run."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

__all__ = ["Clock"]


class Clock:
    """Times the parts of a loop and the whole run; its state carries the times over to a resumed run.

    Attributes:
        totals (dict of str to float): the seconds that each part took in the whole run.
        counts (dict of str to int): how often each part was timed in the whole run.

    Examples:
        >>> from mcurl_torchrl.training.clock import Clock
        >>> clock = Clock()
        >>> clock.start()
        >>> with clock.timed("update"):
        ...     _ = sum(range(1000))
        >>> sorted(clock.take(steps=1))
        ['milliseconds_update', 'seconds']
    """

    def __init__(self) -> None:
        self.totals: dict[str, float] = defaultdict(float)
        self.counts: dict[str, int] = defaultdict(int)
        self._recent: dict[str, float] = defaultdict(float)
        self._before = 0.0
        self._begin: float | None = None

    @property
    def seconds(self) -> float:
        """The seconds of the run so far, without its pauses."""
        running = 0.0 if self._begin is None else time.perf_counter() - self._begin
        return self._before + running

    def start(self) -> None:
        """Starts to count, or goes on after a pause."""
        if self._begin is None:
            self._begin = time.perf_counter()

    def pause(self) -> None:
        """Stops counting."""
        self._before, self._begin = self.seconds, None

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Adds the time of the block to a part."""
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        self.totals[part] += seconds
        self._recent[part] += seconds
        self.counts[part] += 1

    def take(self, *, steps: int) -> dict[str, float]:
        """Returns milliseconds per step of each part since the last call, and the seconds of the run so far."""
        parts = {f"milliseconds_{part}": 1000 * seconds / steps for part, seconds in self._recent.items()}
        self._recent.clear()
        return {**parts, "seconds": self.seconds}

    def state_dict(self) -> dict[str, Any]:
        """Returns the times so far."""
        return {"seconds": self.seconds, "totals": dict(self.totals), "counts": dict(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over the times of a saved clock, and waits for :meth:`start`."""
        self._before, self._begin = state["seconds"], None
        self.totals, self.counts = defaultdict(float, state["totals"]), defaultdict(int, state["counts"])
