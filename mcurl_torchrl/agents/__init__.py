"""Agents: networks, losses, optimizers, acting and the update of one RL algorithm, together."""

from mcurl_torchrl.agents.agent import Agent
from mcurl_torchrl.agents.computing import Computing
from mcurl_torchrl.agents.diagnostics import NonFiniteLoss, check_finite, effective_rank, gradient_norm, latent_spread
from mcurl_torchrl.agents.optimizing import optimize
from mcurl_torchrl.agents.ppo import PPOAgent
from mcurl_torchrl.agents.rainbow import RainbowAgent
from mcurl_torchrl.agents.resets import Resets
from mcurl_torchrl.agents.sac import SACAgent

__all__ = [
    "Agent",
    "Computing",
    "NonFiniteLoss",
    "PPOAgent",
    "RainbowAgent",
    "Resets",
    "SACAgent",
    "check_finite",
    "effective_rank",
    "gradient_norm",
    "latent_spread",
    "optimize",
]
