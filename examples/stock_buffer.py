"""The masked contrastive loss with TorchRL's own replay buffer and slice sampler, on stacked pixels.

    python examples/stock_buffer.py [--updates 160] [--seed 0]

The data is a video: each episode shows a blob that moves in a straight line and bounces off the walls. Its position in
a hidden observation follows from the neighbouring observations. The accuracy on zeroed observations measures how often
the Transformer reconstructs it.
"""

import argparse
import math

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import Compose
from torchrl.objectives import SoftUpdate

from mcurl_torchrl import ContextTransformer, MaskedContrastiveLoss, MaskObservations, PixelEncoder, RandomCrop

NUM_EPISODES, EPISODE_LEN, NUM_FRAMES = 40, 50, 3
IMAGE_SIZE, CROP_SIZE, BLOB_RADIUS, MAX_SPEED = 24, 22, 2.0, 1.5
NUM_SLICES, SLICE_LEN, MASK_RATIO = 8, 16, 0.3
FEATURE_DIM, LEARNING_RATE, TAU, UPDATES_PER_LINE = 32, 3e-3, 0.05, 20


def bounce(position: Tensor, low: float, high: float) -> Tensor:
    """Folds a straight line back and forth between two walls."""
    span = high - low
    return high - (((position - low) % (2 * span)) - span).abs()


def make_video() -> TensorDict:
    """Makes episodes of stacked observations, one after the other: ``[NUM_EPISODES * EPISODE_LEN]``."""
    start = torch.rand(NUM_EPISODES, 1, 2) * IMAGE_SIZE
    velocity = (2 * torch.rand(NUM_EPISODES, 1, 2) - 1) * MAX_SPEED
    time = torch.arange(EPISODE_LEN)[:, None]
    center = bounce(start + velocity * time, BLOB_RADIUS, IMAGE_SIZE - 1 - BLOB_RADIUS)
    grid = torch.stack(torch.meshgrid(torch.arange(IMAGE_SIZE), torch.arange(IMAGE_SIZE), indexing="ij"), -1)
    squared_distance = (grid - center[:, :, None, None]).square().sum(-1)
    frames = (255 * torch.exp(-squared_distance / BLOB_RADIUS**2)).byte()
    padded = torch.cat([frames[:, :1].expand(-1, NUM_FRAMES - 1, -1, -1), frames], dim=1)
    stacks = padded.unfold(1, NUM_FRAMES, 1).movedim(-1, 2)  # [episodes, time, frames, height, width]
    episode = torch.arange(NUM_EPISODES)[:, None].expand(-1, EPISODE_LEN)
    return TensorDict({"pixels": stacks, "episode": episode}, [NUM_EPISODES, EPISODE_LEN]).reshape(-1)


def make_buffer() -> TensorDictReplayBuffer:
    """Makes a TorchRL buffer whose transform writes the two views and hides observations of the first."""
    views = [RandomCrop(CROP_SIZE, out_keys=[("mcurl", name)]) for name in ("query_pixels", "key_pixels")]
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(NUM_EPISODES * EPISODE_LEN),
        sampler=SliceSampler(slice_len=SLICE_LEN, traj_key="episode"),
        batch_size=NUM_SLICES * SLICE_LEN,
        transform=Compose(*views, MaskObservations(MASK_RATIO, slice_len=SLICE_LEN)),
    )


def main(updates: int, seed: int) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # more threads do not help with such small networks
    buffer = make_buffer()
    buffer.extend(make_video())
    loss = MaskedContrastiveLoss(
        PixelEncoder(NUM_FRAMES, CROP_SIZE, num_layers=2, num_filters=16, feature_dim=FEATURE_DIM),
        ContextTransformer(FEATURE_DIM, dropout=0.0),
        temperature=math.sqrt(FEATURE_DIM),  # keeps the first logits of normalised latents small
    )
    optimizer = torch.optim.Adam(loss.parameters(), lr=LEARNING_RATE)
    momentum = SoftUpdate(loss, tau=TAU)
    print(f"chance: loss {math.log(NUM_SLICES * SLICE_LEN):.3f}, accuracy {1 / (NUM_SLICES * SLICE_LEN):.3f}")
    for update in range(1, updates + 1):
        # SliceSampler returns slices one after the other; the loss needs [slices, time].
        losses = loss(buffer.sample().reshape(NUM_SLICES, SLICE_LEN))
        optimizer.zero_grad()
        losses["loss_contrastive"].backward()
        optimizer.step()
        momentum.step()
        if update == 1 or update % UPDATES_PER_LINE == 0:
            value, accuracy = losses["loss_contrastive"].item(), losses["contrastive_accuracy_zeroed"].item()
            print(f"update {update:4d}  contrastive loss {value:.3f}  accuracy on zeroed {accuracy:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
