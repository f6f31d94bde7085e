"""The Rainbow recipe against the published method: its updates, the order of its steps, its returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import launch
import pytest
import rainbow_builders as build
import rainbow_mcurl
import torch
from command_line import config_folder
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Categorical

from mcurl_torchrl import CategoricalDQNLoss, FrameReplayBuffer
from mcurl_torchrl.modules import NoisyLinear, RainbowPolicy
from mcurl_torchrl.training import EpisodeStream, RunDirectory, TrainingRun
from tests.recipes.plain_rainbow import Agent, Noise, Params

Parts = dict[str, Params]


def settings(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(config_folder("rainbow_mcurl")), version_base="1.3"):
        return compose("rainbow_mcurl", overrides=list(overrides))


# -- one update after another ------------------------------------------------------------------------------------------

BATCH, ACTIONS, ATOMS, SIZE, SLICES, LENGTH = 6, 3, 7, 50, 2, 5
WARMUP = 2
SMALL = [f"env.image_size={SIZE}", f"rainbow.num_atoms={ATOMS}", "rainbow.hidden_dim=16", "contrastive.hidden_dim=12"]
SMALL += ["contrastive.feature_dim=8", f"contrastive.warmup_updates={WARMUP}", "contrastive.dropout=0"]


class OneSpec:
    """What make_policy reads of an environment."""

    observation_spec = {"pixels": torch.empty(4, SIZE, SIZE)}
    action_spec = Categorical(ACTIONS)


@pytest.fixture
def double_precision(monkeypatch):
    """All in double precision, also where the package asks for single: rounding would hide small mistakes."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("algo", "game", "coeff", "more"),
    [
        ("mcurl", "Pong", 1.0, []),  # only CURL's own loss weighs less there
        ("mcurl", "MsPacman", 1.0, ["contrastive.projection=linear"]),
        ("sym_curl", "MsPacman", 1.0, []),
        ("sym_curl", "Freeway", 1.0, ["contrastive.projection=linear"]),
        ("curl", "MsPacman", 1.0, []),
        ("curl", "Pong", 0.01, []),
        ("seq_curl", "MsPacman", 1.0, []),
        ("seq_curl", "PrivateEye", 0.01, []),
        ("rainbow", "MsPacman", 0.0, []),
    ],
)
def test_updates_equal_the_published_ones(double_precision, algo, game, coeff, more):
    cfg = settings(*SMALL, f"algo={algo}", f"env={game}", *more)
    policy = build.make_policy(cfg, OneSpec, torch.device("cpu"))
    value = build.make_value_loss(cfg, policy)
    contrastive, momentum = build.make_contrastive(cfg, policy)
    optimizer, schedule = build.make_optimizer(cfg, policy, contrastive)
    networks = parts_of(policy, value, contrastive)
    for tensor in all_tensors(networks):  # zeros, ones and copies that are equal would hide mistakes
        tensor.add_(0.04 * torch.randn(tensor.shape))
    plain = Agent(*networks, algo=algo, num_atoms=ATOMS, coeff=coeff, warmup=WARMUP)
    before = [tensor.clone() for tensor in all_tensors(networks)]

    norms = []
    for number in range(5):  # in the warm-up, at its end and past it; with clipped gradients and without
        policy.reset_noise()
        batch, plain_batch = draw_batch(weight=400.0 if number % 2 else 1.0)
        views, plain_views = draw_views(algo, batch)
        metrics = rainbow_mcurl.update(
            cfg, policy, value, contrastive, momentum, optimizer, schedule, batch, views, measure=True
        )
        noise = noise_of(dict(policy.network.named_buffers()))
        target_noise = noise_of(dict(value.target_value_network_params.flatten_keys(".").items()))
        told = plain.update(plain_batch, plain_views, noise, target_noise)

        told["td_error"] = told["priority"].mean()
        assert_close("priorities", batch["td_error"], told.pop("priority"))
        for name, expected in told.items():
            assert_close(name, metrics[name], expected)
        assert_same_networks(networks, (plain.online, plain.target, plain.momentum))
        norms.append(float(metrics["gradient_norm"]))
        if number == 2:
            value.copy_to_target()
            plain.copy_to_target()
    assert max(norms) > 10
    assert min(norms) < 10 or algo in ("mcurl", "sym_curl")  # whose own gradients are that large at first
    assert not any(torch.equal(tensor, old) for tensor, old in zip(all_tensors(networks), before, strict=True))


