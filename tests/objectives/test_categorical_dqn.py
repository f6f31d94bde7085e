"""CategoricalDQNLoss: the projection, bootstrapping, the noise of each network, and updates against plain PyTorch.

What it shares with ExpectedDQNLoss is tested here for both; ``make_loss`` is one, then the other.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.data import LazyTensorStorage
from torchrl.objectives import SoftUpdate

from mcurl_torchrl import ContextTransformer, FrameReplayBuffer, MaskedContrastiveLoss, PrioritizedTransitionSampler
from mcurl_torchrl.modules.rainbow import RainbowPolicy
from mcurl_torchrl.objectives import project_distribution
from mcurl_torchrl.objectives.categorical_dqn import CategoricalDQNLoss
from mcurl_torchrl.objectives.expected_dqn import ExpectedDQNLoss
from mcurl_torchrl.objectives.noisy_targets import NoisyTargetLoss

SHAPE = (2, 25, 25)  # 64 features
ACTIONS, ATOMS = 3, 7


@pytest.fixture(params=[CategoricalDQNLoss, ExpectedDQNLoss])
def make_loss(request: pytest.FixtureRequest) -> type[NoisyTargetLoss]:
    return request.param


def make_policy(**options) -> RainbowPolicy:
    return RainbowPolicy(SHAPE, ACTIONS, **{"hidden_dim": 16, "num_atoms": ATOMS, **options})


def make_pixels(*lead: int) -> Tensor:
    return torch.randint(256, (*lead, *SHAPE), dtype=torch.uint8)


def make_batch(size: int = 6) -> TensorDict:
    following = {
        "pixels": make_pixels(size),
        "reward": 3 * torch.randn(size, 1),
        "terminated": torch.arange(size)[:, None] % 3 == 0,
    }
    batch = {
        "pixels": make_pixels(size),
        "action": torch.randint(ACTIONS, (size,)),
        "steps_to_next_obs": torch.randint(1, 21, (size, 1)),
        "priority_weight": torch.rand(size) + 0.1,
        "next": following,
    }
    return TensorDict(batch, [size])


def noises(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    kept = {name.removeprefix(prefix): value.clone() for name, value in state.items() if name.startswith(prefix)}
    return {name: value for name, value in kept.items() if "noise" in name}


def project_slowly(probabilities: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """C51's algorithm 1, atom by atom."""
    low, high, count = support[0].item(), support[-1].item(), len(support)
    spacing = (high - low) / (count - 1)
    projected = torch.zeros_like(probabilities)
    for row in range(len(probabilities)):
        for atom in range(count):
            value = reward[row, 0].item() + discount[row, 0].item() * support[atom].item()
            position = (min(max(value, low), high) - low) / spacing
            below, above = math.floor(position), math.ceil(position)
            if below == above:
                projected[row, below] += probabilities[row, atom]
            else:
                projected[row, below] += probabilities[row, atom] * (above - position)
                projected[row, above] += probabilities[row, atom] * (position - below)
    return projected


