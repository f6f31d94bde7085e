"""Progress: one line that shows the progress of a run."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from datetime import timedelta
from typing import Any, TextIO

from mcurl_torchrl.checks import check_count, needs

__all__ = ["Progress"]

_BAR_SECONDS = 0.25
_FIRST_LINE_SECONDS = 2.0
_LINE_SECONDS = 10.0
_RATE_SECONDS = 600.0


class Progress:
    """Shows the steps, the speed, the time left and the latest numbers of a run on the standard error.

    On a terminal this is a bar of tqdm. Elsewhere (a log file, CI) it is a plain line every 10 seconds, the first after
    2. Most calls of :meth:`update` only store the numbers.

    Args:
        total (int): the agent steps of the whole run.

    Keyword Args:
        initial (int): the steps that were done before, in a resumed run. Defaults to 0.
        enabled (bool, optional): True for the bar and False for the notes only, on any stream. None, the default, for a
            bar on a terminal and lines elsewhere.

    Raises:
        ImportError: if a bar is to be shown and tqdm is missing.

    Examples:
        >>> from mcurl_torchrl.training.progress import Progress
        >>> progress = Progress(12_500)
        >>> progress.update(100, eval_return=181.25, contrastive_accuracy=0.5)
        >>> progress.close()  # agent step 100/12,500 (1%) | 50 steps/s | 0:04:08 left | eval return 181.2 | ...
    """

    def __init__(self, total: int, *, initial: int = 0, enabled: bool | None = None) -> None:
        self._total = check_count("total", total)
        if not 0 <= initial <= total:
            raise ValueError(f"initial={initial}; it must be between 0 and total={total}")
        self._stream = sys.stderr
        self._step = initial
        self._shown: dict[str, Any] = {}
        self._closed = False
        self._printed: tuple[int, list[str]] | None = None
        self._start = time.monotonic()
        self._measure_from(self._start)
        wants_bar = self._stream.isatty() if enabled is None else enabled
        self._bar = _make_bar(total, initial, self._stream) if wants_bar else None
        self._silent = enabled is False
        self._next_draw = self._start + (_FIRST_LINE_SECONDS if self._bar is None else 0.0)

    def update(self, step: int, **shown: Any) -> None:
        """Stores the current step and the numbers to show, and draws if it is time to.

        Args:
            step (int): the agent steps done so far, including those before the run was resumed.

        Keyword Args:
            **shown (float or scalar Tensor): the numbers to show until a new value comes, with spaces for the
                underscores of their names. A tensor is read only when it is drawn: no step waits for the device.
        """
        self._step = step
        self._shown.update(shown)
        now = time.monotonic()
        # The last step is drawn by close(), once.
        if now >= self._next_draw and step < self._total and not self._silent:
            self._draw(now)

    def restart(self) -> None:
        """Restarts the measurement of the speed, for steps that take longer or shorter than those before."""
        self._measure_from(time.monotonic())

    def note(self, message: str) -> None:
        """Prints a line above the bar, or as the next line of the log; a log on a full disk does not end the run."""
        with contextlib.suppress(OSError):
            if self._bar is not None:
                self._bar.write(message, file=self._stream)
            else:
                print(message, file=self._stream, flush=True)

    def close(self) -> None:
        """Draws the last state and ends the line; further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        if not self._silent:
            self._draw(time.monotonic())
        if self._bar is not None:
            self._bar.close()

    def _draw(self, now: float) -> None:
        rate = self._rate(now)
        parts = [f"{rate:.3g} steps/s" if rate < 1000 else f"{rate:,.0f} steps/s"]
        if self._step >= self._total:
            parts.append(f"done in {timedelta(seconds=round(now - self._start))}")
        elif rate > 0 and now - self._since > _FIRST_LINE_SECONDS / 2:
            parts.append(f"{timedelta(seconds=round((self._total - self._step) / rate))} left")
        shown = [f"{name.replace('_', ' ')} {_number(value)}" for name, value in self._shown.items()]
        steps, text = f"agent step {self._step:,}/{self._total:,}", " | ".join([*parts, *shown])
        if self._bar is not None:
            self._bar.n = self._step
            self._bar.set_description_str(f"{steps} | {text}")
            self._next_draw = now + _BAR_SECONDS
            return
        if not (self._closed and self._printed == (self._step, shown)):  # the last line comes once
            self.note(f"{steps} ({self._step / self._total:.0%}) | {text}")
        self._printed = self._step, shown
        self._next_draw = now + _LINE_SECONDS

    def _measure_from(self, now: float) -> None:
        self._since = now
        self._history: deque[tuple[float, int]] = deque([(now, self._step)])

    def _rate(self, now: float) -> float:
        """Returns the steps per second over the later half of the time so far, at most ten minutes.

        So the fast random steps at a run's start soon do not count, and an evaluation does not make the number jump.
        tqdm's own mean has neither property.
        """
        window = min((now - self._since) / 2, _RATE_SECONDS)
        while len(self._history) > 1 and self._history[1][0] <= now - window:
            self._history.popleft()
        then, step = self._history[0]
        if now - self._history[-1][0] >= 1.0:
            self._history.append((now, self._step))
        return (self._step - step) / (now - then) if now > then else 0.0


def _make_bar(total: int, initial: int, stream: TextIO) -> Any:
    with needs("the progress bar needs tqdm", "recipes"):
        from tqdm import tqdm
    # tqdm draws, fits the width and prints the notes above the bar. Rate and time left are computed here, so that the
    # bar and the lines agree.
    layout = "{percentage:3.0f}%|{bar:12}| {desc}"
    return tqdm(total=total, initial=initial, file=stream, bar_format=layout, dynamic_ncols=True, delay=1e-9)


def _number(value: Any) -> str:
    number = float(value.detach() if hasattr(value, "detach") else value)
    return f"{number:.2f}" if abs(number) < 10 else f"{number:,.1f}"
