"""What recipes offer to auxiliary tasks, and what tasks take of it."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from mcurl_torchrl import AuxiliaryTask
from recipes.building import make_task


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
