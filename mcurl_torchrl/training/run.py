"""TrainingRun: logging, evaluation, checkpoints and resuming around any training loop."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchrl.checkpoint import GlobalRNGState
from torchrl.envs import EnvBase

from mcurl_torchrl.agents.diagnostics import check_finite
from mcurl_torchrl.agents.optimizing import keep_optimizer_options
from mcurl_torchrl.modules import Policy
from mcurl_torchrl.ranks import ALONE, Ranks
from mcurl_torchrl.training.checkpoints import CheckpointNotSaved, Checkpoints, SavedCheckpoint
from mcurl_torchrl.training.clock import Clock
from mcurl_torchrl.training.curves import plot_learning_curve
from mcurl_torchrl.training.episodes import EnvironmentFailed
from mcurl_torchrl.training.evaluation import Evaluation, EvaluationStopped, evaluate, read_evaluations
from mcurl_torchrl.training.plan import RunPlan
from mcurl_torchrl.training.policies import describe_policy
from mcurl_torchrl.training.progress import Progress
from mcurl_torchrl.training.run_directory import RunDirectory
from mcurl_torchrl.training.seeds import derive_seed
from mcurl_torchrl.training.stopping import StopRequested
from mcurl_torchrl.training.trackers import Trackers
from mcurl_torchrl.training.videos import write_video

__all__ = ["TrainingRun"]

_LONG_EPISODE_SECONDS = 60.0  # an evaluation without the end of an episode says so
_QUIET_SECONDS = 20.0  # a longer evaluation tells how far it is
_SLOW_HOURS = 6.0
_BUSY_LOAD = 1.5  # processes that want to run, for each core; a run by itself makes about 1


class TrainingRun:
    """Logs, evaluates, saves and resumes, so that a training loop contains the algorithm only.

    A loop calls :meth:`track` with everything that has to be saved, then :meth:`begin`, then takes its steps from
    :meth:`agent_steps`. These start after the last checkpoint if there is one, and end early after a stop signal. In
    each step it calls :meth:`record` with its metrics, and :meth:`finish_step` at the end.

    Everything that is logged or saved happens at fixed agent steps, and all randomness is part of the checkpoint: a run
    that was killed and resumed equals one that was not, bit for bit (on a CPU, with the same number of threads).

    ``result.json`` has two returns. ``final_return`` is the mean of the last evaluation: it is the one to report.
    ``best_return`` is the highest mean of all evaluations except the first, which comes before training. The highest of
    many noisy means is too high on average. With ``plan.baselines`` there are also ``final_human_normalized`` and
    ``best_human_normalized``, both returns on the scale of
    :func:`~mcurl_torchrl.training.human_normalized_score`.

    Args:
        directory (str or Path): the run's folder.
        plan (RunPlan): the length of the run, and when it logs, evaluates and saves.

    Keyword Args:
        device (torch.device, optional): the device to train on; for the loop to read. Defaults to the CPU.
        resume (bool): whether to continue from the last checkpoint. Defaults to False.
        when_restored (callable, optional): called once that checkpoint is restored.
        when_evaluated (callable, optional): called after each evaluation, when its results are written.
        trackers (Trackers, optional): TensorBoard and other services that get the metrics.
        stop (StopRequested, optional): the flag that stop signals set.
        progress (bool, optional): as in :class:`~mcurl_torchrl.training.Progress`. Defaults to None.
        hint_when_slow (str, optional): printed once if the run would take more than 6 further hours.

    Attributes:
        ranks (Ranks): the ranks that learn together; one process, except in a
            :class:`~mcurl_torchrl.training.RankedRun`.
    """

    ranks: Ranks = ALONE

    def __init__(
        self,
        directory: str | Path,
        plan: RunPlan,
        *,
        device: torch.device | None = None,
        resume: bool = False,
        when_restored: Callable[[], None] | None = None,
        when_evaluated: Callable[[], object] | None = None,
        trackers: Trackers | None = None,
        stop: StopRequested | None = None,
        progress: bool | None = None,
        hint_when_slow: str | None = None,
    ) -> None:
        self.directory = RunDirectory(directory)
        self.plan = plan
        self.checkpoints = Checkpoints(self.directory.checkpoints, keep_last=plan.keep_last)
        self.device = torch.device("cpu") if device is None else device
        self.resume = resume
        self.when_restored = when_restored
        self.when_evaluated = when_evaluated
        self.trackers = Trackers([]) if trackers is None else trackers
        self.stop = StopRequested() if stop is None else stop
        self.hint_when_slow = hint_when_slow
        self.progress: Progress | None = None
        self.completed = 0
        self.finished = False
        self._show_progress = progress
        self._components: dict[str, Any] | None = None
        self._replay: Any = None
        self._info: dict[str, Any] = {}
        self._clock = Clock()
        self._latest = _Latest()
        self._learning_steps = self._last_learned = self._updates_before = self._logged = 0
        self._said_busy = False
        self._stride = 1
        self._shown: dict[str, float] = {}
        self._bar_metrics: tuple[str, ...] = ()
        self._last_saved: Path | None = None
        self._saved_step = -1
        self._evaluation_due = True  # before training
        self._sign_of_life: Callable[[], None] | None = None  # of a rank that works alone, while others wait for it

    @property
    def total(self) -> int:
        """The agent steps of the whole run."""
        return self.plan.total_agent_steps

    # -- the loop ------------------------------------------------------------------------------------------------------

    def track(self, policy: Policy, *, replay: Any = None, shown: Sequence[str] = (), **components: Any) -> None:
        """Names everything that a checkpoint has to hold. Global random states are always part of it.

        Args:
            policy (Policy): the part that :func:`~mcurl_torchrl.load_policy` loads.

        Keyword Args:
            replay (FrameReplayBuffer, optional): saved once for all checkpoints. Defaults to None: no replay.
            shown (sequence of str): the metrics that the progress bar shows. Defaults to none.
            **components: everything else with ``state_dict()`` and ``load_state_dict()``; None is left out.
        """
        present = {name: part for name, part in components.items() if part is not None}
        own = {"policy": policy, "random": GlobalRNGState(), "clock": self._clock, "latest": self._latest}
        self._components, self._replay, self._bar_metrics = {**present, **own}, replay, tuple(shown)
        self._info["policy"] = describe_policy(policy, num_frames=self.plan.num_frames, padding=self.plan.padding)

    def begin(self, act: Callable[[Tensor], Tensor], envs: EnvBase | Sequence[EnvBase]) -> None:
        """Restores the last checkpoint of a resumed run; evaluates before the first step, or where a stop prevented it.

        Args:
            act (callable): observations to actions, as in :meth:`finish_step`.
            envs (EnvBase or sequence of EnvBase): the environments of evaluations, as in :meth:`finish_step`.
        """
        if self._components is None:
            raise RuntimeError("begin() before track(): a checkpoint would be empty; call track() first")
        first = envs if isinstance(envs, EnvBase) else envs[0]
        self._info["policy"].update(getattr(first, "raw_interface", {}))  # for load_policy: to act in it directly
        if self.resume:
            self._restore()
        self.progress = Progress(self.total, initial=self.completed, enabled=self._show_progress)
        self._updates_before, self._logged = self._clock.counts["update"], self.completed
        self._clock.start()
        if self._evaluation_due:
            self.evaluate(self.completed, act, envs)
        elif self.completed >= self.total:
            self._write_result_again()

    def agent_steps(self, stride: int = 1) -> Iterator[int]:
        """Yields the numbers of agent steps, the first of all being ``stride``; call :meth:`begin` before.

        Saves a last checkpoint after a stop signal.

        Args:
            stride (int): how many agent steps the loop takes at a time, with batched environments for example.
        """
        progress, self._stride = self._begun(), stride
        try:
            for step in range(self.completed + stride, self.total + stride, stride):
                if self._stops():
                    self.save_completed()
                    return
                yield min(step, self.total)
                self.completed = min(step, self.total)
                progress.update(self.completed, **self._shown)
                self._warn_when_slow()
            self.finished = not self._evaluation_due
        finally:
            progress.close()

    def _stops(self) -> bool:
        return self.stop.requested

    def _begun(self) -> Progress:
        if self.progress is None:
            raise RuntimeError("call begin() first")
        return self.progress

    def _restore(self) -> None:
        assert self._components is not None
        with keep_optimizer_options(self._components.values()):
            restored = self.checkpoints.restore(components=self._components, replay=self._replay)
        self.completed = self._saved_step = restored.step
        self._last_saved, self._evaluation_due = restored.path, restored.info.get("evaluation_due", False)
        self._restore_ranks(restored)
        if self.ranks.leads:
            self._go_on_in_directory(restored)

    def _restore_ranks(self, restored: SavedCheckpoint) -> None:
        """Restores what only several ranks have."""

    def _go_on_in_directory(self, restored: SavedCheckpoint) -> None:
        if self.when_restored is not None:
            self.when_restored()
        self.directory.truncate_after(restored.step)
        if self._evaluation_due:  # it may have written rows
            self.directory.eval.truncate_after("step", restored.step - 1)
        changed = self._changed_tables(restored.info.get("tables", {})) | self._changed_ranks(restored)
        self.directory.record_resume(restored.step, device=self.device, **changed)

    def _changed_ranks(self, restored: SavedCheckpoint) -> dict[str, Any]:
        """Warns if the number of ranks has changed; returns an entry for the manifest."""
        before, now = restored.info.get("ranks", 1), self.ranks.count
        if before == now:
            return {}
        self._warn(
            f"the checkpoint of agent step {restored.step:,} was saved by {before} rank(s), and {now} go on: networks, "
            "replay and batch sizes are the same, but other random numbers are drawn from here on (rows of the replay, "
            f"crops, masks, noise); the results will differ from those of {before} rank(s)"
        )
        return {"ranks": now}

    def _changed_tables(self, saved: Mapping[str, str]) -> dict[str, Any]:
        """Warns about tables whose rows are not those of the checkpoint; returns an entry for the manifest."""
        now = self._fingerprints()
        changed = [name for name, fingerprint in saved.items() if now.get(name) != fingerprint]
        for name in changed:
            self._warn(
                f"{self.directory.path / name} does not have the rows that it had at the checkpoint: it was edited or "
                "removed. The run goes on with the rows that are there, and the manifest says so"
            )
        return {"changed_tables": changed} if changed else {}

    def _fingerprints(self) -> dict[str, str]:
        tables = (self.directory.metrics, self.directory.eval)
        found = {}
        for table in tables:
            with contextlib.suppress(ValueError, OSError):  # A damaged table has none.
                found[table.path.name] = table.fingerprint()
        return found

    def _warn_when_slow(self) -> None:
        if self.hint_when_slow is None or self._clock.counts["update"] < 10 or not self._learning_steps:
            return
        parts, totals, counts = ("env", "sample", "update"), self._clock.totals, self._clock.counts
        if self._stride == 1:  # each part's own mean: there were steps without an update before
            updates = (counts["update"] - self._updates_before) / self._learning_steps
            env, sample, update = (totals[part] / counts[part] for part in parts)
            seconds = env + updates * (sample + update)
        else:  # a part may be timed several times in one stride
            seconds = sum(totals[part] for part in parts) / self.completed
        hours = seconds * (self.total - self.completed) / 3600
        if hours > _SLOW_HOURS:
            self._begun().note(f"at this speed the run takes about {hours:,.0f} more hours: {self.hint_when_slow}")
        self.hint_when_slow = None

    def _warn_when_busy(self) -> None:
        """Says once that other programs use the processor: then many threads wait for each other."""
        threads, cores = torch.get_num_threads(), os.cpu_count() or 1
        if self._said_busy or self.device.type != "cpu" or threads == 1 or os.getloadavg()[0] <= _BUSY_LOAD * cores:
            return
        self._said_busy = True
        self._begun().note(
            f"this machine is busy (a load of {os.getloadavg()[0]:.1f} on {cores} cores), and this run has {threads} "
            "threads: with fewer it may be many times faster, such as threads=1 of the recipes, also when it is resumed"
        )

    def timed(self, part: str) -> contextlib.AbstractContextManager[None]:
        """Adds the time of the block to a part of the loop, for ``metrics.csv``."""
        return self._clock.timed(part)

    # -- what happens at a step ----------------------------------------------------------------------------------------

    def log_due(self, step: int) -> bool:
        """Returns whether ``metrics.csv`` gets a row at this step."""
        return self._reaches(step, self.plan.log_interval)

    def _reaches(self, step: int, interval: int) -> bool:
        """Returns whether a multiple of the interval is above the last completed step and at most this step."""
        return step // interval > self.completed // interval

    def record(self, step: int, metrics: Mapping[str, Tensor | float], **more: float | None) -> None:
        """Stores metrics; the next row of ``metrics.csv`` has the last value of each.

        Raises:
            NonFiniteLoss: if a loss is NaN or infinite. It names the last good checkpoint.
        """
        losses = {name: value for name, value in metrics.items() if name.startswith("loss_")}
        if losses:
            check_finite(step, last_good=self._last_saved, **losses)
            if not self._learning_steps:  # the steps with updates are the slow ones: measure the speed from here on
                self._begun().restart()
            if step != self._last_learned:
                self._learning_steps += 1
            self._last_learned = step
        self._latest.values.update(metrics)
        self._latest.values.update({name: value for name, value in more.items() if value is not None})

    def finish_step(self, step: int, act: Callable[[Tensor], Tensor], envs: EnvBase | Sequence[EnvBase]) -> None:
        """Logs, evaluates and saves, each if it is due at this step.

        Args:
            step (int): the agent steps done so far.
            act (callable): observations ``[n, ...]`` to actions ``[n, ...]``, for evaluations.
            envs (EnvBase or sequence of EnvBase): the environments of evaluations, one episode at a time in each.

        Raises:
            EnvironmentFailed: if an environment fails in an evaluation. The step counts as completed.
        """
        if self.log_due(step) and self.ranks.leads:
            self._log(step)
        if self._reaches(step, self.plan.evaluation_interval) or step == self.total:
            self.evaluate(step, act, envs)
        elif self._reaches(step, self.plan.checkpoint_interval):
            self.save(step)

    def _log(self, step: int) -> None:
        """Adds a row to ``metrics.csv`` and passes it to the trackers. If the disk is full, warns and continues."""
        numbers = self._latest.state_dict()
        timings, self._logged = self._clock.take(steps=step - self._logged), step
        env_steps = step * self.plan.action_repeat
        with self._or_warn(f"no row of agent step {step} in {self.directory.metrics.path}"):
            self.directory.metrics.append({"step": step, "env_steps": env_steps, **numbers, **timings})
        self.trackers.log(env_steps, {f"train/{key}": value for key, value in numbers.items()})
        self.trackers.log(env_steps, {f"speed/{key}": value for key, value in self._speed(timings).items()})
        self._shown.update({name: numbers[name] for name in self._bar_metrics if name in numbers})
        self._warn_when_busy()

    def _speed(self, timings: Mapping[str, float]) -> dict[str, float]:
        """Returns the times of the parts of a step, and the environment steps per second."""
        parts = {key: value for key, value in timings.items() if key not in ("seconds", "milliseconds_evaluation")}
        if not (total := sum(parts.values())):
            return parts
        return {**parts, "env_steps_per_second": 1000 * self.plan.action_repeat / total}

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def evaluate(self, step: int, act: Callable[[Tensor], Tensor], envs: EnvBase | Sequence[EnvBase]) -> None:
        """Saves, evaluates, adds to ``eval.csv``, draws the curve, films the first episode, and saves the score.

        A stop signal ends an evaluation at once; the resumed run begins with it.
        """
        plan, progress = self.plan, self._begun()
        self._evaluation_due = True
        if self._saved_step != step:
            self.save(step)
        final = plan.final_evaluation_episodes if step == self.total else None
        episodes = plan.evaluation_episodes if final is None else final
        if step == 0:
            progress.note(f"evaluating {episodes} episodes before training")
        seconds_before = self._clock.totals["evaluation"]
        try:
            with self.timed("evaluation"):
                evaluation = evaluate(
                    act,
                    envs,
                    episodes=episodes,
                    seed=derive_seed(plan.seed, "evaluation", step),
                    num_frames=plan.num_frames,
                    record=plan.video and plan.observation_key == "pixels",
                    observation_key=plan.observation_key,
                    epsilon=plan.evaluation_epsilon,
                    sample=plan.evaluation_sample,
                    **self._callbacks(episodes),
                )
        except EvaluationStopped as stopped:
            progress.note(f"the evaluation after agent step {step:,} {stopped}; a resumed run begins with it")
            return
        except EnvironmentFailed as error:
            self.completed = step
            raise EnvironmentFailed(f"in the evaluation after agent step {step}, {error}") from error
        self._record_evaluation(step, evaluation, self._clock.totals["evaluation"] - seconds_before)
        progress.restart()
        self._evaluation_due = False
        # No score before training: the best checkpoint has a trained policy.
        self.save(step, score=evaluation.mean if step > 0 else None)

    def _callbacks(self, episodes: int) -> dict[str, Callable[..., Any]]:
        """Returns what an evaluation calls at each step and episode: both print how a long evaluation goes."""
        begin, quarter, waits = time.monotonic(), math.ceil(episodes / 4), True

        def stop() -> bool:
            nonlocal waits
            if waits and time.monotonic() - begin > _LONG_EPISODE_SECONDS:
                waits = False
                self._begun().note(
                    f"evaluating: no episode has ended after {_LONG_EPISODE_SECONDS:.0f} s; an environment whose "
                    "episodes may never end needs a time limit"
                )
            return self.stop.requested

        def on_episode(count: int, _: float) -> None:
            nonlocal waits
            waits = False
            if self._sign_of_life is not None:
                self._sign_of_life()
            seconds = time.monotonic() - begin
            if count % quarter == 0 and count < episodes and seconds >= _QUIET_SECONDS:
                self._begun().note(f"evaluating: {count} of {episodes} episodes after {seconds:.0f} s")

        return {"stop": stop, "on_episode": on_episode}

    def _record_evaluation(self, step: int, evaluation: Evaluation, seconds: float) -> None:
        env_steps = step * self.plan.action_repeat
        self.directory.eval.truncate_after("step", step - 1)  # a step has one evaluation, also after a resume
        for number, (total, length) in enumerate(zip(evaluation.returns, evaluation.lengths, strict=True)):
            self.directory.eval.append(
                {"step": step, "env_steps": env_steps, "episode": number, "return": total, "length": length}
            )
        self.trackers.log(env_steps, {f"evaluation/{key}": value for key, value in _spread(evaluation).items()})
        self._shown["eval_return"] = evaluation.mean
        self._begun().note(
            f"{env_steps:,} env steps: return {evaluation.mean:.1f} (lowest {min(evaluation.returns):.1f}, highest "
            f"{max(evaluation.returns):.1f}, {len(evaluation.returns)} episodes in {seconds:.0f} s)"
        )
        points = read_evaluations(self.directory.eval.path)
        with self._or_warn(f"no {self.directory.curve.name} at agent step {step}"):
            name, reference = self.plan.name, self.plan.reference
            plot_learning_curve({name: points}, self.directory.curve, title=name, reference=reference)
        with self._or_warn(f"no {self.directory.result.name} at agent step {step}"):
            self._write_result(points)
        if evaluation.frames:
            path = self.directory.videos / f"env_steps_{env_steps}.mp4"
            with self._or_warn(f"no video {path}"):
                write_video(path, evaluation.film(), fps=evaluation.steps_per_second or 30)
                self.trackers.log_video("evaluation", path, env_steps)
        if self.when_evaluated is not None:
            with self._or_warn(f"not all was written after the evaluation of agent step {step}"):
                self.when_evaluated()

    def _write_result_again(self) -> None:
        """Writes the result of a run that is at its end: it may be missing, for example after a full disk."""
        if self.directory.eval.path.exists():
            with self._or_warn(f"no {self.directory.result.name} at agent step {self.completed}"):
                self._write_result(read_evaluations(self.directory.eval.path))

    def _write_result(self, points: list[tuple[int, list[float]]]) -> None:
        means = [(env_steps, sum(returns) / len(returns)) for env_steps, returns in points]
        # The later of equals, and not the one before training, like the best checkpoint.
        best = max([mean for mean in means if mean[0] > 0] or means, key=lambda point: (point[1], point[0]))
        self.directory.write_result(
            {
                "name": self.plan.name,
                "finished": means[-1][0] >= self.total * self.plan.action_repeat,
                "env_steps": means[-1][0],
                "final_return": means[-1][1],
                "best_return": best[1],
                "best_env_steps": best[0],
                "final_episodes": len(points[-1][1]),
                "evaluation_episodes": self.plan.evaluation_episodes,
                **self.plan.normalized(final_return=means[-1][1], best_return=best[1]),
                "seconds": self._clock.seconds,
                "seconds_evaluation": self._clock.totals["evaluation"],
            }
        )

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save(self, step: int, *, score: float | None = None) -> None:
        """Saves a checkpoint. If the disk is full, warns and continues: the earlier checkpoints stay.

        Raises:
            FloatingPointError: if a parameter is NaN or infinite; nothing is saved.
        """
        assert self._components is not None
        self._check_parameters(step)
        self._clock.pause()
        info = {**self._info, "tables": self._fingerprints()}
        if self._evaluation_due:
            info["evaluation_due"] = True
        try:
            self._last_saved = self.checkpoints.save(
                step, components=self._components, replay=self._replay, score=score, info=info
            )
            self._saved_step = step
        except CheckpointNotSaved as error:
            last = "there is none" if self._last_saved is None else f"the last is {self._last_saved}"
            self._warn(f"NO CHECKPOINT at agent step {step}: {error}; {last}")
        finally:
            self._clock.start()

    def save_completed(self) -> None:
        """Saves the last completed step, unless it is saved already; raises the errors of :meth:`save`."""
        if self._saved_step != self.completed:
            if self.ranks.leads:
                self._begun().note(f"saving at agent step {self.completed:,}")
            self.save(self.completed)

    def _check_parameters(self, step: int) -> None:
        """Refuses to save parameters that are not finite; the step after a finite loss may be infinite."""
        for name, part in (self._components or {}).items():
            if isinstance(part, nn.Module) and not all(value.isfinite().all() for value in part.parameters()):
                raise FloatingPointError(
                    f"non-finite parameters of {name} at step {step}; the last good checkpoint is {self._last_saved}"
                )

    def close(self) -> None:
        """Closes the tracked parts that have ``close()``, such as a source with workers."""
        for part in (self._components or {}).values():
            if (close := getattr(part, "close", None)) is not None:
                close()

    @contextlib.contextmanager
    def _or_warn(self, missing: str) -> Iterator[None]:
        """Turns an OSError into a warning, so that a file that cannot be written does not end the training."""
        try:
            yield
        except OSError as error:
            self._warn(f"{missing}: {error}")

    def _warn(self, message: str) -> None:
        warnings.warn(message, stacklevel=3)
        if self.progress is not None:
            self.progress.note(message)


def _spread(evaluation: Evaluation) -> dict[str, float]:
    """Returns the mean and the spread of the returns."""
    return {
        "return": evaluation.mean,
        "return_lowest": min(evaluation.returns),
        "return_highest": max(evaluation.returns),
        "return_std": statistics.pstdev(evaluation.returns),
    }


class _Latest:
    """The last value of each metric; an update may lack some of them."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor | float] = {}

    def state_dict(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.values.items()}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.values = dict(state)