class TestProjection:
    support = torch.linspace(-1, 1, 5)  # -1, -0.5, 0, 0.5, 1

    @pytest.mark.parametrize("size", [1, 11, 32])  # 11 is the number of atoms
    def test_against_a_double_loop(self, size: int) -> None:
        support = torch.linspace(-10, 10, 11, dtype=torch.float64)
        probabilities = torch.softmax(3 * torch.randn(size, 11, dtype=torch.float64), -1)
        reward = 6 * torch.randn(size, 1, dtype=torch.float64)
        reward[::3] = reward[::3].round()  # some on an atom
        discount = 0.9 ** torch.randint(0, 4, (size, 1), dtype=torch.float64)
        discount[::4] = 0
        projected = project_distribution(probabilities, reward, discount, support)
        torch.testing.assert_close(projected, project_slowly(probabilities, reward, discount, support))
        torch.testing.assert_close(projected.sum(-1), torch.ones(size, dtype=torch.float64), rtol=0, atol=1e-12)

    def test_terminal(self) -> None:
        """All that will come is the reward: on an atom, and between two."""
        probabilities = torch.tensor([[0.1, 0.2, 0.3, 0.3, 0.1]]).expand(3, 5)
        reward = torch.tensor([[0.5], [0.125], [-1.0]])
        projected = project_distribution(probabilities, reward, torch.zeros(3, 1), self.support)
        expected = torch.tensor([[0, 0, 0, 1, 0], [0, 0, 0.75, 0.25, 0], [1, 0, 0, 0, 0]])
        torch.testing.assert_close(projected, expected)

    def test_each_sample_has_its_own_discount(self) -> None:
        """A return of 1 for certain, seen from 1 and from 2 steps before, gamma 0.5."""
        probabilities = torch.tensor([[0.0, 0, 0, 0, 1]]).expand(2, 5)
        projected = project_distribution(probabilities, torch.zeros(2, 1), torch.tensor([[0.5], [0.25]]), self.support)
        torch.testing.assert_close(projected, torch.tensor([[0, 0, 0, 1.0, 0], [0, 0, 0.5, 0.5, 0]]))

    def test_beyond_the_support(self) -> None:
        probabilities = torch.tensor([[0.1, 0.2, 0.4, 0.2, 0.1]]).expand(3, 5)
        reward = torch.tensor([[100.0], [-100.0], [0.5]])
        projected = project_distribution(probabilities, reward, torch.ones(3, 1), self.support)
        expected = torch.tensor([[0, 0, 0, 0, 1], [1, 0, 0, 0, 0], [0, 0.1, 0.2, 0.4, 0.3]])
        torch.testing.assert_close(projected, expected)

    def test_nothing_is_lost_or_moved_on_atoms(self) -> None:
        support = torch.linspace(-10, 10, 51)
        probabilities = torch.softmax(torch.randn(51, 51), -1)
        projected = project_distribution(probabilities, torch.zeros(51, 1), torch.ones(51, 1), support)
        torch.testing.assert_close(projected, probabilities, rtol=0, atol=1e-6)

    def test_as_many_samples_as_atoms(self) -> None:
        """Where wrong broadcasting would go unnoticed: the same as one by one, and no reward per atom."""
        probabilities = torch.softmax(torch.randn(5, 5), -1)
        reward, discount = torch.randn(5, 1), torch.rand(5, 1)
        projected = project_distribution(probabilities, reward, discount, self.support)
        for row in range(5):
            mine = slice(row, row + 1)
            alone = project_distribution(probabilities[mine], reward[mine], discount[mine], self.support)
            torch.testing.assert_close(projected[mine], alone)
        with pytest.raises(ValueError, match=r"reward must be \[5, 1\]; got \[5\]"):
            project_distribution(probabilities, reward.squeeze(-1), discount, self.support)
        with pytest.raises(ValueError, match=r"discount must be \[5, 1\]; got \[5, 5\]"):
            project_distribution(probabilities, reward, discount.expand(5, 5), self.support)


