"""Resets: when they happen, which weights are new, which are kept, and what happens to the optimizers' states."""

from __future__ import annotations

import re

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.data import Bounded, Categorical, LazyTensorStorage

from mcurl_torchrl import CategoricalDQNLoss, FrameReplayBuffer, LatentSAC, PrioritizedTransitionSampler
from mcurl_torchrl.agents import Agent, RainbowAgent, Resets, SACAgent
from mcurl_torchrl.modules import GaussianPolicy, MomentumCopy, RainbowPolicy
from mcurl_torchrl.modules.resetting import reset_network, shrink_and_perturb
from mcurl_torchrl.objectives import ContrastiveTask, MaskedContrastiveTask
from mcurl_torchrl.objectives.masked_reconstruction_task import MaskedReconstructionTask
from mcurl_torchrl.objectives.predictive_coding_task import PredictiveCodingTask
from mcurl_torchrl.objectives.self_prediction_task import SelfPredictionTask

SIZE, KEEP = 25, 0.75


def make_buffer(*, discrete: bool) -> FrameReplayBuffer:
    buffer = FrameReplayBuffer(
        storage=LazyTensorStorage(200),
        stacked_input=False,
        batch_size=4,
        sampler=PrioritizedTransitionSampler() if discrete else None,
    )
    frames = torch.randint(256, (41, 1, SIZE, SIZE), dtype=torch.uint8)
    last = torch.arange(40)[:, None] == 39
    outcome = {"pixels": frames[1:], "reward": torch.rand(40, 1), "truncated": last}
    action = torch.randint(3, (40,)) if discrete else torch.rand(40, 2)
    steps = {"pixels": frames[:-1], "action": action, "next": {**outcome, "terminated": torch.zeros_like(last)}}
    buffer.extend(TensorDict(steps, [40]))
    return buffer


def make_rainbow(buffer: FrameReplayBuffer, resets: Resets | None = None, **options) -> RainbowAgent:
    policy = RainbowPolicy([1, SIZE, SIZE], 3, hidden_dim=5, num_atoms=3)
    network = policy.network
    task = SelfPredictionTask(
        network.encoder, buffer, action_spec=Categorical(3), head=network.head, steps_ahead=2, target_tau=0.1
    )
    agent = RainbowAgent(
        policy,
        CategoricalDQNLoss(network),
        task,
        sampler=buffer.sampler,
        random_action=lambda: torch.tensor(0),
        total_agent_steps=100,
        first_update_agent_steps=1,
        **{"target_interval_agent_steps": 1, **options},
    )
    agent.resets = resets  # shorter intervals than use_resets takes
    return agent


def make_sac(
    buffer: FrameReplayBuffer,
    resets: Resets | None = None,
    *,
    warmup_updates: int | None = None,
    critic_tau: float = 0.01,
    **options,
) -> SACAgent:
    policy = GaussianPolicy([1, SIZE, SIZE], 2, num_layers=1, num_filters=2, feature_dim=6, hidden_dim=8)
    losses = LatentSAC(policy, hidden_dim=8, critic_tau=critic_tau)
    sizes = {"num_slices": 2, "slice_len": 4, "target_encoder": losses.target_encoder}
    task = MaskedContrastiveTask(losses.encoder, buffer, **sizes, num_layers=1, warmup_updates=warmup_updates)
    agent = SACAgent(losses, task, random_action=lambda: torch.zeros(2), random_agent_steps=1, **options)
    agent.resets = resets  # shorter intervals than use_resets takes
    return agent


