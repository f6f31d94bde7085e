"""M-CURL with data-efficient Rainbow on Atari-100k (https://arxiv.org/abs/2010.07470), and its baselines.

    python recipes/rainbow_mcurl.py env=MsPacman algo=mcurl preset=cpu seed=1
    python recipes/rainbow_mcurl.py resume=RUN_DIR
    torchrun --nproc-per-node=2 recipes/rainbow_mcurl.py env=MsPacman    # two processes share each batch

`train` is the loop; the update is `RainbowAgent.update` in mcurl_torchrl/agents/rainbow.py. Settings: conf/ and
schema.py.
"""

from __future__ import annotations

from recipes.early_answers import answer_early
from recipes.schema import RainbowRecipeConfig

if __name__ == "__main__":  # before the imports that take seconds
    answer_early(config_name="rainbow_mcurl", schema=RainbowRecipeConfig)

from pathlib import Path

import torch
from torchrl.envs import EnvBase

from mcurl_torchrl import CategoricalDQNLoss, FrameReplayBuffer, PrioritizedTransitionSampler
from mcurl_torchrl.agents import RainbowAgent
from mcurl_torchrl.modules import RainbowPolicy
from mcurl_torchrl.objectives import ExpectedDQNLoss
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
    padding,
    section,
    settings_for,
    start_encoder,
    storage_ndim,
    use_resets,
)
from recipes.launch import recipe


def train(cfg: RainbowRecipeConfig, run: TrainingRun) -> None:
    seed_everything(cfg.seed)
    env = make_env(cfg.env, training=True)
    evaluation_envs = [make_env(cfg.env, training=False) for _ in range(cfg.evaluation.num_envs)]
    buffer = make_replay(cfg, run.directory.path, run.ranks)
    agent = make_agent(cfg, env, buffer, run.device)
    batches = Batches(buffer, agent.task, device=run.device, ahead=cfg.sample_ahead, seed=cfg.seed)
    source = make_source(cfg, env, agent, buffer)
    parts = agent.components() | batches.components()
    run.track(agent.policy, replay=buffer, shown=agent.task.shown, stream=source, **parts)

    run.begin(agent.exploit, evaluation_envs)
    for step in run.agent_steps():
        with run.timed("env"):
            agent.begin_step(step)
            source.collect(step)
        for _ in range(agent.updates_due(step)):
            with run.timed("sample"):
                batch, views = batches.next()
            with run.timed("update"), batches.drawing():
                metrics = agent.update(batch, views, measure=run.log_due(step))
            run.record(step, metrics)
            buffer.update_tensordict_priority(batch)
        run.record(step, agent.end_step(step), episode_return=source.last_return)
        run.finish_step(step, agent.exploit, evaluation_envs)


def check(cfg: RainbowRecipeConfig) -> None:
    """Refuses settings that do not fit together."""
    check_collector(cfg)
    check_steps(cfg)
    check_priorities(cfg)
    check_evaluation(cfg)


def check_steps(cfg: RainbowRecipeConfig) -> None:
    """Refuses a first update that comes too early or too late."""
    first = cfg.rainbow.first_update_agent_steps
    # A transition can be sampled once the row n steps later is written, by the next step of its environment.
    least = (cfg.rainbow.n_step + 1) * num_columns(cfg.collector)
    if first < least:
        raise ValueError(
            f"rainbow.first_update_agent_steps={first}; it must be at least {least} with "
            f"rainbow.n_step={cfg.rainbow.n_step}, so that there is a transition to sample"
        )
    if first > cfg.total_env_steps // cfg.env.action_repeat:
        raise ValueError(
            f"rainbow.first_update_agent_steps={first} with env.action_repeat={cfg.env.action_repeat} are more than "
            f"total_env_steps={cfg.total_env_steps}: there would be no update"
        )


