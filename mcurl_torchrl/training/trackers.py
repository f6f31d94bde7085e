"""Where a run's numbers go besides its own files: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import json
import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from mcurl_torchrl.checks import check_choice
from mcurl_torchrl.files import write_file

__all__ = ["Tracker", "Trackers", "make_trackers"]


class Tracker(Protocol):
    """One place that numbers go to. To add one's own, append it to :attr:`Trackers.active`."""

    name: str

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds a point to each metric's curve."""

    def log_video(self, name: str, path: Path, step: int) -> None:
        """Adds a video, or does nothing where videos are not supported."""

    def close(self, *, failed: bool) -> None:
        """Writes out what is still waiting and marks the run as finished or failed."""


class Trackers:
    """Hands each call to all trackers; one that fails is switched off with a warning, and the training goes on.

    Args:
        active (list of :class:`Tracker`): those in use.

    Examples:
        >>> import tempfile
        >>> from mcurl_torchrl.training.trackers import make_trackers
        >>> with tempfile.TemporaryDirectory() as run:
        ...     trackers = make_trackers(run, run_name="cartpole-1", config={"seed": 1})
        ...     trackers.log(1000, {"eval/return": 181.2})
        ...     trackers.close()
    """

    def __init__(self, active: list[Tracker]) -> None:
        self.active = active

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds a point to each metric's curve.

        Args:
            step (int): the horizontal position, in the same unit in every call.
            metrics (mapping of str to float): names with a slash are grouped by the part before it.
        """
        numbers = {name: float(value) for name, value in metrics.items()}
        self._each(lambda tracker: tracker.log(step, numbers))

    def log_video(self, name: str, path: str | os.PathLike[str], step: int) -> None:
        """Adds an MP4 file, where a tracker supports videos (W&B and MLflow; TensorBoard does not)."""
        self._each(lambda tracker: tracker.log_video(name, Path(path), step))

    def close(self, *, failed: bool = False) -> None:
        """Writes out what is still waiting; ``failed`` marks the run as such."""
        self._each(lambda tracker: tracker.close(failed=failed))
        self.active = []

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self.active):
            try:
                call(tracker)
            except Exception as error:  # whatever it is (network, disk), hours of training are worth more
                self.active.remove(tracker)
                warnings.warn(
                    f"{tracker.name} failed and is switched off for the rest of this run: "
                    f"{type(error).__name__}: {error}",
                    stacklevel=3,
                )


def make_trackers(
    directory: str | os.PathLike[str],
    *,
    tensorboard: bool = True,
    wandb: Mapping[str, Any] | None = None,
    mlflow: Mapping[str, Any] | None = None,
    run_name: str,
    config: Mapping[str, Any],
    resume_step: int | None = None,
) -> Trackers:
    """Opens the trackers of a run. What goes wrong here is raised: no training time is lost yet.

    Args:
        directory (path): the run's directory. It gets the TensorBoard events (``tensorboard/``), and the files
            ``wandb_id`` and ``mlflow_run_id``, by which a resumed run goes on with the same W&B and MLflow runs.

    Keyword Args:
        tensorboard (bool): defaults to True.
        wandb (mapping, optional): ``project``, ``mode`` (``"online"``, the default, or ``"offline"``), and any further
            keyword of ``wandb.init``. Defaults to None: no Weights & Biases.
        mlflow (mapping, optional): ``experiment`` (default ``"mcurl"``), ``tracking_uri`` and, for a new experiment's
            videos, ``artifact_location``; the last two default to what MLflow chooses (``MLFLOW_TRACKING_URI``, or
            ``mlflow.db`` and ``mlruns/`` in the working directory). Defaults to None: no MLflow.
        run_name (str): the name that W&B and MLflow show.
        config (mapping): the settings to show beside the curves.
        resume_step (int, optional): the step of the checkpoint that a run is resumed from. TensorBoard drops the points
            after it, which the resumed run writes again; W&B and MLflow cannot, and show both. None, the default, is a
            new run.

    Returns:
        A :class:`Trackers`.

    Raises:
        ImportError: if a tracker's package is missing.
        ValueError: if an option is unknown.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from mcurl_torchrl.training.trackers import make_trackers
        >>> with tempfile.TemporaryDirectory() as run:
        ...     trackers = make_trackers(run, run_name="cartpole-1", config={"seed": 1}, resume_step=5000)
        ...     trackers.log(6000, {"eval/return": 200.0, "train/loss_critic": 0.1})
        ...     trackers.close()
        ...     [file.name for file in Path(run).iterdir()]
        ['tensorboard']
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    trackers = Trackers([])
    try:
        if tensorboard:
            trackers.active.append(_TensorBoard(directory, config, resume_step))
        if wandb is not None:
            trackers.active.append(_WeightsAndBiases(directory, wandb, run_name, config, resume_step))
        if mlflow is not None:
            # A server that does not answer holds up a call for four minutes before MLflow gives up.
            trackers.active.append(_InBackground(_MLflow(directory, mlflow, run_name, config, resume_step)))
    except BaseException:
        trackers.close(failed=True)
        raise
    return trackers


