"""Trackers: send the metrics of a run to TensorBoard, Weights & Biases and MLflow, besides the run's own files."""

from __future__ import annotations

import json
import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torchrl.record.loggers import TensorboardLogger, WandbLogger

from mcurl_torchrl.checks import check_choice, needs
from mcurl_torchrl.files import write_file

__all__ = ["Tracker", "Trackers", "make_trackers"]


@dataclass(frozen=True)
class Tracker:
    """One service that shows metrics. To add your own, append it to :attr:`Trackers.active`.

    Args:
        name (str): the name for messages.
        log (callable): takes a step and a mapping of names to numbers, and adds a point to the curve of each.
        log_video (callable): takes a name, the path of an MP4 file and a step; may do nothing.
        close (callable): takes ``failed=``, writes the last points and marks the run as finished or failed.
    """

    name: str
    log: Callable[[int, Mapping[str, float]], None]
    log_video: Callable[[str, Path, int], None]
    close: Callable[..., None]


class Trackers:
    """Passes each call to all trackers; a tracker that fails is switched off with a warning, and training continues.

    Args:
        active (list of :class:`Tracker`): the trackers in use.

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
        """Adds a point to the curve of each metric; names with a slash are grouped by the part before it."""
        numbers = {name: float(value) for name, value in metrics.items()}
        self._each(lambda tracker: tracker.log(step, numbers))

    def log_video(self, name: str, path: str | os.PathLike[str], step: int) -> None:
        """Adds an MP4 file to the trackers that support videos: W&B and MLflow, not TensorBoard."""
        self._each(lambda tracker: tracker.log_video(name, Path(path), step))

    def close(self, *, failed: bool = False) -> None:
        """Writes the last points and marks the run as finished or failed."""
        self._each(lambda tracker: tracker.close(failed=failed))
        self.active = []

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self.active):
            try:
                call(tracker)
            except Exception as error:  # a failure of any kind (network, disk) must not end the training
                self.active.remove(tracker)
                failure = f"{type(error).__name__}: {error}"
                message = f"{tracker.name} failed and is switched off for the rest of this run: {failure}"
                warnings.warn(message, stacklevel=3)


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
    """Opens the trackers of a run. An error here is raised: no training time is lost yet.

    Args:
        directory (path): the run's directory. It gets the TensorBoard events (``tensorboard/``), and the files
            ``wandb_id`` and ``mlflow_run_id``, by which a resumed run goes on with the same W&B and MLflow runs.

    Keyword Args:
        tensorboard (bool): whether to write TensorBoard events. Defaults to True.
        wandb (mapping, optional): ``project``, ``mode`` (``"online"``, the default, or ``"offline"``), and any further
            keyword of ``wandb.init``. Defaults to None: no Weights & Biases.
        mlflow (mapping, optional): ``experiment`` (default ``"mcurl"``), ``tracking_uri`` and, for the videos of a new
            experiment, ``artifact_location``. Without a URI, also in ``MLFLOW_TRACKING_URI``, both are in the run's
            directory, as ``mlflow.db`` and ``mlruns/``. Defaults to None: no MLflow.
        run_name (str): the name that W&B and MLflow show.
        config (mapping): the settings to show beside the curves.
        resume_step (int, optional): the step of the checkpoint that a run is resumed from. TensorBoard drops the points
            after it, which the resumed run writes again; W&B and MLflow cannot, and show both. None, the default, is a
            new run.

    Raises:
        ImportError: if the package of a tracker is missing.
        ValueError: if an option is unknown.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    trackers = Trackers([])
    try:
        if tensorboard:
            trackers.active.append(_open_tensorboard(directory, config, resume_step))
        if wandb is not None:
            trackers.active.append(_open_wandb(directory, wandb, run_name, config, resume_step))
        if mlflow is not None:
            # A server that does not answer delays a call for four minutes before MLflow gives up.
            trackers.active.append(_in_background(_open_mlflow(directory, mlflow, run_name, config, resume_step)))
    except BaseException:
        trackers.close(failed=True)
        raise
    return trackers


def _stored_id(file: Path, resume_step: int | None) -> str | None:
    """Returns the id that an earlier part of this run stored, None for a new run."""
    return file.read_text().strip() if resume_step is not None and file.exists() else None


