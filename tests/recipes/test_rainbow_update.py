"""The Rainbow recipe's updates against the published ones, written out in plain PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Categorical

from mcurl_torchrl.modules import RainbowPolicy
from recipes.rainbow_mcurl import make_agent, make_replay
from tests.recipes.plain_rainbow import Agent, Noise, Params
from tests.recipes.test_rainbow_configs import settings

Parts = dict[str, Params]


BATCH, ACTIONS, ATOMS, SIZE, SLICES, LENGTH = 6, 3, 7, 50, 2, 5
WARMUP = 2
SMALL = [f"env.image_size={SIZE}", f"rainbow.num_atoms={ATOMS}", "rainbow.hidden_dim=16"]
PROJECTION = ["objective.feature_dim=8", "objective.hidden_dim=12"]
TRANSFORMER = [f"objective.warmup_updates={WARMUP}", "objective.dropout=0"]


class OneSpec:
    """The part of an environment that make_agent reads."""

    observation_spec = {"pixels": torch.empty(4, SIZE, SIZE)}
    action_spec = Categorical(ACTIONS)


@pytest.fixture
def double_precision(monkeypatch, double_precision):
    """Uses double precision also where the package asks for single: rounding would hide small mistakes."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


@pytest.mark.parametrize(
    ("algo", "game", "coeff", "more"),
    [
        ("mcurl", "Pong", 1.0, []),  # only CURL's own loss weighs less there
        ("mcurl", "MsPacman", 1.0, ["objective.projection=linear"]),
        ("sym_curl", "MsPacman", 1.0, []),
        ("sym_curl", "Freeway", 1.0, ["objective.projection=linear"]),
        ("curl", "MsPacman", 1.0, []),
        ("curl", "Pong", 0.01, []),
        ("seq_curl", "MsPacman", 1.0, []),
        ("seq_curl", "PrivateEye", 0.01, []),
        ("rainbow", "MsPacman", 0.0, []),
    ],
)
def test_updates_equal_the_published_ones(double_precision, algo, game, coeff, more):
    more = [*more, *(PROJECTION if algo != "rainbow" else []), *(TRANSFORMER if algo in ("mcurl", "sym_curl") else [])]
    cfg = settings(*SMALL, f"algo={algo}", f"env={game}", *more)
    agent = make_agent(cfg, OneSpec, make_replay(cfg, Path("unused")), torch.device("cpu"))
    policy, value = agent.policy, agent.value
    networks = parts_of(policy, value, getattr(agent.task, "loss_module", None))
    for tensor in all_tensors(networks):  # zeros, ones and copies that are equal would hide mistakes
        tensor.add_(0.04 * torch.randn(tensor.shape))
    plain = Agent(*networks, algo=algo, num_atoms=ATOMS, coeff=coeff, warmup=WARMUP)
    before = [tensor.clone() for tensor in all_tensors(networks)]

    norms = []
    for number in range(5):  # in the warm-up, at its end and past it; with clipped gradients and without
        policy.reset_noise()
        batch, plain_batch = draw_batch(weight=400.0 if number % 2 else 1.0)
        views, plain_views = draw_views(algo, batch)
        metrics = agent.update(batch, views, measure=True)
        noise = noise_of(dict(policy.network.named_buffers()))
        target_noise = noise_of(dict(value.target_value_network_params.flatten_keys(".").items()))
        told = plain.update(plain_batch, plain_views, noise, target_noise)

        told["td_error"] = told["priority"].mean()
        assert_close("priorities", batch["td_error"], told.pop("priority"))
        if "loss_contrastive" in told:
            told["loss_auxiliary"] = coeff * told.pop("loss_contrastive")
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
    """Draws images whose frames are brighter and darker, so that the network's outputs for them differ."""
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
    """Draws the data of a contrastive loss: the batch's observations for CURL, slices for the others."""
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
    # Attention does not depend on the bias of its keys: that gradient is rounding, which Adam divides by its epsilon.
    most = 1e-11 if name.endswith("in_projection.bias") else 1e-12
    assert error <= most, f"{name} is off by {error}"


def assert_same_networks(ours: tuple[Parts, ...], plain: tuple[Parts, ...]) -> None:
    for which, parts, expected_parts in zip(("online", "target", "momentum"), ours, plain, strict=True):
        assert set(parts) == set(expected_parts), which
        for part, expected in expected_parts.items():
            assert set(parts[part]) == set(expected), (which, part)
            for name in expected:
                assert_close(f"{which} {part} {name}", parts[part][name], expected[name])
