"""M-CURL with SAC on the DeepMind Control Suite (https://arxiv.org/abs/2010.07470), and its baselines.

    python recipes/sac_mcurl.py env=cartpole-swingup algo=mcurl preset=cpu seed=1
    python recipes/sac_mcurl.py resume=RUN_DIR
    torchrun --nproc-per-node=2 recipes/sac_mcurl.py env=cartpole-swingup    # two processes share each batch

`train` is the loop; the update is `SACAgent.update` in mcurl_torchrl/agents/sac.py. Settings: conf/ and schema.py.
"""

from __future__ import annotations

from recipes.early_answers import answer_early
from recipes.schema import SACRecipeConfig

if __name__ == "__main__":  # before the imports that take seconds
    answer_early(config_name="sac_mcurl", schema=SACRecipeConfig)

from pathlib import Path

import torch
from torchrl.envs import EnvBase

from mcurl_torchrl import FrameReplayBuffer, LatentSAC
from mcurl_torchrl.agents import SACAgent
from mcurl_torchrl.modules import GaussianPolicy
from mcurl_torchrl.ranks import ALONE, Ranks
from mcurl_torchrl.training import Batches, TrainingRun, seed_everything
from mcurl_torchrl.transforms import augment_transitions
from recipes.building import (
    check_actions,
    check_collector,
    check_room,
    make_augmentations,
    make_computing,
    make_env,
    make_source,
    make_storage,
    make_task,
    num_columns,
    section,
    settings_for,
    start_encoder,
    storage_ndim,
    use_resets,
)
from recipes.launch import recipe


def train(cfg: SACRecipeConfig, run: TrainingRun) -> None:
    seed_everything(cfg.seed)
    env, evaluation_env = (make_env(cfg.env, training=training) for training in (True, False))
    buffer = make_replay(cfg, run.directory.path, run.ranks)
    agent = make_agent(cfg, env, buffer, run.device)
    batches = Batches(buffer, agent.task, device=run.device, ahead=cfg.sample_ahead, seed=cfg.seed)
    source = make_source(cfg, env, agent, buffer)
    parts = agent.components() | batches.components()
    run.track(agent.policy, replay=buffer, shown=agent.task.shown, stream=source, **parts)

    run.begin(agent.exploit, evaluation_env)
    for step in run.agent_steps():
        agent.begin_step(step)
        with run.timed("env"):
            source.collect(step)
        for _ in range(agent.updates_due(step)):
            with run.timed("sample"):
                batch, views = batches.next()
            with run.timed("update"), batches.drawing():
                metrics = agent.update(batch, views, measure=run.log_due(step))
            run.record(step, metrics)
        run.record(step, agent.end_step(step), episode_return=source.last_return)
        run.finish_step(step, agent.exploit, evaluation_env)


def check(cfg: SACRecipeConfig) -> None:
    """Refuses settings that do not fit together."""
    check_collector(cfg)
    check_steps(cfg)


def check_steps(cfg: SACRecipeConfig) -> None:
    """Refuses a run that would end before its first update."""
    random_steps = cfg.sac.random_agent_steps
    if random_steps * cfg.env.action_repeat >= cfg.total_env_steps:
        raise ValueError(
            f"sac.random_agent_steps={random_steps} with env.action_repeat={cfg.env.action_repeat} use up "
            f"total_env_steps={cfg.total_env_steps}: there would be no update"
        )


def make_replay(cfg: SACRecipeConfig, directory: Path, ranks: Ranks = ALONE) -> FrameReplayBuffer:
    """Makes the buffer, which augments observations and next observations independently."""
    pixels = cfg.env.observation == "pixels"
    augmentation = make_augmentations(cfg.augmentation, crop_size=cfg.encoder.crop_size)["batch"]
    with section("sac"):
        return FrameReplayBuffer(
            storage=make_storage(cfg.replay, directory, ndim=storage_ndim(cfg.collector), ranks=ranks),
            num_columns=num_columns(cfg.collector),
            num_frames=cfg.env.num_frames if pixels else 1,
            pixels_key=cfg.env.observation,
            frame_dtype=torch.uint8 if pixels else torch.float32,
            channels_last=True,
            gamma=cfg.sac.gamma,
            batch_size=cfg.sac.batch_size,
            transform=augment_transitions(augmentation) if pixels else None,
            ranks=ranks,
        )


def make_agent(cfg: SACRecipeConfig, env: EnvBase, buffer: FrameReplayBuffer, device: torch.device) -> SACAgent:
    check_actions(env, discrete=False, recipe="SAC", other="rainbow_mcurl")
    check_room(buffer, env)
    sac, key = cfg.sac, cfg.env.observation
    networks = settings_for(GaussianPolicy, cfg.encoder, sac)
    if key != "pixels":
        networks["crop_size"] = None
    policy = GaussianPolicy(env.observation_spec[key].shape, env.action_spec.shape[-1], **networks)
    start_encoder(policy.encoder, cfg)
    with section("sac"):
        losses = LatentSAC(policy.to(device), **settings_for(LatentSAC, sac), pixels_key=key).to(device)
    task = make_task(
        cfg.objective,
        losses.encoder,
        buffer,
        augmentation=make_augmentations(cfg.augmentation, crop_size=cfg.encoder.crop_size)["views"],
        target_encoder=losses.target_encoder,
        action_spec=env.action_spec,
    )
    if sac.random_agent_steps < (least := task.steps_before_sampling * num_columns(cfg.collector)):
        raise ValueError(
            f"sac.random_agent_steps={sac.random_agent_steps}; it must be at least {least}, to "
            "fill the first batch of the auxiliary task"
        )
    with section("sac"):
        agent = SACAgent(
            losses,
            task,
            random_action=env.action_spec.rand,
            **settings_for(SACAgent, sac),
            ranks=buffer.ranks,
        )
    learning_steps = cfg.total_env_steps // cfg.env.action_repeat - sac.random_agent_steps
    use_resets(agent, cfg.resets, total_updates=learning_steps * sac.updates_per_agent_step)
    agent.computing = make_computing(cfg, agent.device)
    return agent


if __name__ == "__main__":
    recipe(train, config_name="sac_mcurl", schema=SACRecipeConfig, check=check, learns_on_ranks=True)