def _open_tensorboard(directory: Path, config: Mapping[str, Any], resume_step: int | None) -> Tracker:
    with needs("TensorBoard is missing", "recipes"):
        logger = TensorboardLogger("tensorboard", str(directory))
    writer = logger.experiment
    if resume_step is None:
        text = json.dumps(config, indent=2, default=str)
        writer.add_text("config", "\n".join(f"    {line}" for line in text.splitlines()))
    else:
        # TensorBoard drops the points at purge_step and later. The writer says so in the next file that it opens.
        writer.close()
        writer.purge_step = resume_step + 1

    def log(step: int, metrics: Mapping[str, float]) -> None:
        logger.log_metrics(dict(metrics), step)
        logger.flush()

    def log_video(name: str, path: Path, step: int) -> None:
        pass  # TensorBoard's videos are GIFs in the event file: megabytes each, and they need moviepy

    return Tracker("TensorBoard", log, log_video, lambda failed: logger.shutdown())


def _open_wandb(
    directory: Path, options: Mapping[str, Any], run_name: str, config: Mapping[str, Any], resume_step: int | None
) -> Tracker:
    mode = check_choice("wandb.mode", options.get("mode", "online"), ("online", "offline"))
    with needs("Weights & Biases is missing", "tracking"):
        # By name: a bare import would accept a folder called wandb, which W&B itself leaves behind.
        from wandb import Settings, Video
    file = directory / "wandb_id"
    run_id = _stored_id(file, resume_step) or uuid.uuid4().hex[:8]
    defaults: dict[str, Any] = {
        "log_dir": str(directory),
        "config": dict(config),
        "settings": Settings(console="off"),  # its capture of the terminal would break the progress bar
        "resume": "allow" if mode == "online" else None,  # offline, W&B warns that it cannot look for the run
        "log_env_packages": False,  # they would replace the config's own "env"
    }
    # TorchRL gives each group of metrics its own step: W&B refuses points before the last one of its own counter.
    logger = WandbLogger(run_name, **{**defaults, **options, "id": run_id, "mode": mode})
    write_file(file, f"{run_id}\n".encode())

    def log_video(name: str, path: Path, step: int) -> None:  # not the logger's, which encodes the frames once more
        logger.experiment.log({name: Video(str(path), format="mp4"), "step": step})

    return Tracker(
        "Weights & Biases",
        lambda step, metrics: logger.log_metrics(dict(metrics), step),
        log_video,
        lambda failed: logger.experiment.finish(exit_code=int(failed)),
    )


def _open_mlflow(
    directory: Path, options: Mapping[str, Any], run_name: str, config: Mapping[str, Any], resume_step: int | None
) -> Tracker:
    # MLflow's own client: TorchRL's logger cannot resume, name or fail a run, and is global to the process.
    for option in options:
        check_choice("an option of mlflow", option, ("artifact_location", "experiment", "tracking_uri"))
    with needs("MLflow is missing", "tracking"):
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient
    uri, location = options.get("tracking_uri"), options.get("artifact_location")
    if uri is None and not os.environ.get("MLFLOW_TRACKING_URI"):
        # MLflow's own choice is the working directory.
        uri = f"sqlite:///{directory.absolute()}/mlflow.db"
        location = location or (directory.absolute() / "mlruns").as_uri()
    client = MlflowClient(tracking_uri=uri)
    file = directory / "mlflow_run_id"
    run_id = _stored_id(file, resume_step)
    if run_id is not None:
        client.update_run(run_id, status="RUNNING")
    else:
        name = options.get("experiment", "mcurl")
        found = client.get_experiment_by_name(name)
        experiment_id = client.create_experiment(name, location) if found is None else found.experiment_id
        run_id = client.create_run(experiment_id, run_name=run_name).info.run_id
        write_file(file, f"{run_id}\n".encode())
        parameters = [Param(key, str(value)) for key, value in _leaves(config)]
        for start in range(0, len(parameters), 100):  # MLflow takes at most 100 a call
            client.log_batch(run_id, params=parameters[start : start + 100])

    def log(step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        client.log_batch(run_id, [Metric(name, value, now, step) for name, value in metrics.items()])

    return Tracker(
        "MLflow",
        log,
        lambda name, path, step: client.log_artifact(run_id, str(path), name),
        lambda failed: client.set_terminated(run_id, "FAILED" if failed else "FINISHED"),
    )


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _in_background(tracker: Tracker) -> Tracker:
    """Makes the calls of a tracker in a thread, in order; after a failure, later calls raise its error."""
    thread = ThreadPoolExecutor(max_workers=1)
    last: Future[None] = thread.submit(lambda: None)

    def call_unless_failed(before: Future[None], call: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        before.result()
        call(*args, **kwargs)

    def submit(call: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        nonlocal last
        if last.done():
            last.result()
        last = thread.submit(call_unless_failed, last, call, *args, **kwargs)

    def close(*, failed: bool) -> None:
        submit(tracker.close, failed=failed)
        thread.shutdown()  # waits
        last.result()

    return Tracker(tracker.name, partial(submit, tracker.log), partial(submit, tracker.log_video), close)
