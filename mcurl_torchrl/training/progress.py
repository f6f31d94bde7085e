"""One line that tells how a run is doing."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

from mcurl_torchrl.checks import check_count

__all__ = ["Progress"]

_BAR_SECONDS = 0.25
_FIRST_LINE_SECONDS = 2.0
_LINE_SECONDS = 10.0
_RATE_SECONDS = 600.0


class Progress:
    """Shows the steps, the speed, the time left and the latest numbers of a run on the standard error.

    On a terminal this is a bar. Elsewhere (a log file, CI) it is a plain line every 10 seconds, the first after 2. Most
    calls of :meth:`update` only store what they are given.

    Args:
        total (int): the agent steps of the whole run.

    Keyword Args:
        initial (int): the steps that were done before, in a resumed run. Defaults to 0.
        enabled (bool, optional): True for the bar and False for nothing but the notes, whatever the stream is. None,
            the default, for a bar on a terminal and lines elsewhere.
        stream (text stream, optional): where to write. Defaults to the standard error.
        clock (callable): gives the time in seconds. Defaults to :func:`time.monotonic`.

    Raises:
        ImportError: if a bar is to be shown and tqdm is missing.

    Examples:
        >>> import io
        >>> from mcurl_torchrl.training.progress import Progress
        >>> log, seconds = io.StringIO(), iter([0.0, 2.0, 4.0])
        >>> with Progress(12_500, stream=log, clock=lambda: next(seconds)) as progress:
        ...     progress.update(100, eval_return=181.25, contrastive_accuracy=0.5)
        ...     progress.note("a checkpoint was written")
        >>> print(log.getvalue().splitlines()[0])
        agent step 100/12,500 (1%) | 50 steps/s | 0:04:08 left | eval return 181.2 | contrastive accuracy 0.50
    """

    def __init__(
        self,
        total: int,
        *,
        initial: int = 0,
        enabled: bool | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = check_count("total", total)
        if not 0 <= initial <= total:
            raise ValueError(f"initial={initial}; it must be between 0 and total={total}")
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._step = initial
        self._shown: dict[str, Any] = {}
        self._closed = False
        self._printed: str | None = None
        self._start = clock()
        self._since = self._start
        self._history: deque[tuple[float, int]] = deque([(self._start, initial)])
        self._bar = _make_bar(total, initial, self._stream) if _wants_bar(enabled, self._stream) else None
        self._silent = enabled is False
        self._next_draw = self._start + (_FIRST_LINE_SECONDS if self._bar is None else 0.0)

    def update(self, step: int, **shown: Any) -> None:
        """Stores the current step and the numbers to show, and draws if it is time to.

        Args:
            step (int): the agent steps done so far, all sessions of a resumed run included.

        Keyword Args:
            **shown (float or scalar Tensor): shown with the name's underscores as spaces, until a new value comes; a
                tensor is read only when it is drawn, so that no step waits for the device.
        """
        self._step = step
        if shown:
            self._shown.update(shown)
        now = self._clock()
        if now >= self._next_draw and not self._silent:
            self._draw(now)

    def restart(self) -> None:
        """Measures the speed anew: what comes is of another kind than what was."""
        self._since = self._clock()
        self._history = deque([(self._since, self._step)])

    def note(self, message: str) -> None:
        """Prints a line above the bar, or as the next line of the log."""
        if self._bar is not None:
            self._bar.write(message, file=self._stream)
        else:
            self._print(message)

    def close(self) -> None:
        """Draws the last state and ends the line; further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        if not self._silent:
            self._draw(self._clock())
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _draw(self, now: float) -> None:
        rate = self._rate(now)
        parts = [f"{rate:.3g} steps/s" if rate < 1000 else f"{rate:,.0f} steps/s"]
        if self._step >= self._total:
            parts.append(f"done in {_clock_time(now - self._start)}")
        elif rate > 0 and now - self._since > _FIRST_LINE_SECONDS / 2:
            parts.append(f"{_clock_time((self._total - self._step) / rate)} left")
        parts += [f"{name.replace('_', ' ')} {_number(value)}" for name, value in self._shown.items()]
        text = " | ".join(parts)
        steps = f"agent step {self._step:,}/{self._total:,}"
        if self._bar is not None:
            self._bar.n = self._step
            self._bar.set_description_str(f"{steps} | {text}", refresh=False)
            self._bar.refresh()
            self._next_draw = now + _BAR_SECONDS
            return
        line = f"{steps} ({self._step / self._total:.0%}) | {text}"
        if not (self._closed and self._printed == line):
            self._print(line)
        self._printed = line
        self._next_draw = now + _LINE_SECONDS

    def _rate(self, now: float) -> float:
        """Returns the steps per second over the later half of the time so far, at most ten minutes.

        So the fast random steps at a run's start are soon forgotten, and an evaluation does not make the number jump.
        """
        window = min((now - self._since) / 2, _RATE_SECONDS)
        while len(self._history) > 1 and self._history[1][0] <= now - window:
            self._history.popleft()
        then, step = self._history[0]
        if now - self._history[-1][0] >= 1.0:
            self._history.append((now, self._step))
        return (self._step - step) / (now - then) if now > then else 0.0

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _wants_bar(enabled: bool | None, stream: TextIO) -> bool:
    return stream.isatty() if enabled is None else enabled


def _make_bar(total: int, initial: int, stream: TextIO) -> Any:
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("the progress bar needs tqdm: pip install 'mcurl-torchrl[recipes]'") from error
    # Rate and time left are ours, so that bar and lines agree; tqdm draws, fits the width and keeps the notes apart.
    layout = "{percentage:3.0f}%|{bar:12}| {desc}"
    return tqdm(total=total, initial=initial, file=stream, bar_format=layout, dynamic_ncols=True, delay=1e-9)


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def _number(value: Any) -> str:
    number = float(value.detach() if hasattr(value, "detach") else value)
    return f"{number:.2f}" if abs(number) < 10 else f"{number:,.1f}"
