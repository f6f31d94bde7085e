"""Trackers: what TensorBoard reads back, what a failure does, and (slow) W&B and MLflow for real."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mcurl_torchrl.training.trackers import Trackers, _in_background, make_trackers

REPO = Path(__file__).resolve().parents[2]
OPTIONS: dict[str, Any] = {"run_name": "cartpole-1", "config": {"seed": 1, "mcurl": {"mask_ratio": 0.6}}}


def points(run: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


class Recorder:
    name = "the recorder"

    def __init__(self, failing: str = "") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.failing = failing

    def _record(self, *call: Any) -> None:
        self.calls.append(call)
        if call[0] == self.failing:
            raise ConnectionError("the network is down")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._record("log", step, dict(metrics))

    def log_video(self, name: str, path: Path, step: int) -> None:
        self._record("log_video", name, path, step)

    def close(self, *, failed: bool) -> None:
        self._record("close", failed)


class TestTensorBoard:
    def test_points_come_back(self, tmp_path: Path) -> None:
        trackers = make_trackers(tmp_path, **OPTIONS)
        trackers.log(1000, {"eval/return": 0.5, "train/loss": torch.tensor(0.25, requires_grad=True).detach()})
        trackers.log(2000, {"eval/return": 1.5})
        trackers.close()
        assert points(tmp_path, "eval/return") == [(1000, 0.5), (2000, 1.5)]
        assert points(tmp_path, "train/loss") == [(1000, 0.25)]

    def test_the_config_is_shown(self, tmp_path: Path) -> None:
        make_trackers(tmp_path, **OPTIONS).close()
        events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
        (text,) = events.Tensors("config/text_summary")
        assert json.loads(text.tensor_proto.string_val[0]) == OPTIONS["config"]

    def test_a_resumed_run_drops_what_was_abandoned(self, tmp_path: Path) -> None:
        first = make_trackers(tmp_path, **OPTIONS)
        for step in (1000, 2000, 3000, 4000):
            first.log(step, {"eval/return": step / 1000})
        first.close()
        time.sleep(1.1)  # TensorBoard reads the event files by name, which has the second of their start
        resumed = make_trackers(tmp_path, **OPTIONS, resume_step=2000)
        resumed.log(3500, {"eval/return": 9.0})
        resumed.close()
        assert points(tmp_path, "eval/return") == [(1000, 1.0), (2000, 2.0), (3500, 9.0)]

    def test_can_be_switched_off(self, tmp_path: Path) -> None:
        trackers = make_trackers(tmp_path / "run", tensorboard=False, **OPTIONS)
        trackers.log(1, {"a": 1.0})
        trackers.close()
        assert list((tmp_path / "run").iterdir()) == []

    def test_a_video_is_not_its_business(self, tmp_path: Path) -> None:
        trackers = make_trackers(tmp_path, **OPTIONS)
        trackers.log_video("eval/video", tmp_path / "0.mp4", 1)
        assert len(trackers.active) == 1
        trackers.close()


class Slow(Recorder):
    """Does nothing until it is released."""

    def __init__(self, failing: str = "") -> None:
        super().__init__(failing)
        self.release = threading.Event()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self.release.wait()
        super().log(step, metrics)


class TestInBackground:
    def test_a_slow_tracker_does_not_hold_up_the_training(self) -> None:
        slow = Slow()
        trackers = Trackers([_in_background(slow)])
        trackers.log(1, {"a": 1.0})
        trackers.log_video("eval/video", "0.mp4", 1)
        trackers.log(2, {"a": 2.0})
        assert slow.calls == []
        slow.release.set()
        trackers.close(failed=True)  # waits for all of it
        assert slow.calls == [
            ("log", 1, {"a": 1.0}),
            ("log_video", "eval/video", Path("0.mp4"), 1),
            ("log", 2, {"a": 2.0}),
            ("close", True),
        ]

    @pytest.mark.parametrize("failing", ["log", "close"])
    def test_a_failure_is_told_once_and_what_waits_is_dropped(self, failing: str, recwarn: Any) -> None:
        broken = Slow(failing)
        trackers = Trackers([_in_background(broken)])
        for step in range(3):
            trackers.log(step, {"a": 1.0})
        broken.release.set()
        trackers.close()
        (warning,) = recwarn.list
        assert "the recorder failed and is switched off" in str(warning.message)
        assert [call[0] for call in broken.calls] == (["log"] if failing == "log" else ["log", "log", "log", "close"])


class TestFailures:
    @pytest.mark.parametrize("failing", ["log", "log_video", "close"])
    def test_one_warning_then_it_is_off_and_the_others_go_on(self, failing: str, recwarn: Any) -> None:
        broken, sound = Recorder(failing), Recorder()
        trackers = Trackers([broken, sound])
        for step in (1, 2):
            trackers.log(step, {"a": 1.0})
            trackers.log_video("eval/video", "0.mp4", step)
        trackers.close()
        trackers.close()
        (warning,) = recwarn.list
        assert str(warning.message) == (
            "the recorder failed and is switched off for the rest of this run: ConnectionError: the network is down"
        )
        assert warning.filename == __file__  # it points at the caller
        assert [call[0] for call in broken.calls].count(failing) == 1 and broken.calls[-1][0] == failing
        assert sound.calls == [
            ("log", 1, {"a": 1.0}),
            ("log_video", "eval/video", Path("0.mp4"), 1),
            ("log", 2, {"a": 1.0}),
            ("log_video", "eval/video", Path("0.mp4"), 2),
            ("close", False),
        ]

    def test_ctrl_c_goes_through(self) -> None:
        class Interrupted(Recorder):
            def log(self, step: int, metrics: Mapping[str, float]) -> None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Trackers([Interrupted()]).log(1, {})

    def test_a_failed_run_is_marked(self) -> None:
        recorder = Recorder()
        Trackers([recorder]).close(failed=True)
        assert recorder.calls == [("close", True)]

    @pytest.mark.parametrize(
        ("module", "options", "message"),
        [
            ("torch.utils.tensorboard", {}, r"TensorBoard is missing: pip install 'mcurl-torchrl\[recipes\]'"),
            ("wandb", {"wandb": {"project": "p"}}, r"Weights & Biases is missing: .*'mcurl-torchrl\[tracking\]'"),
            ("mlflow", {"mlflow": {"experiment": "e"}}, r"MLflow is missing: pip install 'mcurl-torchrl\[tracking\]'"),
        ],
    )
    def test_a_missing_package_is_named_at_once(
        self, module: str, options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=message):
            make_trackers(tmp_path, **OPTIONS, **options)

    def test_a_folder_called_wandb_is_not_the_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "wandb").mkdir()
        monkeypatch.delitem(sys.modules, "wandb", raising=False)
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        with pytest.raises(ImportError, match="Weights & Biases is missing"):
            make_trackers(tmp_path, tensorboard=False, wandb={"mode": "offline"}, **OPTIONS)
        sys.modules.pop("wandb", None)

    def test_unknown_options(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"wandb.mode='offlien'; choose one of \['online', 'offline'\]"):
            make_trackers(tmp_path, wandb={"mode": "offlien"}, **OPTIONS)
        with pytest.raises(ValueError, match="mlflow='uri'"):
            make_trackers(tmp_path, mlflow={"uri": "sqlite:///a.db"}, **OPTIONS)


TRACK = """
import json, os, signal, subprocess, sys, warnings
from pathlib import Path
import torch
from mcurl_torchrl.training.trackers import make_trackers
from mcurl_torchrl.training.videos import write_video

