"""Agents: networks, losses, optimizers, acting and the update of one RL algorithm, together."""

from mcurl_torchrl.agents.agent import Agent
from mcurl_torchrl.agents.rainbow import RainbowAgent
from mcurl_torchrl.agents.sac import SACAgent

__all__ = ["Agent", "RainbowAgent", "SACAgent"]
