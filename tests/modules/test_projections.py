"""Projections against plain versions, and a policy's convolutions trained through one that the policy never sees."""

from __future__ import annotations

import copy

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.objectives import SoftUpdate

from mcurl_torchrl import (
    AtariEncoder,
    ContextTransformer,
    ContrastiveLoss,
    MaskedContrastiveLoss,
    MaskObservations,
    PixelEncoder,
)
from mcurl_torchrl.modules import (
    CurlProjection,
    LatentProjection,
    LinearProjection,
    ProjectedEncoder,
    RainbowPolicy,
    StateEncoder,
)

SHAPE = (2, 25, 25)  # 64 features
PROJECTIONS = {
    "linear": lambda: LinearProjection(64, 8),
    "curl": lambda: CurlProjection(64, 16, 8),
    "orthogonal": lambda: LatentProjection(64, 8),
}


def normalise(inputs: Tensor) -> Tensor:
    centred = inputs - inputs.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()


def make_slices(slices: int = 3, length: int = 4, ratio: float = 0.5) -> TensorDict:
    pixels = torch.randint(1, 256, (slices, length, *SHAPE), dtype=torch.uint8)
    batch = TensorDict({"mcurl": {"query_pixels": pixels.clone(), "key_pixels": pixels}}, [slices, length])
    return MaskObservations(ratio)(batch)


def make_policy() -> RainbowPolicy:
    return RainbowPolicy(SHAPE, 3, hidden_dim=16, num_atoms=7)


def make_losses(encoder: nn.Module) -> dict[str, nn.Module]:
    return {
        "masked": MaskedContrastiveLoss(encoder, ContextTransformer(8, dropout=0.0)),
        "plain": ContrastiveLoss(encoder, latent_dim=8),
    }


class TestProjections:
    def test_linear(self) -> None:
        projection, features = LinearProjection(6, 4), torch.randn(5, 6)
        linear, norm = projection
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        expected = normalise(features @ linear.weight.T + linear.bias) * norm.weight + norm.bias
        torch.testing.assert_close(projection(features), expected)
        assert (projection.num_features, projection.feature_dim) == (6, 4)

    def test_linear_starts_as_pytorch_does(self) -> None:
        torch.manual_seed(3)
        projection = LinearProjection(6, 4)
        torch.manual_seed(3)
        linear = nn.Linear(6, 4)
        assert torch.equal(projection[0].weight, linear.weight) and torch.equal(projection[0].bias, linear.bias)
        assert (projection[1].weight == 1).all() and (projection[1].bias == 0).all()

    def test_curl(self) -> None:
        projection, features = CurlProjection(6, 5, 4), torch.randn(7, 6)
        (first, first_bias), (second, second_bias) = ((p.weight, p.bias) for p in (projection[0], projection[3]))
        nn.init.normal_(first_bias)
        nn.init.normal_(second_bias)
        hidden = torch.relu(normalise(features @ first.T + first_bias))
        torch.testing.assert_close(projection(features), normalise(hidden @ second.T + second_bias))
        assert projection.feature_dim == 4

    def test_curl_starts_as_released(self) -> None:
        projection = CurlProjection(576)
        shapes = {name: tuple(value.shape) for name, value in projection.named_parameters()}
        # The norms have no parameters.
        assert shapes == {"0.weight": (256, 576), "0.bias": (256,), "3.weight": (128, 256), "3.bias": (128,)}
        for layer in (projection[0], projection[3]):
            assert 0 <= layer.weight.min() < 0.001 and 0.999 < layer.weight.max() < 1
            assert abs(layer.weight.mean() - 0.5) < 0.01 and abs(layer.weight.std() - 12**-0.5) < 0.01
            assert not layer.bias.any() and layer.bias.requires_grad

    def test_the_encoders_own_projection_is_the_linear_one(self) -> None:
        encoder = AtariEncoder(2, 25, feature_dim=8)
        assert isinstance(encoder.projection, LinearProjection)
        pixels = torch.randint(256, (3, *SHAPE), dtype=torch.uint8)
        joined = ProjectedEncoder(encoder, encoder.projection)
        assert encoder(pixels).shape == (3, 8) and torch.equal(joined(pixels), encoder(pixels))

    def test_refuses(self) -> None:
        for name in ("num_features", "feature_dim"):
            sizes = {"num_features": 4, "feature_dim": 4, name: 0}
            for projection in (LinearProjection, CurlProjection):
                with pytest.raises(ValueError, match=f"{name}=0"):
                    projection(**sizes)
        with pytest.raises(ValueError, match="hidden_dim=0"):
            CurlProjection(4, 0)


