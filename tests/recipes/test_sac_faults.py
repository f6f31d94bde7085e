"""The SAC recipe where something is wrong: a wrong command, a broken environment, a full disk, damaged files, signals.

Each ends with a message that names what is wrong and what to do, and loses nothing that was saved.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from mcurl_torchrl import load_policy
from mcurl_torchrl.training import CheckpointNotRestored, Checkpoints, RunDirectory, tables
from recipes import evaluate, launch
from recipes.command_line import quote_existing, quoted
from recipes.schema import EvaluateConfig, SACRecipeConfig
from tests.envs.test_gl import WITHOUT_LIBRARIES
from tests.no_room import files_at_most
from tests.recipes.faulty_envs import Faulty
from tests.recipes.running import RECIPES, SMALL, settings, train
from tests.training.forging import replace_states
from tests.warm_start import run_python

# 40 agent steps: random ones up to 10, checkpoints after 10, 20, 30 and 40, evaluations after 20 and 40.
FAULTY = [
    *SMALL,
    *("env=gym", "env.id=tests.recipes.faulty_envs:Faulty-v0", "algo=rad"),
    *("total_env_steps=40", "sac.random_agent_steps=10", "replay.capacity=200", "evaluation.video=false"),
    *("checkpoint.interval_agent_steps=10", "evaluation.interval_env_steps=20"),
]


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Faulty, float], float]], None]:
    """Sets the fault that the environments have in each step and reset, until the test is over."""
    monkeypatch.setattr(Faulty, "made", [])
    return lambda what: monkeypatch.setattr(Faulty, "fault", what)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train(tmp_path_factory.mktemp("finished") / "run", *FAULTY)


@pytest.fixture
def run(finished: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A finished run that the test may change."""
    return RunDirectory(shutil.copytree(finished.path, tmp_path / "run"))


def refusal(folder: Path, *overrides: str) -> str:
    """Trains, and returns the message of the error that ends it."""
    with pytest.raises((SystemExit, launch.BadCommand)) as raised:
        train(folder, *overrides)
    message = str(raised.value)
    if isinstance(raised.value, SystemExit):
        assert f"(the traceback is in {folder / 'error.log'})" in message
        assert "Traceback" not in message and "Traceback" in (folder / "error.log").read_text()
    return message


def resumed(folder: Path, *overrides: str) -> RunDirectory:
    return train(folder, *FAULTY, *overrides, f"resume='{folder}'")


def steps_of(directory: RunDirectory | Path) -> list[int]:
    path = directory.path if isinstance(directory, RunDirectory) else directory
    return [found.step for found in Checkpoints(path / "checkpoints").list()]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- bad settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "answers"),
    [
        (["total_env_steps=0"], ["total_env_steps=0", "at least 1"]),
        (["env.action_repeat=8", "total_env_steps=5"], ["total_env_steps=5", "at least 8"]),
        (["env.action_repeat=0"], ["env.action_repeat=0", "at least 1"]),
        (["evaluation.episodes=0"], ["evaluation.episodes=0", "at least 1"]),
        (["evaluation.interval_env_steps=0"], ["evaluation.interval_env_steps=0", "at least 1"]),
        (["checkpoint.interval_agent_steps=0"], ["checkpoint.interval_agent_steps=0"]),
        (["checkpoint.keep_last=0"], ["checkpoint.keep_last=0"]),
        (["logging.interval_agent_steps=0"], ["logging.interval_agent_steps=0"]),
        (["threads=0"], ["threads=0", "at least 1"]),
        (["seed=-1"], ["seed=-1", "at least 0"]),
        (["device=banana"], ["device=banana", "device=cpu"]),
        (["device=meta"], ["device=meta", "device=cpu"]),
    ],
    ids=" ".join,
)
def test_numbers_that_no_run_can_have(overrides: list[str], answers: list[str], tmp_path: Path):
    message = refusal(tmp_path / "run", *FAULTY, *overrides)
    assert all(answer in message for answer in answers), message
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="it can be used here")
def test_no_gpu(tmp_path: Path):
    assert "device=cuda cannot be used here" in refusal(tmp_path / "run", *FAULTY, "device=cuda")


