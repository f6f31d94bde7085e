"""TD3 from pixels on a DMControl task: a TorchRL collector fills the replay, M-CURL's task trains the same encoder.

    python examples/td3_collector.py [--steps 4000] [--task cartpole-swingup] [--seed 0]

The collector itself writes to the `FrameReplayBuffer`. Actor and critics take latents. The latents of the target
networks come from the slow encoder of the auxiliary task. Only the critic loss and the task train the encoder.
"""

import argparse

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage
from torchrl.envs import EnvBase, ExplorationType, InitTracker, TransformedEnv, set_exploration_type
from torchrl.modules import MLP, AdditiveGaussianModule, ValueOperator
from torchrl.objectives import SoftUpdate, TD3Loss

import mcurl_torchrl as mcurl

IMAGE_SIZE, CROP_SIZE, NUM_FRAMES, ACTION_REPEAT = 48, 42, 3, 8
ENCODER = {"num_layers": 3, "num_filters": 16, "feature_dim": 50}
HIDDEN = {"num_cells": [256, 256], "activation_class": nn.ReLU}
BATCH_SIZE, N_STEP, GAMMA, TAU, LEARNING_RATE = 64, 3, 0.99, 0.01, 3e-4
NUM_SLICES, SLICE_LEN, MASK_RATIO = 8, 16, 0.5
STEPS_PER_BATCH, UPDATES_PER_BATCH, ACTOR_INTERVAL, WARMUP, LINES = 50, 50, 2, 100, 10


def make_env(task: str, seed: int) -> EnvBase:
    quality = {"shadows": False, "multisampling": False}  # rendering on a CPU is several times faster without them
    sizes = {"action_repeat": ACTION_REPEAT, "image_size": IMAGE_SIZE, "num_frames": NUM_FRAMES}
    return TransformedEnv(mcurl.make_dmc_env(task, seed=seed, **sizes, **quality), InitTracker())


def make_replay(capacity: int) -> mcurl.FrameReplayBuffer:
    storage, crop = LazyTensorStorage(capacity), mcurl.RandomCrop(CROP_SIZE, in_keys=["pixels", ("next", "pixels")])
    options = {"num_frames": NUM_FRAMES, "n_step": N_STEP, "gamma": GAMMA, "batch_size": BATCH_SIZE}
    return mcurl.FrameReplayBuffer(storage=storage, transform=crop, **options)


def make_networks(
    action_dim: int, buffer: mcurl.FrameReplayBuffer
) -> tuple[nn.Module, TensorDictModule, TD3Loss, mcurl.MaskedContrastiveTask]:
    encoder = mcurl.PixelEncoder(3 * NUM_FRAMES, CROP_SIZE, **ENCODER)
    latent_dim = encoder.feature_dim
    actor = TensorDictModule(nn.Sequential(MLP(latent_dim, action_dim, **HIDDEN), nn.Tanh()), ["latent"], ["action"])
    critic = ValueOperator(MLP(latent_dim + action_dim, 1, **HIDDEN), in_keys=["latent", "action"])
    td3 = TD3Loss(actor, critic, bounds=(-1.0, 1.0))
    td3.make_value_estimator(gamma=GAMMA)
    options = {"num_slices": NUM_SLICES, "slice_len": SLICE_LEN, "mask_ratio": MASK_RATIO, "tau": TAU}
    task = mcurl.MaskedContrastiveTask(encoder, buffer, augmentation=mcurl.RandomCrop(CROP_SIZE), **options)
    return encoder, actor, td3, task


def compute_losses(
    batch: TensorDict, encoder: nn.Module, td3: TD3Loss, task: mcurl.MaskedContrastiveTask, with_actor: bool
) -> TensorDict:
    batch["latent"] = encoder(batch["pixels"])  # not inside TD3Loss, which would copy the encoder
    batch["next", "latent"] = task.loss_module.encode_keys(batch["next", "pixels"])
    losses = task(task.sample())
    losses["loss_qvalue"], _ = td3.value_loss(batch)
    if with_actor:
        losses["loss_actor"], _ = td3.actor_loss(batch.detach())  # the actor loss does not train the encoder
    return losses


def main(steps: int, task: str, seed: int) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # more threads do not help with such small networks
    env, evaluation_env = make_env(task, seed), make_env(task, seed + 1)
    buffer = make_replay(capacity=2 * steps)
    encoder, actor, td3, mcurl_task = make_networks(env.action_spec.shape[-1], buffer)
    optimizer = torch.optim.Adam(mcurl.joint_parameters(td3, mcurl_task), lr=LEARNING_RATE)
    td3_targets = SoftUpdate(td3, tau=TAU)
    see = TensorDictModule(nn.Sequential(mcurl.CenterCrop(CROP_SIZE), encoder), ["pixels"], ["latent"])
    noise = AdditiveGaussianModule(env.action_spec, annealing_num_steps=steps, sigma_end=0.1)
    policy = TensorDictSequential(see, actor, noise)
    options = {"frames_per_batch": STEPS_PER_BATCH, "total_frames": steps, "init_random_frames": WARMUP}
    collector = Collector(env, policy, replay_buffer=buffer, **options)
    for number, _ in enumerate(collector, start=1):  # the data is in the buffer
        noise.step(STEPS_PER_BATCH)
        if number * STEPS_PER_BATCH < WARMUP:
            continue
        for update in range(UPDATES_PER_BATCH):
            losses = compute_losses(buffer.sample(), encoder, td3, mcurl_task, update % ACTOR_INTERVAL == 0)
            optimizer.zero_grad()
            sum(value for name, value in losses.items() if name.startswith("loss_")).backward()
            optimizer.step()
            mcurl_task.update_targets()
            td3_targets.step()
        if number % max(1, steps // STEPS_PER_BATCH // LINES) == 0:
            with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
                reward = evaluation_env.rollout(1000, policy)["next", "reward"].sum()
            names = ("loss_qvalue", "loss_auxiliary", "contrastive_accuracy")
            line = "step {:5d}  return {:5.1f}  td loss {:.3f}  contrastive loss {:.3f}  accuracy {:.2f}"
            print(line.format(number * STEPS_PER_BATCH, reward, *(losses[name].item() for name in names)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--task", default="cartpole-swingup")
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
