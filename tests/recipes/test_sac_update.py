"""The SAC recipe's update against the published one, written out in plain PyTorch."""

from __future__ import annotations

from pathlib import Path

import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Bounded

from recipes.sac_mcurl import make_agent, make_replay
from tests.recipes import running
from tests.recipes.plain_sac import Agent

BATCH, ACTIONS, SIZE, SLICES, LENGTH = 6, 2, 20, 2, 5
WARMUP = 2


def settings(*overrides: str) -> DictConfig:
    sizes = ["encoder.crop_size=20", "encoder.num_filters=4", "encoder.num_layers=2", "encoder.feature_dim=8"]
    sizes += ["sac.hidden_dim=16", f"objective.warmup_updates={WARMUP}", "objective.dropout=0"]
    return running.settings(*sizes, *overrides)


class OneSpec:
    """The part of an environment that make_agent reads."""

    observation_spec = {"pixels": torch.empty(9, SIZE, SIZE)}
    action_spec = Bounded(-1, 1, shape=(ACTIONS,))


def images(*lead: int) -> Tensor:
    return torch.randint(256, (*lead, 9, SIZE, SIZE), dtype=torch.uint8)


def draw_batch() -> tuple[TensorDict, dict[str, Tensor]]:
    terminated = torch.rand(BATCH, 1) < 0.3
    plain = {
        "pixels": images(BATCH),
        "next_pixels": images(BATCH),
        "action": torch.rand(BATCH, ACTIONS) * 2 - 1,
        "reward": torch.rand(BATCH, 1),
        "terminated": terminated,
    }
    following = {
        "pixels": plain["next_pixels"],
        "reward": plain["reward"],
        "terminated": terminated,
        "truncated": torch.ones(BATCH, 1, dtype=torch.bool),  # time limits bootstrap
        "done": torch.ones(BATCH, 1, dtype=torch.bool),
    }
    batch = TensorDict({"pixels": plain["pixels"], "action": plain["action"], "next": following}, [BATCH])
    return batch, plain


def draw_slices() -> tuple[TensorDict, dict[str, Tensor]]:
    masked = torch.rand(SLICES, LENGTH) < 0.5
    masked[0, 0] = True
    zeroed = masked & (torch.rand(SLICES, LENGTH) < 0.8)
    query = images(SLICES, LENGTH) * ~zeroed[..., None, None, None]
    key = images(SLICES, LENGTH)
    views = {"query_pixels": query, "key_pixels": key, "masked": masked, "zeroed": zeroed}
    return TensorDict({"mcurl": views}, [SLICES, LENGTH]), {"query": query, "key": key, "masked": masked}


def params_of(module: torch.nn.Module, *names: str) -> dict[str, Tensor]:
    return {key: value for key, value in module.named_parameters() if not names or key.split(".")[0] in names}


def q_params(stacked, number: int) -> dict[str, Tensor]:
    flat = stacked.flatten_keys(".").to_dict()
    return {name[name.index("layers.") :]: value[number] for name, value in flat.items()}


# Double precision: some gradients are zero but for rounding (of the attention's key bias), and Adam makes steps of any.
def test_updates_equal_the_published_ones(double_precision):
    cfg = settings()
    agent = make_agent(cfg, OneSpec, make_replay(cfg, Path("unused")), torch.device("cpu"))
    sac, contrastive = agent.losses, agent.task.loss_module
    for part in (sac, contrastive):  # zeros and ones would hide mistakes with biases and norms
        for value in part.parameters():
            if value.requires_grad and value.ndim:
                value.data.add_(0.1 * torch.randn(value.shape))
    sac.target_encoder.copy.load_state_dict(sac.encoder.state_dict())
    sac.sac.target_qvalue_network_params.data.copy_(sac.sac.qvalue_network_params.data)

    stacked = sac.sac.qvalue_network_params
    context = contrastive.context_network_params.flatten_keys(".").to_dict()
    plain = Agent(
        params_of(sac.encoder),
        params_of(sac.policy, "projection", "head"),
        [q_params(stacked, 0), q_params(stacked, 1)],
        context,
        lr=cfg.sac.lr,
        warmup=WARMUP,
    )
    before = {name: value.detach().clone() for name, value in sac.state_dict().items() if value.is_floating_point()}

    for number in range(4):  # with an actor step, without, and again, past the warm-up
        batch, plain_batch = draw_batch()
        slices, plain_slices = draw_slices()
        noise_state = torch.get_rng_state()
        agent.begin_step(agent.first_update_step + number)
        agent.update(batch, slices, measure=True)
        torch.set_rng_state(noise_state)
        noises = [torch.randn(BATCH, ACTIONS) for _ in range(2)]
        plain.update(number, plain_batch, plain_slices, noises)

        compare("encoder", params_of(sac.encoder), plain.encoder)
        compare("actor", params_of(sac.policy, "projection", "head"), plain.actor)
        compare("context", contrastive.context_network_params.flatten_keys(".").to_dict(), plain.context)
        compare("target encoder", params_of(sac.target_encoder.copy), plain.target_encoder)
        for which in (0, 1):
            compare("critic", q_params(stacked, which), plain.critics[which])
            target = sac.sac.target_qvalue_network_params
            compare("target critic", q_params(target, which), plain.target_critics[which])
        torch.testing.assert_close(sac.sac.log_alpha, plain.log_alpha)

    moved = [
        name for name, value in sac.state_dict().items() if name in before and not torch.equal(value, before[name])
    ]
    for part in ("policy.encoder.convs", "policy.projection", "policy.head", "target_encoder", "sac.log_alpha"):
        assert any(part in name for name in moved), part


def compare(part: str, ours: dict[str, Tensor], plain: dict[str, Tensor]) -> None:
    assert set(ours) == set(plain), part
    for name, expected in plain.items():
        error = (ours[name] - expected).abs().max().item()
        assert error <= 1e-7, f"{part} {name} is off by {error}"
