"""Trains an encoder with any objective, without rewards; SAC, Rainbow and PPO can start from it.

    python recipes/pretrain.py agent=sac_cpu env=walker-walk algo=mcurl
    python recipes/pretrain.py agent=rainbow env=Pong data.source=replay data.path=RUN_DIR
    python recipes/sac_mcurl.py preset=cpu env=walker-walk encoder.init=FOLDER/encoder.pt encoder.frozen=true

The frames come from a random policy, from the replay of a run, or from a dataset of TorchRL. After training, a linear
probe measures how well the latents predict the simulator's state. Settings: conf/ and schema.py.
"""

from __future__ import annotations

from recipes.early_answers import answer_early
from recipes.schema import PretrainConfig

if __name__ == "__main__":  # before the imports that take seconds
    answer_early(config_name="pretrain", schema=PretrainConfig)

import copy
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from torchrl.data import LazyTensorStorage
from torchrl.envs import EnvBase

from mcurl_torchrl import AtariEncoder, AuxiliaryTask, FrameReplayBuffer, PixelEncoder
from mcurl_torchrl.agents import optimize
from mcurl_torchrl.agents.diagnostics import check_finite
from mcurl_torchrl.envs import simulator_state
from mcurl_torchrl.modules import save_encoder
from mcurl_torchrl.replay import atari_dqn_episodes, open_replay, vd4rl_episodes
from mcurl_torchrl.training import (
    Checkpoints,
    EpisodeStream,
    Table,
    derive_seed,
    seed_everything,
)
from recipes.building import make_augmentations, make_env, make_task, padding, settings_for
from recipes.launch import BadCommand, launch, pick_device
from recipes.probe import score
from recipes.value_checks import check_values


def main(cfg: PretrainConfig) -> None:
    pretrain(cfg, Path(HydraConfig.get().runtime.output_dir))


def pretrain(cfg: PretrainConfig, folder: Path) -> None:
    check(cfg)
    if (folder / "manifest.json").exists():
        raise BadCommand(
            f"{folder} is the folder of a run, whose files would be replaced: choose another hydra.run.dir"
        )
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True), encoding="utf-8")
    (folder / "metrics.csv").unlink(missing_ok=True)  # of a job that was preempted: this begins anew
    seed_everything(cfg.seed)
    device, buffer = pick_device(cfg.device), fill_buffer(cfg)
    env = make_env(cfg.env, training=False)  # its actions are those of the data; the probe plays it
    if cfg.probe.episodes:
        check_probe(cfg, buffer, env)
    encoder = make_encoder(cfg, buffer).to(device)
    untrained = copy.deepcopy(encoder)
    crop_size = cfg.encoder.crop_size if cfg.encoder.kind == "pixel" else None
    augmentation = make_augmentations(cfg.augmentation, crop_size=crop_size)["views"]
    task = make_task(cfg.objective, encoder, buffer, augmentation=augmentation, action_spec=env.action_spec)
    train(cfg, encoder, task, buffer, Table(folder / "metrics.csv"))
    print(f"written to {save_encoder(encoder, folder / 'encoder.pt')}")
    if cfg.probe.episodes:
        both = {"trained": encoder, "untrained": untrained}
        score(both, env, cfg.probe, seed=derive_seed(cfg.seed, "probe"), folder=folder)


def train(
    cfg: PretrainConfig,
    encoder: PixelEncoder | AtariEncoder,
    task: AuxiliaryTask,
    buffer: FrameReplayBuffer,
    metrics: Table,
) -> None:
    """Runs the updates, with one Adam for the encoder and the objective's own networks."""
    groups = [{"params": list(encoder.parameters())}, *task.param_groups(cfg.lr)]
    optimizer = torch.optim.Adam(groups, lr=cfg.lr, fused=True)
    schedule = task.make_schedule(optimizer)
    for update in range(1, cfg.updates + 1):
        out = task(task.sample(buffer.sample().to(task.device)))
        check_finite(update, loss_auxiliary=out["loss_auxiliary"].detach())
        optimize(out["loss_auxiliary"], optimizer)
        if schedule is not None:
            schedule.step()
        task.update_targets()
        if update % cfg.log_interval_updates == 0 or update == cfg.updates:
            row = {name: float(value.detach()) for name, value in out.items()}
            metrics.append({"update": update, **row})
            shown = ", ".join(f"{name} {row[name]:.3f}" for name in ("loss_auxiliary", *task.shown))
            print(f"update {update}/{cfg.updates}: {shown}", flush=True)


