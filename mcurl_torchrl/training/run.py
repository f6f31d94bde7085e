"""TrainingRun: what surrounds a training loop, whatever is trained in it."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchrl.checkpoint import GlobalRNGState
from torchrl.envs import EnvBase

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.modules import GaussianPolicy
from mcurl_torchrl.replay import FrameReplayBuffer
from mcurl_torchrl.training import tables
from mcurl_torchrl.training.checkpoints import CheckpointNotSaved, Checkpoints
from mcurl_torchrl.training.curves import plot_learning_curve
from mcurl_torchrl.training.diagnostics import check_finite
from mcurl_torchrl.training.episodes import EpisodeStream, ReplayedDifferently
from mcurl_torchrl.training.evaluation import Evaluation, evaluate
from mcurl_torchrl.training.policies import describe_policy
from mcurl_torchrl.training.progress import Progress
from mcurl_torchrl.training.run_directory import RunDirectory
from mcurl_torchrl.training.seeds import derive_seed
from mcurl_torchrl.training.stopping import StopRequested
from mcurl_torchrl.training.trackers import Trackers
from mcurl_torchrl.training.videos import write_video

__all__ = ["TrainingRun"]


class TrainingRun:
    """Logs, evaluates, saves and resumes, so that a training loop is left with what it trains.

    A loop calls :meth:`track` with everything that has to be saved, then takes its steps from :meth:`agent_steps`,
    which begin after the last checkpoint where there is one, and end early when somebody asks for it.

    Everything that is logged or saved happens at fixed agent steps, and all randomness is in what is saved: a run that
    was killed and resumed is the same, bit for bit, as one that was not (on a CPU, with the same number of threads).

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
        checkpoint_interval (int): agent steps between checkpoints. There is one at each evaluation, too.
        keep_last (int): how many checkpoints to keep, besides the best. Defaults to 2.
        video (bool): whether to film the first episode of each evaluation. Defaults to True.
        num_frames (int): how many frames an observation stacks. Defaults to 1.
        fps (float): of the videos. Defaults to 30.
        resume (bool): whether to go on from the last checkpoint. Defaults to False.
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
        keep_last: int = 2,
        video: bool = True,
        num_frames: int = 1,
        fps: float = 30.0,
        resume: bool = False,
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
        self.checkpoint_interval = check_count("checkpoint_interval", checkpoint_interval)
        self.video = video
        self.num_frames = num_frames
        self.fps = fps
        self.reference: dict[str, tuple[int, float]] = {}
        self.info: dict[str, Any] = {}
        self.resume = resume
        self.trackers = Trackers([]) if trackers is None else trackers
        self.stop = StopRequested() if stop is None else stop
        self.hint_when_slow = hint_when_slow
        self.slow_hours = slow_hours
        self._show_progress = progress
        self._components: dict[str, Any] = {}
        self._replay: FrameReplayBuffer | None = None
        self._clock = _Clock()
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
        policy: GaussianPolicy,
        *,
        num_frames: int,
        reference: Mapping[str, tuple[int, float]] | None = None,
    ) -> None:
        """Says what :func:`~mcurl_torchrl.load_policy` has to build, and what to draw beside the curve."""
        self.info["policy"] = describe_policy(policy, num_frames=num_frames)
        self._components["policy"] = policy
        self.reference = dict(reference or {})

    def agent_steps(self) -> Iterator[int]:
        """Yields agent steps, the first of all being 1, from where the last checkpoint left off to the end.

        Saves a last checkpoint when the run is over or asked to stop.
        """
        first = self._restore() if self.resume else 0
        self.completed = first
        self.progress = Progress(self.total, initial=first, enabled=self._show_progress)
        self._clock.start()
        try:
            for step in range(first + 1, self.total + 1):
                yield step
                self.completed = step
                self.progress.update(step, **self._shown)
                self._warn_when_slow(step, first)
                if self.stop.requested and step < self.total:
                    self.progress.note(f"{self.stop.signal_name}: saving at agent step {step:,}")
                    self.save(step)
                    return
            self.finished = True
        finally:
            self.progress.close()

    def _restore(self) -> int:
        # A stream that cannot be brought back to where it was is no reason to lose the run: it starts a new episode.
        streams = {name: part for name, part in self._components.items() if isinstance(part, EpisodeStream)}
        others = {name: part for name, part in self._components.items() if name not in streams and name != "random"}
        restored = self.checkpoints.restore(components=others, replay=self._replay)
        for name, stream in streams.items():
            try:
                self.checkpoints.restore(components={name: stream}, step=restored.step)
            except ReplayedDifferently as error:
                warnings.warn(str(error), stacklevel=2)
        # Last: taking up an episode again may draw random numbers.
        self.checkpoints.restore(components={"random": self._components["random"]}, step=restored.step)
        self._last_saved = restored.path
        self.directory.truncate_after(restored.step)
        self.directory.record_resume(restored.step, device=self.device)
        return restored.step

    def _warn_when_slow(self, step: int, first: int) -> None:
        updates = self._clock.count("update")
        if self.hint_when_slow is None or updates < 10:
            return
        hours = self._clock.mean_of_last("update") * (self.total - step) / 3600
        if hours > self.slow_hours and self.progress is not None:
            self.progress.note(f"at this speed the run takes about {hours:,.0f} more hours: {self.hint_when_slow}")
        self.hint_when_slow = None

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Adds the time inside to a part of the loop, for ``metrics.csv``."""
        begin = time.perf_counter()
        yield
        self._clock.add(part, time.perf_counter() - begin)

    # -- what happens at a step ----------------------------------------------------------------------------------------

    def log_due(self, step: int) -> bool:
        """Tells whether ``metrics.csv`` gets a row at this step."""
        return step % self.log_interval == 0

    def note(self, metrics: Mapping[str, Tensor | float]) -> None:
        """Takes over numbers; the next row of ``metrics.csv`` has the last of each. Waits for no device."""
        self._latest.values.update(metrics)

    def log(self, step: int) -> None:
        """Adds a row to ``metrics.csv`` and hands it to the trackers."""
        numbers = self._latest.state_dict()
        timings = self._clock.take(steps=self.log_interval)
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

    def evaluate(self, step: int, act: Callable[[Tensor], Tensor], env: EnvBase, *, pixels_key: str = "pixels") -> None:
        """Evaluates, adds to ``eval.csv``, draws the curve, films the first episode, and saves."""
        record = self.video and pixels_key == "pixels"
        begin = time.perf_counter()
        evaluation = evaluate(
            act,
            env,
            episodes=self.evaluation_episodes,
            seed=derive_seed(self.seed, "evaluation", step),
            num_frames=self.num_frames,
            record=record,
            pixels_key=pixels_key,
        )
        seconds = time.perf_counter() - begin
        self._clock.add("evaluation", seconds)
        self._record(step, evaluation, seconds)
        self.save(step, score=evaluation.mean)

    def _record(self, step: int, evaluation: Evaluation, seconds: float) -> None:
        env_steps = step * self.action_repeat
        self.directory.eval.truncate_after("step", step - 1)  # a step has one evaluation, also after a resume
        for number, (total, length) in enumerate(zip(evaluation.returns, evaluation.lengths, strict=True)):
            self.directory.eval.append(
                {"step": step, "env_steps": env_steps, "episode": number, "return": total, "length": length}
            )
        self.trackers.log(env_steps, {"evaluation/return": evaluation.mean})
        self.show(eval_return=evaluation.mean)
        if self.progress is not None:
            self.progress.note(
                f"{env_steps:,} env steps: return {evaluation.mean:.1f} (lowest {min(evaluation.returns):.1f}, "
                f"highest {max(evaluation.returns):.1f}, {len(evaluation.returns)} episodes in {seconds:.0f} s)"
            )
        self._draw()
        if evaluation.frames:
            path = self.directory.videos / f"env_steps_{env_steps}.mp4"
            write_video(path, evaluation.frames, fps=self.fps)
            self.trackers.log_video("evaluation", path, env_steps)

    def _draw(self) -> None:
        points = self.evaluations()
        plot_learning_curve({self.name: points}, self.directory.curve, title=self.name, reference=self.reference)
        means = [(env_steps, sum(returns) / len(returns)) for env_steps, returns in points]
        best = max(means, key=lambda point: point[1])
        self.directory.write_result(
            {
                "name": self.name,
                "finished": means[-1][0] >= self.total * self.action_repeat,
                "env_steps": means[-1][0],
                "final_return": means[-1][1],
                "best_return": best[1],
                "best_env_steps": best[0],
                "evaluation_episodes": len(points[-1][1]),
                "seconds": self._clock.seconds,
                "seconds_evaluation": self._clock.total("evaluation"),
            }
        )

    def evaluations(self) -> list[tuple[int, list[float]]]:
        """Returns the evaluations so far: environment steps and the returns of all episodes."""
        points: dict[int, list[float]] = defaultdict(list)
        for row in tables.read(self.directory.eval.path):
            points[row["env_steps"]].append(row["return"])
        return sorted(points.items())

    def checkpoint_due(self, step: int) -> bool:
        """Tells whether to save at this step; :meth:`evaluate` saves by itself."""
        return step % self.checkpoint_interval == 0 and not self.evaluation_due(step)

    def save(self, step: int, *, score: float | None = None) -> None:
        """Saves a checkpoint. If there is no room, says so and goes on: the one before stays."""
        self._clock.pause()
        try:
            self._last_saved = self.checkpoints.save(
                step, components=self._components, replay=self._replay, score=score, info=self.info
            )
        except CheckpointNotSaved as error:
            warnings.warn(f"no checkpoint at agent step {step}: {error}", stacklevel=2)
            if self.progress is not None:
                self.progress.note(f"NO CHECKPOINT at agent step {step}: {error}; the last is {self._last_saved}")
        finally:
            self._clock.start()


class _Latest:
    """The last of each number that was noted; not all are there at every step."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor | float] = {}

    def state_dict(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.values.items()}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.values = dict(state)


