"""The PPO recipe's updates against the published ones, written out in plain PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Categorical

from mcurl_torchrl.agents import PPOAgent
from recipes.ppo_mcurl import make_agent, make_replay
from tests.recipes import running
from tests.recipes.plain_ppo import MAX_NORM, Agent, Params, advantages
from tests.recipes.test_rainbow_update import (  # noqa: F401 (a fixture)
    Parts,
    assert_close,
    below,
    double_precision,
    draw_views,
    flat,
    images,
)

ENVS, LENGTH, ACTIONS, SIZE, WARMUP, TOTAL = 2, 6, 3, 50, 3, 36
MINIBATCH, EPOCHS = 5, 2
SMALL = [f"env.image_size={SIZE}", "ppo.architecture=data_efficient", "ppo.hidden_dim=16", f"ppo.num_envs={ENVS}"]
SMALL += [
    f"ppo.rollout_len={LENGTH}",
    f"ppo.minibatch_size={MINIBATCH}",
    f"ppo.epochs={EPOCHS}",
    f"total_env_steps={TOTAL}",
]
MCURL = [f"objective.warmup_updates={WARMUP}", "objective.dropout=0", "objective.feature_dim=8"]
MCURL += ["objective.slice_len=5"]
SMALL += [f"ppo.max_gradient_norm={MAX_NORM}"]  # above some of the gradients; the published 0.5 is below all of them


class OneSpec:
    """The part of an environment that make_agent reads."""

    observation_spec = {"pixels": torch.empty(4, SIZE, SIZE)}
    action_spec = Categorical(ACTIONS)


@pytest.fixture(params=["ppo", "mcurl"])
def algo(request: pytest.FixtureRequest) -> str:
    return request.param


def draw_rollout() -> tuple[TensorDict, Params]:
    """Draws steps: one environment terminates once, the other is truncated once, both go on after the rollout."""
    terminated = torch.zeros(ENVS, LENGTH, 1, dtype=torch.bool)
    truncated = torch.zeros_like(terminated)
    terminated[0, 3], truncated[1, 2] = True, True
    pixels = images(ENVS, LENGTH)
    next_pixels = images(ENVS, LENGTH)
    next_pixels[:, :-1] = pixels[:, 1:]
    next_pixels[0, 3], next_pixels[1, 2] = images(1)[0], images(1)[0]  # the last observation of an episode
    plain = {
        "pixels": pixels,
        "next_pixels": next_pixels,
        "action": torch.randint(ACTIONS, (ENVS, LENGTH)),
        "reward": torch.randn(ENVS, LENGTH, 1),
        "terminated": terminated,
        "done": terminated | truncated,
    }
    following = {"pixels": next_pixels, "truncated": truncated, "reward": plain["reward"]}
    following |= {name: plain[name] for name in ("terminated", "done")}
    return TensorDict({"pixels": pixels, "action": plain["action"], "next": following}, [ENVS, LENGTH]), plain


def parts_of(agent: PPOAgent) -> tuple[Parts, Parts]:
    """Returns the parameters themselves, by part: online, and of the momentum copies."""
    named = flat(agent.policy.named_parameters())
    online = {part: below(f"{part}.", named) for part in ("encoder", "hidden", "head")}
    online["critic"] = flat(agent.losses.critic.module.named_parameters())
    assert sum(len(params) for params in online.values()) == len(list(agent.losses.parameters()))
    contrastive = getattr(agent.task, "loss_module", None)
    if contrastive is None:
        return online, {}
    own, copied = (
        flat(params.flatten_keys(".").items())
        for params in (contrastive.encoder_network_params, contrastive.target_encoder_network_params)
    )
    online["projection"] = below("projection.", own)
    online["context"] = flat(contrastive.context_network_params.flatten_keys(".").items())
    return online, {part: below(f"{part}.", copied) for part in ("encoder", "projection")}


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The orders in which steps are learned from, as they are drawn."""
    drawn: list[torch.Tensor] = []
    randperm = torch.randperm

    def kept(count: int) -> torch.Tensor:
        drawn.append(randperm(count))
        return drawn[-1]

    monkeypatch.setattr(torch, "randperm", kept)
    return drawn


@pytest.mark.usefixtures("double_precision")
def test_updates_equal_the_published_ones(algo: str, orders: list[torch.Tensor]):
    cfg = running.settings(*SMALL, f"algo={algo}", *(MCURL if algo == "mcurl" else []), recipe="ppo_mcurl")
    agent = make_agent(cfg, OneSpec, make_replay(cfg, Path("unused")), torch.device("cpu"))
    networks = parts_of(agent)
    tensors = [value for parts in networks for params in parts.values() for value in params.values()]
    for tensor in tensors:  # zeros, ones and copies that are equal would hide mistakes
        tensor.add_(0.1 * torch.randn(tensor.shape))
    plain = Agent(*networks, warmup=WARMUP)
    before = [tensor.clone() for tensor in tensors]

    clipped, norms = [], []
    for number in range(3):
        agent.begin_step((number + 1) * ENVS * LENGTH)
        rollout, plain_rollout = draw_rollout()
        expected = plain.estimate(plain_rollout)
        orders.clear()
        for place, batch in enumerate(agent.minibatches(rollout)):
            chosen = orders[-1].split(MINIBATCH)[place % 3]
            plain_batch = {name: column[chosen] for name, column in expected.items()}
            assert torch.equal(batch["pixels"], plain_batch["pixels"])
            assert_close("advantage", batch["advantage"][:, 0], plain_batch["advantage"])
            views, plain_views = draw_views("rainbow" if algo == "ppo" else algo, batch)
            metrics = agent.update(batch, views, measure=True)
            for name, value in plain.update(plain_batch, plain_views, scale=1 - number / 3).items():
                assert_close(name, metrics[name], value)
            clipped.append(float(metrics["clip_fraction"]))
            norms.append(float(metrics["gradient_norm"]))
        for _ in range(2 if algo == "mcurl" else 0):  # the auxiliary phase: the task alone
            views, plain_views = draw_views(algo, rollout[:, 0])
            expected_loss = plain.update_auxiliary(plain_views)
            assert_close("loss", agent.update_auxiliary(views)["loss_auxiliary"], expected_loss.detach())
        assert len(orders) == EPOCHS and not torch.equal(orders[0], orders[1])
    assert len(norms) == 3 * agent.updates_due(TOTAL)
    assert min(clipped) == 0 < max(clipped)
    assert min(norms) < MAX_NORM < max(norms)
    for which, parts, expected_parts in zip(
        ("online", "momentum"), networks, (plain.online, plain.momentum), strict=True
    ):
        for part, params in parts.items():
            for name, tensor in params.items():
                assert_close(f"{which} {part} {name}", tensor, expected_parts[part][name])
    assert not any(torch.equal(tensor, old) for tensor, old in zip(tensors, before, strict=True))


def test_plain_advantages_by_hand():
    """Three steps of reward 1 and values 0: errors of 1, discounted by 0.9405 a step, and bootstraps of 10."""
    values, following = [0.0, 0.0, 0.0], [0.0, 10.0, 10.0]
    ended = [False, True, False]
    # The second step terminates: nothing follows it. The third goes on after the rollout: 1 + 0.99 * 10.
    assert advantages([1.0] * 3, values, following, ended, ended) == pytest.approx([1 + 0.9405, 1.0, 10.9])
    # The second is truncated: its episode goes on, unseen, with 0.99 * 10, but not with the third step.
    assert advantages([1.0] * 3, values, following, [False] * 3, ended) == pytest.approx(
        [1 + 0.9405 * 10.9, 10.9, 10.9]
    )
