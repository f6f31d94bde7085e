"""Rainbow's networks: when noise is there and when not, the dueling identity, and a policy that can be saved."""

from __future__ import annotations

import inspect
import io
import json
import math

import pytest
import torch
import torchrl.modules
from torch import Tensor, nn
from torchrl.envs import ExplorationType, set_exploration_type

from mcurl_torchrl import CategoricalDQNLoss
from mcurl_torchrl.modules import DuelingHead, NoisyLinear, RainbowPolicy
from mcurl_torchrl.modules.rainbow import expected_value

SHAPE = (2, 25, 25)  # 64 features


def make_policy(num_actions: int = 3, **options) -> RainbowPolicy:
    return RainbowPolicy(SHAPE, num_actions, **{"hidden_dim": 16, "num_atoms": 7, **options})


def make_pixels(*lead: int) -> Tensor:
    return torch.randint(256, (*lead, *SHAPE), dtype=torch.uint8)


def noises(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.named_buffers() if "noise" in name}


class TestNoisyLinear:
    def test_starts_as_described(self) -> None:
        layer = NoisyLinear(400, 300)
        bound = 1 / math.sqrt(400)
        for mean in (layer.weight_mu, layer.bias_mu):
            assert mean.abs().max() <= bound
            assert mean.min() < -0.95 * bound and mean.max() > 0.95 * bound
        for sigma in (layer.weight_sigma, layer.bias_sigma):
            torch.testing.assert_close(sigma.detach(), torch.full_like(sigma, 0.1 / math.sqrt(400)))

    def test_noise_is_factorised_gaussian(self) -> None:
        layer = NoisyLinear(3, 2)
        layer.reset_noise(torch.Generator().manual_seed(5))
        generator = torch.Generator().manual_seed(5)
        before, after = torch.randn(3, generator=generator), torch.randn(2, generator=generator)
        expected_in = [math.copysign(math.sqrt(abs(x)), x) for x in before.tolist()]
        expected_out = [math.copysign(math.sqrt(abs(x)), x) for x in after.tolist()]
        inputs = torch.randn(4, 3)
        for row, output in zip(inputs, layer(inputs), strict=True):
            for j in range(2):
                total = layer.bias_mu[j] + layer.bias_sigma[j] * expected_out[j]
                for i in range(3):
                    weight = layer.weight_mu[j, i] + layer.weight_sigma[j, i] * expected_out[j] * expected_in[i]
                    total = total + weight * row[i]
                torch.testing.assert_close(output[j], total)

    def test_torchrls_layer_takes_no_generator_and_scales_the_bias_by_its_outputs(self) -> None:
        """These two things are why the package has a layer of its own; in training mode sigmas learn in both."""
        theirs = torchrl.modules.NoisyLinear(400, 100, std_init=0.1, use_exploration_type=False)
        torch.testing.assert_close(theirs.weight_sigma.detach(), NoisyLinear(400, 100).weight_sigma.detach())
        torch.testing.assert_close(theirs.bias_sigma.detach(), torch.full((100,), 0.1 / math.sqrt(100)))
        assert list(inspect.signature(theirs.reset_noise).parameters) == []
        with set_exploration_type(ExplorationType.DETERMINISTIC):  # as inside of a loss module
            theirs(torch.ones(400)).sum().backward()
        assert theirs.weight_sigma.grad.any()

    def test_noise_changes_only_when_drawn(self) -> None:
        layer, inputs = NoisyLinear(5, 4), torch.randn(2, 5)
        before, buffers = layer(inputs), noises(layer)
        assert torch.equal(layer(inputs), before)
        addresses = {name: value.data_ptr() for name, value in layer.named_buffers()}
        layer.reset_noise()
        assert all(not torch.equal(value, buffers[name]) for name, value in noises(layer).items())
        assert not torch.equal(layer(inputs), before)
        # In place: every reference to the buffers sees the new noise.
        assert {name: value.data_ptr() for name, value in layer.named_buffers()} == addresses

    def test_no_noise_in_evaluation(self) -> None:
        layer, inputs = NoisyLinear(5, 4).eval(), torch.randn(2, 5)
        expected = nn.functional.linear(inputs, layer.weight_mu, layer.bias_mu)
        assert torch.equal(layer(inputs), expected)
        assert not torch.equal(layer.train()(inputs), expected)

    @pytest.mark.parametrize("kind", list(ExplorationType))
    def test_exploration_type_changes_nothing(self, kind: ExplorationType) -> None:
        layer, inputs = NoisyLinear(5, 4), torch.randn(2, 5)
        noisy, plain = layer(inputs), layer.eval()(inputs)
        with set_exploration_type(kind):
            assert torch.equal(layer(inputs), plain)
            assert torch.equal(layer.train()(inputs), noisy)

    def test_refuses(self) -> None:
        with pytest.raises(ValueError, match="sigma_init=-1"):
            NoisyLinear(3, 2, sigma_init=-1)
        with pytest.raises(ValueError, match="out_features=0"):
            NoisyLinear(3, 0)


