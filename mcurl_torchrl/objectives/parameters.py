"""Parameters of networks that losses share: joined for an optimizer, or replaced for one call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from tensordict import TensorDictBase, TensorDictParams
from torch import Tensor, nn

__all__ = ["call_with", "joint_parameters", "replaced_params"]


def joint_parameters(*sources: nn.Module | Iterable[Tensor]) -> list[Tensor]:
    """Returns the parameters of several losses or networks for one optimizer, each once, in the order of the sources.

    Losses that share an encoder each list its parameters, and an optimizer that gets a parameter twice in one group
    moves it twice. Parameters that do not require gradients are left out.

    Args:
        *sources (nn.Module or iterable of torch.Tensor): losses, networks, auxiliary tasks, or parameters.

    Examples:
        >>> from torch import nn
        >>> from mcurl_torchrl import joint_parameters
        >>> encoder = nn.Linear(4, 2)
        >>> critic, actor = nn.Sequential(encoder, nn.Linear(2, 1)), nn.Sequential(encoder, nn.Linear(2, 3))
        >>> [list(value.shape) for value in joint_parameters(critic, actor)]
        [[2, 4], [2], [1, 2], [1], [3, 2], [3]]
    """
    lists = [source.parameters() if isinstance(source, nn.Module) else source for source in sources]
    return list(dict.fromkeys(value for values in lists for value in values if value.requires_grad))


def call_with(params: TensorDictParams, network: nn.Module, *inputs: Tensor, **options: Any) -> Tensor:
    """Calls a network with the given parameters and buffers, not with its own."""
    with replaced_params(params, network):
        return network(*inputs, **options)


@contextlib.contextmanager
def replaced_params(params: TensorDictParams, network: nn.Module) -> Iterator[None]:
    """Replaces the parameters and buffers of a network inside the block, as ``params.to_module(network)`` does.

    For networks as small as Rainbow's, ``to_module`` takes as long as a layer; this function takes a quarter of that,
    because it does not check the tensors. Under ``torch.compile`` it calls ``to_module``, which the compiler knows.
    """
    if torch.compiler.is_compiling():
        # With preserve_module_state=True, tensordict turns target parameters into parameters that require grad, and
        # leaves them so.
        with params.to_module(network, preserve_module_state=False):
            yield
        return
    places: list[tuple[dict[str, Any], str, Any]] = []
    _exchange(params, network, places)
    try:
        yield
    finally:
        for place, name, own in reversed(places):
            place[name] = own


def _exchange(params: TensorDictBase, module: nn.Module, places: list[tuple[dict[str, Any], str, Any]]) -> None:
    """Replaces a module's tensors; adds ``(dict, name, replaced tensor)`` to ``places`` for each of them."""
    for name, value in params.items():
        if not isinstance(value, Tensor):
            _exchange(value, module._modules[name], places)  # type: ignore[arg-type]
            continue
        place = module._parameters if name in module._parameters else module._buffers
        places.append((place, name, place[name]))
        place[name] = value  # type: ignore[assignment]
