"""TorchRL's datasets of images, episode by episode, as steps that a FrameReplayBuffer takes.

Both datasets keep one row per observation, and neither keeps the observation that follows an episode's last action. So
the last observation of an episode ends it, as if it were truncated there, and its action is left out.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from mcurl_torchrl.replay import torchrl_internals as internals

__all__ = ["atari_dqn_episodes", "vd4rl_episodes"]

_ROWS_AT_A_TIME = 10_000  # of 84 x 84 bytes


def atari_dqn_episodes(dataset_id: str, *, root: str | Path | None = None) -> Iterator[TensorDict]:
    """Yields the episodes of a run of DQN on Atari (https://arxiv.org/abs/1907.04543).

    Args:
        dataset_id (str): for example ``"Pong/1"``, as in :class:`~torchrl.data.datasets.AtariDQNExperienceReplay`.

    Keyword Args:
        root (str or Path, optional): the folder of TorchRL's Atari datasets; without the data there, TorchRL downloads
            it. Defaults to TorchRL's own folder.

    Yields:
        Steps ``[time]`` of single frames, ``pixels`` uint8 ``[1, 84, 84]``, ``action`` int64 ``[]``; for a buffer with
        ``stacked_input=False``.
    """
    from torchrl.data.datasets import AtariDQNExperienceReplay

    with warnings.catch_warnings():  # TorchRL warns that downloads fail at present; a failed download raises anyway
        warnings.simplefilter("ignore", DeprecationWarning)
        rows = AtariDQNExperienceReplay(dataset_id, root=root, download=not _is_there(root, dataset_id)).storage
    held: list[TensorDictBase] = []  # rows of an episode that continues in the next part
    for begin in range(0, len(rows), _ROWS_AT_A_TIME):
        part = rows.get(torch.arange(begin, min(begin + _ROWS_AT_A_TIME, len(rows))))
        part = part.select("observation", "action", ("next", "reward"), ("next", "terminated"))
        last = part["next", "terminated"].flatten().nonzero().flatten() + 1
        sizes = torch.diff(last, prepend=last.new_zeros(1), append=last.new_tensor([len(part)]))
        *ended, rest = part.split(sizes.tolist())
        for episode in ended:
            whole, held = torch.cat([*held, episode]), []
            yield from _atari_steps(whole)
        held = [*held, rest] if len(rest) else held
    if held:
        yield from _atari_steps(torch.cat(held))


def _is_there(root: str | Path | None, dataset_id: str) -> bool:
    return root is not None and (Path(root) / dataset_id).is_dir()


def _atari_steps(rows: TensorDictBase) -> Iterator[TensorDict]:
    frames, actions = rows["observation"].reshape(len(rows), 1, *rows["observation"].shape[-2:]), rows["action"]
    yield from _steps(frames, actions.long().flatten(), rows["next", "reward"].float().flatten())


def vd4rl_episodes(dataset_id: str, *, root: str | Path | None = None) -> Iterator[TensorDict]:
    """Yields the episodes of a dataset of V-D4RL, DMControl from pixels (https://arxiv.org/abs/2206.04779).

    Args:
        dataset_id (str): for example ``"main/walker_walk/random/64px"``, as in
            :class:`~torchrl.data.datasets.VD4RLExperienceReplay`.

    Keyword Args:
        root (str or Path, optional): the folder of TorchRL's V-D4RL datasets; without the data there, TorchRL downloads
            it, which needs h5py and huggingface_hub. Defaults to TorchRL's own folder.

    Yields:
        Steps ``[time]`` of single frames, ``pixels`` uint8 ``[3, H, W]``, ``action`` float32 ``[A]``; for a buffer with
        ``stacked_input=False``.

    Raises:
        ValueError: if the data does not say where episodes begin.
    """
    root = internals.datasets_folder("vd4rl") if root is None else root
    if (Path(root) / dataset_id).is_dir():
        rows = TensorDict.load_memmap(Path(root) / dataset_id)  # TorchRL's class reads it, too, but needs h5py for it
    else:
        from torchrl.data.datasets import VD4RLExperienceReplay

        made = VD4RLExperienceReplay(dataset_id, batch_size=1, root=os.fspath(root))
        rows = made.storage[:]
    begins = rows.get("is_init", None)
    if begins is None and (kinds := rows.get(("state", "step_type"), None)) is not None:
        begins = kinds == 0  # as dm_env counts: first, mid, last
    if begins is None:
        raise ValueError(f"{dataset_id} does not say where episodes begin: it has neither 'is_init' nor 'step_type'")
    starts = [*begins.flatten().bool().nonzero().flatten().tolist(), len(rows)]
    for start, stop in zip(starts, starts[1:], strict=False):
        episode = rows[start:stop]
        frames = episode["pixels"]
        frames = frames if frames.shape[1] == 3 else frames.permute(0, 3, 1, 2)
        # A row has the action and the reward that led to its observation; those of the first row are zeros. V-D4RL's
        # own replay reads them in this way (drqbc/replay_buffer.py: observation i - 1, action i, reward i, observation
        # i), and its scripts convert one format into the other row by row. TorchRL's class reads the action of a row as
        # the action after its observation.
        actions, rewards = episode["action"].float().roll(-1, 0), episode["next", "reward"].float().roll(-1, 0)
        yield from _steps(frames, actions, rewards.flatten())


def _steps(frames: Tensor, actions: Tensor, rewards: Tensor) -> Iterator[TensorDict]:
    """Yields the steps between the observations of an episode; nothing for an episode of one observation."""
    count = len(frames) - 1
    if count < 1:
        return
    last = (torch.arange(count) == count - 1)[:, None]
    outcome = {
        "pixels": frames[1:].contiguous(),
        "reward": rewards[:count, None].contiguous(),
        "terminated": torch.zeros_like(last),
        "truncated": last,
        "done": last,
    }
    yield TensorDict(
        {"pixels": frames[:count].contiguous(), "action": actions[:count].contiguous(), "next": outcome}, [count]
    )