def parts_of(policy: RainbowPolicy, value: nn.Module, contrastive: nn.Module | None) -> tuple[Parts, Parts, Parts]:
    """Returns the parameters themselves, by part: online, of the target network, and of the momentum copies."""
    network = flat(policy.network.named_parameters())
    online = {"encoder": below("encoder.", network), "head": below("head.", network)}
    copied = flat(value.target_value_network_params.flatten_keys(".").items())
    target = {"encoder": below("encoder.", copied), "head": below("head.", copied)}
    target = {part: {name: params[name] for name in online[part]} for part, params in target.items()}  # without noise
    momentum: Parts = {}
    if contrastive is not None:
        own, copied = (
            flat(params.flatten_keys(".").items())
            for params in (contrastive.encoder_network_params, contrastive.target_encoder_network_params)
        )
        projected = any(name.startswith("projection.") for name in own)
        encoder = below("encoder.", own) if projected else own
        assert {name: tensor.data_ptr() for name, tensor in encoder.items()} == {
            name: tensor.data_ptr() for name, tensor in online["encoder"].items()
        }
        online["projection"] = below("projection.", own)
        momentum["encoder"] = below("encoder.", copied) if projected else copied
        momentum["projection"] = below("projection.", copied)
        if hasattr(contrastive, "bilinear"):
            online["bilinear"] = {"W": contrastive.bilinear.data}
        else:
            online["context"] = flat(contrastive.context_network_params.flatten_keys(".").items())
            if contrastive.key_context:
                momentum["context"] = flat(contrastive.target_context_network_params.flatten_keys(".").items())
    trained = {*policy.parameters(), *(contrastive.parameters() if contrastive is not None else ())}
    assert sum(len(params) for params in online.values()) == len(trained)
    return online, target, momentum


def flat(named: Any) -> Params:
    return {name: tensor.data for name, tensor in named}


def below(prefix: str, params: Params) -> Params:
    return {name.removeprefix(prefix): tensor for name, tensor in params.items() if name.startswith(prefix)}


def all_tensors(networks: tuple[Parts, ...]) -> list[Tensor]:
    return [tensor for parts in networks for params in parts.values() for tensor in params.values()]


def noise_of(buffers: Params) -> Noise:
    layers = ("value.0", "value.2", "advantage.0", "advantage.2")
    noise = {
        layer: (buffers[f"head.{layer}.noise_in"].clone(), buffers[f"head.{layer}.noise_out"].clone())
        for layer in layers
    }
    assert sum(name.endswith(("noise_in", "noise_out")) for name in buffers) == 2 * len(noise)
    return noise


def images(*lead: int) -> Tensor:
    """Draws images whose frames are brighter and darker, so that what the network says of them differs."""
    return (255 * torch.rand(*lead, 4, 1, 1) * torch.rand(*lead, 4, SIZE, SIZE)).byte()