def check(cfg: PretrainConfig) -> None:
    """Refuses settings that do not fit together, before frames are collected."""
    check_values(cfg)
    if cfg.objective.name == "none":
        raise BadCommand("objective=none: pretraining needs an objective; choose another one")
    if cfg.probe.episodes == 1:
        raise BadCommand("probe.episodes=1; the probe needs at least 2, one of them to score on, or 0: no probe")
    if cfg.data.source == "replay" and cfg.data.path is None:
        raise BadCommand("data.source=replay needs data.path: a run directory, or a folder of FrameReplayBuffer.dumps")
    if cfg.data.source in ("atari_dqn", "vd4rl") and cfg.data.dataset is None:
        raise BadCommand(
            f"data.source={cfg.data.source} needs data.dataset, such as Pong/1 or main/walker_walk/random/64px"
        )


def check_probe(cfg: PretrainConfig, buffer: FrameReplayBuffer, env: EnvBase) -> None:
    """Refuses an environment whose frames are not those of the data, or whose state the probe cannot read."""
    found, expected = list(buffer.observations(1).shape[1:]), list(env.observation_spec["pixels"].shape)
    if found != expected:
        raise BadCommand(
            f"the stacks of the data are {found} (channels, height, width); env.image_size={cfg.env.image_size} and "
            f"env.num_frames={cfg.env.num_frames} give {expected}: set them as the data was made, for the probe, or "
            "probe.episodes=0"
        )
    env.reset()
    try:
        simulator_state(env)
    except (TypeError, ValueError) as error:
        raise BadCommand(f"{error}: the probe cannot be fitted; probe.episodes=0 trains without it") from None


# -- frames ------------------------------------------------------------------------------------------------------------


def fill_buffer(cfg: PretrainConfig) -> FrameReplayBuffer:
    """Makes the buffer and fills it with the frames to learn from."""
    if cfg.data.source == "replay":
        # Uniformly: the priorities of an agent come from rewards.
        return open_replay(
            *find_replay(Path(cfg.data.path)), batch_size=cfg.batch_size, channels_last=True, uniform=True
        )
    stacked = cfg.data.source == "random"
    buffer = FrameReplayBuffer(
        storage=LazyTensorStorage(2 * cfg.data.agent_steps, device="cpu"),  # an episode takes one more than its steps
        num_frames=cfg.env.num_frames,
        padding=padding(cfg.env),
        channels_last=True,
        stacked_input=stacked,
        batch_size=cfg.batch_size,
    )
    if stacked:
        play_at_random(cfg, buffer)
        return buffer
    read = {"atari_dqn": atari_dqn_episodes, "vd4rl": vd4rl_episodes}[cfg.data.source]
    left = cfg.data.agent_steps
    for episode in read(cfg.data.dataset, root=cfg.data.root):
        buffer.extend(episode[:left])
        left -= len(episode)
        if left <= 0:
            break
    return buffer


def play_at_random(cfg: PretrainConfig, buffer: FrameReplayBuffer) -> None:
    env = make_env(cfg.env, training=True)
    stream = EpisodeStream(env, seed=cfg.seed)
    for _ in range(cfg.data.agent_steps):
        buffer.add(stream.step(lambda observation: env.action_spec.rand()))


def find_replay(path: Path) -> tuple[Path, str]:
    """Returns the folder and the name of the newest saved replay of a run, or of a folder that ``dumps`` made."""
    checkpoints = Checkpoints(path / "checkpoints")
    saved = [one for one in checkpoints.list() if one.replay is not None] if path.is_dir() else []
    found = [one for one in saved if (checkpoints.replay_directory / f"{one.replay}.json").is_file()]
    return (checkpoints.replay_directory, str(found[-1].replay)) if found else (path, "latest")


def make_encoder(cfg: PretrainConfig, buffer: FrameReplayBuffer) -> PixelEncoder | AtariEncoder:
    """Makes the encoder for the observations of a buffer."""
    channels, size = buffer.observations(1).shape[1:3]
    if cfg.encoder.kind == "atari":
        return AtariEncoder(channels, size, architecture=cfg.encoder.architecture, rescale=cfg.encoder.rescale)
    if size < cfg.encoder.crop_size:
        raise BadCommand(f"encoder.crop_size={cfg.encoder.crop_size}; the frames are {size}x{size}")
    return PixelEncoder(channels, cfg.encoder.crop_size, **settings_for(PixelEncoder, cfg.encoder))


if __name__ == "__main__":
    launch(main, config_name="pretrain", schema=PretrainConfig)
