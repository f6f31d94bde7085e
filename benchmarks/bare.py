"""The lower limit of the time of CURL's step on Atari: convolutions, matrix products, Adam and the momentum copy only.

There is no sampling, no augmentation, no projection of the target, no noise, no check and no module: the result is the
time of torch's kernels, which is the lower limit for every program that uses them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

LAYERS = {"value_in": (576, 256), "value_out": (256, 51), "advantage_in": (576, 256), "advantage_out": (256, 18 * 51)}


def make_weights() -> dict[str, Tensor]:
    """Draws a network's weights: encoder, dueling head with noisy layers, CURL's projection and bilinear product."""
    weights = {
        "conv_1": 0.05 * torch.randn(32, 4, 5, 5),
        "conv_2": 0.03 * torch.randn(64, 32, 5, 5),
        "project_in": 0.02 * torch.randn(256, 576),
        "project_out": 0.02 * torch.randn(128, 256),
        "bilinear": torch.rand(128, 128),
    }
    for name, (inputs, outputs) in LAYERS.items():
        weights[f"{name}_mu"], weights[f"{name}_sigma"] = (size * torch.randn(outputs, inputs) for size in (0.02, 0.01))
    return {
        name: value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value
        for name, value in weights.items()
    }


def encode(weights: dict[str, Tensor], images: Tensor) -> Tensor:
    hidden = F.conv2d(images, weights["conv_1"], stride=5).relu_()
    return F.conv2d(hidden, weights["conv_2"], stride=5).relu_().flatten(1)


def distributions(weights: dict[str, Tensor], noise: dict[str, Tensor], latent: Tensor) -> Tensor:
    def layer(name: str, inputs: Tensor) -> Tensor:
        return F.linear(inputs, torch.addcmul(weights[f"{name}_mu"], weights[f"{name}_sigma"], noise[name]))

    value = layer("value_out", layer("value_in", latent).relu()).view(-1, 1, 51)
    advantage = layer("advantage_out", layer("advantage_in", latent).relu()).view(-1, 18, 51)
    return F.log_softmax(value + advantage - advantage.mean(1, keepdim=True), -1)


def project(weights: dict[str, Tensor], latent: Tensor) -> Tensor:
    hidden = F.layer_norm(F.linear(latent, weights["project_in"]), (256,)).relu()
    return F.layer_norm(F.linear(hidden, weights["project_out"]), (128,))


def make_step(batch: int = 32) -> tuple[Callable[[], None], int]:
    """Returns a step, and how many parameters it trains."""
    online, target, momentum = make_weights(), make_weights(), make_weights()
    trained = [weight.requires_grad_() for weight in online.values()]
    noise = {name: torch.randn(outputs, inputs) for name, (inputs, outputs) in LAYERS.items()}
    pixels = torch.randint(256, (4, batch, 84, 84, 4), dtype=torch.uint8).movedim(-1, 2)
    actions, support, rows = torch.randint(18, (batch,)), torch.linspace(-10, 10, 51), torch.arange(batch)
    adam = torch.optim.Adam(trained, lr=1e-4, eps=1.5e-4, fused=True)

    def step() -> None:
        now, following, query, key = (images.float().div_(255) for images in pixels)
        with torch.no_grad():
            best = (distributions(online, noise, encode(online, following)).exp() * support).sum(-1).argmax(-1)
            wanted = distributions(target, noise, encode(target, following))[rows, best].exp()
            keys = project(momentum, encode(momentum, key))
        chosen = distributions(online, noise, encode(online, now))[rows, actions]
        logits = project(online, encode(online, query)) @ online["bilinear"] @ keys.T
        loss = F.cross_entropy(logits, rows) - (wanted * chosen).sum(-1).mean()
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 10)
        adam.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(momentum.values()), trained, 0.001)

    return step, sum(weight.numel() for weight in trained)
