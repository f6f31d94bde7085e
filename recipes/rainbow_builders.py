"""The parts of the Rainbow recipe, built from its config: environment, networks, losses, optimizer, replay."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import torch
from omegaconf import OmegaConf
from schema import AtariConfig, RainbowRecipeConfig
from shared_builders import (
    KEY,
    QUERY,
    check_contrastive,
    make_contrastive_loss,
    make_slices,
    make_storage,
    steps_before_a_slice,
)
from torch import nn
from torch.optim import Adam
from torch.optim.lr_scheduler import LambdaLR
from torchrl.data import Categorical
from torchrl.envs import Compose, EnvBase, RewardClipping, TransformedEnv
from torchrl.envs.transforms import Transform
from torchrl.objectives import SoftUpdate

from mcurl_torchrl import (
    CategoricalDQNLoss,
    ContrastiveLoss,
    FrameReplayBuffer,
    MaskedContrastiveLoss,
    PrioritizedTransitionSampler,
    RandomShift,
    inverse_sqrt_warmup,
    make_atari_env,
    make_pixel_env,
)
from mcurl_torchrl.checks import check_choice, check_count
from mcurl_torchrl.modules import CurlProjection, LinearProjection, ProjectedEncoder, RainbowPolicy
from mcurl_torchrl.objectives import ExpectedDQNLoss
from mcurl_torchrl.replay import FrameSlices

COUNTS = ("batch_size", "n_step", "first_update_agent_steps", "updates_per_agent_step", "target_interval_agent_steps")
# The lowest and the highest value; a value that is above the lowest, and may not be it, stands in ABOVE.
RANGES = {
    "rainbow.gamma": (0, 1),
    "rainbow.epsilon_begin": (0, 1),
    "rainbow.epsilon_end": (0, 1),
    "rainbow.priority_exponent": (0, math.inf),
    "rainbow.priority_correction_begin": (0, 1),
    "rainbow.priority_correction_end": (0, 1),
    "rainbow.sigma_init": (0, math.inf),
    "rainbow.num_atoms": (2, math.inf),
    "contrastive.coeff": (0, math.inf),
}
ABOVE = {
    "rainbow.lr": (0, math.inf),
    "rainbow.adam_eps": (0, math.inf),
    "rainbow.max_gradient_norm": (0, math.inf),
    "contrastive.tau": (0, 1),
    "contrastive.warmup_updates": (0, math.inf),
    "contrastive.mask_ratio": (0, 1),
}


def check_settings(cfg: RainbowRecipeConfig) -> None:
    """Refuses settings with which nothing, or not what was asked for, would be learned."""
    check_contrastive(cfg.contrastive)
    for name in COUNTS:
        check_count(f"rainbow.{name}", getattr(cfg.rainbow, name))
    for key, (low, high) in {**RANGES, **ABOVE}.items():
        value = OmegaConf.select(cfg, key)
        if value is not None and not (low < value <= high if key in ABOVE else low <= value <= high):
            lowest = f"above {low}" if key in ABOVE else f"at least {low}"
            raise ValueError(f"{key}={value}; it must be {lowest}{'' if high == math.inf else f' and at most {high}'}")
    bounds = list(cfg.rainbow.value_bounds)
    if len(bounds) != 2 or not bounds[0] < bounds[1]:
        raise ValueError(f"rainbow.value_bounds={bounds}; it must be two numbers, the lower one first")
    if not cfg.rainbow.noisy and cfg.rainbow.epsilon_end == 0:
        raise ValueError(
            "rainbow.noisy=false with rainbow.epsilon_end=0 would never explore; set the latter, to 0.01 say"
        )
    check_first_update(cfg)


def check_first_update(cfg: RainbowRecipeConfig) -> None:
    first = cfg.rainbow.first_update_agent_steps
    # A transition can be drawn once the row n steps later is there, which the next step writes.
    needed = {"rainbow.n_step": cfg.rainbow.n_step + 1, "contrastive.slice_len": steps_before_a_slice(cfg.contrastive)}
    for key, least in needed.items():
        if first < least:
            raise ValueError(
                f"rainbow.first_update_agent_steps={first}; it must be at least {least} with "
                f"{key}={OmegaConf.select(cfg, key)}, to have something to draw"
            )
    if first > cfg.total_env_steps:
        raise ValueError(
            f"rainbow.first_update_agent_steps={first} is more than total_env_steps={cfg.total_env_steps}: nothing "
            "would be learned"
        )


def make_env(cfg: RainbowRecipeConfig, *, training: bool) -> EnvBase:
    """Makes an environment with numbered actions: one to train in, or one that gives whole games and raw scores."""
    env: AtariConfig = cfg.env
    if check_choice("env.backend", env.backend, ("atari", "gym")) == "atari":
        if env.game is None:
            raise ValueError("env=atari needs a game: env.game=Tennis, say")
        return make_atari_env(
            env.game,
            training=training,
            num_frames=env.num_frames,
            image_size=env.image_size,
            interpolation=env.interpolation,
            frame_skip=env.frame_skip,
            max_noops=env.max_noops,
            max_emulator_frames=env.max_emulator_frames,
            terminal_on_life_loss=training and env.terminal_on_life_loss,
            clip_rewards=training and env.clip_rewards,
        )
    if env.id is None:
        raise ValueError("env=gym needs what gymnasium.make takes: env.id=my_module:MyEnv-v0, say")
    made = make_pixel_env(
        env.id,
        num_frames=env.num_frames,
        action_repeat=env.frame_skip,
        image_size=env.image_size,
        render=env.render,
        categorical_actions=True,
    )
    if not isinstance(made.action_spec, Categorical):
        raise ValueError(
            f"Rainbow needs discrete actions; {env.id} has {made.action_spec}: recipes/sac_mcurl.py is for it"
        )
    return TransformedEnv(made, RewardClipping(-1.0, 1.0)) if training and env.clip_rewards else made


def padding(cfg: RainbowRecipeConfig) -> str:
    """Returns what the environments' stacks begin with: on Atari zeros, else the first frame, repeated."""
    return "zeros" if cfg.env.backend == "atari" else "repeat"


