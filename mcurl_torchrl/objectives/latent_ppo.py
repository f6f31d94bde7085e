"""LatentPPO: TorchRL's ClipPPOLoss and GAE on the latents of an encoder that actor and critic share."""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.modules import ProbabilisticActor, TanhNormal
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from mcurl_torchrl.checks import check_number, require
from mcurl_torchrl.modules import PPOPolicy
from mcurl_torchrl.modules.heads import orthogonal_linear
from mcurl_torchrl.modules.precision import full_precision

__all__ = ["LatentPPO"]

_LEARNED_FROM: tuple[NestedKey, ...] = ("pixels", "action", "action_log_prob", "advantage", "value_target")


class LatentPPO(nn.Module):
    """PPO from pixels (https://arxiv.org/abs/1707.06347): advantages of a rollout, and the loss of its minibatches.

    The losses are TorchRL's. An observation is encoded once for actor and critic, outside of ``ClipPPOLoss``, which
    would encode it once for each.

    Args:
        policy (PPOPolicy): the encoder, the hidden layer and the actor. The critic is a linear layer on the same
            latents.

    Keyword Args:
        gamma (float): the discount. Defaults to 0.99.
        gae_lambda (float): the weight of later rewards in the advantages (https://arxiv.org/abs/1506.02438). Defaults
            to 0.95.
        clip_epsilon (float): how far the ratio of probabilities may be from 1 before its gradient is 0. Defaults to
            0.1.
        critic_coeff (float): the weight of the critic's squared error. Defaults to 1.
        entropy_coeff (float): the weight of the entropy. Defaults to 0.01.
        normalize_advantages (bool): whether the advantages of a minibatch are scaled to mean 0 and standard deviation
            1. Defaults to True.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from mcurl_torchrl.modules import PPOPolicy
        >>> from mcurl_torchrl.objectives import LatentPPO
        >>> ppo = LatentPPO(PPOPolicy([4, 36, 36], num_actions=3, hidden_dim=32))
        >>> def images():
        ...     return torch.randint(256, (2, 5, 4, 36, 36), dtype=torch.uint8)
        >>> flags = {name: torch.zeros(2, 5, 1, dtype=torch.bool) for name in ("done", "terminated")}
        >>> following = {"pixels": images(), "reward": torch.rand(2, 5, 1), **flags}
        >>> rollout = TensorDict({"pixels": images(), "action": torch.zeros(2, 5).long(), "next": following}, [2, 5])
        >>> batch = ppo.estimate(rollout).flatten()
        >>> sorted(key for key in ppo.loss(batch).keys() if key.startswith("loss_"))
        ['loss_critic', 'loss_entropy', 'loss_objective']
    """

    def __init__(
        self,
        policy: PPOPolicy,
        *,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_epsilon: float = 0.1,
        critic_coeff: float = 1.0,
        entropy_coeff: float = 0.01,
        normalize_advantages: bool = True,
    ) -> None:
        super().__init__()
        check_number("gamma", gamma, least=0, most=1)
        check_number("gae_lambda", gae_lambda, least=0, most=1)
        check_number("clip_epsilon", clip_epsilon, above=0)
        check_number("critic_coeff", critic_coeff, above=0)
        check_number("entropy_coeff", entropy_coeff, least=0)
        self.policy = policy
        self.clip_epsilon = clip_epsilon
        keys = ["logits"] if policy.discrete else ["loc", "scale"]
        self.actor = ProbabilisticActor(
            TensorDictModule(policy.head, in_keys=["latent"], out_keys=keys),
            in_keys=keys,
            distribution_class=torch.distributions.Categorical if policy.discrete else TanhNormal,
        )
        critic = orthogonal_linear(policy.settings["hidden_dim"], 1)
        self.critic = TensorDictModule(critic, in_keys=["latent"], out_keys=["state_value"])
        self.ppo = ClipPPOLoss(
            self.actor,
            self.critic,
            clip_epsilon=clip_epsilon,
            critic_coeff=critic_coeff,
            entropy_coeff=entropy_coeff,
            loss_critic_type="l2",
            normalize_advantage=normalize_advantages,
            functional=False,  # no parameters are replaced: there are no targets
        )
        self.ppo.set_keys(sample_log_prob="action_log_prob")
        # Not vectorized: the vectorized version leaves out weights below 1e-7, and the encoder takes far more time than
        # the loop over time.
        self.gae = GAE(gamma=gamma, lmbda=gae_lambda, value_network=None, vectorized=False)

    @property
    def encoder(self) -> nn.Module:
        """The encoder that actor, critic and an auxiliary task share."""
        return self.policy.encoder

    def _latent(self, pixels: Tensor) -> Tensor:
        return full_precision(self.policy.latent(pixels))

    @torch.compiler.disable  # shapes depend on where episodes end, and it runs once for many updates
    @torch.no_grad()
    def estimate(self, rollout: TensorDictBase) -> TensorDictBase:
        """Returns the input of :meth:`loss` for each step of a rollout, by the current policy and critic.

        At the last step of a truncated episode, and at the last step of the rollout, the return bootstraps with the
        value of the next observation. At the last step of a terminated episode it does not.

        Args:
            rollout (TensorDictBase): ``[environments, time]``, with ``pixels``, ``action`` and, under ``"next"``,
                ``pixels``, ``reward``, ``done`` and ``terminated``.

        Returns:
            ``[environments, time]``: ``pixels``, ``action``, ``action_log_prob``, ``advantage`` and ``value_target``.
        """
        pixels, next_pixels = require(rollout, "pixels", self), require(rollout, ("next", "pixels"), self)
        steps = rollout.select("action", ("next", "reward"), ("next", "done"), ("next", "terminated"))
        # Environment by environment: the activations of a whole rollout would take gigabytes.
        steps["latent"] = torch.stack([self._latent(frames) for frames in pixels])
        # The next observation of a step is the observation of the step after it, except at the ends.
        ends = steps["next", "done"].squeeze(-1).clone()
        ends[:, -1] = True
        last_latents = self._latent(next_pixels[ends])
        with _exactly(last_latents.device):
            steps["action_log_prob"] = self.actor.get_dist(steps).log_prob(steps["action"])
            steps["state_value"] = values = self.critic(steps)["state_value"]
            next_values = values.roll(-1, dims=1)
            next_values[ends] = self.critic.module(last_latents)
            steps["next", "state_value"] = next_values
            return self.gae(steps).set("pixels", pixels).select(*_LEARNED_FROM)

    def loss(self, batch: TensorDictBase) -> TensorDict:
        """Computes ``loss_objective``, ``loss_critic`` and ``loss_entropy`` of steps ``[B]`` from :meth:`estimate`.

        Also returns ``latent`` ``[B, hidden_dim]``, ``entropy``, ``clip_fraction``, ``kl_approx`` and
        ``explained_variance``, without gradients.
        """
        inputs = {name: require(batch, name, self) for name in _LEARNED_FROM if name != "pixels"}
        latent = self._latent(require(batch, "pixels", self))
        with _exactly(latent.device):
            out = self.ppo(TensorDict({**inputs, "latent": latent}, batch.batch_size))
        metrics = {name: out[name].mean() for name in ("entropy", "clip_fraction", "kl_approx", "explained_variance")}
        losses = {name: out[name] for name in ("loss_objective", "loss_critic", "loss_entropy")}
        return TensorDict({**losses, "latent": latent.detach(), **metrics})

    def scale_clipping(self, scale: float) -> None:
        """Sets the clipping of the ratio of probabilities to ``scale * clip_epsilon``, for a schedule."""
        now: Tensor = self.ppo.clip_epsilon
        now.fill_(scale * self.clip_epsilon)


def _exactly(device: torch.device) -> torch.autocast:
    """Returns a context without autocast: both heads are one layer each, and ratios compare their outputs."""
    return torch.autocast(device.type, enabled=False)
