"""What recipes offer to auxiliary tasks, and what tasks take of it; what agents take of the settings."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from torchrl.data import Bounded, Categorical

from mcurl_torchrl import AuxiliaryTask
from mcurl_torchrl.agents import Agent
from recipes import building, ppo_mcurl, rainbow_mcurl, sac_mcurl
from recipes.building import make_task
from recipes.schema import EncoderConfig, EnvConfig, PPOConfig, RainbowConfig, SACConfig
from tests.recipes import running

ROOT = Path(__file__).parents[2]


class NeedsHead(AuxiliaryTask):
    def __init__(self, encoder, buffer, *, head, size, augmentation=None) -> None:
        super().__init__(encoder)
        self.got = (buffer, head, size, augmentation)


class TakesAll(AuxiliaryTask):
    def __init__(self, encoder, buffer, **given) -> None:
        super().__init__(encoder)
        self.got = given


def named(kind: type, **settings) -> OmegaConf:
    return OmegaConf.create({"name": "mine", "task": f"{__name__}.{kind.__name__}", **settings})


def test_a_task_gets_what_it_names():
    task = make_task(named(NeedsHead, size=3), None, "buffer", head="head", action_spec="actions")
    assert task.got == ("buffer", "head", 3, None)
    assert make_task(named(TakesAll, size=3), None, None, head="head").got == {"head": "head", "size": 3}


def test_a_task_that_needs_more_than_there_is_is_refused():
    with pytest.raises(ValueError, match=r"objective=mine needs \['head'\] of the agent; this recipe offers"):
        make_task(named(NeedsHead, size=3), None, None, augmentation=None, action_spec=None)


def test_a_task_may_be_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = "from mcurl_torchrl.objectives import NoTask\nclass Mine(NoTask):\n    pass\n"
    (tmp_path / "my_objectives.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    objective = OmegaConf.create({"name": "mine", "task": "my_objectives.Mine"})
    made = make_task(objective, torch.nn.Linear(1, 1), None, augmentation=None, action_spec=None)
    assert type(made).__name__ == "Mine"


@pytest.mark.parametrize("shape", [(), (2, 2)])
def test_actions_that_are_no_vector_are_refused(shape: tuple[int, ...]):
    env = SimpleNamespace(action_spec=Bounded(-1, 1, shape))
    with pytest.raises(ValueError, match=re.escape(f"have the shape {list(shape)}; one dimension is needed")):
        building.check_actions(env, discrete=False, recipe="SAC", other="rainbow_mcurl")


@pytest.mark.parametrize(
    ("module", "name", "section"),
    [
        (sac_mcurl, "sac", SACConfig),
        (sac_mcurl, "encoder", EncoderConfig),
        (rainbow_mcurl, "rainbow", RainbowConfig),
        (ppo_mcurl, "ppo", PPOConfig),
        (building, "env", EnvConfig),
    ],
)
def test_no_setting_is_left_out(module: ModuleType, name: str, section: type):
    """settings_for passes settings by name: one that no parameter has would have no effect."""
    source = inspect.getsource(module)
    kinds = [getattr(module, kind) for kind in re.findall(r"settings_for\((\w+), ", source)]
    passed = {parameter for kind in kinds for parameter in inspect.signature(kind).parameters}
    read = set(re.findall(rf"\b{name}\.(\w+)", source))
    elsewhere = {"encoder": {"init", "frozen"}, "env": {"published", "following_camera_id"}}.get(name, set())
    assert {one.name for one in fields(section)} - passed - read == elsewhere


# -- resets ------------------------------------------------------------------------------------------------------------

MAKERS = {  # module, channels of a frame, actions
    "rainbow_mcurl": (rainbow_mcurl, 1, Categorical(6)),
    "sac_mcurl": (sac_mcurl, 3, Bounded(-1, 1, shape=(2,))),
}


def make_agent(recipe: str, *overrides: str) -> Agent:
    module, channels, actions = MAKERS[recipe]
    cfg = running.settings(*overrides, recipe=recipe)
    size = cfg.env.image_size
    pixels = torch.empty(channels * cfg.env.num_frames, size, size, device="meta")
    spaces = SimpleNamespace(observation_spec={"pixels": pixels}, action_spec=actions)
    return module.make_agent(cfg, spaces, module.make_replay(cfg, Path("unused")), torch.device("cpu"))


def with_resets() -> Iterator[tuple[str, ...]]:
    """The recipes and overrides of all committed suites with resets."""
    for file in sorted((ROOT / "benchmarks/suites").glob("*.yaml")):
        for part in OmegaConf.load(file).experiments:
            for more in part.get("variants", {}).values():
                if any(one.startswith("resets.") for one in more):
                    yield part.recipe, f"env={part.envs[0]}", f"algo={part.algos[0]}", *part.overrides, *more


@pytest.mark.parametrize(
    "chosen",
    [
        ("rainbow_mcurl", "algo=spr", "reference=sr_spr"),
        ("rainbow_mcurl", "preset=smoke", "resets.interval_updates=20"),
        ("sac_mcurl", "preset=smoke", "resets.interval_updates=20"),
        *with_resets(),
    ],
    ids=" ".join,
)
def test_resets_that_are_published_declared_or_small_are_taken(
    chosen: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_agent(*chosen).resets is not None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        (
            ("sac_mcurl", "resets.interval_updates=4", "sac.updates_per_agent_step=4"),
            "resets.interval_updates=4 with updates_per_agent_step=4; it must be at least 400, twice the 200 updates",
        ),
        (
            ("rainbow_mcurl", "algo=rainbow", "reference=sr_spr", "resets.interval_updates=7"),
            "resets.interval_updates=7 with updates_per_agent_step=8; it must be at least 400, twice the 200 updates",
        ),
        (
            ("rainbow_mcurl", "algo=rainbow", "preset=smoke", "resets.interval_updates=9"),
            "resets.interval_updates=9 with updates_per_agent_step=1; it must be at least 10, two copies",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_resets_that_make_no_sense_are_refused(chosen: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        make_agent(*chosen)


@pytest.mark.parametrize(("recipe", "section"), [("rainbow_mcurl", "rainbow"), ("sac_mcurl", "sac")])
def test_many_updates_without_resets_get_advice(recipe: str, section: str, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*overrides: str) -> str:
        make_agent(recipe, "algo=curl", *overrides)
        return capsys.readouterr().err

    assert said(f"{section}.updates_per_agent_step=3") == ""
    assert said(f"{section}.updates_per_agent_step=4") == (
        "4 updates per agent step without resets: with so many, networks often stop learning; resets.interval_updates "
        "draws them anew (docs/algorithms/resets.md), and 0 says that there are none on purpose\n"
    )
    assert said(f"{section}.updates_per_agent_step=4", "resets.interval_updates=0") == ""
