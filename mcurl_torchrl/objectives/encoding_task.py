"""EncodingTask: the base of the contrastive tasks, which are made around one loss with an encoder and its slow copy."""

from __future__ import annotations

from tensordict import TensorDictBase
from torch import nn

from mcurl_torchrl.checks import check_number
from mcurl_torchrl.modules.projections import own_projection
from mcurl_torchrl.objectives.auxiliary_task import AuxiliaryTask
from mcurl_torchrl.objectives.encoding import EncodingLoss

__all__ = ["EncodingTask"]


class EncodingTask(AuxiliaryTask):
    """A task around ``loss_module``, an :class:`EncodingLoss`, whose encoder may have a projection of the task's own.

    A subclass calls :meth:`hold` in its constructor.
    """

    loss_module: EncodingLoss

    def hold(self, loss: EncodingLoss, encoder: nn.Module, *, tau: float, **networks: nn.Module) -> None:
        """Takes the loss.

        Args:
            loss (EncodingLoss): the loss; its ``encoder_network`` is the encoder, with or without a projection.
            encoder (nn.Module): the encoder of the RL agent.

        Keyword Args:
            tau (float): how far :meth:`update_targets` moves the slow copies of the loss, if it has some of its own.
            networks (nn.Module): other networks of the loss that the task trains, by name.
        """
        self.loss_module = loss
        self._tau = check_number("tau", tau, above=0, most=1)
        loss.expect_updates()
        self.__dict__["_own_networks"] = {**networks, **own_projection(loss.encoder_network, encoder)}

    def own_networks(self) -> dict[str, nn.Module]:
        """Returns the projection, if there is one, and the loss's other networks."""
        return self.__dict__["_own_networks"]

    def reset_networks(self, keep: float) -> list[nn.Parameter]:
        """Draws new weights of all own networks; a slow copy of the encoder keeps a part of its weights."""
        new = super().reset_networks(keep)
        encoder = {"encoder_network": keep}
        if "projection" in self.own_networks():
            encoder = {"encoder_network.encoder": keep, "encoder_network.projection": 0.0}
        self.loss_module.reset_targets({**encoder, "context_network": 0.0})  # the latter is sym-CURL's
        return new

    def forward(self, views: TensorDictBase) -> TensorDictBase:
        """Returns ``loss_auxiliary`` and the metrics of the loss."""
        out = self.loss_module(views)
        return out.set("loss_auxiliary", self.coeff * out.pop("loss_contrastive"))

    def update_targets(self) -> None:
        """Updates the slow copies that belong to the loss: of the encoder and, for sym-CURL, of the Transformer."""
        if self.loss_module.has_targets:
            self.loss_module.update_target(self._tau)