class _Clock:
    """Times of the parts of a loop, and of all of a run, also of what came before it was resumed."""

    def __init__(self) -> None:
        self._before = 0.0
        self._begin: float | None = None
        self._totals: dict[str, float] = defaultdict(float)
        self._recent: dict[str, float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)
        self._last: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        running = 0.0 if self._begin is None else time.perf_counter() - self._begin
        return self._before + running

    def start(self) -> None:
        if self._begin is None:
            self._begin = time.perf_counter()

    def pause(self) -> None:
        self._before, self._begin = self.seconds, None

    def add(self, part: str, seconds: float) -> None:
        self._totals[part] += seconds
        self._recent[part] += seconds
        self._counts[part] += 1
        self._last[part] = seconds

    def count(self, part: str) -> int:
        return self._counts[part]

    def mean_of_last(self, part: str) -> float:
        return self._last[part]

    def total(self, part: str) -> float:
        return self._totals[part]

    def take(self, *, steps: int) -> dict[str, float]:
        """Returns milliseconds per step of each part since the last call, and the seconds of the run so far."""
        parts = {f"milliseconds_{part}": 1000 * seconds / steps for part, seconds in self._recent.items()}
        self._recent.clear()
        return {**parts, "seconds": self.seconds}

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "totals": dict(self._totals)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._before, self._begin = state["seconds"], None
        self._totals = defaultdict(float, state["totals"])
