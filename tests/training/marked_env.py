"""An environment whose frames say where they come from: process, environment, episode, step and the last action."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch
from torch import nn
from torchrl.envs import EnvBase

from mcurl_torchrl import FrameReplayBuffer, make_pixel_env
from mcurl_torchrl.agents.explorers import Explorer
from mcurl_torchrl.modules import Policy

SIDE = 16
MARKS = ("process", "number", "episode", "step", "action")
_numbers = itertools.count()


class MarkedEnv(gymnasium.Env):
    """Episodes have different lengths and both kinds of end. Files in ``folder`` tell it to hang, to fail or to lie."""

    observation_space = gymnasium.spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(1_000_000)

    def __init__(self, folder: Path | None = None, seconds: float = 0.0) -> None:
        self.marks = dict.fromkeys(MARKS, 0) | {"process": os.getpid(), "number": next(_numbers)}
        self.folder, self.seconds = folder, seconds

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        self.marks |= {"episode": self.marks["episode"] + 1, "step": 0, "action": 0}
        return self._image(), {}

    def step(self, action: int) -> tuple:
        if self.seconds:
            time.sleep(self.seconds)
        self.marks |= {"step": self.marks["step"] + 1, "action": int(action)}
        over = self.marks["step"] == 1 + self.marks["episode"] * 7 % 23
        terminates = self.marks["episode"] % 2 == 0
        reward = self.told("lie", float("nan"), float(self.marks["step"]))
        if self.told("hang", True, False):
            (self.folder / f"hangs-{os.getpid()}").touch()
            time.sleep(3600)
        if self.told("fail", True, False):
            raise ArithmeticError("the simulator broke")
        return self._image(), reward, over and terminates, over and not terminates, {}

    def told(self, what: str, yes: object, no: object) -> object:
        """Whether a file says so for this process, or for all."""
        if self.folder is None:
            return no
        return yes if any((self.folder / f"{what}-{who}").exists() for who in (os.getpid(), "all")) else no

    def _image(self) -> np.ndarray:
        image = np.zeros((SIDE, SIDE, 1), np.uint8)
        for row, mark in enumerate(MARKS):
            image[row, :4, 0] = np.frombuffer(self.marks[mark].to_bytes(4, "big"), np.uint8)
        return image


def make_marked_env(folder: Path | None = None, **options: float) -> EnvBase:
    return make_pixel_env(MarkedEnv(folder, **options), num_frames=3, categorical_actions=True)


class Version(Policy):
    """Acts by its only weight, so that each action tells the weights that it was chosen with."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = {"observation_shape": [3, SIDE, SIDE]}
        self.version = nn.Parameter(torch.zeros(()))

    def sample(self, observation: torch.Tensor) -> torch.Tensor:
        return self.version.long().expand(observation.shape[:-3]).clone()


def make_explorer() -> Explorer:
    return Explorer(Version())


def marks_in(pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Reads the marks out of frames ``[..., SIDE, SIDE]``."""
    powers = torch.tensor([2**24, 2**16, 2**8, 1])
    return {mark: (pixels[..., row, :4].long() * powers).sum(-1) for row, mark in enumerate(MARKS)}


def check_transitions(buffer: FrameReplayBuffer, batch) -> None:
    """Each transition of one step is one that an environment took: stacks, action, reward and end."""
    stack, after = (marks_in(batch[key]) for key in ("pixels", ("next", "pixels")))
    for mark in ("process", "number", "episode"):
        assert (stack[mark] == after[mark][:, -1:]).all(), mark
    step = stack["step"]
    assert torch.equal(step[:, -1], batch["step"])
    assert torch.equal(step[:, -1] - step[:, 0], batch["step"].clamp(max=2))
    assert torch.equal(after["step"][:, -1] - step[:, -1], batch["steps_to_next_obs"].squeeze(-1))
    if buffer.n_step == 1:
        assert torch.equal(after["action"][:, -1], batch["action"].squeeze(-1).view(-1))
        assert torch.equal(batch["next", "reward"].squeeze(-1), after["step"][:, -1].float())
        length = 1 + after["episode"][:, -1] * 7 % 23
        assert torch.equal(
            batch["next", "terminated"].squeeze(-1),
            (after["step"][:, -1] == length) & (after["episode"][:, -1] % 2 == 0),
        )


def check_slices(batch, slice_len: int) -> None:
    """Each slice is of one episode, step by step."""
    marks = marks_in(batch.reshape(-1, slice_len)["pixels"][:, :, -1])
    for mark in ("process", "number", "episode"):
        assert (marks[mark] == marks[mark][:, :1]).all(), mark
    assert (marks["step"].diff(dim=1) == 1).all()


def written_steps(buffer: FrameReplayBuffer) -> list[tuple[int, ...]]:
    """Lists (process, environment, episode, step) of each step in the buffer, without the last frames of episodes."""
    rows = buffer.storage[:]
    rows = rows[(rows["trajectory"] >= 0) & ~rows["final"]]
    marks = marks_in(rows["pixels"][:, 0])
    return list(zip(*(marks[name].tolist() for name in ("process", "number", "episode", "step")), strict=True))