def take_updates(agent: Agent, buffer: FrameReplayBuffer, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        agent.begin_step(agent.first_update_step + number)
        batch = buffer.sample()
        agent.update(batch, agent.task.sample(batch))


def floats(**parts: nn.Module) -> dict[str, Tensor]:
    named = ((f"{part}.{name}", value) for part, module in parts.items() for name, value in module.named_parameters())
    return {name: value.detach().clone() for name, value in named}


def correlation(before: dict[str, Tensor], after: dict[str, Tensor], prefix: str) -> float:
    """How much of the old weights is left, by the matrices of a part."""
    pairs = [(before[name], after[name]) for name in before if name.startswith(prefix) and before[name].ndim > 1]
    old, new = (torch.cat([pair[side].flatten() for pair in pairs]) for side in (0, 1))
    return torch.corrcoef(torch.stack([old, new]))[0, 1].item()


# -- when --------------------------------------------------------------------------------------------------------------


def test_resets_come_at_intervals_and_not_near_the_end():
    due = Resets(10, total_updates=45).due
    assert [update for update in range(46) if due(update)] == [10, 20, 30]
    assert [update for update in range(46) if Resets(10, total_updates=40).due(update)] == [10, 20, 30]
    assert Resets(10).due(10**6) and not Resets(10).due(0)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="interval_updates=30; the last 30 of 50 updates have no reset"):
        Resets(30, total_updates=50)
    with pytest.raises(ValueError, match="keep=1.5; it must be at least 0 and at most 1"):
        Resets(30, keep=1.5)
    with pytest.raises(ValueError, match="interval_updates=0; it must be at least 1"):
        Resets(0)


RAINBOW, POLYAK, SAC = {"target_interval_agent_steps": 30}, {"target_tau": 0.02}, {"critic_tau": 0.1}


@pytest.mark.parametrize(
    ("settings", "updates", "total", "least", "why"),
    [
        (RAINBOW, 1, None, 60, r"two copies to the target network (target_interval_agent_steps=30)"),
        (RAINBOW, 8, None, 480, r"two copies to the target network (target_interval_agent_steps=30)"),
        (POLYAK, 8, None, 100, "twice the 50 updates in which the target network follows (target_tau=0.02)"),
        (POLYAK, 64, None, 640, "10 agent steps"),
        (
            SAC,
            1,
            None,
            40,
            "twice the 20 updates in which actor and target critic follow (actor_interval_updates=2, "
            "target_interval_updates=2, critic_tau=0.1)",
        ),
        (SAC, 8, None, 80, "10 agent steps"),
        (RAINBOW, 1, 101, 50, "half of the run"),
        (SAC, 1, 30, 15, "half of the run"),
    ],
)
def test_resets_too_close_to_each_other_are_refused(
    settings: dict[str, float], updates: int, total: int | None, least: int, why: str
):
    make = make_sac if settings is SAC else make_rainbow
    agent = make(make_buffer(discrete=settings is not SAC), updates_per_agent_step=updates, **settings)
    expected = (
        f"interval_updates={least - 1} with updates_per_agent_step={updates}; it must be at least {least}, {why}: "
    )
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}") as raised:
        agent.use_resets(Resets(least - 1, total_updates=total))
    assert str(raised.value).endswith("networks that are reset sooner learn nothing in between")
    assert agent.resets is None
    agent.use_resets(Resets(least, total_updates=total))
    assert agent.resets is not None


# -- what --------------------------------------------------------------------------------------------------------------


