"""The encoders: shapes, scaling, initialisation, and the same values in any memory layout."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mcurl_torchrl import AtariEncoder, PixelEncoder


@pytest.mark.parametrize(("image_size", "num_layers", "side"), [(84, 4, 35), (64, 2, 29), (54, 4, 20), (100, 4, 43)])
def test_pixel_encoder_against_a_plain_one(image_size: int, num_layers: int, side: int) -> None:
    encoder = PixelEncoder(9, image_size, num_layers=num_layers, num_filters=8, feature_dim=12)
    nn.init.normal_(encoder.norm.weight)
    pixels = torch.randint(256, (2, 3, 9, image_size, image_size), dtype=torch.uint8)
    plain = pixels.flatten(0, 1).float() / 255
    for conv in encoder.convs:
        if isinstance(conv, nn.Conv2d):
            weight = conv.weight.detach().contiguous()
            plain = nn.functional.conv2d(plain, weight, conv.bias, stride=2 if conv is encoder.convs[0] else 1).relu()
    assert plain.shape[1:] == (8, side, side)
    features = plain.reshape(6, -1)
    torch.testing.assert_close(encoder.features(pixels).flatten(0, 1), features)
    latents = nn.functional.layer_norm(
        features @ encoder.linear.weight.T + encoder.linear.bias, (12,), encoder.norm.weight, encoder.norm.bias
    )
    torch.testing.assert_close(encoder(pixels).flatten(0, 1), latents)
    assert encoder(pixels).shape == (2, 3, 12)


def test_initialisation() -> None:
    encoder = PixelEncoder(9)
    for conv in (layer for layer in encoder.convs if isinstance(layer, nn.Conv2d)):
        weight = conv.weight.detach()
        off_center = weight.clone()
        off_center[:, :, 1, 1] = 0
        assert (off_center == 0).all() and (conv.bias == 0).all()
        center = weight[:, :, 1, 1]  # orthogonal rows or columns, times sqrt(2), ReLU's gain
        product = center @ center.T if center.shape[0] <= center.shape[1] else center.T @ center
        torch.testing.assert_close(product, 2 * torch.eye(len(product)), atol=1e-5, rtol=0)
    linear = encoder.linear.weight.detach()
    torch.testing.assert_close(linear @ linear.T, torch.eye(50), atol=1e-5, rtol=0)
    assert (encoder.linear.bias == 0).all()


def test_atari_encoder() -> None:
    encoder = AtariEncoder()
    pixels = torch.randint(256, (5, 4, 84, 84), dtype=torch.uint8)
    plain = nn.functional.conv2d(pixels / 255, encoder.convs[0].weight, encoder.convs[0].bias, stride=5).relu()
    plain = nn.functional.conv2d(plain, encoder.convs[2].weight, encoder.convs[2].bias, stride=5).relu()
    assert encoder.feature_dim == 576
    torch.testing.assert_close(encoder(pixels), plain.flatten(1))
    assert AtariEncoder(feature_dim=128)(pixels).shape == (5, 128)
    assert AtariEncoder(image_size=64)(pixels[..., :64, :64]).shape == (5, 64 * 2 * 2)


def test_nature_encoder() -> None:
    encoder = AtariEncoder(architecture="nature")
    pixels = torch.randint(256, (5, 4, 84, 84), dtype=torch.uint8)
    plain = pixels / 255
    # Kernel size, stride, channels, and the side that remains.
    for layer, (size, stride, channels, side) in zip(
        (0, 2, 4), ((8, 4, 32, 20), (4, 2, 64, 9), (3, 1, 64, 7)), strict=True
    ):
        weight = encoder.convs[layer].weight
        assert weight.shape[2:] == (size, size)
        plain = nn.functional.conv2d(plain, weight, encoder.convs[layer].bias, stride=stride).relu()
        assert plain.shape == (5, channels, side, side)
    assert encoder.num_features == encoder.feature_dim == 3136
    torch.testing.assert_close(encoder(pixels), plain.flatten(1))


@pytest.mark.parametrize(("architecture", "smallest", "layers"), [("data_efficient", 25, 2), ("nature", 36, 3)])
def test_smallest_images(architecture: str, smallest: int, layers: int) -> None:
    encoder = AtariEncoder(2, smallest, architecture=architecture)
    assert encoder(torch.zeros(3, 2, smallest, smallest)).shape == (3, 64)
    message = f"image_size={smallest - 1} is too small for {layers} convolutions; it must be at least {smallest}"
    with pytest.raises(ValueError, match=message):
        AtariEncoder(2, smallest - 1, architecture=architecture)


@pytest.mark.parametrize("encoder", [PixelEncoder(9, 32, num_filters=4), AtariEncoder(9, 32)], ids=["Pixel", "Atari"])
def test_leading_dimensions_and_dtypes(encoder: nn.Module) -> None:
    pixels = torch.randint(256, (2, 3, 9, 32, 32), dtype=torch.uint8)
    expected = encoder(pixels)
    torch.testing.assert_close(encoder(pixels[0, 0]), expected[0, 0])
    torch.testing.assert_close(encoder(pixels.float() / 255), expected)
    torch.testing.assert_close(encoder(pixels.double() / 255), expected)  # augmentations may return any float
    assert encoder(pixels[:0]).shape == (0, *expected.shape[1:])
    expected.sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"pixels must be \[\*, 9, 84, 84\]; got \(2, 9, 100, 100\)"):
        PixelEncoder(9)(torch.zeros(2, 9, 100, 100, dtype=torch.uint8))
    with pytest.raises(ValueError, match="must be uint8 or floating point; got torch.int64"):
        PixelEncoder(9)(torch.zeros(2, 9, 84, 84, dtype=torch.int64))
    with pytest.raises(ValueError, match="image_size=9 is too small for 4 convolutions; it must be at least 15"):
        PixelEncoder(9, 9)
    with pytest.raises(ValueError, match="feature_dim=0"):
        PixelEncoder(9, feature_dim=0)
    with pytest.raises(TypeError, match=r"num_filters=1\.5"):
        PixelEncoder(9, num_filters=1.5)
    with pytest.raises(ValueError, match=r"architecture='resnet'; choose one of \['data_efficient', 'nature'\]"):
        AtariEncoder(architecture="resnet")
    with pytest.raises(ValueError, match="feature_dim=0"):
        AtariEncoder(feature_dim=0)
