"""resume=auto starts a run, continues it or says that it is finished; other ways to start again."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from mcurl_torchrl.training import Checkpoints, RunDirectory
from recipes import launch
from recipes.schema import SACRecipeConfig
from tests.faults.stopping import RUN, TRAINING, never, press, resumed, saved, stopped
from tests.recipes.running import RECIPES, results, train
from tests.warm_start import run_python

CONF = launch.config_folder("sac_mcurl")


def prepare(*arguments: str) -> list[str]:
    return launch.prepare(list(arguments), SACRecipeConfig, CONF)


def test_one_command_starts_continues_and_says_that_it_is_finished(fault, tmp_path: Path, capsys):
    folder = tmp_path / "run"
    fault(press("SIGTERM", TRAINING, 25))
    assert stopped(folder, "resume=auto") == 143
    fault(never)
    train(folder, *RUN, "resume=auto")
    assert [entry["step"] for entry in json.loads((folder / "manifest.json").read_text())["resumed"]] == [25]
    assert results(RunDirectory(folder)) == results(train(tmp_path / "whole", *RUN))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    train(folder, *RUN, "resume=auto")
    assert "is finished, after 40 env steps" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_other_settings_are_refused_as_always(fault, tmp_path: Path):
    fault(press("SIGTERM", TRAINING, 25))
    stopped(tmp_path / "run", "resume=auto")
    with pytest.raises(launch.BadCommand, match="seed: 1 -> 2"):
        train(tmp_path / "run", *RUN, "seed=2", "resume=auto")


def test_a_run_without_a_checkpoint_starts_again(tmp_path: Path, capsys):
    run = train(tmp_path / "run", *RUN)
    for found in Checkpoints(run.checkpoints).list():
        found.path.unlink()
    train(run.path, *RUN, "seed=2", "resume=auto")
    assert "it starts again" in capsys.readouterr().err
    assert OmegaConf.load(run.config).seed == 2 and run.read_manifest()["resumed"] == []
    assert results(run) == results(train(tmp_path / "whole", *RUN, "seed=2"))


def test_unreadable_checkpoints_are_not_removed(tmp_path: Path):
    run = train(tmp_path / "run", *RUN)
    for found in Checkpoints(run.checkpoints).list():
        found.path.write_bytes(b"no checkpoint")
    for resume in ("resume=auto", "resume=null"):
        with pytest.raises(launch.BadCommand, match="none of its checkpoints can be read"):
            train(run.path, *RUN, resume)
    assert list(run.checkpoints.glob("checkpoint-*"))


def test_a_refused_setting_does_not_block_the_directory(tmp_path: Path):
    with pytest.raises(SystemExit):
        train(tmp_path / "run", *RUN, "sac.update_order=[critic,acter]")
    assert max(saved(train(tmp_path / "run", *RUN).path)) == 40


def test_auto_needs_a_directory():
    with pytest.raises(launch.BadCommand, match="add hydra.run.dir=DIR"):
        prepare("resume=auto")
    with pytest.raises(launch.BadCommand, match="add hydra.sweep.dir=DIR"):
        prepare("-m", "seed=1,2", "resume=auto", "hydra.run.dir=here")
    assert prepare("resume=auto", "hydra.run.dir=here") == ["resume=auto", "hydra.run.dir=here"]


@pytest.mark.slow
def test_a_sweep_started_again_continues(tmp_path: Path):
    sweep = ["-m", *RUN, "env.id=tests.recipes.faulty_envs:Pressing-v0", "seed=1,2", "resume=auto"]
    place = [f"hydra.sweep.dir={tmp_path}", "hydra.sweep.subdir=seed${seed}"]
    for sent, code in (("SIGTERM", 143), ("SIGURG", 0)):
        environment = os.environ | {"PYTHONPATH": str(RECIPES.parent), "OMP_NUM_THREADS": "1", "PRESS": sent}
        done = run_python(RECIPES / "sac_mcurl.py", *sweep, *place, cwd=tmp_path, environment=environment)
        assert done.returncode == code, done.stderr
    assert [json.loads(file.read_text())["finished"] for file in tmp_path.rglob("result.json")] == [True, True]
    manifests = [json.loads(file.read_text()) for file in sorted(tmp_path.rglob("manifest.json"))]
    assert [[entry["step"] for entry in manifest["resumed"]] for manifest in manifests] == [[15], []]


@pytest.mark.parametrize("script", ["sac_mcurl", "rainbow_mcurl", "ppo_mcurl", "pretrain", "probe", "evaluate"])
def test_equal_commands_have_directories_of_their_own(script: str):
    def places() -> tuple[str, str]:
        given = [f"hydra.job.name={script}", "+hydra.job.num=0", *(["run=here"] if script == "evaluate" else [])]
        with initialize_config_dir(str(launch.config_folder(script)), version_base="1.3"):
            hydra = compose(script, return_hydra_config=True, overrides=given).hydra
        return hydra.run.dir, hydra.sweep.dir

    single, swept = zip(*(places() for _ in range(3)), strict=True)
    assert len(set(single)) == 3
    assert all(re.search(r"\d{8}-\d{6}-\d{6}$", place) for place in single)  # with microseconds
    if script not in ("probe", "evaluate"):
        assert len(set(swept)) == 3


def test_threads_may_change_without_a_flag(fault, tmp_path: Path):
    fault(press("SIGTERM", TRAINING, 12))  # soon: beside other tests, two threads are slow
    stopped(tmp_path / "run", "threads=2")
    assert torch.get_num_threads() == 2
    fault(never)
    run = resumed(tmp_path / "run", "threads=1")
    assert run.read_manifest()["torch_threads"] == 2 and run.read_manifest()["resumed"][-1]["torch_threads"] == 1
    assert OmegaConf.load(run.config).threads == 1


def test_a_tracker_that_is_not_installed_is_said_before_anything_is_written(tmp_path: Path, monkeypatch):
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(launch.BadCommand, match=f"logging.{name} needs the package {name}: pip install"):
            train(tmp_path / "run", *RUN, f"logging.{name}={{}}")
    assert not (tmp_path / "run").exists()


def test_the_overrides_of_a_manifest_are_checked(fault, tmp_path: Path):
    fault(press("SIGTERM", TRAINING, 25))
    stopped(tmp_path / "run")
    file = tmp_path / "run" / "manifest.json"
    manifest = json.loads(file.read_text())
    for added in ("hydra.run.dir=/elsewhere", "hydra/launcher=joblib", "+hydra.job.chdir=true"):
        file.write_text(json.dumps({**manifest, "overrides": [*manifest["overrides"], added]}))
        given = prepare(f"resume={tmp_path / 'run'}")
        assert added not in given and f"hydra.run.dir={tmp_path / 'run'}" in given
    file.write_text(json.dumps({**manifest, "overrides": [*manifest["overrides"], "sac.no_such=1"]}))
    with pytest.raises(launch.BadCommand, match=r"manifest.json lists overrides that cannot be used: .*'sac.no_such'"):
        prepare(f"resume={tmp_path / 'run'}")


def test_whole_numbers_may_be_written_with_an_exponent():
    given = prepare("total_env_steps=1e3", "seed=2.0", "sac.lr=1e-3", "objective.coeff=1e0", "threads=1e0")
    assert given == ["total_env_steps=1000", "seed=2", "sac.lr=1e-3", "objective.coeff=1e0", "threads=1"]
    assert prepare("total_env_steps=1.5") == ["total_env_steps=1.5"]  # Hydra refuses it
    swept = prepare("-m", "total_env_steps=1e3,2e3,5", "seed=range(1,3)", "sac.lr=1e-3,1e0", "threads=1.5,2.0")
    assert swept == ["-m", "total_env_steps=1000,2000,5", "seed=range(1,3)", "sac.lr=1e-3,1e0", "threads=1.5,2"]


def test_a_wrong_path_does_not_search_the_disk(fault, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fault(press("SIGTERM", TRAINING, 15))
    stopped(tmp_path / "deep" / "down" / "run")
    with pytest.raises(launch.BadCommand, match="Runs with a checkpoint: none"):
        prepare(f"resume={tmp_path}/typo")
    with pytest.raises(launch.BadCommand, match="deep/down/run .step 15"):
        prepare(f"resume={tmp_path}/deep/down/typo")
