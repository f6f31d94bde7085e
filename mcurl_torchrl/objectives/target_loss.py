"""TargetLoss: the base class of losses, with TorchRL's conventions for reductions, masks, targets and resets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase, TensorDictParams
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor, nn
from torchrl.objectives.common import AUTO_LOSS_MASK_KEYS, LossModule

from mcurl_torchrl.checks import check_number
from mcurl_torchrl.modules.resetting import reset_network, shrink_and_perturb
from mcurl_torchrl.objectives.functional import check_reduction
from mcurl_torchrl.objectives.parameters import replaced_params
from mcurl_torchrl.ranks import ALONE, Ranks

__all__ = ["TargetLoss", "valid_positions"]


def valid_positions(
    tensordict: TensorDictBase, loss_mask_key: NestedKey | None, shape: torch.Size | tuple[int, ...]
) -> Tensor | None:
    """Returns bool ``shape``, False at padding, by the masks that ``loss_mask_key`` names; None if there is no mask.

    Args:
        tensordict (TensorDictBase): the batch.
        loss_mask_key (NestedKey, optional): the :attr:`~torchrl.objectives.LossModule.loss_mask_key` of a loss:
            ``"auto"``, the masks that TorchRL writes, ``("collector", "mask")`` among them; the key of one mask; or
            None, no mask. A mask that is not in the batch hides nothing, as in TorchRL's losses.
        shape (sequence of int): the batch's shape; a mask may have one more dimension of size 1.

    Raises:
        ValueError: on a mask of another shape or dtype.
    """
    names = AUTO_LOSS_MASK_KEYS if loss_mask_key == "auto" else () if loss_mask_key is None else (loss_mask_key,)
    # Not get(name, None): torch.compile would go on without a mask in later batches that have one.
    stored, valid = set(tensordict.keys(include_nested=True)), None
    for name in names:
        if unravel_key(name) not in stored:
            continue
        mask = tensordict.get(name)
        if mask.dtype != torch.bool or mask.shape not in (torch.Size(shape), (*shape, 1)):
            raise ValueError(
                f"the mask {name!r} must be bool {list(shape)}, False at padding; got {mask.dtype} {list(mask.shape)}"
            )
        mask = mask.reshape(shape)
        valid = mask if valid is None else valid & mask
    return valid


class TargetLoss(LossModule):
    """A loss with networks ``X``, ``X_params`` and, where it has a slow copy, ``target_X_params``.

    Attributes:
        reduction (str): ``"mean"``, ``"sum"`` or ``"none"``; None, as in TorchRL's losses, means ``"mean"``.
        loss_mask_key (NestedKey, optional): which positions of a batch count, see
            :class:`~torchrl.objectives.LossModule`. Defaults to ``"auto"``: padding that TorchRL's ``SliceSampler``
            adds (``strict_length=False, pad_output=True``) does not count.
        ranks (Ranks): the ranks that share each batch: the mean over them of a loss is the loss of the whole batch.
            Defaults to one process.
    """

    ranks: Ranks = ALONE

    TARGET_NET_WARNING = (
        "Nothing moves the target network of this loss yet. Call loss.update_target(tau) after each optimizer step, or "
        "make a torchrl.objectives.SoftUpdate(loss, tau=tau) and call its step()."
    )

    def __init__(self, reduction: str | None) -> None:
        super().__init__()
        self.reduction = check_reduction(reduction)

    def _forward_value_estimator_keys(self, **kwargs: Any) -> None:
        pass

    @torch.no_grad()
    def update_target(self, tau: float) -> None:
        """Updates the slow copies: ``target <- tau * network + (1 - tau) * target``, parameters only.

        It does what :class:`~torchrl.objectives.SoftUpdate` does, without another object. Call it after each optimizer
        step, or with ``tau=1``, which copies, at larger intervals.

        Raises:
            ValueError: if ``tau`` is not above 0 and at most 1.
            RuntimeError: if the loss has no slow copy of its own.
        """
        check_number("tau", tau, above=0, most=1)
        pairs = dict(self._targets())
        if not pairs:
            raise RuntimeError(
                f"this {type(self).__name__} has no target network of its own: the owner of the given target network "
                "updates it"
            )
        for name, target in pairs.items():
            for key, parameter in self._online_params(name).items(True, True):
                if isinstance(parameter, nn.Parameter):
                    target.get(key).lerp_(parameter, tau)  # with tau=1 a copy, to the last bit
        self.expect_updates()

    @property
    def has_targets(self) -> bool:
        """Whether the loss has slow copies of its own."""
        return any(True for _ in self._targets())

    def expect_updates(self) -> None:
        """Says that :meth:`update_target` will be called: TorchRL warns of targets that no updater of its own moves."""
        self._has_update_associated.update((name, True) for name, _ in self._targets())

    def reset_parameters_recursive(self) -> None:
        """Draws new weights for all networks of the loss, and copies them to the slow copies.

        A module is reset by its ``reset_parameters()``, after the modules inside it. Target networks that another
        object owns stay as they are.
        """
        # Departs from TorchRL, which asks every network for reset_parameters_recursive(), a method that plain modules
        # do not have, and which draws other weights for the copy.
        for name in self._networks_by_name():
            network: nn.Module = self.__dict__[name]
            with replaced_params(self._online_params(name), network):
                reset_network(network)
        for name, target in self._targets():
            target.data.update_(self._online_params(name).data)

    def reset_targets(self, keep: Mapping[str, float]) -> None:
        """Draws new weights of slow copies, other ones than those of the networks.

        Args:
            keep (dict of str and float): the part of the copy's old weights that stays, between 0 and 1, by the name of
                a network, or of its submodules: ``{"value_network.encoder": 0.8, "value_network.head": 0.0}``.
        """
        for name, target in self._targets():
            network: nn.Module = self.__dict__[name]
            with replaced_params(target, network):
                for path, part in keep.items():
                    first, _, rest = path.partition(".")
                    if first == name:
                        shrink_and_perturb(network.get_submodule(rest), part)

    def _networks_by_name(self) -> list[str]:
        names = [name.removesuffix("_params") for name in self._modules if name.endswith("_params")]
        return [name for name in names if not name.startswith("target_")]

    def _targets(self) -> Iterator[tuple[str, TensorDictParams]]:
        for name in self._networks_by_name():
            target = self._modules.get(f"target_{name}_params")
            if target is not None:
                yield name, target

    def _online_params(self, name: str) -> TensorDictParams:
        return self._modules[f"{name}_params"]
