"""PPO with M-CURL beside it, written out in plain PyTorch: no class of the package, one step after another.

Parameters are in dictionaries by part. Written from the description of the method; what is particular (when an episode
goes on, what is detached, what is clipped, who steps when) is spelled out.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.recipes.plain_rainbow import (
    WARMUP_BEGIN,
    Params,
    convs,
    copy,
    encode_for_mcurl,
    info_nce,
    linear,
    transform,
)

GAMMA, LAMBDA, CLIP, ENTROPY, CRITIC, TEMPERATURE = 0.99, 0.95, 0.1, 0.01, 1.0, 11.3
LR, EPS, MAX_NORM, AUXILIARY_LR, MOMENTUM = 2.5e-4, 1e-5, 40.0, 1e-4, 0.01


def advantages(rewards: list, values: list, next_values: list, terminated: list, done: list) -> list[float]:
    """Generalised advantages of one environment, backwards in time."""
    found, later = [], 0.0
    for time in reversed(range(len(rewards))):
        goes_on = 0.0 if terminated[time] else GAMMA * next_values[time]  # a truncated episode goes on, unseen
        error = rewards[time] + goes_on - values[time]
        later = error + (0.0 if done[time] else GAMMA * LAMBDA * later)
        found.append(later)
    return found[::-1]


class Agent:
    """The parameters, the slow copies and both optimizers.

    Args:
        online: by part: "encoder", "hidden", "head" and "critic"; with M-CURL "projection" and "context".
        momentum: with M-CURL, "encoder" and "projection".
        warmup: for how many updates the learning rate of what only M-CURL has grows.
    """

    def __init__(self, online: dict[str, Params], momentum: dict[str, Params], *, warmup: int) -> None:
        self.online = {
            part: {name: value.requires_grad_() for name, value in copy(params).items()}
            for part, params in online.items()
        }
        self.momentum = {part: copy(params) for part, params in momentum.items()}
        self.warmup, self.updates = warmup, 0
        of_ppo = [value for part in ("encoder", "hidden", "head", "critic") for value in self.online[part].values()]
        self.of_ppo, self.adam = of_ppo, torch.optim.Adam(of_ppo, lr=LR, eps=EPS)
        if momentum:
            own = [value for part in ("projection", "context") for value in self.online[part].values()]
            groups = [{"params": list(self.online["encoder"].values())}, {"params": own}]
            self.auxiliary_adam = torch.optim.Adam(groups, lr=AUXILIARY_LR)

    def latent(self, pixels: Tensor) -> Tensor:
        return F.relu(linear(self.online["hidden"], "0", convs(self.online["encoder"], pixels)))

    def log_probabilities(self, latent: Tensor) -> Tensor:
        logits = latent @ self.online["head"]["weight"].T + self.online["head"]["bias"]
        return logits - logits.exp().sum(-1, keepdim=True).log()

    def value(self, latent: Tensor) -> Tensor:
        return (latent @ self.online["critic"]["weight"].T + self.online["critic"]["bias"])[:, 0]

    @torch.no_grad()
    def estimate(self, rollout: Params) -> Params:
        """What each step is learned from, environment after environment."""
        columns: dict[str, list[Tensor]] = {}
        for env in range(len(rollout["reward"])):
            latent = self.latent(rollout["pixels"][env])
            values, following = self.value(latent), self.value(self.latent(rollout["next_pixels"][env]))
            series = (rollout["reward"][env], values, following, rollout["terminated"][env], rollout["done"][env])
            advantage = torch.tensor(advantages(*(one.flatten().tolist() for one in series)))
            chosen = self.log_probabilities(latent).gather(1, rollout["action"][env][:, None])[:, 0]
            told = {"pixels": rollout["pixels"][env], "action": rollout["action"][env], "log_prob": chosen}
            for name, column in {**told, "advantage": advantage, "target": advantage + values}.items():
                columns.setdefault(name, []).append(column)
        return {name: torch.cat(column) for name, column in columns.items()}

    def update(self, batch: Params, views: Params, scale: float) -> dict[str, Tensor]:
        """One step on PPO's loss at a part ``scale`` of the learning rate and the clipping; then one on M-CURL's."""
        latent = self.latent(batch["pixels"])
        log_probabilities = self.log_probabilities(latent)
        advantage = (batch["advantage"] - batch["advantage"].mean()) / batch["advantage"].std()
        ratio = (log_probabilities.gather(1, batch["action"][:, None])[:, 0] - batch["log_prob"]).exp()
        clipped = ratio.clamp(1 - scale * CLIP, 1 + scale * CLIP)
        objective = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        critic = CRITIC * ((self.value(latent) - batch["target"]) ** 2).mean()
        entropy = -(log_probabilities.exp() * log_probabilities).sum(-1).mean()
        gradients = torch.autograd.grad(objective + critic - ENTROPY * entropy, self.of_ppo)
        norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
        for value, gradient in zip(self.of_ppo, gradients, strict=True):
            value.grad = gradient * min(1.0, MAX_NORM / (norm + 1e-6))
        self.adam.param_groups[0]["lr"] = scale * LR
        self.adam.step()
        told = {"loss_objective": objective, "loss_critic": critic, "entropy": entropy}
        told |= {"clip_fraction": (ratio != clipped).double().mean(), "gradient_norm": torch.tensor(norm)}
        if self.momentum:
            told["loss_auxiliary"] = self.update_auxiliary(views)
        return {name: number.detach() for name, number in told.items()}

    def update_auxiliary(self, views: Params) -> Tensor:
        shape = views["masked"].shape
        latents = encode_for_mcurl(self.online["encoder"], self.online["projection"], views["query"].flatten(0, 1))
        queries = transform(self.online["context"], latents.unflatten(0, shape)).flatten(0, 1)
        with torch.no_grad():
            keys = encode_for_mcurl(self.momentum["encoder"], self.momentum["projection"], views["key"].flatten(0, 1))
        loss = info_nce(queries @ keys.T / TEMPERATURE, views["masked"].flatten())
        self.auxiliary_adam.zero_grad()
        loss.backward()
        rising = WARMUP_BEGIN + (1 - WARMUP_BEGIN) * self.updates / self.warmup
        warm = rising if self.updates < self.warmup else math.sqrt(self.warmup / self.updates)
        self.auxiliary_adam.param_groups[1]["lr"] = warm * AUXILIARY_LR
        self.auxiliary_adam.step()
        self.updates += 1
        with torch.no_grad():
            for part, params in self.momentum.items():
                for name in params:
                    params[name] = MOMENTUM * self.online[part][name] + (1 - MOMENTUM) * params[name]
        return loss