def make_policy(cfg: RainbowRecipeConfig, env: EnvBase, device: torch.device) -> RainbowPolicy:
    return RainbowPolicy(
        env.observation_spec["pixels"].shape,
        env.action_spec.n,
        architecture=cfg.rainbow.architecture,
        hidden_dim=cfg.rainbow.hidden_dim,
        num_atoms=cfg.rainbow.num_atoms,
        value_bounds=tuple(cfg.rainbow.value_bounds),
        sigma_init=cfg.rainbow.sigma_init,
        noisy=cfg.rainbow.noisy,
        dueling=cfg.rainbow.dueling,
    ).to(device)


def make_value_loss(cfg: RainbowRecipeConfig, policy: RainbowPolicy) -> CategoricalDQNLoss | ExpectedDQNLoss:
    kind = check_choice("rainbow.loss", cfg.rainbow.loss, ("categorical", "expected"))
    made = CategoricalDQNLoss if kind == "categorical" else ExpectedDQNLoss
    return made(policy.network, gamma=cfg.rainbow.gamma, double=cfg.rainbow.double)


def make_contrastive(
    cfg: RainbowRecipeConfig, policy: RainbowPolicy
) -> tuple[MaskedContrastiveLoss | ContrastiveLoss | None, SoftUpdate | None]:
    """Makes the loss beside Rainbow's, and what moves its momentum copy of the encoder (for sym-CURL, of all)."""
    settings, encoder = cfg.contrastive, policy.network.encoder
    kind = check_choice("contrastive.projection", settings.projection, ("none", "linear", "curl"))
    device = next(policy.parameters()).device
    if kind == "linear":
        encoder = ProjectedEncoder(encoder, LinearProjection(encoder.num_features, settings.feature_dim).to(device))
    elif kind == "curl":
        projection = CurlProjection(
            encoder.num_features, hidden_dim=settings.hidden_dim, feature_dim=settings.feature_dim
        )
        encoder = ProjectedEncoder(encoder, projection.to(device))
    loss = make_contrastive_loss(settings, encoder)
    return loss, None if loss is None else SoftUpdate(loss, tau=settings.tau)


def make_optimizer(
    cfg: RainbowRecipeConfig, policy: RainbowPolicy, contrastive: MaskedContrastiveLoss | ContrastiveLoss | None
) -> tuple[Adam, LambdaLR | None]:
    """Makes one Adam for all, and the schedule of what only M-CURL's loss has, its Transformer and projection."""
    groups = [{"params": list(policy.parameters())}]
    if contrastive is not None:
        groups.append({"params": own_parameters(contrastive, policy)})
    optimizer = Adam(groups, lr=cfg.rainbow.lr, eps=cfg.rainbow.adam_eps, fused=True)
    warmup = cfg.contrastive.warmup_updates
    if not isinstance(contrastive, MaskedContrastiveLoss) or warmup is None:
        return optimizer, None
    rising = inverse_sqrt_warmup(warmup, initial_scale=cfg.contrastive.warmup_initial_scale)
    return optimizer, LambdaLR(optimizer, [constant, rising])


def constant(update: int) -> float:
    return 1.0


def own_parameters(loss: nn.Module, policy: RainbowPolicy) -> list[nn.Parameter]:
    """Returns what a loss trains and the policy does not have; a momentum copy is nobody's to train."""
    shared = set(policy.parameters())
    return [parameter for parameter in loss.parameters() if parameter.requires_grad and parameter not in shared]


def make_replay(cfg: RainbowRecipeConfig, directory: Path) -> tuple[FrameReplayBuffer, FrameSlices | None]:
    """Makes the buffer, whose samples are Rainbow's batches, and the slices of it that the contrastive loss sees."""
    name = check_choice("contrastive.augmentation", cfg.contrastive.augmentation, ("shift", "none"))
    # To move by nothing is to leave as it is.
    augmentation = RandomShift if name == "shift" else functools.partial(RandomShift, margin=0, padding=0)
    views: Transform | None = None
    if cfg.contrastive.objective != "none" and cfg.contrastive.views == "batch":
        views = Compose(*(augmentation(in_keys=["pixels"], out_keys=[view]) for view in (QUERY, KEY)))
    buffer = FrameReplayBuffer(
        storage=make_storage(cfg.replay, directory),
        num_frames=cfg.env.num_frames,
        n_step=cfg.rainbow.n_step,
        gamma=cfg.rainbow.gamma,
        padding=padding(cfg),
        channels_last=True,
        sampler=PrioritizedTransitionSampler(
            alpha=cfg.rainbow.priority_exponent, beta=cfg.rainbow.priority_correction_begin
        ),
        batch_size=cfg.rainbow.batch_size,
        transform=views,
    )
    return buffer, make_slices(cfg.contrastive, buffer, augmentation)