@pytest.mark.parametrize(
    ("overrides", "answers"),
    [
        (["env.id=tests.recipes.faulty_envs:Buttons-v0"], ["SAC needs continuous actions", "3 discrete ones"]),
        (["env.id=Faultyy-v0"], ["'Faultyy-v0' is not registered", "Faulty-v0"]),
        (["env.id=no_such_module:Env-v0"], ["no_such_module"]),
        (["env.id=null"], ["env=gym", "env.id="]),
        (["env=dmc", "total_env_steps=400"], ["env=dmc", "env.task="]),
        (["env=dmc", "env.task=cartpole-swngup", "total_env_steps=400"], ["cartpole-swngup", "cartpole-swingup"]),
        (["algo=state_sac"], ["env.observation=state", "DMControl"]),
        (["encoder.crop_size=50"], ["crop_size=50", "between 1 and", "36"]),
        (["sac.batch_size=0"], ["batch_size=0", "at least 1"]),
        (["replay.capacity=0"], ["replay.capacity=0", "at least 1"]),
        (["sac.update_order=[critic,acter]"], ["sac.update_order", "acter", "auxiliary"]),
        (["sac.random_agent_steps=0"], ["sac.random_agent_steps=0", "at least"]),
        (["sac.random_agent_steps=40"], ["sac.random_agent_steps=40", "total_env_steps=40"]),
        (["sac.updates_per_agent_step=0"], ["sac.updates_per_agent_step=0", "at least 1"]),
        (["sac.actor_interval_updates=0"], ["sac.actor_interval_updates=0", "at least 1"]),
        (["algo=mcurl", "objective.mask_ratio=2"], ["objective.mask_ratio=2", "above 0 and at most 1"]),
        (["algo=mcurl", "objective.num_heads=3"], ["num_heads=3", "feature_dim=16"]),
        (["algo=mcurl", "objective.negatives=some"], ["negatives='some'", "'batch', 'sequence'"]),
        (["algo=mcurl", "objective.mask_ratio=0"], ["objective.mask_ratio=0", "above 0"]),
        (["algo=mcurl", "objective.coeff=-1"], ["objective.coeff=-1", "at least 0"]),
        (["algo=curl", "objective.coeff=nan"], ["objective.coeff=nan", "finite"]),
        (["algo=curl", "objective.views=half"], ["objective.views='half'", "slices"]),
        (["algo=mcurl", "objective.slice_len=30", "sac.random_agent_steps=35"], ["slice_len=30", "21 rows"]),
        (["algo=mcurl", "replay.capacity=5"], ["slice_len=8", "5 rows stored"]),
    ],
    ids=lambda value: " ".join(value) if value[0].partition("=")[2] else "",
)
def test_settings_that_do_not_fit(overrides: list[str], answers: list[str], tmp_path: Path):
    before = [given for given in FAULTY if given.partition("=")[0] not in {o.partition("=")[0] for o in overrides}]
    if "env=dmc" in overrides:
        before = [given for given in before if not given.startswith("env.id")]
    message = refusal(tmp_path / "run", *before, *overrides)
    assert all(answer in message for answer in answers), message


def test_a_small_replay_is_enough_where_it_holds_an_episode(tmp_path: Path):
    directory = train(tmp_path / "run", *FAULTY, "replay.capacity=22", "algo=mcurl", "total_env_steps=25")
    assert math.isfinite(tables.read(directory.metrics.path)[-1]["loss_auxiliary"])


