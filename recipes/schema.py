"""The typed schema of the recipes' configs: every key that a YAML or a command line may set, with its default.

Defaults are the published settings. Units stand in the names: `env_steps` are simulator steps (agent steps times action
repeat), `agent_steps` are decisions, `updates` are gradient updates. On Atari an env step is a decision, as in the name
of the benchmark: Atari-100k is 100,000 of them, each of `env.frame_skip` frames of the emulator.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf


@dataclass
class EnvConfig:
    backend: str = "dmc"  # dmc | gym
    task: str | None = None  # dmc: domain-task, such as cartpole-swingup
    id: str | None = None  # gym: what gymnasium.make takes
    action_repeat: int = 4
    num_frames: int = 3  # in an observation
    image_size: int = 100  # as rendered, or resized to; the encoder sees a crop of it
    camera_id: int | None = None  # null: 0, and 2 for quadruped
    shadows: bool = True
    multisampling: bool = True
    render: bool = False  # gym: render images instead of taking the env's observation


@dataclass
class EncoderConfig:
    crop_size: int = 84
    augmentation: str = "random_crop"  # of what SAC learns from: random_crop | center_crop
    num_layers: int = 4
    num_filters: int = 32
    feature_dim: int = 50


@dataclass
class SACConfig:
    observation: str = "pixels"  # pixels | state
    hidden_dim: int = 1024
    log_std_bounds: tuple[float, float] = (-10.0, 2.0)
    batch_size: int = 128
    gamma: float = 0.99
    lr: float = 1e-3  # of critic, actor and the contrastive loss's own networks
    betas: tuple[float, float] = (0.9, 0.999)
    alpha_lr: float = 1e-4
    alpha_betas: tuple[float, float] = (0.5, 0.999)
    alpha_init: float = 0.1
    alpha_loss: str = "alpha"  # alpha (the released code) | log_alpha (TorchRL)
    critic_tau: float = 0.01
    encoder_tau: float = 0.05
    random_agent_steps: int = 1000  # before the first update
    updates_per_agent_step: int = 1
    actor_interval_updates: int = 2
    target_interval_updates: int = 2
    update_order: list[str] = field(default_factory=lambda: ["critic", "actor", "targets", "contrastive"])


@dataclass
class ContrastiveConfig:
    """What the contrastive losses of both recipes have in common."""

    objective: str = "none"  # none | masked (M-CURL) | bilinear (CURL)
    views: str = "slices"  # slices: of consecutive observations | batch: the i.i.d. batch that RL learns from
    num_slices: int = 16
    slice_len: int = 32
    mask_ratio: float = 0.5
    zero: float = 0.8  # of the hidden observations, the part that becomes zeros
    replace: float = 0.1  # and the part that becomes another observation
    num_layers: int = 2  # of the context Transformer
    num_heads: int = 1
    dropout: float = 0.1
    scale_attention: bool = True
    negatives: str = "batch"  # batch | sequence
    reduction: str = "mean"  # mean | sum
    temperature: float = 1.0
    key_context: bool = False
    coeff: float = 1.0  # of the loss; in SAC's recipe it has an Adam of its own, which removes a loss's scale
    warmup_updates: int | None = None  # of the learning rate of the Transformer; null: constant
    warmup_initial_scale: float = 5e-4


@dataclass
class SACContrastiveConfig(ContrastiveConfig):
    encoder_lr_scale: float = 2.0  # the encoder's contrastive learning rate, in units of sac.lr
    encoder_decays: bool = True  # whether the encoder's contrastive learning rate falls after the warm-up, too


@dataclass
class RainbowContrastiveConfig(ContrastiveConfig):
    num_slices: int = 8
    slice_len: int = 16
    projection: str = "none"  # between the encoder's features and the loss: none | linear | curl
    feature_dim: int = 128  # of a projection
    hidden_dim: int = 256  # of CURL's projection
    augmentation: str = "shift"  # of both views: shift (CURL's) | none
    tau: float = 0.001  # how far the momentum copy moves at each update
    warmup_updates: int | None = 6000  # of the learning rate of the Transformer; null: constant


@dataclass
class AtariConfig:
    backend: str = "atari"  # atari | gym
    game: str | None = None  # atari: such as MsPacman
    id: str | None = None  # gym: what gymnasium.make takes
    frame_skip: int = 4  # how often an action is repeated
    num_frames: int = 4  # in an observation
    image_size: int = 84
    interpolation: str = "bilinear"  # atari: how screens are shrunk: bilinear | area
    max_noops: int = 29  # at the start of a game
    max_emulator_frames: int = 108_000  # of a game
    terminal_on_life_loss: bool = True  # in training
    clip_rewards: bool = True  # to [-1, 1], in training
    render: bool = False  # gym: render images instead of taking the env's observation
    curl_coeff: float = 1.0  # what CURL weighs its loss by on this game


@dataclass
class RainbowConfig:
    loss: str = "categorical"  # categorical (C51) | expected (TorchRL's DQNLoss, on expected values)
    architecture: str = "data_efficient"  # of the encoder: data_efficient | nature
    hidden_dim: int = 256  # of the head
    num_atoms: int = 51
    value_bounds: tuple[float, float] = (-10.0, 10.0)
    dueling: bool = True
    double: bool = True
    noisy: bool = True
    sigma_init: float = 0.1
    epsilon_begin: float = 0.0  # of random actions before the first update
    epsilon_end: float = 0.0
    epsilon_decay_agent_steps: int = 1  # from the first update on
    n_step: int = 20
    gamma: float = 0.99
    batch_size: int = 32
    priority_exponent: float = 0.5
    priority_correction_begin: float = 0.4  # beta, the exponent of the importance weights, at the first update
    priority_correction_end: float = 1.0  # and at the last
    lr: float = 1e-4
    adam_eps: float = 1.5e-4
    max_gradient_norm: float | None = 10.0  # null: no clipping
    first_update_agent_steps: int = 1600
    updates_per_agent_step: int = 1
    target_interval_agent_steps: int = 2000


@dataclass
class ReplayConfig:
    capacity: int = 100_000  # rows: an episode takes one more than its agent steps
    memmap: bool = False  # on disk, in the run directory, instead of in memory


@dataclass
class EvaluationConfig:
    interval_env_steps: int = 20_000
    episodes: int = 10
    final_episodes: int | None = None  # of the last evaluation; null: as many as of the others
    num_envs: int = 1  # how many are played side by side
    epsilon: float = 0.0  # of random actions; for discrete actions
    video: bool = True


@dataclass
class CheckpointConfig:
    interval_agent_steps: int = 2_500  # and at every evaluation, and when the run is stopped
    keep_last: int = 2  # the best by evaluation is kept as well


@dataclass
class LoggingConfig:
    interval_agent_steps: int = 100
    tensorboard: bool = True
    wandb: Any = None  # null or, for example, {project: mcurl, mode: offline}
    mlflow: Any = None  # null or, for example, {experiment: mcurl}
    progress: bool | None = None  # null: a bar on a terminal, lines elsewhere


@dataclass
class RecipeConfig:
    """What the recipes have in common; launch.py reads it."""

    replay: ReplayConfig = field(default_factory=ReplayConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    recipe: str = MISSING  # which script; evaluate.py reads it
    algo_name: str = MISSING
    preset_name: str = MISSING
    total_env_steps: int = MISSING
    seed: int = 1
    device: str = "auto"  # auto: a GPU where there is one
    threads: int | None = None  # torch's; null: as torch chooses
    resume: str | None = None  # a run directory to continue
    resume_changed: bool = False  # continue although settings differ


@dataclass
class SACRecipeConfig(RecipeConfig):
    env: EnvConfig = field(default_factory=EnvConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    sac: SACConfig = field(default_factory=SACConfig)
    contrastive: SACContrastiveConfig = field(default_factory=SACContrastiveConfig)
    recipe: str = "sac_mcurl"
    total_env_steps: int = 500_000


@dataclass
class RainbowRecipeConfig(RecipeConfig):
    env: AtariConfig = field(default_factory=AtariConfig)
    rainbow: RainbowConfig = field(default_factory=RainbowConfig)
    contrastive: RainbowContrastiveConfig = field(default_factory=RainbowContrastiveConfig)
    evaluation: EvaluationConfig = field(
        default_factory=lambda: EvaluationConfig(10_000, final_episodes=100, num_envs=10, epsilon=0.001)
    )
    recipe: str = "rainbow_mcurl"
    total_env_steps: int = 100_000


@dataclass
class EvaluateConfig:
    run: str = MISSING  # a run directory
    which: str = "latest"  # latest | best | an agent step that has a checkpoint
    episodes: int = 10
    num_envs: int = 1  # how many are played side by side
    epsilon: float | None = None  # of random actions; null: as in the run
    seed: int = 0
    video: bool = True
    export: str | None = None  # a file for torch.export, say policy.pt2
    device: str = "cpu"


@dataclass
class ReportConfig:
    runs: Any = MISSING  # a folder that holds runs at any depth, a suite's for example, or a list of such folders
    out: str = "report"  # a folder for the report
    title: str = "Report"
    bootstrap_repetitions: int = 10_000
    published: str | None = None  # a folder with published results; null: published/, beside the recipes


OmegaConf.register_new_resolver("first", lambda *values: next((v for v in values if v is not None), None), replace=True)
OmegaConf.register_new_resolver("agent_steps", lambda env_steps, repeat: env_steps // repeat, replace=True)
OmegaConf.register_new_resolver("multiply", lambda *factors: math.prod(factors), replace=True)
ConfigStore.instance().store(name="sac_schema", node=SACRecipeConfig)
ConfigStore.instance().store(name="rainbow_schema", node=RainbowRecipeConfig)
ConfigStore.instance().store(name="evaluate_schema", node=EvaluateConfig)
ConfigStore.instance().store(name="report_schema", node=ReportConfig)
