"""Copies of batches between devices."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

__all__ = ["copy_to"]


def copy_to(batch: TensorDictBase, device: torch.device) -> TensorDictBase:
    """Returns a batch on a device; a batch that is there already is returned as it is.

    A copy to a GPU goes through pinned memory, so that the program does not wait for it. Operations that read the copy
    run after it, in the order of the GPU's stream.

    Args:
        batch (TensorDictBase): the batch. With ``pin_memory=True``, a replay buffer gives it in pinned memory.
        device (torch.device): the device.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from mcurl_torchrl.replay import copy_to
        >>> copy_to(TensorDict({"pixels": torch.zeros(2, 3)}, [2]), torch.device("cpu"))["pixels"].device
        device(type='cpu')
    """
    if device.type != "cuda" or batch.device == device:
        return batch.to(device)
    return batch.pin_memory(num_threads=0).to(device, non_blocking=True)
