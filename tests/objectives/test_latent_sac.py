"""LatentSAC: the entropy coefficient's two losses, what is reported, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict

from mcurl_torchrl import LatentSAC
from mcurl_torchrl.modules import GaussianPolicy


def make_sac(**settings) -> LatentSAC:
    policy = GaussianPolicy([3, 16, 16], 2, num_layers=2, num_filters=4, feature_dim=8, hidden_dim=16)
    return LatentSAC(policy, hidden_dim=16, **settings)


def make_batch(size: int = 5) -> TensorDict:
    def images() -> torch.Tensor:
        return torch.randint(256, (size, 3, 16, 16), dtype=torch.uint8)

    never = torch.zeros(size, 1, dtype=torch.bool)
    following = {"pixels": images(), "reward": torch.rand(size, 1), "done": never, "terminated": never}
    return TensorDict({"pixels": images(), "action": torch.rand(size, 2), "next": following}, [size])


@pytest.mark.parametrize(("alpha_loss", "factor", "slope"), [("alpha", 0.3, 0.3), ("log_alpha", math.log(0.3), 1.0)])
def test_the_loss_of_the_entropy_coefficient(alpha_loss: str, factor: float, slope: float):
    sac = make_sac(alpha_loss=alpha_loss, alpha_init=0.3, target_entropy=-1.5)
    out = sac.actor_loss(make_batch())
    surplus = out["entropy"].item() + 1.5
    assert out["loss_alpha"].item() == pytest.approx(factor * surplus, rel=1e-5)
    (gradient,) = torch.autograd.grad(out["loss_alpha"], sac.sac.log_alpha)
    assert gradient.item() == pytest.approx(slope * surplus, rel=1e-5)


def test_what_is_reported_is_what_was_computed():
    sac, batch = make_sac(), make_batch()
    state = torch.get_rng_state()
    out = sac.actor_loss(batch)
    torch.set_rng_state(state)
    action = sac.policy.sample(batch["pixels"])
    latent = sac.encoder(batch["pixels"])
    values = [head(latent, action) for head in both_heads(sac)]
    assert out["q_mean"].item() == pytest.approx(torch.minimum(*values).mean().item(), abs=1e-5)
    assert out["alpha"].item() == pytest.approx(0.1)


def both_heads(sac: LatentSAC):
    from mcurl_torchrl.modules import QHead

    for number in (0, 1):
        head = QHead(8, 2, hidden_dim=16)
        flat = sac.sac.qvalue_network_params.flatten_keys(".").to_dict()
        head.load_state_dict({name.removeprefix("module."): value[number] for name, value in flat.items()})
        yield head


def test_n_step_returns_are_discounted_by_their_steps():
    sac, batch = make_sac(), make_batch()
    losses = {}
    for steps in (1, 5):
        batch["steps_to_next_obs"] = torch.full((5, 1), steps)
        torch.manual_seed(1)
        losses[steps] = sac.critic_loss(batch)["loss_qvalue"].item()
    assert losses[1] != losses[5]


def test_bad_input():
    with pytest.raises(ValueError, match="alpha_loss='beta'.*'alpha', 'log_alpha'"):
        make_sac(alpha_loss="beta")
    with pytest.raises(KeyError, match="LatentSAC needs 'pixels'"):
        make_sac().critic_loss(make_batch().exclude("pixels"))
    with pytest.raises(KeyError, match="LatentSAC needs .*'reward'"):
        make_sac().critic_loss(make_batch().exclude(("next", "reward")))


class TestWeightsAndMasks:
    def losses(self, sac: LatentSAC, batch: TensorDict) -> dict[str, torch.Tensor]:
        torch.manual_seed(4)  # the actions of the targets and of the actor are drawn
        critic = sac.critic_loss(batch)
        torch.manual_seed(5)
        return {"loss_qvalue": critic["loss_qvalue"], **sac.actor_loss(batch)}

    def each(self, sac: LatentSAC, batch: TensorDict) -> dict[str, torch.Tensor]:
        """The losses of each sample: those of the batch in which all others have weight 0, times the batch size."""
        count = len(batch)
        found = [
            self.losses(sac, batch.copy().set("priority_weight", torch.eye(count)[number])) for number in range(count)
        ]
        names = ("loss_qvalue", "loss_actor", "loss_alpha")
        return {name: count * torch.stack([one[name].detach() for one in found]) for name in names}

    def test_importance_weights(self):
        sac, batch = make_sac(), make_batch()
        each, plain = self.each(sac, batch), self.losses(sac, batch)
        for weight in (torch.rand(5), torch.rand(5, 1), torch.zeros(5)):
            found = self.losses(sac, batch.copy().set("priority_weight", weight))
            for name, losses in each.items():
                torch.testing.assert_close(plain[name], losses.mean())
                torch.testing.assert_close(found[name], (weight.flatten() * losses).mean())
            for name in ("alpha", "entropy", "q_mean"):  # what is reported is about the batch as it was drawn
                torch.testing.assert_close(found[name], plain[name])

    @pytest.mark.parametrize("alpha_loss", ["alpha", "log_alpha"])
    def test_padding_does_not_count(self, alpha_loss: str):
        sac, batch = make_sac(alpha_loss=alpha_loss), make_batch()
        each = self.each(sac, batch)
        valid = torch.tensor([True, False, True, True, False])
        masked = batch.copy().set(("collector", "mask"), valid.unsqueeze(-1))
        found = self.losses(sac, masked)
        for name, losses in each.items():
            torch.testing.assert_close(found[name], losses[valid].mean())
        sac.sac.loss_mask_key = None
        torch.testing.assert_close(self.losses(sac, masked)["q_mean"], self.losses(sac, batch)["q_mean"])

    def test_another_shape_is_refused(self):
        with pytest.raises(ValueError, match=r"'priority_weight' must be \[5\]; got \[4\]"):
            make_sac().critic_loss(make_batch().clone().auto_batch_size_(0).set("priority_weight", torch.ones(4)))