run = Path(sys.argv[1])
uri = f"sqlite:///{run}/mlflow.db"
os.environ.pop("MLFLOW_TRACKING_URI", None)
write_video(run / "0.mp4", torch.zeros(3, 3, 84, 84, dtype=torch.uint8))


def part(steps, resume_step, failed=False, **wandb):
    trackers = make_trackers(
        run,
        wandb={"project": "p", "mode": "offline", **wandb},
        mlflow={"experiment": "e"},
        run_name="cartpole-1",
        config={"seed": 1, "mcurl": {"mask_ratio": 0.6}},
        resume_step=resume_step,
    )
    for step in steps:
        trackers.log(step, {"eval/return": step / 10, "nothing": float("nan")})
    trackers.log_video("eval/video", run / "0.mp4", steps[-1])
    names = [tracker.name for tracker in trackers.active]
    trackers.close(failed=failed)
    return names, (run / "wandb_id").read_text(), (run / "mlflow_run_id").read_text()


first = part([1000, 2000, 3000], None, failed=True)
second = part([3000, 4000], 2000, tags=["resumed"])
new = part([1000], None)
import mlflow

client = mlflow.MlflowClient(tracking_uri=uri)
told = client.get_run(first[2].strip())
print("RESULT", json.dumps({
    "first": first,
    "second": second,
    "new": new,
    "history": [[m.step, m.value] for m in client.get_metric_history(first[2].strip(), "eval/return")],
    "params": told.data.params,
    "status": told.info.status,
    "name": told.info.run_name,
    "artifacts": [file.path for file in client.list_artifacts(first[2].strip(), "eval/video")],
}))
"""

FAIL = """
import os, signal, subprocess, sys, time, warnings
from mcurl_torchrl.training.trackers import make_trackers