@pytest.mark.parametrize(("tracker", "package"), [("wandb", "wandb"), ("mlflow", "mlflow")])
def test_a_tracker_that_is_not_installed(tracker: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.entities", None)
    options = {"wandb": "logging.wandb={project: mcurl, mode: offline}", "mlflow": "+logging.mlflow.experiment=mcurl"}
    assert "pip install 'mcurl-torchrl[tracking]'" in refusal(tmp_path / "run", *FAULTY, options[tracker])


# -- environments that fail --------------------------------------------------------------------------------------------


def test_an_environment_that_fails_in_an_episode(fault, tmp_path: Path):
    def breaks(env: Faulty, reward: float) -> float:
        if env.trains and env.taken == 27:
            raise OSError("the cable is loose")
        return reward

    fault(breaks)
    message = refusal(tmp_path / "run", *FAULTY)
    assert "failed in episode 1 at step 7: OSError: the cable is loose" in message
    assert "to resume from the checkpoint of agent step 26" in message and "resume=" in message
    assert steps_of(tmp_path / "run")[-1] == 26
    fault(lambda env, reward: reward)
    # Its 6 rows of the broken episode stay, and a new one begins.
    assert json.loads(resumed(tmp_path / "run").result.read_text())["finished"]


def test_an_environment_that_gives_no_number(fault, tmp_path: Path):
    fault(lambda env, reward: math.nan if env.trains and env.taken == 15 else reward)
    message = refusal(tmp_path / "run", *FAULTY)
    assert "in episode 0 at step 15" in message and "reward is nan" in message
    assert steps_of(tmp_path / "run")[-1] == 14  # the NaN is not in there
    fault(lambda env, reward: reward)
    assert math.isfinite(tables.read(resumed(tmp_path / "run").metrics.path)[-1]["loss_qvalue"])


def test_an_environment_that_fails_in_an_evaluation(fault, tmp_path: Path):
    def breaks(env: Faulty, reward: float) -> float:
        if not env.trains and env.made[-2].taken == 20:
            raise OSError("the cable is loose")
        return reward

    fault(breaks)
    message = refusal(tmp_path / "run", *FAULTY)
    assert "in the evaluation after agent step 20" in message and "the cable is loose" in message
    assert steps_of(tmp_path / "run")[-1] == 20
    fault(lambda env, reward: reward)
    assert json.loads(resumed(tmp_path / "run").result.read_text())["finished"]


def test_an_environment_that_never_starts(fault, tmp_path: Path):
    def breaks(env: Faulty, reward: float) -> float:
        raise OSError("no power")

    fault(breaks)
    message = refusal(tmp_path / "run", *FAULTY)
    assert "in episode 0 at step 0" in message and "no power" in message


def test_an_environment_that_fails_when_an_episode_is_taken_up_again(fault, tmp_path: Path):
    def press(env: Faulty, reward: float) -> float:
        if env.trains and env.taken == 25:
            os.kill(os.getpid(), signal.SIGTERM)
        return reward

    fault(press)
    with pytest.raises(SystemExit):
        train(tmp_path / "run", *FAULTY)

    def breaks(env: Faulty, reward: float) -> float:
        if env.taken == 3 and env is env.made[2]:
            env.taken += 1  # once
            raise OSError("the cable is loose")
        return reward

    fault(breaks)
    with pytest.warns(RuntimeWarning, match="the cable is loose; the run continues with a new episode"):
        assert json.loads(resumed(tmp_path / "run").result.read_text())["finished"]


# -- losses that are not finite ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (["sac.lr=1e30"], "non-finite loss at step 11: loss_actor=nan"),
        # The loss is still finite, and what the optimizer makes of it is not.
        (["algo=seq_curl", "sac.auxiliary_encoder_lr_scale=1e42"], "non-finite parameters of losses at step 11"),
    ],
    ids=["loss", "parameters"],
)
def test_a_loss_that_is_not_finite(overrides: list[str], part: str, tmp_path: Path):
    folder = tmp_path / "run"
    message = refusal(folder, *FAULTY, "checkpoint.interval_agent_steps=1", *overrides)
    assert part in message
    assert f"the last good checkpoint is {folder}/checkpoints/checkpoint-000000000010" in message
    assert steps_of(folder)[-1] == 10
    # With the learning rate that it is resumed with, not the one in the checkpoint.
    algo = [given for given in overrides if given.startswith("algo=")]
    directory = resumed(folder, *algo, "total_env_steps=20", "resume_changed=true")
    assert math.isfinite(tables.read(directory.metrics.path)[-1]["loss_qvalue"])


