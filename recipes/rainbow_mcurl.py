"""M-CURL with data-efficient Rainbow on Atari-100k (https://arxiv.org/abs/2010.07470), and its baselines.

    python recipes/rainbow_mcurl.py env=MsPacman algo=mcurl preset=cpu seed=1
    python recipes/rainbow_mcurl.py resume=RUN_DIR

`train` and `update` are the whole method; rainbow_builders.py makes their parts. Settings: conf/rainbow/ and schema.py.
"""

from __future__ import annotations

import functools
import math

import rainbow_builders as build
import torch
from launch import recipe
from published_scores import published_scores, random_and_human_score
from schema import RainbowRecipeConfig
from shared_builders import sample_slices
from torch import Tensor

from mcurl_torchrl.training import (
    EpisodeStream,
    TrainingRun,
    effective_rank,
    gradient_norm,
    latent_spread,
    linear_schedule,
    optimize,
    seed_everything,
)


def train(cfg: RainbowRecipeConfig, run: TrainingRun) -> None:
    build.check_settings(cfg)
    seed_everything(cfg.seed)
    env = build.make_env(cfg, training=True)
    evaluation_envs = [build.make_env(cfg, training=False) for _ in range(cfg.evaluation.num_envs)]
    policy = build.make_policy(cfg, env, run.device)
    value = build.make_value_loss(cfg, policy)
    contrastive, momentum = build.make_contrastive(cfg, policy)
    optimizer, schedule = build.make_optimizer(cfg, policy, contrastive)
    buffer, slices = build.make_replay(cfg, run.directory.path)
    stream = EpisodeStream(env, seed=cfg.seed)
    run.track(
        replay=buffer, value=value, contrastive=contrastive, stream=stream, optimizer=optimizer, schedule=schedule
    )
    run.describe(
        policy,
        num_frames=cfg.env.num_frames,
        padding=build.padding(cfg),
        reference=published_scores(cfg.env.game, cfg.total_env_steps),
        baselines=random_and_human_score(cfg.env.game),
    )
    first = cfg.rainbow.first_update_agent_steps
    beta = linear_schedule(
        (first, cfg.rainbow.priority_correction_begin), (run.total, cfg.rainbow.priority_correction_end)
    )
    epsilon = linear_schedule(
        (first, cfg.rainbow.epsilon_begin), (first + cfg.rainbow.epsilon_decay_agent_steps, cfg.rainbow.epsilon_end)
    )

    @torch.inference_mode()
    def explore(observation: Tensor, chance: float) -> Tensor:
        if chance > 0 and torch.rand(()) < chance:
            return env.action_spec.rand()
        return policy(observation.to(run.device)).cpu()

    @torch.inference_mode()
    def exploit(observations: Tensor) -> Tensor:
        return policy.act_without_noise(observations.to(run.device)).cpu()

    if run.begin() == 0:
        run.evaluate(0, exploit, evaluation_envs)
    for step in run.agent_steps():
        if step == first:
            run.learning_begins()
        with run.timed("env"):
            policy.reset_noise()  # to act and to learn with
            buffer.add(stream.step(functools.partial(explore, chance=epsilon(step))))

        for _ in range(cfg.rainbow.updates_per_agent_step if step >= first else 0):
            with run.timed("sample"):
                buffer.sampler.beta = beta(step)
                batch = buffer.sample().to(run.device)
                views = batch if slices is None else sample_slices(cfg.contrastive, slices).to(run.device)
            with run.timed("update"):
                metrics = update(
                    cfg, policy, value, contrastive, momentum, optimizer, schedule, batch, views, run.log_due(step)
                )
            run.check_finite(step, metrics)
            buffer.update_tensordict_priority(batch)
            run.note(metrics)
        if step % cfg.rainbow.target_interval_agent_steps == 0:
            value.copy_to_target()

        if run.log_due(step):
            run.note({} if stream.last_return is None else {"episode_return": stream.last_return})
            run.note({"priority_correction": beta(step), "epsilon": epsilon(step)})
            run.log(step)
        if run.evaluation_due(step):
            run.evaluate(step, exploit, evaluation_envs)
        if run.checkpoint_due(step):
            run.save(step)


def update(
    cfg, policy, value, contrastive, momentum, optimizer, schedule, batch, views, measure: bool
) -> dict[str, Tensor]:
    """Takes one update: one loss for Rainbow and the encoder's contrastive task, one step of one Adam."""
    value.reset_target_noise()
    metrics = dict(value(batch).items()) | {"td_error": batch["td_error"].mean()}
    loss = metrics["loss_value"]
    if contrastive is not None:
        metrics |= dict(contrastive(views).items())
        loss = loss + cfg.contrastive.coeff * metrics["loss_contrastive"]
    norm = optimize(loss, optimizer, max_norm=cfg.rainbow.max_gradient_norm or math.inf)
    if schedule is not None:
        schedule.step()
    if momentum is not None:
        momentum.step()
    if measure:
        metrics["gradient_norm"] = norm  # of all, before clipping
        metrics["gradient_norm_encoder_clipped"] = gradient_norm(policy.network.encoder.parameters())
        with torch.no_grad():
            latents = policy.network.encoder.features(batch["pixels"])
        metrics |= {"latent_spread": latent_spread(latents), "latent_rank": effective_rank(latents)}
    return {name: number.detach() for name, number in metrics.items()}


if __name__ == "__main__":
    recipe(train, config_name="rainbow_mcurl", schema=RainbowRecipeConfig)
