"""The typed schema of the recipes' configs: every key that a YAML or a command line may set, with its default.

Defaults are the published settings. Units stand in the names: `env_steps` are simulator steps (agent steps times action
repeat), `agent_steps` are decisions, `updates` are gradient updates. On Atari an env step is a decision, as in the name
of the benchmark: Atari-100k is 100,000 of them, each of `env.frame_skip` frames of the emulator.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf


def choice(*choices: str, default: str | None = None) -> Any:
    """Makes a key that takes one of ``choices``; the default is the first one."""
    return field(default=choices[0] if default is None else default, metadata={"choices": choices})


def needed(example: str) -> Any:
    """Makes a field that every command has to set; a command without it is shown the example."""
    return field(default=MISSING, metadata={"example": example})


@dataclass
class PublishedConfig:
    """Settings that were published for one environment; recipes and objectives refer to them."""

    sac_lr: float = 1e-3  # SAC's learning rate
    sac_batch_size: int = 128  # SAC's batch
    mask_ratio: float = 0.5  # of M-CURL
    mlr_block_len: int = 8  # of MLR
    curl_coeff: float = 1.0  # the weight of CURL's loss


@dataclass
class EnvConfig:
    backend: str = choice("dmc", "atari", "gym", default=MISSING)  # which kind of environment
    task: str | None = None  # dmc: domain-task, such as cartpole-swingup
    game: str | None = None  # atari: such as MsPacman
    id: str | None = None  # gym: the id for gymnasium.make; modules of the current folder can be named
    kwargs: Any = None  # gym: null or keyword arguments of gymnasium.make, such as {size: 8}
    pixels_key: str | None = None  # gym: which of several observations is the image; null: the only one
    action_repeat: int = 1  # env steps per agent step
    num_frames: int = MISSING  # in an observation
    image_size: int = MISSING  # height and width of a frame, in pixels
    observation: str = choice("pixels", "state")  # state: for dmc
    camera_id: int | None = None  # dmc; null: 0, and 2 for quadruped; -1: MuJoCo's free camera
    shadows: bool = True  # dmc
    multisampling: bool = True  # dmc
    frame_skip: int = 4  # atari: frames of the emulator per env step
    interpolation: str = choice("bilinear", "area")  # atari: how screens are shrunk
    max_noops: int = 29  # atari: at the start of a game
    max_emulator_frames: int = 108_000  # atari: of a game
    terminal_on_life_loss: bool = True  # atari, in training
    clip_rewards: bool = True  # to [-1, 1], in training, for discrete actions
    render: bool = False  # gym: render images instead of taking the env's observation
    published: PublishedConfig = field(default_factory=PublishedConfig)


@dataclass
class AugmentationConfig:
    """What is done to sampled images. One word, such as augmentation=shift, sets RL's batches and the task's views.

    crop: a part at a random place, for SAC. shift: by up to 4 pixels. curl_shift: crop, repeat the border, crop back.
    """

    batch: str = choice("none", "crop", "shift", "curl_shift")  # of the observations that RL learns from
    batch_intensity: float = 0.0  # of a change of their brightness afterwards, such as 0.05; 0: none
    views: str = choice("none", "crop", "shift", "curl_shift")  # of the auxiliary task's views
    views_intensity: float = 0.0  # of a change of their brightness afterwards; 0: none
    second_next: bool = False  # rainbow: whether double Q-learning chooses on another view of the next observation


@dataclass
class EncoderStartConfig:
    init: str | None = None  # a file of recipes/pretrain.py to start from
    frozen: bool | None = None  # whether its weights stay as they are; null: no


@dataclass
class EncoderConfig:
    init: str | None = None  # a file of recipes/pretrain.py to start from
    frozen: bool | None = None  # whether its weights stay as they are; null: no
    crop_size: int = 84  # what the encoder sees of a frame, in pixels
    num_layers: int = 4  # of convolutions
    num_filters: int = 32  # of each convolution
    feature_dim: int = 50  # of a latent


@dataclass
class SACConfig:
    hidden_dim: int = 1024  # width of the layers of actor and critic
    log_std_bounds: tuple[float, float] = (-10.0, 2.0)  # of the policy's standard deviation
    batch_size: int = 128  # transitions in an update
    gamma: float = 0.99  # discount
    lr: float = 1e-3  # of critic, actor and the auxiliary task's own networks
    betas: tuple[float, float] = (0.9, 0.999)  # Adam's, for all but alpha
    alpha_lr: float = 1e-4  # of the entropy coefficient
    alpha_betas: tuple[float, float] = (0.5, 0.999)  # Adam's, for the entropy coefficient
    alpha_init: float = 0.1  # the first entropy coefficient
    alpha_loss: str = choice("alpha", "log_alpha")  # of the released code, of TorchRL
    critic_tau: float = 0.01  # how far the target critic moves
    encoder_tau: float = 0.05  # how far the target encoder, which is the momentum encoder, moves
    random_agent_steps: int = 1000  # before the first update
    updates_per_agent_step: int = 1  # after the random steps
    actor_interval_updates: int = 2  # updates between two steps of actor and alpha
    target_interval_updates: int = 2  # updates between two moves of the targets
    # the parts of an update, in turn
    update_order: list[str] = field(default_factory=lambda: ["critic", "actor", "targets", "auxiliary"])
    auxiliary_encoder_lr_scale: float = 2.0  # the encoder's learning rate in the auxiliary task, in units of lr
    auxiliary_encoder_decays: bool = True  # whether this rate falls after the warm-up of a task that has one
    auxiliary_encoder_warms_up: bool = False  # and whether it grows during that warm-up
    auxiliary_max_gradient_norm: float | None = None  # of the auxiliary loss; null: no clipping


@dataclass
class RainbowConfig:
    loss: str = choice("categorical", "expected")  # C51; TorchRL's DQNLoss, on expected values
    architecture: str = choice("data_efficient", "nature")  # of the encoder
    rescale: bool = False  # whether its features are rescaled to the range from 0 to 1, observation by observation
    hidden_dim: int = 256  # of the head
    num_atoms: int = 51  # of the distribution of values
    value_bounds: tuple[float, float] = (-10.0, 10.0)  # the lowest and the highest atom
    dueling: bool = True  # value and advantage apart
    double: bool = True  # the online network chooses the next action
    noisy: bool = True  # noisy linear layers in the head
    sigma_init: float = 0.1  # of the noise
    epsilon_begin: float = 0.0  # of random actions before the first update
    epsilon_end: float = 0.0  # of random actions after the decay
    epsilon_decay_agent_steps: int = 1  # from the first update on
    n_step: int = 20  # rewards in a return
    gamma: float = 0.99  # discount
    batch_size: int = 32  # transitions in an update
    priority_exponent: float = 0.5  # 0: uniform draws; 1: in proportion to the priority
    priority_correction_begin: float = 0.4  # beta, the exponent of the importance weights, at the first update
    priority_correction_end: float = 1.0  # and at the last
    lr: float = 1e-4  # Adam's
    adam_eps: float = 1.5e-4  # Adam's epsilon
    max_gradient_norm: float | None = 10.0  # null: no clipping
    first_update_agent_steps: int = 1600  # steps before the first update
    updates_per_agent_step: int = 1  # after the first update
    target_interval_agent_steps: int = 2000  # between two copies of the target network
    target_tau: float = 1.0  # below 1: the target network follows at each update, and is not copied


@dataclass
class PPOConfig:
    architecture: str = choice("nature", "data_efficient")  # of the encoder
    hidden_dim: int = 512  # of the layer that actor and critic share
    num_envs: int = 8  # environments side by side
    rollout_len: int = 128  # agent steps in each environment
    epochs: int = 3  # passes over a rollout
    minibatch_size: int = 256  # agent steps in an update
    gamma: float = 0.99  # discount
    gae_lambda: float = 0.95  # of the advantages: 0 is the TD error, 1 the whole return
    clip_epsilon: float = 0.1  # how far the ratio of probabilities may move
    critic_coeff: float = 1.0  # weight of the value's loss
    entropy_coeff: float = 0.01  # weight of the entropy
    normalize_advantages: bool = True  # in each minibatch
    lr: float = 2.5e-4  # Adam's
    adam_eps: float = 1e-5  # Adam's epsilon
    anneal: bool = True  # lr and clip_epsilon, linearly to 0
    max_gradient_norm: float | None = 0.5  # null: no clipping
    auxiliary_lr: float = 1e-4  # of the auxiliary task's own Adam: its networks and the encoder
    auxiliary_batch_size: int = 128  # transitions of the replay, for tasks that take their views from a batch


@dataclass
class ResetsConfig:
    """When SAC and Rainbow draw networks anew: for many updates per agent step."""

    interval_updates: int | None = None  # from one reset to the next; null or 0: no resets
    keep: float = 0.8  # the part of the encoder's weights that stays; heads are new


@dataclass
class ReplayConfig:
    capacity: int = 100_000  # rows: an episode takes one more than its agent steps
    memmap: bool = False  # on disk, in the run directory, instead of in memory


@dataclass
class CollectorConfig:
    """Where the environments of training are, and how many of them."""

    backend: str = choice("inline", "process", "ray")  # in this process; in processes of this machine; in actors of Ray
    num_workers: int = 1  # process, ray: how many act while this process learns
    envs_per_worker: int = 1  # that act side by side, in one forward pass
    fragment_agent_steps: int = 32  # process, ray: of each environment, between two sets of weights
    timeout_seconds: float = 300.0  # process, ray: a worker that does not answer for so long is given up


@dataclass
class EvaluationConfig:
    interval_env_steps: int = 20_000  # between two evaluations
    episodes: int = 10  # in an evaluation
    final_episodes: int | None = None  # of the last evaluation; null: as many as of the others
    num_envs: int = 1  # how many are played side by side
    epsilon: float = 0.0  # of random actions; for discrete actions
    video: bool = True  # film the first episode of an evaluation


@dataclass
class CheckpointConfig:
    interval_agent_steps: int = 2_500  # and at every evaluation, and when the run is stopped
    keep_last: int = 2  # the best by evaluation is kept as well


@dataclass
class LoggingConfig:
    interval_agent_steps: int = 100  # between two rows of metrics.csv
    tensorboard: bool = True  # write for TensorBoard as well
    wandb: Any = None  # null or, for example, {project: mcurl, mode: offline}
    mlflow: Any = None  # null or, for example, {experiment: mcurl}
    progress: bool | None = None  # null: a bar on a terminal, lines elsewhere


@dataclass
class RecipeConfig:
    """The keys that all recipes have; launch.py reads them."""

    replay: ReplayConfig = field(default_factory=ReplayConfig)
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    objective: Any = None  # the auxiliary task: the keys of its file in conf/shared/objective
    recipe: str = MISSING  # which script
    algo_name: str = "${objective.name}"  # in names of runs and in reports
    preset_name: str = MISSING  # which preset was chosen
    total_env_steps: int = MISSING  # how long to train
    seed: int = 1  # of everything random
    device: str = "auto"  # auto: a GPU where there is one
    threads: int | None = None  # torch's; null: as torch chooses
    compile: bool = False  # compile the losses with torch.compile; needs a C++ compiler, and minutes at first
    cuda_graphs: bool = False  # with compile, on a GPU: run the compiled losses as CUDA graphs
    precision: str = choice("float32", "bfloat16")  # of the layers' products in losses; weights are float32
    sample_ahead: int = 0  # batches that a thread draws during updates; 0: each is drawn when it is needed
    resume: str | None = None  # a run directory to continue; auto: start or continue in hydra.run.dir
    resume_changed: bool = False  # continue although settings differ


@dataclass
class SACRecipeConfig(RecipeConfig):
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    sac: SACConfig = field(default_factory=SACConfig)
    resets: ResetsConfig = field(default_factory=ResetsConfig)
    recipe: str = "sac_mcurl"
    total_env_steps: int = 500_000


@dataclass
class RainbowRecipeConfig(RecipeConfig):
    encoder: EncoderStartConfig = field(default_factory=EncoderStartConfig)
    rainbow: RainbowConfig = field(default_factory=RainbowConfig)
    resets: ResetsConfig = field(default_factory=ResetsConfig)
    evaluation: EvaluationConfig = field(
        default_factory=lambda: EvaluationConfig(10_000, final_episodes=100, num_envs=10, epsilon=0.001)
    )
    recipe: str = "rainbow_mcurl"
    total_env_steps: int = 100_000


@dataclass
class PPORecipeConfig(RecipeConfig):
    encoder: EncoderStartConfig = field(default_factory=EncoderStartConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    evaluation: EvaluationConfig = field(
        default_factory=lambda: EvaluationConfig(250_000, final_episodes=100, num_envs=10, epsilon=0.01)
    )
    checkpoint: CheckpointConfig = field(default_factory=lambda: CheckpointConfig(50_000))
    logging: LoggingConfig = field(default_factory=lambda: LoggingConfig(10_000))
    recipe: str = "ppo_mcurl"
    total_env_steps: int = 10_000_000


@dataclass
class PretrainEncoderConfig:
    kind: str = choice("pixel", "atari")  # pixel: SAC's; atari: Rainbow's and PPO's
    crop_size: int = 84  # pixel: what the encoder sees of an image
    num_layers: int = 4  # pixel
    num_filters: int = 32  # pixel
    feature_dim: int = 50  # pixel
    architecture: str = choice("data_efficient", "nature")  # atari


@dataclass
class PretrainDataConfig:
    source: str = choice("random", "replay", "atari_dqn", "vd4rl")  # random: frames of a random policy in env
    agent_steps: int = 10_000  # of random play; at most so many of a dataset
    path: str | None = None  # replay: a run directory, or a folder that FrameReplayBuffer.dumps made
    dataset: str | None = None  # atari_dqn, such as Pong/1; vd4rl, such as main/walker_walk/random/64px
    root: str | None = None  # the folder of TorchRL's datasets; null: its own


@dataclass
class ProbeConfig:
    episodes: int = 32  # of random play; 0: no probe
    agent_steps: int = 100  # at most, of each
    held_out: float = 0.25  # the part of the episodes that is scored
    ridge: float = 1e-2  # the weight of the squared coefficients


@dataclass
class PretrainConfig:
    env: EnvConfig = field(default_factory=EnvConfig)
    encoder: PretrainEncoderConfig = field(default_factory=PretrainEncoderConfig)
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    data: PretrainDataConfig = field(default_factory=PretrainDataConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    objective: Any = None  # what is trained: the keys of its file in conf/shared/objective
    agent_name: str = MISSING
    preset_name: str = MISSING
    updates: int = 5_000
    batch_size: int = 128  # transitions, for objectives that take their views from a batch
    lr: float = 1e-3  # of the encoder and of the objective's own networks
    log_interval_updates: int = 100
    seed: int = 1
    device: str = "auto"  # auto: a GPU where there is one
    threads: int | None = None  # torch's; null: as torch chooses


@dataclass
class ProbeCommandConfig:
    env: EnvConfig = field(default_factory=EnvConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    encoders: Any = needed("FILE")  # files of recipes/pretrain.py, or run directories, in a list; or one of them
    seed: int = 1
    device: str = "cpu"


@dataclass
class EvaluateConfig:
    run: str = needed("RUN_DIR")  # a run directory
    which: str = "latest"  # latest | best | an agent step that has a checkpoint
    episodes: int = 10  # how many to play
    num_envs: int = 1  # how many are played side by side
    epsilon: float | None = None  # of random actions; null: as in the run
    seed: int = 0  # of the episodes
    video: bool = True  # film the first episode
    export: str | None = None  # a file for torch.export, say policy.pt2
    pack: str | None = None  # a folder to hand on: weights, config, video and a model card
    half: bool = False  # round the weights to float16 before playing, and pack them so, in half the room
    licence: str | None = None  # of the packed weights, by its short name, such as mit; null: none is stated
    device: str = "cpu"  # where to play


@dataclass
class PlayConfig:
    policy: str = "roadrunner"  # of recipes/policies, by its name; or a run directory; or a folder of evaluate.py pack=
    which: str = "latest"  # of a run: latest | best | an agent step that has a checkpoint
    episodes: int = 1  # how many to play
    num_envs: int = 1  # how many are played side by side
    epsilon: float | None = None  # of random actions; null: as in training's evaluations
    seed: int = 0  # of the episodes
    video: bool = True  # film the first episode
    out: str | None = None  # the video; null: NAME.mp4, in the current folder
    device: str = "cpu"  # where to play


@dataclass
class ReportConfig:
    runs: Any = needed("DIR")  # a folder that holds runs at any depth, a suite's for example, or a list of such folders
    out: str = "report"  # a folder for the report
    title: str = "Report"  # of the page
    bootstrap_repetitions: int = 10_000  # draws for the intervals of aggregates
    published: str | None = None  # a folder with published results; null: published/, beside the recipes


OmegaConf.register_new_resolver("first", lambda *values: next((v for v in values if v is not None), None), replace=True)
OmegaConf.register_new_resolver("agent_steps", lambda env_steps, repeat: env_steps // repeat, replace=True)
OmegaConf.register_new_resolver("multiply", lambda *factors: math.prod(factors), replace=True)
ConfigStore.instance().store(name="sac_schema", node=SACRecipeConfig)
ConfigStore.instance().store(name="rainbow_schema", node=RainbowRecipeConfig)
ConfigStore.instance().store(name="ppo_schema", node=PPORecipeConfig)
ConfigStore.instance().store(name="pretrain_schema", node=PretrainConfig)
ConfigStore.instance().store(name="probe_schema", node=ProbeCommandConfig)
ConfigStore.instance().store(name="evaluate_schema", node=EvaluateConfig)
ConfigStore.instance().store(name="play_schema", node=PlayConfig)
ConfigStore.instance().store(name="report_schema", node=ReportConfig)
# Every objective is an algorithm under its own name, unless recipes have files for it: then each of them has one.
CONF = Path(__file__).parent / "conf"
for file in (CONF / "shared" / "objective").glob("*.yaml"):
    if not list(CONF.glob(f"*/algo/{file.name}")):
        chooses = {"defaults": [{"override /objective": file.stem}]}
        ConfigStore.instance().store(group="algo", name=file.stem, node=chooses, package="_global_")