class Table(nn.Module):
    """A distribution per state and action, for cases by hand; a state is ``[1]``, its number."""

    def __init__(self, probabilities: Tensor, support: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(probabilities.log())
        self.register_buffer("support", support)

    def forward(self, state: Tensor) -> Tensor:
        return F.log_softmax(self.logits[state.squeeze(-1)], -1)


def table_loss(**options) -> CategoricalDQNLoss:
    """State 0 has two actions; in state 1 the online network likes action 1, the target network action 0."""
    support = torch.tensor([-1.0, 0.0, 1.0])
    now = [[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]]
    network = Table(torch.tensor([now, [[0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]]), support)
    loss = CategoricalDQNLoss(network, gamma=0.5, **options)
    target = torch.tensor([now, [[0.1, 0.1, 0.8], [0.25, 0.5, 0.25]]])
    loss.target_value_network_params["logits"].copy_(target.log())
    return loss


def table_batch(**changes) -> TensorDict:
    batch = {"pixels": [[0]], "action": [0], "steps_to_next_obs": [[1]], "priority_weight": [1.0]}
    following = {"pixels": [[1]], "reward": [[0.0]], "terminated": [[False]], "truncated": [[False]], "done": [[False]]}
    batch = {name: changes.get(name, value) for name, value in batch.items()}
    following = {name: changes.get(f"next_{name}", value) for name, value in following.items()}
    tensors = {name: torch.tensor(value) for name, value in batch.items()}
    return TensorDict({**tensors, "next": {name: torch.tensor(value) for name, value in following.items()}}, [1])


class TestByHand:
    def test_priorities_without_the_entropy_of_the_target(self) -> None:
        """The target is 0.125, 0.75, 0.125, the prediction 0.2, 0.3, 0.5; the loss itself stays a cross entropy."""
        batch, plain = table_batch(), table_batch()
        out = table_loss(priorities="kl")(batch)
        torch.testing.assert_close(out["loss_value"], table_loss()(plain)["loss_value"])
        expected = sum(t * math.log(t / p) for t, p in zip((0.125, 0.75, 0.125), (0.2, 0.3, 0.5), strict=True))
        torch.testing.assert_close(batch["td_error"], torch.tensor([expected]))
        # A certain target has no entropy: the priority is the cross entropy.
        certain = table_batch(next_terminated=[[True]], next_done=[[True]], next_reward=[[1.0]])
        table_loss(priorities="kl")(certain)
        torch.testing.assert_close(certain["td_error"], torch.tensor([-math.log(0.5)]))

    def test_priorities_are_never_negative(self) -> None:
        """If the prediction equals its target, the two sums may differ by rounding."""
        torch.manual_seed(0)
        for _ in range(50):
            now = torch.softmax(torch.randn(3), -1).expand(2, 3)
            network = Table(torch.stack([now, now]), torch.tensor([-1.0, 0.0, 1.0]))
            batch = table_batch(steps_to_next_obs=[[0]])  # no discount and no reward: the target is the prediction
            CategoricalDQNLoss(network, gamma=0.5, priorities="kl")(batch)
            assert 0 <= batch["td_error"].item() < 1e-6

    def test_unknown_priorities_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"priorities='js'; choose one of .*'cross_entropy', 'kl'"):
            table_loss(priorities="js")

    @pytest.mark.parametrize(
        ("options", "changes", "target"),
        [
            # The online network takes action 1, for which the target network has 0.25, 0.5, 0.25; gamma 0.5.
            ({}, {}, [0.125, 0.75, 0.125]),
            ({"double": False}, {}, [0.05, 0.55, 0.4]),  # the target's own choice: 0.1, 0.1, 0.8
            ({}, {"steps_to_next_obs": [[2]]}, [0.0625, 0.875, 0.0625]),
            ({}, {"next_reward": [[1.0]]}, [0, 0.125, 0.875]),
            ({}, {"next_terminated": [[True]], "next_done": [[True]], "next_reward": [[0.25]]}, [0, 0.75, 0.25]),
            ({}, {"next_truncated": [[True]], "next_done": [[True]]}, [0.125, 0.75, 0.125]),  # bootstraps all the same
        ],
    )
    def test_targets(self, options: dict, changes: dict, target: list[float]) -> None:
        loss, batch = table_loss(**options), table_batch(**changes)
        chosen = torch.tensor([0.2, 0.3, 0.5])
        expected = -(torch.tensor(target) * chosen.log()).sum()
        out = loss(batch)
        torch.testing.assert_close(out["loss_value"], expected)
        torch.testing.assert_close(out["q_mean"], torch.tensor(0.3))
        torch.testing.assert_close(out["q_target_mean"], torch.tensor(target[2] - target[0]))
        torch.testing.assert_close(batch["td_error"], expected[None])
        del batch["steps_to_next_obs"]  # then it is 1
        batch["next", "reward"] = torch.zeros(1, 1)
        batch["next", "terminated"] = torch.zeros(1, 1, dtype=torch.bool)
        target = [0.125, 0.75, 0.125] if loss.double_dqn else [0.05, 0.55, 0.4]
        torch.testing.assert_close(loss(batch)["loss_value"], -(torch.tensor(target) * chosen.log()).sum())

    def test_another_view_of_the_next_observation_chooses_the_action_and_no_more(self) -> None:
        # On state 0 the online network takes action 0, for which the target network has 0.1, 0.1, 0.8 in state 1.
        for options, target in (({}, [0.05, 0.55, 0.4]), ({"double": False}, [0.05, 0.55, 0.4])):
            batch = table_batch().set(("next", "second_pixels"), torch.tensor([[0]]))
            expected = -(torch.tensor(target) * torch.tensor([0.2, 0.3, 0.5]).log()).sum()
            torch.testing.assert_close(table_loss(**options)(batch)["loss_value"], expected)

    def test_the_action_taken_is_the_one_that_learns(self) -> None:
        loss = table_loss()
        expected = -(torch.tensor([0.125, 0.75, 0.125]) * torch.tensor([0.6, 0.3, 0.1]).log()).sum()
        for action in (torch.tensor([1]), torch.tensor([[1]]), torch.tensor([1], dtype=torch.int32)):
            torch.testing.assert_close(loss(table_batch().set("action", action))["loss_value"], expected)
        loss(table_batch(action=[1]))["loss_value"].backward()
        gradient = loss.value_network.logits.grad
        assert gradient[0, 1].abs().sum() > 0
        assert not gradient[0, 0].any() and not gradient[1].any()  # no gradient through the next state

    def test_weights(self) -> None:
        """The mean of weight times loss, not divided by the sum of weights; priorities do without them."""
        loss, batch = table_loss(), torch.cat([table_batch(action=[0]), table_batch(action=[1])])
        batch["priority_weight"] = torch.tensor([1.0, 0.25])
        target = torch.tensor([0.125, 0.75, 0.125])
        first, second = (-(target * torch.tensor(p).log()).sum() for p in ([0.2, 0.3, 0.5], [0.6, 0.3, 0.1]))
        torch.testing.assert_close(loss(batch)["loss_value"], (first + 0.25 * second) / 2)
        torch.testing.assert_close(batch["td_error"], torch.stack([first, second]))
        assert batch["td_error"].shape == (2,) and not batch["td_error"].requires_grad
        for reduction, expected in (
            ("sum", first + 0.25 * second),
            ("none", torch.stack([first, 0.25 * second])),
        ):
            torch.testing.assert_close(table_loss(reduction=reduction)(batch)["loss_value"], expected)
        del batch["priority_weight"]
        torch.testing.assert_close(loss(batch)["loss_value"], (first + second) / 2)


class TestNoise:
    def test_sigmas_learn(self, make_loss: type[NoisyTargetLoss]) -> None:
        policy = make_policy()
        loss = make_loss(policy.network)
        loss(make_batch())["loss_value"].backward()
        for name, parameter in policy.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
        assert sum("sigma" in name for name, _ in policy.named_parameters()) == 8
        for name, value in loss.target_value_network_params.items(True, True):
            assert not value.requires_grad and value.grad is None, name

    def test_acting_and_learning_share_noise_the_target_has_its_own(self, make_loss: type[NoisyTargetLoss]) -> None:
        policy = make_policy(sigma_init=2.0)
        loss, batch = make_loss(policy.network), make_batch()

        def online() -> dict[str, Tensor]:
            return noises(policy.state_dict(), "network.")

        def target() -> dict[str, Tensor]:
            return noises(loss.state_dict(), "target_value_network_params.")

        def acted_on() -> Tensor:
            return policy.network.values(batch["pixels"]).gather(1, batch["action"][:, None]).mean()

        assert len(online()) == 8 and online().keys() == target().keys()
        assert all(not torch.equal(noise, online()[name]) for name, noise in target().items())  # from the start
        previous = None
        for _ in range(3):  # agent steps
            policy.reset_noise()
            value, before = acted_on(), online()
            assert previous is None or not torch.allclose(value, previous)
            previous, last = value, target()
            loss.reset_target_noise()
            out = loss(batch)
            torch.testing.assert_close(out["q_mean"], value, rtol=0, atol=0)
            assert all(torch.equal(noise, before[name]) for name, noise in online().items())
            assert all(not torch.equal(noise, before[name]) for name, noise in target().items())
            assert all(not torch.equal(noise, last[name]) for name, noise in target().items())
            last = target()
            loss(batch)
            assert all(torch.equal(noise, last[name]) for name, noise in target().items())  # nothing drawn by itself

    def test_the_targets_noise_counts(self, make_loss: type[NoisyTargetLoss]) -> None:
        policy = make_policy(sigma_init=2.0)
        loss, batch = make_loss(policy.network), make_batch()
        before = loss(batch)
        loss.reset_target_noise()
        after = loss(batch)
        assert not torch.allclose(before["q_target_mean"], after["q_target_mean"])
        assert torch.equal(before["q_mean"], after["q_mean"])

    def test_generators(self, make_loss: type[NoisyTargetLoss]) -> None:
        losses = [make_loss(make_policy().network) for _ in range(2)]
        state = torch.get_rng_state()
        for loss in losses:
            loss.reset_target_noise(torch.Generator().manual_seed(3))
            loss.value_network.reset_noise(torch.Generator().manual_seed(4))
        assert torch.equal(torch.get_rng_state(), state)
        for prefix in ("target_value_network_params.", "value_network_params."):
            first, second = (noises(loss.state_dict(), prefix) for loss in losses)
            assert all(torch.equal(first[name], second[name]) for name in first)

    @pytest.mark.parametrize("who", ["loss", "network"])
    def test_still_shared_after_a_move(self, make_loss: type[NoisyTargetLoss], who: str) -> None:
        """TorchRL's losses replace buffers where modules replace parameters' data."""
        policy = make_policy(sigma_init=2.0)
        loss, batch = make_loss(policy.network), make_batch()
        (loss if who == "loss" else policy.network).double()
        policy.reset_noise()
        values = policy.network.values(batch["pixels"]).gather(1, batch["action"][:, None])
        assert values.dtype == torch.float64
        torch.testing.assert_close(loss(batch)["q_mean"], values.mean(), rtol=1e-6, atol=0)
        if who == "loss":
            assert all(buffer.dtype == torch.float64 for buffer in policy.buffers())
            saved = noises(loss.state_dict(), "value_network_params.")
            shown = noises(policy.network.state_dict(), "")
            assert all(torch.equal(saved[name], shown[name]) for name in shown)

    @pytest.mark.parametrize("dueling", [True, False])
    def test_plain_layers(self, make_loss: type[NoisyTargetLoss], dueling: bool) -> None:
        """Nothing to draw: the calls are there, the numbers are the same; one update moves every parameter."""
        policy = make_policy(noisy=False, dueling=dueling)
        loss, batch = make_loss(policy.network), make_batch()
        before, state = loss(batch), torch.get_rng_state()
        policy.reset_noise()
        loss.reset_target_noise()
        loss.reset_target_noise(torch.Generator())
        assert torch.equal(torch.get_rng_state(), state)
        torch.testing.assert_close(loss(batch), before, rtol=0, atol=0)
        loss(batch)["loss_value"].backward()
        start = {name: value.detach().clone() for name, value in policy.network.named_parameters()}
        torch.optim.SGD(policy.parameters(), lr=0.1).step()
        for name, value in policy.network.named_parameters():
            target = loss.target_value_network_params[tuple(name.split("."))]
            assert not torch.equal(value, start[name]) and torch.equal(target, start[name]), name
        loss.copy_to_target()
        for name, value in policy.network.named_parameters():
            assert torch.equal(loss.target_value_network_params[tuple(name.split("."))], value), name

    def test_a_network_without_noise(self) -> None:
        with pytest.raises(TypeError, match="Table has no reset_noise"):
            table_loss().reset_target_noise()


class TestTarget:
    def test_copied_at_exact_steps_without_noise(self, make_loss: type[NoisyTargetLoss]) -> None:
        policy = make_policy()
        loss = make_loss(policy.network)
        copied_at = []
        for step in range(1, 9):
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.add_(1.0)
            noise = noises(loss.state_dict(), "target_value_network_params.")
            if step % 4 == 0:
                loss.copy_to_target()
            target = loss.target_value_network_params
            names = [tuple(name.split(".")) for name, _ in policy.network.named_parameters()]
            pairs = [(target[name], loss.value_network_params[name]) for name in names]
            equal = {torch.equal(*pair) for pair in pairs}
            assert len(equal) == 1 and len(pairs) == 20
            if equal == {True}:
                copied_at.append(step)
            after = noises(loss.state_dict(), "target_value_network_params.")
            assert all(torch.equal(noise[name], after[name]) for name in noise)
        assert copied_at == [4, 8]

    def test_no_warning_and_torchrls_updater(
        self, make_loss: type[NoisyTargetLoss], recwarn: pytest.WarningsRecorder
    ) -> None:
        policy = make_policy()
        loss = make_loss(policy.network)
        loss(make_batch())
        assert not [str(warning.message) for warning in recwarn if "target" in str(warning.message)]
        updater = SoftUpdate(loss, tau=0.25)
        before = loss.target_value_network_params["head", "value", "0", "weight_mu"].clone()
        noise = noises(loss.state_dict(), "target_value_network_params.")
        with torch.no_grad():
            policy.network.head.value[0].weight_mu.add_(4.0)
        updater.step()
        after = loss.target_value_network_params["head", "value", "0", "weight_mu"]
        torch.testing.assert_close(after, before + 1.0)
        now = noises(loss.state_dict(), "target_value_network_params.")
        assert all(torch.equal(noise[name], now[name]) for name in noise)

    def test_one_encoder_for_both_losses(self, make_loss: type[NoisyTargetLoss]) -> None:
        """Both losses' gradients add up in it; its momentum copy and the target network are apart."""
        policy = make_policy()
        encoder = policy.network.encoder
        value = make_loss(policy.network)
        contrastive = MaskedContrastiveLoss(encoder, ContextTransformer(encoder.feature_dim, dropout=0.0))
        momentum = SoftUpdate(contrastive, tau=0.001)
        pixels, batch = make_pixels(2, 4), make_batch()
        masked = torch.tensor([[True, False, True, False]] * 2)
        views = {"query_pixels": pixels, "key_pixels": pixels, "masked": masked}
        slices = TensorDict({"mcurl": views}, [2, 4])

        def gradients(*losses: Tensor) -> list[Tensor]:
            policy.zero_grad()
            sum(losses).backward()
            return [parameter.grad.clone() for parameter in encoder.parameters()]

        first = gradients(value(batch)["loss_value"])
        second = gradients(contrastive(slices)["loss_contrastive"])
        both = gradients(value(batch)["loss_value"], contrastive(slices)["loss_contrastive"])
        for one, other, total in zip(first, second, both, strict=True):
            assert one.abs().sum() > 0 and other.abs().sum() > 0
            torch.testing.assert_close(total, one + other)
        old = encoder.convs[0].weight.detach().clone()
        with torch.no_grad():
            encoder.convs[0].weight.add_(1.0)
        momentum.step()
        torch.testing.assert_close(contrastive.target_encoder_network_params["convs", "0", "weight"], old + 0.001)
        assert torch.equal(value.target_value_network_params["encoder", "convs", "0", "weight"], old)


# -- one update, in plain PyTorch --------------------------------------------------------------------------------------


def plain_noisy(params: dict[str, Tensor], noise: dict[str, Tensor], name: str, inputs: Tensor) -> Tensor:
    left, right = noise[f"{name}.noise_out"], noise[f"{name}.noise_in"]
    weight = params[f"{name}.weight_mu"] + params[f"{name}.weight_sigma"] * (left[:, None] * right[None, :])
    return inputs @ weight.T + params[f"{name}.bias_mu"] + params[f"{name}.bias_sigma"] * left


def plain_probabilities(params: dict[str, Tensor], noise: dict[str, Tensor], pixels: Tensor) -> Tensor:
    images = pixels.double() / 255
    for layer in (0, 2):
        weight, bias = params[f"encoder.convs.{layer}.weight"], params[f"encoder.convs.{layer}.bias"]
        images = torch.relu(F.conv2d(images, weight, bias, stride=5))
    features = images.reshape(len(images), -1)
    outputs = []
    for branch in ("value", "advantage"):
        hidden = torch.relu(plain_noisy(params, noise, f"head.{branch}.0", features))
        outputs.append(plain_noisy(params, noise, f"head.{branch}.2", hidden).reshape(len(images), -1, ATOMS))
    value, advantage = outputs
    return torch.softmax(value + advantage - advantage.mean(1, keepdim=True), -1)


def plain_update(
    params: dict[str, Tensor],
    target: dict[str, Tensor],
    noise: dict[str, Tensor],
    target_noise: dict[str, Tensor],
    batch: TensorDict,
    adam: torch.optim.Adam,
) -> tuple[Tensor, float]:
    support = torch.linspace(-10, 10, ATOMS, dtype=torch.float64)
    rows = torch.arange(len(batch))
    following = batch["next"]
    with torch.no_grad():
        best = (plain_probabilities(params, noise, following["pixels"]) @ support).argmax(1)
        probabilities = plain_probabilities(target, target_noise, following["pixels"])[rows, best]
        discount = 0.99 ** batch["steps_to_next_obs"].double() * (~following["terminated"]).double()
        goal = project_slowly(probabilities, following["reward"].double(), discount, support)
    chosen = plain_probabilities(params, noise, batch["pixels"])[rows, batch["action"]]
    losses = -(goal * chosen.log()).sum(1)
    adam.zero_grad()
    (batch["priority_weight"] * losses).mean().backward()
    norm = torch.sqrt(sum(parameter.grad.pow(2).sum() for parameter in params.values()))
    if norm > 10:
        for parameter in params.values():
            parameter.grad.mul_(10 / (norm + 1e-6))
    adam.step()
    return losses.detach(), norm.item()


def test_updates_equal_those_in_plain_pytorch() -> None:
    """Six agent steps: noise, loss, clipped gradients, Adam, priorities, the target's copy at steps 3 and 6."""
    policy = make_policy(sigma_init=1.0).double()
    policy.network.support.copy_(torch.linspace(-10, 10, ATOMS, dtype=torch.float64))  # else in single precision
    loss = CategoricalDQNLoss(policy.network)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4, eps=1.5e-4)
    params = {name: value.detach().clone().requires_grad_() for name, value in policy.network.named_parameters()}
    target = {name: value.detach().clone() for name, value in params.items()}
    adam = torch.optim.Adam(params.values(), lr=1e-4, eps=1.5e-4)
    norms = []
    for step in range(1, 7):
        batch = make_batch()
        if step % 2 == 0:
            batch["priority_weight"] *= 1000  # so that gradients are clipped
        policy.reset_noise()
        loss.reset_target_noise()
        own = noises(policy.network.state_dict(), "")
        others = noises(loss.state_dict(), "target_value_network_params.")

        loss.zero_grad()
        loss(batch)["loss_value"].backward()
        norm = nn.utils.clip_grad_norm_(policy.parameters(), 10)
        optimizer.step()
        priorities, plain_norm = plain_update(params, target, own, others, batch, adam)
        if step % 3 == 0:
            loss.copy_to_target()
            target = {name: value.detach().clone() for name, value in params.items()}

        torch.testing.assert_close(batch["td_error"], priorities, rtol=1e-9, atol=1e-9)
        assert norm.item() == pytest.approx(plain_norm, rel=1e-9)
        norms.append(plain_norm)
        for name, value in policy.network.named_parameters():
            torch.testing.assert_close(value.detach(), params[name].detach(), rtol=0, atol=1e-9, msg=name)
            moved = loss.target_value_network_params[tuple(name.split("."))]
            torch.testing.assert_close(moved, target[name], rtol=0, atol=1e-9, msg=name)
    assert min(norms) < 10 < max(norms)  # both with and without clipping


