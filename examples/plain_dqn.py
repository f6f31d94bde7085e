"""DQN in plain PyTorch and numpy on a Gymnasium environment, with M-CURL's task on its encoder.

    python examples/plain_dqn.py [--steps 3000] [--seed 0]

The loop, the networks and the loss are your own. The replay takes numpy arrays and gives back tensors by name; the task
draws its own slices from it. Two lines add the task to the agent: `task.loss()` and `task.update_targets()`.
"""

import argparse
import copy
from collections import deque

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torchrl.data import LazyTensorStorage

import mcurl_torchrl as mcurl

CELLS, PIXELS_PER_CELL = 8, 3
IMAGE_SIZE, NUM_ACTIONS = CELLS * PIXELS_PER_CELL, 3
BATCH_SIZE, N_STEP, GAMMA, TAU, LEARNING_RATE = 32, 3, 0.95, 0.02, 1e-3
NUM_SLICES, SLICE_LEN, MASK_RATIO, CONTRASTIVE_COEFF = 8, 6, 0.5, 0.1
WARMUP, EPSILON, LINES = 200, 0.1, 10


class Catch(gym.Env):
    """A ball falls straight down; the agent moves a paddle in the last row to catch it."""

    observation_space = gym.spaces.Box(0, 255, (1, IMAGE_SIZE, IMAGE_SIZE), np.uint8)
    action_space = gym.spaces.Discrete(NUM_ACTIONS)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.row, self.ball, self.paddle = 0, *self.np_random.integers(CELLS, size=2)
        return self.observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.row += 1
        self.paddle = np.clip(self.paddle + action - 1, 0, CELLS - 1)
        over = self.row == CELLS - 1
        return self.observe(), float(over and self.paddle == self.ball), over, False, {}

    def observe(self) -> np.ndarray:
        cells = np.zeros((CELLS, CELLS), np.uint8)
        cells[self.row, self.ball], cells[-1, self.paddle] = 255, 128
        return cells.repeat(PIXELS_PER_CELL, 0).repeat(PIXELS_PER_CELL, 1)[None]


class QNetwork(nn.Module):
    """Maps pixels to the value of each action."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mcurl.PixelEncoder(1, IMAGE_SIZE, num_layers=2, num_filters=16, feature_dim=32)
        self.head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, NUM_ACTIONS))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(pixels))


def td_loss(batch: dict[str, torch.Tensor], network: QNetwork, target: QNetwork) -> torch.Tensor:
    value = network(batch["pixels"]).gather(1, batch["action"].reshape(-1, 1))
    following = batch["next"]  # the observation up to N_STEP steps later, and the sum of the rewards until then
    with torch.no_grad():
        best = network(following["pixels"]).argmax(1, keepdim=True)
        next_value = target(following["pixels"]).gather(1, best) * ~following["terminated"]
    return F.smooth_l1_loss(value, following["reward"] + GAMMA ** batch["steps_to_next_obs"] * next_value)


def main(steps: int, seed: int) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # more threads do not help with such small networks
    env, random = Catch(), np.random.default_rng(seed)
    network = QNetwork()
    target = copy.deepcopy(network).requires_grad_(False)
    storage = LazyTensorStorage(2 * steps)
    buffer = mcurl.FrameReplayBuffer(storage=storage, n_step=N_STEP, gamma=GAMMA, batch_size=BATCH_SIZE)
    sizes = {"num_slices": NUM_SLICES, "slice_len": SLICE_LEN, "mask_ratio": MASK_RATIO}
    shift = mcurl.RandomShift(margin=0, padding=1)
    task = mcurl.MaskedContrastiveTask(network.encoder, buffer, augmentation=shift, coeff=CONTRASTIVE_COEFF, **sizes)
    optimizer = torch.optim.Adam(mcurl.joint_parameters(network, task), lr=LEARNING_RATE)
    returns = deque(maxlen=100)
    obs, _ = env.reset(seed=seed)
    for step in range(1, steps + 1):
        if step <= WARMUP or random.random() < EPSILON:
            action = int(random.integers(NUM_ACTIONS))
        else:
            with torch.no_grad():
                action = int(network(torch.from_numpy(obs)[None]).argmax())
        next_obs, reward, terminated, truncated, _ = env.step(action)
        buffer.add(obs=obs, action=action, reward=reward, terminated=terminated, truncated=truncated, next_obs=next_obs)
        obs = next_obs
        if terminated or truncated:
            returns.append(reward)
            obs, _ = env.reset()
        if step <= WARMUP:
            continue
        batch = buffer.sample()
        value_loss, task_loss = td_loss(batch, network, target), task.loss(batch)
        optimizer.zero_grad()
        (value_loss + task_loss).backward()
        optimizer.step()
        task.update_targets()
        for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
            slow.data.lerp_(fast.data, TAU)
        if step % max(1, steps // LINES) == 0:
            line = "step {:5d}  return {:.2f}  td loss {:.4f}  contrastive loss {:.3f}"
            print(line.format(step, np.mean(returns), value_loss.item(), task_loss.item() / CONTRASTIVE_COEFF))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
