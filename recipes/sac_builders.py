"""The parts of the SAC recipe, built from its config: environment, networks, losses, optimizers, replay."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from schema import EnvConfig, SACRecipeConfig
from shared_builders import (
    KEY,
    check_contrastive,
    make_contrastive_loss,
    make_slices,
    make_storage,
    steps_before_a_slice,
)
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torchrl.envs import Compose, EnvBase
from torchrl.envs.transforms import Transform
from torchrl.objectives import SoftUpdate

from mcurl_torchrl import (
    CenterCrop,
    ContrastiveLoss,
    FrameReplayBuffer,
    LatentSAC,
    MaskedContrastiveLoss,
    RandomCrop,
    inverse_sqrt_warmup,
    make_dmc_env,
    make_pixel_env,
)
from mcurl_torchrl.checks import check_choice, check_count
from mcurl_torchrl.modules import GaussianPolicy, MomentumCopy
from mcurl_torchrl.replay import FrameSlices

UPDATES = ("critic", "actor", "targets", "contrastive")


def check_settings(cfg: SACRecipeConfig) -> None:
    """Refuses settings with which nothing, or not what was asked for, would be learned."""
    for part in cfg.sac.update_order:
        check_choice("sac.update_order", part, UPDATES)
    if sorted(cfg.sac.update_order) != sorted(UPDATES):
        raise ValueError(f"sac.update_order={list(cfg.sac.update_order)}; each of {list(UPDATES)} must be there once")
    check_contrastive(cfg.contrastive)
    for name in ("batch_size", "updates_per_agent_step", "actor_interval_updates", "target_interval_updates"):
        check_count(f"sac.{name}", getattr(cfg.sac, name))
    random_steps, least = cfg.sac.random_agent_steps, steps_before_a_slice(cfg.contrastive)
    if random_steps < least:
        raise ValueError(f"sac.random_agent_steps={random_steps}; it must be at least {least}, to fill the first batch")
    if random_steps * cfg.env.action_repeat >= cfg.total_env_steps:
        raise ValueError(
            f"sac.random_agent_steps={random_steps} of env.action_repeat={cfg.env.action_repeat} are all of "
            f"total_env_steps={cfg.total_env_steps}: nothing would be learned"
        )


def observation_key(cfg: SACRecipeConfig) -> str:
    return check_choice("sac.observation", cfg.sac.observation, ("pixels", "state"))


def make_env(cfg: SACRecipeConfig) -> EnvBase:
    """Makes an environment with images (or states) and actions in [-1, 1]."""
    env: EnvConfig = cfg.env
    shared = {"action_repeat": env.action_repeat, "image_size": env.image_size, "num_frames": env.num_frames}
    if check_choice("env.backend", env.backend, ("dmc", "gym")) == "dmc":
        if env.task is None:
            raise ValueError("env=dmc needs a task of the suite: env.task=humanoid-run, say")
        made = make_dmc_env(
            env.task,
            **shared,
            camera_id=env.camera_id,
            from_pixels=observation_key(cfg) == "pixels",
            shadows=env.shadows,
            multisampling=env.multisampling,
        )
    elif observation_key(cfg) == "state":
        raise ValueError("algo=state_sac learns from the low-level state of DMControl tasks; env=gym has images only")
    elif env.id is None:
        raise ValueError("env=gym needs what gymnasium.make takes: env.id=CarRacing-v3, say")
    else:
        made = make_pixel_env(env.id, **shared, render=env.render)
    if not made.action_spec.dtype.is_floating_point:
        raise ValueError(
            f"SAC needs continuous actions; {env.task or env.id} has {made.action_spec.shape[-1]} discrete ones: "
            "another algorithm is needed"
        )
    return made


def make_sac(cfg: SACRecipeConfig, env: EnvBase, device: torch.device) -> LatentSAC:
    key = observation_key(cfg)
    policy = GaussianPolicy(
        env.observation_spec[key].shape,
        env.action_spec.shape[-1],
        crop_size=cfg.encoder.crop_size if key == "pixels" else None,
        num_layers=cfg.encoder.num_layers,
        num_filters=cfg.encoder.num_filters,
        feature_dim=cfg.encoder.feature_dim,
        hidden_dim=cfg.sac.hidden_dim,
        log_std_bounds=tuple(cfg.sac.log_std_bounds),
    )
    return LatentSAC(
        policy.to(device),
        hidden_dim=cfg.sac.hidden_dim,
        gamma=cfg.sac.gamma,
        alpha_init=cfg.sac.alpha_init,
        alpha_loss=cfg.sac.alpha_loss,
        critic_tau=cfg.sac.critic_tau,
        encoder_tau=cfg.sac.encoder_tau,
        pixels_key=key,
    ).to(device)


def make_contrastive(cfg: SACRecipeConfig, sac: LatentSAC) -> MaskedContrastiveLoss | ContrastiveLoss | None:
    """Makes the loss beside SAC's; its keys come from the target critic's encoder."""
    loss = make_contrastive_loss(cfg.contrastive, sac.encoder, sac.target_encoder)
    if isinstance(loss, ContrastiveLoss) and cfg.contrastive.views == "batch":
        loss.set_keys(query_pixels="pixels")  # CURL: the crop that SAC learns from is the query
    return loss


def make_targets(
    cfg: SACRecipeConfig, sac: LatentSAC, contrastive: MaskedContrastiveLoss | ContrastiveLoss | None
) -> list[MomentumCopy | SoftUpdate]:
    """Lists what moves slow copies by its step(): of the critic, of its encoder, for sym-CURL of the Transformer."""
    targets: list[MomentumCopy | SoftUpdate] = [sac.target_critic, sac.target_encoder]
    if isinstance(contrastive, MaskedContrastiveLoss) and contrastive.key_context:
        targets.append(SoftUpdate(contrastive, tau=cfg.sac.encoder_tau))
    return targets


def make_optimizers(
    cfg: SACRecipeConfig, sac: LatentSAC, contrastive: MaskedContrastiveLoss | ContrastiveLoss | None
) -> tuple[dict[str, Optimizer], dict[str, LambdaLR]]:
    """Makes an Adam for each part, and the schedules of the contrastive ones."""
    lr, betas = cfg.sac.lr, tuple(cfg.sac.betas)
    optimizers: dict[str, Optimizer] = {
        "critic": Adam(sac.critic_parameters(), lr=lr, betas=betas, fused=True),
        "actor": Adam(sac.actor_parameters(), lr=lr, betas=betas, fused=True),
        "alpha": Adam([sac.sac.log_alpha], lr=cfg.sac.alpha_lr, betas=tuple(cfg.sac.alpha_betas), fused=True),
    }
    if contrastive is None:
        return optimizers, {}
    masked = isinstance(contrastive, MaskedContrastiveLoss)
    own = list(contrastive.context_network_params.parameters()) if masked else [contrastive.bilinear]
    optimizers["contrastive_encoder"] = Adam(
        sac.encoder.parameters(), lr=cfg.contrastive.encoder_lr_scale * lr, betas=betas, fused=True
    )
    optimizers["contrastive"] = Adam(own, lr=lr, betas=betas, fused=True)
    if not masked or cfg.contrastive.warmup_updates is None:
        return optimizers, {}  # CURL has no schedule
    warmup = cfg.contrastive.warmup_updates
    rising = inverse_sqrt_warmup(warmup, initial_scale=cfg.contrastive.warmup_initial_scale)
    schedules = {"contrastive": LambdaLR(optimizers["contrastive"], rising)}
    if cfg.contrastive.encoder_decays:
        falling = inverse_sqrt_warmup(warmup, constant_warmup=True)
        schedules["contrastive_encoder"] = LambdaLR(optimizers["contrastive_encoder"], falling)
    return optimizers, schedules


def make_replay(cfg: SACRecipeConfig, directory: Path) -> tuple[FrameReplayBuffer, FrameSlices | None]:
    """Makes the buffer, whose samples are SAC's batches, and the slices of it that the contrastive loss sees."""
    key = observation_key(cfg)
    buffer = FrameReplayBuffer(
        storage=make_storage(cfg.replay, directory),
        num_frames=cfg.env.num_frames if key == "pixels" else 1,
        pixels_key=key,
        frame_dtype=torch.uint8 if key == "pixels" else torch.float32,
        channels_last=True,
        gamma=cfg.sac.gamma,
        batch_size=cfg.sac.batch_size,
        transform=_augmentation(cfg) if key == "pixels" else None,
    )
    return buffer, make_slices(cfg.contrastive, buffer, functools.partial(RandomCrop, cfg.encoder.crop_size))


def _augmentation(cfg: SACRecipeConfig) -> Transform:
    """Makes what cuts the images of SAC's batch, observations and next observations each for itself."""
    size, both = cfg.encoder.crop_size, ["pixels", ("next", "pixels")]
    name = check_choice("encoder.augmentation", cfg.encoder.augmentation, ("random_crop", "center_crop"))
    cut = RandomCrop(size, in_keys=both) if name == "random_crop" else CenterCrop(size, in_keys=both)
    if cfg.contrastive.objective == "none" or cfg.contrastive.views == "slices":
        return cut
    return Compose(RandomCrop(size, in_keys=["pixels"], out_keys=[KEY]), cut)
