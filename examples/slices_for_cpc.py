"""Slices for another loss: contrastive predictive coding (https://arxiv.org/abs/1807.03748) on a `FrameReplayBuffer`.

    python examples/slices_for_cpc.py [--updates 80] [--seed 0]

`buffer.slices` draws slices of consecutive observations of one episode, each with the same probability, for any loss.
Here a GRU summarises the past, and linear maps predict the latents of the next observations from its state.
"""

import argparse
import math

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.data import LazyTensorStorage

from mcurl_torchrl import FrameReplayBuffer, PixelEncoder

NUM_EPISODES, MIN_LEN, MAX_LEN, IMAGE_SIZE, DOT_SIZE, DRAG = 40, 30, 60, 20, 3, 0.2
NUM_FRAMES, NUM_SLICES, SLICE_LEN = 2, 8, 16
FEATURE_DIM, CONTEXT_DIM, STEPS_AHEAD, LEARNING_RATE, UPDATES_PER_LINE = 32, 64, 4, 1e-3, 10


def play_episode() -> TensorDict:
    """Plays a toy episode, instead of a collector: random forces move a dot. Episodes differ in length."""
    length = int(torch.randint(MIN_LEN, MAX_LEN + 1, ()))
    action = torch.rand(length, 2) * 2 - 1
    position, velocity = torch.rand(2) * (IMAGE_SIZE - DOT_SIZE), torch.zeros(2)
    frames = torch.zeros(length + 1, 1, IMAGE_SIZE, IMAGE_SIZE, dtype=torch.uint8)
    for step in range(length + 1):
        row, column = position.round().int().tolist()
        frames[step, :, row : row + DOT_SIZE, column : column + DOT_SIZE] = 255
        if step < length:
            velocity = (1 - DRAG) * velocity + action[step]
            position = (position + velocity).clamp(0, IMAGE_SIZE - DOT_SIZE)
    truncated = torch.arange(1, length + 1)[:, None] == length
    outcome = {"pixels": frames[1:], "reward": torch.zeros(length, 1), "truncated": truncated}
    outcome["terminated"] = torch.zeros_like(truncated)
    return TensorDict({"pixels": frames[:-1], "action": action, "next": outcome}, [length])


class ContrastivePredictiveCoding(nn.Module):
    """Finds the latents of the next observations among all latents of the batch, given the past observations."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = PixelEncoder(NUM_FRAMES, IMAGE_SIZE, num_layers=2, num_filters=16, feature_dim=FEATURE_DIM)
        self.context = nn.GRU(FEATURE_DIM, CONTEXT_DIM, batch_first=True)
        self.predictions = nn.ModuleList([nn.Linear(CONTEXT_DIM, FEATURE_DIM) for _ in range(STEPS_AHEAD)])

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns InfoNCE and the accuracy, each averaged over steps ahead, for pixels ``[B, T, C, H, W]``."""
        latents = self.encoder(pixels)
        context, _ = self.context(latents)
        losses, accuracies = [], []
        for ahead, predict in enumerate(self.predictions, start=1):
            queries = predict(context[:, :-ahead]).flatten(0, 1)
            keys = latents[:, ahead:].flatten(0, 1)
            logits, own = queries @ keys.T, torch.arange(len(keys), device=keys.device)
            losses.append(F.cross_entropy(logits, own))
            accuracies.append((logits.argmax(-1) == own).float().mean())
        return torch.stack(losses).mean(), torch.stack(accuracies).mean()


def main(updates: int, seed: int) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # more threads do not help with such small networks
    buffer = FrameReplayBuffer(
        storage=LazyTensorStorage(NUM_EPISODES * (MAX_LEN + 1)), num_frames=NUM_FRAMES, stacked_input=False
    )
    for _ in range(NUM_EPISODES):
        buffer.extend(play_episode())
    slices = buffer.slices(num_slices=NUM_SLICES, slice_len=SLICE_LEN)

    cpc = ContrastivePredictiveCoding()
    optimizer = torch.optim.Adam(cpc.parameters(), lr=LEARNING_RATE)
    chance = sum(math.log(NUM_SLICES * (SLICE_LEN - ahead)) for ahead in range(1, STEPS_AHEAD + 1)) / STEPS_AHEAD
    print(f"{len(buffer)} frames of {NUM_EPISODES} episodes; knowing nothing, the loss is {chance:.3f}")
    for update in range(1, updates + 1):
        loss, accuracy = cpc(slices.sample().reshape(NUM_SLICES, SLICE_LEN)["pixels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update == 1 or update % UPDATES_PER_LINE == 0:
            print(f"update {update:4d}  loss {loss.item():.3f}  accuracy {accuracy.item():.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
