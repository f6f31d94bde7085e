"""An agent of your own: DDPG from pixels, with M-CURL's task on the same encoder.

    python examples/compose_ddpg.py [--steps 1800] [--seed 0]

A collector plays a toy task and fills a `FrameReplayBuffer`. The RL loss learns from transitions, the auxiliary task
from slices. Policy, critic and task share one encoder; the target critic and the task's keys share its slow copy.
"""

import argparse

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage
from torchrl.envs import CatFrames, Compose, GymWrapper, InitTracker, RewardSum, ToTensorImage, TransformedEnv
from torchrl.modules import MLP, AdditiveGaussianModule, ValueOperator
from torchrl.objectives import SoftUpdate, TD3Loss

import mcurl_torchrl as mcurl

IMAGE_SIZE, CROP_SIZE, NUM_FRAMES, ACTION_DIM, EPISODE_STEPS = 24, 20, 3, 2, 30
FEATURE_DIM, HIDDEN = 32, {"num_cells": [128, 128], "activation_class": nn.ReLU}
BATCH_SIZE, N_STEP, GAMMA, TAU, LEARNING_RATE = 64, 1, 0.8, 0.02, 3e-4
NUM_SLICES, SLICE_LEN, MASK_RATIO, CONTRASTIVE_COEFF = 8, 12, 0.5, 0.1
STEPS_PER_BATCH, UPDATES_PER_BATCH, WARMUP = 4 * EPISODE_STEPS, 60, 12 * EPISODE_STEPS


class ReachTarget(gym.Env):
    """The agent moves a red dot to a green dot; the closer they are, the larger the reward."""

    observation_space = gym.spaces.Dict({"pixels": gym.spaces.Box(0, 255, (IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)})
    action_space = gym.spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)
    low, high, speed = 5, IMAGE_SIZE - 6, 2  # between low and high, no crop cuts off a dot

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        super().reset(seed=seed)
        self.dot, self.target = self.np_random.uniform(self.low, self.high, (2, ACTION_DIM))
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple:
        self.dot = np.clip(self.dot + self.speed * action, self.low, self.high)
        distance = np.linalg.norm(self.dot - self.target) / (self.high - self.low)
        return self.observe(), 1 - distance, False, False, {}

    def observe(self) -> dict[str, np.ndarray]:
        pixels = np.zeros((IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
        for channel, (row, column) in enumerate(np.rint([self.dot, self.target]).astype(int)):
            pixels[row - 1 : row + 2, column - 1 : column + 2, channel] = 255
        return {"pixels": pixels}


def make_replay(capacity: int) -> mcurl.FrameReplayBuffer:
    storage, crop = LazyTensorStorage(capacity), mcurl.RandomCrop(CROP_SIZE, in_keys=["pixels", ("next", "pixels")])
    options = {"num_frames": NUM_FRAMES, "n_step": N_STEP, "gamma": GAMMA, "batch_size": BATCH_SIZE}
    return mcurl.FrameReplayBuffer(storage=storage, transform=crop, **options)


def make_networks(buffer: mcurl.FrameReplayBuffer) -> tuple[nn.Module, TensorDictModule, TD3Loss, mcurl.AuxiliaryTask]:
    encoder = mcurl.PixelEncoder(3 * NUM_FRAMES, CROP_SIZE, num_layers=2, num_filters=16, feature_dim=FEATURE_DIM)
    actor = TensorDictModule(nn.Sequential(MLP(FEATURE_DIM, ACTION_DIM, **HIDDEN), nn.Tanh()), ["latent"], ["action"])
    critic = ValueOperator(MLP(FEATURE_DIM + ACTION_DIM, 1, **HIDDEN), in_keys=["latent", "action"])
    # DDPG is TD3 with one critic and no target noise. DDPGLoss detaches latents: it would not train the encoder.
    ddpg = TD3Loss(actor, critic, num_qvalue_nets=1, policy_noise=0.0, bounds=(-1.0, 1.0))
    ddpg.make_value_estimator(gamma=GAMMA)
    options = {"augmentation": mcurl.RandomCrop(CROP_SIZE), "tau": TAU, "coeff": CONTRASTIVE_COEFF}
    sizes = {"num_slices": NUM_SLICES, "slice_len": SLICE_LEN, "mask_ratio": MASK_RATIO}
    return encoder, actor, ddpg, mcurl.MaskedContrastiveTask(encoder, buffer, **sizes, **options)


def compute_losses(
    batch: TensorDict, views: TensorDict, encoder: nn.Module, ddpg: TD3Loss, task: nn.Module
) -> TensorDict:
    batch["latent"] = encoder(batch["pixels"])  # not inside the RL loss, which would copy the encoder
    batch["next", "latent"] = task.loss_module.encode_keys(batch["next", "pixels"])
    losses = task(views)
    losses["loss_qvalue"], _ = ddpg.value_loss(batch)
    losses["loss_actor"], _ = ddpg.actor_loss(batch.detach())  # the actor loss does not train the encoder
    return losses


def main(steps: int, seed: int) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # more threads do not help with such small networks
    image = ToTensorImage(from_int=False, dtype=torch.uint8, shape_tolerant=True)
    transforms = Compose(InitTracker(), image, CatFrames(NUM_FRAMES, dim=-3), RewardSum())
    env = TransformedEnv(GymWrapper(gym.wrappers.TimeLimit(ReachTarget(), EPISODE_STEPS)), transforms)
    env.set_seed(seed)
    buffer = make_replay(capacity=2 * steps)
    encoder, actor, ddpg, task = make_networks(buffer)
    optimizer = torch.optim.Adam([*ddpg.parameters(), *task.parameters()], lr=LEARNING_RATE)
    ddpg_target = SoftUpdate(ddpg, tau=TAU)
    see = TensorDictModule(nn.Sequential(mcurl.CenterCrop(CROP_SIZE), encoder), ["pixels"], ["latent"])
    policy = TensorDictSequential(see, actor, AdditiveGaussianModule(env.action_spec, annealing_num_steps=steps))
    collector = Collector(env, policy, frames_per_batch=STEPS_PER_BATCH, total_frames=steps, init_random_frames=WARMUP)
    for number, data in enumerate(collector, start=1):
        buffer.extend(data)
        policy[-1].step(len(data))  # anneals the noise
        for _ in range(UPDATES_PER_BATCH):
            losses = compute_losses(buffer.sample(), task.sample(), encoder, ddpg, task)
            optimizer.zero_grad()
            (losses["loss_qvalue"] + losses["loss_actor"] + losses["loss_auxiliary"]).backward()
            optimizer.step()
            task.update_targets()
            ddpg_target.step()
        returns = data["next", "episode_reward"][data["next", "done"]]
        numbers = [losses[key].item() for key in ("loss_qvalue", "loss_auxiliary", "contrastive_accuracy_zeroed")]
        line = "step {:5d}  return {:5.1f}  td loss {:.3f}  contrastive loss {:.3f}  accuracy on zeroed {:.2f}"
        print(line.format(number * STEPS_PER_BATCH, returns.mean(), *numbers))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_800)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