def test_shrink_and_perturb_is_a_mean_of_old_and_new_weights():
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LayerNorm(4))
    nn.init.constant_(network[1].running_mean, 7.0)
    nn.init.constant_(network[2].weight, 5.0)
    before = floats(network=network)
    torch.manual_seed(1)
    expected = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LayerNorm(4))
    torch.manual_seed(1)
    shrink_and_perturb(network, KEEP)
    for (name, value), new in zip(network.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(value.detach(), KEEP * before[f"network.{name}"] + (1 - KEEP) * new.detach())
    assert (network[1].running_mean == 7).all()
    shrink_and_perturb(network, 0.0)
    assert (network[1].running_mean == 0).all() and (network[2].weight == 1).all()


@pytest.mark.parametrize("part", ["encoder", "projection", "head"])
def test_new_weights_are_drawn_as_the_first_ones_were(part: str):
    policy = GaussianPolicy([1, SIZE, SIZE], 2, num_layers=2, num_filters=3, feature_dim=6, hidden_dim=8)
    network = getattr(policy, part)
    before = floats(network=network)
    reset_network(network)
    for name, value in network.named_parameters():
        old, new = before[f"network.{name}"], value.detach()
        if old.ndim == 1:
            assert torch.equal(old, new)  # zero biases, and norms
        else:
            assert not torch.equal(old, new)
            torch.testing.assert_close(new.flatten(1).norm(), old.flatten(1).norm())  # orthogonal, of the same gain


def test_rainbow_keeps_a_part_of_the_encoder_and_nothing_of_the_head():
    torch.manual_seed(0)
    buffer = make_buffer(discrete=True)
    agent = make_rainbow(buffer)
    take_updates(agent, buffer, 3)
    task, network = agent.task, agent.policy.network

    def state() -> dict[str, Tensor]:
        own = floats(encoder=network.encoder, head=network.head, model=task.transition, predictor=task.predictor)
        targets = {
            f"target.{'.'.join(name)}": value.detach().clone()
            for name, value in agent.value.target_value_network_params.items(True, True)
            if "sigma" not in name[-1]
        }
        return own | targets | floats(slow_encoder=task.target_encoder.copy, slow_head=task.target_projection.copy)

    before = state()
    agent.reset(KEEP)
    after = state()
    for part in ("encoder", "model", "target.encoder", "slow_encoder"):
        assert 0.8 < correlation(before, after, part) < 0.999, part
    names = [name for name in before if "sigma" not in name]
    before, after = ({name: values[name] for name in names} for values in (before, after))
    for part in ("head", "predictor", "target.head", "slow_head"):
        assert abs(correlation(before, after, part)) < 0.35, part
    new = agent.policy.network.encoder.convs[0].weight
    target = agent.value.target_value_network_params["encoder", "convs", "0", "weight"]
    assert not torch.equal(new, target)  # the target has a draw of its own


def test_rainbows_adam_remembers_what_stays():
    buffer = make_buffer(discrete=True)
    agent = make_rainbow(buffer, resets=Resets(2, total_updates=10))
    take_updates(agent, buffer, 2)
    kept = [*agent.policy.network.encoder.parameters(), *agent.task.transition.parameters()]
    state = agent.optimizer.state
    assert all(state[value]["step"] == 2 for value in kept)
    new = [*agent.policy.network.head.parameters(), *agent.task.predictor.parameters()]
    assert not any(value in state for value in new)
    take_updates(agent, buffer, 1, first=2)
    assert all(state[value]["step"] == 3 for value in kept)
    assert all(state[value]["step"] == 1 for value in agent.task.predictor.parameters())


def test_sac_keeps_a_part_of_the_encoder_and_nothing_of_actor_and_critics():
    torch.manual_seed(0)
    buffer = make_buffer(discrete=False)
    agent = make_sac(buffer)
    take_updates(agent, buffer, 2)
    losses, policy = agent.losses, agent.policy

    def state() -> dict[str, Tensor]:
        critics = {
            f"{kind}.{'.'.join(name)}": value.detach().clone()
            for kind, params in (
                ("critic", losses.sac.qvalue_network_params),
                ("target_critic", losses.sac.target_qvalue_network_params),
            )
            for name, value in params.items(True, True)
        }
        parts = {"encoder": losses.encoder, "slow": losses.target_encoder.copy, "head": policy.head}
        return critics | floats(**parts, projection=policy.projection, context=agent.task.own_networks()["context"])

    before, alpha = state(), losses.sac.log_alpha.item()
    agent.reset(KEEP)
    after = state()
    for part in ("encoder", "slow"):
        assert 0.8 < correlation(before, after, part) < 0.999, part
    for part in ("critic", "target_critic", "head", "projection", "context"):
        assert abs(correlation(before, after, part)) < 0.35, part
    assert losses.sac.log_alpha.item() == alpha
    weight = after["critic.module.layers.2.weight"]
    eye = torch.eye(8)
    for critic in weight:
        torch.testing.assert_close(critic @ critic.T, eye, atol=1e-5, rtol=0)  # orthogonal, as at first
    assert not torch.equal(weight[0], weight[1])
    assert not torch.equal(weight, after["target_critic.module.layers.2.weight"])
    optimizers = agent.optimizers
    encoder = set(losses.encoder.parameters())
    assert set(optimizers["critic"].state) == encoder == set(optimizers["auxiliary_encoder"].state)
    assert not optimizers["actor"].state and not optimizers["auxiliary"].state and optimizers["alpha"].state
    take_updates(agent, buffer, 2, first=2)


def test_a_frozen_encoder_stays_as_it_is():
    for make, discrete in ((make_rainbow, True), (make_sac, False)):
        agent = make(make_buffer(discrete=discrete))
        encoder = agent.policy.network.encoder if discrete else agent.losses.encoder
        encoder.requires_grad_(False)
        before = floats(encoder=encoder)
        agent.reset(KEEP)
        assert all(torch.equal(value, before[name]) for name, value in floats(encoder=encoder).items())


def test_updates_are_counted_over_steps():
    buffer = make_buffer(discrete=False)
    agent = make_sac(buffer, resets=Resets(4, total_updates=100))
    seen: list[int] = []
    agent.reset = lambda keep: seen.append(agent._update)  # type: ignore[method-assign]
    take_updates(agent, buffer, 9)
    assert seen == [4, 8]


# -- the tasks' own networks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mcurl", "mcurl projected", "curl", "mlr", "cpc"])
def test_every_own_parameter_of_a_task_is_new(name: str):
    torch.manual_seed(0)
    policy = GaussianPolicy([1, SIZE, SIZE], 2, num_layers=1, num_filters=2, feature_dim=6, hidden_dim=8)
    buffer, encoder = make_buffer(discrete=False), policy.encoder
    slices = {"num_slices": 2, "slice_len": 5}
    task = {
        "mcurl": lambda: MaskedContrastiveTask(encoder, buffer, **slices),
        "mcurl projected": lambda: MaskedContrastiveTask(
            encoder, buffer, **slices, projection="linear", feature_dim=7, key_context=True
        ),
        "curl": lambda: ContrastiveTask(encoder, buffer, projection="curl", feature_dim=4, hidden_dim=5),
        "mlr": lambda: MaskedReconstructionTask(
            encoder, buffer, **slices, action_spec=Bounded(-1, 1, shape=(2,)), hidden_dim=9
        ),
        "cpc": lambda: PredictiveCodingTask(encoder, buffer, **slices),
    }[name]()
    own = task.own_parameters()
    with torch.no_grad():
        for value in [*own, *encoder.parameters()]:
            value.fill_(100.0)  # far from any new weight
    shared = floats(encoder=encoder)
    new = task.reset_networks(KEEP)
    assert {id(value) for value in new} == {id(value) for value in own}
    assert all((value < 50).all() for value in own)
    assert all(
        torch.equal(value, shared[key]) for key, value in floats(encoder=encoder).items()
    )  # the agent's to reset
    task.loss(buffer.sample()).backward()


@pytest.mark.parametrize("algo", ["curl", "mcurl", "sym_curl"])
def test_the_slow_copy_of_a_projection_is_new_and_that_of_the_encoder_is_not(algo: str) -> None:
    policy = GaussianPolicy([1, SIZE, SIZE], 2, num_layers=1, num_filters=2, feature_dim=6, hidden_dim=8)
    buffer, encoder = make_buffer(discrete=False), policy.encoder
    make = ContrastiveTask if algo == "curl" else MaskedContrastiveTask
    options = {"curl": {}, "mcurl": {}, "sym_curl": {"key_context": True}}[algo]
    task = make(encoder, buffer, num_slices=2, slice_len=5, projection="linear", feature_dim=4, **options)
    slow = dict(task.loss_module.target_encoder_network_params.flatten_keys(".").items())
    if algo == "sym_curl":
        slow |= dict(task.loss_module.target_context_network_params.flatten_keys(".").items())
    with torch.no_grad():
        for value in slow.values():
            value.fill_(100.0)  # far from any new weight
    task.reset_networks(KEEP)
    for name, value in slow.items():
        if name.startswith("encoder.convs"):
            assert (value > 70).all() and (value < 80).all(), name
        elif not name.startswith("encoder."):  # CURL's encoder has a linear layer that its projection replaces
            assert (value < 50).all(), name


def test_targets_with_a_tau_of_1_are_the_networks_after_a_reset_too() -> None:
    buffer = make_buffer(discrete=True)
    network = RainbowPolicy([1, SIZE, SIZE], 3, hidden_dim=5, num_atoms=3).network
    spec, parts = Categorical(3), {"head": network.head}
    slices = {"num_slices": 2, "slice_len": 5, "projector": "head", "tau": 1.0}
    for task in (
        SelfPredictionTask(network.encoder, buffer, action_spec=spec, **parts, steps_ahead=2, target_tau=1.0),
        MaskedReconstructionTask(network.encoder, buffer, action_spec=spec, **parts, **slices),
    ):
        shrink_and_perturb(network.encoder, KEEP)
        shrink_and_perturb(network.head, 0.0)
        task.reset_networks(KEEP)
        copies = [child for child in task.children() if isinstance(child, MomentumCopy)]
        assert len(copies) == 2
        for copy in copies:
            followed = network.encoder if copy.follows(network.encoder) else network.head
            for value, own in zip(followed.parameters(), copy.copy.parameters(), strict=True):
                assert torch.equal(value, own)


def test_the_warm_up_of_a_task_starts_again() -> None:
    """After a reset, rates are those of the first updates: the networks that they are for are new."""
    buffer = make_buffer(discrete=False)
    agent = make_sac(buffer, lr=1e-2, warmup_updates=4)
    assert set(agent.schedules) == {"auxiliary", "auxiliary_encoder"}

    def rates() -> list[float]:
        return [agent.optimizers[name].param_groups[0]["lr"] for name in ("auxiliary", "auxiliary_encoder")]

    seen = [rates()]
    for number in range(6):
        take_updates(agent, buffer, 1, first=number)
        seen.append(rates())
    assert seen[0] == pytest.approx([5e-6, 2e-2]) and seen[6] == pytest.approx(
        [1e-2 * (4 / 6) ** 0.5, 2e-2 * (4 / 6) ** 0.5]
    )
    agent.reset(KEEP)
    again = [rates()]
    for number in range(6):
        take_updates(agent, buffer, 1, first=6 + number)
        again.append(rates())
    assert again == seen


def test_the_rate_of_rainbow_itself_never_warms_up() -> None:
    buffer = make_buffer(discrete=True)
    agent = make_rainbow(buffer)
    task = MaskedContrastiveTask(
        agent.policy.network.encoder, buffer, num_slices=2, slice_len=4, num_layers=1, warmup_updates=4
    )
    agent = RainbowAgent(
        agent.policy,
        agent.value,
        task,
        sampler=buffer.sampler,
        random_action=lambda: torch.tensor(0),
        total_agent_steps=100,
        first_update_agent_steps=1,
        target_interval_agent_steps=1,
        lr=1e-2,
    )
    take_updates(agent, buffer, 6)
    agent.reset(KEEP)
    assert [group["lr"] for group in agent.optimizer.param_groups] == pytest.approx([1e-2, 5e-6])
