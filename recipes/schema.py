"""The typed schema of the recipes' configs: every key that a YAML file or a command line may set, with its default.

Defaults are the published settings. The names contain the units: `env_steps` are simulator steps (agent steps times
action repeat), `agent_steps` are decisions of the agent, `updates` are gradient updates. On Atari an env step is one
decision: Atari-100k has 100,000 env steps, and each of them takes `env.frame_skip` frames of the emulator.
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
    """Makes a key that the command line must set; the error for a missing key shows the example."""
    return field(default=MISSING, metadata={"example": example})


@dataclass
class PublishedConfig:
    """Published settings that differ between environments; the configs of recipes and objectives refer to them."""

    sac_lr: float = 1e-3  # learning rate of SAC
    sac_batch_size: int = 128  # batch size of SAC
    mask_ratio: float = 0.5  # mask ratio of M-CURL
    mlr_block_len: int = 8  # number of observations that a masked cube of MLR covers
    curl_coeff: float = 1.0  # weight of CURL's loss


@dataclass
class EnvConfig:
    backend: str = choice("dmc", "atari", "gym", default=MISSING)  # the library that provides the environment
    task: str | None = None  # dmc: DOMAIN-TASK, such as cartpole-swingup
    game: str | None = None  # atari: the name of the game, such as MsPacman
    id: str | None = None  # gym: the id for gymnasium.make; my_module:MyEnv-v0 imports a module of the current folder
    kwargs: Any = None  # gym: keyword arguments for gymnasium.make, such as {size: 8}; null: none
    pixels_key: str | None = None  # gym: the key of the image in a Dict observation; null: there is only one image
    action_repeat: int = 1  # env steps per agent step
    num_frames: int = MISSING  # number of frames in an observation
    image_size: int = MISSING  # height and width of a frame, in pixels
    observation: str = choice("pixels", "state")  # pixels, or the simulator's state (dmc only)
    camera_id: int | None = None  # dmc: the camera; null: camera 0, and camera 2 for quadruped; -1: the free camera
    following_camera_id: int | None = None  # dmc: a camera that follows the body, if camera 0 does not
    shadows: bool = True  # dmc: render shadows
    multisampling: bool = True  # dmc: render with anti-aliasing
    frame_skip: int = 4  # atari: frames of the emulator per env step
    interpolation: str = choice("bilinear", "area")  # atari: how screens are resized
    max_noops: int = 29  # atari: largest number of no-op actions at the start of a game
    max_emulator_frames: int = 108_000  # atari: a game is truncated after so many frames of the emulator
    terminal_on_life_loss: bool = True  # atari: a lost life ends the episode, in training only
    clip_rewards: bool = True  # clip rewards to [-1, 1], in training only, for discrete actions
    render: bool = False  # gym: learn from rendered images instead of the observation
    published: PublishedConfig = field(default_factory=PublishedConfig)


@dataclass
class AugmentationConfig:
    """How sampled images are augmented. augmentation=shift, for example, sets both RL's batches and the task's views.

    crop: a random crop (SAC only). shift: a random shift by up to 4 pixels. curl_shift: CURL's random shift on Atari
    (crop, pad by repeating the border, crop again).
    """

    batch: str = choice("none", "crop", "shift", "curl_shift")  # augmentation of the observations that RL learns from
    batch_intensity: float = 0.0  # random change of their brightness, such as 0.05; 0: no change
    views: str = choice("none", "crop", "shift", "curl_shift")  # augmentation of the views of the auxiliary task
    views_intensity: float = 0.0  # random change of their brightness; 0: no change
    second_next: bool = False  # rainbow: double Q-learning chooses the action on a second view of the next observation


@dataclass
class EncoderStartConfig:
    init: str | None = None  # an encoder file of recipes/pretrain.py to start from
    frozen: bool | None = None  # true: the encoder's weights are not trained; null: false


@dataclass
class EncoderConfig(EncoderStartConfig):
    crop_size: int = 84  # height and width of the images that the encoder takes, in pixels
    num_layers: int = 4  # number of convolutions
    num_filters: int = 32  # number of filters of each convolution
    feature_dim: int = 50  # size of a latent


@dataclass
class SACConfig:
    hidden_dim: int = 1024  # width of the layers of actor and critic
    log_std_bounds: tuple[float, float] = (-10.0, 2.0)  # bounds of the policy's log standard deviation
    batch_size: int = 128  # number of transitions in an update
    gamma: float = 0.99  # discount factor
    lr: float = 1e-3  # learning rate of critic, actor and the auxiliary task's own networks
    betas: tuple[float, float] = (0.9, 0.999)  # Adam's betas, for everything but the entropy coefficient
    alpha_lr: float = 1e-4  # learning rate of the entropy coefficient
    alpha_betas: tuple[float, float] = (0.5, 0.999)  # Adam's betas for the entropy coefficient
    alpha_init: float = 0.1  # initial entropy coefficient
    alpha_loss: str = choice("alpha", "log_alpha")  # the entropy coefficient's loss: of the released code, of TorchRL
    critic_tau: float = 0.01  # Polyak factor of the target critic
    encoder_tau: float = 0.05  # Polyak factor of the target encoder, which is also the momentum encoder
    random_agent_steps: int = 1000  # number of random agent steps before the first update
    updates_per_agent_step: int = 1  # number of updates per agent step, after the random steps
    actor_interval_updates: int = 2  # number of updates between two steps of actor and entropy coefficient
    target_interval_updates: int = 2  # number of updates between two target updates
    # order of the parts of an update
    update_order: list[str] = field(default_factory=lambda: ["critic", "actor", "targets", "auxiliary"])
    auxiliary_encoder_lr_scale: float = 2.0  # the encoder's learning rate in the auxiliary task, as a multiple of lr
    auxiliary_encoder_decays: bool = True  # whether that learning rate decays after the task's warm-up, if it has one
    auxiliary_encoder_warms_up: bool = False  # whether that learning rate grows during the warm-up of the task
    auxiliary_max_gradient_norm: float | None = None  # gradient clipping of the auxiliary loss; null: no clipping


@dataclass
class RainbowConfig:
    loss: str = choice("categorical", "expected")  # categorical: C51; expected: TorchRL's DQNLoss, on expected values
    architecture: str = choice("data_efficient", "nature")  # architecture of the encoder
    rescale: bool = False  # whether the features of each observation are rescaled to [0, 1]
    hidden_dim: int = 256  # width of the head's hidden layers
    num_atoms: int = 51  # number of atoms of the value distribution
    value_bounds: tuple[float, float] = (-10.0, 10.0)  # the lowest and the highest atom
    dueling: bool = True  # separate streams for value and advantage
    gradient_scale: float = 1.0  # factor of the gradient of Rainbow's loss that enters the encoder
    double: bool = True  # double Q-learning: the online network chooses the next action
    noisy: bool = True  # noisy linear layers in the head
    sigma_init: float = 0.1  # initial scale of the noise of noisy layers
    epsilon_begin: float = 0.0  # probability of a random action before the first update
    epsilon_end: float = 0.0  # probability of a random action after the decay
    epsilon_decay_agent_steps: int = 1  # length of the decay of epsilon, which starts at the first update
    n_step: int = 20  # number of rewards in an n-step return
    gamma: float = 0.99  # discount factor
    batch_size: int = 32  # number of transitions in an update
    priorities: str = choice("cross_entropy", "kl")  # of the categorical loss; kl: without the entropy of the target
    priority_exponent: float = 0.5  # 0: uniform sampling; 1: in proportion to the priorities
    priority_correction_begin: float = 0.4  # beta, the exponent of the importance weights, at the first update
    priority_correction_end: float = 1.0  # beta at the last update
    lr: float = 1e-4  # learning rate of Adam
    adam_eps: float = 1.5e-4  # Adam's epsilon
    max_gradient_norm: float | None = 10.0  # gradient clipping; null: no clipping
    first_update_agent_steps: int = 1600  # the agent step of the first update
    updates_per_agent_step: int = 1  # number of updates per agent step, from the first update on
    target_interval_agent_steps: int = 2000  # number of agent steps between two copies to the target network
    target_tau: float = 1.0  # below 1: a Polyak update of the target network at each update, instead of copies
    act_with_target: bool = False  # whether the target network acts, in training and evaluations, and is what is saved


@dataclass
class PPOConfig:
    architecture: str = choice("nature", "data_efficient")  # architecture of the encoder
    hidden_dim: int = 512  # width of the hidden layer that actor and critic share
    num_envs: int = 8  # number of environments
    rollout_len: int = 128  # agent steps of each environment in a rollout
    epochs: int = 3  # passes over a rollout
    minibatch_size: int = 256  # number of agent steps in an update
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of GAE: 0 gives the TD error, 1 the Monte Carlo return
    clip_epsilon: float = 0.1  # clipping range of the probability ratio
    critic_coeff: float = 1.0  # weight of the value loss
    entropy_coeff: float = 0.01  # weight of the entropy bonus
    normalize_advantages: bool = True  # normalise the advantages of each minibatch
    lr: float = 2.5e-4  # learning rate of Adam
    adam_eps: float = 1e-5  # Adam's epsilon
    anneal: bool = True  # decrease lr and clip_epsilon linearly to 0
    max_gradient_norm: float | None = 0.5  # gradient clipping; null: no clipping
    auxiliary_lr: float = 1e-4  # learning rate of the auxiliary task's Adam, for the encoder and the task's networks
    auxiliary_phase: int = 0  # updates of the auxiliary task alone after the updates with each rollout
    auxiliary_batch_size: int = 128  # number of transitions in a batch of tasks that take their views from a batch


@dataclass
class ResetsConfig:
    """Periodic resets of SAC's and Rainbow's networks, for runs with many updates per agent step."""

    interval_updates: int | None = None  # number of updates between two resets; null: none; 0: none, on purpose
    keep: float = 0.8  # share of the encoder's old weights in the mix with new random ones; heads are new


@dataclass
class ReplayConfig:
    capacity: int = 100_000  # number of rows; an episode takes one row more than it has agent steps
    memmap: bool = False  # keep the replay on disk, in the run directory, instead of in memory


@dataclass
class CollectorConfig:
    """Where the training environments run, and how many there are."""

    backend: str = choice("inline", "process", "ray")  # in this process, in worker processes, in Ray actors
    num_workers: int = 1  # process, ray: number of workers, which act while this process learns
    envs_per_worker: int = 1  # number of environments that act together, in one forward pass
    fragment_agent_steps: int = 32  # process, ray: steps of each environment between two updates of its weights
    timeout_seconds: float = 300.0  # process, ray: a worker that does not answer within this time is stopped


@dataclass
class EvaluationConfig:
    """Evaluations during training. The table has the defaults of SAC.

    Rainbow: interval_env_steps=10_000, final_episodes=100, num_envs=10, epsilon=0.001. PPO:
    interval_env_steps=250_000, final_episodes=100, num_envs=10, sample=true.
    """

    interval_env_steps: int = 20_000  # number of env steps between two evaluations
    episodes: int = 10  # number of episodes in an evaluation
    final_episodes: int | None = None  # number of episodes in the last evaluation; null: the same as episodes
    num_envs: int = 1  # number of episodes that are played at the same time; SAC always plays one
    epsilon: float = 0.0  # probability of a random action; discrete actions only
    sample: bool = False  # draw actions from the policy instead of taking the most likely ones (SAC, PPO)
    video: bool = True  # film the first episode of each evaluation


@dataclass
class CheckpointConfig:
    """Checkpoints of a run. For PPO the default is interval_agent_steps=50_000."""

    interval_agent_steps: int = 2_500  # agent steps between two checkpoints; evaluations and stop signals save one, too
    keep_last: int = 2  # number of checkpoints to keep, besides the best one by evaluation


@dataclass
class LoggingConfig:
    """Metrics and trackers. For PPO the default is interval_agent_steps=10_000."""

    interval_agent_steps: int = 100  # number of agent steps between two rows of metrics.csv
    tensorboard: bool = True  # also write TensorBoard files
    wandb: Any = None  # options of Weights & Biases, such as {project: mcurl, mode: offline}; null: not used
    mlflow: Any = None  # options of MLflow, such as {experiment: mcurl}; null: not used
    progress: bool | None = None  # show a progress bar; null: a bar on a terminal, lines elsewhere


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
    objective: Any = None  # the auxiliary task; its keys are those of its file in conf/shared/objective
    recipe: str = MISSING  # name of the script
    algo_name: str = "${objective.name}"  # name of the algorithm in run directories and reports
    preset_name: str = MISSING  # name of the chosen preset
    total_env_steps: int = MISSING  # length of the training
    seed: int = 1  # seed of all random numbers
    device: str = "auto"  # auto: a GPU if there is one, otherwise the CPU
    threads: int | None = None  # number of torch's threads; null: torch's default
    compile: bool = False  # compile the losses with torch.compile; needs a C++ compiler, and minutes at the start
    cuda_graphs: bool = False  # with compile=true on a GPU: run the compiled losses as CUDA graphs
    precision: str = choice("float32", "bfloat16")  # dtype of matrix products in the losses; weights stay float32
    sample_ahead: int = 0  # number of batches that a thread samples in advance, during updates; 0: none
    resume: str | None = None  # a run directory to continue; auto: start or continue the run in hydra.run.dir
    resume_changed: bool = False  # continue a run although its settings have changed


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
        default_factory=lambda: EvaluationConfig(250_000, final_episodes=100, num_envs=10, sample=True)
    )
    checkpoint: CheckpointConfig = field(default_factory=lambda: CheckpointConfig(50_000))
    logging: LoggingConfig = field(default_factory=lambda: LoggingConfig(10_000))
    recipe: str = "ppo_mcurl"
    total_env_steps: int = 10_000_000


@dataclass
class PretrainEncoderConfig:
    kind: str = choice("pixel", "atari")  # pixel: SAC's encoder; atari: the encoder of Rainbow and PPO
    crop_size: int = 84  # pixel: height and width of the images that the encoder takes
    num_layers: int = 4  # pixel: number of convolutions
    num_filters: int = 32  # pixel: number of filters of each convolution
    feature_dim: int = 50  # pixel: size of a latent
    architecture: str = choice("data_efficient", "nature")  # atari: architecture of the encoder
    rescale: bool = False  # atari: whether the features of each observation are rescaled to [0, 1]


@dataclass
class PretrainDataConfig:
    source: str = choice("random", "replay", "atari_dqn", "vd4rl")  # where frames come from; random: random play in env
    agent_steps: int = 10_000  # random: number of steps to play; datasets: number of steps to read at most
    path: str | None = None  # replay: a run directory, or a folder written by FrameReplayBuffer.dumps
    dataset: str | None = None  # atari_dqn: such as Pong/1; vd4rl: such as main/walker_walk/random/64px
    root: str | None = None  # the folder of TorchRL's datasets; null: TorchRL's default


@dataclass
class ProbeConfig:
    episodes: int = 32  # number of episodes of random play; 0: no probe
    agent_steps: int = 100  # largest number of agent steps of an episode
    held_out: float = 0.25  # fraction of the episodes that is scored and not fitted
    ridge: float = 1e-2  # weight of the L2 penalty


@dataclass
class PretrainConfig:
    env: EnvConfig = field(default_factory=EnvConfig)
    encoder: PretrainEncoderConfig = field(default_factory=PretrainEncoderConfig)
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    data: PretrainDataConfig = field(default_factory=PretrainDataConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    objective: Any = None  # the objective to train; its keys are those of its file in conf/shared/objective
    agent_name: str = MISSING  # name of the chosen agent
    preset_name: str = MISSING  # name of the chosen preset
    updates: int = 5_000  # number of updates
    batch_size: int = 128  # number of transitions in a batch, for objectives that take their views from a batch
    lr: float = 1e-3  # learning rate of the encoder and of the objective's own networks
    log_interval_updates: int = 100  # number of updates between two rows of metrics.csv
    seed: int = 1
    device: str = "auto"  # auto: a GPU if there is one, otherwise the CPU
    threads: int | None = None  # number of torch's threads; null: torch's default


@dataclass
class ProbeCommandConfig:
    env: EnvConfig = field(default_factory=EnvConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    encoders: Any = needed("FILE")  # an encoder file of recipes/pretrain.py, a run directory, or a list of them
    seed: int = 1
    device: str = "cpu"


@dataclass
class EvaluateConfig:
    run: str = needed("RUN_DIR")  # a run directory
    which: str = "latest"  # latest | best | the agent step of a checkpoint
    episodes: int = 10  # number of episodes to play
    num_envs: int = 1  # number of episodes that are played at the same time
    epsilon: float | None = None  # probability of a random action; null: as in the run
    sample: bool | None = None  # draw actions from the policy (SAC, PPO); null: as in the run
    seed: int = 0  # seed of the episodes
    video: bool = True  # film the first episode
    export: str | None = None  # a file for torch.export, such as policy.pt2
    pack: str | None = None  # a folder to share the policy: weights, config, video and a model card
    half: bool = False  # round the weights to float16 before playing, and pack them as float16, in half the space
    licence: str | None = None  # licence of the packed weights, by its short name, such as mit; null: not stated
    device: str = "cpu"  # the device to play on


@dataclass
class PlayConfig:
    policy: str = "roadrunner"  # a name in recipes/policies, a run directory, or a folder of evaluate.py pack=FOLDER
    which: str = "latest"  # for a run directory: latest | best | the agent step of a checkpoint
    episodes: int = 1  # number of episodes to play
    num_envs: int = 1  # number of episodes that are played at the same time
    epsilon: float | None = None  # probability of a random action; null: as in the evaluations of training
    sample: bool | None = None  # draw actions from the policy (SAC, PPO); null: as in the evaluations of training
    seed: int = 0  # seed of the episodes
    video: bool = True  # film the first episode
    out: str | None = None  # the video file; null: NAME.mp4 in the current folder
    device: str = "cpu"  # the device to play on


@dataclass
class ReportConfig:
    runs: Any = needed("DIR")  # a folder that contains runs at any depth, such as a suite's, or a list of folders
    out: str = "report"  # the folder to write the report to
    title: str = "Report"  # title of the page
    bootstrap_repetitions: int = 10_000  # number of bootstrap samples for the intervals of aggregates
    published: str | None = None  # a folder with published results; null: recipes/published


def no_copy(memo: dict[int, Any]) -> ConfigStore:
    """Returns Hydra's store itself in place of a copy.

    Hydra copies its repository for each composition, and for each group that --help lists. With copies of all stored
    configs, --help takes four times as long. Hydra copies a stored config when it loads it, so none is changed.
    """
    return ConfigStore.instance()


OmegaConf.register_new_resolver("first", lambda *values: next((v for v in values if v is not None), None), replace=True)
OmegaConf.register_new_resolver("agent_steps", lambda env_steps, repeat: env_steps // repeat, replace=True)
OmegaConf.register_new_resolver("multiply", lambda *factors: math.prod(factors), replace=True)
STORE = ConfigStore.instance()
STORE.__deepcopy__ = no_copy  # type: ignore[attr-defined]
STORE.store(name="sac_schema", node=SACRecipeConfig)
STORE.store(name="rainbow_schema", node=RainbowRecipeConfig)
STORE.store(name="ppo_schema", node=PPORecipeConfig)
STORE.store(name="pretrain_schema", node=PretrainConfig)
STORE.store(name="probe_schema", node=ProbeCommandConfig)
STORE.store(name="evaluate_schema", node=EvaluateConfig)
STORE.store(name="play_schema", node=PlayConfig)
STORE.store(name="report_schema", node=ReportConfig)
# algo=NAME works for every objective NAME. An objective without a file in any folder algo/ gets its entry here.
CONF = Path(__file__).parent / "conf"
for file in (CONF / "shared" / "objective").glob("*.yaml"):
    if not list(CONF.glob(f"*/algo/{file.name}")):
        chooses = {"defaults": [{"override /objective": file.stem}]}
        STORE.store(group="algo", name=file.stem, node=chooses, package="_global_")
