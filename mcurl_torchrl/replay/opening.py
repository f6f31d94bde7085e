"""Opening a saved replay without knowing how its buffer was built."""

from __future__ import annotations

from pathlib import Path

import torch
from torchrl.data import LazyTensorStorage

from mcurl_torchrl.replay import archive
from mcurl_torchrl.replay.archive import decode_key, encode_key
from mcurl_torchrl.replay.buffer import FrameReplayBuffer
from mcurl_torchrl.replay.step_reader import REWARD_KEY, TERMINATED_KEY, TRUNCATED_KEY
from mcurl_torchrl.replay.transition_sampler import PrioritizedTransitionSampler, TransitionSampler
from mcurl_torchrl.replay.windows import LAYOUT_KEYS, Rows

__all__ = ["open_replay"]


def open_replay(
    path: str | Path,
    name: str = "latest",
    *,
    batch_size: int | None = None,
    channels_last: bool = False,
    uniform: bool = False,
) -> FrameReplayBuffer:
    """Loads a state saved by :meth:`~mcurl_torchrl.FrameReplayBuffer.dumps` into a new buffer, built as the saved one.

    Capacity, environments, frames of a stack, padding, n-step and the sampler are those of the saved buffer.

    Args:
        path (str or Path): the folder.
        name (str): the name of the state. Defaults to ``"latest"``.

    Keyword Args:
        batch_size (int, optional): the number of transitions in a batch. Defaults to that of the saved buffer.
        channels_last (bool): as in :class:`~mcurl_torchrl.FrameReplayBuffer`. Defaults to False.
        uniform (bool): whether all saved transitions get the same priority, if there are priorities. Defaults to False:
            they keep their own.

    Raises:
        FileNotFoundError: if there is no such saved state, or one of its files is missing.
        ValueError: if a file is damaged, and if the state holds no rows, or no ``pixels`` and ``action``.
    """
    path = Path(path).absolute()
    saved = archive.open_saved(path, name)
    if saved.layout is None:
        raise ValueError(f"the saved buffer {name!r} in {path} holds no rows")
    keys = {decode_key(key): kind for key, kind in saved.layout["keys"].items()}
    if missing := [key for key in ("pixels", "action") if key not in keys]:
        raise ValueError(f"the saved buffer {name!r} in {path} has no {missing}; it has {list(keys)}")
    own = {encode_key(key) for key in ("pixels", "action", REWARD_KEY, TERMINATED_KEY, TRUNCATED_KEY, *LAYOUT_KEYS)}
    settings, sampler = saved.scalars["readers"][0]["settings"], saved.scalars["sampler"]
    columns = saved.layout["columns"]
    prioritized = sampler["type"] == PrioritizedTransitionSampler.__name__
    buffer = FrameReplayBuffer(
        storage=LazyTensorStorage(saved.layout["rows"] * columns, ndim=1 if columns == 1 else 2, device="cpu"),
        num_frames=settings["num_frames"],
        n_step=settings["n_step"],
        gamma=settings["gamma"],
        padding=settings["padding"],
        channels_last=channels_last,
        extra_keys=[decode_key(key) for key in saved.layout["keys"] if key not in own],
        frame_dtype=getattr(torch, keys["pixels"][0].removeprefix("torch.")),
        sampler=PrioritizedTransitionSampler(alpha=sampler["alpha"]) if prioritized else TransitionSampler(),
        batch_size=settings["batch_size"] if batch_size is None else batch_size,
    )
    buffer.loads(path, name)
    if uniform and isinstance(buffer.sampler, PrioritizedTransitionSampler):
        buffer.update_priority(buffer.writer.to_index(torch.arange(len(Rows(buffer.storage)))), 1.0)
    return buffer