# -- with the rest of the package and TorchRL --------------------------------------------------------------------------


def test_on_the_replay_buffer(make_loss: type[NoisyTargetLoss]) -> None:
    """What is sampled is what is read, and the priorities go back."""
    buffer = FrameReplayBuffer(
        storage=LazyTensorStorage(200),
        num_frames=2,
        n_step=5,
        stacked_input=False,
        sampler=PrioritizedTransitionSampler(alpha=0.5, beta=0.4),
        batch_size=64,
        generator=torch.Generator().manual_seed(0),
    )
    terminated = torch.zeros(20, 1, dtype=torch.bool)
    terminated[-1] = True
    frames = torch.randint(256, (21, 1, 25, 25), dtype=torch.uint8)
    step = {"reward": torch.ones(20, 1), "terminated": terminated, "truncated": torch.zeros_like(terminated)}
    episode = {"pixels": frames[:-1], "action": torch.randint(ACTIONS, (20,)), "next": {"pixels": frames[1:], **step}}
    buffer.extend(TensorDict(episode, [20]))
    loss = make_loss(make_policy().network)
    batch = buffer.sample()
    loss(batch)["loss_value"].backward()
    cut = batch["steps_to_next_obs"] < 5
    assert cut.any() and torch.equal(cut | batch["next", "terminated"], batch["next", "terminated"])
    buffer.update_tensordict_priority(batch)
    torch.testing.assert_close(buffer._sampler.tree[batch["index"]], batch["td_error"].double() ** 0.5)


