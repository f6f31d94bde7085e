"""LatentSAC: TorchRL's SACLoss on the latents of an encoder that actor and critic share."""

from __future__ import annotations

from functools import partial

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.modules import ProbabilisticActor, TanhNormal
from torchrl.objectives import SACLoss, SoftUpdate

from mcurl_torchrl.checks import check_choice, check_number, require
from mcurl_torchrl.modules import GaussianPolicy, MomentumCopy, QHead
from mcurl_torchrl.modules.resetting import shrink_and_perturb
from mcurl_torchrl.objectives.functional import reduce_masked
from mcurl_torchrl.objectives.target_loss import valid_positions
from mcurl_torchrl.ranks import ALONE, Ranks

__all__ = ["ALPHA_LOSSES", "LatentSAC"]

ALPHA_LOSSES = ("alpha", "log_alpha")


class LatentSAC(nn.Module):
    """SAC from pixels (https://arxiv.org/abs/1910.01741): gives each part of :class:`SACLoss` its latents.

    The losses of TorchRL's ``SACLoss`` are called one by one: an encoder inside ``SACLoss`` would be copied, or would
    get no gradients. Actor and critic share the convolutions, each with its own linear layer and LayerNorm, and only
    the critic's loss reaches the convolutions:

    =====================  ====================================================  =========
    latent                 comes from                                            gradient
    =====================  ====================================================  =========
    critic, now            encoder                                               yes
    actor, next            encoder's convolutions, the actor's projection        no
    critic, next           target encoder                                        no
    actor step, both       convolutions once, then each one's projection         not into the encoder
    =====================  ====================================================  =========

    The target critic and the target encoder are updated separately, by ``target_critic.step()`` and
    ``target_encoder.step()``.

    Reads ``pixels``, ``action`` and, under ``"next"``, ``pixels``, ``reward``, ``done`` and ``terminated``. Two keys
    are optional: ``"steps_to_next_obs"``, for n-step returns, and ``"priority_weight"`` ``[B]`` or ``[B, 1]``, the
    importance weights of all three losses: the mean of weight times loss, as in the other losses of this package
    (TorchRL divides by the sum of the weights). Samples that a mask hides (``sac.loss_mask_key``, by default
    ``("collector", "mask")``) do not count.

    Args:
        policy (GaussianPolicy): the encoder and the actor.

    Keyword Args:
        hidden_dim (int): the width of the critic's hidden layers. Defaults to 1024.
        gamma (float): the discount. Defaults to 0.99.
        alpha_init (float): the first entropy coefficient. Defaults to 0.1.
        alpha_loss (str): the variable in which the loss of the coefficient is linear: ``"alpha"``, as in the released
            code of CURL and M-CURL, or ``"log_alpha"``, as in TorchRL. Defaults to ``"alpha"``.
        target_entropy (float, optional): defaults to minus the size of an action.
        critic_tau (float): the tau of the target critic. Defaults to 0.01.
        encoder_tau (float): the tau of the target encoder. Defaults to 0.05.
        pixels_key (NestedKey): the observation. Defaults to ``"pixels"``.

    Attributes:
        ranks (Ranks): the ranks that share each batch, which :class:`~mcurl_torchrl.agents.SACAgent` sets.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from mcurl_torchrl import LatentSAC
        >>> from mcurl_torchrl.modules import GaussianPolicy
        >>> sac = LatentSAC(GaussianPolicy([9, 32, 32], 2, hidden_dim=64), hidden_dim=64)
        >>> def images():
        ...     return torch.randint(256, (4, 9, 32, 32), dtype=torch.uint8)
        >>> flags = {"done": torch.zeros(4, 1, dtype=torch.bool), "terminated": torch.zeros(4, 1, dtype=torch.bool)}
        >>> following = {"pixels": images(), "reward": torch.rand(4, 1), **flags}
        >>> batch = TensorDict({"pixels": images(), "action": torch.rand(4, 2), "next": following}, [4])
        >>> sac.critic_loss(batch)["loss_qvalue"].backward()
        >>> sorted(sac.actor_loss(batch).keys())
        ['alpha', 'entropy', 'loss_actor', 'loss_alpha', 'q_mean']
        >>> sac.target_critic.step()
        >>> sac.target_encoder.step()
    """

    ranks: Ranks = ALONE

    def __init__(
        self,
        policy: GaussianPolicy,
        *,
        hidden_dim: int = 1024,
        gamma: float = 0.99,
        alpha_init: float = 0.1,
        alpha_loss: str = "alpha",
        target_entropy: float | None = None,
        critic_tau: float = 0.01,
        encoder_tau: float = 0.05,
        pixels_key: NestedKey = "pixels",
    ) -> None:
        super().__init__()
        self.alpha_loss = check_choice("alpha_loss", alpha_loss, ALPHA_LOSSES)
        check_number("alpha_init", alpha_init, above=0)  # its logarithm is learned
        self.pixels_key = pixels_key
        self.policy = policy
        self.target_encoder = MomentumCopy(policy.encoder, tau=encoder_tau)
        action_dim = policy.settings["action_dim"]
        actor = ProbabilisticActor(
            TensorDictModule(policy.head, in_keys=["actor_latent"], out_keys=["loc", "scale"]),
            in_keys=["loc", "scale"],
            distribution_class=TanhNormal,
            return_log_prob=True,
        )
        # Two networks, not one network and a count: SACLoss would initialize the copies in another way.
        self._make_q_head = partial(QHead, policy.encoder.feature_dim, action_dim, hidden_dim=hidden_dim)
        critics = [
            TensorDictModule(
                self._make_q_head(),
                in_keys=["critic_latent", "action"],
                out_keys=["state_action_value"],
            )
            for _ in range(2)
        ]
        self.sac = SACLoss(
            actor_network=actor,
            qvalue_network=critics,
            num_qvalue_nets=2,
            loss_function="l2",
            alpha_init=alpha_init,
            target_entropy=float(-action_dim if target_entropy is None else target_entropy),
            reduction="none",
            scalar_output_mode="exclude",  # only its parts are called here
        )
        _ = self.sac.target_entropy  # becomes a buffer when it is first read; load_state_dict needs the buffer
        self.sac.make_value_estimator(gamma=gamma)
        self.critic_tau = critic_tau
        self.target_critic = SoftUpdate(self.sac, tau=critic_tau)

    @property
    def encoder(self) -> nn.Module:
        """The critic's encoder, which a contrastive loss trains as well."""
        return self.policy.encoder

    @torch.no_grad()
    def reset_networks(self, keep: float) -> None:
        """Draws new weights of the actor and both critics; the encoder keeps a part of its weights.

        The target networks are reset in the same way, with other random numbers. The entropy coefficient stays.

        Args:
            keep (float): this part, between 0 and 1.
        """
        for encoder in (self.encoder, self.target_encoder.copy):
            shrink_and_perturb(encoder, keep)
        for network in (self.policy.projection, self.policy.head):
            shrink_and_perturb(network, 0.0)
        for params in (self.sac.qvalue_network_params, self.sac.target_qvalue_network_params):
            for number in range(2):
                fresh = self._make_q_head().to(self.sac.log_alpha.device)
                for name, value in fresh.named_parameters():
                    params.get(("module", *name.split("."))).data[number].copy_(value)

    def critic_parameters(self) -> list[nn.Parameter]:
        """Returns the parameters that the critic's loss trains: the encoder and both Q networks."""
        return [*self.encoder.parameters(), *self.sac.qvalue_network_params.parameters()]

    def actor_parameters(self) -> list[nn.Parameter]:
        """Returns the parameters that the actor's loss trains: its projection and its head, not the convolutions."""
        return [*self.policy.projection.parameters(), *self.policy.head.parameters()]

    def critic_loss(self, batch: TensorDictBase) -> TensorDict:
        """Computes ``loss_qvalue``; also returns ``td_error`` ``[B]`` and ``critic_latent``, without gradients."""
        latents = self._latents(batch)
        latents.set("critic_latent", self.encoder(require(batch, self.pixels_key, self)))
        pixels = require(batch, ("next", self.pixels_key), self)
        with torch.no_grad():
            latents.set(("next", "actor_latent"), self.policy.projection(self.policy.encoder.features(pixels)))
            latents.set(("next", "critic_latent"), self.target_encoder(pixels))
        losses, metadata = self.sac.qvalue_v2_loss(latents)
        return TensorDict(
            {
                "loss_qvalue": self._mean(losses, batch),
                "td_error": metadata["td_error"],
                "critic_latent": latents.get("critic_latent").detach(),
            }
        )

    def actor_loss(self, batch: TensorDictBase) -> TensorDict:
        """Computes ``loss_actor`` and ``loss_alpha``; also returns ``alpha``, ``entropy`` and ``q_mean``.

        ``q_mean`` is the mean value, by the lower of both critics, of the actions that the actor would take.
        """
        latents = self._latents(batch)
        with torch.no_grad():
            features = self.policy.encoder.features(require(batch, self.pixels_key, self))
            latents.set("critic_latent", self.policy.encoder.project(features))
        latents.set("actor_latent", self.policy.projection(features))
        losses, metadata = self.sac.actor_loss(latents)
        log_prob, alpha = metadata["log_prob"], self.sac.log_alpha.detach().exp()
        mean_log_prob = self._mean(log_prob, batch, weighted=False)
        return TensorDict(
            {
                "loss_actor": self._mean(losses, batch),
                "loss_alpha": self._mean(self._alpha_losses(log_prob), batch),
                "alpha": alpha,
                "entropy": -mean_log_prob,
                "q_mean": alpha * mean_log_prob - self._mean(losses.detach(), batch, weighted=False),
            }
        )

    def _alpha_losses(self, log_prob: Tensor) -> Tensor:
        if self.alpha_loss == "log_alpha":
            return self.sac.alpha_loss(log_prob)
        # Departs from TorchRL: the released code of CURL and M-CURL has alpha itself here, not its logarithm.
        return self.sac.log_alpha.exp() * -(log_prob + self.sac.target_entropy).detach()

    def _mean(self, losses: Tensor, batch: TensorDictBase, *, weighted: bool = True) -> Tensor:
        """Returns the mean over the valid samples, with importance weights if the batch has them."""
        weight = batch.get("priority_weight", None) if weighted else None
        if weight is not None:
            if weight.shape not in (losses.shape, (*losses.shape, 1)):
                raise ValueError(f"'priority_weight' must be {list(losses.shape)}; got {list(weight.shape)}")
            losses = losses * weight.reshape(losses.shape)
        valid = valid_positions(batch, self.sac.loss_mask_key, losses.shape)
        return reduce_masked(losses, valid, ranks=self.ranks)

    def _latents(self, batch: TensorDictBase) -> TensorDict:
        """Returns the entries of a batch that SACLoss needs besides latents."""
        names: list[NestedKey] = ["action", ("next", "reward"), ("next", "done"), ("next", "terminated")]
        latents = TensorDict({name: require(batch, name, self) for name in names}, batch.batch_size)
        steps = batch.get("steps_to_next_obs", None)
        return latents if steps is None else latents.set("steps_to_next_obs", steps)