def draw_batch(weight: float) -> tuple[TensorDict, Params]:
    """Draws transitions of up to 20 steps: some end an episode, some are cut there, some do neither."""
    steps = torch.tensor([20, 20, 1, 7, 13, 20])[:, None]
    terminated = torch.tensor([False, True, True, True, False, False])[:, None]
    truncated = torch.tensor([False, False, False, False, True, False])[:, None]  # goes on beyond the time limit
    plain = {
        "pixels": images(BATCH),
        "next_pixels": images(BATCH),
        "action": torch.randint(ACTIONS, (BATCH,)),
        "reward": 8 * torch.randn(BATCH, 1),  # some returns are beyond the support
        "terminated": terminated,
        "steps": steps,
        "weight": weight * torch.rand(BATCH),
    }
    following = {
        "pixels": plain["next_pixels"],
        "reward": plain["reward"],
        "terminated": terminated,
        "truncated": truncated,
        "done": terminated | truncated,
    }
    batch = TensorDict({"pixels": plain["pixels"], "action": plain["action"], "next": following}, [BATCH])
    batch["steps_to_next_obs"], batch["priority_weight"] = steps, plain["weight"]
    return batch, plain


def draw_views(algo: str, batch: TensorDict) -> tuple[TensorDictBase, Params]:
    """Draws what a contrastive loss sees: CURL the batch's observations, the others slices."""
    if algo == "rainbow":
        return batch, {}
    shape = [BATCH] if algo == "curl" else [SLICES, LENGTH]
    views = {"query_pixels": images(*shape), "key_pixels": images(*shape)}
    if algo in ("mcurl", "sym_curl"):
        views["masked"] = torch.tensor([[True, False, True, True, False], [False, True, True, False, True]])
        views["zeroed"] = views["masked"] & torch.tensor([True, True, False, True, True])
        views["query_pixels"] *= ~views["zeroed"][..., None, None, None]
        plain = {"masked": views["masked"], "query": views["query_pixels"], "key": views["key_pixels"]}
    else:
        plain = {name: views[f"{name}_pixels"].flatten(0, len(shape) - 1) for name in ("query", "key")}
    if algo == "curl":
        return batch.set("mcurl", TensorDict(views, shape)), plain
    return TensorDict({"mcurl": TensorDict(views, shape)}, shape), plain


def assert_close(name: str, ours: Tensor, expected: Tensor) -> None:
    assert ours.shape == expected.shape, name
    error = (ours - expected).abs().max().item() / max(1.0, expected.abs().max().item())
    assert error <= 1e-12, f"{name} is off by {error}"


def assert_same_networks(ours: tuple[Parts, ...], plain: tuple[Parts, ...]) -> None:
    for which, parts, expected_parts in zip(("online", "target", "momentum"), ours, plain, strict=True):
        assert set(parts) == set(expected_parts), which
        for part, expected in expected_parts.items():
            assert set(parts[part]) == set(expected), (which, part)
            for name in expected:
                assert_close(f"{which} {part} {name}", parts[part][name], expected[name])


# -- the order of steps ------------------------------------------------------------------------------------------------

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
    assert len({tuple(noise) for noise in watch.target_noises}) == updates * (TOTAL - FIRST + 1)


def expected_events(updates: int) -> Iterator[str]:
    for step in range(1, TOTAL + 1):
        yield from ["draw online noise"] * NOISY_LAYERS
        yield from ("act", "store")
        for _ in range(updates if step >= FIRST else 0):  # the first with FIRST transitions stored
            yield "sample"
            yield from ["draw target noise"] * NOISY_LAYERS
            yield from ("update", "write priorities")
        if step % INTERVAL == 0:
            yield "copy to target"


class Watch:
    """Notes what a training run does from its beginning on, in order, and checks what should hold all the way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.events: list[str] = []
        self.betas: list[float] = []
        self.noises_acted_with: list[list[float]] = []
        self.target_noises: list[list[float]] = []
        self.evaluated = 0
        self.priorities = ExpectedPriorities()
        self.begun = False
        for maker, name in (("make_policy", "policy"), ("make_value_loss", "value")):
            self.after(build, maker, lambda made, *_, name=name: setattr(self, name, made))
        self.after(TrainingRun, "begin", self.begin)
        self.after(NoisyLinear, "reset_noise", self.noise_drawn)
        self.after(RainbowPolicy, "forward", self.acted)
        self.after(FrameReplayBuffer, "add", self.stored)
        self.after(FrameReplayBuffer, "sample", self.sampled)
        self.after(rainbow_mcurl, "update", self.updated)
        self.after(FrameReplayBuffer, "update_tensordict_priority", self.priorities_written)
        self.after(CategoricalDQNLoss, "copy_to_target", self.copied)

    def after(self, owner: Any, name: str, note: Callable[..., None]) -> None:
        """Has each call noted: its result and its arguments."""
        original = getattr(owner, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            note(result, *args)
            return result

        self.monkeypatch.setattr(owner, name, noted)

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
        assert self.listed("online") == self.noises_acted_with[-1]  # learns with what it acted with
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
    """What the weights of all rows should be, kept in a list: a row of an episode's last observation is never drawn."""

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


