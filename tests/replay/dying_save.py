"""Saves a buffer again and again, each time killed at another system call that changes the folder.

``python -m tests.replay.dying_save FOLDER COUNTDOWN...`` loads ``FOLDER/COUNTDOWN``, writes more rows and saves, in a
process of its own that is killed (SIGKILL) after COUNTDOWN such calls; prints which signal ended each, 0 for none.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mcurl_torchrl.replay import archive
from tests.replay.episodes import make_buffer, make_episode


def save_and_die(folder: Path, countdown: int) -> None:
    """Saves, and is killed when the countdown is over."""
    archive._SEGMENT_BYTES = 500
    buffer = make_buffer(50)
    buffer.loads(folder)
    buffer.extend(make_episode(33, first=100))

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal countdown
            countdown -= 1
            if countdown < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    class HalfWritten(io.FileIO):
        """A file that is written in two halves, between which the process may die."""

        def write(self, content: Any) -> int:
            middle = len(content) // 2
            super().write(content[:middle])
            between_the_halves()
            return middle + (super().write(content[middle:]) or 0)

    between_the_halves = dying(lambda: None)
    archive.open = HalfWritten  # type: ignore[attr-defined]
    os.replace, os.fsync, Path.unlink = dying(os.replace), dying(os.fsync), dying(Path.unlink)  # type: ignore
    buffer.dumps(folder)


if __name__ == "__main__":
    for number in sys.argv[2:]:
        child = os.fork()
        if not child:
            save_and_die(Path(sys.argv[1]) / number, int(number))
            os._exit(0)
        print(f"signal {abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))}", flush=True)
