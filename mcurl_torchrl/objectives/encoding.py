"""EncodingLoss: the base of the contrastive losses, an online encoder and its momentum copy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from tensordict import TensorDictBase, TensorDictParams
from torch import Tensor, nn
from torchrl.objectives.common import LossModule

from mcurl_torchrl.checks import check_choice, require
from mcurl_torchrl.objectives.functional import REDUCTIONS

__all__ = ["EncodingLoss", "call_with", "replaced_params"]


def call_with(params: TensorDictParams, network: nn.Module, inputs: Tensor) -> Tensor:
    """Calls a network with the given parameters and buffers, not with its own."""
    with replaced_params(params, network):
        return network(inputs)


@contextlib.contextmanager
def replaced_params(params: TensorDictParams, network: nn.Module) -> Iterator[None]:
    """Replaces the parameters and buffers of a network for a while, as ``params.to_module(network)`` does.

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
    """Replaces a module's tensors, and adds each place and its own tensor to ``places``."""
    for name, value in params.items():
        if not isinstance(value, Tensor):
            _exchange(value, module._modules[name], places)  # type: ignore[arg-type]
            continue
        place = module._parameters if name in module._parameters else module._buffers
        places.append((place, name, place[name]))
        place[name] = value  # type: ignore[assignment]


class EncodingLoss(LossModule):
    """A loss with an encoder and, for the key side, its momentum copy.

    The copy is ``target_encoder_network_params``; :class:`~torchrl.objectives.SoftUpdate` moves it. If a
    ``target_encoder_network`` is given (for example the encoder of a target critic), it encodes the keys; its owner
    updates it, saves it and puts it on a device.
    """

    encoder_network: nn.Module
    encoder_network_params: TensorDictParams
    target_encoder_network: nn.Module | None
    target_encoder_network_params: TensorDictParams

    def __init__(
        self, encoder_network: nn.Module, target_encoder_network: nn.Module | None, temperature: float, reduction: str
    ) -> None:
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature={temperature}; it must be above 0")
        self.temperature = temperature
        self.reduction = check_choice("reduction", reduction, REDUCTIONS)
        shared = target_encoder_network is not None
        self.convert_to_functional(encoder_network, "encoder_network", create_target_params=not shared)
        # Not a submodule: this loss must not train, move or save its parameters.
        self.__dict__["target_encoder_network"] = target_encoder_network

    def _forward_value_estimator_keys(self, **kwargs: Any) -> None:
        pass

    def encode(self, pixels: Tensor) -> Tensor:
        """Encodes pixels with the online encoder, with gradients."""
        return call_with(self.encoder_network_params, self.encoder_network, pixels)

    def encode_keys(self, pixels: Tensor) -> Tensor:
        """Encodes pixels with the momentum encoder, without gradients."""
        with torch.no_grad():
            if self.target_encoder_network is not None:
                return self.target_encoder_network(pixels)
            return call_with(self.target_encoder_network_params, self.encoder_network, pixels)

    def _require_views(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Returns the query and the key pixels, of equal shape."""
        names = self.tensor_keys.query_pixels, self.tensor_keys.key_pixels
        query, key = (require(tensordict, name, self) for name in names)
        if query.shape != key.shape or query.ndim < tensordict.ndim + 1:
            raise ValueError(
                f"{names[0]!r} and {names[1]!r} must have one shape, {[*tensordict.shape, 'C', 'H', 'W']}; "
                f"got {tuple(query.shape)} and {tuple(key.shape)}"
            )
        return query, key