# -- returns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_emulator_frames", "ends"), [(108_000, {"life", "game"}), (600, {"life", "cut"})], ids=["whole", "cut"]
)
def test_no_return_crosses_the_end_of_an_episode(tmp_path, max_emulator_frames, ends):
    # Assault rewards soon after a life is lost and soon after a game begins, so that a return that crosses is wrong.
    sizes = ["env.image_size=36", "replay.capacity=1000", "rainbow.batch_size=500"]
    cfg = settings("env=Assault", "algo=rainbow", *sizes, f"env.max_emulator_frames={max_emulator_frames}")
    env = build.make_env(cfg, training=True)
    buffer, _ = build.make_replay(cfg, tmp_path)
    stream = EpisodeStream(env, seed=1)
    episodes: list[list[TensorDictBase]] = [[]]
    endings: list[str] = []
    for _ in range(900):
        step = stream.step(lambda _: env.action_spec.rand())
        buffer.add(step)
        episodes[-1].append(step.clone())
        if step["next", "done"]:
            assert bool(step["next", "terminated"]) != bool(step["next", "truncated"])
            how = "game" if env.starts_new_game else "life"
            endings.append("cut" if step["next", "truncated"] else how)
            episodes.append([])
    rewards = [float(step["next", "reward"]) for episode in episodes for step in episode]
    assert set(rewards) == {0.0, 1.0}  # the game gives 21 at once

    seen: set[tuple[int, int]] = set()
    would_be_wrong: Counter[str] = Counter()
    for _ in range(20):  # so often that each transition is drawn
        batch = buffer.sample()
        pairs = zip(batch["trajectory"].tolist(), batch["step"].tolist(), strict=True)
        for place, (number, start) in enumerate(pairs):
            if (number, start) in seen:
                continue
            seen.add((number, start))
            expected = check_transition(batch[place], episodes[number], start)
            begin = sum(map(len, episodes[:number])) + start
            careless = sum(0.99**k * reward for k, reward in enumerate(rewards[begin : begin + 20]))
            if abs(careless - expected) > 1e-3:
                would_be_wrong[endings[number]] += 1
    assert set(would_be_wrong) == ends
    assert seen == {
        (number, start)
        for number, episode in enumerate(episodes)
        for start in range(len(episode))
        # Where an episode is under way, the observation after n steps is stored with the step that is taken there.
        if number < len(endings) or start + 20 < len(episode)
    }


def check_transition(sample: TensorDictBase, episode: list[TensorDictBase], start: int) -> float:
    """Compares a sampled transition with the steps of its episode; returns what its return should be."""
    steps = min(20, len(episode) - start)
    first, last = episode[start], episode[start + steps - 1]
    expected = sum(0.99**k * float(episode[start + k]["next", "reward"]) for k in range(steps))
    assert int(sample["steps_to_next_obs"]) == steps
    assert float(sample["next", "reward"]) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    for key in ("terminated", "truncated", "done"):
        assert bool(sample["next", key]) == bool(last["next", key])
    assert int(sample["action"]) == int(first["action"])
    assert torch.equal(sample["pixels"], first["pixels"])
    assert torch.equal(sample["next", "pixels"], last["next", "pixels"])
    return expected