trackers = make_trackers(
    sys.argv[1], tensorboard=False, wandb={"project": "p", "mode": "offline"}, run_name="a", config={}
)
children = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())], capture_output=True, text=True)
(service,) = [int(line.split()[0]) for line in children.stdout.splitlines() if "wandb" in line]
os.kill(service, signal.SIGKILL)
time.sleep(1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", UserWarning)
    for step in range(5):
        trackers.log(step, {"a": 1.0})
print("RESULT", [str(w.message) for w in caught if "switched off" in str(w.message)], trackers.active)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of a new venv with W&B and MLflow, which borrows the rest from the running environment."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    command = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    # Behind the venv's own packages, so that what W&B and MLflow need in another version wins.
    (site / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n{REPO}\n")
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "wandb", "mlflow>=3"]
    subprocess.run(command, check=True)
    return python


def run_script(python: Path, script: str, run: Path) -> str:
    elsewhere = run / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run([python, "-c", script, run], cwd=elsewhere, capture_output=True, text=True)
    assert not list(elsewhere.iterdir())  # everything is in the run's directory
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (result,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    return result.removeprefix("RESULT ")


@pytest.mark.slow
class TestWeightsAndBiasesAndMLflow:
    def test_a_run_its_resumption_and_a_new_run(self, python: Path, tmp_path: Path) -> None:
        told = json.loads(run_script(python, TRACK, tmp_path))
        for part in ("first", "second", "new"):
            assert told[part][0] == ["TensorBoard", "Weights & Biases", "MLflow"]  # none was switched off
        assert told["first"][1:] == told["second"][1:]
        assert told["new"][1] != told["first"][1] and told["new"][2] != told["first"][2]
        assert told["history"] == [[1000, 100.0], [2000, 200.0], [3000, 300.0], [3000, 300.0], [4000, 400.0]]
        assert told["params"] == {"seed": "1", "mcurl.mask_ratio": "0.6"}
        assert (told["status"], told["name"]) == ("FINISHED", "cartpole-1")
        assert told["artifacts"] == ["eval/video/0.mp4"]
        assert list((tmp_path / "mlruns").rglob("0.mp4"))
        wandb_id = told["first"][1].strip()
        parts = sorted((tmp_path / "wandb").glob(f"offline-run-*-{wandb_id}/run-{wandb_id}.wandb"))
        assert len(parts) == 2
        for part in parts:
            content = part.read_bytes()
            assert b"eval/return" in content and b"mask_ratio" in content and b"cartpole-1" in content
            assert len(list(part.parent.rglob("*.mp4"))) == 1

    def test_the_training_outlives_the_wandb_service(self, python: Path, tmp_path: Path) -> None:
        result = run_script(python, FAIL, tmp_path)
        assert result.count("switched off") == 1 and "Weights & Biases failed" in result and result.endswith("[]")