class Operators(TorchDispatchMode):
    """Lists the operators that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class TestContracts:
    def test_keys(self, make_loss: type[NoisyTargetLoss]) -> None:
        loss, batch = make_loss(make_policy().network), make_batch()
        following = [("next", name) for name in ("pixels", "reward", "terminated")]
        assert loss.in_keys == ["pixels", "action", *following]
        out = loss(batch)
        assert set(out.keys()) == set(loss.out_keys)
        assert [key for key in loss.out_keys if key.startswith("loss")] == ["loss_value"]
        assert [key for key, value in out.items() if value.requires_grad] == ["loss_value"]
        loss.set_keys(pixels=("camera", "view"), action="move", reward=("game", "points"), terminated="over")
        loss.set_keys(steps_to_next_obs="n", priority_weight=("replay", "w"), priority=("replay", "p"))
        assert loss.in_keys[0] == ("camera", "view") and loss.in_keys[2] == ("next", "camera", "view")
        other = {
            "camera": {"view": batch["pixels"]},
            "move": batch["action"],
            "n": batch["steps_to_next_obs"],
            "replay": {"w": batch["priority_weight"]},
            "next": {
                "camera": {"view": batch["next", "pixels"]},
                "game": {"points": batch["next", "reward"]},
                "over": batch["next", "terminated"],
            },
        }
        other = TensorDict(other, [6])
        torch.testing.assert_close(loss(other), out)
        assert torch.equal(other["replay", "p"], batch["td_error"])

    def test_dispatch(self, make_loss: type[NoisyTargetLoss]) -> None:
        loss, batch = make_loss(make_policy().network), make_batch()
        del batch["priority_weight"], batch["steps_to_next_obs"]
        following = batch["next"]
        value, *_ = loss(
            pixels=batch["pixels"],
            action=batch["action"],
            next_pixels=following["pixels"],
            next_reward=following["reward"],
            next_terminated=following["terminated"],
        )
        torch.testing.assert_close(value, loss(batch)["loss_value"])

    def test_state_dict_and_copies(self, make_loss: type[NoisyTargetLoss]) -> None:
        loss, other = (make_loss(make_policy(sigma_init=1.0).network) for _ in range(2))
        batch = make_batch()
        other.load_state_dict(loss.state_dict())
        twin = copy.deepcopy(loss)
        for each in (other, twin):
            torch.testing.assert_close(each(batch), loss(batch), rtol=0, atol=0)
        before = loss(batch)["q_mean"]
        twin.value_network.reset_noise()
        twin.reset_target_noise()
        assert torch.equal(loss(batch)["q_mean"], before) and not torch.equal(twin(batch)["q_mean"], before)

    def test_no_number_is_read(self, make_loss: type[NoisyTargetLoss]) -> None:
        """On a GPU, reading one would wait for all that was computed so far."""
        loss, batch = make_loss(make_policy().network), make_batch()
        with Operators() as operators:
            loss(batch)["loss_value"].backward()
        assert len(operators.seen) > 50
        assert "aten._local_scalar_dense.default" not in operators.seen  # what .item() and bool() are

    def test_autocast(self, make_loss: type[NoisyTargetLoss]) -> None:
        loss, batch = make_loss(make_policy().network), make_batch()
        expected = loss(batch)["loss_value"]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(batch)["loss_value"]
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, expected, rtol=0.02, atol=0.02)
        value.backward()

    @pytest.mark.parametrize(
        "backend", ["eager", *(pytest.param(b, marks=pytest.mark.slow) for b in ("aot_eager", "inductor"))]
    )
    def test_compile(self, make_loss: type[NoisyTargetLoss], backend: str) -> None:
        """One graph, without breaks; noise drawn later is seen by it."""
        policy = make_policy(sigma_init=1.0)
        loss, batch = make_loss(policy.network), make_batch()
        torch._dynamo.reset()
        compiled = torch.compile(loss, backend=backend, fullgraph=True)
        for _ in range(2):
            policy.reset_noise()
            loss.reset_target_noise()
            results = []
            for each in (loss, compiled):
                loss.zero_grad()
                fresh = batch.copy()
                out = each(fresh)
                out["loss_value"].backward()
                results.append((out.detach(), fresh["td_error"], [p.grad.clone() for p in policy.parameters()]))
            torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


class TestBadInput:
    @pytest.mark.parametrize(
        "name", ["pixels", "action", ("next", "pixels"), ("next", "reward"), ("next", "terminated")]
    )
    def test_missing_keys(self, make_loss: type[NoisyTargetLoss], name: str | tuple[str, ...]) -> None:
        batch = make_batch()
        del batch[name]
        key = name if isinstance(name, str) else name[-1]
        with pytest.raises(KeyError, match=f"{make_loss.__name__} needs .*{key}.*the tensordict has"):
            make_loss(make_policy().network)(batch)

    @pytest.mark.parametrize(
        ("name", "value", "match"),
        [
            (
                "action",
                torch.zeros(6, 3, dtype=torch.int64),
                r"'action' is \[6, 3\], the shape of one-hot.*argmax\(-1\)",
            ),
            ("action", torch.zeros(6), "'action' must hold integer indices of actions; got torch.float32"),
            (("next", "reward"), torch.zeros(6, 6), r"\('next', 'reward'\) must be \[6, 1\]; got \[6, 6\]"),
            (("next", "terminated"), torch.zeros(6, 1), r"'terminated'\) must be bool; got torch.float32"),
            ("steps_to_next_obs", torch.ones(6, 2), r"'steps_to_next_obs' must be \[6, 1\]"),
            ("priority_weight", torch.ones(6, 2), r"'priority_weight' must be \[6, 1\]"),
        ],
    )
    def test_wrong_values(
        self, make_loss: type[NoisyTargetLoss], name: str | tuple[str, ...], value: Tensor, match: str
    ) -> None:
        with pytest.raises(ValueError, match=match):
            make_loss(make_policy().network)(make_batch().set(name, value))

    def test_a_batch_of_slices(self, make_loss: type[NoisyTargetLoss]) -> None:
        with pytest.raises(ValueError, match=r"the batch must be \[B\]; got \[2, 3\]"):
            make_loss(make_policy().network)(make_batch().reshape(2, 3))

    def test_settings(self, make_loss: type[NoisyTargetLoss]) -> None:
        network = make_policy().network
        with pytest.raises(ValueError, match="gamma=1.5"):
            make_loss(network, gamma=1.5)
        with pytest.raises(ValueError, match="reduction='max'"):
            make_loss(network, reduction="max")
        with pytest.raises(ValueError, match="Linear has no support"):
            make_loss(nn.Linear(2, 2))
        wrong = Table(torch.full((2, 2, 3), 1 / 3), support=torch.linspace(0, 1, 5))
        with pytest.raises(ValueError, match=r"must return \[1, 'actions', 5\]; got \[1, 2, 3\]"):
            make_loss(wrong)(table_batch())

    def test_supports(self) -> None:
        with pytest.raises(ValueError, match="support differs from value_network.support"):
            CategoricalDQNLoss(make_policy().network, support=torch.linspace(-1, 1, ATOMS))
        for support in ([0.0], [0.0, 1.0, 3.0], [1.0, 0.0], [[0.0, 1.0]]):
            with pytest.raises(ValueError, match="rising and evenly spaced"):
                CategoricalDQNLoss(nn.Linear(2, 2), support=torch.tensor(support))
