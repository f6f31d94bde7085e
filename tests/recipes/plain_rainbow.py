"""The published update of M-CURL with data-efficient Rainbow, written out in plain PyTorch: no class of the package.

Parameters are in dictionaries by part, noise comes from outside. Written from the description of the method; what is
particular (who chooses the next action, what is detached, what is clipped, who steps when) is spelled out.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

Params = dict[str, Tensor]
Noise = dict[str, tuple[Tensor, Tensor]]  # by layer: of its inputs, of its outputs

GAMMA, LOWEST, HIGHEST = 0.99, -10.0, 10.0
LR, BETA1, BETA2, EPS, MAX_NORM = 1e-4, 0.9, 0.999, 1.5e-4, 10.0
MOMENTUM, CURL_LOGITS, WARMUP_BEGIN = 0.001, 0.1, 5e-4


def convs(params: Params, pixels: Tensor) -> Tensor:
    images = pixels.double() / 255
    for layer in (0, 2):
        images = F.relu(F.conv2d(images, params[f"convs.{layer}.weight"], params[f"convs.{layer}.bias"], stride=5))
    return images.reshape(len(images), -1)


def noisy(params: Params, layer: str, noise: Noise, inputs: Tensor) -> Tensor:
    of_inputs, of_outputs = noise[layer]
    weight = params[f"{layer}.weight_mu"] + params[f"{layer}.weight_sigma"] * of_outputs[:, None] * of_inputs[None, :]
    bias = params[f"{layer}.bias_mu"] + params[f"{layer}.bias_sigma"] * of_outputs
    return inputs @ weight.T + bias


def distributions(encoder: Params, head: Params, noise: Noise, pixels: Tensor, num_atoms: int) -> Tensor:
    """Log-probabilities [B, actions, atoms]."""
    features = convs(encoder, pixels)
    value = noisy(head, "value.2", noise, F.relu(noisy(head, "value.0", noise, features)))
    advantage = noisy(head, "advantage.2", noise, F.relu(noisy(head, "advantage.0", noise, features)))
    advantage = advantage.reshape(len(pixels), -1, num_atoms)
    logits = value[:, None, :] + advantage - advantage.mean(1, keepdim=True)
    return logits - logits.exp().sum(-1, keepdim=True).log()


def project(probabilities: Tensor, reward: float, discount: float, support: list[float]) -> Tensor:
    """The distribution of ``reward + discount * return`` on the support, an atom at a time."""
    projected = torch.zeros(len(support), dtype=torch.float64)
    for probability, value in zip(probabilities, support, strict=True):
        shifted = min(max(reward + discount * value, LOWEST), HIGHEST)
        place = (shifted - LOWEST) / (HIGHEST - LOWEST) * (len(support) - 1)
        below = math.floor(place)
        projected[below] += probability * (below + 1 - place)
        if place > below:
            projected[below + 1] += probability * (place - below)
    return projected


def normalize(inputs: Tensor) -> Tensor:
    """LayerNorm without parameters."""
    mean = inputs.mean(-1, keepdim=True)
    return (inputs - mean) / (((inputs - mean) ** 2).mean(-1, keepdim=True) + 1e-5).sqrt()


def linear(params: Params, layer: str, inputs: Tensor) -> Tensor:
    return inputs @ params[f"{layer}.weight"].T + params[f"{layer}.bias"]


def norm(params: Params, layer: str, inputs: Tensor) -> Tensor:
    return normalize(inputs) * params[f"{layer}.weight"] + params[f"{layer}.bias"]


def encode_for_mcurl(encoder: Params, projection: Params, pixels: Tensor) -> Tensor:
    """The features as they are or, where there is a projection, after a linear layer and LayerNorm."""
    features = convs(encoder, pixels)
    return norm(projection, "1", linear(projection, "0", features)) if projection else features


def encode_for_curl(encoder: Params, projection: Params, pixels: Tensor) -> Tensor:
    hidden = F.relu(normalize(linear(projection, "0", convs(encoder, pixels))))
    return normalize(linear(projection, "3", hidden))


def transform(params: Params, latents: Tensor) -> Tensor:
    """The context Transformer, two layers, one head, post-LN, no output projection, dropout off."""
    length, width = latents.shape[1:]
    positions = torch.zeros(length, width, dtype=torch.float64)
    for time in range(length):
        for place in range(width):
            angle = time / 10000 ** (place // 2 * 2 / width)
            positions[time, place] = math.sin(angle) if place % 2 == 0 else math.cos(angle)
    x = latents + positions
    for layer in ("layers.0", "layers.1"):
        q, k, v = linear(params, f"{layer}.in_projection", x).chunk(3, dim=-1)
        attention = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(width), dim=-1)
        x = norm(params, f"{layer}.attention_norm", x + attention @ v)
        x = x + linear(params, f"{layer}.ffn_out", F.relu(linear(params, f"{layer}.ffn_in", x)))
        x = norm(params, f"{layer}.ffn_norm", x)
    return x


def info_nce(logits: Tensor, asked: Tensor) -> Tensor:
    """The mean cross entropy of the masked queries; the key of a query has the same index."""
    entropies = logits.exp().sum(-1).log() - logits.diagonal()
    return entropies[asked].mean()


def copy(params: Params) -> Params:
    return {name: value.detach().clone() for name, value in params.items()}


class Agent:
    """The parameters, their copies and what Adam keeps of them; ``update`` is the published update.

    Args:
        online: by part: "encoder" and "head"; with a contrastive loss "projection", which may be empty for M-CURL; for
            M-CURL "context"; for CURL "bilinear", with "W".
        target: "encoder" and "head".
        momentum: with a contrastive loss "encoder" and "projection"; for sym-CURL "context".
        algo: mcurl, sym_curl, curl, seq_curl or rainbow.
        coeff: the weight of the contrastive loss.
        warmup: for how many updates the learning rate of what only M-CURL has grows.
    """

    def __init__(
        self,
        online: dict[str, Params],
        target: dict[str, Params],
        momentum: dict[str, Params],
        *,
        algo: str,
        num_atoms: int,
        coeff: float,
        warmup: int,
    ) -> None:
        self.online = {
            part: {name: value.requires_grad_() for name, value in copy(params).items()}
            for part, params in online.items()
        }
        self.target = {part: copy(params) for part, params in target.items()}
        self.momentum = {part: copy(params) for part, params in momentum.items()}
        self.first_moment = {
            part: {name: torch.zeros_like(value) for name, value in copy(params).items()}
            for part, params in online.items()
        }
        self.second_moment = {part: copy(moments) for part, moments in self.first_moment.items()}
        self.algo, self.coeff, self.warmup = algo, coeff, warmup
        self.support = [LOWEST + (HIGHEST - LOWEST) * atom / (num_atoms - 1) for atom in range(num_atoms)]
        self.updates = 0

    def update(self, batch: Params, views: Params, noise: Noise, target_noise: Noise) -> dict[str, Tensor]:
        """Takes one update; returns each sample's priority, and the losses."""
        entropies, q_mean, q_target_mean = self.cross_entropies(batch, noise, target_noise)
        value_loss = (batch["weight"] * entropies).mean()
        told = {"priority": entropies.detach(), "loss_value": value_loss.detach()}
        told |= {"q_mean": q_mean, "q_target_mean": q_target_mean}
        loss = value_loss
        if self.algo != "rainbow":
            contrastive = self.contrastive_loss(views)
            told["loss_contrastive"] = contrastive.detach()
            loss = loss + self.coeff * contrastive
        told["gradient_norm"] = self.step(loss)
        self.move_momentum()
        return told

    # -- Rainbow's loss ------------------------------------------------------------------------------------------------

    def cross_entropies(self, batch: Params, noise: Noise, target_noise: Noise) -> tuple[Tensor, Tensor, Tensor]:
        atoms = len(self.support)
        support = torch.tensor(self.support, dtype=torch.float64)
        online, target = self.online, self.target
        chosen = distributions(online["encoder"], online["head"], noise, batch["pixels"], atoms)
        with torch.no_grad():
            # The online network, with the noise that it acts with, chooses; the target network says what it is worth.
            judged = distributions(online["encoder"], online["head"], noise, batch["next_pixels"], atoms).exp()
            worth = distributions(target["encoder"], target["head"], target_noise, batch["next_pixels"], atoms).exp()
        entropies, values, targets = [], [], []
        for sample in range(len(chosen)):
            best = int((judged[sample] @ support).argmax())
            discount = 0.0 if batch["terminated"][sample] else GAMMA ** int(batch["steps"][sample])
            aim = project(worth[sample, best], float(batch["reward"][sample]), discount, self.support)
            taken = chosen[sample, int(batch["action"][sample])]
            entropies.append(-sum(aim[atom] * taken[atom] for atom in range(atoms)))
            values.append(taken.detach().exp() @ support)
            targets.append(aim @ support)
        return torch.stack(entropies), torch.stack(values).mean(), torch.stack(targets).mean()

    def copy_to_target(self) -> None:
        self.target = {part: copy(self.online[part]) for part in ("encoder", "head")}

    # -- the contrastive losses ----------------------------------------------------------------------------------------

    def contrastive_loss(self, views: Params) -> Tensor:
        online, momentum = self.online, self.momentum
        if self.algo in ("curl", "seq_curl"):
            queries = encode_for_curl(online["encoder"], online["projection"], views["query"])
            with torch.no_grad():
                keys = encode_for_curl(momentum["encoder"], momentum["projection"], views["key"])
            logits = CURL_LOGITS * (queries @ online["bilinear"]["W"] @ keys.T)
            return info_nce(logits, torch.ones(len(queries), dtype=torch.bool))
        shape = views["masked"].shape  # slices, observations of each
        latents = encode_for_mcurl(online["encoder"], online["projection"], views["query"].flatten(0, 1))
        queries = transform(online["context"], latents.unflatten(0, shape)).flatten(0, 1)
        with torch.no_grad():
            keys = encode_for_mcurl(momentum["encoder"], momentum["projection"], views["key"].flatten(0, 1))
            if self.algo == "sym_curl":
                keys = transform(momentum["context"], keys.unflatten(0, shape)).flatten(0, 1)
        return info_nce(queries @ keys.T, views["masked"].flatten())

    @torch.no_grad()
    def move_momentum(self) -> None:
        for part, params in self.momentum.items():
            for name in params:
                params[name] = MOMENTUM * self.online[part][name] + (1 - MOMENTUM) * params[name]

    # -- the step ------------------------------------------------------------------------------------------------------

    def step(self, loss: Tensor) -> Tensor:
        """One step of Adam on clipped gradients; returns their norm before."""
        places = [(part, name) for part, params in self.online.items() for name in params]
        gradients = torch.autograd.grad(loss, [self.online[part][name] for part, name in places])
        squares = sum(float((gradient**2).sum()) for gradient in gradients)
        size = math.sqrt(squares)
        shrink = min(1.0, MAX_NORM / (size + 1e-6))  # as torch clips, which published agents leave it to
        with torch.no_grad():
            for (part, name), gradient in zip(places, gradients, strict=True):
                self.adam(part, name, gradient * shrink, LR * self.scale(part))
        self.updates += 1
        return torch.tensor(size, dtype=torch.float64)

    def scale(self, part: str) -> float:
        """The share of its learning rate that a part has now: M-CURL's own parts warm up, then decay."""
        if self.algo not in ("mcurl", "sym_curl") or part not in ("context", "projection"):
            return 1.0
        if self.updates < self.warmup:
            return WARMUP_BEGIN + (1 - WARMUP_BEGIN) * self.updates / self.warmup
        return math.sqrt(self.warmup / self.updates)

    def adam(self, part: str, name: str, gradient: Tensor, lr: float) -> None:
        count = self.updates + 1
        first = BETA1 * self.first_moment[part][name] + (1 - BETA1) * gradient
        second = BETA2 * self.second_moment[part][name] + (1 - BETA2) * gradient**2
        self.first_moment[part][name], self.second_moment[part][name] = first, second
        step = (first / (1 - BETA1**count)) / ((second / (1 - BETA2**count)).sqrt() + EPS)
        self.online[part][name] = (self.online[part][name] - lr * step).requires_grad_()
