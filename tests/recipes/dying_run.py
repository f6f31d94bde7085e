"""Trains and is killed on the way: ``python -m tests.recipes.dying_run RECIPE WHERE STEP FOLDER OVERRIDES...``.

WHERE is where in the agent step STEP the process gets SIGKILL (or, for ``terminate``, SIGTERM).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from mcurl_torchrl import FrameReplayBuffer
from mcurl_torchrl.training import Table, TrainingRun, checkpoints
from tests.recipes.running import train


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(where: str, at: int) -> None:
    """Replaces one method by one that dies in step ``at``."""
    now = {"step": 0}

    def before(owner: type, name: str, act) -> None:
        original = getattr(owner, name)

        def replaced(self, *args, **kwargs):
            act(self, *args, **kwargs)
            return original(self, *args, **kwargs)

        setattr(owner, name, replaced)

    def look(run: TrainingRun, step: int) -> None:
        now["step"] = step
        if step == at and where in ("step", "terminate"):
            os.kill(os.getpid(), signal.SIGKILL if where == "step" else signal.SIGTERM)

    def at_that_step(*_, **__) -> None:
        if now["step"] == at:
            die()

    before(TrainingRun, "log_due", look)  # asked in every step
    if where == "checkpoint":
        write_file = checkpoints.write_file

        def write(target: Path, content: bytes, **options) -> None:
            if now["step"] == at:
                target.with_name(f".{target.name}.part").write_bytes(content[: len(content) // 2])
                die()
            write_file(target, content, **options)

        checkpoints.write_file = write
    elif where == "replay":
        original = FrameReplayBuffer.dumps

        def dumps(self, *args, **kwargs):
            original(self, *args, **kwargs)
            if now["step"] == at:
                die()

        FrameReplayBuffer.dumps = dumps
    elif where == "evaluation":
        before(TrainingRun, "_write_result", at_that_step)
    elif where == "row":
        before(Table, "append", at_that_step)


if __name__ == "__main__":
    torch.set_num_threads(1)
    recipe, where, step, folder, *overrides = sys.argv[1:]
    arm(where, int(step))
    train(Path(folder), *overrides, recipe=recipe)
