"""The order of things in the Rainbow recipe's loop: noise, steps, updates, priorities, target copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

from mcurl_torchrl import CategoricalDQNLoss, FrameReplayBuffer
from mcurl_torchrl.agents import RainbowAgent
from mcurl_torchrl.modules import NoisyLinear, RainbowPolicy
from mcurl_torchrl.training import RunDirectory, TrainingRun
from recipes import launch, rainbow_mcurl
from tests.recipes.plain_rainbow import Params
from tests.recipes.test_rainbow_configs import settings

TOTAL, FIRST, INTERVAL = 90, 30, 25
NOISY_LAYERS = 4


@pytest.mark.parametrize(("algo", "updates"), [("mcurl", 1), ("curl", 1), ("rainbow", 2)])
def test_steps_come_in_the_published_order(monkeypatch, tmp_path, algo, updates):
    watch = Watch(monkeypatch)
    sizes = ["preset=smoke", "env=Breakout", "env.max_emulator_frames=120", f"total_env_steps={TOTAL}"]
    sizes += ["evaluation.interval_env_steps=45", "evaluation.final_episodes=2", "checkpoint.interval_agent_steps=90"]
    counts = [f"rainbow.first_update_agent_steps={FIRST}", f"rainbow.target_interval_agent_steps={INTERVAL}"]
    counts += [f"rainbow.updates_per_agent_step={updates}", "logging.tensorboard=false", "evaluation.video=false"]
    cfg = settings(*sizes, *counts, f"algo={algo}")
    launch.run_job(rainbow_mcurl.train, cfg, RunDirectory(tmp_path / "run"), [])

    assert watch.events == list(expected_events(updates))
    assert watch.evaluated > 0
    assert watch.betas == pytest.approx(
        [0.4 + 0.6 * (step - FIRST) / (TOTAL - FIRST) for step in range(FIRST, TOTAL + 1) for _ in range(updates)]
    )
    assert (watch.betas[0], watch.betas[-1]) == (0.4, 1.0)
    assert len({tuple(noise) for noise in watch.noises_acted_with}) == TOTAL
    for noises in (watch.noises_learned_with, watch.target_noises):  # each update has its own
        assert len({tuple(noise) for noise in noises}) == updates * (TOTAL - FIRST + 1)


def expected_events(updates: int) -> Iterator[str]:
    for step in range(1, TOTAL + 1):
        yield from ["draw online noise"] * NOISY_LAYERS
        yield from ("act", "store")
        for update in range(updates if step >= FIRST else 0):  # the first with FIRST transitions stored
            yield "sample"
            if update > 0:
                yield from ["draw online noise"] * NOISY_LAYERS
            yield from ["draw target noise"] * NOISY_LAYERS
            yield from ("update", "write priorities")
        if step % INTERVAL == 0:
            yield "copy to target"


class Watch:
    """Records the calls of a training run in their order, and checks at each what must always hold."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.events: list[str] = []
        self.betas: list[float] = []
        self.noises_acted_with: list[list[float]] = []
        self.noises_learned_with: list[list[float]] = []
        self.target_noises: list[list[float]] = []
        self.evaluated = 0
        self.priorities = ExpectedPriorities()
        self.begun = False
        self.after(rainbow_mcurl, "make_agent", self.made)
        self.after(TrainingRun, "begin", self.begin)
        self.after(NoisyLinear, "reset_noise", self.noise_drawn)
        self.after(RainbowPolicy, "forward", self.acted)
        self.after(FrameReplayBuffer, "add", self.stored)
        self.after(FrameReplayBuffer, "sample", self.sampled)
        self.after(RainbowAgent, "update", self.updated)
        self.after(FrameReplayBuffer, "update_tensordict_priority", self.priorities_written)
        self.after(CategoricalDQNLoss, "copy_to_target", self.copied)

    def after(self, owner: Any, name: str, note: Callable[..., None]) -> None:
        """Records the result and the arguments of each call."""
        original = getattr(owner, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            note(result, *args)
            return result

        self.monkeypatch.setattr(owner, name, noted)

    def made(self, agent: RainbowAgent, *_: Any) -> None:
        self.policy, self.value = agent.policy, agent.value

    def begin(self, *_: Any) -> None:
        self.begun = True
        self.owners = {tensor.data_ptr(): "online" for tensor in self.noise("online").values()}
        self.owners |= {tensor.data_ptr(): "target" for tensor in self.noise("target").values()}
        assert len(self.owners) == 4 * NOISY_LAYERS
        self.last_copy = self.parameters("online")
        assert same(self.parameters("target"), self.last_copy)

    def noise(self, whose: str) -> Params:
        buffers = self.policy.network.named_buffers()
        if whose == "target":
            buffers = self.value.target_value_network_params.flatten_keys(".").items()
        return {name: tensor for name, tensor in buffers if name.endswith(("noise_in", "noise_out"))}

    def parameters(self, whose: str) -> Params:
        """Returns a copy of a network's parameters."""
        online = dict(self.policy.network.named_parameters())
        found = online
        if whose == "target":
            found = dict(self.value.target_value_network_params.flatten_keys(".").items())
        return {name: found[name].detach().clone() for name in online}

    def listed(self, whose: str) -> list[float]:
        return torch.cat(list(self.noise(whose).values())).tolist()

    def noise_drawn(self, _: None, layer: NoisyLinear, *__: Any) -> None:
        if self.begun:
            assert self.owners[layer.noise_in.data_ptr()] == self.owners[layer.noise_out.data_ptr()]
            self.events.append(f"draw {self.owners[layer.noise_in.data_ptr()]} noise")

    def acted(self, _: Tensor, policy: RainbowPolicy, *__: Any) -> None:
        if not policy.training:
            self.evaluated += 1
            return
        self.events.append("act")
        self.noises_acted_with.append(self.listed("online"))

    def stored(self, _: Tensor, __: FrameReplayBuffer, step: TensorDictBase) -> None:
        self.events.append("store")
        self.priorities.store(done=bool(step["next", "done"]))

    def sampled(self, batch: TensorDictBase, buffer: FrameReplayBuffer) -> None:
        self.events.append("sample")
        self.betas.append(buffer.sampler.beta)
        self.priorities.check(buffer)
        self.priorities.check_importance(batch, beta=buffer.sampler.beta)

    def updated(self, *_: Any) -> None:
        self.events.append("update")
        if "update" not in self.events[len(self.events) - self.events[::-1].index("act") : -1]:  # the first of the step
            assert self.listed("online") == self.noises_acted_with[-1]  # learns with what it acted with
        self.noises_learned_with.append(self.listed("online"))
        self.target_noises.append(self.listed("target"))
        assert same(self.parameters("target"), self.last_copy)

    def priorities_written(self, _: None, buffer: FrameReplayBuffer, batch: TensorDictBase) -> None:
        self.events.append("write priorities")
        self.priorities.write(batch)
        self.priorities.check(buffer)

    def copied(self, *_: Any) -> None:
        self.events.append("copy to target")
        self.last_copy = self.parameters("online")
        assert same(self.parameters("target"), self.last_copy)


def same(ours: Params, others: Params) -> bool:
    return ours.keys() == others.keys() and all(torch.equal(ours[name], others[name]) for name in ours)


class ExpectedPriorities:
    """The expected weights of all rows, in a list: a row of an episode's last observation is never drawn."""

    def __init__(self) -> None:
        self.weights: list[float] = []
        self.rows: dict[tuple[int, int], int] = {}
        self.largest = 1.0
        self.trajectory = self.step = 0

    def store(self, *, done: bool) -> None:
        self.rows[self.trajectory, self.step] = len(self.weights)
        self.weights.append(self.largest)
        self.step += 1
        if done:
            self.weights.append(0.0)
            self.trajectory, self.step = self.trajectory + 1, 0

    def rows_of(self, batch: TensorDictBase) -> list[int]:
        pairs = zip(batch["trajectory"].flatten().tolist(), batch["step"].flatten().tolist(), strict=True)
        return [self.rows[pair] for pair in pairs]

    def write(self, batch: TensorDictBase) -> None:
        written: dict[int, float] = {}
        for row, error in zip(self.rows_of(batch), batch["td_error"].tolist(), strict=True):
            written[row] = max(written.get(row, 0.0), error**0.5)
        for row, weight in written.items():
            self.weights[row] = weight
            self.largest = max(self.largest, weight)

    def check(self, buffer: FrameReplayBuffer) -> None:
        weights = buffer.sampler.tree.weights
        expected = torch.tensor(self.weights + [0.0] * (len(weights) - len(self.weights)), dtype=weights.dtype)
        torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-6)

    def check_importance(self, batch: TensorDictBase, *, beta: float) -> None:
        weights, total = torch.tensor(self.weights, dtype=torch.float64), sum(self.weights)
        importance = (len(weights) * weights[self.rows_of(batch)] / total) ** -beta
        expected = (importance / importance.max()).float()
        torch.testing.assert_close(batch["priority_weight"], expected, rtol=1e-5, atol=0)
