"""Objectives beyond the paper beside SAC and Rainbow, as the recipes build them: an update, and a reset between two."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical

from mcurl_torchrl import FrameReplayBuffer
from mcurl_torchrl.agents import Agent, Resets
from mcurl_torchrl.stacking import stack_frames
from recipes import rainbow_mcurl, sac_mcurl
from tests.recipes import running

SIZES = {
    "sac_mcurl": ["env.image_size=24", "encoder.crop_size=20", "encoder.num_filters=4", "encoder.num_layers=2"],
    "rainbow_mcurl": ["env.image_size=36", "rainbow.n_step=2"],
    "ppo_mcurl": ["env.image_size=36"],
}


def fill(buffer, channels: int, size: int, actions: torch.Tensor) -> None:
    frames = torch.randint(256, (41, channels, size, size), dtype=torch.uint8)
    windows = torch.cat([frames[:1].expand(buffer.num_frames - 1, -1, -1, -1), frames]).unfold(0, buffer.num_frames, 1)
    stacks = stack_frames(windows.movedim(-1, 1), 1, step=torch.arange(41), padding=buffer.padding)
    last = torch.arange(40)[:, None] == 39
    outcome = {"pixels": stacks[1:], "reward": torch.rand(40, 1), "truncated": last}
    steps = {"pixels": stacks[:-1], "action": actions, "next": {**outcome, "terminated": torch.zeros_like(last)}}
    batch = TensorDict(steps, [40])
    buffer.extend(batch if buffer.storage.ndim == 1 else torch.stack([batch, batch]))


def make_learner(module: ModuleType, algo: str, folder: Path, *more: str) -> tuple[Agent, FrameReplayBuffer]:
    """Makes a small agent as its recipe does, with a replay of random frames."""
    recipe = module.__name__.rpartition(".")[2]
    discrete = recipe != "sac_mcurl"
    cfg = running.settings(f"algo={algo}", "preset=smoke", *SIZES[recipe], *more, recipe=recipe)
    size, channels = cfg.env.image_size, 1 if discrete else 3
    spaces = SimpleNamespace(
        observation_spec={"pixels": torch.empty(channels * cfg.env.num_frames, size, size, device="meta")},
        action_spec=Categorical(6) if discrete else Bounded(-1, 1, shape=(2,)),
    )
    buffer = module.make_replay(cfg, folder)
    agent = module.make_agent(cfg, spaces, buffer, torch.device("cpu"))
    fill(buffer, channels, size, torch.randint(6, (40,)) if discrete else torch.rand(40, 2))
    return agent, buffer


@pytest.mark.parametrize(
    ("module", "algo"),
    [
        (sac_mcurl, "mcurl_actions"),
        (sac_mcurl, "mlr"),
        (sac_mcurl, "spr"),
        (rainbow_mcurl, "mcurl_actions"),
        (rainbow_mcurl, "mlr"),
        (rainbow_mcurl, "spr"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_an_update_moves_encoder_and_task(module: ModuleType, algo: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    discrete = module is rainbow_mcurl
    agent, buffer = make_learner(module, algo, tmp_path)
    agent.resets = Resets(4)
    encoder = agent.policy.network.encoder if discrete else agent.policy.encoder
    trained = {"encoder": next(encoder.parameters()), "task": agent.task.own_parameters()[-1]}
    for number in range(6):  # a reset after the fourth
        before = {name: value.detach().clone() for name, value in trained.items()}
        agent.begin_step(agent.first_update_step + number)
        batch = buffer.sample()
        metrics = agent.update(batch, agent.task.sample(batch))
        assert all(value.isfinite().all() for value in metrics.values())
        assert set(agent.task.shown) <= set(metrics)
        assert all(not torch.equal(value, before[name]) for name, value in trained.items())
