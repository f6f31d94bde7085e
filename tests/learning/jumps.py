"""A synthetic video that actions decide: a bright column jumps to the place that the action names.

Without the actions nobody can know where the column is in a hidden frame, or in the next one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Categorical, LazyTensorStorage

from mcurl_torchrl import AuxiliaryTask, FrameReplayBuffer

SIZE, LENGTH = 12, 9
ACTIONS = Categorical(SIZE)


class ColumnEncoder(nn.Module):
    """A linear map of the columns' brightness: seconds, not minutes, until its latents tell frames apart."""

    feature_dim = num_features = 24
    feature_shape = (24, 1, 1)

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, self.feature_dim)
        nn.init.orthogonal_(self.linear.weight, 5.0)

    def forward(self, pixels: Tensor) -> Tensor:
        brightness = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
        return self.linear(brightness.mean((-3, -2)))

    features = forward


def make_buffer(*, true_actions: bool, num_episodes: int = 200) -> FrameReplayBuffer:
    """Writes episodes in which no column comes twice, with the actions that led there or with others."""
    generator = torch.Generator().manual_seed(0)
    buffer = FrameReplayBuffer(storage=LazyTensorStorage(4000), stacked_input=False, batch_size=32)
    last = torch.arange(LENGTH - 1)[:, None] == LENGTH - 2
    for _ in range(num_episodes):
        column = torch.randperm(SIZE, generator=generator)[:LENGTH]
        frames = torch.zeros(LENGTH, 1, SIZE, SIZE, dtype=torch.uint8)
        frames[torch.arange(LENGTH), 0, :, column] = 255
        action = column[1:] if true_actions else torch.randint(SIZE, (LENGTH - 1,), generator=generator)
        outcome = {"pixels": frames[1:], "reward": torch.zeros(LENGTH - 1, 1), "terminated": torch.zeros_like(last)}
        steps = {"pixels": frames[:-1], "action": action, "next": {**outcome, "truncated": last}}
        buffer.extend(TensorDict(steps, [LENGTH - 1]))
    return buffer


def all_columns() -> Tensor:
    """Makes the twelve different frames, ``[12, 1, SIZE, SIZE]``."""
    return (255 * torch.eye(SIZE, dtype=torch.uint8)).view(SIZE, 1, 1, SIZE).expand(-1, 1, SIZE, -1)


def share_recognised(predictions: Tensor, prototypes: Tensor, frames: Tensor) -> float:
    """Tells how often a prediction ``[*, d]`` points to the prototype ``[12, d]`` of the column that frames show."""
    units = [nn.functional.normalize(vectors, dim=-1) for vectors in (predictions, prototypes)]
    shown = frames[..., 0, 0, :].float().argmax(-1)
    return ((units[0] @ units[1].T).argmax(-1) == shown).float().mean().item()


def train(
    make_task: Callable[[nn.Module, FrameReplayBuffer], AuxiliaryTask],
    *,
    true_actions: bool,
    num_updates: int,
    lr: float = 1e-2,
) -> tuple[AuxiliaryTask, TensorDictBase, list[TensorDictBase]]:
    """Trains a task; returns it with data that it was not trained on, and what each update returned."""
    torch.manual_seed(0)
    buffer, encoder = make_buffer(true_actions=true_actions), ColumnEncoder()
    task = make_task(encoder, buffer)
    optimizer = torch.optim.Adam([*encoder.parameters(), *task.own_parameters()], lr=lr)
    outs = []
    for _ in range(num_updates):
        out = task(task.sample(buffer.sample()))
        optimizer.zero_grad()
        out["loss_auxiliary"].backward()
        optimizer.step()
        task.update_targets()
        outs.append(out.detach())
    return task.eval(), task.sample(buffer.sample()), outs
