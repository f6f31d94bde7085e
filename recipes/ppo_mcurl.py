"""PPO from pixels with M-CURL or another auxiliary task, which learns from a replay of PPO's rollouts.

    python recipes/ppo_mcurl.py env=Breakout algo=mcurl preset=cpu seed=1
    python recipes/ppo_mcurl.py resume=RUN_DIR

`train` is the loop; the update is `PPOAgent.update` in mcurl_torchrl/agents/ppo.py. Settings: conf/ and schema.py.
"""

from __future__ import annotations

from recipes.early_answers import answer_early
from recipes.schema import PPORecipeConfig

if __name__ == "__main__":  # before the imports that take seconds
    answer_early(config_name="ppo_mcurl", schema=PPORecipeConfig)

from functools import partial
from pathlib import Path

import torch
from torchrl.data import Categorical
from torchrl.envs import EnvBase

from mcurl_torchrl import FrameReplayBuffer
from mcurl_torchrl.agents import PPOAgent
from mcurl_torchrl.modules import PPOPolicy
from mcurl_torchrl.objectives import LatentPPO
from mcurl_torchrl.training import Batches, EpisodeStreams, TrainingRun, WorkerRollouts, seed_everything
from recipes.building import (
    check_actions,
    check_room,
    check_workers,
    make_augmentations,
    make_computing,
    make_env,
    make_storage,
    make_task,
    padding,
    section,
    settings_for,
    start_encoder,
    worker_options,
)
from recipes.launch import recipe


def train(cfg: PPORecipeConfig, run: TrainingRun) -> None:
    seed_everything(cfg.seed)
    num_inline = cfg.ppo.num_envs if cfg.collector.backend == "inline" else 1
    envs = [make_env(cfg.env, training=True) for _ in range(num_inline)]
    evaluation_envs = [make_env(cfg.env, training=False) for _ in range(cfg.evaluation.num_envs)]
    buffer = make_replay(cfg, run.directory.path)
    agent = make_agent(cfg, envs[0], buffer, run.device)
    batches = Batches(buffer, agent.task, device=run.device, rl_reads=False, ahead=cfg.sample_ahead, seed=cfg.seed)
    streams = make_streams(cfg, envs, agent)
    parts = agent.components() | batches.components()
    run.track(agent.policy, replay=buffer, shown=agent.task.shown, streams=streams, **parts)

    run.begin(agent.exploit, evaluation_envs)
    for step in run.agent_steps(stride=cfg.ppo.num_envs * cfg.ppo.rollout_len):
        agent.begin_step(step)
        with run.timed("env"):
            rollout = streams.rollout(agent.explore, (step - run.completed) // cfg.ppo.num_envs)
            buffer.extend(rollout)
        for batch in agent.minibatches(rollout):
            with run.timed("sample"):
                _, views = batches.next()
            with run.timed("update"), batches.drawing():
                metrics = agent.update(batch, views, measure=run.log_due(step))
            run.record(step, metrics)
        for _ in range(cfg.ppo.auxiliary_phase):
            with run.timed("sample"):
                _, views = batches.next()
            with run.timed("update"), batches.drawing():
                metrics = agent.update_auxiliary(views)
            run.record(step, metrics)
        run.record(step, agent.end_step(step), episode_return=streams.last_return)
        run.finish_step(step, agent.exploit, evaluation_envs)


def check(cfg: PPORecipeConfig) -> None:
    """Refuses steps that cannot be divided among the environments, and a replay that is smaller than a rollout."""
    num_envs, total = cfg.ppo.num_envs, cfg.total_env_steps // cfg.env.action_repeat
    check_workers(cfg.collector)
    if num_envs % cfg.collector.num_workers or cfg.collector.envs_per_worker != 1:
        raise ValueError(
            f"collector.num_workers={cfg.collector.num_workers} must divide ppo.num_envs={num_envs}, and "
            f"collector.envs_per_worker={cfg.collector.envs_per_worker} must be 1: PPO does not use it"
        )
    if total % num_envs:
        raise ValueError(
            f"total_env_steps={cfg.total_env_steps} are {total} agent steps; ppo.num_envs={num_envs} must divide them"
        )
    if cfg.replay.capacity % num_envs or cfg.replay.capacity // num_envs < cfg.ppo.rollout_len:
        raise ValueError(
            f"replay.capacity={cfg.replay.capacity}; it must be a multiple of ppo.num_envs={num_envs}, and at least "
            f"{num_envs * cfg.ppo.rollout_len}, a rollout of all environments"
        )


def make_streams(cfg: PPORecipeConfig, envs: list[EnvBase], agent: PPOAgent) -> EpisodeStreams | WorkerRollouts:
    """Makes the object that collects rollouts: in ``envs``, or in workers that share ``ppo.num_envs`` environments."""
    if cfg.collector.backend == "inline":
        return EpisodeStreams(envs, seed=cfg.seed)
    return WorkerRollouts(
        partial(make_env, cfg.env, training=True),
        agent.explorer,
        rollout_len=cfg.ppo.rollout_len,
        envs_per_worker=cfg.ppo.num_envs // cfg.collector.num_workers,
        **worker_options(cfg),
    )


def make_replay(cfg: PPORecipeConfig, directory: Path) -> FrameReplayBuffer:
    """Makes the buffer, with a ring for each environment. Only the auxiliary task learns from it."""
    with section("ppo"):
        return FrameReplayBuffer(
            storage=make_storage(cfg.replay, directory, ndim=2),
            num_frames=cfg.env.num_frames,
            gamma=cfg.ppo.gamma,
            padding=padding(cfg.env),
            channels_last=True,
            batch_size=cfg.ppo.auxiliary_batch_size,
        )


def make_agent(cfg: PPORecipeConfig, env: EnvBase, buffer: FrameReplayBuffer, device: torch.device) -> PPOAgent:
    ppo, spec = cfg.ppo, env.action_spec
    discrete = type(spec) is Categorical
    check_actions(env, discrete=discrete, recipe="PPO", other="ppo_mcurl")
    check_room(buffer, env)
    actions = {"num_actions": spec.n} if discrete else {"action_dim": spec.shape[-1]}
    augmentations = make_augmentations(cfg.augmentation)
    with section("ppo"):
        policy = PPOPolicy(
            env.observation_spec["pixels"].shape,
            **actions,
            **settings_for(PPOPolicy, ppo),
        )
    start_encoder(policy.encoder, cfg)
    with section("ppo"):
        losses = LatentPPO(policy, **settings_for(LatentPPO, ppo)).to(device)
    task = make_task(cfg.objective, losses.encoder, buffer, augmentation=augmentations["views"], action_spec=spec)
    if ppo.rollout_len < task.steps_before_sampling:
        raise ValueError(
            f"ppo.rollout_len={ppo.rollout_len}; it must be at least {task.steps_before_sampling} for this auxiliary "
            "task, so that there is a batch to sample after the first rollout"
        )
    with section("ppo"):
        agent = PPOAgent(
            losses,
            task,
            total_agent_steps=cfg.total_env_steps // cfg.env.action_repeat,
            rollout_agent_steps=ppo.num_envs * ppo.rollout_len,
            **settings_for(PPOAgent, ppo),
            augmentation=augmentations["batch"],
        )
    agent.computing = make_computing(cfg, agent.device)
    return agent


if __name__ == "__main__":
    recipe(train, config_name="ppo_mcurl", schema=PPORecipeConfig, check=check)