def test_rewards_that_overflow(fault, tmp_path: Path):
    fault(lambda env, reward: 1e38 if env.trains and env.taken > 15 else reward)
    message = refusal(tmp_path / "run", *FAULTY)
    assert "NonFiniteLoss: non-finite loss at step" in message and "loss_qvalue=inf" in message
    assert "the last good checkpoint is" in message and "checkpoint-000000000010" in message


# -- no room -----------------------------------------------------------------------------------------------------------


def test_no_room_for_anything_large(run: RunDirectory):
    """Neither for a checkpoint, nor for the curve or the video, but for rows of tables."""
    longer = ["total_env_steps=80", "evaluation.video=true", "resume_changed=true"]
    before = steps_of(run)
    run.videos.write_text("no folder")
    with files_at_most(12_000), pytest.warns(UserWarning) as warned, pytest.raises(SystemExit) as ended:
        resumed(run.path, *longer)
    said = [str(warning.message) for warning in warned]
    assert any("NO CHECKPOINT at agent step 50" in line and "the file needs" in line for line in said)
    assert any("no curve.png at agent step 60" in line for line in said)
    assert any("no video" in line and "env_steps_60.mp4" in line for line in said)
    assert "could not be saved; to resume from the checkpoint of agent step 40" in str(ended.value)
    assert steps_of(run) == before  # the ones from before are there, and whole
    assert [row["step"] for row in tables.read(run.eval.path)][-2:] == [60, 80]
    run.videos.unlink()
    resumed(run.path, "total_env_steps=80", "evaluation.video=true")
    assert steps_of(run)[-1] == 80 and json.loads(run.result.read_text())["env_steps"] == 80


def test_no_room_for_rows(run: RunDirectory, fault):
    size, now_full = run.metrics.path.stat().st_size, contextlib.ExitStack()
    fault(lambda env, reward: now_full.enter_context(files_at_most(size)) or reward if env.taken == 5 else reward)
    warned = pytest.warns(UserWarning, match="no row of agent step 50 in .*metrics.csv")
    with now_full, warned, pytest.raises(SystemExit):
        resumed(run.path, "total_env_steps=50", "resume_changed=true")
    assert tables.read(run.metrics.path)[-1]["step"] == 40


# -- damaged and foreign files -----------------------------------------------------------------------------------------


class Attack:
    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self):
        return os.mkdir, (str(self.witness),)


def poison(checkpoint: Path, witness: Path) -> None:
    """Puts pickles that run code in the place of all states, with checksums that fit."""
    replace_states(checkpoint, pickle.dumps(Attack(witness)))


def test_a_damaged_checkpoint_is_passed_over(run: RunDirectory):
    newest, older = Checkpoints(run.checkpoints).list()[-1], Checkpoints(run.checkpoints).list()[-2]
    newest.path.write_bytes(newest.path.read_bytes()[:-10])
    with pytest.warns(RuntimeWarning, match=f"{newest.path} is passed over"):
        load_policy(run.path)
    with pytest.raises(CheckpointNotRestored, match="damaged"):
        load_policy(run.path, which=newest.step)
    with pytest.warns(RuntimeWarning, match=f"{newest.path} is passed over"):
        resumed(run.path, "total_env_steps=60", "resume_changed=true")
    assert run.read_manifest()["resumed"][-1]["step"] == older.step
    assert steps_of(run)[-1] == 60


def test_hostile_checkpoints_run_no_code(run: RunDirectory, tmp_path: Path):
    for found in Checkpoints(run.checkpoints).list():
        poison(found.path, tmp_path / "witness")
    with pytest.warns(RuntimeWarning, match="is passed over"):
        message = refusal(run.path, *FAULTY, "total_env_steps=60", "resume_changed=true", f"resume='{run.path}'")
    assert "no checkpoint in" in message and "can be restored" in message
    with pytest.warns(RuntimeWarning, match="is passed over"), pytest.raises(CheckpointNotRestored):
        load_policy(run.path)
    with pytest.warns(RuntimeWarning, match="is passed over"), pytest.raises(launch.BadCommand, match="checkpoint"):
        evaluate.main(settings(f"run='{run.path}'", recipe="evaluate"))
    assert not (tmp_path / "witness").exists()