def check_priorities(cfg: RainbowRecipeConfig) -> None:
    """Refuses priorities that the loss does not have."""
    if cfg.rainbow.loss == "expected" and cfg.rainbow.priorities == "kl":
        raise ValueError(
            "rainbow.priorities=kl needs rainbow.loss=categorical: expected values have no entropy. With "
            "rainbow.loss=expected and rainbow.priorities=cross_entropy, the default, priorities are absolute TD errors"
        )


def check_evaluation(cfg: RainbowRecipeConfig) -> None:
    """Refuses evaluations that draw actions from the policy."""
    if cfg.evaluation.sample:
        raise ValueError(
            "evaluation.sample=true is for SAC and PPO: Rainbow's policy takes the best action and has no distribution "
            f"to draw from. evaluation.epsilon={cfg.evaluation.epsilon} is the probability of a random action"
        )


def make_replay(cfg: RainbowRecipeConfig, directory: Path, ranks: Ranks = ALONE) -> FrameReplayBuffer:
    rainbow, augmentation = cfg.rainbow, make_augmentations(cfg.augmentation)["batch"]
    with section("rainbow"):
        return FrameReplayBuffer(
            storage=make_storage(cfg.replay, directory, ndim=storage_ndim(cfg.collector), ranks=ranks),
            num_columns=num_columns(cfg.collector),
            num_frames=cfg.env.num_frames,
            n_step=rainbow.n_step,
            gamma=rainbow.gamma,
            padding=padding(cfg.env),
            channels_last=True,
            sampler=PrioritizedTransitionSampler(
                alpha=rainbow.priority_exponent, beta=rainbow.priority_correction_begin
            ),
            batch_size=rainbow.batch_size,
            transform=augment_transitions(augmentation, second_next=cfg.augmentation.second_next),
            ranks=ranks,
        )


def make_agent(cfg: RainbowRecipeConfig, env: EnvBase, buffer: FrameReplayBuffer, device: torch.device) -> RainbowAgent:
    check_actions(env, discrete=True, recipe="Rainbow", other="sac_mcurl")
    check_room(buffer, env)
    rainbow = cfg.rainbow
    with section("rainbow"):
        policy = RainbowPolicy(
            env.observation_spec["pixels"].shape,
            env.action_spec.n,
            **settings_for(RainbowPolicy, rainbow),
        ).to(device)
    start_encoder(policy.network.encoder, cfg)
    with section("rainbow"):
        if rainbow.loss == "categorical":
            value = CategoricalDQNLoss(policy.network, **settings_for(CategoricalDQNLoss, rainbow))
        else:
            value = ExpectedDQNLoss(policy.network, **settings_for(ExpectedDQNLoss, rainbow))
    task = make_task(
        cfg.objective,
        policy.network.encoder,
        buffer,
        augmentation=make_augmentations(cfg.augmentation)["views"],
        action_spec=env.action_spec,
        head=policy.network.head,
    )
    if rainbow.first_update_agent_steps < (least := task.steps_before_sampling * num_columns(cfg.collector)):
        raise ValueError(
            f"rainbow.first_update_agent_steps={rainbow.first_update_agent_steps}; it must be at least {least} for "
            "this auxiliary task, so that there is a batch to sample"
        )
    with section("rainbow"):
        agent = RainbowAgent(
            policy,
            value,
            task,
            sampler=buffer.sampler,
            random_action=env.action_spec.rand,
            total_agent_steps=cfg.total_env_steps // cfg.env.action_repeat,
            **settings_for(RainbowAgent, rainbow),
            ranks=buffer.ranks,
        )
    learning_steps = cfg.total_env_steps // cfg.env.action_repeat - rainbow.first_update_agent_steps + 1
    use_resets(agent, cfg.resets, total_updates=learning_steps * rainbow.updates_per_agent_step)
    agent.computing = make_computing(cfg, agent.device)
    return agent


if __name__ == "__main__":
    recipe(train, config_name="rainbow_mcurl", schema=RainbowRecipeConfig, check=check, learns_on_ranks=True)
