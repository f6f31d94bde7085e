"""Help and wrong settings are answered before torch is imported, which takes seconds."""

from __future__ import annotations

import functools
import importlib.util
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import hydra
import pytest
from omegaconf import OmegaConf

from mcurl_torchrl.modules import actions, projections
from mcurl_torchrl.objectives import contrastive_task, functional, masked_reconstruction_task
from recipes import schema
from recipes.command_line import config_folder
from recipes.early_answers import answer_early
from recipes.objective_files import objective_keys
from recipes.value_checks import (
    AT_MOST_ONE,
    KNOWN_OBJECTIVES,
    MAY_BE_ZERO,
    WORDS,
    check_choices,
    check_numbers,
    check_trackers,
    check_values,
    choices_of,
)

RECIPES = Path(schema.__file__).parent
# The script as it is started from a shell; then whether it imported torch on the way.
PROGRAM = """
import runpy, sys
script, sys.argv = sys.argv[1], sys.argv[1:]
try:
    runpy.run_path(script, run_name="__main__")
finally:
    print("torch" if "torch" in sys.modules else "no torch")
"""


def start(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(RECIPES / f"{script}.py"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("script", "argument"),
    [
        ("sac_mcurl", "--help"),
        ("rainbow_mcurl", "-h"),
        ("evaluate", "--help"),
        ("report", "--help"),
        ("suite", "--help"),
    ]
    + [("rainbow_mcurl", "--cfg=job"), ("sac_mcurl", "--hydra-help")],
)
def test_help_needs_no_torch(tmp_path: Path, script: str, argument: str) -> None:
    done = start(tmp_path, script, *argument.split("="))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "no torch" and len(done.stdout) > 300
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ("sac_mcurl", "seeed=3", "there is no setting 'seeed'; did you mean seed"),
        ("rainbow_mcurl", "env=MsPackman", "env=MsPackman: did you mean MsPacman"),
        ("sac_mcurl", "preset=huge", "preset=huge: choose one of cpu, paper, smoke"),
        ("sac_mcurl", "-m seed=1,2 algo=mcurl,crul", "algo=crul: did you mean"),
        ("sac_mcurl", "sac.alpha_loss=beta", "sac.alpha_loss='beta'; choose one of ['alpha', 'log_alpha']"),
        (
            "rainbow_mcurl",
            "rainbow.loss=quantile",
            "rainbow.loss='quantile'; choose one of ['categorical'",
        ),
        ("sac_mcurl", "seed=first", "Value 'first' of type 'str' could not be converted to Integer"),
        ("evaluate", "run=here episodess=3", "there is no setting 'episodess'; did you mean episodes"),
        ("sac_mcurl", "sac.lr=-1", "sac.lr=-1.0; it must be above 0 and finite"),
        ("rainbow_mcurl", "objective.coeff=nan", "objective.coeff=nan; it must be at least 0 and finite"),
        ("sac_mcurl", "sac.alpha_init=0", "sac.alpha_init=0.0; it must be above 0 and finite"),
        ("sac_mcurl", "objective.mask_ratio=0", "objective.mask_ratio=0; it must be above 0 and at most 1"),
        ("rainbow_mcurl", "rainbow.gamma=1.1", "rainbow.gamma=1.1; it must be at least 0 and at most 1"),
        ("sac_mcurl", "resume=/no/such/run", "/no/such/run: it does not exist. Runs with a checkpoint: none"),
        ("sac_mcurl", "resume=here,there", "resume=here,there: there is no such path, and Hydra reads it as several"),
        ("evaluate", "run=/no/such/run", "/no/such/run: it does not exist. Runs with a checkpoint: none"),
        ("sac_mcurl", "logging.wandb=mcurl", "logging.wandb=mcurl; give its options, as in 'logging.wandb={project"),
        ("sac_mcurl", "precision=half", "precision='half'; choose one of ['float32', 'bfloat16']"),
        ("sac_mcurl", "objective.reduction=max", "objective.reduction='max'; choose one of ['mean', 'sum', 'none']"),
        ("sac_mcurl", "resume=auto", "resume=auto needs the directory of the run: add hydra.run.dir=DIR"),
        ("sac_mcurl", "-m resume=auto seed=1,2", "the directory of the run: add hydra.sweep.dir=DIR"),
        ("sac_mcurl", "replay.capacity=0", "replay.capacity=0; it must be at least 1"),
        ("evaluate", "episodes=3", "evaluate.py: run=RUN_DIR is needed"),
        ("probe", "", "probe.py: encoders=FILE is needed"),
        ("report", "out=here", "report.py: runs=DIR is needed"),
        ("report", "tittle=x", "there is no setting 'tittle'; did you mean title"),
        ("suite", "suite=smok", "suite=smok: did you mean smoke"),
        ("suite", "suite=smoke job=2", "job=2: there is no such option; did you mean jobs"),
        ("sac_mcurl", "env=gym", "env=gym needs env.id"),
        ("sac_mcurl", "env.id=CartPole-v1", "env.id=CartPole-v1 needs env=gym; without it, cartpole-swingup would be"),
        ("rainbow_mcurl", "env.task=humanoid-run", "env.task=humanoid-run needs env=dmc"),
        (
            "sac_mcurl",
            "env=Pong",
            "env=Pong: sac_mcurl needs continuous actions, which it does not have; use recipes/rainbow",
        ),
        ("rainbow_mcurl", "env=walker-walk", "env=walker-walk: rainbow_mcurl needs discrete actions"),
        ("sac_mcurl", "threads=0", "threads=0; it must be at least 1"),
        ("pretrain", "seed=-1", "seed=-1; it must be at least 0"),
        ("rainbow_mcurl", "evaluation.num_envs=0", "evaluation.num_envs=0; it must be at least 1"),
        ("ppo_mcurl", "total_env_steps=0", "total_env_steps=0; it must be at least 1, one agent step"),
        (
            "sac_mcurl",
            "env=gym env.id=Some-v0 algo=state_sac",
            "env.observation=state, which algo=state_sac sets, is for",
        ),
        ("rainbow_mcurl", "augmentation=crop", "augmentation.batch=crop is for SAC, whose encoder takes a crop of the"),
        ("ppo_mcurl", "augmentation.views=crop", "augmentation.views=crop is for SAC"),
        ("pretrain", "agent=rainbow augmentation=crop", "augmentation.batch=crop is for SAC"),
        ("sac_mcurl", "encoder.init=missing.pt", "encoder.init=missing.pt: there is no encoder file missing.pt"),
        ("rainbow_mcurl", "encoder.frozen=true", "encoder.frozen=true with objective=mcurl: the auxiliary task would"),
        ("ppo_mcurl", "algo=ppo encoder.frozen=true", "encoder.frozen=true without encoder.init would freeze"),
        ("sac_mcurl", "algo=curl env.observation=state", "objective=curl with env.observation=state: this objective"),
    ],
)
def test_a_wrong_setting_needs_no_torch(tmp_path: Path, script: str, arguments: str, said: str) -> None:
    done = start(tmp_path, script, *arguments.split())
    assert done.returncode == 1
    assert said in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == "no torch\n"
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    logging = OmegaConf.structured(schema.LoggingConfig(wandb={"project": "mcurl"}))
    for found in (None, ModuleSpec("wandb", None)):  # nothing; a mere folder of that name
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, found=found: found)
        with pytest.raises(ValueError, match=r"logging.wandb needs the package wandb: pip install 'mcurl-torchrl\["):
            check_trackers(logging)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None, origin="wandb/__init__.py"))
    check_trackers(logging)