@pytest.mark.parametrize(
    "described",
    [None, [], {"kind": ["list"]}, {"kind": "os.system"}, {"kind": "GaussianPolicy", "settings": {"a": 1}}],
    ids=str,
)
def test_a_checkpoint_that_describes_no_policy(described: object, run: RunDirectory):
    Checkpoints(run.checkpoints).save(50, components={}, info={"policy": described})
    with pytest.raises((ValueError, CheckpointNotRestored), match="policy"):
        load_policy(run.path, which=50)


@pytest.mark.parametrize("which", ["latestt", "-1", "7", "²"])
def test_a_policy_that_is_not_there(which: str, run: RunDirectory):
    with pytest.raises(ValueError, match=f"which='{which}'; choose 'latest', 'best' or one of the steps"):
        load_policy(run.path, which=which)
    with pytest.raises(ValueError, match="which="):
        load_policy(run.checkpoints / "checkpoint-what")


def test_evaluating_what_is_no_run(run: RunDirectory, tmp_path: Path):
    for path in (tmp_path / "nothing", run.config):
        with pytest.raises(launch.BadCommand, match=f"{path}.*Runs with a checkpoint:\n *{run.path}"):
            launch.prepare([f"run={path}"], EvaluateConfig, launch.config_folder("evaluate"))
    (run.path / "manifest.json").write_text("{")
    with pytest.raises(launch.BadCommand, match="manifest.json is damaged"):
        evaluate.main(settings(f"run='{run.path}'", recipe="evaluate"))


@pytest.mark.parametrize("content", ["{", "{}", "[1]", '{"overrides": [1]}'])
def test_a_damaged_manifest(content: str, run: RunDirectory):
    run.manifest.write_text(content)
    with pytest.raises(launch.BadCommand, match="manifest.json is damaged"):
        launch.prepare([f"resume={run.path}"], SACRecipeConfig, launch.config_folder("sac_mcurl"))


@pytest.mark.parametrize("content", [None, ":\n  - [", "just text", "\0"])
def test_a_damaged_config(content: str | None, run: RunDirectory):
    run.config.unlink() if content is None else run.config.write_text(content)
    with pytest.raises(launch.BadCommand, match="config.yaml|other settings"):
        resumed(run.path)


# -- resuming ----------------------------------------------------------------------------------------------------------


def test_changed_settings(run: RunDirectory):
    before = contents(run.path)
    message = refusal(run.path, *FAULTY, "total_env_steps=60", "sac.lr=0.01", f"resume='{run.path}'")
    assert "sac.lr: 0.001 -> 0.01" in message and "total_env_steps: 40 -> 60" in message
    assert "resume_changed=true" in message
    assert contents(run.path) == before

    resumed(run.path, "total_env_steps=60", "sac.lr=0.01", "resume_changed=true")
    config = OmegaConf.load(run.config)
    assert (config.total_env_steps, config.sac.lr) == (60, 0.01) and "resume" not in config
    # From then on these are the run's settings: the plain command goes on with them.
    Checkpoints(run.checkpoints).latest().path.unlink()
    arguments = launch.prepare([f"resume={run.path}"], SACRecipeConfig, launch.config_folder("sac_mcurl"))
    train(run.path, *[argument for argument in arguments if not argument.startswith("hydra.")])
    assert steps_of(run)[-1] == 60


def test_a_change_that_does_not_fit_leaves_the_run_as_it_was(run: RunDirectory):
    config, manifest = run.config.read_text(), run.manifest.read_text()
    wider = ["total_env_steps=60", "sac.hidden_dim=33", "resume_changed=true", f"resume='{run.path}'"]
    assert "does not fit" in refusal(run.path, *FAULTY, *wider)
    assert (run.config.read_text(), run.manifest.read_text()) == (config, manifest)


