"""Tools for training loops: seeds, episodes, evaluation, checkpoints, logging; and the policies of finished runs."""

from mcurl_torchrl.training.allocator import keep_freed_pages
from mcurl_torchrl.training.batches import Batches
from mcurl_torchrl.training.checkpoints import CheckpointNotRestored, CheckpointNotSaved, Checkpoints
from mcurl_torchrl.training.curves import plot_learning_curve
from mcurl_torchrl.training.episodes import EnvironmentFailed, EpisodeStream, EpisodeStreams, ReplayedDifferently
from mcurl_torchrl.training.evaluation import Evaluation, evaluate, read_evaluations
from mcurl_torchrl.training.plan import RunPlan, human_normalized_score
from mcurl_torchrl.training.policies import FramePolicy, describe_policy, export_policy, load_policy
from mcurl_torchrl.training.policy_folders import is_policy_folder, read_policy_folder, round_weights, save_policy
from mcurl_torchrl.training.probe import ProbeData, ProbeScore, collect_probe_data, linear_probe, probe_encoder
from mcurl_torchrl.training.progress import Progress
from mcurl_torchrl.training.ranked_run import RankedRun
from mcurl_torchrl.training.run import TrainingRun
from mcurl_torchrl.training.run_directory import RunDirectory, RunDirectoryInUse
from mcurl_torchrl.training.seeds import derive_seed, seed_everything
from mcurl_torchrl.training.sources import InlineSource, WorkerRollouts, WorkerSource
from mcurl_torchrl.training.stopping import StopRequested, catch_stop_signals
from mcurl_torchrl.training.tables import Table
from mcurl_torchrl.training.trackers import Trackers, make_trackers
from mcurl_torchrl.training.videos import write_video
from mcurl_torchrl.training.workers import CollectorWorkers, WorkerLost

__all__ = [
    "Batches",
    "CheckpointNotRestored",
    "CheckpointNotSaved",
    "Checkpoints",
    "CollectorWorkers",
    "EnvironmentFailed",
    "EpisodeStream",
    "EpisodeStreams",
    "Evaluation",
    "FramePolicy",
    "InlineSource",
    "ProbeData",
    "ProbeScore",
    "Progress",
    "RankedRun",
    "ReplayedDifferently",
    "RunDirectory",
    "RunDirectoryInUse",
    "RunPlan",
    "StopRequested",
    "Table",
    "Trackers",
    "TrainingRun",
    "WorkerLost",
    "WorkerRollouts",
    "WorkerSource",
    "catch_stop_signals",
    "collect_probe_data",
    "derive_seed",
    "describe_policy",
    "evaluate",
    "export_policy",
    "human_normalized_score",
    "is_policy_folder",
    "keep_freed_pages",
    "linear_probe",
    "load_policy",
    "make_trackers",
    "plot_learning_curve",
    "probe_encoder",
    "read_evaluations",
    "read_policy_folder",
    "round_weights",
    "save_policy",
    "seed_everything",
    "write_video",
]