class TestProjectedEncoder:
    @pytest.mark.parametrize("kind", sorted(PROJECTIONS))
    def test_convolutions_then_projection(self, kind: str) -> None:
        own, projection = AtariEncoder(*SHAPE[:2], feature_dim=5), PROJECTIONS[kind]()
        encoder = ProjectedEncoder(own, projection)
        pixels = torch.randint(256, (3, 4, *SHAPE), dtype=torch.uint8)
        latents = encoder(pixels)
        assert encoder.feature_dim == 8 and latents.shape == (3, 4, 8)
        torch.testing.assert_close(latents, projection(own.features(pixels)))
        torch.testing.assert_close(encoder(pixels[0, 0]), latents[0, 0])
        assert torch.equal(encoder.features(pixels), own.features(pixels))
        assert torch.equal(encoder.project(encoder.features(pixels)), latents)

    def test_other_encoders(self) -> None:
        encoder = PixelEncoder(2, 25, num_layers=2, num_filters=4)
        joined = ProjectedEncoder(encoder, CurlProjection(encoder.num_features, feature_dim=8))
        assert joined(torch.zeros(3, *SHAPE)).shape == (3, 8)
        assert ProjectedEncoder(StateEncoder(5), LinearProjection(5, 8))(torch.zeros(3, 5)).shape == (3, 8)

    def test_refuses(self) -> None:
        with pytest.raises(TypeError, match="Linear has no features"):
            ProjectedEncoder(nn.Linear(3, 4), LinearProjection(4, 8))
        with pytest.raises(TypeError, match="Linear has no feature_dim"):
            ProjectedEncoder(AtariEncoder(*SHAPE[:2]), nn.Linear(64, 8))
        with pytest.raises(ValueError, match="the encoder has num_features=64, the projection takes 63"):
            ProjectedEncoder(AtariEncoder(*SHAPE[:2]), LinearProjection(63, 8))
        encoder = ProjectedEncoder(AtariEncoder(*SHAPE[:2]), LinearProjection(64, 8))
        with pytest.raises(ValueError, match="latents have feature_dim=8, the context network's 9"):
            MaskedContrastiveLoss(encoder, ContextTransformer(9))


@pytest.mark.parametrize("projection", sorted(PROJECTIONS))
@pytest.mark.parametrize("kind", ["masked", "plain"])
class TestInALoss:
    def test_the_policys_convolutions_learn(self, kind: str, projection: str) -> None:
        policy = make_policy()
        convolutions = policy.network.encoder
        before = {name: (id(value), value.detach().clone()) for name, value in policy.named_parameters()}
        encoder = ProjectedEncoder(convolutions, PROJECTIONS[projection]())
        loss = make_losses(encoder)[kind]
        SoftUpdate(loss, tau=0.1)
        assert {name: id(value) for name, value in policy.named_parameters()} == {
            name: identity for name, (identity, _) in before.items()
        }
        loss(make_slices())["loss_contrastive"].backward()
        for name, value in encoder.named_parameters():
            assert value.grad is not None and value.grad.abs().sum() > 0, name
        assert all(value.grad is None for value in policy.network.head.parameters())
        assert all(value.grad is None for value in loss.target_encoder_network_params.values(True, True))
        torch.optim.SGD(loss.parameters(), lr=0.1).step()
        for name, value in policy.named_parameters():  # the policy acts with what was learned
            assert torch.equal(value, before[name][1]) == ("encoder" not in name), name
        # What the policy saves is its own; the projection belongs to the loss.
        assert not any("projection" in name for name in policy.state_dict())

    def test_the_momentum_copy_follows_both(self, kind: str, projection: str) -> None:
        encoder = ProjectedEncoder(make_policy().network.encoder, PROJECTIONS[projection]())
        loss = make_losses(encoder)[kind]
        momentum = SoftUpdate(loss, tau=0.25)
        pixels = make_slices()["mcurl", "key_pixels"]
        start = {name: value.detach().clone() for name, value in encoder.named_parameters()}
        torch.testing.assert_close(loss.encode_keys(pixels), encoder(pixels))
        old = copy.deepcopy(encoder)
        with torch.no_grad():
            for value in encoder.parameters():
                value.add_(torch.randn_like(value))
        torch.testing.assert_close(loss.encode_keys(pixels), old(pixels))
        momentum.step()
        follower = copy.deepcopy(encoder)
        for name, value in follower.named_parameters():
            moved = 0.25 * value.detach() + 0.75 * start[name]
            torch.testing.assert_close(loss.target_encoder_network_params[tuple(name.split("."))], moved)
            value.data.copy_(moved)
        assert {name.split(".")[0] for name in start} == {"encoder", "projection"}
        torch.testing.assert_close(loss.encode_keys(pixels), follower(pixels))


@pytest.mark.parametrize("projection", sorted(PROJECTIONS))
def test_encoding_zeros_once_changes_nothing(projection: str) -> None:
    encoder = ProjectedEncoder(make_policy().network.encoder, PROJECTIONS[projection]()).double()
    once = MaskedContrastiveLoss(encoder, ContextTransformer(8, dropout=0.0).double())
    plain = MaskedContrastiveLoss(copy.deepcopy(encoder), copy.deepcopy(once.context_network), encode_zeros_once=False)
    batch = make_slices(4, 6, ratio=0.7)
    assert batch["mcurl", "zeroed"].any() and not batch["mcurl", "zeroed"].all()
    sizes: list[int] = []
    once.encoder_network.register_forward_hook(lambda module, inputs, output: sizes.append(output.shape[:-1].numel()))
    values = []
    for loss in (once, plain):
        SoftUpdate(loss, tau=0.1)
        value = loss(batch)["loss_contrastive"]
        value.backward()
        values.append(value.detach())
    assert sizes == [int((~batch["mcurl", "zeroed"]).sum()) + 1, 24]  # the shortcut was taken
    torch.testing.assert_close(*values, rtol=1e-10, atol=1e-10)
    for (name, first), second in zip(
        once.encoder_network.named_parameters(), plain.encoder_network.parameters(), strict=True
    ):
        torch.testing.assert_close(first.grad, second.grad, rtol=1e-8, atol=1e-10, msg=name)