class TestDuelingHead:
    def test_sizes_are_the_published_ones(self) -> None:
        policy = RainbowPolicy([4, 84, 84], 6)
        head = policy.network.head
        sizes = {name: (part.in_features, part.out_features) for name, part in layers(head).items()}
        assert sizes == {
            "value.0": (576, 256),
            "value.2": (256, 51),
            "advantage.0": (576, 256),
            "advantage.2": (256, 6 * 51),
        }
        assert all(part.sigma_init == 0.1 for part in layers(head).values())
        torch.testing.assert_close(policy.network.support, torch.arange(-25, 26) * 0.4)

    def test_against_the_formula(self) -> None:
        head, latent = DuelingHead(8, 3, num_atoms=5, hidden_dim=6), torch.randn(4, 8)
        value, advantage = head.value(latent), head.advantage(latent).view(4, 3, 5)
        for action in range(3):
            logits = value + advantage[:, action] - advantage.sum(1) / 3
            torch.testing.assert_close(head(latent)[:, action], logits - logits.logsumexp(-1, keepdim=True))

    def test_only_differences_of_advantages_count(self) -> None:
        head, latent = DuelingHead(8, 3, num_atoms=5, hidden_dim=6).double(), torch.randn(4, 8).double()
        before = head(latent)
        with torch.no_grad():
            head.advantage[2].bias_mu.view(3, 5).add_(torch.randn(5))  # the same for all actions, not for all atoms
        torch.testing.assert_close(head(latent), before)
        with torch.no_grad():
            head.advantage[2].bias_mu.view(3, 5)[0].add_(torch.randn(5))
        assert not torch.allclose(head(latent), before)

    def test_plain_and_dueling(self) -> None:
        head, latent = DuelingHead(8, 3, num_atoms=5, hidden_dim=6, noisy=False), torch.randn(4, 8)
        assert not layers(head) and not list(head.buffers())
        outputs = []
        for branch in (head.value, head.advantage):
            hidden = torch.relu(latent @ branch[0].weight.T + branch[0].bias)
            outputs.append((hidden @ branch[2].weight.T + branch[2].bias).view(4, -1, 5))
        logits = outputs[0] + outputs[1] - outputs[1].sum(1, keepdim=True) / 3
        torch.testing.assert_close(head(latent), logits - logits.logsumexp(-1, keepdim=True))

    @pytest.mark.parametrize("noisy", [True, False])
    def test_one_branch(self, noisy: bool) -> None:
        head, latent = DuelingHead(8, 3, num_atoms=5, hidden_dim=6, noisy=noisy, dueling=False), torch.randn(4, 8)
        linears = [part for part in head.modules() if isinstance(part, (NoisyLinear, nn.Linear))]
        assert [(part.in_features, part.out_features) for part in linears] == [(8, 6), (6, 15)]
        assert len(layers(head)) == (2 if noisy else 0)
        outputs = linears[1](linears[0](latent).relu())
        log_probabilities = head(latent)
        assert log_probabilities.shape == (4, 3, 5)
        for action in range(3):  # each has logits of its own, atom after atom
            logits = outputs[:, 5 * action : 5 * action + 5]
            torch.testing.assert_close(log_probabilities[:, action], logits - logits.logsumexp(-1, keepdim=True))
        assert head(latent[:0]).shape == (0, 3, 5)

    def test_the_gradient_into_the_encoder_is_scaled_and_nothing_else(self) -> None:
        def gradients(scale: float) -> tuple[Tensor, list[Tensor]]:
            torch.manual_seed(0)
            head, latent = DuelingHead(8, 3, num_atoms=5, hidden_dim=6, gradient_scale=scale), torch.randn(4, 8)
            latent.requires_grad_()
            out = head(latent)
            (out[:, 0].sum() + head.hidden(latent).sum()).backward()
            (through_hidden,) = torch.autograd.grad(head.hidden(latent).sum(), latent)
            return out, [latent.grad - through_hidden, *(value.grad for value in head.parameters())]

        plain, (into, *own) = gradients(1.0)
        scaled, (less, *same) = gradients(0.5)
        assert torch.equal(plain, scaled)
        torch.testing.assert_close(less, into / 2)
        torch.testing.assert_close(same, own)
        with pytest.raises(ValueError, match="gradient_scale=0; it must be above 0"):
            DuelingHead(8, 3, gradient_scale=0)

    def test_no_noise_to_draw(self) -> None:
        policy, pixels = make_policy(noisy=False), make_pixels(5)
        before, state = policy.network(pixels), torch.get_rng_state()
        for module in (policy, policy.network, policy.network.head):
            module.reset_noise()
            module.reset_noise(torch.Generator())
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(policy.network(pixels), before)
        assert torch.equal(policy.eval().network(pixels), before)

    def test_all_layers_get_new_noise_each_its_own(self) -> None:
        head = DuelingHead(8, 3, num_atoms=5, hidden_dim=8)
        before = noises(head)
        head.reset_noise()
        after = noises(head)
        assert len(after) == 8
        assert all(not torch.equal(after[name], before[name]) for name in after)
        assert not torch.equal(after["value.0.noise_in"], after["advantage.0.noise_in"])

    @pytest.mark.parametrize("noisy", [True, False])
    def test_autocast_leaves_probabilities_precise(self, noisy: bool) -> None:
        head, latent = DuelingHead(8, 3, num_atoms=5, hidden_dim=6, noisy=noisy), torch.randn(4, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            log_probabilities = head(latent)
        assert log_probabilities.dtype == torch.float32
        torch.testing.assert_close(log_probabilities.exp().sum(-1), torch.ones(4, 3))


def layers(module: nn.Module) -> dict[str, NoisyLinear]:
    return {name: part for name, part in module.named_modules() if isinstance(part, NoisyLinear)}


def rebuild(policy: RainbowPolicy) -> RainbowPolicy:
    twin = RainbowPolicy(**json.loads(json.dumps(policy.settings)))
    twin.load_state_dict(policy.state_dict())
    assert twin.settings == policy.settings
    return twin


class TestPolicy:
    def test_takes_the_action_with_the_highest_mean(self) -> None:
        policy, pixels = make_policy(), make_pixels(2, 4)
        probabilities = policy.network(pixels).exp()
        assert probabilities.shape == (2, 4, 3, 7)
        support = torch.linspace(-10, 10, 7)
        means = sum(probabilities[..., atom] * support[atom] for atom in range(7))
        torch.testing.assert_close(policy.network.values(pixels), means)
        torch.testing.assert_close(expected_value(probabilities.log(), support), means)
        assert torch.equal(policy(pixels), means.argmax(-1))
        assert policy(pixels[0, 0]) == policy(pixels)[0, 0]  # one observation, no batch

    def test_without_noise_whatever_the_mode(self) -> None:
        policy, pixels = make_policy(num_actions=6, sigma_init=5.0), make_pixels(40)
        expected = policy.eval()(pixels)
        policy.train()
        for _ in range(20):  # some noise changes no action
            policy.reset_noise()
            if not torch.equal(policy(pixels), expected):
                break
        assert not torch.equal(policy(pixels), expected)
        before, state = noises(policy), torch.get_rng_state()
        assert torch.equal(policy.act(pixels), expected)
        assert torch.equal(torch.get_rng_state(), state)  # no random number is drawn
        assert policy.training and all(part.training for part in policy.modules())
        assert all(torch.equal(value, before[name]) for name, value in noises(policy).items())
        with pytest.raises(ValueError, match="pixels must be"):
            policy.act_without_noise(pixels[..., :20])
        assert policy.training  # also after an error: learning would go on without noise
        policy.eval()
        policy.act(pixels)
        assert not policy.training
        with pytest.raises(ValueError, match="a RainbowPolicy has no distribution"):
            policy.act(pixels, generator=torch.Generator())

    def test_epsilon(self) -> None:
        policy, pixels = make_policy(num_actions=4), make_pixels(1).expand(4000, *SHAPE)
        greedy = policy.eval()(pixels[0])
        action = policy.act_without_noise(pixels, epsilon=0.4, generator=torch.Generator().manual_seed(1))
        again = policy.act_without_noise(pixels, epsilon=0.4, generator=torch.Generator().manual_seed(1))
        assert torch.equal(action, again) and action.dtype == torch.int64
        shares = torch.bincount(action, minlength=4) / 4000
        expected = torch.full((4,), 0.1).index_add(0, greedy[None], torch.tensor([0.6]))
        torch.testing.assert_close(shares, expected, atol=0.03, rtol=0)
        with pytest.raises(ValueError, match="epsilon=1.5"):
            policy.act_without_noise(pixels, epsilon=1.5)

    def test_rebuilt_from_its_settings(self) -> None:
        policy = make_policy(value_bounds=(-2.0, 3.0), sigma_init=0.3)
        twin = rebuild(policy)
        pixels = make_pixels(5)
        assert torch.equal(twin.network(pixels), policy.network(pixels))
        assert twin.network.support[-1] == 3 and layers(twin)["network.head.value.0"].sigma_init == 0.3

    def test_every_setting_is_rebuilt(self) -> None:
        given = {"architecture": "nature", "hidden_dim": 8, "num_atoms": 5, "value_bounds": (-1.0, 1.0)}
        policy = RainbowPolicy([1, 36, 36], 2, **given, sigma_init=0.2, noisy=False, dueling=False)
        assert set(policy.settings) == set(inspect.signature(RainbowPolicy).parameters)
        encoder, head = policy.network.encoder, policy.network.head
        assert sum(isinstance(part, nn.Conv2d) for part in encoder.modules()) == 3 and encoder.num_features == 64
        assert [tuple(value.shape) for value in head.parameters()] == [(8, 64), (8,), (10, 8), (10,)]
        twin = rebuild(policy)
        assert str(twin) == str(policy)  # all layers and their sizes
        pixels = torch.randint(256, (3, 1, 36, 36), dtype=torch.uint8)
        assert torch.equal(twin.network(pixels), policy.network(pixels))

    @pytest.mark.parametrize("plain", [False, True])
    def test_export(self, plain: bool) -> None:
        policy = make_policy(num_actions=6, sigma_init=5.0, noisy=not plain, dueling=not plain).eval()
        batch = torch.export.Dim("batch", min=1)
        with torch.no_grad():
            program = torch.export.export(policy, (make_pixels(2),), dynamic_shapes=({0: batch},))
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        pixels = make_pixels(30)
        assert torch.equal(torch.export.load(file).module()(pixels), policy(pixels))

    def test_refuses(self) -> None:
        with pytest.raises(ValueError, match=r"observation_shape=\[4, 84, 80\]"):
            RainbowPolicy([4, 84, 80], 6)
        with pytest.raises(ValueError, match=r"value_bounds=\(1, -1\)"):
            make_policy(value_bounds=(1, -1))
        with pytest.raises(ValueError, match="num_atoms=1; a support has at least 2"):
            make_policy(num_atoms=1)
        with pytest.raises(ValueError, match="num_actions=0"):
            make_policy(num_actions=0)
        with pytest.raises(ValueError, match=r"architecture='impala'; choose one of \['data_efficient', 'nature'\]"):
            make_policy(architecture="impala")


def test_weights_over_other_returns_are_refused():
    saved = RainbowPolicy([4, 36, 36], 3, num_atoms=5).state_dict()
    RainbowPolicy([4, 36, 36], 3, num_atoms=5).load_state_dict(saved)
    other = RainbowPolicy([4, 36, 36], 3, num_atoms=5, value_bounds=(-20, 20))
    with pytest.raises(ValueError, match="of -10 to 10 in 5 atoms; this one has -20 to 20 in 5 atoms"):
        other.load_state_dict(saved)
    loss = CategoricalDQNLoss(RainbowPolicy([4, 36, 36], 3, num_atoms=5).network)
    with pytest.raises(ValueError, match="saved with returns of -10 to 10"):
        CategoricalDQNLoss(other.network).load_state_dict(loss.state_dict())