def test_a_finished_run_says_so(run: RunDirectory, capsys: pytest.CaptureFixture):
    before = contents(run.path)
    resumed(run.path)
    said = capsys.readouterr().err
    assert "is finished, after 40 env steps" in said and "total_env_steps=80 resume_changed=true" in said
    assert contents(run.path) == before


def test_settings_may_be_repeated(run: RunDirectory):
    again = launch.prepare(
        [*FAULTY, "seed=1", f"resume={run.path}"], SACRecipeConfig, launch.config_folder("sac_mcurl")
    )
    assert settings(*[argument for argument in again if not argument.startswith("hydra.")]).total_env_steps == 40
    assert sorted(argument.partition("=")[0] for argument in again).count("env") == 1


NUMBERS = ["2024_10_05", "1e3", "1_000.5", "007", ".5", "inf"]  # names of folders that Hydra reads as numbers


@pytest.mark.parametrize("key", ["hydra.run.dir", "hydra.sweep.dir", "pack", "data.path", "encoders"])
@pytest.mark.parametrize("name", [*NUMBERS, "run_1", "v1.2e"])
def test_a_folder_may_look_like_a_number(key: str, name: str):
    argument = quote_existing(f"{key}={name}")
    assert OverridesParser.create().parse_override(argument).value() == name
    assert quote_existing(argument) == argument


@pytest.mark.parametrize(
    "name", ["a b", "a=b", "a,b", "it's", 'a"b', "a[0]{1}", "a\\b", "a\\'b", "~a", "ends\\", "ä", *NUMBERS]
)
def test_any_path_can_be_resumed(name: str, run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    moved = run.path.rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for typed in (str(moved), name, f"./{name}", quoted(moved)):
        arguments = launch.prepare([f"resume={typed}"], SACRecipeConfig, launch.config_folder("sac_mcurl"))
        composed = settings(*[argument for argument in arguments if not argument.startswith("hydra.")])
        assert Path(composed.resume).absolute() == moved
        place = next(argument for argument in arguments if argument.startswith("hydra.run.dir="))
        assert OverridesParser.create().parse_override(place).value() == str(moved)


def test_what_cannot_be_resumed(run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # the runs of the working folder are listed, too
    (tmp_path / "empty").mkdir()
    listed = f"Runs with a checkpoint:\n  {run.path} \\(step 40"
    for path, why in [
        (tmp_path / "empty", "it has no manifest.json"),
        (run.config, "it is a file"),
        (tmp_path / "nothing", "it does not exist"),
    ]:
        with pytest.raises(launch.BadCommand, match=f"{path}: {why}.*{listed}"):
            launch.prepare([f"resume={path}"], SACRecipeConfig, launch.config_folder("sac_mcurl"))
    with pytest.raises(launch.BadCommand, match="as several"):
        launch.prepare(["resume=nothing,here"], SACRecipeConfig, launch.config_folder("sac_mcurl"))
    shutil.rmtree(run.checkpoints)
    with pytest.raises(launch.BadCommand, match="it has no checkpoint. Runs with a checkpoint: none"):
        launch.prepare([f"resume={run.path}"], SACRecipeConfig, launch.config_folder("sac_mcurl"))


def test_a_directory_in_which_there_is_a_run(run: RunDirectory):
    before = contents(run.path)
    assert f"holds a run already; resume={run.path} continues it" in refusal(run.path, *FAULTY)
    assert contents(run.path) == before
    shutil.rmtree(run.checkpoints)
    assert "has no checkpoint: remove it, or use another" in refusal(run.path, *FAULTY)


def test_a_directory_in_which_another_process_works(run: RunDirectory):
    before = contents(run.path)
    with run.lock():
        before[run.path / ".lock"] = (run.path / ".lock").read_bytes()
        for overrides in ([], ["total_env_steps=60", "resume_changed=true", f"resume='{run.path}'"]):
            message = refusal(run.path, *FAULTY, *overrides)
            assert f"in use by process {os.getpid()}" in message
        assert contents(run.path) == before


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trains", "at", "saved"), [(True, 4, 4), (True, 25, 25), (False, 30, 20)], ids=["random", "update", "evaluation"]
)
def test_ctrl_c(trains: bool, at: int, saved: int, fault, tmp_path: Path, capsys: pytest.CaptureFixture):
    def press(env: Faulty, reward: float) -> float:
        if env.trains == trains and env.taken == at:
            os.kill(os.getpid(), signal.SIGINT)
        return reward

    fault(press)
    with pytest.raises(SystemExit) as ended:
        train(tmp_path / "run", *FAULTY)
    assert ended.value.code == 130
    said = capsys.readouterr().err
    assert f"stopped by SIGINT at agent step {saved}; to resume from the checkpoint of agent step {saved}" in said
    assert steps_of(tmp_path / "run")[-1] == saved
    fault(lambda env, reward: reward)
    assert json.loads(resumed(tmp_path / "run").result.read_text())["finished"]


def test_ctrl_c_twice_stops_at_once(fault, tmp_path: Path, capsys: pytest.CaptureFixture):
    def press_twice(env: Faulty, reward: float) -> float:
        if env.trains and env.taken == 25:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return reward

    fault(press_twice)
    with pytest.raises(SystemExit) as ended:
        train(tmp_path / "run", *FAULTY)
    assert ended.value.code == 130
    said = capsys.readouterr().err
    assert "interrupted in the middle of a step; to resume from the checkpoint of agent step 20" in said
    assert steps_of(tmp_path / "run")[-1] == 20
    fault(lambda env, reward: reward)
    assert json.loads(resumed(tmp_path / "run").result.read_text())["finished"]


# -- real processes ----------------------------------------------------------------------------------------------------


def start(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(RECIPES.parent), "OMP_NUM_THREADS": "1"} | environment
    return run_python(RECIPES / "sac_mcurl.py", *arguments, cwd=cwd, environment=environment)


PRESSING = [*FAULTY, "env.id=tests.recipes.faulty_envs:Pressing-v0"]


def test_the_printed_command_works_in_a_shell(tmp_path: Path):
    folder = tmp_path / "it's a, b=c"
    stopped = start(*PRESSING, f"hydra.run.dir={quoted(folder)}", cwd=tmp_path, PRESS="SIGTERM")
    assert stopped.returncode == 143, stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert "stopped by SIGTERM at agent step 15" in stopped.stderr
    command = stopped.stderr.rstrip().splitlines()[-1].strip()
    assert shlex.split(command)[1] == str(RECIPES / "sac_mcurl.py")
    environment = os.environ | {"PYTHONPATH": str(RECIPES.parent), "OMP_NUM_THREADS": "1", "PRESS": "SIGURG"}
    done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "result.json").read_text())["finished"]