class _TensorBoard:
    name = "TensorBoard"

    def __init__(self, directory: Path, config: Mapping[str, Any], resume_step: int | None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("TensorBoard is missing: pip install 'mcurl-torchrl[recipes]'") from error
        # TensorBoard drops what is at purge_step and later; the checkpoint's own step stays.
        purge_step = None if resume_step is None else resume_step + 1
        self._writer = SummaryWriter(str(directory / "tensorboard"), purge_step=purge_step, flush_secs=20)
        if resume_step is None:
            text = json.dumps(config, indent=2, default=str)
            self._writer.add_text("config", "\n".join(f"    {line}" for line in text.splitlines()))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def log_video(self, name: str, path: Path, step: int) -> None:
        pass  # its videos are GIFs in the event file: megabytes each, and they need moviepy

    def close(self, *, failed: bool) -> None:
        self._writer.close()


class _WeightsAndBiases:
    name = "Weights & Biases"

    def __init__(
        self,
        directory: Path,
        options: Mapping[str, Any],
        run_name: str,
        config: Mapping[str, Any],
        resume_step: int | None,
    ) -> None:
        mode = check_choice("wandb.mode", options.get("mode", "online"), ("online", "offline"))
        try:
            # By name: a bare import would be content with a folder called wandb, which W&B itself leaves behind.
            from wandb import Settings, Video, init
        except ImportError as error:
            raise ImportError("Weights & Biases is missing: pip install 'mcurl-torchrl[tracking]'") from error
        self._video = Video
        file = directory / "wandb_id"
        run_id = _stored_id(file, resume_step) or uuid.uuid4().hex[:8]
        defaults: dict[str, Any] = {
            "name": run_name,
            "dir": str(directory),
            "config": dict(config),
            # Its capture of the terminal would take the progress bar apart.
            "settings": Settings(console="off"),
        }
        if mode == "online":  # offline, W&B warns that it cannot look
            defaults["resume"] = "allow"
        self._run = init(**{**defaults, **options, "id": run_id, "mode": mode})
        _store_id(file, run_id)
        # A metric of its own as the horizontal axis: W&B refuses points before the last one of its own step counter,
        # and a resumed run starts before it.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, "step": step})

    def log_video(self, name: str, path: Path, step: int) -> None:
        self._run.log({name: self._video(str(path), format="mp4"), "step": step})

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class _MLflow:
    name = "MLflow"

    def __init__(
        self,
        directory: Path,
        options: Mapping[str, Any],
        run_name: str,
        config: Mapping[str, Any],
        resume_step: int | None,
    ) -> None:
        for option in options:
            check_choice("an option of mlflow", option, ("artifact_location", "experiment", "tracking_uri"))
        try:
            from mlflow.entities import Metric, Param
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise ImportError("MLflow is missing: pip install 'mcurl-torchrl[tracking]'") from error
        self._metric = Metric
        # The client, not mlflow.start_run: that one is global to the process.
        self._client = MlflowClient(tracking_uri=options.get("tracking_uri"))
        file = directory / "mlflow_run_id"
        stored = _stored_id(file, resume_step)
        if stored is not None:
            self._client.update_run(stored, status="RUNNING")
            self._run_id = stored
            return
        experiment_name = options.get("experiment", "mcurl")
        experiment = self._client.get_experiment_by_name(experiment_name)
        if experiment is None:
            experiment_id = self._client.create_experiment(experiment_name, options.get("artifact_location"))
        else:
            experiment_id = experiment.experiment_id
        self._run_id = self._client.create_run(experiment_id, run_name=run_name).info.run_id
        _store_id(file, self._run_id)
        parameters = [Param(name, str(value)) for name, value in _leaves(config)]
        for start in range(0, len(parameters), 100):  # MLflow takes at most 100 a call
            self._client.log_batch(self._run_id, params=parameters[start : start + 100])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(self._run_id, [self._metric(name, value, now, step) for name, value in metrics.items()])

    def log_video(self, name: str, path: Path, step: int) -> None:
        self._client.log_artifact(self._run_id, str(path), name)

    def close(self, *, failed: bool) -> None:
        self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")


class _InBackground:
    """Makes a tracker's calls in a thread, in order; a failure is raised by the next call, and ends the rest."""

    def __init__(self, tracker: Tracker) -> None:
        self.name = tracker.name
        self._tracker = tracker
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._error: Exception | None = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._submit(lambda: self._tracker.log(step, metrics))

    def log_video(self, name: str, path: Path, step: int) -> None:
        self._submit(lambda: self._tracker.log_video(name, path, step))

    def close(self, *, failed: bool) -> None:
        self._submit(lambda: self._tracker.close(failed=failed))
        self._thread.shutdown()  # waits
        if self._error is not None:
            raise self._error

    def _submit(self, call: Callable[[], None]) -> None:
        if self._error is not None:
            raise self._error
        self._thread.submit(self._run, call)

    def _run(self, call: Callable[[], None]) -> None:
        if self._error is None:
            try:
                call()
            except Exception as error:
                self._error = error


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _stored_id(file: Path, resume_step: int | None) -> str | None:
    """Returns the id that an earlier part of this run left, unless this is a new run."""
    return file.read_text().strip() if resume_step is not None and file.exists() else None


def _store_id(file: Path, run_id: str) -> None:
    write_file(file, f"{run_id}\n".encode())
