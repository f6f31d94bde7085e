"""What recipes offer to auxiliary tasks, and what tasks take of it; what agents take of the settings."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from types import ModuleType

import pytest
from omegaconf import OmegaConf

from mcurl_torchrl import AuxiliaryTask
from recipes import building, ppo_mcurl, rainbow_mcurl, sac_mcurl
from recipes.building import make_task
from recipes.schema import EncoderConfig, EnvConfig, PPOConfig, RainbowConfig, SACConfig


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