def test_ctrl_c_stops_a_whole_sweep(tmp_path: Path):
    sweep = ["-m", "seed=1,2", f"hydra.sweep.dir={tmp_path}/sweep", "hydra.sweep.subdir=seed${seed}"]
    stopped = start(*PRESSING, *sweep, cwd=tmp_path, PRESS="SIGINT")  # flags may stand in the middle
    assert stopped.returncode == 130, stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert f"resume={tmp_path}/sweep/seed1" in stopped.stderr
    assert not (tmp_path / "sweep" / "seed2").exists()


def test_nothing_renders(tmp_path: Path):
    missing = ("EGL", "GL", "OpenGL", "OSMesa", "glfw")
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_LIBRARIES.format(words=missing))
    hidden = {name: "" for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY")}
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(RECIPES.parent)])}
    command = [sys.executable, str(RECIPES / "sac_mcurl.py"), "preset=smoke", "hydra.run.dir=run"]
    failed = subprocess.run(command, cwd=tmp_path, env=os.environ | paths | hidden, capture_output=True, text=True)
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr and "apt install libegl1" in failed.stderr
    assert "Traceback" in (tmp_path / "run" / "error.log").read_text()


def test_a_place_where_nothing_can_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    failed = start("preset=smoke", "hydra.run.dir=file/run", cwd=tmp_path)
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr and "file/run" in failed.stderr
