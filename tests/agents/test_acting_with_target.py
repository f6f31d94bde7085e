"""Rainbow that acts with its target network: in training, in evaluations, in workers, and after a checkpoint."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mcurl_torchrl.agents import RainbowAgent
from mcurl_torchrl.training import Checkpoints, RunDirectory
from tests.agents.test_resets import KEEP, SIZE, make_buffer, make_rainbow, take_updates
from tests.recipes import running
from tests.recipes.test_resume import assert_same_run, states_of

PIXELS = torch.randint(256, (64, 1, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))

CATCH = ["env=gym", "env.id=tests.learning.catch:Catch-v0", "env.num_frames=2", "env.image_size=25"]


def make(**options) -> RainbowAgent:
    torch.manual_seed(0)
    return make_rainbow(make_buffer(discrete=True), **{"target_tau": 0.1, "act_with_target": True, **options})


@torch.no_grad()
def prefer(bias: Tensor, action: int) -> None:
    """Makes the highest return of an action likely."""
    returns = bias.view(3, 3)  # of each action
    returns.zero_()
    returns[action, -1] = 20.0


def quiet(agent: RainbowAgent) -> None:
    """Sets the noise of all networks to 0."""
    buffers = [*agent.value.named_buffers(), *agent.policy.named_buffers(), *agent.value.value_network.named_buffers()]
    for name, value in buffers:
        if name.endswith(("noise_in", "noise_out")):
            value.zero_()


@pytest.mark.parametrize("act_with_target", [False, True])
def test_it_explores_and_is_evaluated_with_the_chosen_network(act_with_target: bool) -> None:
    agent = make(act_with_target=act_with_target)
    for change in (
        lambda: None,
        lambda: take_updates(agent, make_buffer(discrete=True), 2),
        lambda: agent.reset(KEEP),
    ):
        change()
        quiet(agent)
        prefer(agent.value.value_network.head.advantage[-1].bias_mu, 0)
        prefer(agent.value.target_value_network_params["head", "advantage", "2", "bias_mu"], 1)
        expected = torch.full([len(PIXELS)], 1 if act_with_target else 0)
        assert torch.equal(agent.explore(PIXELS), expected)
        assert torch.equal(agent.exploit(PIXELS), expected)
        worker = agent.explorer.for_worker()
        worker.acts_alone = False  # in a worker it would draw noise
        assert torch.equal(worker(PIXELS), expected)
    agent.value.copy_to_target()
    assert (agent.explore(PIXELS) == 0).all()


def test_the_network_that_acts_follows_a_restored_checkpoint() -> None:
    ours, other = make(), make()
    take_updates(other, make_buffer(discrete=True), 3)
    states = copy.deepcopy({name: part.state_dict() for name, part in {**parts(other), "policy": other.policy}.items()})
    for name, part in {**parts(ours), "policy": ours.policy}.items():
        part.load_state_dict(states[name])
    target = dict(ours.value.target_value_network_params.flatten_keys(".").items())
    for agent in (ours, other):
        torch.manual_seed(1)
        take_updates(agent, make_buffer(discrete=True), 2)
    for name, value in ours.policy.network.named_parameters():
        assert torch.equal(value, other.policy.network.get_parameter(name))
        assert torch.equal(value, target[name]), name


def parts(agent: RainbowAgent) -> dict:
    return {name: part for name, part in agent.components().items() if hasattr(part, "load_state_dict")}


def test_the_noise_that_acts_is_drawn_at_each_step() -> None:
    agent = make()

    def noises() -> list[list[float]]:
        own = dict(agent.policy.network.named_buffers())["head.value.0.noise_in"]
        online = dict(agent.value.value_network.named_buffers())["head.value.0.noise_in"]
        target = agent.value.target_value_network_params["head", "value", "0", "noise_in"]
        return [noise.tolist() for noise in (own, online, target)]

    agent.begin_step(1)
    first = noises()
    agent.begin_step(2)
    second = noises()
    assert first[0] != second[0] and first[1] != second[1] and second[0] != second[1]
    assert first[2] == second[2] != second[0]  # the target's is for its updates


def test_the_optimizer_has_the_network_that_learns() -> None:
    agent = make()
    group = agent.optimizer.param_groups[0]["params"]
    assert {id(value) for value in group} == {id(value) for value in agent.value.value_network.parameters()}
    assert not any(value.requires_grad for value in agent.policy.parameters())


def test_a_run_keeps_the_network_that_acted_and_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    chosen = [*running.SMALL, *CATCH, "algo=rainbow", "total_env_steps=80", "evaluation.interval_env_steps=40"]
    chosen += ["rainbow.act_with_target=true", "rainbow.target_tau=0.05", "rainbow.updates_per_agent_step=2"]
    chosen += ["resets.interval_updates=40", "checkpoint.interval_agent_steps=20", "checkpoint.keep_last=9"]
    whole = running.train(tmp_path / "whole", *chosen, recipe="rainbow_mcurl")
    states = states_of(whole.path)
    weights = {name: value for name, value in states["policy"].items() if "noise" not in name}
    for name, value in weights.items():
        assert torch.equal(value, states["value"][name.replace("network", "target_value_network_params", 1)]), name
        if not name.endswith("support"):
            assert not torch.equal(value, states["value"][name.replace("network", "value_network_params", 1)]), name
    assert len(weights) > 10

    killed = RunDirectory(shutil.copytree(whole.path, tmp_path / "killed"))
    for checkpoint in Checkpoints(killed.checkpoints).list():
        if checkpoint.step > 60:  # a reset was after step 59, and one comes after step 79
            shutil.rmtree(checkpoint.path) if checkpoint.path.is_dir() else checkpoint.path.unlink()
    resumed = running.train(killed.path, *chosen, f"resume='{killed.path}'", recipe="rainbow_mcurl")
    assert_same_run(resumed, whole)
    assert [entry["step"] for entry in resumed.read_manifest()["resumed"]] == [60]