def numbers_in(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from numbers_in(value, f"{prefix}{name}.")
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield f"{prefix}{name}"


SCRIPTS = ("sac_mcurl", "rainbow_mcurl", "ppo_mcurl", "pretrain", "probe", "evaluate", "play", "report")


def test_the_bounds_are_of_settings_that_exist() -> None:
    assert {file.stem for file in (RECIPES / "conf/shared/objective").glob("*.yaml")} >= KNOWN_OBJECTIVES
    objectives = {f"objective.{key}" for key in objective_keys("mcurl") | objective_keys("mlr") | objective_keys("spr")}
    found = set(objectives)
    for script in SCRIPTS:
        with hydra.initialize_config_dir(str(config_folder(script)), version_base="1.3"):
            composed = OmegaConf.to_container(hydra.compose(script))
        check_numbers(composed)  # the defaults are inside
        found |= set(numbers_in(composed))
    assert (MAY_BE_ZERO | AT_MOST_ONE) - found == set()


@pytest.mark.parametrize(
    ("key", "taken", "refused"),
    [
        ("sac.lr", [1e-9, 2.0], [0.0, -1e-9, math.inf, math.nan]),
        ("sac.gamma", [0.0, 1.0], [-0.1, 1.1, math.nan]),
        ("sac.critic_tau", [0.1, 1.0], [0.0, 1.1]),
        ("threads", [1, 64], [0, -1]),
        ("seed", [0, 7], [-1]),
        ("env.camera_id", [-1, 0], [-2]),  # -1 is MuJoCo's free camera
    ],
)
def test_bounds_of_numbers(key: str, taken: list[float], refused: list[float]) -> None:
    *sections, name = key.split(".")

    def nested(value: float) -> dict[str, Any]:
        return functools.reduce(lambda inner, section: {section: inner}, reversed(sections), {name: value})

    for value in taken:
        check_numbers(nested(value))
    for value in refused:
        with pytest.raises(ValueError, match=rf"{key}={value}; it must be"):
            check_numbers(nested(value))


@dataclass
class NewAgent:
    value_shift: float = -10.0
    epsilon: float = 0.0


@dataclass
class NewRecipeConfig(schema.RecipeConfig):
    recipe: str = "new"
    new: NewAgent = field(default_factory=NewAgent)
    patience: int = 0


def test_a_new_agent_and_a_new_objective_have_bounds_of_their_own() -> None:
    with hydra.initialize_config_dir(str(config_folder("rainbow_mcurl")), version_base="1.3"):
        known = OmegaConf.to_container(hydra.compose("rainbow_mcurl", overrides=["env=Pong"]))
    cfg = OmegaConf.merge(OmegaConf.structured(NewRecipeConfig), {key: known[key] for key in ("env", "evaluation")})
    cfg.total_env_steps = 10
    cfg.objective = {"name": "new", "task": "mcurl_torchrl.objectives.new.NewTask", "shift": -1.0, "layout": "rings"}
    check_values(cfg)
    check_choices(cfg, NewRecipeConfig)
    cfg.evaluation.episodes = 0  # of every recipe
    with pytest.raises(ValueError, match=r"evaluation\.episodes=0; it must be at least 1"):
        check_values(cfg)


def test_mlr_may_hide_nothing() -> None:
    task = "mcurl_torchrl.objectives.masked_reconstruction_task.MaskedReconstructionTask"
    check_numbers({"objective": {"name": "mlr", "task": task, "mask_ratio": 0}})
    with pytest.raises(ValueError, match=r"objective.mask_ratio=0; it must be above 0 and at most 1"):
        check_numbers({"objective": {"name": "mcurl", "task": "mcurl_torchrl.objectives.X", "mask_ratio": 0}})


def test_a_setting_may_name_what_hydra_knows_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["sac_mcurl.py", "env=gym", "env.id=Some-v0", "env.kwargs={folder: ${hydra:runtime.output_dir}}"]
    monkeypatch.setattr(sys, "argv", settings)
    answer_early(config_name="sac_mcurl", schema=schema.SACRecipeConfig)


def test_the_numbers_of_an_objective_that_is_not_ours_are_free() -> None:
    check_numbers({"objective": {"name": "curl", "task": "my_package.MyTask", "tau": -3}})
    check_numbers({"env": {"kwargs": {"size": -3}}, "compile": False})
    with pytest.raises(ValueError, match=r"objective.tau=-3; it must be above 0 and at most 1"):
        check_numbers({"objective": {"name": "curl", "task": "mcurl_torchrl.objectives.ContrastiveTask", "tau": -3}})


def test_the_words_of_objectives_are_those_of_the_library() -> None:
    ours = {
        "objective.layout": actions.ACTION_LAYOUTS,
        "objective.negatives": functional.NEGATIVES,
        "objective.projection": projections.PROJECTIONS,
        "objective.projector": masked_reconstruction_task._PROJECTORS,
        "objective.reduction": functional.REDUCTIONS,
        "objective.views": contrastive_task._VIEWS,
    }
    assert ours == WORDS
    own = OmegaConf.create({"objective": {"name": "curl", "task": "my_package.MyTask", "views": "mine"}})
    check_choices(own, schema.ReportConfig)
    own.objective.task = "mcurl_torchrl.objectives.ContrastiveTask"
    with pytest.raises(ValueError, match=r"objective.views='mine'; choose one of \['batch', 'slices'\]"):
        check_choices(own, schema.ReportConfig)


def test_every_list_of_choices_has_the_default() -> None:
    listed = dict(choices_of(schema.SACRecipeConfig)) | dict(choices_of(schema.RainbowRecipeConfig))
    assert listed["env.interpolation"] == ("bilinear", "area") and listed["sac.alpha_loss"] == ("alpha", "log_alpha")
    assert schema.EnvConfig().observation == "pixels" and schema.RainbowConfig().architecture == "data_efficient"


def test_a_missing_opengl_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "nosuchgl")
    done = start(tmp_path, "sac_mcurl", "preset=smoke")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("sac_mcurl.py: MUJOCO_GL=nosuchgl: mujoco, which TorchRL imports, cannot load")
