"""M-CURL with SAC on the DeepMind Control Suite (https://arxiv.org/abs/2010.07470), and its baselines.

    python recipes/sac_mcurl.py env=cartpole-swingup algo=mcurl preset=cpu seed=1
    python recipes/sac_mcurl.py resume=RUN_DIR

`train` and `update` are the whole method; sac_builders.py makes their parts. Settings: conf/ and schema.py.
"""

from __future__ import annotations

import sac_builders as build
import torch
from launch import recipe
from published_scores import published_scores
from schema import SACRecipeConfig
from shared_builders import named, sample_slices
from torch import Tensor

from mcurl_torchrl.training import (
    EpisodeStream,
    TrainingRun,
    effective_rank,
    gradient_norm,
    latent_spread,
    optimize,
    seed_everything,
)


def train(cfg: SACRecipeConfig, run: TrainingRun) -> None:
    build.check_settings(cfg)
    seed_everything(cfg.seed)
    env, evaluation_env = build.make_env(cfg), build.make_env(cfg)
    sac = build.make_sac(cfg, env, run.device)
    contrastive = build.make_contrastive(cfg, sac)
    targets = build.make_targets(cfg, sac, contrastive)
    optimizers, schedules = build.make_optimizers(cfg, sac, contrastive)
    buffer, slices = build.make_replay(cfg, run.directory.path)
    stream = EpisodeStream(env, seed=cfg.seed, observation_key=build.observation_key(cfg))
    run.track(replay=buffer, sac=sac, contrastive=contrastive, stream=stream, **named(optimizers, schedules))
    run.describe(
        sac.policy, num_frames=buffer.num_frames, reference=published_scores(cfg.env.task, cfg.total_env_steps)
    )

    def random_action(observation: Tensor) -> Tensor:
        return env.action_spec.rand()

    @torch.inference_mode()
    def sampled_action(observation: Tensor) -> Tensor:
        return sac.policy.sample(observation.to(run.device)).cpu()

    @torch.inference_mode()
    def mean_action(observation: Tensor) -> Tensor:
        return sac.policy(observation.to(run.device)).cpu()

    if run.begin() == 0:
        run.evaluate(0, mean_action, evaluation_env, observation_key=stream.observation_key)
    for step in run.agent_steps():
        warming_up = step <= cfg.sac.random_agent_steps
        if step == cfg.sac.random_agent_steps + 1:
            run.learning_begins()
        with run.timed("env"):
            buffer.add(stream.step(random_action if warming_up else sampled_action))

        for repeat in range(0 if warming_up else cfg.sac.updates_per_agent_step):
            with run.timed("sample"):
                batch = buffer.sample().to(run.device)
                views = batch if slices is None else sample_slices(cfg.contrastive, slices).to(run.device)
            with run.timed("update"):
                number = (step - cfg.sac.random_agent_steps - 1) * cfg.sac.updates_per_agent_step + repeat
                metrics = update(
                    cfg, number, sac, contrastive, targets, optimizers, schedules, batch, views, run.log_due(step)
                )
            run.check_finite(step, metrics)
            run.note(metrics)

        if run.log_due(step):
            run.note({} if stream.last_return is None else {"episode_return": stream.last_return})
            run.log(step)
        if run.evaluation_due(step):
            run.evaluate(step, mean_action, evaluation_env, observation_key=stream.observation_key)
        if run.checkpoint_due(step):
            run.save(step)


def update(cfg, number, sac, contrastive, targets, optimizers, schedules, batch, views, measure) -> dict[str, Tensor]:
    """Takes one update, part by part. The released code's order: critic, actor and alpha, targets, contrastive."""
    metrics: dict[str, Tensor] = {}
    for part in cfg.sac.update_order:
        if part == "critic":
            losses = sac.critic_loss(batch)
            optimize(losses["loss_qvalue"], optimizers["critic"])
            metrics |= {"loss_qvalue": losses["loss_qvalue"], "td_error": losses["td_error"].mean()}
            if measure:
                metrics["gradient_norm_critic"] = gradient_norm(sac.critic_parameters())
                metrics["gradient_norm_encoder"] = gradient_norm(sac.encoder.parameters())
                metrics["latent_spread"] = latent_spread(losses["critic_latent"])
                metrics["latent_rank"] = effective_rank(losses["critic_latent"])

        elif part == "actor" and number % cfg.sac.actor_interval_updates == 0:
            losses = sac.actor_loss(batch)
            optimize(losses["loss_actor"], optimizers["actor"])
            optimize(losses["loss_alpha"], optimizers["alpha"])
            metrics |= dict(losses.items())
            # Not only where it is logged: the actor steps in every second update, and may never step in that one.
            metrics["gradient_norm_actor"] = gradient_norm(sac.actor_parameters())

        elif part == "targets" and number % cfg.sac.target_interval_updates == 0:
            for target in targets:
                target.step()

        elif part == "contrastive" and contrastive is not None:
            losses = contrastive(views)
            loss = cfg.contrastive.coeff * losses["loss_contrastive"]
            optimize(loss, optimizers["contrastive_encoder"], optimizers["contrastive"])
            for schedule in schedules.values():
                schedule.step()
            metrics |= dict(losses.items())
            if measure:
                metrics["gradient_norm_encoder_contrastive"] = gradient_norm(sac.encoder.parameters())
    return {name: value.detach() for name, value in metrics.items()}


if __name__ == "__main__":
    recipe(train, config_name="sac_mcurl", schema=SACRecipeConfig)
