"""Steps of plain loops, as dictionaries of NumPy arrays, tensors and numbers, in the layout of TorchRL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.utils import NestedKey
from torch import Tensor

from mcurl_torchrl.checks import leaf_keys
from mcurl_torchrl.replay.step_reader import REWARD_KEY, TERMINATED_KEY, TRUNCATED_KEY, StepReader

__all__ = ["steps_from_arrays", "steps_from_mapping"]


def steps_from_arrays(reader: StepReader, num_dims: int, fields: Mapping[str, Any]) -> TensorDict:
    """Makes steps from the values that a Gymnasium loop has.

    Args:
        reader (StepReader): knows the keys.
        num_dims (int): the number of batch dimensions: 0 for one step, 1 for one of each environment.
        fields (mapping): ``obs``, ``action``, ``reward``, ``terminated``, ``truncated`` and ``next_obs``.

    Raises:
        TypeError: if a field is missing.
    """
    missing = [name for name, value in fields.items() if value is None]
    if missing:
        raise TypeError(f"add takes a tensordict or a dictionary, or all of {list(fields)}; {missing} is missing")
    keys: dict[str, NestedKey] = {
        "obs": reader.pixels_key,
        "action": reader.action_key,
        "reward": REWARD_KEY,
        "terminated": TERMINATED_KEY,
        "truncated": TRUNCATED_KEY,
        "next_obs": reader.next_pixels_key,
    }
    return steps_from_mapping(reader, num_dims, {keys[name]: value for name, value in fields.items()})


def steps_from_mapping(reader: StepReader, num_dims: int, data: Mapping[Any, Any]) -> TensorDict:
    """Makes steps from a dictionary with the keys of a tensordict, nested or as tuples.

    Float64 arrays and Python floats become torch's default dtype, as torch does with Python floats: rewards are float64
    only because that is NumPy's default. Integer rewards become floats, too. Tensors stay as they are.

    Raises:
        KeyError: if there is no ``("next", "terminated")``, whose shape is the batch size.
    """
    steps = TensorDict(_tensors(data), batch_size=[])
    terminated = steps.get(TERMINATED_KEY, None)
    if terminated is None:
        raise KeyError(f"a step must have {TERMINATED_KEY!r}; it has {leaf_keys(steps)}")
    if terminated.ndim >= num_dims:
        steps.batch_size = terminated.shape[:num_dims]
    for key in (REWARD_KEY, TERMINATED_KEY, TRUNCATED_KEY):
        value = steps.get(key, None)
        if value is None:
            continue
        if key == REWARD_KEY and not value.is_floating_point():
            value = value.to(torch.get_default_dtype())
        steps.set(key, value.unsqueeze(-1) if value.ndim == num_dims else value)
    return steps


def _tensors(data: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: _tensors(value) if isinstance(value, Mapping) else _tensor(value) for key, value in data.items()}


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    array = np.asarray(value)
    tensor = torch.from_numpy(array.copy() if array.ndim and not array.flags.writeable else np.ascontiguousarray(array))
    tensor = tensor.reshape(array.shape)  # ascontiguousarray makes a number an array of one
    return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor
