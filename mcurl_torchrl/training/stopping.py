"""Stopping a run between two steps: signals set a flag that the training loop reads."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

__all__ = ["StopRequested", "catch_stop_signals"]

# The last three are sent by a lost terminal and by batch systems (before a time limit; submitit sends SIGUSR2).
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass
class StopRequested:
    """The flag that a signal asked the run to stop; made by :func:`catch_stop_signals`.

    Args:
        signal_name (str, optional): the first signal that came, as in ``"SIGTERM"``. Defaults to None.

    Examples:
        >>> from mcurl_torchrl.training.stopping import StopRequested
        >>> StopRequested().requested, StopRequested(signal_name="SIGTERM").requested
        (False, True)
    """

    signal_name: str | None = None

    @property
    def requested(self) -> bool:
        """Whether to stop after the current step."""
        return self.signal_name is not None

    @property
    def exit_code(self) -> int:
        """The code that a shell gives to a program that a signal ended; 0 without a signal."""
        return 0 if self.signal_name is None else 128 + signal.Signals[self.signal_name]


@contextlib.contextmanager
def catch_stop_signals() -> Iterator[StopRequested]:
    """Turns SIGINT (Ctrl-C), SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 into a flag: the current step is finished and saved.

    A second SIGINT raises KeyboardInterrupt at once, for a user who does not want to wait. On exit the earlier handlers
    are restored. Processes forked inside use the earlier handlers: a worker still ends on a signal. Outside of the main
    thread, where Python allows no handlers, signals keep their effect. An ignored SIGHUP (``nohup``) stays ignored.

    Examples:
        >>> import os, signal
        >>> from mcurl_torchrl.training.stopping import catch_stop_signals
        >>> with catch_stop_signals() as stop:
        ...     for step in range(1000):
        ...         if step == 3:
        ...             os.kill(os.getpid(), signal.SIGTERM)
        ...         if stop.requested:
        ...             break
        >>> step, stop.signal_name
        (3, 'SIGTERM')
    """
    stop = StopRequested()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    owner = os.getpid()
    interrupted = False
    # getsignal returns None for a handler that was not set from Python and cannot be restored.
    previous = {number: signal.getsignal(number) or signal.SIG_DFL for number in _SIGNALS}
    if previous[signal.SIGHUP] == signal.SIG_IGN:
        del previous[signal.SIGHUP]

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if os.getpid() != owner:
            # A forked worker has no loop that reads the flag: Process.terminate() would wait for it forever.
            signal.signal(number, previous[signal.Signals(number)])
            os.kill(os.getpid(), number)
            return
        if number == signal.SIGINT and interrupted:
            raise KeyboardInterrupt
        interrupted |= number == signal.SIGINT
        if stop.signal_name is None:
            stop.signal_name = signal.Signals(number).name
            # os.write, because print is not safe in a handler.
            os.write(2, f"\n{stop.signal_name}: finishing the current step, then saving\n".encode())

    try:
        for number in previous:
            signal.signal(number, handle)
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
