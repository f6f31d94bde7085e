"""The published update of M-CURL with SAC, written out in plain PyTorch: one function, no class of the package.

Parameters are in dictionaries by part; noise comes from outside, in the order in which it is used. Written from the
description of the method; what is particular (who gets which latent, what is detached, who steps when) is spelled out.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

Params = dict[str, Tensor]


def convs(params: Params, pixels: Tensor) -> Tensor:
    images = pixels.to(torch.get_default_dtype()) / 255
    layer = 0
    while f"convs.{layer}.weight" in params:
        stride = 2 if layer == 0 else 1
        images = F.relu(F.conv2d(images, params[f"convs.{layer}.weight"], params[f"convs.{layer}.bias"], stride=stride))
        layer += 2
    return images.reshape(len(images), -1)


def encode(params: Params, pixels: Tensor) -> Tensor:
    latent = F.linear(convs(params, pixels), params["linear.weight"], params["linear.bias"])
    return F.layer_norm(latent, latent.shape[-1:], params["norm.weight"], params["norm.bias"])


def project_for_actor(params: Params, features: Tensor) -> Tensor:
    latent = F.linear(features, params["projection.0.weight"], params["projection.0.bias"])
    return F.layer_norm(latent, latent.shape[-1:], params["projection.1.weight"], params["projection.1.bias"])


def three_layers(params: Params, prefix: str, inputs: Tensor) -> Tensor:
    hidden = inputs
    for layer in (0, 2):
        hidden = F.relu(F.linear(hidden, params[f"{prefix}{layer}.weight"], params[f"{prefix}{layer}.bias"]))
    return F.linear(hidden, params[f"{prefix}4.weight"], params[f"{prefix}4.bias"])


def act(params: Params, latent: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = three_layers(params, "head.layers.", latent).chunk(2, dim=-1)
    log_std = -10 + 0.5 * (2 - -10) * (torch.tanh(log_std) + 1)
    raw = mean + log_std.exp() * noise
    action = torch.tanh(raw)
    log_prob = (-0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1, keepdim=True)
    # The released code adds 1e-6 to the argument of the logarithm, against its overflow; TorchRL computes it exactly.
    return action, log_prob - torch.log(1 - action**2).sum(-1, keepdim=True)


def both_q(params: list[Params], latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    inputs = torch.cat([latent, action], dim=-1)
    return three_layers(params[0], "layers.", inputs), three_layers(params[1], "layers.", inputs)


def transform(params: Params, latents: Tensor, num_layers: int) -> Tensor:
    """The context Transformer, one head, post-LN, no output projection, dropout off."""
    length, width = latents.shape[1:]
    places = torch.arange(length)[:, None] * torch.exp(-torch.arange(0, width, 2) * (math.log(10000) / width))
    positions = torch.zeros(length, width)
    positions[:, 0::2], positions[:, 1::2] = places.sin(), places.cos()
    x = latents + positions
    for layer in range(num_layers):
        mine = f"layers.{layer}."
        own = {name.removeprefix(mine): value for name, value in params.items() if name.startswith(mine)}
        q, k, v = F.linear(x, own["in_projection.weight"], own["in_projection.bias"]).chunk(3, dim=-1)
        weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(width), dim=-1)
        x = F.layer_norm(x + weights @ v, (width,), own["attention_norm.weight"], own["attention_norm.bias"])
        hidden = F.relu(F.linear(x, own["ffn_in.weight"], own["ffn_in.bias"]))
        x = x + F.linear(hidden, own["ffn_out.weight"], own["ffn_out.bias"])
        x = F.layer_norm(x, (width,), own["ffn_norm.weight"], own["ffn_norm.bias"])
    return x


class Agent:
    """The parameters, their targets and their optimizers; ``update`` is the published update."""

    def __init__(
        self, encoder: Params, actor: Params, critics: list[Params], context: Params, *, lr: float, warmup: int
    ) -> None:
        def own(params: Params) -> Params:
            return {name: value.detach().clone().requires_grad_() for name, value in params.items()}

        self.encoder, self.actor, self.context = own(encoder), own(actor), own(context)
        self.critics = [own(critic) for critic in critics]
        self.target_encoder = {name: value.detach().clone() for name, value in encoder.items()}
        self.target_critics = [{name: value.detach().clone() for name, value in critic.items()} for critic in critics]
        self.log_alpha = torch.tensor(math.log(0.1), requires_grad=True)
        adam = torch.optim.Adam
        critic_params = [*self.encoder.values(), *self.critics[0].values(), *self.critics[1].values()]
        self.critic_adam = adam(critic_params, lr=lr, betas=(0.9, 0.999))
        self.actor_adam = adam(self.actor.values(), lr=lr, betas=(0.9, 0.999))
        self.alpha_adam = adam([self.log_alpha], lr=1e-4, betas=(0.5, 0.999))
        self.contrastive_encoder_adam = adam(self.encoder.values(), lr=2 * lr)
        self.context_adam = adam(self.context.values(), lr=lr)
        self.lr, self.warmup, self.contrastive_updates = lr, warmup, 0

    def update(self, step: int, batch: dict[str, Tensor], slices: dict[str, Tensor], noises: list[Tensor]) -> None:
        noises = list(noises)
        self.update_critic(batch, noises.pop(0))
        if step % 2 == 0:
            self.update_actor_and_alpha(batch, noises.pop(0))
            self.update_targets()
        self.update_contrastive(slices)

    def update_critic(self, batch: dict[str, Tensor], noise: Tensor) -> None:
        with torch.no_grad():
            latent = project_for_actor(self.actor, convs(self.encoder, batch["next_pixels"]))
            action, log_prob = act(self.actor, latent, noise)
            q1, q2 = both_q(self.target_critics, encode(self.target_encoder, batch["next_pixels"]), action)
            value = torch.min(q1, q2) - self.log_alpha.exp() * log_prob
            target = batch["reward"] + 0.99 * (~batch["terminated"]) * value
        q1, q2 = both_q(self.critics, encode(self.encoder, batch["pixels"]), batch["action"])
        loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)
        self.critic_adam.zero_grad()
        loss.backward()
        self.critic_adam.step()

    def update_actor_and_alpha(self, batch: dict[str, Tensor], noise: Tensor) -> None:
        features = convs(self.encoder, batch["pixels"]).detach()
        action, log_prob = act(self.actor, project_for_actor(self.actor, features), noise)
        q1, q2 = both_q(self.critics, encode(self.encoder, batch["pixels"]).detach(), action)
        loss = (self.log_alpha.exp().detach() * log_prob - torch.min(q1, q2)).mean()
        self.actor_adam.zero_grad()
        loss.backward()
        self.actor_adam.step()
        target_entropy = -batch["action"].shape[-1]
        alpha_loss = (self.log_alpha.exp() * (-log_prob - target_entropy).detach()).mean()
        self.alpha_adam.zero_grad()
        alpha_loss.backward()
        self.alpha_adam.step()

    @torch.no_grad()
    def update_targets(self) -> None:
        pairs = [(self.encoder, self.target_encoder, 0.05)]
        pairs += [(self.critics[number], self.target_critics[number], 0.01) for number in (0, 1)]
        for online, target, tau in pairs:
            for name in target:
                target[name] = tau * online[name].detach() + (1 - tau) * target[name]

    def update_contrastive(self, slices: dict[str, Tensor]) -> None:
        scale = 5e-4 + (1 - 5e-4) * self.contrastive_updates / self.warmup
        encoder_scale = 1.0
        if self.contrastive_updates >= self.warmup:
            scale = encoder_scale = math.sqrt(self.warmup / self.contrastive_updates)
        self.context_adam.param_groups[0]["lr"] = scale * self.lr
        self.contrastive_encoder_adam.param_groups[0]["lr"] = encoder_scale * 2 * self.lr
        query, key, masked = slices["query"], slices["key"], slices["masked"]
        number, length = masked.shape
        latents = encode(self.encoder, query.flatten(0, 1)).unflatten(0, (number, length))
        num_layers = 1 + max(int(name.split(".")[1]) for name in self.context if name.startswith("layers."))
        queries = transform(self.context, latents, num_layers).flatten(0, 1)
        with torch.no_grad():
            keys = encode(self.target_encoder, key.flatten(0, 1))
        loss = F.cross_entropy((queries @ keys.T)[masked.flatten()], torch.arange(number * length)[masked.flatten()])
        self.contrastive_encoder_adam.zero_grad()
        self.context_adam.zero_grad()
        loss.backward()
        self.contrastive_encoder_adam.step()
        self.context_adam.step()
        self.contrastive_updates += 1
