"""EncodingLoss: the base of the contrastive losses, an online encoder and its momentum copy."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase, TensorDictParams
from torch import Tensor, nn

from mcurl_torchrl.checks import require
from mcurl_torchrl.objectives.functional import info_nce
from mcurl_torchrl.objectives.parameters import call_with
from mcurl_torchrl.objectives.target_loss import TargetLoss

__all__ = ["EncodingLoss"]


class EncodingLoss(TargetLoss):
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
        self,
        encoder_network: nn.Module,
        target_encoder_network: nn.Module | None,
        temperature: float,
        reduction: str | None,
    ) -> None:
        super().__init__(reduction)
        if not temperature > 0:
            raise ValueError(f"temperature={temperature}; it must be above 0")
        self.temperature = temperature
        shared = target_encoder_network is not None
        self.convert_to_functional(encoder_network, "encoder_network", create_target_params=not shared)
        # Not a submodule: this loss must not train, move or save its parameters.
        self.__dict__["target_encoder_network"] = target_encoder_network

    def train(self, mode: bool = True) -> EncodingLoss:
        """Sets the mode of the loss and of its networks: in evaluation the context network has no dropout."""
        super().train(mode)
        for name in self._networks_by_name():
            self.__dict__[name].train(mode)  # not submodules: the loss holds their parameters alone
        return self

    def encode(self, pixels: Tensor) -> Tensor:
        """Encodes pixels with the online encoder, with gradients."""
        return call_with(self.encoder_network_params, self.encoder_network, pixels)

    def encode_keys(self, pixels: Tensor) -> Tensor:
        """Encodes pixels with the momentum encoder, without gradients."""
        with torch.no_grad():
            if self.target_encoder_network is not None:
                return self.target_encoder_network(pixels)
            return call_with(self.target_encoder_network_params, self.encoder_network, pixels)

    def _info_nce(
        self, queries: Tensor, keys: Tensor, valid: Tensor | None, *, negatives: str = "batch"
    ) -> tuple[Tensor, Tensor]:
        """Computes InfoNCE of this rank's queries; negatives of the batch are the keys of all ranks."""
        first_key = None
        if negatives == "batch":
            first_key = self.ranks.index * len(keys)
            keys, valid = self.ranks.gather(keys), None if valid is None else self.ranks.gather(valid)
        return info_nce(
            queries, keys, negatives=negatives, temperature=self.temperature, valid=valid, first_key=first_key
        )

    def _require_views(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Returns the query and the key pixels, of equal shape. A call with keywords has no batch size."""
        names = self.tensor_keys.query_pixels, self.tensor_keys.key_pixels
        query, key = (require(tensordict, name, self) for name in names)
        if query.shape != key.shape or query.ndim < tensordict.ndim + 1:
            raise ValueError(
                f"{names[0]!r} and {names[1]!r} must have one shape, {[*tensordict.shape, 'C', 'H', 'W']}; "
                f"got {tuple(query.shape)} and {tuple(key.shape)}"
            )
        return query, key
