"""TrainingRun: what surrounds a training loop, whatever is trained in it."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchrl.checkpoint import GlobalRNGState
from torchrl.envs import EnvBase

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.modules import GaussianPolicy, RainbowPolicy
from mcurl_torchrl.replay import FrameReplayBuffer
from mcurl_torchrl.training.checkpoints import CheckpointNotSaved, Checkpoints
from mcurl_torchrl.training.clock import Clock
from mcurl_torchrl.training.curves import plot_learning_curve
from mcurl_torchrl.training.diagnostics import check_finite
from mcurl_torchrl.training.episodes import EnvironmentFailed
from mcurl_torchrl.training.evaluation import Evaluation, evaluate, read_evaluations
from mcurl_torchrl.training.optimizing import keep_optimizer_options
from mcurl_torchrl.training.policies import describe_policy
from mcurl_torchrl.training.progress import Progress
from mcurl_torchrl.training.run_directory import RunDirectory
from mcurl_torchrl.training.scores import human_normalized_score
from mcurl_torchrl.training.seeds import derive_seed
from mcurl_torchrl.training.stopping import StopRequested
from mcurl_torchrl.training.trackers import Trackers
from mcurl_torchrl.training.videos import write_video

__all__ = ["TrainingRun"]

_QUIET_SECONDS = 20.0  # an evaluation that takes longer tells how far it is


class TrainingRun:
    """Logs, evaluates, saves and resumes, so that a training loop is left with what it trains.

    A loop calls :meth:`track` with everything that has to be saved, :meth:`begin`, then takes its steps from
    :meth:`agent_steps`, which begin after the last checkpoint where there is one, and end early when somebody asks.

    Everything that is logged or saved happens at fixed agent steps, and all randomness is in what is saved: a run that
    was killed and resumed is the same, bit for bit, as one that was not (on a CPU, with the same number of threads).

    ``result.json`` has two returns. ``final_return`` is the mean of the last evaluation, over ``final_episodes``
    episodes: it is the one to report. ``best_return`` is the highest mean of all evaluations, the last included: out of
    many noisy means it picks a lucky one, the more so the fewer episodes each is over; some published numbers are
    nearer to it. ``evaluation_episodes`` is how many each evaluation but the last is over. Where :meth:`describe` is
    given the scores of random play and of a human, ``final_human_normalized`` and ``best_human_normalized`` are the
    same two on the scale of :func:`~mcurl_torchrl.training.human_normalized_score`, beside ``random_score`` and
    ``human_score``.

    Args:
        directory (str or Path): the run's folder.

    Keyword Args:
        total_agent_steps (int): how long to train.
        action_repeat (int): environment steps per agent step. Defaults to 1.
        device (torch.device): where is trained; for the loop to read.
        seed (int): the seed that those of the evaluation episodes follow from.
        name (str): the curve's title and label.
        log_interval (int): agent steps between rows of ``metrics.csv``. Defaults to 100.
        evaluation_interval (int): agent steps between evaluations; there is one at the end, too.
        evaluation_episodes (int): how many episodes each. Defaults to 10.
        final_evaluation_episodes (int, optional): how many the one at the end has. Defaults to None, as many.
        evaluation_epsilon (float): the probability of a random action in an evaluation, as in
            :func:`~mcurl_torchrl.training.evaluate`. Defaults to 0.
        checkpoint_interval (int): agent steps between checkpoints. There is one at each evaluation, too.
        keep_last (int): how many checkpoints to keep, besides the best. Defaults to 2.
        video (bool): whether to film the first episode of each evaluation. Defaults to True.
        num_frames (int): how many frames an observation stacks. Defaults to 1.
        fps (float): of the videos. Defaults to 30.
        resume (bool): whether to go on from the last checkpoint. Defaults to False.
        when_restored (callable, optional): called once that checkpoint is restored.
        trackers (Trackers, optional): who else wants the numbers.
        stop (StopRequested, optional): who may ask the run to stop.
        progress (bool, optional): as in :class:`~mcurl_torchrl.training.Progress`. Defaults to None.
        hint_when_slow (str, optional): said when the run would take longer than ``slow_hours``.
        slow_hours (float): defaults to 6.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        total_agent_steps: int,
        evaluation_interval: int,
        checkpoint_interval: int,
        seed: int,
        name: str,
        device: torch.device | None = None,
        action_repeat: int = 1,
        log_interval: int = 100,
        evaluation_episodes: int = 10,
        final_evaluation_episodes: int | None = None,
        evaluation_epsilon: float = 0.0,
        keep_last: int = 2,
        video: bool = True,
        num_frames: int = 1,
        fps: float = 30.0,
        resume: bool = False,
        when_restored: Callable[[], None] | None = None,
        trackers: Trackers | None = None,
        stop: StopRequested | None = None,
        progress: bool | None = None,
        hint_when_slow: str | None = None,
        slow_hours: float = 6.0,
    ) -> None:
        self.directory = RunDirectory(directory)
        self.checkpoints = Checkpoints(self.directory.checkpoints, keep_last=keep_last)
        self.total = check_count("total_agent_steps", total_agent_steps)
        self.action_repeat = check_count("action_repeat", action_repeat)
        self.device = torch.device("cpu") if device is None else device
        self.seed = seed
        self.name = name
        self.log_interval = check_count("log_interval", log_interval)
        self.evaluation_interval = check_count("evaluation_interval", evaluation_interval)
        self.evaluation_episodes = check_count("evaluation_episodes", evaluation_episodes)
        self.final_evaluation_episodes = self.evaluation_episodes
        if final_evaluation_episodes is not None:
            self.final_evaluation_episodes = check_count("final_evaluation_episodes", final_evaluation_episodes)
        if not 0 <= evaluation_epsilon <= 1:
            raise ValueError(f"evaluation_epsilon={evaluation_epsilon}; it must be between 0 and 1")
        self.evaluation_epsilon = evaluation_epsilon
        self.checkpoint_interval = check_count("checkpoint_interval", checkpoint_interval)
        self.video = video
        self.num_frames = num_frames
        self.fps = fps
        self.reference: dict[str, tuple[int, float]] = {}
        self.baselines: tuple[float, float] | None = None
        self.info: dict[str, Any] = {}
        self.resume = resume
        self.when_restored = when_restored
        self.trackers = Trackers([]) if trackers is None else trackers
        self.stop = StopRequested() if stop is None else stop
        self.hint_when_slow = hint_when_slow
        self.slow_hours = slow_hours
        self._show_progress = progress
        self._components: dict[str, Any] = {}
        self._replay: FrameReplayBuffer | None = None
        self._clock = Clock()
        self._latest = _Latest()
        self._shown: dict[str, float] = {}
        self._last_saved: Path | None = None
        self.progress: Progress | None = None
        self.completed = 0
        self.finished = False

    # -- the loop ------------------------------------------------------------------------------------------------------

    def track(self, *, replay: FrameReplayBuffer, **components: Any) -> None:
        """Says what a checkpoint has to hold; None is left out. Global random states are, always."""
        self._replay = replay
        present = {name: part for name, part in components.items() if part is not None}
        self._components = {**present, "random": GlobalRNGState(), "clock": self._clock, "latest": self._latest}

    def describe(
        self,
        policy: GaussianPolicy | RainbowPolicy,
        *,
        num_frames: int,
        padding: str = "repeat",
        reference: Mapping[str, tuple[int, float]] | None = None,
        baselines: tuple[float, float] | None = None,
    ) -> None:
        """Says what :func:`~mcurl_torchrl.load_policy` has to build, and what to compare the returns with.

        Args:
            policy (GaussianPolicy or RainbowPolicy): what is trained to act.

        Keyword Args:
            num_frames (int): how many frames a stack has.
            padding (str): as in :class:`~mcurl_torchrl.training.FramePolicy`. Defaults to ``"repeat"``.
            reference (mapping of str to tuple, optional): what to draw beside the curve, as in
                :func:`~mcurl_torchrl.training.plot_learning_curve`.
            baselines (tuple of float, optional): the scores of random play and of a human, for ``result.json``.

        Raises:
            ValueError: if both baselines are the same.
        """
        self.info["policy"] = describe_policy(policy, num_frames=num_frames, padding=padding)
        self._components["policy"] = policy
        self.reference = dict(reference or {})
        self.baselines = baselines
        self._normalized(final_return=0.0, best_return=0.0)  # now, not after the first evaluation

    def begin(self) -> int:
        """Restores the last checkpoint if the run is resumed; returns the agent steps that are done."""
        self.completed = self._restore() if self.resume else 0
        self.progress = Progress(self.total, initial=self.completed, enabled=self._show_progress)
        self._clock.start()
        return self.completed

    def agent_steps(self) -> Iterator[int]:
        """Yields the numbers of the agent steps to take, the first of all being 1; call :meth:`begin` before.

        Saves a last checkpoint when it is asked to stop.
        """
        assert self.progress is not None
        try:
            for step in range(self.completed + 1, self.total + 1):
                if self.stop.requested:
                    self.progress.note(f"{self.stop.signal_name}: saving at agent step {self.completed:,}")
                    self.save(self.completed)
                    return
                yield step
                self.completed = step
                self.progress.update(step, **self._shown)
                self._warn_when_slow(step)
            self.finished = True
        finally:
            self.progress.close()

    def _restore(self) -> int:
        with keep_optimizer_options(self._components.values()):
            restored = self.checkpoints.restore(components=self._components, replay=self._replay)
        self._last_saved = restored.path
        if self.when_restored is not None:
            self.when_restored()
        self.directory.truncate_after(restored.step)
        self.directory.record_resume(restored.step, device=self.device)
        return restored.step

    def _warn_when_slow(self, step: int) -> None:
        if self.hint_when_slow is None or self._clock.count("update") < 10:
            return
        # Each part's own mean: there were steps without an update before.
        hours = sum(self._clock.mean(part) for part in ("env", "sample", "update")) * (self.total - step) / 3600
        if hours > self.slow_hours and self.progress is not None:
            self.progress.note(f"at this speed the run takes about {hours:,.0f} more hours: {self.hint_when_slow}")
        self.hint_when_slow = None

    def learning_begins(self) -> None:
        """Says that the steps from here on are the slow ones: speed and time left are measured anew."""
        if self.progress is not None:
            self.progress.restart()

    def timed(self, part: str) -> contextlib.AbstractContextManager[None]:
        """Adds the time inside to a part of the loop, for ``metrics.csv``."""
        return self._clock.timed(part)

    # -- what happens at a step ----------------------------------------------------------------------------------------

    def log_due(self, step: int) -> bool:
        """Tells whether ``metrics.csv`` gets a row at this step."""
        return step % self.log_interval == 0

    def note(self, metrics: Mapping[str, Tensor | float]) -> None:
        """Takes over numbers; the next row of ``metrics.csv`` has the last of each. Waits for no device."""
        self._latest.values.update(metrics)

    def log(self, step: int) -> None:
        """Adds a row to ``metrics.csv`` and hands it to the trackers. If there is no room, says so and goes on."""
        numbers = self._latest.state_dict()
        timings = self._clock.take(steps=self.log_interval)
        with self._or_warn(f"no row of agent step {step} in {self.directory.metrics.path}"):
            self.directory.metrics.append({"step": step, "env_steps": step * self.action_repeat, **numbers, **timings})
        self.trackers.log(step * self.action_repeat, {f"train/{key}": value for key, value in numbers.items()})
        self.show(**{key: numbers[key] for key in ("contrastive_accuracy",) if key in numbers})

    def show(self, **numbers: float) -> None:
        """Shows numbers on the progress bar from now on."""
        self._shown.update(numbers)

    def check_finite(self, step: int, losses: Mapping[str, Tensor]) -> None:
        """Stops the run if a loss is NaN or infinite; the last good checkpoint is named, and not replaced."""
        named = {name: value for name, value in losses.items() if name.startswith("loss_")}
        if named:
            check_finite(step, last_good=self._last_saved, **named)

    def evaluation_due(self, step: int) -> bool:
        """Tells whether to evaluate at this step."""
        return step % self.evaluation_interval == 0 or step == self.total

    def evaluate(
        self,
        step: int,
        act: Callable[[Tensor], Tensor],
        envs: EnvBase | Sequence[EnvBase],
        *,
        observation_key: str = "pixels",
    ) -> None:
        """Evaluates, adds to ``eval.csv``, draws the curve, films the first episode, and saves.

        Args:
            step (int): the agent steps done so far.
            act (callable): observations ``[n, ...]`` to actions ``[n, ...]``, as in
                :func:`~mcurl_torchrl.training.evaluate`.
            envs (EnvBase or sequence of EnvBase): in which, one episode at a time in each.

        Keyword Args:
            observation_key (str): the observation. Defaults to ``"pixels"``.

        Raises:
            EnvironmentFailed: if the environment does; the agent step that it follows counts as completed.
        """
        assert self.progress is not None, "begin() comes first"
        record = self.video and observation_key == "pixels"
        episodes = self.final_evaluation_episodes if step == self.total else self.evaluation_episodes
        if step == 0:
            self.progress.note(f"evaluating {episodes} episodes before training")
        try:
            with self.timed("evaluation"):
                evaluation = evaluate(
                    act,
                    envs,
                    episodes=episodes,
                    seed=derive_seed(self.seed, "evaluation", step),
                    num_frames=self.num_frames,
                    record=record,
                    observation_key=observation_key,
                    epsilon=self.evaluation_epsilon,
                    on_episode=self._tell_how_far(episodes),
                )
        except EnvironmentFailed as error:
            self.completed = step
            raise EnvironmentFailed(f"in the evaluation after agent step {step}, {error}") from error
        self._record(step, evaluation)
        self.progress.restart()
        self.save(step, score=evaluation.mean)

    def _tell_how_far(self, episodes: int) -> Callable[[int, float], None]:
        """Returns what says after each quarter of a long evaluation that it goes on."""
        begin, quarter = time.monotonic(), math.ceil(episodes / 4)

        def on_episode(count: int, _: float) -> None:
            seconds = time.monotonic() - begin
            if count % quarter == 0 and count < episodes and seconds >= _QUIET_SECONDS and self.progress is not None:
                self.progress.note(f"evaluating: {count} of {episodes} episodes after {seconds:.0f} s")

        return on_episode

    def _record(self, step: int, evaluation: Evaluation) -> None:
        env_steps = step * self.action_repeat
        self.directory.eval.truncate_after("step", step - 1)  # a step has one evaluation, also after a resume
        for number, (total, length) in enumerate(zip(evaluation.returns, evaluation.lengths, strict=True)):
            self.directory.eval.append(
                {"step": step, "env_steps": env_steps, "episode": number, "return": total, "length": length}
            )
        self.trackers.log(env_steps, {"evaluation/return": evaluation.mean})
        self.show(eval_return=evaluation.mean)
        assert self.progress is not None
        self.progress.note(
            f"{env_steps:,} env steps: return {evaluation.mean:.1f} (lowest {min(evaluation.returns):.1f}, highest "
            f"{max(evaluation.returns):.1f}, {len(evaluation.returns)} episodes in "
            f"{self._clock.last('evaluation'):.0f} s)"
        )
        points = read_evaluations(self.directory.eval.path)
        with self._or_warn(f"no {self.directory.curve.name} at agent step {step}"):
            self._draw(points)
        with self._or_warn(f"no {self.directory.result.name} at agent step {step}"):
            self._write_result(points)
        if evaluation.frames:
            path = self.directory.videos / f"env_steps_{env_steps}.mp4"
            with self._or_warn(f"no video {path}"):
                write_video(path, evaluation.frames, fps=self.fps)
                self.trackers.log_video("evaluation", path, env_steps)

    def _draw(self, points: list[tuple[int, list[float]]]) -> None:
        plot_learning_curve({self.name: points}, self.directory.curve, title=self.name, reference=self.reference)

    def _write_result(self, points: list[tuple[int, list[float]]]) -> None:
        means = [(env_steps, sum(returns) / len(returns)) for env_steps, returns in points]
        best = max(means, key=lambda point: (point[1], point[0]))  # the later of equals, as checkpoints have it
        self.directory.write_result(
            {
                "name": self.name,
                "finished": means[-1][0] >= self.total * self.action_repeat,
                "env_steps": means[-1][0],
                "final_return": means[-1][1],
                "best_return": best[1],
                "best_env_steps": best[0],
                "final_episodes": len(points[-1][1]),
                "evaluation_episodes": self.evaluation_episodes,
                **self._normalized(final_return=means[-1][1], best_return=best[1]),
                "seconds": self._clock.seconds,
                "seconds_evaluation": self._clock.total("evaluation"),
            }
        )

    def _normalized(self, *, final_return: float, best_return: float) -> dict[str, float]:
        """Returns both returns on the human scale, and the scale; nothing without baselines."""
        if self.baselines is None:
            return {}
        random, human = self.baselines
        return {
            "random_score": random,
            "human_score": human,
            "final_human_normalized": human_normalized_score(final_return, random=random, human=human),
            "best_human_normalized": human_normalized_score(best_return, random=random, human=human),
        }

    def checkpoint_due(self, step: int) -> bool:
        """Tells whether to save at this step; :meth:`evaluate` saves by itself."""
        return step % self.checkpoint_interval == 0 and not self.evaluation_due(step)

    def save(self, step: int, *, score: float | None = None) -> None:
        """Saves a checkpoint. If there is no room, says so and goes on: the one before stays.

        Raises:
            FloatingPointError: if a parameter is NaN or infinite; nothing is saved.
        """
        self._check_parameters(step)
        self._clock.pause()
        try:
            self._last_saved = self.checkpoints.save(
                step, components=self._components, replay=self._replay, score=score, info=self.info
            )
        except CheckpointNotSaved as error:
            self._warn(f"NO CHECKPOINT at agent step {step}: {error}; the last is {self._last_saved}")
        finally:
            self._clock.start()

    def _check_parameters(self, step: int) -> None:
        """Refuses to save what no run could go on from: a loss may be finite where the step that follows it is not."""
        for name, part in self._components.items():
            if isinstance(part, nn.Module) and not all(value.isfinite().all() for value in part.parameters()):
                raise FloatingPointError(
                    f"non-finite parameters of {name} at step {step}; the last good checkpoint is {self._last_saved}"
                )

    @contextlib.contextmanager
    def _or_warn(self, what_is_missing: str) -> Iterator[None]:
        """Goes on without what cannot be written: hours of training are worth more than a picture."""
        try:
            yield
        except OSError as error:
            self._warn(f"{what_is_missing}: {error}")

    def _warn(self, message: str) -> None:
        warnings.warn(message, stacklevel=3)
        if self.progress is not None:
            self.progress.note(message)


class _Latest:
    """The last of each number that was noted; not all are there at every step."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor | float] = {}

    def state_dict(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.values.items()}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.values = dict(state)
