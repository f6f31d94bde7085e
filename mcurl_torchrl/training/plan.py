"""RunPlan: the length of a run, the steps at which it logs, evaluates and saves, and the scale of its scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcurl_torchrl.checks import check_count, check_number

__all__ = ["RunPlan", "human_normalized_score"]


@dataclass(frozen=True)
class RunPlan:
    """The length of a run, and the agent steps at which it logs, evaluates and saves.

    Args:
        name (str): the title of the curve.
        seed (int): the seed from which the seeds of the evaluation episodes are derived.
        total_agent_steps (int): the length of training.
        evaluation_interval (int): agent steps between evaluations. There is one before training and one at the end.
        checkpoint_interval (int): agent steps between checkpoints. There is one at each evaluation, too.
        action_repeat (int): environment steps per agent step. Defaults to 1.
        log_interval (int): agent steps between rows of ``metrics.csv``. Defaults to 100.
        evaluation_episodes (int): episodes of an evaluation. Defaults to 10.
        final_evaluation_episodes (int, optional): episodes of the last evaluation. Defaults to as many as the others.
        evaluation_epsilon (float): the probability of a random action in an evaluation. Defaults to 0.
        evaluation_sample (bool): whether evaluations draw actions from the policy, which then takes a generator, as in
            :func:`~mcurl_torchrl.training.evaluate`. Defaults to False.
        keep_last (int): checkpoints to keep, besides the best. Defaults to 2.
        observation_key (str): the observation that the policy acts on. Defaults to ``"pixels"``.
        num_frames (int): frames in an observation. Defaults to 1.
        padding (str): the frames before an episode's first, as in :class:`~mcurl_torchrl.training.FramePolicy`.
            Defaults to ``"repeat"``.
        video (bool): whether to film the first episode of each evaluation, at the environment's own speed. Defaults to
            True.
        reference (mapping of str to tuple): published results to draw beside the curve, as in
            :func:`~mcurl_torchrl.training.plot_learning_curve`. Defaults to none.
        baselines (tuple of float, optional): the scores of random play and of a human, for ``result.json``.

    Raises:
        ValueError: on numbers out of range, and if both baselines are the same.
    """

    name: str
    seed: int
    total_agent_steps: int
    evaluation_interval: int
    checkpoint_interval: int
    action_repeat: int = 1
    log_interval: int = 100
    evaluation_episodes: int = 10
    final_evaluation_episodes: int | None = None
    evaluation_epsilon: float = 0.0
    evaluation_sample: bool = False
    keep_last: int = 2
    observation_key: str = "pixels"
    num_frames: int = 1
    padding: str = "repeat"
    video: bool = True
    reference: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    baselines: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        counts = ("total_agent_steps", "evaluation_interval", "checkpoint_interval", "action_repeat", "log_interval")
        for name in (*counts, "evaluation_episodes", "keep_last", "num_frames"):
            check_count(name, getattr(self, name))
        if self.final_evaluation_episodes is not None:
            check_count("final_evaluation_episodes", self.final_evaluation_episodes)
        check_number("evaluation_epsilon", self.evaluation_epsilon, least=0, most=1)
        self.normalized(final_return=0.0, best_return=0.0)  # equal baselines fail now, not after an evaluation

    def normalized(self, *, final_return: float, best_return: float) -> dict[str, float]:
        """Returns both returns as human-normalized scores, and the baselines; an empty dict without baselines."""
        if self.baselines is None:
            return {}
        random, human = self.baselines
        return {
            "random_score": random,
            "human_score": human,
            "final_human_normalized": human_normalized_score(final_return, random=random, human=human),
            "best_human_normalized": human_normalized_score(best_return, random=random, human=human),
        }


def human_normalized_score(score: float, *, random: float, human: float) -> float:
    """Returns a score on the scale where random play is 0 and a human player is 1 (https://arxiv.org/abs/1509.06461).

    ``human`` may be lower than ``random``.

    Raises:
        ValueError: if both are the same.

    Examples:
        >>> from mcurl_torchrl.training import human_normalized_score
        >>> human_normalized_score(16, random=2, human=30)
        0.5
    """
    if human == random:
        raise ValueError(f"random={random} and human={human} are the same; a scale needs two scores that differ")
    return (score - random) / (human - random)
