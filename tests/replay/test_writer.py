"""The short way of writing one step against the general one: the same rows, state, priorities and errors."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from mcurl_torchrl import FrameReplayBuffer
from tests.replay.histories import GOES_ON, IS_SPLIT, TERMINATES, TRUNCATES, WAS_CUT, Player, Setting, encode

# What a step may lack or have more: the data may say itself where episodes begin and end, or may be wrong.
ODDITIES = {
    "no truncated": lambda data, rng: data.exclude(("next", "truncated")),
    "no done": lambda data, rng: data.exclude(("next", "done")),
    "no flags": lambda data, rng: data.exclude(("next", "truncated"), ("next", "done")),
    "is_init": lambda data, rng: data.set("is_init", torch.tensor([rng.random() < 0.5])),
    "step_count": lambda data, rng: data.set("step_count", torch.tensor([rng.randint(0, 1)])),
    "traj_ids": lambda data, rng: data.set(("collector", "traj_ids"), torch.tensor(rng.randint(0, 1))),
    "padding": lambda data, rng: data.set(("collector", "mask"), torch.tensor(False)),
    "no action": lambda data, rng: data.exclude("action"),
    "no next pixels": lambda data, rng: data.exclude(("next", "pixels")),
    "float pixels": lambda data, rng: data.set("pixels", data["pixels"].float()),
    "larger pixels": lambda data, rng: data.set("pixels", data["pixels"].repeat(1, 2, 2)),
    "more pixels": lambda data, rng: data.set("pixels", data["pixels"].repeat(2, 1, 1)),
    "another past": lambda data, rng: data.set(("next", "pixels"), data["next", "pixels"].flip(0)),
    "another action": lambda data, rng: data.set("action", data["action"].float()),
    "long action": lambda data, rng: data.set("action", data["action"].repeat(2)),
    "scalar reward": lambda data, rng: data.set(("next", "reward"), data["next", "reward"][0]),
    "integer reward": lambda data, rng: data.set(("next", "reward"), data["next", "reward"].long()),
    "no number": lambda data, rng: data.set_non_tensor(("next", "reward"), "a lot"),
    "integer flag": lambda data, rng: data.set(("next", "terminated"), data["next", "terminated"].long()),
    "two flags": lambda data, rng: data.set(("next", "done"), data["next", "done"].repeat(2)),
}


def make_step(player: Player, event: int) -> TensorDict:
    """Makes the next step of a player's only environment."""
    step, stack, next_stack = player._step(0, event)
    return TensorDict(
        {
            "pixels": torch.cat([encode(number) for number in stack]),
            "action": torch.tensor([step.action]),
            "next": {
                "pixels": torch.cat([encode(number) for number in next_stack]),
                "reward": torch.tensor([step.reward]),
                "terminated": torch.tensor([step.terminated]),
                "truncated": torch.tensor([step.truncated]),
                "done": torch.tensor([step.terminated or step.truncated]),
            },
        },
        batch_size=[],
    )


def plainly(value: Any) -> Any:
    """Turns tensors into lists, each with its dtype, so that == compares every bit."""
    if isinstance(value, dict):
        return {key: plainly(part) for key, part in value.items()}
    return (value.dtype, value.tolist()) if isinstance(value, torch.Tensor) else value


def everything(buffer: FrameReplayBuffer) -> Any:
    """Returns all that a write may change."""
    storage = buffer.storage
    # The others hold whatever the memory held.
    rows = storage._storage[storage._storage["trajectory"] >= 0].to_dict() if storage.initialized else {}
    return plainly(
        {
            "rows": rows,
            "length": len(storage),
            "cursor": storage._last_cursor,
            "writer": buffer._writer.state_dict(),
            "sampler": buffer.sampler.state_dict(),
        }
    )


def outcome(buffer: FrameReplayBuffer, data: TensorDict) -> Any:
    """Adds a step to a buffer and returns the index, or the error; what was given is overwritten afterwards."""
    before, data = everything(buffer), data.clone()
    try:
        return plainly(buffer.add(data))
    except (KeyError, ValueError) as error:
        assert everything(buffer) == before
        return type(error), str(error)
    finally:
        data.zero_()


@pytest.mark.parametrize("seed", range(16))
def test_the_short_way_does_what_the_general_one_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    num_frames = rng.randint(1, 4)
    setting = Setting(
        ring=rng.choice([2, 5, 40]),
        num_columns=1,
        num_frames=num_frames,
        n_step=3,
        slice_len=2,
        padding=rng.choice(["repeat", "zeros"]),
        stacked_input=rng.random() < 0.7,
        prioritized=rng.random() < 0.7,
        memmap=rng.random() < 0.3,
    )
    player = Player(setting)
    short, general = player.buffer, player.make()[0]
    write_next, taken = short._writer._write_next, []

    def count(data: TensorDict) -> Any:
        written = write_next(data)
        taken.append(written is not None)
        return written

    monkeypatch.setattr(short._writer, "_write_next", count)
    monkeypatch.setattr(general._writer, "_write_next", lambda data: None)
    for _ in range(120):
        event = rng.choices([GOES_ON, TERMINATES, TRUNCATES, WAS_CUT, IS_SPLIT], [30, 1, 1, 1, 1])[0]
        data = make_step(player, event)
        if taken and rng.random() < 0.2:  # the first step decides what fits
            odd = ODDITIES[rng.choice(list(ODDITIES))](data.clone(), rng)
            assert outcome(short, odd) == outcome(general, odd)
        assert outcome(short, data) == outcome(general, data)
        assert everything(short) == everything(general)
        if rng.random() < 0.02:
            short.empty()
            general.empty()
    assert sum(taken) > 40
